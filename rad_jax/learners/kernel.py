"""Nystroem features of the RBF kernel: shared by all seeds, computed once a row.

The kernel between all pairs of 50,000 rows takes 10 GB. Here a row is described by its
kernel values to m landmarks instead, turned so that inner products of two rows
approximate the kernel between them (exactly, where one of them is a landmark).

References:
  C. Williams, M. Seeger, Using the Nystroem method to speed up kernel machines, 2001.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rad_jax.learners.nearest import flat
from rad_jax.memory import Memory
from rad_jax.types import Array, Preparation, Spec

_BLOCK_ROWS = 4096
#: What basis and temporaries may take.
_MAX_BYTES = 8 << 30
#: Directions of the landmarks' kernel matrix whose eigenvalue is below this fraction
#: of the greatest are rounding errors and are left out.
_MIN_EIGENVALUE = 1e-6


class Landmarks(NamedTuple):
    """The basis: rows of the clean batch, and what maps rows to features.

    Attributes:
      centre: ``[D]`` float32, mean of the landmarks.
      rows: ``[m, D]`` float32, the landmarks less their mean; 0 where there is none.
      gamma: float32 scalar, the kernel's.
      used: ``[m]`` bool, False beyond the rows that the clean batch has.
      projection: ``[m, m]`` float32, from kernel values to features.
      mapped: ``[M, m]`` float32, features of every stored row; 0 for empty slots.
    """

    centre: Array
    rows: Array
    gamma: Array
    used: Array
    projection: Array
    mapped: Array


def _features(basis: Landmarks, rows: Array) -> Array:
    """``[N, D] -> [N, m]``."""
    exact = jax.lax.Precision.HIGHEST
    near = rows - basis.centre[None, :]
    distance2 = (
        jnp.sum(jnp.square(near), axis=1)[:, None]
        + jnp.sum(jnp.square(basis.rows), axis=1)[None, :]
        - 2.0 * jnp.matmul(near, basis.rows.T, precision=exact)
    )
    kernel = jnp.exp(-basis.gamma * jnp.maximum(distance2, 0.0))
    kernel = jnp.where(basis.used[None, :], kernel, 0.0)
    return jnp.matmul(kernel, basis.projection, precision=exact)


def _in_blocks(basis: Landmarks, rows: Array) -> Array:
    """As `_features`, with temporaries of a bounded number of rows."""
    num_rows = rows.shape[0]
    if num_rows <= _BLOCK_ROWS:
        return _features(basis, rows)
    short = -num_rows % _BLOCK_ROWS
    blocks = jnp.pad(rows, ((0, short), (0, 0))).reshape(-1, _BLOCK_ROWS, rows.shape[1])
    out = jax.lax.map(lambda block: _features(basis, block), blocks)
    return out.reshape(-1, out.shape[-1])[:num_rows]


def scale(rows: Array, valid: Array) -> Array:
    """``1 / (D var(X))`` over the valid rows ``[M, D]``; 1 if they do not vary."""
    each = valid[:, None] / jnp.maximum(jnp.sum(valid) * rows.shape[1], 1)
    mean = jnp.sum(each * rows)
    variance = jnp.sum(each * jnp.square(rows - mean))
    varies = variance > 0
    return jnp.where(varies, 1.0 / (rows.shape[1] * jnp.where(varies, variance, 1)), 1)


@functools.cache
def nystroem(gamma: float | str, num_landmarks: int) -> Preparation:
    """Features of stored rows and queries, by landmarks evenly spaced in ``D_0``."""

    def nbytes(spec: Spec, num_queries: int) -> int:
        size = min(num_landmarks, spec.capacity)
        width = math.prod(spec.feature_shape)
        rows = spec.capacity + 3 * size + num_queries + 2 * _BLOCK_ROWS
        return 4 * size * (rows + width)

    def start(memory: Memory) -> Landmarks:
        capacity = memory.capacity
        size = min(num_landmarks, capacity)
        spec = Spec(memory.features.shape[1:], 1, capacity)
        taken = nbytes(spec, 0)
        if taken > _MAX_BYTES:
            raise ValueError(
                f"num_landmarks={num_landmarks} with memory_capacity={capacity} would "
                f"take {taken / 2**30:.1f} GiB for kernel features, at most "
                f"{_MAX_BYTES >> 30} GiB are allowed; lower num_landmarks"
            )
        rows = flat(memory.features)
        valid = memory.valid
        count = jnp.sum(valid, dtype=jnp.int32)
        order = jnp.argsort(~valid, stable=True)  # rows first
        index = jnp.arange(size, dtype=jnp.int32)
        # floor(index count / size) without going beyond int32
        whole, rest = jnp.divmod(count, size)
        spaced = index * whole + index * rest // size
        used = index < count
        chosen = order[jnp.where(count >= size, spaced, jnp.minimum(index, count))]
        landmarks = jnp.where(used[:, None], rows[chosen], 0.0)
        centre = jnp.sum(landmarks, axis=0) / jnp.maximum(jnp.sum(used), 1)
        basis = Landmarks(
            centre=centre,
            rows=jnp.where(used[:, None], landmarks - centre[None, :], 0.0),
            gamma=scale(rows, valid)
            if gamma == "scale"
            else jnp.asarray(gamma, jnp.float32),
            used=used,
            projection=jnp.eye(size, dtype=jnp.float32),
            mapped=jnp.zeros((capacity, size), jnp.float32),
        )
        kernel = jnp.where(used[:, None], _features(basis, landmarks), 0.0)
        value, vector = jnp.linalg.eigh((kernel + kernel.T) / 2)
        sound = value > _MIN_EIGENVALUE * jnp.maximum(value[-1], 1e-30)
        factor = jnp.where(sound, jax.lax.rsqrt(jnp.where(sound, value, 1.0)), 0.0)
        basis = basis._replace(projection=vector * factor[None, :])
        mapped = jnp.where(valid[:, None], _in_blocks(basis, rows), 0.0)
        return basis._replace(mapped=mapped)

    def store(
        basis: Landmarks, memory: Memory, slots: Array, valid: Array
    ) -> Landmarks:
        rows = flat(memory.features.at[slots].get(mode="fill", fill_value=0))
        slots = jnp.where(valid, slots, memory.capacity)
        mapped = basis.mapped.at[slots].set(_in_blocks(basis, rows), mode="drop")
        return basis._replace(mapped=mapped)

    def build(basis: Landmarks, memory: Memory, features: Array) -> Array:
        del memory
        return _in_blocks(basis, flat(features))

    def extend(basis, prepared: Array, features, memory, slots, valid) -> Array:
        del basis, features, memory, slots, valid
        return prepared

    return Preparation(
        name=f"nystroem_{gamma}_{num_landmarks}",
        start=start,
        store=store,
        build=build,
        extend=extend,
        bytes=nbytes,
    )
