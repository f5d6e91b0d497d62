"""Selection schemes: probabilities and given labels in, masks over the rows out.

A scheme is a value, `rad_jax.types.SelectionScheme`; whether one model or two stand
behind the probabilities is the caller's affair, so RAD Slim is `basic` with one model
and RAD Slim Limited is `active_limited` with one.

| scheme | kept for training | to the expert |
|---|---|---|
| `no_selection` | all labelled rows as given | none |
| `oracle_selection` | rows whose given label is true (a reference) | none |
| `basic` | rows where L predicts the given label | none |
| `voting` | the same, or else C predicts it | none |
| `active` | voting's, and the doubted rows once answered | all doubted rows |
| `active_limited` | voting's, and the queried rows once answered | the most uncertain |

A row is doubted where neither model predicts its given label; a row without label is
always doubted. Ties of argmax go to the lowest class.
"""

import functools
from collections.abc import Sequence

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rad_jax import uncertainty
from rad_jax.types import (
    UNLABELLED,
    Array,
    Evidence,
    PRNGKey,
    PyTree,
    Selection,
    SelectionScheme,
)

#: Where `active_limited` may take the probabilities for its score from.
SOURCES = ("label_model", "classifier", "mean")

#: Scores are compared in steps of 2^-16: votes that are equally split differ by float
#: rounding, which must not decide who is asked.
_SCORE_GRAINS = 2.0**16


def agreement(evidence: Evidence) -> tuple[Array, Array]:
    """Where L, and where C, predicts the given label: two ``[N]`` bool masks."""
    chex.assert_rank((evidence.label_probs, evidence.class_probs), 2)
    chex.assert_equal_shape((evidence.label_probs, evidence.class_probs))
    chex.assert_equal_shape((evidence.label, evidence.valid))

    def agrees(probs: Array) -> Array:
        return evidence.valid & (jnp.argmax(probs, axis=-1) == evidence.label)

    return agrees(evidence.label_probs), agrees(evidence.class_probs)


def doubted(evidence: Evidence) -> Array:
    """``S_i``: valid rows whose given label neither model predicts, ``[N]`` bool."""
    by_label_model, by_classifier = agreement(evidence)
    return evidence.valid & ~(by_label_model | by_classifier)


def most_uncertain(mask: Array, score: Array, budget: Array, key: PRNGKey) -> Array:
    """The `budget` rows of highest score within a mask.

    Args:
      mask: ``[N]`` bool, rows that may be chosen.
      score: ``[N]`` float; differences below 2^-16 are rounding, hence ties.
      budget: int scalar; at most this many rows. All of them if there are fewer.
      key: breaks ties by a random permutation, so that row order does not decide.

    Returns:
      ``[N]`` bool.
    """
    chex.assert_rank((mask, score), 1)
    size = mask.shape[0]
    tie = jax.random.permutation(key, size)
    grain = jnp.round(score * _SCORE_GRAINS)
    order = jnp.lexsort((tie, jnp.where(mask, -grain, jnp.inf)))
    rank = jnp.zeros(size, jnp.int32).at[order].set(jnp.arange(size, dtype=jnp.int32))
    return mask & (rank < budget)


def _stateless(params: PyTree) -> PyTree:
    del params
    return ()


def _nothing(evidence: Evidence) -> Array:
    return jnp.zeros_like(evidence.valid)


def _no_selection(params, state, evidence, *, key):
    del params, key
    keep = evidence.valid & (evidence.label != UNLABELLED)
    return Selection(keep, evidence.label, _nothing(evidence)), state


def no_selection() -> SelectionScheme:
    """Train on every labelled row as given (No-Sel, the lower baseline)."""
    return SelectionScheme(_stateless, _no_selection, ())


def _oracle_selection(params, state, evidence, *, key):
    del params, key
    labelled = evidence.valid & (evidence.label != UNLABELLED)
    keep = labelled & (evidence.label == evidence.true_label)
    return Selection(keep, evidence.label, _nothing(evidence)), state


def oracle_selection() -> SelectionScheme:
    """Train on exactly the rows whose label is right (Opt-Sel, the upper reference).

    It sees true labels and can be run in a simulation only.
    """
    return SelectionScheme(_stateless, _oracle_selection, (), uses_true_labels=True)


