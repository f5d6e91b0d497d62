"""A simulated stream, seen by one seed: noise, selection, learning, evaluation.

`rad_jax.sweep` vmaps these functions over seeds, noise rates and schemes.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rad_jax import memory, metrics
from rad_jax.engine import Engine, classify
from rad_jax.noise import corrupt, realised_rate
from rad_jax.state import Arrival, PerSeed, Shared
from rad_jax.types import (
    LABEL_DTYPE,
    UNLABELLED,
    Array,
    Noise,
    PRNGKey,
    PyTree,
    Queries,
)

#: Where the accuracies that weigh the ensemble come from.
ALPHA_SOURCES = ("validation", "test")

#: What a batch's noise key is folded with for the expert's errors, so that seeds which
#: share everything but the noise have experts who err differently.
_EXPERT = (1 << 30) + 2

#: Figures that only a batch gives, and what they are after the clean one.
NO_ARRIVAL = {
    "prequential_accuracy": jnp.nan,
    "classifier_prequential_accuracy": jnp.nan,
    "realised_noise": jnp.nan,
}


class World(NamedTuple):
    """What a simulation knows and the algorithm does not; shared by all seeds.

    Attributes:
      stored: ``[M]`` int16, true label of every stored row, -1 where empty.
      test: rows on which predictions are measured, prepared for the learners.
      targets: their true classes.
    """

    stored: Array
    test: Queries
    targets: metrics.Targets


def open_world(
    engine: Engine,
    shared: Shared,
    arrival: Arrival,
    label: Array,
    test_features: Array,
    test_label: Array,
) -> World:
    """What is known beside the algorithm once the clean batch is stored.

    Args:
      engine: prepares the test rows.
      shared: after `engine.start`.
      arrival: of the clean batch.
      label: ``[N]`` int, its labels.
      test_features: ``[Q, *S]``.
      test_label: ``[Q]`` int.
    """
    empty = jnp.full(engine.memory_capacity, UNLABELLED, LABEL_DTYPE)
    return World(
        stored=empty.at[arrival.slots].set(label.astype(LABEL_DTYPE), mode="drop"),
        test=engine.track(shared, test_features),
        targets=metrics.targets(test_label.astype(jnp.int32), engine.num_classes),
    )


def extend_world(
    engine: Engine, world: World, shared: Shared, arrival: Arrival, true_label: Array
) -> World:
    """Follows `engine.observe`: the new rows' true labels, and the test rows' lists."""
    return world._replace(
        stored=world.stored.at[arrival.slots].set(
            true_label.astype(LABEL_DTYPE), mode="drop"
        ),
        test=engine.extend(world.test, shared, arrival),
    )


class Confusions(NamedTuple):
    """Counts ``[K, K]`` int32 on the test set: rows true class, columns predicted.

    Attributes:
      ensemble: of the prediction that a user gets.
      classifier: of C alone.
    """

    ensemble: Array
    classifier: Array


def evaluate(
    engine: Engine, shared: Shared, per_seed: PerSeed, world: World, alpha: str
) -> tuple[PerSeed, dict[str, Array], Confusions]:
    """Measures the predictions of the present models.

    The ensemble weighs models by the accuracies of the arrival before.

    Args:
      engine: the algorithm.
      shared: after the arrival.
      per_seed: of one seed, after learning.
      world: test set and true labels.
      alpha: one of `ALPHA_SOURCES`; "test" replaces the accuracies that the next
        arrival's ensemble uses by those on the test set.

    Returns:
      The state of the seed; a scalar for each of
      `rad_jax.statistics.HISTORY_METRICS` but those of `NO_ARRIVAL`; confusions.
    """
    probs = engine.probabilities(shared, per_seed, world.test)
    by_model = [jnp.argmax(p, axis=-1) for p in probs]
    alone = jnp.stack([metrics.accuracy(p, world.targets) for p in by_model])
    if alpha == "test":
        first = shared.arrival == 0
        per_seed = per_seed._replace(
            alpha=jnp.where(first, alone, per_seed.alpha), alpha_latest=alone
        )
    predicted = classify(per_seed, probs)
    memory = shared.memory
    figures = {
        "accuracy": metrics.accuracy(predicted, world.targets),
        "classifier_accuracy": alone[-1],
        "label_model_accuracy": alone[0],
        "balanced_accuracy": metrics.balanced_accuracy(predicted, world.targets),
        "classifier_balanced_accuracy": metrics.balanced_accuracy(
            by_model[-1], world.targets
        ),
        **metrics.selection_figures(
            per_seed.given,
            per_seed.label,
            per_seed.status,
            world.stored,
            memory.arrived > 0,
        ),
    }
    confusions = Confusions(
        *(
            metrics.confusion(p, world.targets.label, engine.num_classes)
            for p in (predicted, by_model[-1])
        )
    )
    return per_seed, figures, confusions


class Late(NamedTuple):
    """A batch whose rows arrived before and whose labels arrive now.

    Attributes:
      arrival: its rows, prepared against what is known now.
      true_label: ``[N]`` int.
      number: int32 scalar, its own index as an arrival; noise goes by it.
    """

    arrival: Arrival
    true_label: Array
    number: Array


def recall(
    engine: Engine,
    shared: Shared,
    arrival: Arrival,
    features: Array,
    row_id: Array,
    true_label: Array,
    index: Array,
) -> Late:
    """Finds the rows of an earlier batch, to be judged now.

    Args:
      engine: prepares them.
      shared: after `engine.observe` of the present batch.
      arrival: the present batch, of which nothing is known yet.
      features: ``[N, *S]``, of the earlier batch.
      row_id: ``[N]`` int32.
      true_label: ``[N]`` int.
      index: int32 scalar, of the earlier batch; below 1 there was none.
    """
    known = memory.vacate(shared.memory, arrival.slots)
    slots, found = memory.find(known, row_id)
    valid = found & (index >= 1)
    due = Arrival(
        queries=engine.track(shared._replace(memory=known), features),
        valid=valid,
        slots=jnp.where(valid, slots, known.capacity),
        revisited=arrival.revisited,
    )
    return Late(due, true_label, index)


def prequential(
    per_seed: PerSeed,
    probs: tuple[Array, ...],
    true_label: Array,
    valid: Array,
) -> dict[str, Array]:
    """Accuracies on a new batch, as it would be predicted before its labels are seen.

    Args:
      per_seed: before it learns from the batch: the ensemble weighs models as
        `Rad.predict` would at that moment.
      probs: ``[N, K]`` of each model, L's first.
      true_label: ``[N]`` int, -1 where there is none.
      valid: ``[N]`` bool.

    Returns:
      Scalars: prequential_accuracy of the prediction a user gets (ensemble or slim),
      classifier_prequential_accuracy of C alone.
    """
    by_classifier = jnp.argmax(probs[-1], axis=-1)
    return {
        "prequential_accuracy": metrics.known_accuracy(
            classify(per_seed, probs), true_label, valid
        ),
        "classifier_prequential_accuracy": metrics.known_accuracy(
            by_classifier, true_label, valid
        ),
    }


def arrive(
    engine: Engine,
    noise: Noise,
    shared: Shared,
    per_seed: PerSeed,
    arrival: Arrival,
    world: World,
    true_label: Array,
    noise_params: PyTree,
    noise_key: PRNGKey,
    *,
    alpha: str,
    late: Late | None = None,
) -> tuple[PerSeed, dict[str, Array], Confusions]:
    """One arrival of one seed: corrupt, judge, ask, learn, evaluate.

    Args:
      engine: the algorithm.
      noise: how labels go wrong.
      shared: after `engine.observe`.
      per_seed: of this seed.
      arrival: the batch that was observed.
      world: extended by it.
      true_label: ``[N]`` int.
      noise_params: of `noise`.
      noise_key: of this seed, for the noise and an expert's errors; the batch's is
        folded in from the arrival's index.
      alpha: see `evaluate`.
      late: where labels are late, the batch that is labelled now; the rows of
        `arrival` are then only predicted.

    Returns:
      The state of the seed; a scalar for each of
      `rad_jax.statistics.HISTORY_METRICS`; confusions.
    """
    before = {}
    index, judging = shared.arrival, shared
    if late is not None:
        per_seed = engine.admit_seed(per_seed, arrival)
        known = memory.vacate(shared.memory, arrival.slots)
        judging = shared._replace(memory=known)
        probs = engine.probabilities(judging, per_seed, arrival.queries)
        before = prequential(per_seed, probs, true_label, arrival.valid)
        arrival, true_label, index = late
    batch_key = jax.random.fold_in(noise_key, index)
    given = corrupt(
        noise,
        noise_params,
        true_label,
        arrival.valid,
        num_classes=engine.num_classes,
        key=batch_key,
        features=arrival.queries.features,
        arrival=index,
    )
    per_seed, info = engine.judge_seed(
        judging, per_seed, arrival, given, true_label, world.stored
    )
    if late is None:
        probs = (info.label_probs, info.class_probs)[-len(engine.learners) :]
        before = prequential(per_seed, probs, true_label, arrival.valid)
    expert_key = jax.random.fold_in(batch_key, _EXPERT)
    per_seed = engine.ask_seed(shared, per_seed, arrival, info, true_label, expert_key)
    per_seed = engine.learn_seed(shared, per_seed)
    per_seed, figures, confusions = evaluate(engine, shared, per_seed, world, alpha)
    realised = realised_rate(given, true_label, arrival.valid)
    if late is not None:
        realised = jnp.where(index >= 1, realised, jnp.nan)
    figures |= before | {"realised_noise": realised}
    return per_seed, figures, confusions
