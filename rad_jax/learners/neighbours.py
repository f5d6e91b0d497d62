"""K nearest neighbours, exact, over the rows that a seed has kept."""

import functools
import math
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rad_jax import checks
from rad_jax.learners import exhaustive, nearest
from rad_jax.types import LABEL_DTYPE, UNLABELLED, Array, Examples, Learner, Queries


class KNNModel(NamedTuple):
    """What a KNN remembers of one seed.

    Attributes:
      label: ``[M]`` int16, the label with which the row in a slot votes, -1 for rows
        that do not vote.
      arrival: int32 scalar, when it was fitted. Rows that arrived later do not vote:
        they may stand in the slots of rows since forgotten.
    """

    label: Array
    arrival: Array


class _Found(NamedTuple):
    """The k nearest voters of each query, so far ``count`` of them."""

    label: Array  # [Q, k] int, -1 for none yet
    distance2: Array  # [Q, k] float32
    count: Array  # type: ignore[assignment]  # [Q] int32


def _walk(model: KNNModel, lists: nearest.NeighbourLists, k: int) -> _Found:
    """Goes down the lists until every query has k voters or its list has ended."""
    length, num_queries = lists.slot.shape
    found = _Found(
        label=jnp.full((num_queries, k), UNLABELLED, LABEL_DTYPE),
        distance2=jnp.full((num_queries, k), jnp.inf, jnp.float32),
        count=jnp.zeros(num_queries, jnp.int32),
    )

    def unfinished(carry):
        step, found = carry
        return (step < length) & jnp.any(found.count < k)

    def take_next(carry):
        step, found = carry
        slot, distance2 = lists.slot[step], lists.distance2[step]
        label = model.label.at[slot].get(mode="fill", fill_value=UNLABELLED)
        votes = label != UNLABELLED
        here = (jnp.arange(k)[None, :] == found.count[:, None]) & votes[:, None]
        return step + 1, _Found(
            label=jnp.where(here, label[:, None], found.label),
            distance2=jnp.where(here, distance2[:, None], found.distance2),
            count=found.count + votes,
        )

    return jax.lax.while_loop(unfinished, take_next, (0, found))[1]


def _complete(
    model: KNNModel, memory, queries: Array, lists, found: _Found, k: int
) -> _Found:
    """Searches all of memory for queries whose list ended before k voters came."""
    votes = model.label != UNLABELLED
    cut_off = jnp.isfinite(lists.distance2[-1])  # the list is full: more rows exist
    needed = jnp.minimum(k, jnp.sum(votes, dtype=jnp.int32))
    missing = cut_off & (found.count < needed)
    rows = nearest.flat(memory.features)
    reach = min(k, rows.shape[0])
    label, distance2 = exhaustive.searcher(reach)(missing, model.label, queries, rows)
    short = ((0, 0), (0, k - reach))
    label = jnp.pad(label, short, constant_values=UNLABELLED)
    distance2 = jnp.pad(distance2, short, constant_values=jnp.inf)
    return found._replace(
        label=jnp.where(missing[:, None], label, found.label),
        distance2=jnp.where(missing[:, None], distance2, found.distance2),
    )


def _vote(found: _Found, weighting: str, num_classes: int) -> Array:
    voter = found.label != UNLABELLED
    if weighting == "distance":
        at_query = voter & (found.distance2 == 0.0)
        inverse = jax.lax.rsqrt(jnp.where(at_query, 1.0, found.distance2))
        weight = jnp.where(jnp.any(at_query, axis=1)[:, None], at_query, inverse)
    else:
        weight = jnp.ones_like(found.distance2)
    weight = jnp.where(voter, weight, 0.0)
    classes = jnp.arange(num_classes, dtype=found.label.dtype)
    is_class = found.label[:, :, None] == classes[None, None, :]
    votes = jnp.sum(jnp.where(is_class, weight[:, :, None], 0.0), axis=1)
    total = jnp.sum(votes, axis=-1, keepdims=True)
    uniform = jnp.full_like(votes, 1.0 / num_classes)
    return jnp.where(total > 0, votes / jnp.where(total > 0, total, 1.0), uniform)


@functools.cache
def _functions(k: int, weighting: str, num_candidates: int):
    preparation = nearest.neighbour_lists(num_candidates)

    def init(spec, params, key):
        del params, key
        label = jnp.full(spec.capacity, UNLABELLED, LABEL_DTYPE)
        return KNNModel(label, jnp.zeros((), jnp.int32))

    def fit(spec, params, model, examples: Examples, *, init_key, order_key):
        del spec, params, init_key, order_key
        voting = examples.valid & (examples.weight > 0)
        label = jnp.where(voting, examples.label, UNLABELLED).astype(LABEL_DTYPE)
        fitted = KNNModel(label, jnp.asarray(examples.arrival, jnp.int32))
        some = jnp.any(voting)
        return jax.tree.map(lambda new, old: jnp.where(some, new, old), fitted, model)

    def predict_proba(spec, params, model, memory, queries: Queries):
        del params
        features = nearest.flat(queries.features)
        lists = queries.prepared[preparation.name]
        chex.assert_shape(lists.slot, (num_candidates, features.shape[0]))
        present = memory.valid & (memory.arrived <= model.arrival)
        model = model._replace(label=jnp.where(present, model.label, UNLABELLED))
        found = _walk(model, lists, k)
        found = _complete(model, memory, features, lists, found, k)
        return _vote(found, weighting, spec.num_classes)

    def nbytes(spec, num_queries):
        voters = num_queries * (k * 12 + spec.num_classes * 4)
        return spec.capacity * (2 + 4) + voters

    def workspace(spec, num_queries):
        # The exhaustive search goes through the rows column by column.
        columns = 4 * spec.capacity * math.prod(spec.feature_shape)
        return nearest.search_bytes(spec, num_queries, num_candidates) + columns

    return init, fit, predict_proba, preparation, nbytes, workspace


def knn(
    k: int = 5, *, weighting: str = "uniform", num_candidates: int | None = None
) -> Learner:
    """K nearest neighbours by Euclidean distance.

    Exact: lists of the nearest stored rows are shared by all seeds; a query whose
    list holds fewer than k rows that this seed has kept is searched for in all of
    memory. Rows at the same distance are taken in order of arrival. With fewer than
    k kept rows all of them vote; with none, every class is equally probable. Equal
    votes go to the lowest class.

    Args:
      k: neighbours that vote, at least 1.
      weighting: "uniform", or "distance" (1/distance; neighbours at distance 0, if
        any, outvote all others), as in scikit-learn.
      num_candidates: length of the shared lists, at least k; by default 64, or 4 k if
        that is more. Longer lists take more memory (8 bytes a query and entry) and
        fall back to the search less often.

    Returns:
      The learner.

    Raises:
      TypeError: for a number that is not whole.
      ValueError: for k < 1, an unknown weighting, or num_candidates < k.
    """
    k = checks.whole("k", k, 1)
    if weighting not in ("uniform", "distance"):
        raise ValueError(
            f"weighting must be 'uniform' or 'distance', got {weighting!r}"
        )
    if num_candidates is None:
        num_candidates = max(64, 4 * k)
    if checks.whole("num_candidates", num_candidates) < k:
        raise ValueError(f"num_candidates must be at least k={k}, got {num_candidates}")
    init, fit, predict_proba, preparation, nbytes, workspace = _functions(
        k, weighting, int(num_candidates)
    )
    return Learner(
        name=f"knn(k={k})",
        init=init,
        fit=fit,
        predict_proba=predict_proba,
        bytes=nbytes,
        preparation=preparation,
        workspace=workspace,
    )
