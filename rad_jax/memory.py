"""The store of everything that arrived: features once, whatever the number of seeds.

Slots are filled in order of arrival. What seeds make of a row (labels, status) lives
beside it, in arrays over the same slots (`rad_jax.state.PerSeed`).
"""

from typing import NamedTuple

import chex
import jax.numpy as jnp

from rad_jax.types import Array

#: An endless stream has more rows than int32 counts.
_ROUND = 2**30


class MemoryFullError(RuntimeError):
    """More rows arrived than the memory holds."""


class Memory(NamedTuple):
    """Stored rows; all of it shared by all seeds.

    Attributes:
      features: ``[M, *S]``.
      row_id: ``[M]`` int32, -1 where empty.
      arrived: ``[M]`` int32, index of the arrival that brought the row (0: clean
        batch), -1 where empty.
      count: int32 scalar, rows that arrived so far, stored or not. In a ring it is
        taken back by a multiple of the capacity before int32 ends.
    """

    features: Array
    row_id: Array
    arrived: Array
    count: Array  # type: ignore[assignment]

    @property
    def capacity(self) -> int:
        """M, the number of slots."""
        return self.row_id.shape[0]

    @property
    def valid(self) -> Array:
        """``[M]`` bool: the slot holds a row."""
        return self.arrived >= 0

    @property
    def overflow(self) -> Array:
        """Rows that found no slot, int32 scalar."""
        return jnp.maximum(self.count - self.capacity, 0)


def empty(capacity: int, feature_shape: tuple[int, ...], dtype=jnp.float32) -> Memory:
    """A memory of `capacity` slots that holds nothing.

    Raises:
      ValueError: for a capacity below 1.
    """
    if capacity < 1:
        raise ValueError(f"memory_capacity must be at least 1 row, got {capacity}")
    return Memory(
        features=jnp.zeros((capacity, *feature_shape), dtype),
        row_id=jnp.full(capacity, -1, jnp.int32),
        arrived=jnp.full(capacity, -1, jnp.int32),
        count=jnp.zeros((), jnp.int32),
    )


def next_slots(memory: Memory, valid: Array, sliding: bool) -> Array:
    """Where `write` will store the rows of a batch.

    Args:
      memory: the store.
      valid: ``[N]`` bool.
      sliding: whether the oldest rows make room; N is at most the capacity then.

    Returns:
      ``[N]`` int32, the capacity for padding, and for rows without room.
    """
    position = memory.count + jnp.cumsum(valid.astype(jnp.int32)) - 1
    if sliding:
        slots = position % memory.capacity
    else:
        slots = jnp.minimum(position, memory.capacity)
    return jnp.where(valid, slots, memory.capacity)


def vacate(memory: Memory, slots: Array) -> Memory:
    """The store without the rows in these slots (those out of range are ignored)."""
    return memory._replace(arrived=memory.arrived.at[slots].set(-1, mode="drop"))


def write(
    memory: Memory,
    features: Array,
    row_id: Array,
    valid: Array,
    arrival: Array,
    sliding: bool = False,
) -> tuple[Memory, Array]:
    """Stores the valid rows of a batch in the next free slots.

    Args:
      memory: the store.
      features: ``[N, *S]``, of the dtype that the store has.
      row_id: ``[N]`` int32.
      valid: ``[N]`` bool; padding takes no slot.
      arrival: int32 scalar.
      sliding: the memory is a ring: where it is full, the oldest rows make room.

    Returns:
      The new store and ``[N]`` int32 slots; the slot of a row that was not stored
      (padding, or no room) is the capacity, which scatters with ``mode="drop"`` and
      gathers with ``mode="fill"`` ignore.
    """
    chex.assert_shape(features, (valid.shape[0], *memory.features.shape[1:]))
    chex.assert_equal_shape((row_id, valid))
    slots = next_slots(memory, valid, sliding)
    arrivals = jnp.broadcast_to(arrival, valid.shape)
    count = memory.count + jnp.sum(valid, dtype=jnp.int32)
    if sliding:  # the place in the ring stays, and that it is full
        rounds = max(_ROUND // memory.capacity - 1, 1)
        count = jnp.where(count > _ROUND, count - rounds * memory.capacity, count)
    return (
        Memory(
            features=memory.features.at[slots].set(features, mode="drop"),
            row_id=memory.row_id.at[slots].set(row_id, mode="drop"),
            arrived=memory.arrived.at[slots].set(arrivals, mode="drop"),
            count=count,
        ),
        slots,
    )


def find(memory: Memory, row_ids: Array) -> tuple[Array, Array]:
    """Slots of rows by their id.

    Args:
      memory: the store.
      row_ids: ``[Q]`` int32; negative ones are not looked for.

    Returns:
      ``[Q]`` int32 slots (the capacity where there is none) and ``[Q]`` bool found.
    """
    hit = (memory.row_id[None, :] == row_ids[:, None]) & (row_ids >= 0)[:, None]
    found = jnp.any(hit, axis=1)
    return jnp.where(found, jnp.argmax(hit, axis=1), memory.capacity), found


def nbytes(capacity: int, feature_shape: tuple[int, ...], itemsize: int = 4) -> int:
    """Bytes that a memory takes."""
    width = itemsize
    for size in feature_shape:
        width *= size
    return capacity * (width + 8)
