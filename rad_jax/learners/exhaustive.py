"""K nearest voters by a search of all rows, for queries whose list does not suffice.

Which queries those are, and which rows vote, differs between seeds; distances do not.
Under `vmap` a rule of its own therefore goes through the union of all seeds' queries,
computes each one's distances once, and lets every seed pick its voters.
"""

import functools

import jax
import jax.numpy as jnp

from rad_jax.learners.nearest import distances2, smallest
from rad_jax.types import UNLABELLED, Array

#: Queries whose distances are computed at a time, and seeds that pick among them.
_TOGETHER = 8


def _search(
    missing: Array, label: Array, queries: Array, rows: Array, k: int
) -> tuple[Array, Array]:
    """The search for R seeds at once.

    Args:
      missing: ``[R, Q]`` bool, queries to be searched for.
      label: ``[R, M]`` int, -1 for rows that do not vote.
      queries: ``[Q, D]`` float32.
      rows: ``[M, D]`` float32.
      k: voters wanted, at most M.

    Returns:
      ``[R, Q, k]`` labels (-1 where there are fewer voters) and squared distances
      (inf there), ordered by (distance, index), where a query is missing; elsewhere
      they mean nothing.
    """
    num_seeds, num_queries = missing.shape
    size, together = min(_TOGETHER, num_queries), min(_TOGETHER, num_seeds)

    def unfinished(carry):
        return jnp.any(carry[0])

    def some(carry):
        wanted, out_label, out_distance2 = carry
        chosen, which = jax.lax.top_k(wanted.astype(jnp.int32), size)
        distance2 = distances2(queries[which], rows)
        slot = jnp.where(chosen > 0, which, num_queries)
        # Seldom do all seeds miss a query: the others would search for nothing.
        missed = jnp.any(missing[:, which] & (chosen > 0)[None, :], axis=1)
        seeds = jnp.argsort(~missed)
        seeds = jnp.pad(seeds, (0, -num_seeds % together), constant_values=num_seeds)

        def pick(label: Array) -> tuple[Array, Array]:
            votes = label != UNLABELLED
            value, index = smallest(jnp.where(votes[None, :], distance2, jnp.inf), k)
            return jnp.where(jnp.isinf(value), UNLABELLED, label[index]), value

        def pick_some(i, out):
            these = jax.lax.dynamic_slice(seeds, (i * together,), (together,))
            near_label, near_distance2 = jax.vmap(pick)(label[these])
            at = these[:, None], slot[None, :]
            return (
                out[0].at[at].set(near_label, mode="drop"),
                out[1].at[at].set(near_distance2, mode="drop"),
            )

        turns = -(-jnp.sum(missed, dtype=jnp.int32) // together)
        found = jax.lax.fori_loop(0, turns, pick_some, (out_label, out_distance2))
        return wanted.at[which].set(False), *found

    shape = (num_seeds, num_queries, k)
    start = (
        jnp.any(missing, axis=0),
        jnp.full(shape, UNLABELLED, label.dtype),
        jnp.full(shape, jnp.inf, jnp.float32),
    )
    _, found_label, found_distance2 = jax.lax.while_loop(unfinished, some, start)
    return found_label, found_distance2


@functools.cache
def searcher(k: int):
    """The search for one seed, with a rule of its own for `vmap`.

    Args:
      k: voters wanted.

    Returns:
      ``(missing [Q], label [M], queries [Q, D], rows [M, D]) -> (label [Q, k],
      distance2 [Q, k])`` as in `_search`.
    """

    @jax.custom_batching.custom_vmap
    def search(missing, label, queries, rows):
        found = _search(missing[None], label[None], queries, rows, k)
        return jax.tree.map(lambda x: x[0], found)

    @search.def_vmap
    def over_seeds(axis_size, batched, missing, label, queries, rows):
        def spread(x, is_batched):
            return x if is_batched else jnp.broadcast_to(x, (axis_size, *x.shape))

        if batched[2] or batched[3]:  # features differ: nothing is shared
            one = functools.partial(_search, k=k)
            found = jax.lax.map(
                lambda args: one(args[0][None], args[1][None], *args[2:]),
                tuple(map(spread, (missing, label, queries, rows), batched)),
            )
            return jax.tree.map(lambda x: x[:, 0], found), (True, True)
        found = _search(
            spread(missing, batched[0]), spread(label, batched[1]), queries, rows, k
        )
        return found, (True, True)

    return search
