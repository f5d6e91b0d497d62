"""Labels that come some arrivals late, against a plain loop."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

import rad_jax
from rad_jax import noise, schedules, sweep
from rad_jax.datasets import StreamData
from rad_jax.types import Selection, SelectionScheme

K, CLEAN, SIZE, ARRIVALS, TEST = 3, 15, 8, 6, 30


@functools.cache
def data():
    rng = np.random.default_rng(2)
    total = CLEAN + SIZE * ARRIVALS + TEST
    centre = rng.normal(size=(K, 3)) * 0.7
    true = rng.integers(0, K, total).astype(np.int32)
    x = (centre[true] + rng.normal(size=(total, 3))).astype(np.float32)
    cut = slice(CLEAN, CLEAN + SIZE * ARRIVALS)
    return StreamData(
        initial_features=x[:CLEAN],
        initial_labels=true[:CLEAN],
        features=x[cut].reshape(ARRIVALS, SIZE, 3),
        labels=true[cut].reshape(ARRIVALS, SIZE),
        test_features=x[-TEST:],
        test_labels=true[-TEST:],
        num_classes=K,
        class_names=("a", "b", "c"),
    )


def run(delay, *, rate=0.0, window=None, learner=None, arms=None, kind=None, clean=0):
    return sweep.prepare(
        data(),
        arms or [sweep.Arm("basic", rad_jax.basic(), one_model=True)],
        label_model=rad_jax.nearest_centroid(),
        classifier=learner or rad_jax.nearest_centroid(),
        noise_rates=[rate],
        noise=kind or noise.symmetric(0.0),
        num_seeds=2,
        validation_fraction=0.0,
        memory_window=window,
        label_delay=delay,
        cleaning_window=clean,
    ).run()


def nearest(x, y, queries):
    """The class of the nearest mean of the kept rows."""
    distance = np.full((len(queries), K), np.inf)
    for k in range(K):
        if (y == k).any():
            mean = x[y == k].astype(np.float64).mean(axis=0)
            distance[:, k] = ((queries - mean) ** 2).sum(axis=1)
    return distance.argmin(axis=1)


def by_hand(delay, window):
    """`basic` without noise; kept rows as a list in order of their arrival."""
    d = data()
    kept = [
        (x, y, 0) for x, y in zip(d.initial_features, d.initial_labels, strict=True)
    ]
    first = [(0, row) for row in range(CLEAN)]  # (batch, row) of everything that came
    names = list(first)
    holds = dict(zip(first, kept, strict=True))
    figures = []
    for i in range(1, ARRIVALS + 1):
        names += [(i, row) for row in range(SIZE)]
        known = set(names[-window:] if window else names)
        present = [v for name, v in holds.items() if name in known]
        x = np.array([v[0] for v in present])
        y = np.array([v[1] for v in present])
        # Models are as trained before this batch, on rows since forgotten as well.
        before = (
            np.array([v[0] for v in holds.values()]),
            np.array([v[1] for v in holds.values()]),
        )
        new = d.features[i - 1], d.labels[i - 1]
        guess = nearest(*before, new[0])
        prequential = (guess == new[1]).mean()
        j = i - delay
        if j >= 1:
            due = d.features[j - 1], d.labels[j - 1]
            agrees = nearest(*before, due[0]) == due[1]
            for row in np.flatnonzero(agrees):
                holds[j, int(row)] = (due[0][row], due[1][row], j)
        holds = {name: v for name, v in holds.items() if name in known}
        x = np.array([v[0] for v in holds.values()])
        y = np.array([v[1] for v in holds.values()])
        right = nearest(x, y, d.test_features) == d.test_labels
        figures.append((prequential, right.mean(), sum(n[0] > 0 for n in holds)))
    return np.array(figures).T


@pytest.mark.parametrize(
    ("delay", "window"), [(0, None), (1, None), (3, None), (2, 31)]
)
def test_late_labels_are_judged_when_they_come(delay, window):
    history = run(delay, window=window).history
    prequential, accuracy, kept = by_hand(delay, window)
    np.testing.assert_allclose(
        history["prequential_accuracy"][0, 0, 0, 1:], prequential, atol=1e-6
    )
    np.testing.assert_allclose(history["accuracy"][0, 0, 0, 1:], accuracy, atol=1e-6)
    np.testing.assert_array_equal(history["kept"][0, 0, 0, 1:], kept)
    if delay:
        assert (kept[:delay] == 0).all()
    assert kept[-1] > 0


def test_a_delay_does_not_change_the_noise():
    """Neither its draws nor its rate: both go by when a batch arrived."""
    kind = noise.scheduled(
        noise.independent(0.0),
        schedules.linear(0.2, 0.8, 1, ARRIVALS),
    )
    now, late = (run(delay, rate=1.0, kind=kind) for delay in (0, 2))
    a, b = (r.history["realised_noise"][0, 0] for r in (now, late))
    assert len(set(a[:, 1:-2].ravel().tolist())) > 3
    # It stands where a batch arrived; the last two batches never get their labels.
    np.testing.assert_array_equal(a[:, 1:-2], b[:, 1:-2])
    assert np.isnan(b[:, -2:]).all()


def test_cleaning_goes_by_the_batches_that_have_labels():
    """At arrival i labels of batch i - 2 come: batches before it are selected again."""

    def apply(params, state, evidence, *, key):
        labelled = evidence.valid & (evidence.label >= 0)
        keep = labelled & (state != 2)  # all of it, but when the third batch comes
        chosen = Selection(keep, evidence.label, jnp.zeros_like(keep))
        return chosen, state + jnp.any(labelled)

    scheme = SelectionScheme(lambda params: jnp.int32(0), apply, ())
    arms = [sweep.Arm("not then", scheme, one_model=True)]
    for window in (0, 1, 2):
        kept = run(2, arms=arms, clean=window).history["kept"][0, 0, 0]
        np.testing.assert_array_equal(
            kept, SIZE * np.array([0, 0, 0, 1, 2, 2 - window, 3])
        )


def test_neighbours_and_experts_with_late_labels():
    """A row without label does not vote, nor is an expert asked about it."""
    arms = [
        sweep.Arm("no_selection", rad_jax.no_selection()),
        sweep.Arm("active", rad_jax.active()),
    ]
    history = run(2, rate=0.3, learner=rad_jax.knn(3), arms=arms).history
    arrived = SIZE * np.maximum(np.arange(ARRIVALS + 1) - 2, 0)
    for arm in range(2):
        np.testing.assert_array_equal(history["kept"][arm, 0, 0], arrived)
    assert (history["queries"][1, 0, :, :3] == 0).all()
    assert (history["queries"][1, 0, :, -1] > 0).all()
    first = history["classifier_accuracy"][:, 0, :, :3]
    assert (first == first[..., :1]).all()  # nothing new is known yet


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delay": -1}, "label_delay must be .*at least 0, got -1"),
        ({"delay": ARRIVALS}, f"label_delay must be below the 6 .*, got {ARRIVALS}"),
        ({"delay": 3, "window": 31}, "memory_window=31 .*3 batches late.*at least 32"),
    ],
)
def test_bad_delays(options, message):
    with pytest.raises(ValueError, match=message):
        run(**options)
