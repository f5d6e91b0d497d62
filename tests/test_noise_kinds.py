"""Noise by true class and by features; `test_noise.py` has the symmetric kinds."""

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rad_jax import feature_noise, noise, transition
from rad_jax.types import Noise

K = 4
MATRIX = np.array(
    [[0.7, 0.2, 0.1, 0], [0, 1, 0, 0], [0.25, 0.25, 0.25, 0.25], [0, 0, 0.6, 0.4]]
)


def corrupt(model, label, *, valid=None, k=K, seed=0, features=None, params=None):
    label = jnp.asarray(label, jnp.int16)
    return np.asarray(
        noise.corrupt(
            model,
            model.params if params is None else params,
            label,
            jnp.ones(label.shape, bool) if valid is None else jnp.asarray(valid),
            num_classes=k,
            key=jax.random.key(seed),
            features=None if features is None else jnp.asarray(features, jnp.float32),
        )
    )


def assert_matrix(given_label, label, expected):
    """Every entry within 4 standard errors; entries of 0 and 1 exact."""
    for true in range(len(expected)):
        rows = given_label[label == true]
        share = np.bincount(rows, minlength=len(expected)) / len(rows)
        chance = np.asarray(expected[true], np.float64)
        error = np.sqrt(chance * (1 - chance) / len(rows))
        assert np.all(np.abs(share - chance) <= 4 * error + 1e-7), (true, share)


def many(n=20_000, k=K, seed=1):
    return np.random.default_rng(seed).integers(0, k, n).astype(np.int16)


# --- matrices -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "matrix",
    [MATRIX, transition.symmetric(0.6, K), transition.pair(0.3, K), np.eye(K)],
)
def test_asymmetric_has_the_matrix_asked_for(matrix):
    label = many()
    assert_matrix(corrupt(noise.asymmetric(matrix), label), label, np.asarray(matrix))


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_the_rate_scales_a_matrix_off_its_diagonal(rate):
    label, model = many(), noise.asymmetric(MATRIX)
    got = corrupt(model, label, params={**model.params, "rate": rate})
    assert_matrix(got, label, rate * MATRIX + (1 - rate) * np.eye(K))


def test_realised_matrix_equals_the_loop():
    label = many(300)
    got = corrupt(noise.asymmetric(MATRIX), label)
    valid = np.arange(300) % 7 != 0
    label[::11] = -1
    expected = np.zeros((K, K))
    for t, g, v in zip(label, got, valid, strict=True):
        if v and t >= 0:
            expected[t, g] += 1
    expected /= expected.sum(1, keepdims=True)
    realised = transition.realised(*map(jnp.asarray, (got, label, valid)), K)
    np.testing.assert_allclose(realised, expected, rtol=1e-6)


def test_matrices_can_be_vmapped():
    matrices = jnp.stack([jnp.asarray(MATRIX), jnp.eye(K), transition.pair(1.0, K)])
    label, model = jnp.asarray(many(50)), noise.asymmetric(MATRIX)

    def one(matrix):
        params = {"rate": 1.0, "matrix": matrix}
        return noise.corrupt(
            model,
            params,
            label,
            jnp.ones(50, bool),
            num_classes=K,
            key=jax.random.key(2),
        )

    mapped = jax.vmap(one)(matrices)
    for matrix, row in zip(matrices, mapped, strict=True):
        np.testing.assert_array_equal(one(matrix), row)
    np.testing.assert_array_equal(mapped[1], label)
    np.testing.assert_array_equal(mapped[2], (label + 1) % K)


@pytest.mark.parametrize("rate", [0.3, 0.45])
def test_pair_flip_flips_exactly_so_many_to_the_next_class(rate):
    label = many(5_000)
    got = corrupt(noise.pair_flip(rate), label)
    wrong = got != label
    assert wrong.sum() == oracles.symmetric_count(rate, 5_000)
    np.testing.assert_array_equal(got[wrong], (label[wrong] + 1) % K)
    assert_matrix(got, label, np.asarray(transition.pair(rate, K)))


