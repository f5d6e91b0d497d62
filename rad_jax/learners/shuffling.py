"""A random order of rows, looked up where it is needed and never written down.

Sorting random numbers gives one too, but on CPU takes 180 ns a row and epoch, a fourth
of a small network's training. Here a keyed permutation (a Feistel network over a grid
of about the square root of n by as many) is evaluated for a minibatch's rows only.
"""

import jax
import jax.numpy as jnp

from rad_jax.types import Array, PRNGKey

_ROUNDS = 8


def round_keys(key: PRNGKey) -> Array:
    """What a key makes of an order: ``[8]`` uint32, for `nth`."""
    return jax.random.bits(key, (_ROUNDS,), jnp.uint32)


def _mixed(x: Array, key: Array) -> Array:
    """A hash of ``x``: uint32 below 2^16."""
    x = (x ^ key) * jnp.uint32(0x9E3779B1)
    x = (x ^ (x >> 15)) * jnp.uint32(0x85EBCA6B)
    return (x ^ (x >> 13)) >> 16


def nth(keys: Array, position: Array, num_rows: Array) -> Array:
    """The rows at some positions of a random order of ``0..num_rows-1``.

    Args:
      keys: ``[8]`` uint32, of `round_keys`.
      position: ``[B]`` int32 in ``0..num_rows-1``; beyond it, what comes is arbitrary.
      num_rows: int32 scalar, n.

    Returns:
      ``[B]`` int32 in 0..n-1 (0 if n is 0); over all positions every row once.
    """
    size = jnp.maximum(num_rows, 1).astype(jnp.uint32)
    root = jnp.ceil(jnp.sqrt(size.astype(jnp.float32))).astype(jnp.uint32)
    high = jnp.maximum(root, 1)
    low = (size + high - 1) // high  # high x low cells hold all rows, or a few more

    def permuted(index: Array) -> Array:
        left, right = index // low, index % low
        for i in range(0, _ROUNDS, 2):
            left = left + (_mixed(right, keys[i]) * high >> 16)
            left = jnp.where(left >= high, left - high, left)
            right = right + (_mixed(left, keys[i + 1]) * low >> 16)
            right = jnp.where(right >= low, right - low, right)
        return left * low + right

    # Cells that are no row lead on, on the cycle that the permutation makes, to one.
    index = jnp.minimum(position.astype(jnp.uint32), size - 1)
    found = jax.lax.while_loop(
        lambda index: jnp.any(index >= size),
        lambda index: jnp.where(index >= size, permuted(index), index),
        permuted(index),
    )
    return found.astype(jnp.int32)
