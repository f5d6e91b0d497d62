"""Convolutions with gradients of our own, and pooling, against XLA's own."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rad_jax.learners import image_ops

BATCH = 7


def arrays(height, width, inputs, outputs):
    rng = np.random.default_rng(0)
    return (
        rng.normal(size=(BATCH, height, width, inputs)).astype(np.float32),
        rng.normal(size=(3, 3, inputs, outputs)).astype(np.float32),
        rng.normal(size=(BATCH, height, width, outputs)).astype(np.float32),
    )


def with_gradients(formulation, x, kernel, change):
    @jax.jit
    def both(x, kernel, change):
        out, back = jax.vjp(image_ops.CONVOLUTIONS[formulation], x, kernel)
        return out, *back(change)

    return both(x, kernel, change)


@pytest.mark.parametrize("formulation", ["forward", "auto"])
@pytest.mark.parametrize(("height", "width"), [(6, 4), (1, 3), (2, 2)])
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 5), (3, 2)])
def test_convolutions_and_their_gradients_are_those_of_xla(
    inputs, outputs, height, width, formulation
):
    x, kernel, change = arrays(height, width, inputs, outputs)
    expected = with_gradients("native", x, kernel, change)
    for got, wanted in zip(
        with_gradients(formulation, x, kernel, change), expected, strict=True
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def test_convolutions_and_their_gradients_can_be_vmapped_over_kernels():
    x, kernel, change = arrays(6, 4, 2, 3)
    kernels = jnp.stack([kernel, 2 * kernel])

    def both(kernel):
        out, back = jax.vjp(image_ops.CONVOLUTIONS["forward"], x, kernel)
        return out, *back(change)

    got = jax.jit(jax.vmap(both))(kernels)
    out, by_image, by_kernel = with_gradients("native", x, kernel, change)
    for values, once, factor in (
        (got[0], out, 2),
        (got[1], by_image, 2),
        (got[2], by_kernel, 1),
    ):
        np.testing.assert_allclose(values[0], once, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(values[1], factor * once, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("height", "width"), [(6, 4), (7, 5), (2, 3)])
def test_pooling_and_its_gradient_are_those_of_flax(height, width):
    rng = np.random.default_rng(1)
    # Few different values: many 2x2 pixels hold their greatest more than once.
    x = rng.integers(0, 3, (BATCH, height, width, 3)).astype(np.float32)
    shape = (BATCH, height // 2, width // 2, 3)
    change = rng.normal(size=shape).astype(np.float32)

    def both(pool):
        out, back = jax.jit(lambda x: jax.vjp(pool, x))(x)
        return out, back(change)[0]

    expected = both(lambda x: nn.max_pool(x, (2, 2), (2, 2)))
    for got, wanted in zip(both(image_ops.max_pool), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)
