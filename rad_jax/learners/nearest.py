"""Lists of nearest stored rows, shared by all seeds: the bulk of KNN's work.

A list depends on features only. Each seed then walks down it and takes the rows that
it has kept, so the distances are computed and sorted once for all seeds.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rad_jax.memory import Memory
from rad_jax.types import Array, Preparation, PyTree, Spec

_GROUP = 32
#: Candidates beyond the k wanted, so that rounding rarely leaves a query in doubt.
_SLACK = 8
#: New rows that a list of a stored query may take without a search of its own.
_ENTRANTS = 12
#: Queries to which all new rows are measured at a time, where more enter.
_TOGETHER = 128
#: Squares below it can be added up without overflow; false of NaN.
_LARGE = 2.0**125
#: Floats that one block of queries may take in temporaries.
_BLOCK_FLOATS = 1 << 23


class NeighbourLists(NamedTuple):
    """The S nearest stored rows of Q queries, nearest first.

    Ordered by (distance, slot): rows at the same distance stand in order of arrival.

    Attributes:
      slot: ``[S, Q]`` int32, the capacity where the list has ended.
      distance2: ``[S, Q]`` float32, squared distance; inf where it has ended.
    """

    slot: Array
    distance2: Array


def smallest(values: Array, k: int) -> tuple[Array, Array]:
    """The k smallest of each row, exactly, ties to the lower index.

    The k smallest of M values lie in the k groups of smallest minimum, so only those
    groups are sorted: on CPU 5-10 times faster than ``top_k`` over the row.

    Args:
      values: ``[Q, M]`` float, no NaN.
      k: how many, at most M.

    Returns:
      ``[Q, k]`` values ascending, and their ``[Q, k]`` int32 indices.
    """
    num_rows, size = values.shape
    if size <= 2 * k * _GROUP:
        top, index = jax.lax.top_k(-values, k)
        return -top, index
    # No padding: it would be compared element by element, with every group.
    whole = size // _GROUP
    inside = values[:, : whole * _GROUP].reshape(num_rows, whole, _GROUP)
    least = jnp.min(inside, axis=-1)
    if size % _GROUP:
        rest = jnp.min(values[:, whole * _GROUP :], axis=-1, keepdims=True)
        least = jnp.concatenate([least, rest], axis=1)
    _, group = jax.lax.top_k(-least, k)
    group = jnp.sort(group, axis=-1)  # so that ties still go to the lower index
    within = jnp.arange(_GROUP, dtype=jnp.int32)[None, None, :]
    index = (group[:, :, None] * _GROUP + within).reshape(num_rows, k * _GROUP)
    candidates = jnp.take_along_axis(
        values, index, axis=1, mode="fill", fill_value=jnp.inf
    )
    top, position = jax.lax.top_k(-candidates, k)
    return -top, jnp.take_along_axis(index, position, axis=1)


def flat(features: Array) -> Array:
    """``[N, *S] -> [N, D]`` float32."""
    width = math.prod(features.shape[1:])
    return jnp.asarray(features, jnp.float32).reshape(features.shape[0], width)


def distances2(queries: Array, rows: Array) -> Array:
    """Squared distances, summed column by column.

    The order of summation depends on nothing but the columns, so equal rows are at
    exactly equal distances, and differences of large numbers lose nothing.

    Args:
      queries: ``[Q, D]`` float32.
      rows: ``[M, D]`` float32.

    Returns:
      ``[Q, M]`` float32.
    """

    def add(total, columns):
        query, row = columns
        return total + jnp.square(query[:, None] - row[None, :]), None

    total = jnp.zeros((queries.shape[0], rows.shape[0]), jnp.float32)
    return jax.lax.scan(add, total, (queries.T, rows.T))[0]


def _distances2_at(queries: Array, rows: Array, index: Array) -> Array:
    """As `distances2`, of query i to the rows ``index[i]`` only: ``[Q, k]``."""

    def add(total, columns):
        query, row = columns
        return total + jnp.square(query[:, None] - row[index]), None

    return jax.lax.scan(add, jnp.zeros(index.shape, jnp.float32), (queries.T, rows.T))[
        0
    ]


def search(queries: Array, rows: Array, valid: Array, k: int) -> tuple[Array, Array]:
    """The k nearest valid rows of each query, exactly.

    Candidates come from one matrix product, ranked by a lower bound of the distance
    that allows for its rounding. Their distances are then computed directly. A query
    whose k-th distance is not below every bound left out (ties among them) is
    searched for among all rows directly.

    Args:
      queries: ``[Q, D]`` float32.
      rows: ``[M, D]`` float32.
      valid: ``[M]`` bool.
      k: at most M.

    Returns:
      ``[Q, k]`` squared distances (inf where there are fewer rows) and ``[Q, k]``
      int32 indices into rows (M there), ordered by (distance, index).
    """
    num_rows = rows.shape[0]
    taken = min(k + _SLACK, num_rows)
    bound, offset, hold = _bounds(queries, rows, valid)
    value, index = smallest(bound, taken)
    distance2, index = _measured(queries, rows, value, index)
    distance2, index = distance2[:, :k], index[:, :k]
    if taken == num_rows:
        return distance2, index
    least_left_out = value[:, -1] + offset
    doubtful = ~(distance2[:, -1] < least_left_out) & ~jnp.isinf(value[:, -1])
    doubtful = doubtful | ~hold
    return _search_directly(queries, rows, valid, doubtful, (distance2, index))


def _bounds(queries: Array, rows: Array, valid: Array) -> tuple[Array, Array, Array]:
    """Lower bounds of squared distances, but for a term that each query has.

    Returns:
      ``[Q, M]`` what differs between rows, inf for those not valid; ``[Q]`` the term
      to be added; ``[Q]`` bool, whether they hold: no number was too large.
    """
    width = rows.shape[1]
    centre = jnp.sum(jnp.where(valid[:, None], rows, 0.0), axis=0) / jnp.maximum(
        jnp.sum(valid), 1
    )
    # Else compilers join its product with a count's inverse and the difference below in
    # one place (fma) but not in another, and there are two centres, 2^-24 of it apart.
    # The barrier does not keep XLA's CPU backend from that; rounding does.
    centre = jax.lax.reduce_precision(centre, exponent_bits=8, mantissa_bits=20)
    near, far = queries - centre[None, :], rows - centre[None, :]
    rounding = min(4 * width + 14, 8 * math.sqrt(width) + 12) * 2.0**-24
    product = jnp.matmul(near, far.T, precision=jax.lax.Precision.HIGHEST)
    size2 = (1.0 - rounding) * jnp.sum(jnp.square(far), axis=-1)
    bound = jnp.where(valid[None, :], size2[None, :] - 2.0 * product, jnp.inf)
    offset = (1.0 - rounding) * jnp.sum(jnp.square(near), axis=-1)
    # Twice the product is at most the sum of both squares.
    hold = offset + jnp.max(jnp.where(valid, size2, 0.0), initial=0.0) < _LARGE
    return bound, offset, hold


def _measured(
    queries: Array, rows: Array, value: Array, index: Array
) -> tuple[Array, Array]:
    """Distances to candidates ``index [Q, c]``, in order of (distance, index).

    Where the candidate's ``value`` is inf there is none: inf and M, at the end.
    """
    ended = jnp.isinf(value)
    distance2, index = jax.lax.sort(
        (
            jnp.where(ended, jnp.inf, _distances2_at(queries, rows, index)),
            jnp.where(ended, rows.shape[0], index).astype(jnp.int32),
        ),
        dimension=1,
        num_keys=2,
    )
    return distance2, index


def _merge(old: tuple[Array, Array], new: tuple[Array, Array]) -> tuple[Array, Array]:
    """Two lists of each query as one of the length of the first.

    Args:
      old: ``[Q, S]`` distances and slots, in order of both.
      new: ``[Q, c]`` likewise.

    Returns:
      ``[Q, S]`` of both, likewise.
    """
    # Counted, since XLA takes 28 ms on CPU to sort 3,000 x (64 + 64).
    (far, slot), (near, entrant) = old, new
    before = (near[:, None, :] < far[:, :, None]) | (
        (near[:, None, :] == far[:, :, None]) & (entrant[:, None, :] < slot[:, :, None])
    )  # [Q, S, c]: the new one comes before the old one
    length, num_new = far.shape[1], near.shape[1]
    place = jnp.arange(length)[None, :] + jnp.sum(before, axis=2, dtype=jnp.int32)
    place_of_new = jnp.arange(num_new)[None, :] + jnp.sum(
        ~before, axis=1, dtype=jnp.int32
    )
    query = jnp.arange(far.shape[0])[:, None]

    def put_in(a: Array, b: Array) -> Array:
        empty = jnp.zeros_like(a)
        empty = empty.at[query, place].set(a, mode="drop", unique_indices=True)
        return empty.at[query, place_of_new].set(b, mode="drop", unique_indices=True)

    return put_in(far, near), put_in(slot, entrant)


def _enter(
    lists: tuple[Array, Array],
    queries: Array,
    rows: Array,
    valid: Array,
    slots: Array,
    capacity: int,
) -> tuple[Array, Array]:
    """Lists ``[Q, S]`` of distances and slots, with new rows taken in.

    Few new rows come nearer than the last of a list that is long against the share
    of the new rows: only those are measured. Where more come, all are.
    """
    distance2, slot = lists
    num_queries, num_rows = queries.shape[0], rows.shape[0]
    few = min(_ENTRANTS, num_rows)

    def slot_of(value, index):
        found = slots.at[index].get(mode="fill", fill_value=capacity)
        return jnp.where(jnp.isinf(value), capacity, found).astype(jnp.int32)

    def measure_all(queries: Array, lists: tuple[Array, Array]) -> tuple[Array, Array]:
        direct = jnp.where(valid[None, :], distances2(queries, rows), jnp.inf)
        near, index = smallest(direct, min(slot.shape[1], num_rows))
        return _merge(lists, (near, slot_of(near, index)))

    if few == num_rows:
        return measure_all(queries, lists)
    bound, offset, hold = _bounds(queries, rows, valid)
    enters = (bound + offset[:, None] <= distance2[:, -1:]) & valid[None, :]
    many = (jnp.sum(enters, axis=1, dtype=jnp.int32) > few) | ~hold
    value, index = smallest(jnp.where(enters, bound, jnp.inf), few)
    near, index = _measured(queries, rows, value, index)
    near = jnp.where(many[:, None], jnp.inf, near)
    merged = _merge((distance2, slot), (near, slot_of(near, index)))
    together = min(_TOGETHER, num_queries)

    def some(carry):
        many, distance2, slot = carry
        chosen, which = jax.lax.top_k(many.astype(jnp.int32), together)
        found = measure_all(queries[which], (distance2[which], slot[which]))
        place = jnp.where(chosen > 0, which, num_queries)
        return (
            many.at[which].set(False),
            distance2.at[place].set(found[0], mode="drop"),
            slot.at[place].set(found[1], mode="drop"),
        )

    _, distance2, slot = jax.lax.while_loop(
        lambda carry: jnp.any(carry[0]), some, (many, *merged)
    )
    return distance2, slot


def _search_directly(
    queries: Array,
    rows: Array,
    valid: Array,
    doubtful: Array,
    found: tuple[Array, Array],
) -> tuple[Array, Array]:
    """Replaces what was found for doubtful queries ``[Q]``, some at a time."""
    num_queries, k = found[0].shape
    size = min(8, num_queries)

    def some(carry):
        doubtful, distance2, index = carry
        chosen, which = jax.lax.top_k(doubtful.astype(jnp.int32), size)
        direct = distances2(queries[which], rows)
        value, near = smallest(jnp.where(valid[None, :], direct, jnp.inf), k)
        near = jnp.where(jnp.isinf(value), rows.shape[0], near).astype(jnp.int32)
        slot = jnp.where(chosen > 0, which, num_queries)
        return (
            doubtful.at[which].set(False),
            distance2.at[slot].set(value, mode="drop"),
            index.at[slot].set(near, mode="drop"),
        )

    _, distance2, index = jax.lax.while_loop(
        lambda carry: jnp.any(carry[0]), some, (doubtful, *found)
    )
    return distance2, index


def _block_size(shape: tuple[int, ...], k: int) -> int:
    """Queries that are searched for at a time among rows of a shape ``(M, D)``."""
    num_rows, width = shape
    return max(1, _BLOCK_FLOATS // (num_rows + k * width))


def search_bytes(spec: Spec, num_queries: int, num_candidates: int) -> int:
    """Memory that building lists takes beside them, measured on CPU.

    Features twice (about their centre, and column by column) and, of one block of
    queries, the bounds and what `smallest` makes of them.
    """
    width = math.prod(spec.feature_shape)
    k = min(num_candidates, spec.capacity)
    block = min(num_queries, _block_size((spec.capacity, width), k))
    return 8 * spec.capacity * width + 8 * block * (spec.capacity + k * width)


def _blocks(function, queries: PyTree, size: int):
    """``function`` over blocks of queries ``[Q, ...]``; temporaries stay bounded."""
    num_queries = jax.tree.leaves(queries)[0].shape[0]
    if num_queries <= size:
        return function(queries)
    num_blocks = -(-num_queries // size)
    size = -(-num_queries // num_blocks)

    def in_blocks(x: Array) -> Array:
        padded = jnp.pad(x, ((0, num_blocks * size - num_queries), (0, 0)))
        return padded.reshape(num_blocks, size, -1)

    out = jax.lax.map(function, jax.tree.map(in_blocks, queries))
    return jax.tree.map(
        lambda x: x.reshape(num_blocks * size, *x.shape[2:])[:num_queries], out
    )


@functools.cache
def neighbour_lists(num_candidates: int) -> Preparation:
    """Keeps, for a set of queries, the `num_candidates` nearest stored rows."""

    def build(basis: tuple, memory: Memory, features: Array) -> NeighbourLists:
        del basis
        rows = flat(memory.features)
        k = min(num_candidates, memory.capacity)
        distance2, slot = _blocks(
            lambda queries: search(queries, rows, memory.valid, k),
            flat(features),
            _block_size(rows.shape, k),
        )
        short = ((0, 0), (0, num_candidates - k))
        slot = jnp.pad(slot, short, constant_values=memory.capacity)
        distance2 = jnp.pad(distance2, short, constant_values=jnp.inf)
        return NeighbourLists(slot.T, distance2.T)

    def extend(
        basis: tuple,
        lists: NeighbourLists,
        features: Array,
        memory: Memory,
        slots: Array,
        valid: Array,
    ) -> NeighbourLists:
        del basis
        rows = flat(memory.features.at[slots].get(mode="fill", fill_value=0))
        stored = valid & (slots < memory.capacity)
        distance2, slot = _blocks(
            lambda at: _enter(at[:2], at[2], rows, stored, slots, memory.capacity),
            (lists.distance2.T, lists.slot.T, flat(features)),
            _block_size(rows.shape, min(num_candidates, rows.shape[0])),
        )
        return NeighbourLists(slot.T, distance2.T)

    return Preparation(
        name=f"neighbour_lists_{num_candidates}",
        start=lambda memory: (),
        store=lambda basis, memory, slots, valid: (),
        build=build,
        extend=extend,
        bytes=lambda spec, num_queries: num_queries * num_candidates * 8,
    )
