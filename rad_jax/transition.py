"""Transition matrices ``T[true, given]``: how true classes turn into given ones.

Rows are true classes and sum to 1, columns are given classes.
"""

import jax
import jax.numpy as jnp
import numpy as np

from rad_jax.types import UNLABELLED, Array


def symmetric(rate, num_classes: int) -> Array:
    """``[K, K]``: 1 - rate on the diagonal, the rest spread evenly."""
    eye = jnp.eye(num_classes)
    return (1 - rate) * eye + rate * (1 - eye) / (num_classes - 1)


def pair(rate, num_classes: int) -> Array:
    """``[K, K]``: class k is given as k + 1 (the last as 0) with probability rate."""
    eye = jnp.eye(num_classes)
    return (1 - rate) * eye + rate * jnp.roll(eye, 1, axis=1)


def check_matrix(matrix, name: str = "matrix"):
    """Raises ValueError unless a concrete ``T[true, given]`` is row-stochastic.

    Returns:
      ``[..., K, K]`` float32.
    """
    if isinstance(matrix, jax.core.Tracer):
        return matrix
    values = np.asarray(matrix, np.float64)
    if values.ndim < 2 or values.shape[-1] != values.shape[-2] or values.shape[-1] < 2:
        raise ValueError(
            f"{name} must be square, [K, K] for K >= 2 classes, got shape "
            f"{values.shape}"
        )
    if not np.all(np.isfinite(values)) or values.min() < 0:
        worst = values[~np.isfinite(values) | (values < 0)][0]
        raise ValueError(f"{name} must have entries of at least 0, got {worst}")
    sums = values.sum(-1)
    bad = np.argwhere(np.abs(sums - 1) > 1e-5)
    if bad.size:
        at = tuple(bad[0])
        raise ValueError(
            f"{name} must have rows (true classes) that sum to 1, row "
            f"{', '.join(map(str, at))} sums to {sums[at]:.6g}"
        )
    return jnp.asarray(values, jnp.float32)


def realised(given: Array, true_label: Array, valid: Array, num_classes: int) -> Array:
    """``T[true, given]`` as it came out.

    Returns:
      ``[K, K]`` float32; a row of NaN for a class without labelled rows.
    """
    labelled = valid & (given != UNLABELLED) & (true_label != UNLABELLED)
    cell = true_label.astype(jnp.int32) * num_classes + given.astype(jnp.int32)
    cell = jnp.where(labelled, cell, num_classes * num_classes)
    counts = jnp.zeros(num_classes * num_classes, jnp.float32)
    counts = counts.at[cell].add(1.0, mode="drop").reshape(num_classes, num_classes)
    return counts / jnp.sum(counts, axis=1, keepdims=True)


def estimate():
    """TODO."""
