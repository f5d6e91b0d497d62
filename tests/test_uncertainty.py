import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rad_jax import uncertainty

TOLERANCE = {"rtol": 2e-6, "atol": 2e-6}


def score_of(name):
    return getattr(uncertainty, name)


@jax.jit
def all_scores(probs, label):
    return {name: score_of(name)(probs, label) for name in oracles.SCORES}


@pytest.mark.parametrize("k", range(2, 12))
@given(seed=st.integers(0, 2**32 - 1))
def test_scores_equal_the_oracle(k, seed):
    rng = np.random.default_rng(seed)
    probs = oracles.random_probs(rng, 7, k)
    label = rng.integers(-1, k, 7).astype(np.int16)
    for name, got in all_scores(probs, label).items():
        assert got.shape == (7,)
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(
            got, oracles.uncertainty(name, probs, label), **TOLERANCE, err_msg=name
        )


@pytest.mark.parametrize("name", oracles.SCORES)
def test_eager_vmap_and_one_row_agree_with_jit(name):
    rng = np.random.default_rng(1)
    probs = jnp.stack([oracles.random_probs(rng, 4, 5) for _ in range(6)])
    label = jnp.asarray(rng.integers(-1, 5, (6, 4)), jnp.int32)
    mapped = jax.vmap(score_of(name))(probs, label)
    for b in range(6):
        eager = score_of(name)(probs[b], label[b])
        np.testing.assert_allclose(mapped[b], eager, **TOLERANCE)
        jitted = jax.jit(score_of(name))(probs[b], label[b])
        np.testing.assert_allclose(jitted, eager, **TOLERANCE)
        row = score_of(name)(probs[b, :1], label[b, :1])
        np.testing.assert_allclose(row, eager[:1], **TOLERANCE)


def test_values_by_hand():
    probs = jnp.array([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0], [0.4, 0.4, 0.2]])
    label = jnp.array([1, 2, 0])
    np.testing.assert_allclose(
        uncertainty.margin(probs, label), [0.75, 0, 1], atol=2e-6
    )
    np.testing.assert_allclose(
        uncertainty.least_confidence(probs, label), [0.5, 0, 0.6], rtol=1e-6
    )
    # A class without a vote: clipped at 1e-6, not infinite, not 1e-7.
    np.testing.assert_allclose(
        uncertainty.cross_entropy(probs, label),
        [np.log(4), 6 * np.log(10), np.log(2.5)],
        rtol=1e-6,
    )
    np.testing.assert_allclose(
        uncertainty.entropy(probs, label)[0], 1.5 * np.log(2), rtol=1e-6
    )
    np.testing.assert_allclose(
        uncertainty.cent(probs, label)[0], 3.5 * np.log(2), rtol=1e-6
    )


@pytest.mark.parametrize("name", oracles.SCORES)
@pytest.mark.parametrize("k", [2, 4, 11])
def test_an_even_row_is_the_most_uncertain(name, k):
    even, one_hot = np.full(k, 1 / k), np.eye(k)[0]
    between = (even + one_hot) / 2
    label = jnp.zeros(3, jnp.int32)
    scores = score_of(name)(jnp.array([even, between, one_hot], jnp.float32), label)
    assert scores[0] > scores[1] > scores[2]


def test_cross_entropy_of_a_row_without_label_is_its_expectation():
    probs = jnp.array([[0.5, 0.3, 0.2]])
    by_class = [uncertainty.cross_entropy(probs, jnp.array([k]))[0] for k in range(3)]
    expected = sum(p * s for p, s in zip([0.5, 0.3, 0.2], by_class, strict=True))
    got = uncertainty.cross_entropy(probs, jnp.array([-1]))
    np.testing.assert_allclose(got, [expected], rtol=1e-6)


@pytest.mark.parametrize("name", ["margin", "least_confidence", "entropy"])
def test_scores_of_the_probabilities_alone_ignore_the_label(name):
    probs = jnp.asarray(oracles.random_probs(np.random.default_rng(2), 5, 4))
    one = score_of(name)(probs, jnp.zeros(5, jnp.int32))
    two = score_of(name)(probs, jnp.array([-1, 1, 2, 3, 1]))
    np.testing.assert_array_equal(one, two)
