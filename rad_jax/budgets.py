"""What an expert may be asked: budgets over a stream, and minima per class.

Pure functions that `rad_jax.selection` puts into schemes.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rad_jax import uncertainty
from rad_jax.types import UNLABELLED, Array, Evidence, PRNGKey, Selection

#: More rows than any stream has: no limit.
NO_LIMIT = 2**31 - 1

#: Scores are compared in steps of 2^-16: votes that are equally split differ by float
#: rounding, which must not decide.
SCORE_GRAINS = 2.0**16


class BudgetState(NamedTuple):
    """What a limited scheme remembers.

    Attributes:
      left: int32 scalar, rows that the expert may still be asked about in all.
      budget: int32 scalar, the budget of the batch before.
      entropy: float32 scalar, mean predictive entropy of the batch before; negative
        if there was none.
    """

    left: Array
    budget: Array
    entropy: Array


def start(query_budget: Array, total_budget: Array) -> BudgetState:
    """The state before the first batch."""
    return BudgetState(
        jnp.asarray(total_budget, jnp.int32),
        jnp.asarray(query_budget, jnp.int32),
        jnp.full((), -1.0, jnp.float32),
    )


def mean_entropy(probs: Array, valid: Array) -> Array:
    """Mean predictive entropy of the valid rows, in nats; 0 without any."""
    each = uncertainty.entropy(probs, jnp.full(valid.shape, UNLABELLED))
    count = jnp.maximum(jnp.sum(valid), 1)
    return jnp.sum(jnp.where(valid, each, 0.0)) / count


def adapt(budget: Array, before: Array, now: Array, cap: Array) -> Array:
    """The dynamic budget: more questions as predictions grow less sure.

    ``clip(ceil(n (1 - (e_old - e_new) / max(e_new, 1e-6))), 1, cap)``; a number that
    rounding has put just above a whole one counts as that.

    Args:
      budget: int scalar n, of the batch before.
      before: mean predictive entropy e_old of that batch.
      now: that of this batch, e_new.
      cap: int scalar, at least 1.

    Returns:
      int32 scalar.

    References:
      QActor, by RAD's authors.
    """
    wanted = budget * (1.0 - (before - now) / jnp.maximum(now, 1e-6))
    wanted = jnp.clip(wanted, 1.0, 2.0**30)  # what int32 holds
    nearest = jnp.round(wanted)
    close = jnp.abs(wanted - nearest) <= 1e-5 * nearest
    whole = jnp.where(close, nearest, jnp.ceil(wanted)).astype(jnp.int32)
    return jnp.clip(whole, 1, jnp.maximum(jnp.asarray(cap, jnp.int32), 1))


def next_state(
    state: BudgetState, probs: Array, valid: Array, cap: Array, *, dynamic: bool
) -> BudgetState:
    """The budget of this batch, before anything is asked.

    Args:
      state: of the batch before.
      probs: ``[N, K]``, whose entropy counts.
      valid: ``[N]`` bool; a batch without valid rows changes nothing.
      cap: int scalar, the most that a dynamic budget may be.
      dynamic: whether the budget follows the entropy.
    """
    if not dynamic:
        return state
    now = mean_entropy(probs, valid)
    changed = adapt(state.budget, state.entropy, now, cap)
    first = jnp.minimum(state.budget, jnp.asarray(cap, jnp.int32))
    budget = jnp.where(state.entropy < 0, first, changed)
    some = jnp.any(valid)
    return state._replace(
        budget=jnp.where(some, budget, state.budget),
        entropy=jnp.where(some, now, state.entropy),
    )


def fill_classes(
    chosen: Selection, evidence: Evidence, minimum: Array, key: PRNGKey
) -> Selection:
    """Keeps at least so many rows of each given class, where a batch has them.

    A rare class could otherwise be filtered away for good. Rows that were kept anyway
    count; the others are those to whose given label the models give most probability
    (the mean of both). Rows that go to the expert neither count nor are kept; where
    rows of several batches are selected again, nobody is asked.

    Args:
      chosen: what a scheme decided.
      evidence: what it saw.
      minimum: int scalar, rows per given class and batch.
      key: breaks ties.

    Returns:
      The selection with more rows kept.
    """
    label, valid = evidence.label, evidence.valid
    chex.assert_rank((label, valid, chosen.keep, chosen.query), 1)
    batch = jnp.zeros_like(label) if evidence.batch is None else evidence.batch
    query = chosen.query & (evidence.batch is None)
    free = valid & (label != UNLABELLED) & ~query
    probs = (evidence.label_probs + evidence.class_probs) / 2
    own = jnp.maximum(label, 0).astype(jnp.int32)
    score = jnp.take_along_axis(probs, own[:, None], axis=1)[:, 0]
    size, num_classes = probs.shape
    tie = jax.random.permutation(key, size)
    group = jnp.where(free, own, num_classes)  # all others behind
    grain = jnp.round(score * SCORE_GRAINS)
    order = jnp.lexsort((tie, -grain, ~chosen.keep, group, batch))
    place = jnp.arange(size, dtype=jnp.int32)
    pair = jnp.stack([group[order], batch[order]])
    another = jnp.any(pair[:, 1:] != pair[:, :-1], axis=0)
    begins = jnp.where(jnp.concatenate([jnp.ones(1, bool), another]), place, 0)
    rank = jnp.zeros(size, jnp.int32).at[order].set(place - jax.lax.cummax(begins))
    saved = free & (rank < minimum) & ~chosen.keep
    return chosen._replace(
        keep=chosen.keep | saved,
        label=jnp.where(saved, label, chosen.label),
        query=query,
    )


def check_rows(name: str, value, least: int = 0) -> None:
    """Raises ValueError unless concrete values are whole numbers of rows."""
    if isinstance(value, jax.core.Tracer):
        return
    rows = np.asarray(value, np.float64)
    whole = (rows >= least) & (rows < 2**31) & (rows == np.floor(rows))
    if not np.all(whole):
        raise ValueError(
            f"{name} must be a whole number of rows in {least}..2^31-1, got {value}"
        )
