"""Batch normalisation and ReLU in few passes over the activations."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from rad_jax.types import Array

#: Added to variances; the running statistics keep this part of what they were.
EPSILON, MOMENTUM = 1e-3, 0.99


def _along(x: Array, values: Array, axis: int) -> Array:
    """Values along one axis of x, as an array of its rank."""
    return jnp.expand_dims(values, [i for i in range(x.ndim) if i != axis % x.ndim])


def _sums(x: Array) -> Array:
    """Sums over all but the last axis, ``[..., C] -> [C]``."""
    return jnp.sum(x, axis=tuple(range(x.ndim - 1)))


def _statistics(x: Array, counts: Array | None) -> tuple[Array, Array, Array]:
    """Mean and variance of each channel ``[C]``, and of how many values they are."""
    inner = tuple(range(1, x.ndim - 1))
    # Rows are left out of sums by row: of the activations no masked copy is made.
    by_row = [jnp.sum(values, axis=inner) for values in (x, x * x)]
    if counts is None:
        number = jnp.float32(x.shape[0])
    else:
        number = jnp.sum(counts, dtype=jnp.float32)
        by_row = [jnp.where(counts[:, None], values, 0.0) for values in by_row]
    number = number * (x.size // (x.shape[0] * x.shape[-1]))
    mean, mean_square = (jnp.sum(values, axis=0) / number for values in by_row)
    return mean, jnp.maximum(mean_square - mean * mean, 0.0), number


def _scaled(x: Array, mean: Array, variance: Array, scale: Array, bias: Array) -> Array:
    slope = scale * jax.lax.rsqrt(variance + EPSILON)
    return nn.relu(x * _along(x, slope, -1) + _along(x, bias - mean * slope, -1))


@jax.custom_vjp
def normalize(
    x: Array, scale: Array, bias: Array, counts: Array | None
) -> tuple[Array, Array, Array]:
    """Normalises by the batch's own statistics, scales, and cuts off below 0.

    The statistics are returned for the running ones: no gradient flows through them.

    Args:
      x: ``[B, ..., C]`` float32.
      scale: ``[C]``.
      bias: ``[C]``.
      counts: ``[B]`` bool, rows that enter the statistics, at least one; None for all
        of them. The others are normalised by the same.

    Returns:
      The activations as x, the mean and the (biased) variance ``[C]``.
    """
    mean, variance, _ = _statistics(x, counts)
    return _scaled(x, mean, variance, scale, bias), mean, variance


def _forward(x: Array, scale: Array, bias: Array, counts: Array | None):
    mean, variance, number = _statistics(x, counts)
    out = _scaled(x, mean, variance, scale, bias)
    return (out, mean, variance), (x, scale, counts, mean, variance, number, out)


def _backward(kept, changes):
    x, scale, counts, mean, variance, number, out = kept
    change = jnp.where(out > 0.0, changes[0], 0.0)
    inverse = jax.lax.rsqrt(variance + EPSILON)
    total = _sums(change)
    by_scale = inverse * (_sums(change * x) - mean * total)
    # Each row that counts moves the mean and the variance.
    slope, bend = total / number, inverse * by_scale / number
    moved = x * _along(x, bend, -1) + _along(x, slope - mean * bend, -1)
    if counts is not None:
        moved = jnp.where(_along(x, counts, 0), moved, 0.0)
    by_x = (change - moved) * _along(x, scale * inverse, -1)
    return by_x, by_scale, total, None


normalize.defvjp(_forward, _backward)


class BatchNormReLU(nn.Module):
    """Batch normalisation as `flax.linen.BatchNorm`'s, with ReLU after it."""

    @nn.compact
    def __call__(self, x: Array, train: bool, mask: Array | None = None) -> Array:
        """Normalises each channel.

        Args:
          x: ``[B, ..., C]`` float32.
          train: by this batch's statistics, which also update the running ones.
          mask: ``[B]`` bool, rows that enter the statistics, at least one; all by
            default.

        Returns:
          As x, at least 0.
        """
        of_channels = (x.shape[-1:], jnp.float32)
        scale = self.param("scale", nn.initializers.ones_init(), *of_channels)
        bias = self.param("bias", nn.initializers.zeros_init(), *of_channels)
        mean = self.variable("batch_stats", "mean", jnp.zeros, *of_channels)
        variance = self.variable("batch_stats", "var", jnp.ones, *of_channels)
        if not train:
            return _scaled(x, mean.value, variance.value, scale, bias)
        out, batch_mean, batch_variance = normalize(x, scale, bias, mask)
        if not self.is_initializing():
            for kept, new in ((mean, batch_mean), (variance, batch_variance)):
                kept.value = MOMENTUM * kept.value + (1.0 - MOMENTUM) * new
        return out
