"""Batch normalisation with ReLU against flax's own."""

import flax.linen as nn
import jax
import numpy as np
import pytest

from rad_jax.learners.batch_norm import EPSILON, MOMENTUM, BatchNormReLU

B, C = 7, 4


class Reference(nn.Module):
    """What flax makes of it."""

    @nn.compact
    def __call__(self, x, train, mask=None):
        where = None if mask is None else mask.reshape(-1, *[1] * (x.ndim - 1))
        norm = nn.BatchNorm(
            use_running_average=not train, momentum=MOMENTUM, epsilon=EPSILON
        )
        return nn.relu(norm(x, mask=where))


def inputs(shape):
    rng = np.random.default_rng(0)
    x = 2 * rng.normal(size=shape).astype(np.float32) + 1
    stats = {"mean": rng.normal(size=C), "var": 1 + rng.random(C)}
    params = {"scale": rng.normal(size=C), "bias": rng.normal(size=C)}
    variables = jax.tree.map(np.float32, {"params": params, "batch_stats": stats})
    return x, variables, rng.normal(size=shape).astype(np.float32)


def results(module, name, x, variables, change, train, mask):
    def loss(x, params):
        out, updated = module.apply(
            {
                "params": {name: params} if name else params,
                "batch_stats": {name: variables["batch_stats"]}
                if name
                else variables["batch_stats"],
            },
            x,
            train,
            mask,
            mutable=["batch_stats"],
        )
        stats = updated["batch_stats"]
        return (out * change).sum(), (out, stats[name] if name else stats)

    gradients, aux = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(
        x, variables["params"]
    )
    return {"gradients": gradients, "aux": aux}


@pytest.mark.parametrize("mask", [None, np.arange(B) % 3 > 0, np.arange(B) < 2])
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("shape", [(B, 3, 2, C), (B, C)])
def test_values_statistics_and_gradients_are_those_of_flax(shape, train, mask):
    x, variables, change = inputs(shape)
    if mask is not None:
        # Nothing is learned from other rows' outputs, as in training.
        change[~mask] = 0
    ours = results(BatchNormReLU(), None, x, variables, change, train, mask)
    flax = results(Reference(), "BatchNorm_0", x, variables, change, train, mask)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5), ours, flax
    )


def test_gradients_count_what_masked_rows_say_as_flax_does():
    x, variables, change = inputs((B, 3, 2, C))
    mask = np.arange(B) % 3 > 0
    ours = results(BatchNormReLU(), None, x, variables, change, True, mask)
    flax = results(Reference(), "BatchNorm_0", x, variables, change, True, mask)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5), ours, flax
    )


def test_masked_rows_may_hold_anything():
    x, variables, _ = inputs((B, 3, 2, C))
    mask = np.arange(B) > 0
    x[0] = np.inf
    out, updated = BatchNormReLU().apply(
        variables, x, True, mask, mutable=["batch_stats"]
    )
    assert np.isfinite(out[1:]).all()
    assert all(np.isfinite(v).all() for v in jax.tree.leaves(updated))


def test_no_row_at_all_leaves_numbers():
    x, variables, _ = inputs((B, 3, 2, C))
    out, updated = BatchNormReLU().apply(
        variables, x, True, np.zeros(B, bool), mutable=["batch_stats"]
    )
    assert np.isfinite(out).all()
    assert all(np.isfinite(v).all() for v in jax.tree.leaves(updated))


def test_initialising_leaves_the_running_statistics_alone():
    x, _, _ = inputs((B, 3, 2, C))
    variables = BatchNormReLU().init(jax.random.key(0), x, True)
    assert variables["batch_stats"]["mean"].tolist() == [0] * C
    assert variables["batch_stats"]["var"].tolist() == [1] * C
