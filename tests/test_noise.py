import functools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rad_jax import experts, noise, schedules
from rad_jax.feature_noise import feature_dependent

MODELS = {
    "symmetric": noise.symmetric,
    "independent": noise.independent,
    "include_true": functools.partial(noise.independent, include_true=True),
}


def corrupt(model, label, valid, k, key):
    """Given labels; a row of them per key where there are several keys."""
    label, valid = jnp.asarray(label, jnp.int16), jnp.asarray(valid)

    def one(key):
        return model.apply(model.params, label, valid, num_classes=k, key=key)

    return np.asarray(jax.vmap(one)(key) if key.ndim else one(key))


def random_labels(rng, n, k):
    label = rng.integers(0, k, n)
    label[rng.random(n) < 0.15] = -1
    return label.astype(np.int16), rng.random(n) < 0.8


# --- how many rows -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "n", "expected"),
    [
        (0.29, 100, 29),  # 28.999999999999996
        (0.07, 100, 7),  # 7.000000000000001
        (0.57, 100, 57),  # 56.99999999999999
        (0.58, 100, 58),
        (0.1, 30, 3),
        (0.7, 10, 7),
        (0.55, 20, 11),
        (0.6, 5, 3),
        (1 / 3, 300, 100),
        (2 / 3, 300, 200),
        (1 / 7, 7, 1),
        (0.4, 600, 240),
        (0.9985, 1, 0),
        (0.9991, 1, 1),  # within the addend
        (0.5, 1, 0),
        (0.5, 3, 1),
        (0.29, 100_000, 29_000),
        (0.07, 100_000, 7_000),
        (1 / 3, 99_999, 33_333),
        (1 / 3, 100_000, 33_333),
        (0.4, 99_999, 39_999),
        (1.0, 99_999, 99_999),
        (1.0, 1, 1),
        (0.0, 99_999, 0),
        (0.4, 0, 0),
    ],
)
def test_awkward_counts(rate, n, expected):
    assert oracles.symmetric_count(rate, n) == expected
    assert noise.exact_count(rate, jnp.int32(n)) == expected
    assert noise.exact_count(jnp.float32(rate), jnp.int32(n)) == expected
    model = noise.symmetric(np.float32(rate))
    label = np.arange(600 if n <= 600 else 100_000, dtype=np.int16) % 11
    valid = np.arange(len(label)) < n
    given_label = corrupt(model, label, valid, 11, jax.random.key(0))
    assert np.sum(given_label != label) == expected