@given(seed=st.integers(0, 2**31 - 1))
def test_pair_flip_counts_labelled_rows_only(seed):
    rng = np.random.default_rng(seed)
    label, valid = rng.integers(-1, K, 30), rng.random(30) < 0.8
    rate = np.float32(rng.integers(0, 101) / 100)
    got = corrupt(noise.pair_flip(rate), label, valid=valid)
    eligible = valid & (label >= 0)
    assert np.all(got[~eligible] == label[~eligible])
    expected = oracles.symmetric_count(float(rate), eligible.sum())
    assert np.sum(got != label) == expected


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.ones((2, 3)) / 3, r"matrix must be square, .* got shape \(2, 3\)"),
        (np.ones(3) / 3, r"matrix must be square"),
        (np.ones((1, 1)), r"matrix must be square, \[K, K\] for K >= 2"),
        ([[1.2, -0.2], [0, 1]], "matrix must have entries of at least 0, got -0.2"),
        ([[np.nan, 1], [0, 1]], "matrix must have entries of at least 0, got nan"),
        ([[0.9, 0.1], [0.5, 0.6]], r"rows \(true .* sum to 1, row 1 sums to 1.1"),
        ([[0.9, 0.5], [0.1, 0.5]], "row 0 sums to 1.4"),  # columns sum to 1 instead
    ],
)
def test_bad_matrices(matrix, message):
    with pytest.raises(ValueError, match=message):
        noise.asymmetric(matrix)


def test_a_matrix_for_another_number_of_classes():
    with pytest.raises(ValueError, match=r"each of 5 classes, got shape \(4, 4\)"):
        corrupt(noise.asymmetric(MATRIX), many(5), k=5)


# --- features -------------------------------------------------------------------------


CENTROIDS = np.array([[0, 0], [4, 0], [0, 4], [5, 5]], np.float32)


def rows_of(label, seed=3):
    rng = np.random.default_rng(seed)
    return CENTROIDS[np.maximum(label, 0)] + rng.normal(size=(len(label), 2))


def chances_by_loop(features, label, rate):
    """SPEC 6 in double precision: probabilities and the classes flipped to."""
    gaps, others = [], []
    for x, y in zip(features, label, strict=True):
        distance = [float(np.linalg.norm(x - c)) for c in CENTROIDS.astype(float)]
        other = min((k for k in range(K) if k != y), key=lambda k: distance[k])
        gaps.append(distance[other] - distance[y])
        others.append(other)
    scale = np.mean(np.abs(gaps))
    weight = np.exp(-np.array(gaps) / scale)
    low, high = 0.0, 1e12
    for _ in range(200):  # bisection for the factor
        middle = (low + high) / 2
        if np.minimum(middle * weight, 1).mean() < rate:
            low = middle
        else:
            high = middle
    return np.minimum(low * weight, 1), np.array(others)


@pytest.mark.parametrize("rate", [0.1, 0.4, 0.8])
def test_feature_dependent_equals_the_loop(rate):
    label = many(60)
    features = rows_of(label)
    chance, other = chances_by_loop(features, label, rate)
    model = noise.feature_dependent(rate, CENTROIDS)
    draws = 2_000

    def one(key):
        return noise.corrupt(
            model,
            model.params,
            jnp.asarray(label),
            jnp.ones(60, bool),
            num_classes=K,
            key=key,
            features=jnp.asarray(features, jnp.float32),
        )

    got = np.asarray(jax.vmap(one)(jax.random.split(jax.random.key(4), draws)))
    wrong = got != label
    assert np.all((got == other) | ~wrong)
    error = np.sqrt(chance * (1 - chance) / draws)
    assert np.all(np.abs(wrong.mean(0) - chance) <= 4 * error + 1e-4)
    assert abs(wrong.mean() - rate) <= 4 * np.sqrt(np.sum(error**2)) / 60
    # It is no symmetric noise: rows differ, and some are sure to flip at a high rate.
    assert chance.max() > 2 * chance.min()
    assert (chance == 1).any() == (rate > 0.1)