def _basic(params, state, evidence, *, key):
    del params, key
    by_label_model, _ = agreement(evidence)
    return Selection(by_label_model, evidence.label, _nothing(evidence)), state


def basic() -> SelectionScheme:
    """Train on rows whose given label is what the label model predicts."""
    return SelectionScheme(_stateless, _basic, ())


def _voting(params, state, evidence, *, key):
    del params, key
    by_label_model, by_classifier = agreement(evidence)
    keep = by_label_model | by_classifier
    return Selection(keep, evidence.label, _nothing(evidence)), state


def voting() -> SelectionScheme:
    """As `basic`, but the classifier may save rows that the label model doubts."""
    return SelectionScheme(_stateless, _voting, ())


def _active(params, state, evidence, *, key):
    del params, key
    by_label_model, by_classifier = agreement(evidence)
    keep = by_label_model | by_classifier
    return Selection(keep, evidence.label, doubted(evidence)), state


def active() -> SelectionScheme:
    """Ask the expert about every row that both models doubt; train on all rows."""
    return SelectionScheme(_stateless, _active, ())


@functools.cache
def _active_limited(score: uncertainty.Score, source: str):
    def apply(params, state, evidence, *, key):
        by_label_model, by_classifier = agreement(evidence)
        keep = by_label_model | by_classifier
        if source == "label_model":
            probs = evidence.label_probs
        elif source == "classifier":
            probs = evidence.class_probs
        else:
            probs = (evidence.label_probs + evidence.class_probs) / 2
        query = most_uncertain(
            doubted(evidence),
            score(probs, evidence.label),
            params["query_budget"],
            key,
        )
        return Selection(keep, evidence.label, query), state

    return apply


def active_limited(
    query_budget: int,
    *,
    score: uncertainty.Score = uncertainty.margin,
    source: str = "mean",
) -> SelectionScheme:
    """Ask the expert about the most uncertain of the doubted rows, drop the others.

    Args:
      query_budget: rows per batch, at least 0; an array parameter, may be vmapped.
      score: one of `rad_jax.uncertainty`, or any function of the same form.
      source: probabilities for the score: one of `SOURCES`.

    Returns:
      The scheme.

    Raises:
      ValueError: for a negative budget or an unknown source.
    """
    if not isinstance(query_budget, jax.core.Tracer):
        budgets = np.asarray(query_budget, np.float64)
        whole = (budgets >= 0) & (budgets < 2**31) & (budgets == np.floor(budgets))
        if not np.all(whole):
            raise ValueError(
                "query_budget must be a whole number of rows in 0..2^31-1, got "
                f"{query_budget}"
            )
    if source not in SOURCES:
        raise ValueError(f"source must be one of {SOURCES}, got {source!r}")
    return SelectionScheme(
        _stateless, _active_limited(score, source), {"query_budget": query_budget}
    )


@functools.cache
def _switch(members: tuple[SelectionScheme, ...]):
    def init(params):
        return tuple(m.init(p) for m, p in zip(members, params["members"], strict=True))

    def apply(params, state, evidence, *, key):
        blind = evidence._replace(
            true_label=jnp.full_like(evidence.true_label, UNLABELLED)
        )

        def branch(i):
            def run(states):
                sees = evidence if members[i].uses_true_labels else blind
                chosen, new = members[i].apply(
                    params["members"][i], states[i], sees, key=key
                )
                return chosen, (*states[:i], new, *states[i + 1 :])

            return run

        return jax.lax.switch(
            params["index"], [branch(i) for i in range(len(members))], state
        )

    return init, apply


def switch(schemes: Sequence[SelectionScheme]) -> SelectionScheme:
    """One scheme out of several, chosen by the array parameter ``params["index"]``.

    With the index as a vmapped axis, one compiled program runs every scheme; masks
    cost nothing beside training. True labels reach only members that declare them.

    Args:
      schemes: the members; parameters under ``params["members"]``, in this order.

    Returns:
      A scheme whose ``params`` are ``{"index": 0, "members": (...)}``.

    Raises:
      ValueError: without members.
    """
    if not schemes:
        raise ValueError("schemes must name at least one scheme, got none")
    init, apply = _switch(tuple(s._replace(params=None) for s in schemes))
    return SelectionScheme(
        init,
        apply,
        {"index": 0, "members": tuple(s.params for s in schemes)},
        uses_true_labels=any(s.uses_true_labels for s in schemes),
    )