@pytest.mark.parametrize("denominator", [3, 7, 10, 100])
def test_counts_of_whole_fractions(denominator):
    """n / denominator in integers, for every numerator and many n."""
    rng = np.random.default_rng(0)
    # Up to 20,000 rows any count; up to 100,000 those that come out even, where
    # single precision may fall short of the whole number by more than the addend.
    sizes = np.concatenate(
        [
            np.arange(400),
            rng.integers(400, 20_000, 1000),
            denominator * rng.integers(1, 100_000 // denominator + 1, 1000),
        ]
    )
    rates = np.arange(denominator + 1) / denominator
    count = jax.vmap(jax.vmap(noise.exact_count, (None, 0)), (0, None))
    got = np.asarray(count(jnp.asarray(rates, jnp.float32), jnp.asarray(sizes)))
    expected = np.arange(denominator + 1)[:, None] * sizes // denominator
    np.testing.assert_array_equal(got, expected)


def test_counts_up_to_100000_rows():
    """Any rate; left out is what single precision cannot tell (documented)."""
    rng = np.random.default_rng(1)
    rates = np.float32(rng.random(20_000))
    sizes = rng.integers(1, 100_001, 20_000)
    got = np.asarray(jax.vmap(noise.exact_count)(rates, jnp.asarray(sizes)))
    told = 0
    for rate, n, count in zip(
        rates.tolist(), sizes.tolist(), got.tolist(), strict=True
    ):
        exact = Fraction(rate) * n
        below = -exact % 1  # distance to the whole number above
        if abs(below - Fraction(1, 1000)) > Fraction(3, 10**7) * exact:
            told += 1
            assert count == int(exact + Fraction(1, 1000))
    assert told > 19_000


@settings(max_examples=30)
@given(
    shape=st.sampled_from([(1, 2), (2, 11), (40, 5)]),
    percent=st.integers(0, 100),
    seed=st.integers(0, 2**31 - 1),
)
def test_symmetric_flips_exactly_that_many(shape, percent, seed):
    n, k = shape
    label, valid = random_labels(np.random.default_rng(seed), n, k)
    rate = percent / 100
    got = corrupt(
        noise.symmetric(np.float32(rate)), label, valid, k, jax.random.key(seed)
    )
    eligible = valid & (label != -1)
    assert got.dtype == label.dtype
    assert np.all(got[~eligible] == label[~eligible])
    assert np.all((got[eligible] >= 0) & (got[eligible] < k))
    # Every row drawn differs from its true class, so the flips are the count.
    assert np.sum(got != label) == oracles.symmetric_count(rate, eligible.sum())


@pytest.mark.parametrize("name", MODELS)
def test_unlabelled_and_padding_rows_are_untouched(name):
    label = np.array([-1, 3, 0, 2, -1, 1], np.int16)
    valid = np.array([True, False, True, True, False, True])
    touched = np.zeros(6, bool)
    for seed in range(20):
        got = corrupt(MODELS[name](1.0), label, valid, 4, jax.random.key(seed))
        touched |= got != label
        if name != "include_true":
            assert (got != label).tolist() == [False, False, True, True, False, True]
    assert touched.tolist() == [False, False, True, True, False, True]


@pytest.mark.parametrize("name", MODELS)
def test_rate_zero_changes_nothing(name):
    label = np.arange(500) % 7
    got = corrupt(MODELS[name](0), label, np.ones(500, bool), 7, jax.random.key(0))
    np.testing.assert_array_equal(got, label)


# --- which rows, and to which class ------------------------------------------------


def within(share, chance, trials):
    error = np.sqrt(chance * (1 - chance) / trials)
    return np.all(np.abs(share - chance) <= 4 * error)


def test_rows_are_drawn_evenly_and_without_replacement():
    label = np.array([0, 1, -1, 2, 0, 1, 2, 2, 1, 0], np.int16)
    valid = np.ones(10, bool)
    valid[[0, 6]] = False
    model = noise.symmetric(0.45)  # floor(.45 * 7) = 3
    draws = 3000
    keys = jax.random.split(jax.random.key(2), draws)
    flips = corrupt(model, label, valid, 3, keys) != label
    assert np.all(flips.sum(1) == 3)
    eligible = valid & (label != -1)
    assert not flips[:, ~eligible].any()
    assert within(flips[:, eligible].mean(0), 3 / 7, draws)
    pairs = flips[:, eligible].astype(float)
    together = pairs.T @ pairs / draws
    assert within(together[~np.eye(7, dtype=bool)], 3 / 7 * 2 / 6, draws)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("k", [2, 5, 11])
def test_new_classes_are_uniform(name, k):
    n = 30_000
    label = np.random.default_rng(3).integers(0, k, n)
    got = corrupt(MODELS[name](1.0), label, np.ones(n, bool), k, jax.random.key(4))
    for true in range(k):
        rows = got[label == true]
        share = np.bincount(rows, minlength=k) / len(rows)
        if name == "include_true":
            assert within(share, 1 / k, len(rows))
        else:
            assert share[true] == 0
            assert within(np.delete(share, true), 1 / (k - 1), len(rows))


@pytest.mark.parametrize("name", MODELS)
def test_classes_are_uniform_among_the_flipped_rows_of_a_smaller_rate(name):
    """Which rows are drawn says nothing about the class they get."""
    n, k = 50_000, 4
    label = np.random.default_rng(5).integers(0, k, n)
    got = corrupt(MODELS[name](0.3), label, np.ones(n, bool), k, jax.random.key(6))
    shift = (got[got != label] - label[got != label]) % k
    share = np.bincount(shift, minlength=k)[1:] / len(shift)
    assert within(share, 1 / 3, len(shift))


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("include_true", [False, True])
def test_independent_flips_are_binomial(rate, include_true):
    n, k, draws = 100, 4, 800
    model = noise.independent(np.float32(rate), include_true=include_true)
    label = jnp.zeros(n, jnp.int16)
    valid = jnp.ones(n, bool)
    keys = jax.random.split(jax.random.key(7), draws)
    given_label = corrupt(model, label, valid, k, keys)
    flips = (given_label != 0).sum(1)
    chance = rate * (k - 1) / k if include_true else rate
    assert within(flips.sum() / (n * draws), chance, n * draws)
    # Not an exact count: the variance is that of independent rows.
    variance = n * chance * (1 - chance)
    assert abs(flips.var(ddof=1) / variance - 1) <= 4 * np.sqrt(2 / (draws - 1))
    assert within((given_label != 0).mean(0), chance, draws)


@pytest.mark.parametrize("k", [2, 4, 11])
def test_realised_rate_of_flips_that_may_land_on_the_true_class(k):
    n, rate = 50_000, 0.4
    model = noise.independent(rate, include_true=True)
    label = np.random.default_rng(8).integers(0, k, n)
    valid = np.ones(n, bool)
    got = corrupt(model, label, valid, k, jax.random.key(9))
    realised = noise.realised_rate(jnp.asarray(got), jnp.asarray(label), valid)
    assert within(np.asarray(realised), rate * (k - 1) / k, n)


# --- a pure function of the key ----------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_same_key_same_noise(name):
    label, valid = random_labels(np.random.default_rng(10), 40, 5)
    model = MODELS[name](0.5)
    keys = jax.random.split(jax.random.key(11), 4)
    mapped = corrupt(model, label, valid, 5, keys)
    for i in range(4):
        one = corrupt(model, label, valid, 5, keys[i])
        np.testing.assert_array_equal(one, mapped[i])
        assert i == 0 or np.any(mapped[i] != mapped[0])


@pytest.mark.parametrize("name", MODELS)
def test_vmap_over_rates(name):
    label, valid = random_labels(np.random.default_rng(12), 40, 5)
    label, valid = jnp.asarray(label), jnp.asarray(valid)
    rates = jnp.array([0.0, 0.07, 0.29, 1 / 3, 0.5, 1.0])
    key = jax.random.key(13)

    def apply(rate):
        model = MODELS[name](0.0)._replace(params={"rate": rate})
        return model.apply(model.params, label, valid, num_classes=5, key=key)

    mapped = jax.jit(jax.vmap(apply))(rates)
    one = jax.jit(apply)
    for rate, row in zip(rates, mapped, strict=True):
        np.testing.assert_array_equal(row, one(rate))
    flips = (np.asarray(mapped) != np.asarray(label)).sum(1)
    assert flips[0] == 0
    assert flips[-1] > flips[2] > 0


@pytest.mark.parametrize("name", MODELS)
def test_jit_equals_eager_and_rates_can_be_traced(name):
    label = jnp.zeros(10, jnp.int16)

    @jax.jit
    def apply(rate):
        model = MODELS[name](rate)
        return model.apply(
            model.params, label, label == 0, num_classes=3, key=jax.random.key(0)
        )

    model = MODELS[name](0.5)
    eager = model.apply(
        model.params, label, label == 0, num_classes=3, key=jax.random.key(0)
    )
    np.testing.assert_array_equal(apply(0.5), eager)


# --- errors ------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "rate", [-0.1, 1.1, 40, -1e-9, float("nan"), float("inf"), np.float32(1.5)]
)
def test_rates_outside_the_unit_interval(name, rate):
    with pytest.raises(ValueError, match=r"rate must lie in \[0, 1\], got"):
        MODELS[name](rate)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("array", [np.array, jnp.asarray])
