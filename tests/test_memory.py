"""The store of rows, against a plain list."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rad_jax import memory

BATCH = 5
SHAPE = (2, 3)
write = jax.jit(memory.write)
find = jax.jit(memory.find)


class Row(NamedTuple):
    features: np.ndarray
    row_id: int
    arrived: int


class PlainMemory:
    """What `memory` must do, row by row."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.rows = []
        self.came = 0

    def write(self, features, row_id, valid, arrival):
        slots = []
        for x, name, is_row in zip(features, row_id, valid, strict=True):
            if not is_row:
                slots.append(self.capacity)
                continue
            self.came += 1
            if len(self.rows) == self.capacity:
                slots.append(self.capacity)
                continue
            slots.append(len(self.rows))
            self.rows.append(Row(x, int(name), arrival))
        return slots

    def find(self, row_id):
        for slot, row in enumerate(self.rows):
            if row.row_id == row_id and row_id >= 0:
                return slot, True
        return self.capacity, False


def assert_equal(store, plain):
    n, free = len(plain.rows), plain.capacity - len(plain.rows)
    assert store.capacity == plain.capacity
    np.testing.assert_array_equal(store.valid, [True] * n + [False] * free)
    np.testing.assert_array_equal(
        store.row_id, [row.row_id for row in plain.rows] + [-1] * free
    )
    np.testing.assert_array_equal(
        store.arrived, [row.arrived for row in plain.rows] + [-1] * free
    )
    for slot, row in enumerate(plain.rows):
        np.testing.assert_array_equal(store.features[slot], row.features)
    np.testing.assert_array_equal(store.features[n:], 0.0)
    assert int(store.count) == plain.came
    assert int(store.overflow) == plain.came - n


@given(
    capacity=st.sampled_from([1, 7, 40]),
    masks=st.lists(st.lists(st.booleans(), min_size=BATCH, max_size=BATCH), max_size=5),
    seed=st.integers(0, 2**31),
)
def test_write_and_find_do_what_a_list_does(capacity, masks, seed):
    rng = np.random.default_rng(seed)
    names = rng.choice(10_000, (len(masks), BATCH), replace=False).astype(np.int32)
    store, plain = memory.empty(capacity, SHAPE), PlainMemory(capacity)
    assert_equal(store, plain)
    for arrival, (mask, row_id) in enumerate(zip(masks, names, strict=True)):
        mask = np.array(mask)
        features = rng.normal(size=(BATCH, *SHAPE)).astype(np.float32)
        features[~mask] = np.nan  # padding must leave no trace
        store, slots = write(store, features, row_id, mask, arrival)
        assert slots.dtype == jnp.int32
        np.testing.assert_array_equal(
            slots, plain.write(features, row_id, mask, arrival)
        )
        assert_equal(store, plain)
    # As many queries each time, so that one program does: all names, and no names.
    asked = np.full(30, -1, np.int32)
    asked[: names.size] = names.reshape(-1)
    asked[25:] = [-1, -5, 10_001, 2**31 - 1, -(2**31)]
    slots, found = find(store, asked)
    expected = [plain.find(name) for name in asked]
    np.testing.assert_array_equal(slots, [slot for slot, _ in expected])
    np.testing.assert_array_equal(found, [hit for _, hit in expected])


def test_find_takes_the_first_of_equal_ids_and_never_an_empty_or_negative_one():
    features = jnp.zeros((4, *SHAPE))
    row_id = jnp.array([3, -1, 8, 3], jnp.int32)
    store, _ = write(memory.empty(6, SHAPE), features, row_id, jnp.ones(4, bool), 0)
    slots, found = find(store, jnp.array([3, 8, -1, 0], jnp.int32))
    np.testing.assert_array_equal(slots, [0, 2, 6, 6])
    np.testing.assert_array_equal(found, [True, True, False, False])


def test_rows_without_a_slot_are_ignored_by_scatters_and_gathers():
    valid = jnp.array([True, False, True, True])
    store, slots = write(
        memory.empty(2, ()), jnp.arange(4.0), jnp.arange(4), valid, jnp.int32(0)
    )
    np.testing.assert_array_equal(store.features, [0.0, 2.0])
    column = jnp.zeros(2).at[slots].set(jnp.array([5.0, 6.0, 7.0, 8.0]), mode="drop")
    np.testing.assert_array_equal(column, [5.0, 7.0])
    got = store.row_id.at[slots].get(mode="fill", fill_value=-1)
    np.testing.assert_array_equal(got, [0, -1, 2, -1])


def test_overflow_goes_on_counting_and_stored_rows_stay():
    store = memory.empty(3, ())
    for arrival in range(4):
        ids = jnp.arange(2, dtype=jnp.int32) + 2 * arrival
        store, _ = write(
            store, ids.astype(jnp.float32), ids, jnp.ones(2, bool), arrival
        )
    np.testing.assert_array_equal(store.row_id, [0, 1, 2])
    np.testing.assert_array_equal(store.arrived, [0, 0, 1])
    assert int(store.count) == 8
    assert int(store.overflow) == 5


def test_nothing_per_seed_enters_a_write():
    """Features written under a vmap over labels exist once."""
    store = memory.empty(4, SHAPE)

    def arrive(label):
        new, slots = memory.write(
            store,
            jnp.ones((2, *SHAPE)),
            jnp.arange(2),
            jnp.ones(2, bool),
            jnp.int32(0),
        )
        return new, jnp.zeros(4, label.dtype).at[slots].set(label, mode="drop")

    _, column = jax.vmap(arrive, out_axes=(None, 0))(jnp.arange(6).reshape(3, 2))
    np.testing.assert_array_equal(column[:, :2], np.arange(6).reshape(3, 2))


def test_the_store_keeps_its_dtype():
    store = memory.empty(3, (2,), jnp.uint8)
    store, _ = write(
        store, jnp.full((1, 2), 200, jnp.uint8), jnp.arange(1), jnp.ones(1, bool), 0
    )
    assert store.features.dtype == jnp.uint8
    np.testing.assert_array_equal(store.features[0], [200, 200])


def test_wrong_shapes_are_refused():
    store = memory.empty(3, SHAPE)
    valid = jnp.ones(2, bool)
    with pytest.raises(AssertionError):
        memory.write(store, jnp.zeros((2, 3, 2)), jnp.arange(2), valid, 0)
    with pytest.raises(AssertionError):
        memory.write(store, jnp.zeros((3, *SHAPE)), jnp.arange(2), valid, 0)
    with pytest.raises(AssertionError):
        memory.write(store, jnp.zeros((2, *SHAPE)), jnp.arange(3), valid, 0)


@pytest.mark.parametrize("capacity", [0, -3])
def test_a_capacity_below_one_is_refused(capacity):
    with pytest.raises(ValueError, match=f"memory_capacity must be.* got {capacity}"):
        memory.empty(capacity, SHAPE)


@pytest.mark.parametrize(
    ("capacity", "shape", "dtype"),
    [
        (1, (), np.float32),
        (7, (5,), np.float32),
        (9, (4, 3, 2), np.float32),
        (9, (4, 3, 2), np.uint8),
    ],
)
def test_nbytes_is_what_the_arrays_take(capacity, shape, dtype):
    store = memory.empty(capacity, shape, dtype)
    taken = store.features.nbytes + store.row_id.nbytes + store.arrived.nbytes
    stated = memory.nbytes(capacity, shape, np.dtype(dtype).itemsize)
    assert stated == taken
    if dtype is np.float32:
        assert memory.nbytes(capacity, shape) == taken
