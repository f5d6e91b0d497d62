"""Batch normalisation with ReLU against flax's own."""

import flax.linen as nn
import jax
import numpy as np
import pytest

from rad_jax.learners.batch_norm import EPSILON, MOMENTUM, BatchNormReLU

B, C = 7, 4


def inputs(shape):
    rng = np.random.default_rng(0)
    x = 2 * rng.normal(size=shape).astype(np.float32) + 1
    stats = {"mean": rng.normal(size=C), "var": 1 + rng.random(C)}
    params = {"scale": rng.normal(size=C), "bias": rng.normal(size=C)}
    variables = jax.tree.map(np.float32, {"params": params, "batch_stats": stats})
    return x, variables, rng.normal(size=shape).astype(np.float32)


def ours(variables, x, train, mask):
    return BatchNormReLU().apply(variables, x, train, mask, mutable=["batch_stats"])


def flax(variables, x, train, mask):
    where = None if mask is None else mask.reshape(-1, *[1] * (x.ndim - 1))
    norm = nn.BatchNorm(
        use_running_average=not train, momentum=MOMENTUM, epsilon=EPSILON
    )
    out, updated = norm.apply(variables, x, mask=where, mutable=["batch_stats"])
    return nn.relu(out), updated


def results(apply, variables, x, change, train, mask):
    """Gradients of x and the parameters, and what came out."""

    def loss(x, params):
        out, updated = apply({**variables, "params": params}, x, train, mask)
        return (out * change).sum(), (out, updated)

    return jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(x, variables["params"])


@pytest.mark.parametrize("mask", [None, np.arange(B) % 3 > 0, np.arange(B) < 2])
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("shape", [(B, 3, 2, C), (B, C)])
def test_values_statistics_and_gradients_are_those_of_flax(shape, train, mask):
    # Masked rows have gradients too: they are normalised by what the others say.
    x, variables, change = inputs(shape)
    got, expected = (
        results(apply, variables, x, change, train, mask) for apply in (ours, flax)
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5),
        got,
        expected,
    )


def test_infinite_masked_rows_stay_out_of_the_statistics():
    x, variables, _ = inputs((B, 3, 2, C))
    mask = np.arange(B) > 0
    x[0] = np.inf
    got = ours(variables, x, True, mask)
    expected = ours(variables, x[1:], True, None)
    np.testing.assert_allclose(got[0][1:], expected[0], rtol=1e-5, atol=1e-5)
    jax.tree.map(np.testing.assert_allclose, got[1], expected[1])


def test_initialising_leaves_the_running_statistics_alone():
    x, _, _ = inputs((B, 3, 2, C))
    variables = BatchNormReLU().init(jax.random.key(0), x, True)
    assert variables["batch_stats"]["mean"].tolist() == [0] * C
    assert variables["batch_stats"]["var"].tolist() == [1] * C


def test_variables_are_float32_in_a_process_of_64_bit_numbers():
    with jax.enable_x64(True):
        x = np.zeros((B, 3, 2, C), np.float32)
        variables = BatchNormReLU().init(jax.random.key(0), x, True)
        assert {v.dtype.name for v in jax.tree.leaves(variables)} == {"float32"}
        assert ours(variables, x, True, None)[0].dtype == "float32"
