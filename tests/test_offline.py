"""Offline studies against scikit-learn run by run, and against themselves."""

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from sklearn.metrics import balanced_accuracy_score
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid

from rad_jax import (
    Training,
    from_sklearn,
    knn,
    mlp,
    nearest_centroid,
    noise,
    offline,
    schedules,
)
from rad_jax import devices as rad_devices

K, SIZE, NUM_TEST = 3, 90, 60
KEYS = {"init_key": jax.random.key(0), "order_key": jax.random.key(1)}
RATES = (0.0, 0.3, 0.9)


def rows(shape=(5,), seed=0):
    """Three overlapping clouds, no two rows at the same distance: no ties."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, K, SIZE + NUM_TEST)
    label[:K] = np.arange(K)
    centres = 1.2 * rng.normal(size=(K, *shape))
    features = centres[label] + rng.normal(size=(SIZE + NUM_TEST, *shape))
    features = features.astype(np.float32)
    return features[:SIZE], label[:SIZE], features[SIZE:], label[SIZE:]


def given(label, rates=RATES, num_runs=3, seed=3):
    keys = jax.random.split(jax.random.key(seed), num_runs)
    return offline.noisy_labels(noise.symmetric(0.0), rates, keys, label, num_classes=K)


def study(learner, train, labels, test, **options):
    return offline.study(learner, train, labels, test, num_classes=K, **KEYS | options)


@pytest.mark.parametrize(
    ("learner", "counterpart"),
    [
        (knn(4, weighting="distance", num_candidates=4), {"weights": "distance"}),
        (nearest_centroid(), None),
    ],
    ids=["knn", "nearest_centroid"],
)
@pytest.mark.parametrize("shape", [(5,), (2, 3)])
def test_predictions_are_scikit_learns_in_every_run(learner, counterpart, shape):
    train, label, test, truth = rows(shape)
    labels = given(label).reshape(-1, SIZE)
    result = study(learner, train, labels, test)
    assert result.predictions.shape == (9, NUM_TEST)
    for run, predicted in zip(labels, result.predictions, strict=True):
        theirs = NearestCentroid()
        if counterpart is not None:
            theirs = KNeighborsClassifier(4, **counterpart)
        theirs.fit(train.reshape(SIZE, -1), run)
        np.testing.assert_array_equal(predicted, theirs.predict(test.reshape(60, -1)))
    for accuracy, balanced, predicted in zip(
        result.accuracy(truth),
        result.balanced_accuracy(truth),
        result.predictions,
        strict=True,
    ):
        assert accuracy == np.mean(predicted == truth)
        np.testing.assert_allclose(balanced, balanced_accuracy_score(truth, predicted))


@pytest.mark.parametrize(
    ("learner", "counterpart"),
    [
        (knn(4, num_candidates=4), KNeighborsClassifier(4)),
        (nearest_centroid(), NearestCentroid()),
    ],
    ids=["knn", "nearest_centroid"],
)
def test_rows_without_label_are_left_out(learner, counterpart):
    train, label, test, _ = rows()
    left_out = np.random.default_rng(0).random((4, SIZE)) < 0.5
    result = study(learner, train, np.where(left_out, -1, label), test)
    for out, predicted in zip(left_out, result.predictions, strict=True):
        counterpart.fit(train[~out], label[~out])
        np.testing.assert_array_equal(predicted, counterpart.predict(test))


NETWORK = mlp((8,), learning_rate=1e-2, training=Training("continue", 1, 60, 40))


def model_keys(num_runs):
    return {
        name: jax.random.split(jax.random.fold_in(key, 7), num_runs)
        for name, key in KEYS.items()
    }


@pytest.mark.parametrize("random_model", [False, True])
def test_vmapped_and_in_chunks_is_one_by_one(random_model):
    train, label, test, _ = rows()
    labels = given(label, rates=(0.0, 0.4), num_runs=5).reshape(10, SIZE)
    keys = model_keys(10) if random_model else KEYS
    together = study(NETWORK, train, labels, test, **keys)
    done = []
    in_chunks = study(
        NETWORK, train, labels, test, **keys, runs_per_chunk=4, progress=done.append
    )
    assert done == [4, 8, 10]
    # Summation differs in the last bits: a row on the border may fall elsewhere.
    differ = np.sum(together.predictions != in_chunks.predictions, axis=1)
    assert differ.max() <= 1
    for r in range(10):
        own = {name: key[r : r + 1] for name, key in keys.items() if key.ndim}
        alone = study(NETWORK, train, labels[r : r + 1], test, **KEYS | own)
        differ = np.sum(alone.predictions[0] != together.predictions[r])
        assert differ <= 1, f"run {r}: {differ} rows of {NUM_TEST}"
    clean = together.predictions[:5]
    assert (np.ptp(clean, axis=0) > 0).any() == random_model  # the same run five times


def test_a_network_takes_its_initial_steps():
    train, label, test, truth = rows()
    result = study(NETWORK, train, label[None], test)
    assert result.accuracy(truth)[0] > 0.8  # after 60 steps; 1 step leaves it at 1/3
    planned = offline.plan(NETWORK, train.shape, NUM_TEST, 7, num_classes=K)
    assert planned.num_steps == 7 * 60


def test_the_second_study_compiles_nothing():
    train, label, test, _ = rows(seed=1)
    labels = given(label, rates=(0.2,), num_runs=4)[0]
    first = study(NETWORK, train, labels, test)
    other_rate = mlp((8,), learning_rate=3e-2, training=Training("continue", 1, 60, 40))
    again = study(other_rate, train, labels[::-1], test)
    assert again.compile_seconds == 0
    assert not np.array_equal(again.predictions, first.predictions)


# --- noise ----------------------------------------------------------------------------


def test_noise_has_the_exact_count_and_no_true_class():
    label = np.random.default_rng(0).integers(0, K, 1000)
    rates = np.arange(11) / 10
    labels = given(label, rates, num_runs=4)
    assert labels.shape == (11, 4, 1000)
    wrong = np.sum(labels != label, axis=-1)
    for rate, counts in zip(rates, wrong, strict=True):
        assert set(counts.tolist()) == {oracles.symmetric_count(rate, 1000)}
    # Both other classes come equally often, and runs differ.
    shift = (labels[-1] - label) % K
    assert np.all(np.abs(np.mean(shift == 1, axis=1) - 0.5) < 4 * 0.5 / np.sqrt(1000))
    assert not np.array_equal(labels[5, 0], labels[5, 1])


def test_rates_share_what_is_random_and_runs_do_not_depend_on_their_number():
    label = np.random.default_rng(0).integers(0, K, 200)
    labels = given(label, (0.2, 0.5))
    lower, higher = labels != label
    assert np.all(higher[lower])
    np.testing.assert_array_equal(labels[1], given(label, (0.5,))[0])


# --- plans ----------------------------------------------------------------------------


@pytest.fixture
def devices():
    return len(jax.devices())


def test_runs_that_memory_does_not_hold_go_in_chunks(monkeypatch, devices):
    def plan(free, **options):
        monkeypatch.setattr(rad_devices, "free_bytes", lambda: free)
        return offline.plan(NETWORK, (1000, 5), 100, 50, num_classes=K, **options)

    ample = plan(10**12)
    assert (ample.num_chunks, ample.num_runs) == (1, 50)
    assert ample.runs_per_chunk == devices * -(-50 // devices)
    assert plan(None).num_chunks == 1
    tight = plan(ample.num_bytes)  # half of which may be used
    assert tight.num_chunks > 1
    assert tight.num_bytes < ample.num_bytes
    assert tight.runs_per_chunk * tight.num_chunks >= 50
    for free in (ample.num_bytes * k // 10 for k in range(1, 21)):
        found = plan(free)  # what fills up the devices counts, too
        assert found.num_bytes <= free / 2 or found.runs_per_chunk == devices
    assert plan(1).runs_per_chunk == devices
    assert plan(1, runs_per_chunk=13).runs_per_chunk == devices * -(-13 // devices)


def test_the_estimate_grows_as_the_compiled_programs_do():
    """Per run, of the program that trains: within a factor of three."""
    train, _, test, _ = rows()

    def planned(num_runs):
        return offline.plan(NETWORK, train.shape, NUM_TEST, num_runs, num_classes=K)

    bare = NETWORK._replace(params=None)
    shared = offline._prepare_program(bare).eval_shape(train, test)
    mesh = jax.make_mesh((1,), ("runs",))

    def compiled(num_runs):
        program = offline._runs_program(bare, K, (False, False), mesh)
        labels = jax.ShapeDtypeStruct((num_runs, SIZE), jnp.int16)
        params = {"learning_rate": jax.ShapeDtypeStruct((), jnp.float32)}
        return program.nbytes(shared, params, labels, *KEYS.values())

    estimated = planned(512).num_bytes - planned(256).num_bytes
    real = compiled(512) - compiled(256)
    assert 1 / 3 < estimated / real < 3


# --- bad input ------------------------------------------------------------------------

TRAIN, LABEL, TEST, _ = rows()
LABELS = np.stack([LABEL, LABEL])


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"labels": LABEL},
            ValueError,
            r"given_labels must have shape \[R, 90\].*\[90\]",
        ),
        ({"labels": LABELS[:, 1:]}, ValueError, r"given_labels must have shape"),
        ({"labels": LABELS[:0]}, ValueError, "at least 1 run, got 0"),
        ({"labels": LABELS + 1}, ValueError, r"given_labels must lie in 0\.\.2.*got 3"),
        ({"labels": LABELS + 0.5}, ValueError, "given_labels must be whole numbers"),
        ({"train": TRAIN * np.nan}, ValueError, "train_features must be finite"),
        (
            {"test": TEST[:, 1:]},
            ValueError,
            r"test_features must have rows of shape \(5,\)",
        ),
        ({"test": TEST[:0]}, ValueError, "test_features has no rows"),
        ({"num_classes": 1}, ValueError, "num_classes must be at least 2, got 1"),
        ({"runs_per_chunk": 0}, ValueError, "runs_per_chunk must be at least 1, got 0"),
        (
            {"init_key": jnp.zeros(2, jnp.uint32)},
            TypeError,
            r"init_key .*jax\.random\.key",
        ),
        (
            {"order_key": jax.random.split(jax.random.key(0), 3)},
            ValueError,
            r"order_key must be one key or one for each of 2 runs, got shape \(3,\)",
        ),
        (
            {"learner": from_sklearn(GaussianNB())},
            TypeError,
            "GaussianNB is no JAX learner",
        ),
    ],
)
def test_bad_input(changes, error, message):
    arguments = {
        "learner": nearest_centroid(),
        "train": TRAIN,
        "labels": LABELS,
        "test": TEST,
        "num_classes": K,
        **KEYS,
    }
    arguments |= changes
    first = [arguments.pop(name) for name in ("learner", "train", "labels", "test")]
    with pytest.raises(error, match=message):
        offline.study(*first, **arguments)


def test_bad_noise():
    with pytest.raises(ValueError, match=r"rates must lie in \[0, 1\], got .*1\.5"):
        given(LABEL, (0.5, 1.5))
    with pytest.raises(ValueError, match=r"label must lie in 0\.\.2"):
        given(LABEL + 1)


def test_noise_may_depend_on_features():
    """The rows mislabelled are those near another class, at every rate."""
    train, label, _, _ = rows()
    centroids = noise.class_centroids(train, label, K)
    kind = noise.feature_dependent(0.0, centroids)
    keys = jax.random.split(jax.random.key(5), 200)
    labels = offline.noisy_labels(
        kind, (0.0, 0.3), keys, label, num_classes=K, features=train
    )
    assert (labels[0] == label).all()
    chance = (labels[1] != label).mean(axis=0)
    assert chance.mean() == pytest.approx(0.3, abs=0.02)
    distance = np.linalg.norm(train[:, None] - centroids, axis=-1)
    own = distance[np.arange(SIZE), label]
    distance[np.arange(SIZE), label] = np.inf
    gap = distance.min(axis=1) - own
    near, far = np.argsort(gap)[:20], np.argsort(gap)[-20:]
    assert chance[near].mean() > 2 * chance[far].mean()
    flipped = labels[1] != label
    np.testing.assert_array_equal(
        labels[1][flipped], np.tile(distance.argmin(axis=1), (200, 1))[flipped]
    )


def test_noise_that_lacks_what_it_needs_is_refused():
    train, label, _, _ = rows()
    keys = jax.random.split(jax.random.key(5), 2)
    kind = noise.feature_dependent(0.0, noise.class_centroids(train, label, K))
    with pytest.raises(ValueError, match="features is needed by this noise"):
        offline.noisy_labels(kind, (0.3,), keys, label, num_classes=K)
    with pytest.raises(ValueError, match="each of the 90 labels"):
        offline.noisy_labels(
            kind, (0.3,), keys, label, num_classes=K, features=train[1:]
        )
    moving = noise.scheduled(noise.symmetric(1.0), schedules.constant(0.2))
    with pytest.raises(ValueError, match="arrival is needed by this noise"):
        offline.noisy_labels(moving, (0.3,), keys, label, num_classes=K)
