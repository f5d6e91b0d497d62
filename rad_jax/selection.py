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

import chex
import jax
import jax.numpy as jnp

from rad_jax import budgets, uncertainty
from rad_jax.switching import switch as switch
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
    grain = jnp.round(score * budgets.SCORE_GRAINS)
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


#: What a scheme's key is folded with where it breaks ties for another time.
_FILL, _NEW = 1 << 20, (1 << 20) + 1

#: Above every score of `rad_jax.uncertainty`.
_AHEAD = 1e3


def of_new_class(evidence: Evidence, rows: Array) -> Array:
    """Doubted rows whose given class has been trained on fewer than `rows` times.

    Args:
      evidence: with `class_counts`.
      rows: int scalar.

    Returns:
      ``[N]`` bool; none where nothing is counted (rows that are selected again).
    """
    if evidence.class_counts is None:
        return _nothing(evidence)
    own = evidence.class_counts[jnp.maximum(evidence.label, 0)]
    return doubted(evidence) & (evidence.label != UNLABELLED) & (own < rows)


@functools.cache
def _active_limited(
    score: uncertainty.Score,
    source: str,
    over_stream: bool,
    dynamic: bool,
    new_classes: bool,
):
    """The pair of functions; `over_stream` with a state and all parameters."""

    def init(params):
        if not over_stream:
            return ()
        return budgets.start(params["query_budget"], params["total_budget"])

    def apply(params, state, evidence, *, key):
        by_label_model, by_classifier = agreement(evidence)
        keep = by_label_model | by_classifier
        if source == "label_model":
            probs = evidence.label_probs
        elif source == "classifier":
            probs = evidence.class_probs
        else:
            probs = (evidence.label_probs + evidence.class_probs) / 2
        budget = params["query_budget"]
        if over_stream:
            state = budgets.next_state(
                state, probs, evidence.valid, params["cap"], dynamic=dynamic
            )
            budget = jnp.minimum(state.budget, state.left)
        scores = score(probs, evidence.label)
        if new_classes:
            new = of_new_class(evidence, params["new_class_rows"])
            half = (budget + 1) // 2
            first = most_uncertain(new, scores, half, jax.random.fold_in(key, _NEW))
            scores = jnp.where(first, _AHEAD, scores)
        query = most_uncertain(doubted(evidence), scores, budget, key)
        chosen = Selection(keep, evidence.label, query)
        if over_stream:
            asked = jnp.sum(query, dtype=jnp.int32)
            state = state._replace(left=state.left - asked)
            chosen = budgets.fill_classes(
                chosen,
                evidence,
                params["min_per_class"],
                jax.random.fold_in(key, _FILL),
            )
        return chosen, state

    return init, apply


def active_limited(
    query_budget: int,
    *,
    score: uncertainty.Score = uncertainty.margin,
    source: str = "mean",
    total_budget: int | None = None,
    min_per_class: int = 0,
    dynamic: bool = False,
    cap: int | None = None,
    new_class_rows: int = 0,
) -> SelectionScheme:
    """Ask the expert about the most uncertain of the doubted rows, drop the others.

    All numbers are array parameters under their names and may be vmapped;
    `total_budget`, `min_per_class` and `cap` are among them if any of the options
    after `source` is given.

    Args:
      query_budget: rows per batch, at least 0; with `dynamic`, of the first batch.
      score: one of `rad_jax.uncertainty`, or any function of the same form.
      source: probabilities for the score: one of `SOURCES`.
      total_budget: rows in all over the stream; None for no limit.
      min_per_class: keep at least so many rows of each given class in a batch; see
        `keep_per_class`.
      dynamic: let the budget follow the mean predictive entropy (of `source`) from
        one batch to the next; see `rad_jax.budgets.adapt`.
      cap: with `dynamic`, the most per batch, at least 1; None for no limit.
      new_class_rows: how classes that the clean batch lacked are admitted: up to half
        of a batch's budget goes first to doubted rows of given classes of which fewer
        than so many rows are trained on; an array parameter if it is not 0.

    Returns:
      The scheme.

    Raises:
      ValueError: for a number that is no whole number of rows, a dynamic budget that
        begins at 0, a cap without `dynamic`, or an unknown source.
    """
    budgets.check_rows("query_budget", query_budget, least=int(dynamic))
    if source not in SOURCES:
        raise ValueError(f"source must be one of {SOURCES}, got {source!r}")
    if cap is not None and not dynamic:
        raise ValueError(f"cap needs dynamic=True, got cap={cap} without it")
    plain_minimum = isinstance(min_per_class, int) and min_per_class == 0
    over_stream = total_budget is not None or dynamic or not plain_minimum
    params = {"query_budget": query_budget}
    if over_stream:
        limits = {
            "total_budget": budgets.NO_LIMIT if total_budget is None else total_budget,
            "min_per_class": min_per_class,
            "cap": budgets.NO_LIMIT if cap is None else cap,
        }
        for name, value in limits.items():
            budgets.check_rows(name, value, least=int(name == "cap"))
        params |= limits
    new_classes = not (isinstance(new_class_rows, int) and new_class_rows == 0)
    if new_classes:
        budgets.check_rows("new_class_rows", new_class_rows)
        params["new_class_rows"] = new_class_rows
    init, apply = _active_limited(
        score, source, over_stream, bool(dynamic), new_classes
    )
    return SelectionScheme(init, apply, params, uses_class_counts=new_classes)


@functools.cache
def _keep_per_class(scheme: SelectionScheme):
    def init(params):
        return scheme.init(params["scheme"])

    def apply(params, state, evidence, *, key):
        chosen, state = scheme.apply(params["scheme"], state, evidence, key=key)
        key = jax.random.fold_in(key, _FILL)
        minimum = params["min_per_class"]
        return budgets.fill_classes(chosen, evidence, minimum, key), state

    return init, apply


def keep_per_class(scheme: SelectionScheme, minimum: int) -> SelectionScheme:
    """Any scheme, but with at least so many rows of each given class in a batch kept.

    A rare class could otherwise be filtered away for good. Rows are added in the order
    of the probability that the models (their mean) give to the given label.

    Args:
      scheme: decides first.
      minimum: rows per given class and batch, where the batch has as many; an array
        parameter "min_per_class", the scheme's own being under "scheme".

    Returns:
      The scheme.

    Raises:
      ValueError: for a minimum that is no whole number of rows.
    """
    budgets.check_rows("minimum", minimum)
    init, apply = _keep_per_class(scheme._replace(params=None))
    params = {"min_per_class": minimum, "scheme": scheme.params}
    return scheme._replace(init=init, apply=apply, params=params)
