"""Repetitive cleaning, against a plain loop written from SPEC section 5."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rad_jax
from rad_jax import selection, sweep
from rad_jax.datasets import StreamData
from rad_jax.types import Batch, RowStatus

K, CLEAN, SIZE, ARRIVALS = 3, 9, 15, 4
CAPACITY = CLEAN + SIZE * ARRIVALS


def rows(seed=0):
    rng = np.random.default_rng(seed)
    centre = rng.normal(size=(K, 4)) * 0.6
    true = rng.integers(0, K, CAPACITY)
    x = (centre[true] + rng.normal(size=(CAPACITY, 4))).astype(np.float32)
    wrong = (np.arange(CAPACITY) >= CLEAN) & (rng.random(CAPACITY) < 0.4)
    given = np.where(wrong, (true + rng.integers(1, K, CAPACITY)) % K, true)
    return x, true.astype(np.int32), given.astype(np.int32)


def part(x, label, at):
    n = len(label[at])
    index = np.arange(CAPACITY, dtype=np.int32)[at]
    return Batch(jnp.asarray(x[at]), jnp.asarray(label[at]), jnp.ones(n, bool), index)


def batches():
    for i in range(ARRIVALS):
        yield slice(CLEAN + i * SIZE, CLEAN + (i + 1) * SIZE)


def centroids(x, label, kept):
    """Class means of the kept rows, inf for a class without one."""
    out = np.full((K, x.shape[1]), np.inf)
    for k in range(K):
        if (own := kept & (label == k)).any():
            out[k] = x[own].mean(axis=0)
    return out


def nearest(means, x):
    distance = ((x[:, None].astype(np.float64) - means[None]) ** 2).sum(axis=2)
    return np.where(np.isnan(distance), np.inf, distance).argmin(axis=1)


def by_hand(x, given, window):
    """`basic` with one nearest-centroid model, written as loops over rows."""
    kept = np.arange(CAPACITY) < CLEAN
    arrived = np.full(CAPACITY, -1)
    arrived[:CLEAN] = 0
    history = []
    means = centroids(x, given, kept)
    for i, at in enumerate(batches(), start=1):
        predicted = nearest(means, x)
        arrived[at] = i
        for row in range(CAPACITY):
            again = arrived[row] >= 1 and (window < 0 or arrived[row] >= i - window)
            if arrived[row] == i or again:
                kept[row] = predicted[row] == given[row]
        means = centroids(x, given, kept)
        history.append(kept.copy())
    return history


@functools.cache
def algorithm(window, scheme=rad_jax.basic, **options):
    return rad_jax.rad(
        classifier=rad_jax.nearest_centroid(),
        selection=scheme(**options),
        num_classes=K,
        memory_capacity=CAPACITY,
        validation_fraction=0.0,
        cleaning_window=window,
    )


@pytest.mark.parametrize("window", [0, 1, 2, 3, 10**12, -1])
def test_the_last_arrivals_are_selected_again(window):
    came_back = went = 0
    for seed in range(4):
        x, _, given = rows(seed)
        algo = algorithm(window)
        state = jax.jit(algo.init)(jax.random.key(0), part(x, given, slice(CLEAN)))
        step = jax.jit(algo.step)
        before = None
        for at, kept in zip(batches(), by_hand(x, given, window), strict=True):
            state, _ = step(state, part(x, given, at))
            trained = np.asarray(state.per_seed.status) > RowStatus.DROPPED
            np.testing.assert_array_equal(trained, kept)
            if before is not None:
                came_back += (kept & ~before)[: at.start].sum()
                went += (before & ~kept)[: at.start].sum()
            before = kept
    if window in (0, 1):
        assert (came_back + went > 0) == (window == 1)
    else:
        assert came_back > 0
        assert went > 0


def test_an_experts_labels_and_the_clean_rows_stay():
    x, true, given = rows()
    algo = algorithm(-1)
    state = algo.init(jax.random.key(0), part(x, given, slice(CLEAN)))
    # From now on nothing that the model says agrees with anything.
    hostile = np.where(np.arange(CAPACITY) < CLEAN, given, -1)
    for at in batches():
        state, _ = algo.step(state, part(x, (true + 1) % K, at))
    asked = np.arange(CLEAN, CLEAN + 6, dtype=np.int32)
    state, found = algo.answer(state, asked, jnp.asarray((true[asked] + 2) % K))
    assert found.all()
    more = Batch(
        jnp.asarray(x[:SIZE] + 0.1),
        jnp.asarray(hostile[:SIZE]),
        jnp.ones(SIZE, bool),
        jnp.arange(1000, 1000 + SIZE),
    )
    roomy = state  # the memory is full: the new rows find no room, cleaning goes on
    roomy, _ = algo.judge(roomy, more)
    status, label = np.asarray(roomy.per_seed.status), np.asarray(roomy.per_seed.label)
    assert (status[:CLEAN] == RowStatus.VERIFIED).all()
    np.testing.assert_array_equal(label[:CLEAN], given[:CLEAN])
    assert (status[asked] == RowStatus.VERIFIED).all()
    np.testing.assert_array_equal(label[asked], (true[asked] + 2) % K)


@pytest.mark.parametrize("total", [None, 5])
def test_the_expert_is_asked_about_new_rows_only(total):
    x, _, given = rows()
    algo = algorithm(-1, rad_jax.active_limited, query_budget=2, total_budget=total)
    state = algo.init(jax.random.key(0), part(x, given, slice(CLEAN)))
    pending = set()
    for at in batches():
        state, info = algo.step(state, part(x, given, at))
        asked = np.flatnonzero(np.asarray(state.per_seed.status) == RowStatus.PENDING)
        pending |= set((np.flatnonzero(np.asarray(info.query)) + at.start).tolist())
        assert set(asked.tolist()) == pending  # never answered, never dropped
    # Nor does cleaning spend anything of what may be asked in all.
    assert len(pending) == (total or 2 * ARRIVALS)


@pytest.mark.parametrize("kind", [rad_jax.basic, rad_jax.active])
def test_each_batch_keeps_its_minimum_of_each_class(kind):
    """Also where all batches are selected again at once, and nobody is asked."""
    least, saved = 4, 0
    algo = algorithm(-1, functools.partial(selection.keep_per_class, kind(), least))
    init, step = jax.jit(algo.init), jax.jit(algo.step)
    for seed in range(4):
        x, _, given = rows(seed)
        state = init(jax.random.key(0), part(x, given, slice(CLEAN)))
        for i, at in enumerate(batches(), start=1):
            agrees = np.asarray(algo.predict(state, x)) == given
            state, _ = step(state, part(x, given, at))
            status = np.asarray(state.per_seed.status)
            for before in list(batches())[:i]:
                for k in range(K):
                    own = (given == k) & (status != RowStatus.PENDING)
                    agree = (own & agrees)[before].sum()
                    wanted = max(agree, min(least, own[before].sum()))
                    kept = own & (status == RowStatus.KEPT)
                    assert kept[before].sum() == wanted
                    saved += wanted > agree
    assert saved


def test_no_row_of_an_arrival_with_padding_is_missed():
    x, _, given = rows()
    algo = algorithm(2)
    state = algo.init(jax.random.key(0), part(x, given, slice(CLEAN)))
    full = state
    for at in batches():
        batch = part(x, given, at)
        padded = jax.tree.map(
            lambda a: jnp.concatenate([a, jnp.zeros_like(a[:7])]), batch
        )
        padded = padded._replace(valid=jnp.arange(SIZE + 7) < SIZE)
        state, _ = algo.step(state, padded)
        full, _ = algo.step(full, batch)
    np.testing.assert_array_equal(state.per_seed.status, full.per_seed.status)


def stream_data(seed=0):
    x, true, _ = rows(seed)
    cut = slice(CLEAN, CAPACITY)
    return StreamData(
        initial_features=x[:CLEAN],
        initial_labels=true[:CLEAN],
        features=x[cut].reshape(ARRIVALS, SIZE, 4),
        labels=true[cut].reshape(ARRIVALS, SIZE),
        test_features=x[:9] + 0.3,
        test_labels=true[:9],
        num_classes=K,
        class_names=("a", "b", "c"),
    )


def test_a_sweep_cleans_and_the_baselines_are_untouched():
    arms = [
        sweep.Arm("no_selection", rad_jax.no_selection()),
        sweep.Arm("oracle_selection", rad_jax.oracle_selection()),
        sweep.Arm("basic", rad_jax.basic()),
    ]

    def run(window):
        return sweep.prepare(
            stream_data(),
            arms,
            label_model=rad_jax.nearest_centroid(),
            classifier=rad_jax.nearest_centroid(),
            noise_rates=[0.4],
            num_seeds=3,
            cleaning_window=window,
        ).run()

    without, everything = run(0), run(-1)
    for name in ("accuracy", "classifier_accuracy", "purity", "recall"):
        a, b = without.history[name], everything.history[name]
        np.testing.assert_array_equal(a[:2], b[:2])  # the baselines
        np.testing.assert_array_equal(a[2, ..., :2], b[2, ..., :2])  # nothing yet
    assert (without.history["recall"][2] != everything.history["recall"][2]).any()


def test_bad_windows():
    with pytest.raises(ValueError, match=r"cleaning_window .*-1 for all, got -2"):
        algorithm(-2)
    with pytest.raises(TypeError, match="cleaning_window must be a whole number, got"):
        algorithm(2.5)