@given(seed=st.integers(0, 2**31 - 1))
def test_chances_have_the_mean_asked_for(seed):
    rng = np.random.default_rng(seed)
    log_weight = rng.normal(size=24) * rng.choice([0.1, 1, 10])
    eligible = rng.random(24) < 0.7
    eligible[0] = True
    rate = rng.choice([0.0, 1.0, rng.random()])
    got = np.asarray(
        feature_noise.flip_chances(
            jnp.asarray(log_weight, jnp.float32), jnp.asarray(eligible), rate
        )
    )
    assert np.all((got >= 0) & (got <= 1))
    assert not got[~eligible].any()
    np.testing.assert_allclose(got[eligible].mean(), rate, atol=1e-4)
    free = eligible & (got < 1) & (got > 0)
    ratio = np.log(got[free]) - log_weight[free]
    np.testing.assert_allclose(ratio, ratio.mean() if free.any() else 0, atol=1e-2)


def test_chances_without_eligible_rows():
    got = feature_noise.flip_chances(jnp.ones(3), jnp.zeros(3, bool), 0.4)
    assert got.tolist() == [0, 0, 0]


def test_unlabelled_and_padding_rows_neither_flip_nor_count():
    label = many(40)
    features = rows_of(label)
    model = noise.feature_dependent(1.0, CENTROIDS)
    label[::5] = -1
    valid = np.arange(40) % 4 != 0
    got = corrupt(model, label, valid=valid, features=features)
    np.testing.assert_array_equal(got != label, valid & (label >= 0))
    odd = features.copy()
    odd[~(valid & (label >= 0))] = 1e6
    np.testing.assert_array_equal(got, corrupt(model, label, valid=valid, features=odd))


def test_rows_of_any_shape():
    label = many(30)
    features = rows_of(label)
    flat = corrupt(noise.feature_dependent(0.5, CENTROIDS), label, features=features)
    shaped = corrupt(
        noise.feature_dependent(0.5, CENTROIDS[:, None, :, None]),
        label,
        features=features[:, None, :, None],
    )
    np.testing.assert_array_equal(flat, shaped)


def test_class_centroids():
    label = many(50)
    features = rows_of(label)
    got = noise.class_centroids(features, label, K)
    for k in range(K):
        np.testing.assert_allclose(got[k], features[label == k].mean(0), rtol=1e-5)
    with pytest.raises(ValueError, match=r"rows of each class 0\.\.4"):
        noise.class_centroids(features, label, 5)
    with pytest.raises(ValueError, match=r"rows of each class 0\.\.2"):
        noise.class_centroids(features, label, 3)
    with pytest.raises(ValueError, match="a row for each of the labels"):
        noise.class_centroids(features[1:], label, K)


def test_errors_of_feature_dependent_noise():
    with pytest.raises(ValueError, match=r"centroids must be finite.* 2 not finite"):
        noise.feature_dependent(0.1, np.full((1, 2), np.nan))
    with pytest.raises(ValueError, match=r"rate must lie in \[0, 1\]"):
        noise.feature_dependent(1.1, CENTROIDS)
    model = noise.feature_dependent(0.1, CENTROIDS)
    with pytest.raises(ValueError, match="features is needed by this noise"):
        corrupt(model, many(5))
    with pytest.raises(ValueError, match=r"centroids must be \[4, \*\(3,\)\]"):
        corrupt(model, many(5), features=np.zeros((5, 3)))


# --- any kind -------------------------------------------------------------------------


def test_a_noise_of_ones_own_gets_what_it_needs_and_no_more():
    def apply(params, label, valid, *, num_classes, key, arrival):
        return (label + arrival.astype(label.dtype)) % num_classes

    def run(model, **beside):
        return noise.corrupt(
            model,
            (),
            jnp.arange(4),
            jnp.ones(4, bool),
            num_classes=4,
            key=jax.random.key(0),
            **beside,
        ).tolist()

    late = Noise(apply, (), needs=("arrival",))
    assert run(late, arrival=jnp.int32(3), features=jnp.ones((4, 1))) == [3, 0, 1, 2]
    plain = Noise(lambda p, label, valid, *, num_classes, key: label, ())
    assert run(plain, arrival=jnp.int32(3)) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match=r"needs may name .*, got 'weather'"):
        run(Noise(apply, (), needs=("weather",)))