def test_arrays_of_rates_outside_the_unit_interval(name, array):
    """A concrete array is as concrete as a number."""
    for rate in (1.5, [0.2, -0.1], [0.4, float("nan")]):
        with pytest.raises(ValueError, match="rate"):
            MODELS[name](array(rate))
    MODELS[name](array([0.0, 1.0]))


# --- what came of it ---------------------------------------------------------------


@given(seed=st.integers(0, 2**31 - 1))
def test_realised_rate_equals_the_loop(seed):
    rng = np.random.default_rng(seed)
    true, valid = random_labels(rng, 12, 3)
    given_label = np.where(rng.random(12) < 0.5, rng.integers(-1, 3, 12), true)
    valid &= rng.random() < 0.8  # now and then a batch of padding only
    got = noise.realised_rate(
        jnp.asarray(given_label), jnp.asarray(true), jnp.asarray(valid)
    )
    expected = oracles.realised_rate(given_label, true, valid)
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_realised_rate_of_no_rows_is_zero():
    label = jnp.array([-1, 2])
    assert noise.realised_rate(label, label + 1, jnp.array([True, False])) == 0


def test_a_perfect_expert_gives_the_true_label():
    expert = experts.perfect()
    true = jnp.array([3, 0, -1, 2], jnp.int16)
    got = expert.answer(expert.params, true, key=jax.random.key(0))
    np.testing.assert_array_equal(got, true)


CENTROIDS = np.eye(3, 4, dtype=np.float32)


@pytest.mark.parametrize(
    "kind",
    [
        noise.symmetric(0.3),
        noise.independent(0.3),
        noise.independent(0.3, include_true=True),
        noise.pair_flip(0.3),
        noise.asymmetric(np.full((3, 3), 1 / 3)),
        feature_dependent(0.3, CENTROIDS),
    ],
    ids=["symmetric", "independent", "include_true", "pair", "asymmetric", "feature"],
)
def test_a_process_of_64_bit_numbers_has_the_same_labels(kind):
    label, valid = np.zeros(50, np.int32), np.ones(50, bool)
    features = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)

    def given():
        labels = noise.corrupt(
            kind,
            kind.params,
            label,
            valid,
            num_classes=3,
            key=jax.random.key(0),
            features=features,
        )
        return np.asarray(labels).tolist()

    expected = given()
    with jax.enable_x64(True):
        assert given() == expected
    assert 0 < np.count_nonzero(expected) < 50


def test_a_process_of_64_bit_numbers_has_the_same_experts_and_rates():
    expert = experts.erring(0.4, 5)
    true = jnp.zeros(50, jnp.int32)
    drawn = [schedules.uniform(0.1, 0.7), schedules.gaussian(0.4, 0.1)]

    def found():
        answers = expert.answer(expert.params, true, key=jax.random.key(0))
        rates = [schedules.rate_at(s, s.params, 3, jax.random.key(1)) for s in drawn]
        return np.asarray(answers).tolist(), [float(r) for r in rates]

    answers, rates = found()
    with jax.enable_x64(True):
        assert found()[0] == answers
        np.testing.assert_allclose(found()[1], rates, rtol=1e-6)
    assert len(set(answers)) > 2
