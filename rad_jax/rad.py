"""RAD itself: judge a batch, take an expert's answers, learn, predict.

Everything is written for one noise seed and split by what it depends on. `start` and
`observe` follow from features alone and yield `Shared`; the other functions follow
from labels and yield `PerSeed`. `step` and the like put both together, so they can be
used as they are, or vmapped over seeds with `STATE_AXES` and `BATCH_AXES` (features
are then held once).

References:
  Zhao et al., "Enhancing Robustness of On-line Learning Models on Highly Noisy
  Data", IEEE TDSC 18(5), 2021.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rad_jax import ensemble, experts, memory
from rad_jax.types import (
    LABEL_DTYPE,
    MAX_CLASSES,
    UNLABELLED,
    Array,
    Batch,
    Evidence,
    Examples,
    Expert,
    Keys,
    Learner,
    PRNGKey,
    PyTree,
    Queries,
    RowStatus,
    SelectionScheme,
    Spec,
)

# What keys are folded with. A single model is a classifier: it trains as C would.
_LABEL_MODEL, _CLASSIFIER, _TIES, _SPLIT, _EXPERT = range(5)


class Params(NamedTuple):
    """Numbers that may differ between vmapped runs.

    Attributes:
      models: parameters of each learner, L before C.
      selection: of the selection scheme.
      expert: of the simulated expert.
    """

    models: tuple[PyTree, ...]
    selection: PyTree
    expert: PyTree


class Shared(NamedTuple):
    """State that follows from features and arrival order: once for all seeds.

    Attributes:
      memory: everything that arrived.
      arrival: int32 scalar, index of the latest arrival, 0 for the clean batch.
      order_key: order of minibatches.
      validation: clean rows that are never trained on; V may be 0.
      validation_label: ``[V]`` int.
      validation_valid: ``[V]`` bool.
    """

    memory: memory.Memory
    arrival: Array
    order_key: PRNGKey
    validation: Queries
    validation_label: Array
    validation_valid: Array


class PerSeed(NamedTuple):
    """State that follows from labels: one for each seed.

    Attributes:
      given: ``[M]`` int16, labels as they arrived, -1 for none.
      label: ``[M]`` int16, labels to train on.
      status: ``[M]`` int8, `RowStatus`.
      models: states of the models, L before C; one entry if L and C are one model.
      alpha: ``[num_models]`` float32, accuracies at the arrival before: the ensemble
        weighs the models by them.
      alpha_latest: ``[num_models]`` float32, accuracies as trained now.
      temperature: ``[num_models]`` float32, 1 unless calibrated.
      selection: state of the selection scheme.
      init_key: initialisation of models.
      params: see `Params`.
    """

    given: Array
    label: Array
    status: Array
    models: tuple[PyTree, ...]
    alpha: Array
    alpha_latest: Array
    temperature: Array
    selection: PyTree
    init_key: PRNGKey
    params: Params


class State(NamedTuple):
    """All that the algorithm carries from one arrival to the next."""

    shared: Shared
    per_seed: PerSeed


#: `in_axes` and `out_axes` for a vmap over seeds. A write to `Shared` that depended
#: on a seed would be an error of vmap.
STATE_AXES = State(shared=None, per_seed=0)  # type: ignore[arg-type]
#: Seeds see the same rows under different labels.
BATCH_AXES = Batch(features=None, label=0, valid=None, row_id=None)  # type: ignore[arg-type]


class Arrival(NamedTuple):
    """The seed-free side of a batch that has been stored.

    Attributes:
      queries: its rows, prepared against what was stored before them.
      valid: ``[N]`` bool.
      slots: ``[N]`` int32, where they are stored.
    """

    queries: Queries
    valid: Array
    slots: Array


class Info(NamedTuple):
    """What was made of a batch; no part of the state.

    Attributes:
      label_probs: ``[N, K]``, of L before it saw the batch.
      class_probs: ``[N, K]``, of C likewise.
      keep: ``[N]`` bool, trained on with the given label.
      query: ``[N]`` bool, an expert is asked.
      label: ``[N]`` int, label to train on.
      row_id: ``[N]`` int32.
      overflow: int32 scalar, rows for which memory had no room (dropped).
    """

    label_probs: Array
    class_probs: Array
    keep: Array
    query: Array
    label: Array
    row_id: Array
    overflow: Array


class Rad(NamedTuple):
    """The algorithm as pure functions; see `rad`.

    For users:
      init: ``(key, clean_batch, params=params) -> state``; `key` one key or `Keys`.
      step: ``(state, batch, true_label=None) -> (state, info)``: judge, ask the
        simulated expert (if `true_label` is given), learn.
      judge: ``(state, batch, true_label=None) -> (state, info)``: store a batch and
        select; `true_label` is for `oracle_selection` only.
      answer: ``(state, row_ids [Q], labels [Q]) -> (state, found [Q])``: an expert's
        labels for stored rows, at any time; negative labels are passed over.
      learn: ``(state) -> state``: train on everything kept so far.
      predict_proba: ``(state, features [Q, *S]) -> [Q, K]``.
      predict: ``(state, features [Q, *S]) -> [Q]`` int32.

    For vmapped programs, split into shared and per-seed parts (see `rad_jax.sweep`):
      start: ``(keys, features [N, *S], valid [N], row_id [N], label [N]) -> (shared,
        arrival)``; the labels are the clean ones, for the validation split.
      observe: ``(shared, features, valid, row_id) -> (shared, arrival)``.
      track: ``(shared, features [Q, *S]) -> queries``, to be classified again and
        again as rows arrive.
      extend: ``(queries, shared, arrival) -> queries`` after `observe`.
      init_seed: ``(shared, arrival, label [N], init_key, params) -> per_seed``.
      judge_seed: ``(shared, per_seed, arrival, label [N], true_label) -> (per_seed,
        info)``.
      answer_seed: ``(shared, per_seed, slots [Q], label [Q]) -> per_seed``; slots out
        of range and negative labels are passed over.
      ask_seed: ``(shared, per_seed, arrival, info, true_label) -> per_seed``: the
        simulated expert answers.
      learn_seed: ``(shared, per_seed) -> per_seed``.
      probabilities: ``(shared, per_seed, queries) -> (probs [Q, K], ...)``, L's first.

    Facts:
      learners: without parameters, L before C; one entry if L and C are one model.
      num_classes, memory_capacity: as given to `rad`.
      params: the defaults of `init`.
    """

    init: Callable[..., State]
    step: Callable[..., tuple[State, Info]]
    judge: Callable[..., tuple[State, Info]]
    answer: Callable[..., tuple[State, Array]]
    learn: Callable[[State], State]
    predict_proba: Callable[[State, Array], Array]
    predict: Callable[[State, Array], Array]
    start: Callable[..., tuple[Shared, Arrival]]
    observe: Callable[..., tuple[Shared, Arrival]]
    track: Callable[[Shared, Array], Queries]
    extend: Callable[[Queries, Shared, Arrival], Queries]
    init_seed: Callable[..., PerSeed]
    judge_seed: Callable[..., tuple[PerSeed, Info]]
    answer_seed: Callable[..., PerSeed]
    ask_seed: Callable[..., PerSeed]
    learn_seed: Callable[[Shared, PerSeed], PerSeed]
    probabilities: Callable[..., tuple[Array, ...]]
    learners: tuple[Learner, ...]
    num_classes: int
    memory_capacity: int
    params: Params


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


def stratified_split(
    key: PRNGKey, label: Array, valid: Array, num_validation: int
) -> tuple[Array, Array]:
    """Rows for training and for validation, every class in proportion.

    The r-th of the n rows of a class (in random order) has rank ``(r + 1/2) / n``;
    the rows of lowest rank validate. So classes are rounded by Webster's rule, and a
    class of one or two rows keeps them for training as long as less than a quarter
    validates.

    Args:
      key: which rows of a class.
      label: ``[N]`` int.
      valid: ``[N]`` bool; padding comes last in both.
      num_validation: how many rows validate.

    Returns:
      ``[N - num_validation]`` and ``[num_validation]`` int32 indices.
    """
    size = label.shape[0]
    shuffle = jax.random.permutation(key, size)
    by_class = shuffle[jnp.argsort(label[shuffle], stable=True)]
    ordered = label[by_class]
    first = jnp.searchsorted(ordered, ordered, side="left")
    last = jnp.searchsorted(ordered, ordered, side="right")
    rank = (jnp.arange(size) - first + 0.5) / (last - first)
    rank = jnp.where(valid[by_class], rank, 2.0)
    order = by_class[jnp.argsort(rank, stable=True)].astype(jnp.int32)
    validation, training = order[:num_validation], order[num_validation:]
    return jnp.sort(training), jnp.sort(validation)


def _accuracy(probs: Array, label: Array, valid: Array) -> Array:
    right = valid & (jnp.argmax(probs, axis=-1) == label)
    return jnp.sum(right) / jnp.maximum(jnp.sum(valid), 1)


@functools.cache
def _build(
    learners: tuple[Learner, ...],
    scheme: SelectionScheme,
    expert: Expert,
    num_classes: int,
    capacity: int,
    validation_fraction: float,
    calibrate: bool,
) -> Rad:
    """`Rad` without parameters; cached, so that equal arguments share compiled code."""
    roles = (_CLASSIFIER,) if len(learners) == 1 else (_LABEL_MODEL, _CLASSIFIER)
    preparations = {
        learner.preparation.name: learner.preparation
        for learner in learners
        if learner.preparation is not None
    }

    def spec_of(store: memory.Memory) -> Spec:
        return Spec(store.features.shape[1:], num_classes, capacity)

    def prepare(store: memory.Memory, features: Array) -> Queries:
        return Queries(
            features,
            {name: p.build(store, features) for name, p in preparations.items()},
        )

    def start(keys: Keys, features, valid, row_id, label):
        size = features.shape[0]
        num_validation = round(validation_fraction * size)
        if not size - num_validation:
            raise ValueError(
                f"the clean batch has {size} rows, of which {num_validation} validate: "
                "none is left to train on"
            )
        training, held_out = stratified_split(
            jax.random.fold_in(keys.order, _SPLIT), label, valid, num_validation
        )
        empty = memory.empty(capacity, features.shape[1:], features.dtype)
        arrival = jnp.zeros((), jnp.int32)
        store, slots = memory.write(
            empty, features[training], row_id[training], valid[training], arrival
        )
        shared = Shared(
            memory=store,
            arrival=arrival,
            order_key=keys.order,
            validation=prepare(store, features[held_out]),
            validation_label=label[held_out],
            validation_valid=valid[held_out],
        )
        stored = jnp.full(size, capacity, jnp.int32).at[training].set(slots)
        return shared, Arrival(Queries(features, {}), valid, stored)

    def extend(queries: Queries, shared: Shared, arrival: Arrival) -> Queries:
        return queries._replace(
            prepared={
                name: p.extend(
                    queries.prepared[name],
                    queries.features,
                    shared.memory,
                    arrival.slots,
                    arrival.valid,
                )
                for name, p in preparations.items()
            }
        )

    def observe(shared: Shared, features, valid, row_id):
        queries = prepare(shared.memory, features)
        index = shared.arrival + 1
        store, slots = memory.write(shared.memory, features, row_id, valid, index)
        arrival = Arrival(queries, valid, slots)
        shared = shared._replace(memory=store, arrival=index)
        return (
            shared._replace(validation=extend(shared.validation, shared, arrival)),
            arrival,
        )

    def track(shared: Shared, features: Array) -> Queries:
        return prepare(shared.memory, features)

    def probabilities(shared: Shared, per_seed: PerSeed, queries: Queries):
        out = []
        for i, learner in enumerate(learners):
            probs = learner.predict_proba(
                spec_of(shared.memory),
                per_seed.params.models[i],
                per_seed.models[i],
                shared.memory,
                queries,
            )
            chex.assert_shape(probs, (queries.features.shape[0], num_classes))
            if calibrate:
                probs = ensemble.apply_temperature(probs, per_seed.temperature[i])
            out.append(probs)
        return tuple(out)

    def measure(shared: Shared, per_seed: PerSeed) -> PerSeed:
        """Accuracies (and temperatures) on the validation rows."""
        if not shared.validation_label.shape[0]:
            return per_seed
        label, valid = shared.validation_label, shared.validation_valid
        if calibrate:
            ones = jnp.ones(len(learners))
            raw = probabilities(
                shared, per_seed._replace(temperature=ones), shared.validation
            )
            weight = valid.astype(jnp.float32)
            temperature = jnp.stack(
                [ensemble.fit_temperature(p, label, weight) for p in raw]
            )
            per_seed = per_seed._replace(temperature=temperature)
        probs = probabilities(shared, per_seed, shared.validation)
        latest = jnp.stack([_accuracy(p, label, valid) for p in probs])
        return per_seed._replace(alpha_latest=latest)

    def fit(shared: Shared, per_seed: PerSeed) -> PerSeed:
        status = per_seed.status
        trained_on = (status == RowStatus.KEPT) | (status == RowStatus.VERIFIED)
        examples = Examples(
            features=shared.memory.features,
            row_id=shared.memory.row_id,
            valid=shared.memory.valid,
            arrival=shared.arrival,
            label=per_seed.label,
            weight=trained_on.astype(jnp.float32),
        )
        arrival_key = jax.random.fold_in(shared.order_key, shared.arrival)
        models = tuple(
            learner.fit(
                spec_of(shared.memory),
                params,
                model,
                examples,
                init_key=jax.random.fold_in(per_seed.init_key, role),
                order_key=jax.random.fold_in(arrival_key, role),
            )
            for learner, params, model, role in zip(
                learners, per_seed.params.models, per_seed.models, roles, strict=True
            )
        )
        return per_seed._replace(models=models)

    def init_seed(shared: Shared, arrival: Arrival, label, init_key, params: Params):
        def column(values, fill, dtype):
            empty = jnp.full(capacity, fill, dtype)
            return empty.at[arrival.slots].set(values.astype(dtype), mode="drop")

        labelled = label != UNLABELLED
        status = jnp.where(labelled, RowStatus.VERIFIED, RowStatus.DROPPED)
        params = jax.tree.map(jnp.asarray, params)
        per_seed = PerSeed(
            given=column(label, UNLABELLED, LABEL_DTYPE),
            label=column(label, UNLABELLED, LABEL_DTYPE),
            status=column(status, RowStatus.DROPPED, jnp.int8),
            models=tuple(
                learner.init(
                    spec_of(shared.memory), p, jax.random.fold_in(init_key, role)
                )
                for learner, p, role in zip(learners, params.models, roles, strict=True)
            ),
            alpha=jnp.ones(len(learners)),
            alpha_latest=jnp.ones(len(learners)),
            temperature=jnp.ones(len(learners)),
            selection=scheme.init(params.selection),
            init_key=init_key,
            params=params,
        )
        per_seed = measure(shared, fit(shared, per_seed))
        return per_seed._replace(alpha=per_seed.alpha_latest)

    def judge_seed(
        shared: Shared, per_seed: PerSeed, arrival: Arrival, label, true_label=None
    ):
        chex.assert_equal_shape((label, arrival.valid))
        probs = probabilities(shared, per_seed, arrival.queries)
        if scheme.uses_true_labels:
            if true_label is None:
                raise ValueError(
                    "true_label is needed by this selection scheme (oracle_selection "
                    "is a reference for simulations)"
                )
            seen = true_label
        else:
            seen = jnp.full_like(label, UNLABELLED)
        key = jax.random.fold_in(shared.order_key, shared.arrival)
        chosen, selection_state = scheme.apply(
            per_seed.params.selection,
            per_seed.selection,
            Evidence(probs[0], probs[-1], label, arrival.valid, seen),
            key=jax.random.fold_in(key, _TIES),
        )
        keep = chosen.keep & arrival.valid & ~chosen.query
        query = chosen.query & arrival.valid
        status = jnp.where(
            query,
            RowStatus.PENDING,
            jnp.where(keep, RowStatus.KEPT, RowStatus.DROPPED),
        )

        def store(column, values):
            return column.at[arrival.slots].set(
                values.astype(column.dtype), mode="drop"
            )

        per_seed = per_seed._replace(
            given=store(per_seed.given, label),
            label=store(per_seed.label, chosen.label),
            status=store(per_seed.status, status),
            selection=selection_state,
        )
        info = Info(
            label_probs=probs[0],
            class_probs=probs[-1],
            keep=keep,
            query=query,
            label=chosen.label,
            row_id=shared.memory.row_id.at[arrival.slots].get(
                mode="fill", fill_value=-1
            ),
            overflow=shared.memory.overflow,
        )
        return per_seed, info

    def answer_seed(shared: Shared, per_seed: PerSeed, slots, label):
        del shared
        slots = jnp.where(label >= 0, slots, capacity)
        verified = jnp.full(slots.shape, RowStatus.VERIFIED, per_seed.status.dtype)
        return per_seed._replace(
            label=per_seed.label.at[slots].set(
                label.astype(per_seed.label.dtype), mode="drop"
            ),
            status=per_seed.status.at[slots].set(verified, mode="drop"),
        )

    def ask_seed(shared: Shared, per_seed, arrival: Arrival, info: Info, true_label):
        key = jax.random.fold_in(shared.order_key, shared.arrival)
        answers = expert.answer(
            per_seed.params.expert, true_label, key=jax.random.fold_in(key, _EXPERT)
        )
        answers = jnp.where(info.query, answers, UNLABELLED)
        return answer_seed(shared, per_seed, arrival.slots, answers)

    def learn_seed(shared: Shared, per_seed: PerSeed) -> PerSeed:
        per_seed = per_seed._replace(alpha=per_seed.alpha_latest)
        return measure(shared, fit(shared, per_seed))

    def init(key, clean_batch: Batch, params: Params) -> State:
        keys = key
        if not isinstance(key, Keys):
            keys = Keys(jax.random.fold_in(key, 0), jax.random.fold_in(key, 1))
        features, label, valid, row_id = clean_batch
        _check_batch_types(clean_batch)
        shared, arrival = start(keys, features, valid, row_id, label)
        return State(shared, init_seed(shared, arrival, label, keys.init, params))

    def _store_and_judge(state: State, batch: Batch, true_label):
        _check_batch_types(batch, state.shared.memory)
        shared, arrival = observe(
            state.shared, batch.features, batch.valid, batch.row_id
        )
        per_seed, info = judge_seed(
            shared, state.per_seed, arrival, batch.label, true_label
        )
        return shared, per_seed, arrival, info

    def judge(state: State, batch: Batch, true_label=None):
        shared, per_seed, _, info = _store_and_judge(state, batch, true_label)
        return State(shared, per_seed), info

    def answer(state: State, row_ids, labels):
        slots, found = memory.find(state.shared.memory, row_ids)
        per_seed = answer_seed(state.shared, state.per_seed, slots, labels)
        return State(state.shared, per_seed), found & (labels >= 0)

    def learn(state: State) -> State:
        return State(state.shared, learn_seed(state.shared, state.per_seed))

    def step(state: State, batch: Batch, true_label=None):
        shared, per_seed, arrival, info = _store_and_judge(state, batch, true_label)
        if true_label is not None:
            per_seed = ask_seed(shared, per_seed, arrival, info, true_label)
        return State(shared, learn_seed(shared, per_seed)), info

    def predict_proba(state: State, features):
        probs = probabilities(
            state.shared, state.per_seed, track(state.shared, features)
        )
        if len(probs) == 1:
            return probs[0]
        return ensemble.combine_proba(*probs, *state.per_seed.alpha)

    def predict(state: State, features):
        return jnp.argmax(predict_proba(state, features), axis=-1).astype(jnp.int32)

    return Rad(
        init=init,
        step=step,
        judge=judge,
        answer=answer,
        learn=learn,
        predict_proba=predict_proba,
        predict=predict,
        start=start,
        observe=observe,
        track=track,
        extend=extend,
        init_seed=init_seed,
        judge_seed=judge_seed,
        answer_seed=answer_seed,
        ask_seed=ask_seed,
        learn_seed=learn_seed,
        probabilities=probabilities,
        learners=learners,
        num_classes=num_classes,
        memory_capacity=capacity,
        params=Params((), (), ()),
    )


def _check_batch_types(batch: Batch, store: memory.Memory | None = None) -> None:
    chex.assert_rank((batch.label, batch.valid, batch.row_id), 1)
    chex.assert_equal_shape((batch.label, batch.valid, batch.row_id))
    if batch.features.shape[:1] != batch.label.shape:
        raise ValueError(
            f"features has {batch.features.shape[0]} rows, label {batch.label.shape[0]}"
        )
    if not batch.label.shape[0]:
        raise ValueError("batch has no rows; it must have at least one")
    if not jnp.issubdtype(batch.label.dtype, jnp.integer):
        raise ValueError(f"label must have an integer dtype, got {batch.label.dtype}")
    if store is None:
        return
    expected, came = store.features, batch.features
    if came.shape[1:] != expected.shape[1:] or came.dtype != expected.dtype:
        raise ValueError(
            f"features must be {expected.dtype} of shape [N, "
            f"{', '.join(map(str, expected.shape[1:]))}] as in the clean batch, got "
            f"{came.dtype} of shape {list(came.shape)}"
        )


def rad(
    *,
    classifier: Learner,
    selection: SelectionScheme,
    num_classes: int,
    memory_capacity: int,
    label_model: Learner | None = None,
    expert: Expert | None = None,
    validation_fraction: float = 0.2,
    calibrate: bool = False,
) -> Rad:
    """Puts two models (or one), a selection scheme and an expert together.

    Args:
      classifier: C.
      selection: which rows to train on.
      num_classes: K, at least 2.
      memory_capacity: M, rows that can be stored in all, the clean batch's training
        rows included.
      label_model: L; None makes the classifier judge labels too (RAD Slim), trained
        once.
      expert: a simulated one, for `step` with true labels; the default never errs.
      validation_fraction: share of the clean batch on which the accuracies that weigh
        the ensemble are measured, never trained on; 0 for none, and the weights stay
        as the caller sets them (1 at first).
      calibrate: fit one temperature per model on the validation rows, at every
        arrival, and use it wherever probabilities are used.

    Returns:
      The algorithm, as pure functions.

    Raises:
      ValueError: for a value out of range.
    """
    if not 2 <= num_classes <= MAX_CLASSES:
        raise ValueError(f"num_classes must lie in 2..{MAX_CLASSES}, got {num_classes}")
    if memory_capacity < 1:
        raise ValueError(
            f"memory_capacity must be at least 1 row, got {memory_capacity}"
        )
    if not 0.0 <= validation_fraction < 1.0:
        raise ValueError(
            f"validation_fraction must lie in [0, 1), got {validation_fraction}"
        )
    if calibrate and not validation_fraction:
        raise ValueError("calibrate needs validation rows: validation_fraction > 0")
    learners = (classifier,) if label_model is None else (label_model, classifier)
    expert = expert or experts.perfect()
    params = Params(
        models=tuple(learner.params for learner in learners),
        selection=selection.params,
        expert=expert.params,
    )
    core = _build(
        tuple(learner._replace(params=None) for learner in learners),
        selection._replace(params=None),
        expert._replace(params=None),
        num_classes,
        memory_capacity,
        float(validation_fraction),
        calibrate,
    )

    def init(key, clean_batch: Batch, params: Params = params) -> State:
        return core.init(key, clean_batch, params)

    return core._replace(init=init, params=params)
