"""Lists of nearest rows, against a full sort by (distance, slot)."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rad_jax import memory
from rad_jax.learners import exhaustive, nearest
from rad_jax.types import Spec

G = nearest._GROUP
smallest = jax.jit(nearest.smallest, static_argnums=1)
search = jax.jit(nearest.search, static_argnums=3)
write = jax.jit(memory.write)


def lexsorted(values, k):
    """The k smallest of each row and their indices; ties to the lower index."""
    index = np.stack([np.lexsort((np.arange(len(row)), row))[:k] for row in values])
    return np.take_along_axis(values, index, axis=1), index


def by_brute_force(queries, rows, valid, length, end):
    """Slots and squared distances ``[Q, length]``, nearest first, ties by slot."""
    queries = np.asarray(queries, np.float64).reshape(len(queries), -1)
    rows = np.asarray(rows, np.float64).reshape(len(rows), -1)
    slot = np.full((len(queries), length), end)
    distance2 = np.full((len(queries), length), np.inf)
    stored = np.flatnonzero(valid)
    for q, query in enumerate(queries):
        d2 = ((query - rows[stored]) ** 2).sum(axis=1)
        nearest_first = np.lexsort((stored, d2))[:length]
        slot[q, : len(nearest_first)] = stored[nearest_first]
        distance2[q, : len(nearest_first)] = d2[nearest_first]
    return slot, distance2


# --- smallest ----------------------------------------------------------------------

SIZES = [
    (1, 1),
    (1, 2 * G - 1),
    (1, 2 * G),
    (1, 2 * G + 1),  # grouped from here
    (1, 3 * G),
    (1, 3 * G + 1),
    (3, 6 * G),
    (3, 6 * G + 1),
    (3, 7 * G - 1),
    (64, 129 * G + 1),
    (2, 2),
    (40, 41),
    (200, 200),
]


@pytest.mark.parametrize(("k", "size"), SIZES)
def test_smallest_is_a_full_sort(k, size):
    rng = np.random.default_rng(size)
    rows = [rng.integers(0, high, size) for high in (1, 2, 3, 10, 100, 10 * size)]
    rows += [rng.normal(size=size), np.arange(size), -np.arange(size)]
    # All equal but a few smaller ones, spread over groups or in one group.
    rows += [(rng.random(size) > 0.02) * 1.0, np.arange(size) < size - 2]
    rows += [np.arange(size) // G, -(np.arange(size) // G)]
    values = np.stack(rows).astype(np.float32)
    infinite = values.copy()
    infinite[rng.random(values.shape) < 0.5] = np.inf
    few = np.full_like(values, np.inf)
    few[:, size // 2 : size // 2 + max(k - 1, 1)] = 1.0
    few[0] = np.inf
    negative = values.copy()
    negative[rng.random(values.shape) < 0.1] = -np.inf
    values = np.concatenate([values, infinite, few, negative])
    got, index = smallest(values, k)
    expected, expected_index = lexsorted(values, k)
    np.testing.assert_array_equal(index, expected_index)
    np.testing.assert_array_equal(got, expected)
    assert index.dtype == jnp.int32


# --- search ------------------------------------------------------------------------


def grid(rng, n, shape=(3,), high=3):
    """Rows on a coarse grid: many duplicates, many equal distances, all exact."""
    return rng.integers(0, high, (n, *shape)).astype(np.float32)


@pytest.mark.parametrize(
    ("num_rows", "k"), [(1, 1), (9, 4), (9, 9), (200, 3), (700, 7)]
)
def test_search_is_brute_force(num_rows, k):
    rng = np.random.default_rng(num_rows + k)
    queries, rows = grid(rng, 20), grid(rng, num_rows)
    for share in (1.0, 0.5, 2.0 / num_rows, 0.0):
        valid = rng.random(num_rows) < share
        distance2, index = search(queries, rows, valid, k)
        slot, expected = by_brute_force(queries, rows, valid, k, num_rows)
        np.testing.assert_array_equal(index, slot)
        np.testing.assert_array_equal(distance2, expected)
        assert index.dtype == jnp.int32


def test_equal_rows_are_equally_far_whatever_their_numbers():
    """Ties of duplicates must hold in floating point, not only on a grid."""
    rng = np.random.default_rng(3)
    distinct = rng.normal(size=(6, 37)).astype(np.float32)
    rows = distinct[rng.integers(0, 6, 500)]
    queries = rng.normal(size=(25, 37)).astype(np.float32)
    valid = rng.random(500) < 0.8
    distance2, index = search(queries, rows, valid, 11)
    slot, expected = by_brute_force(queries, rows, valid, 11, 500)
    np.testing.assert_array_equal(index, slot)
    np.testing.assert_allclose(distance2, expected, rtol=1e-5)


@pytest.mark.parametrize("offset", [0.0, 30.0, 1000.0])
def test_search_is_exact_far_from_the_origin(offset):
    """Not scaled, or scaled by a small clean batch: all rows far from 0.

    Distances themselves are exact to single precision there; that of the k-th and
    the next row differ by far more than its rounding.
    """
    rng = np.random.default_rng(5)
    rows = (offset + rng.normal(size=(400, 26))).astype(np.float32)
    queries = (offset + rng.normal(size=(40, 26))).astype(np.float32)
    _, index = search(queries, rows, np.ones(400, bool), 5)
    slot, distance2 = by_brute_force(queries, rows, np.ones(400, bool), 6, 400)
    clear = distance2[:, 5] - distance2[:, 4] > 1e-3
    assert clear.sum() > 30
    for q in np.flatnonzero(clear):
        assert set(np.asarray(index[q])) == set(slot[q, :5])


# --- neighbour lists ---------------------------------------------------------------


@functools.cache
def jitted(num_candidates):
    preparation = nearest.neighbour_lists(num_candidates)
    return (
        jax.jit(functools.partial(preparation.build, ())),
        jax.jit(functools.partial(preparation.extend, ())),
    )


def store_of(rows, capacity):
    store = memory.empty(capacity, rows.shape[1:])
    return write(store, rows, np.arange(len(rows)), np.ones(len(rows), bool), 0)[0]


def assert_lists(lists, queries, store, num_candidates, exact=True):
    assert lists.slot.shape == (num_candidates, len(queries))
    assert lists.distance2.shape == (num_candidates, len(queries))
    assert lists.slot.dtype == jnp.int32
    assert lists.distance2.dtype == jnp.float32
    slot, distance2 = by_brute_force(
        queries,
        store.features,
        np.asarray(store.valid),
        num_candidates,
        store.capacity,
    )
    np.testing.assert_array_equal(lists.slot.T, slot)
    if exact:
        np.testing.assert_array_equal(lists.distance2.T, distance2)
    else:
        np.testing.assert_allclose(lists.distance2.T, distance2, rtol=1e-5)


@pytest.mark.parametrize(
    ("num_rows", "capacity", "num_candidates", "shape"),
    [
        (50, 60, 7, (3,)),
        (50, 60, 7, (2, 2, 1)),
        (50, 60, 7, ()),
        (4, 60, 7, (3,)),  # lists end early
        (60, 60, 60, (2, 2)),
        (5, 5, 9, (2, 2)),  # capacity < num_candidates
        (1, 1, 3, ()),
    ],
)
def test_build_is_brute_force(num_rows, capacity, num_candidates, shape):
    rng = np.random.default_rng(num_rows)
    store = store_of(grid(rng, num_rows, shape), capacity)
    queries = grid(rng, 8, shape)
    lists = jitted(num_candidates)[0](store, queries)
    assert_lists(lists, queries, store, num_candidates)


def test_an_empty_memory_gives_lists_that_have_ended():
    lists = jitted(4)[0](memory.empty(9, (2,)), np.zeros((3, 2), np.float32))
    np.testing.assert_array_equal(lists.slot, np.full((4, 3), 9))
    np.testing.assert_array_equal(lists.distance2, np.full((4, 3), np.inf))


@pytest.mark.parametrize("queries_a_block", [1, 3, 10])
def test_blocks_of_any_size_change_nothing(monkeypatch, queries_a_block):
    rng = np.random.default_rng(1)
    rows, added, queries = grid(rng, 30), grid(rng, 6), grid(rng, 10)
    store = store_of(rows, 40)
    k, width = 5, 3
    preparation = nearest.neighbour_lists(k)
    sizes = []
    blocks = nearest._blocks

    def watched(function, queries, size):
        sizes.append(size)
        return blocks(function, queries, size)

    monkeypatch.setattr(nearest, "_blocks", watched)
    monkeypatch.setattr(
        nearest, "_BLOCK_FLOATS", queries_a_block * (store.capacity + k * width)
    )
    # A new function for each size: `jax.jit` would otherwise take the old program.
    lists = jax.jit(lambda *args: preparation.build((), *args))(store, queries)
    assert sizes == [queries_a_block]
    assert_lists(lists, queries, store, k)

    valid = np.ones(6, bool)
    store, slots = write(store, added, np.arange(6), valid, 1)
    monkeypatch.setattr(nearest, "_BLOCK_FLOATS", queries_a_block * (6 + k * width))
    lists = jax.jit(lambda *args: preparation.extend((), *args))(
        lists, queries, store, slots, valid
    )
    assert sizes == [queries_a_block] * 2
    assert_lists(lists, queries, store, k)


BATCH, CAPACITY, QUERIES = 6, 9, 5


@given(
    num_candidates=st.sampled_from([1, 4, 25]),
    masks=st.lists(
        st.lists(st.booleans(), min_size=BATCH, max_size=BATCH), min_size=1, max_size=5
    ),
    high=st.sampled_from([1, 2, 4]),
    seed=st.integers(0, 2**31),
)
def test_extending_is_building_anew(num_candidates, masks, high, seed):
    """Random batches with padding, past the capacity, equal rows across batches."""
    rng = np.random.default_rng(seed)
    build, extend = jitted(num_candidates)
    queries = grid(rng, QUERIES, high=high)
    store = memory.empty(CAPACITY, (3,))
    lists = build(store, queries)
    for arrival, mask in enumerate(masks):
        mask = np.array(mask)
        rows = grid(rng, BATCH, high=high)
        rows[~mask] = queries[0]  # padding that would be very near
        ids = np.arange(BATCH, dtype=np.int32)
        store, slots = write(store, rows, ids, mask, arrival)
        lists = extend(lists, queries, store, slots, mask)
        assert_lists(lists, queries, store, num_candidates)
        anew = build(store, queries)
        np.testing.assert_array_equal(lists.slot, anew.slot)
        np.testing.assert_array_equal(lists.distance2, anew.distance2)


@pytest.mark.parametrize(
    ("few", "together", "spread"), [(3, 4, 2), (1, 7, None), (12, 1, 9)]
)
def test_few_and_many_new_rows_enter_as_if_built_anew(
    monkeypatch, few, together, spread
):
    """Queries with few entrants and with many, equal rows, padding, empty lists."""
    monkeypatch.setattr(nearest, "_ENTRANTS", few)
    monkeypatch.setattr(nearest, "_TOGETHER", together)
    rng = np.random.default_rng(3)

    def draw(size):
        if spread is None:
            return rng.normal(size=(size, 3)).astype(np.float32)
        return grid(rng, size, high=spread)

    preparation = nearest.neighbour_lists(15)
    build, extend = (
        jax.jit(lambda *args, f=f: f((), *args))
        for f in (preparation.build, preparation.extend)
    )
    size, queries = 20, draw(40)
    store = memory.empty(70, (3,))
    lists = build(store, queries)
    counts = []
    for arrival in range(4):  # the last does not fit
        rows, valid = draw(size), rng.random(size) < 0.9
        before = np.asarray(lists.slot)
        store, slots = write(store, rows, np.arange(size), valid, arrival)
        lists = extend(lists, queries, store, slots, valid)
        counts += [
            [
                len(set(new) - set(old))
                for new, old in zip(np.asarray(lists.slot).T, before.T, strict=True)
            ]
        ]
        anew = build(store, queries)
        np.testing.assert_array_equal(lists.slot, anew.slot)
        np.testing.assert_array_equal(lists.distance2, anew.distance2)
    assert np.any(np.array(counts) > few)  # both ways were taken
    assert np.any(np.array(counts)[1:] <= few)


def test_extending_keeps_equal_rows_in_order_of_arrival_in_floating_point():
    """The same row may come in batches of different sizes; it stays as far away."""
    rng = np.random.default_rng(7)
    distinct = rng.normal(size=(5, 41)).astype(np.float32)
    queries = rng.normal(size=(9, 41)).astype(np.float32)
    build, extend = jitted(30)
    store = memory.empty(99, (41,))
    lists = build(store, queries)
    for arrival, size in enumerate([40, 1, 17, 40, 1]):
        rows = distinct[rng.integers(0, 5, size)]
        valid = np.ones(size, bool)
        store, slots = write(store, rows, np.arange(size), valid, arrival)
        lists = extend(lists, queries, store, slots, valid)
    assert_lists(lists, queries, store, 30, exact=False)
    np.testing.assert_array_equal(lists.slot, build(store, queries).slot)


def test_a_preparation_is_named_by_its_length_and_made_once():
    assert nearest.neighbour_lists(5) is nearest.neighbour_lists(5)
    assert nearest.neighbour_lists(5).name != nearest.neighbour_lists(6).name


def test_stated_bytes_are_what_lists_take():
    preparation = nearest.neighbour_lists(6)
    lists = jax.eval_shape(
        preparation.build, (), memory.empty(9, (2,)), jnp.zeros((13, 2))
    )
    assert preparation.bytes(None, 13) == 4 * (lists.slot.size + lists.distance2.size)


@pytest.mark.parametrize(("num_rows", "width"), [(20_000, 64), (50_000, 8)])
def test_stated_bytes_of_the_search_are_what_the_compiler_plans(num_rows, width):
    preparation = nearest.neighbour_lists(64)
    store = jax.eval_shape(lambda: memory.empty(num_rows, (width,)))
    queries = jax.ShapeDtypeStruct((1000, width), jnp.float32)
    built = jax.jit(lambda store, queries: preparation.build((), store, queries))
    planned = built.lower(store, queries).compile().memory_analysis()
    stated = nearest.search_bytes(Spec((width,), 3, num_rows), 1000, 64)
    assert 0.75 < stated / planned.temp_size_in_bytes < 1.25


def test_flat():
    assert nearest.flat(jnp.zeros((5, 2, 3), jnp.uint8)).shape == (5, 6)
    assert nearest.flat(jnp.zeros((5, 2, 3), jnp.uint8)).dtype == jnp.float32
    assert nearest.flat(jnp.zeros(5)).shape == (5, 1)
    assert nearest.flat(jnp.zeros((0, 2, 3))).shape == (0, 6)


def test_the_search_on_finds_for_every_seed_what_it_misses():
    """11 seeds, of which some miss all queries, some a few, some none."""
    rng = np.random.default_rng(5)
    seeds, num_queries, num_rows, k = 11, 19, 300, 3
    rows = rng.normal(size=(num_rows, 4)).astype(np.float32)
    queries = rng.normal(size=(num_queries, 4)).astype(np.float32)
    label = np.where(
        rng.random((seeds, num_rows)) < 0.3,
        rng.integers(0, 5, (seeds, num_rows)),
        -1,
    ).astype(np.int16)
    label[2] = -1
    label[2, 7] = 4  # one voter only
    share = np.asarray([0, 0.2, 1] * 4)[:seeds]
    missing = rng.random((seeds, num_queries)) < share[:, None]
    search_on = jax.vmap(exhaustive.searcher(k), in_axes=(0, 0, None, None))
    found, distance2 = jax.jit(search_on)(missing, label, queries, rows)
    true = ((queries[:, None].astype(float) - rows[None]) ** 2).sum(axis=2)
    for seed, query in zip(*np.nonzero(missing), strict=True):
        voters = np.flatnonzero(label[seed] >= 0)
        nearest_voters = voters[np.argsort(true[query, voters])][:k]
        short = (0, k - len(nearest_voters))
        np.testing.assert_array_equal(
            found[seed, query],
            np.pad(label[seed, nearest_voters], short, constant_values=-1),
        )
        np.testing.assert_allclose(
            distance2[seed, query],
            np.pad(true[query, nearest_voters], short, constant_values=np.inf),
            rtol=1e-5,
        )


@pytest.mark.parametrize("size", [9, 40])
def test_numbers_whose_squares_overflow_enter_as_if_built_anew(size):
    """Rows whose mean or squares no float32 holds, though some distances are 0."""
    rng = np.random.default_rng(8)

    def draw(size):
        rows = rng.integers(0, 2, (size, 3)).astype(np.float32)
        rows[:, 0] = 3e38
        return rows

    build, extend = jitted(5)
    queries, store = draw(30), memory.empty(50, (3,))
    lists = build(store, queries)
    for arrival in range(2):
        valid = rng.random(size) < 0.8
        store, slots = write(store, draw(size), np.arange(size), valid, arrival)
        lists = extend(lists, queries, store, slots, valid)
        assert_lists(lists, queries, store, 5)


_FAR_FROM_THE_ORIGIN = """
import jax, numpy as np
from rad_jax import memory
from rad_jax.learners import nearest
preparation = nearest.neighbour_lists(5)
build = jax.jit(lambda *args: preparation.build((), *args))
extend = jax.jit(lambda *args: preparation.extend((), *args))
rng = np.random.default_rng(0)
draw = lambda size: (1e6 + rng.normal(size=(size, 3))).astype(np.float32)
for _ in range(15):
    queries, store = draw(33), memory.empty(400, (3,))
    lists = build(store, queries)
    for arrival in range(3):
        valid = rng.random(130) < 0.6
        store, slots = memory.write(
            store, draw(130), np.arange(130, dtype=np.int32), valid, arrival
        )
        lists = extend(lists, queries, store, slots, valid)
    anew = build(store, queries)
    np.testing.assert_array_equal(lists.slot, anew.slot)
    np.testing.assert_array_equal(lists.distance2, anew.distance2)
"""


def test_extending_is_exact_far_from_the_origin():
    """As users compile it: only then were there two centres, a rounding apart."""
    variables = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-c", _FAR_FROM_THE_ORIGIN],
        cwd=Path(__file__).parent.parent,
        env=variables,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
