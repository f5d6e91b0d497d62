"""RAD in parts: what follows from features alone, and what follows from labels.

`start`, `observe`, `track` and `extend` yield `Shared`, once for all seeds; the others
yield the `PerSeed` of one seed. `rad_jax.rad` puts both together for users, and
`rad_jax.sweep` vmaps the second kind.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rad_jax import ensemble, memory
from rad_jax.arrivals import shared_parts
from rad_jax.models import model_parts, trained_on
from rad_jax.state import Arrival, Info, Params, PerSeed, Revisited, Shared
from rad_jax.types import (
    LABEL_DTYPE,
    UNLABELLED,
    Array,
    Evidence,
    Expert,
    Learner,
    PRNGKey,
    Queries,
    RowStatus,
    SelectionScheme,
    as_arrays,
)

# What an arrival's key is folded with; 0 and 1 are the models' (`rad_jax.models`).
_TIES, _EXPERT, _CLEANING = 2, 3, 4


class Engine(NamedTuple):
    """The parts of the algorithm.

    Seed-free:
      start: ``(keys, features [N, *S], valid [N], row_id [N], label [N]) -> (shared,
        arrival)``; the labels are the clean ones, for the validation split.
      observe: ``(shared, features, valid, row_id) -> (shared, arrival)``.
      track: ``(shared, features [Q, *S]) -> queries``, to be classified again and
        again as rows arrive.
      extend: ``(queries, shared, arrival) -> queries`` after `observe`.

    Of one seed:
      init_seed: ``(shared, arrival, label [N], init_key, params) -> per_seed``.
      judge_seed: ``(shared, per_seed, arrival, label [N], true_label, stored_true
        [M]) -> (per_seed, info)``: selects the new rows, and those to be selected
        again. True labels are looked at only by a scheme that declares it;
        `stored_true` (of all stored rows) only where rows are selected again.
      admit_seed: ``(per_seed, arrival) -> per_seed``: takes in rows whose labels are
        to come, instead of `judge_seed`, which follows with the labels.
      answer_seed: ``(per_seed, slots [Q], label [Q]) -> per_seed``; slots out of
        range and negative labels are passed over.
      ask_seed: ``(shared, per_seed, arrival, info, true_label, key=None) ->
        per_seed``: the simulated expert answers; without a key, by the order's.
      learn_seed: ``(shared, per_seed) -> per_seed``.
      probabilities: ``(shared, per_seed, queries) -> (probs [Q, K], ...)``, L's first.

    Facts:
      learners: without parameters, L before C; one entry if L and C are one model.
      num_classes: K.
      memory_capacity: M.
      sliding: whether the oldest rows make room where the memory is full.
      validation_fraction: share of the clean batch that is held out.
    """

    start: Callable[..., tuple[Shared, Arrival]]
    observe: Callable[..., tuple[Shared, Arrival]]
    track: Callable[[Shared, Array], Queries]
    extend: Callable[[Queries, Shared, Arrival], Queries]
    init_seed: Callable[..., PerSeed]
    judge_seed: Callable[..., tuple[PerSeed, Info]]
    admit_seed: Callable[[PerSeed, Arrival], PerSeed]
    answer_seed: Callable[[PerSeed, Array, Array], PerSeed]
    ask_seed: Callable[..., PerSeed]
    learn_seed: Callable[[Shared, PerSeed], PerSeed]
    probabilities: Callable[..., tuple[Array, ...]]
    learners: tuple[Learner, ...]
    num_classes: int
    memory_capacity: int
    sliding: bool
    validation_fraction: float

    def num_held_out(self, initial_size: int) -> int:
        """Rows of a clean batch that validate."""
        return round(self.validation_fraction * initial_size)


def classify(per_seed: PerSeed, probs: tuple[Array, ...]) -> Array:
    """Predicted classes: the ensemble's, or the single model's.

    Args:
      per_seed: for the accuracies that weigh the models.
      probs: ``[Q, K]`` of each model, L's first.

    Returns:
      ``[Q]`` int32.
    """
    if len(probs) == 1:
        return jnp.argmax(probs[0], axis=-1).astype(jnp.int32)
    return ensemble.combine(*probs, *per_seed.alpha)


@functools.cache
def build(
    learners: tuple[Learner, ...],
    scheme: SelectionScheme,
    expert: Expert,
    num_classes: int,
    capacity: int,
    validation_fraction: float,
    calibrate: bool,
    cleaning_window: int = 0,
    sliding: bool = False,
) -> Engine:
    """The parts; cached, so that equal arguments share compiled code.

    Args:
      learners: without parameters, L before C.
      scheme: without parameters.
      expert: without parameters.
      num_classes: K.
      capacity: M.
      validation_fraction: share of the clean batch held out.
      calibrate: whether temperatures are fitted.
      cleaning_window: earlier arrivals whose rows are selected again at each arrival;
        0 for none, -1 for all.
      sliding: where the memory is full, the oldest rows make room.
    """
    start, observe, track, extend = shared_parts(
        learners, capacity, validation_fraction, cleaning_window, sliding
    )
    make, probabilities, measure, fit = model_parts(
        learners, num_classes, capacity, calibrate
    )

    def init_seed(
        shared: Shared,
        arrival: Arrival,
        label: Array,
        init_key: PRNGKey,
        params: Params,
    ) -> PerSeed:
        def column(values, fill, dtype):
            empty = jnp.full(capacity, fill, dtype)
            return empty.at[arrival.slots].set(values.astype(dtype), mode="drop")

        labelled = label != UNLABELLED
        status = jnp.where(labelled, RowStatus.VERIFIED, RowStatus.DROPPED)
        params = as_arrays(params)
        per_seed = PerSeed(
            given=column(label, UNLABELLED, LABEL_DTYPE),
            label=column(label, UNLABELLED, LABEL_DTYPE),
            status=column(status, RowStatus.DROPPED, jnp.int8),
            models=make(shared, init_key, params),
            alpha=jnp.ones(len(learners)),
            alpha_latest=jnp.ones(len(learners)),
            temperature=jnp.ones(len(learners)),
            selection=scheme.init(params.selection),
            init_key=init_key,
            params=params,
        )
        per_seed = measure(shared, fit(shared, per_seed))
        return per_seed._replace(alpha=per_seed.alpha_latest)

    def clean(
        shared: Shared,
        per_seed: PerSeed,
        revisited: Revisited,
        stored_true: Array | None,
    ) -> PerSeed:
        """Selects stored rows again; whoever is doubted is dropped, nobody is asked."""
        slots = revisited.slots
        probs = probabilities(shared, per_seed, revisited.queries)
        status = per_seed.status.at[slots].get(mode="fill", fill_value=0)
        decided = (status == RowStatus.KEPT) | (status == RowStatus.DROPPED)
        given = per_seed.given.at[slots].get(mode="fill", fill_value=UNLABELLED)
        given = given.astype(jnp.int32)
        seen = jnp.full_like(given, UNLABELLED)
        if scheme.uses_true_labels:
            if stored_true is None:
                raise ValueError(
                    "stored_true is needed to select rows again by a scheme that looks "
                    "at true labels"
                )
            seen = stored_true.at[slots].get(mode="fill", fill_value=UNLABELLED)
            seen = seen.astype(jnp.int32)
        key = jax.random.fold_in(shared.order_key, shared.arrival)
        arrived = shared.memory.arrived.at[slots].get(mode="fill", fill_value=0)
        rows = (probs[0], probs[-1], given, revisited.valid & decided, seen)
        chosen, _ = scheme.apply(
            per_seed.params.selection,
            per_seed.selection,
            Evidence(*rows, batch=arrived),
            key=jax.random.fold_in(key, _CLEANING),
        )
        changed = jnp.where(revisited.valid & decided, slots, capacity)
        keep = chosen.keep & ~chosen.query & (chosen.label != UNLABELLED)
        new_status = jnp.where(keep, RowStatus.KEPT, RowStatus.DROPPED)
        return per_seed._replace(
            status=per_seed.status.at[changed].set(
                new_status.astype(per_seed.status.dtype), mode="drop"
            ),
            label=per_seed.label.at[changed].set(
                chosen.label.astype(per_seed.label.dtype), mode="drop"
            ),
        )

    def judge_seed(
        shared: Shared,
        per_seed: PerSeed,
        arrival: Arrival,
        label: Array,
        true_label: Array | None = None,
        stored_true: Array | None = None,
    ) -> tuple[PerSeed, Info]:
        chex.assert_equal_shape((label, arrival.valid))
        # Models know nothing of the new rows; in a sliding window they still know
        # labels of the rows that stood in their slots.
        known = memory.vacate(shared.memory, arrival.slots)
        shared = shared._replace(memory=known)
        if arrival.revisited is not None:
            per_seed = clean(shared, per_seed, arrival.revisited, stored_true)
        probs = probabilities(shared, per_seed, arrival.queries)
        seen = jnp.full_like(label, UNLABELLED)
        if scheme.uses_true_labels:
            if true_label is None:
                raise ValueError(
                    "true_label is needed by this selection scheme (oracle_selection "
                    "is a reference for simulations)"
                )
            seen = true_label
        counts = None
        if scheme.uses_class_counts:
            remembered = known.valid & trained_on(per_seed)
            classes = jnp.where(remembered, per_seed.label, num_classes)
            counts = jnp.zeros(num_classes, jnp.int32).at[classes].add(1, mode="drop")
        stored = arrival.valid & (arrival.slots < capacity)
        key = jax.random.fold_in(shared.order_key, shared.arrival)
        chosen, selection_state = scheme.apply(
            per_seed.params.selection,
            per_seed.selection,
            Evidence(probs[0], probs[-1], label, stored, seen, counts),
            key=jax.random.fold_in(key, _TIES),
        )
        chex.assert_equal_shape((chosen.keep, chosen.query, chosen.label, label))
        chex.assert_type((chosen.keep, chosen.query), bool)
        chex.assert_type(chosen.label, int)
        query = chosen.query & stored
        keep = chosen.keep & stored & ~query & (chosen.label != UNLABELLED)
        kept_or_not = jnp.where(keep, RowStatus.KEPT, RowStatus.DROPPED)
        status = jnp.where(query, RowStatus.PENDING, kept_or_not)

        def store(column, values):
            values = values.astype(column.dtype)
            return column.at[arrival.slots].set(values, mode="drop")

        per_seed = per_seed._replace(
            given=store(per_seed.given, label),
            label=store(per_seed.label, chosen.label),
            status=store(per_seed.status, status),
            selection=selection_state,
        )
        row_id = shared.memory.row_id.at[arrival.slots].get(mode="fill", fill_value=-1)
        info = Info(
            label_probs=probs[0],
            class_probs=probs[-1],
            keep=keep,
            query=query,
            label=chosen.label,
            row_id=row_id,
            overflow=jnp.zeros((), jnp.int32) if sliding else known.overflow,
        )
        return per_seed, info

    def admit_seed(per_seed: PerSeed, arrival: Arrival) -> PerSeed:
        slots = arrival.slots
        return per_seed._replace(
            given=per_seed.given.at[slots].set(UNLABELLED, mode="drop"),
            label=per_seed.label.at[slots].set(UNLABELLED, mode="drop"),
            status=per_seed.status.at[slots].set(RowStatus.DROPPED, mode="drop"),
        )

    def answer_seed(per_seed: PerSeed, slots: Array, label: Array) -> PerSeed:
        slots = jnp.where(label >= 0, slots, capacity)
        verified = jnp.full(slots.shape, RowStatus.VERIFIED, per_seed.status.dtype)
        answers = label.astype(per_seed.label.dtype)
        return per_seed._replace(
            label=per_seed.label.at[slots].set(answers, mode="drop"),
            status=per_seed.status.at[slots].set(verified, mode="drop"),
        )

    def ask_seed(
        shared: Shared,
        per_seed: PerSeed,
        arrival: Arrival,
        info: Info,
        true_label: Array,
        key: PRNGKey | None = None,
    ) -> PerSeed:
        if key is None:
            key = jax.random.fold_in(shared.order_key, shared.arrival)
            key = jax.random.fold_in(key, _EXPERT)
        answers = expert.answer(per_seed.params.expert, true_label, key=key)
        answers = jnp.where(info.query, answers, UNLABELLED)
        return answer_seed(per_seed, arrival.slots, answers)

    def learn_seed(shared: Shared, per_seed: PerSeed) -> PerSeed:
        first = shared.times_learned == 0
        alpha = jnp.where(first, per_seed.alpha_latest, per_seed.alpha)
        per_seed = per_seed._replace(alpha=alpha)
        return measure(shared, fit(shared, per_seed))

    return Engine(
        start=start,
        observe=observe,
        track=track,
        extend=extend,
        init_seed=init_seed,
        judge_seed=judge_seed,
        admit_seed=admit_seed,
        answer_seed=answer_seed,
        ask_seed=ask_seed,
        learn_seed=learn_seed,
        probabilities=probabilities,
        learners=learners,
        num_classes=num_classes,
        memory_capacity=capacity,
        sliding=sliding,
        validation_fraction=validation_fraction,
    )
