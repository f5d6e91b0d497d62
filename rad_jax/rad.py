"""RAD for users: judge a batch, take an expert's answers, learn, predict.

All functions are pure and written for one noise seed; `STATE_AXES` and `BATCH_AXES`
are the axes for `jax.vmap` over seeds, under which features are held once.

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
import numpy as np

from rad_jax import ensemble, experts, memory
from rad_jax.engine import Engine, build
from rad_jax.learners.external import compile_apart
from rad_jax.state import Arrival, Info, Params, PerSeed, Shared, State
from rad_jax.types import (
    MAX_CLASSES,
    Array,
    Batch,
    Expert,
    Keys,
    Learner,
    SelectionScheme,
)

#: Arrivals, which are counted in int32: more than any stream has.
_LONGEST_CLEANING = 2**30


class Rad(NamedTuple):
    """The algorithm as pure functions; see `rad`.

    Attributes:
      init: ``(key, clean_batch, params=params) -> state``; `key` one key or `Keys`.
      step: ``(state, batch, true_label=None) -> (state, info)``: judge, ask the
        simulated expert (if `true_label` is given), learn.
      judge: ``(state, batch, true_label=None) -> (state, info)``: store a batch and
        select; `true_label` is for `oracle_selection` only.
      answer: ``(state, row_ids [Q], labels [Q]) -> (state, found [Q])``: an expert's
        labels for stored rows, at any time; negative labels are passed over.
      learn: ``(state) -> state``: train on everything kept so far. Called again
        before the next batch, it trains further (late answers may have come).
      predict_proba: ``(state, features [Q, *S]) -> [Q, K]``.
      predict: ``(state, features [Q, *S]) -> [Q]`` int32.
      engine: the parts that vmapped programs are made of.
      params: the defaults of `init`.
    """

    init: Callable[..., State]
    step: Callable[..., tuple[State, Info]]
    judge: Callable[..., tuple[State, Info]]
    answer: Callable[[State, Array, Array], tuple[State, Array]]
    learn: Callable[[State], State]
    predict_proba: Callable[[State, Array], Array]
    predict: Callable[[State, Array], Array]
    engine: Engine
    params: Params


@functools.cache
def _compose(engine: Engine) -> Rad:
    """Puts the shared and the per-seed parts together; cached like the parts."""

    def learned(shared: Shared) -> Shared:
        return shared._replace(times_learned=shared.times_learned + 1)

    def init(key: Array | Keys, clean_batch: Batch, params: Params) -> State:
        keys = key
        if not isinstance(keys, Keys):
            keys = Keys(jax.random.fold_in(keys, 0), jax.random.fold_in(keys, 1))
        _check_batch(clean_batch)
        features, label, valid, row_id = clean_batch
        shared, arrival = engine.start(keys, features, valid, row_id, label)
        per_seed = engine.init_seed(shared, arrival, label, keys.init, params)
        return State(learned(shared), per_seed)

    def observe_and_judge(
        state: State, batch: Batch, true_label: Array | None
    ) -> tuple[Shared, PerSeed, Arrival, Info]:
        _check_batch(batch, state.shared.memory)
        shared, arrival = engine.observe(
            state.shared, batch.features, batch.valid, batch.row_id
        )
        per_seed, info = engine.judge_seed(
            shared, state.per_seed, arrival, batch.label, true_label
        )
        return shared, per_seed, arrival, info

    def judge(
        state: State, batch: Batch, true_label: Array | None = None
    ) -> tuple[State, Info]:
        shared, per_seed, _, info = observe_and_judge(state, batch, true_label)
        return State(shared, per_seed), info

    def answer(state: State, row_ids: Array, labels: Array) -> tuple[State, Array]:
        slots, found = memory.find(state.shared.memory, row_ids)
        per_seed = engine.answer_seed(state.per_seed, slots, labels)
        return State(state.shared, per_seed), found & (labels >= 0)

    def learn(state: State) -> State:
        per_seed = engine.learn_seed(state.shared, state.per_seed)
        return State(learned(state.shared), per_seed)

    def step(
        state: State, batch: Batch, true_label: Array | None = None
    ) -> tuple[State, Info]:
        shared, per_seed, arrival, info = observe_and_judge(state, batch, true_label)
        if true_label is not None:
            per_seed = engine.ask_seed(shared, per_seed, arrival, info, true_label)
        per_seed = engine.learn_seed(shared, per_seed)
        return State(learned(shared), per_seed), info

    def predict_proba(state: State, features: Array) -> Array:
        _check_features(features, state.shared.memory)
        shared, per_seed = state
        queries = engine.track(shared, features)
        probs = engine.probabilities(shared, per_seed, queries)
        if len(probs) == 1:
            return probs[0]
        return ensemble.combine_proba(*probs, *per_seed.alpha)

    def predict(state: State, features: Array) -> Array:
        return jnp.argmax(predict_proba(state, features), axis=-1).astype(jnp.int32)

    return Rad(
        init=init,
        step=step,
        judge=judge,
        answer=answer,
        learn=learn,
        predict_proba=predict_proba,
        predict=predict,
        engine=engine,
        params=Params((), (), ()),
    )


def _check_batch(batch: Batch, store: memory.Memory | None = None) -> None:
    """What can be checked while tracing: ranks, shapes and dtypes."""
    chex.assert_rank((batch.label, batch.valid, batch.row_id), 1)
    chex.assert_equal_shape((batch.label, batch.valid, batch.row_id))
    rows = batch.label.shape[0]
    if batch.features.shape[:1] != (rows,):
        raise ValueError(
            f"features has {batch.features.shape[0]} rows, label {batch.label.shape[0]}"
        )
    if not rows:
        raise ValueError("batch has no rows; it must have at least one")
    if not jnp.issubdtype(batch.label.dtype, jnp.integer):
        raise ValueError(f"label must have an integer dtype, got {batch.label.dtype}")
    chex.assert_type(batch.valid, bool)
    if store is not None:
        _check_features(batch.features, store)


def _check_features(came: Array, store: memory.Memory) -> None:
    expected = store.features
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
    cleaning_window: int = 0,
    sliding_window: bool = False,
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
        the ensemble are measured, never trained on; 0 for none, and the weights of
        the next arrival are what the caller puts in `alpha_latest` (1 at first).
      calibrate: fit one temperature per model on the validation rows, at every
        arrival, and use it wherever probabilities are used.
      cleaning_window: repetitive cleaning: at each arrival the rows of so many earlier
        arrivals are selected again by the present models; 0 for none, -1 for all.
        Rows of the clean batch and rows that an expert labelled stay as they are; the
        expert is asked about new rows only, and a stored row that is doubted is
        dropped. An arrival's cost grows by the prediction of at most
        ``cleaning_window * N`` rows, N the rows of the batch.
      sliding_window: the memory is a window over the stream: where it is full, the
        oldest rows, those of the clean batch among them, are forgotten. An endless
        stream then takes fixed memory; a batch must not exceed the capacity. Networks
        keep what they have learned from rows since forgotten.

    Returns:
      The algorithm, as pure functions.

    Raises:
      TypeError: for something that is no learner, scheme or expert.
      ValueError: for a value out of range.
    """
    for name, value, kind, example in (
        ("classifier", classifier, Learner, "knn(5)"),
        ("label_model", label_model, Learner | None, "mlp()"),
        ("selection", selection, SelectionScheme, "basic()"),
        ("expert", expert, Expert | None, "experts.perfect()"),
    ):
        if not isinstance(value, kind):
            raise TypeError(f"{name} must be a value such as {example}, got {value!r}")
    for name, count in (
        ("num_classes", num_classes),
        ("memory_capacity", memory_capacity),
        ("cleaning_window", cleaning_window),
    ):
        if not isinstance(count, int | np.integer):
            raise TypeError(f"{name} must be a whole number, got {count!r}")
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
    if cleaning_window < -1:
        raise ValueError(
            "cleaning_window must be a number of arrivals, 0 for none or -1 for all, "
            f"got {cleaning_window}"
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
    core = _compose(
        build(
            compile_apart(tuple(learner._replace(params=None) for learner in learners)),
            selection._replace(params=None),
            expert._replace(params=None),
            num_classes,
            memory_capacity,
            float(validation_fraction),
            calibrate,
            min(int(cleaning_window), _LONGEST_CLEANING),
            bool(sliding_window),
        )
    )

    def init(key: Array | Keys, clean_batch: Batch, params: Params = params) -> State:
        return core.init(key, clean_batch, params)

    return core._replace(init=init, params=params)
