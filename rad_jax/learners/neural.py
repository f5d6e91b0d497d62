"""Networks: any Linen module with any optax optimizer."""

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from rad_jax.learners import shuffling
from rad_jax.learners.training import Training
from rad_jax.types import (
    Array,
    Examples,
    Learner,
    PRNGKey,
    PyTree,
    Queries,
    Spec,
    no_workspace,
)

#: Rows classified at a time on CPU: what seeds make of them stays in the cache.
_ROWS = 512
#: Arrays as large as the largest activations while a layer's gradients are taken.
_LAYER = 4
# What the order key is folded with for an update; epochs are below.
_UPDATES = 1 << 30


class NetworkModel(NamedTuple):
    """A network in training.

    Attributes:
      weights: the module's parameters.
      collections: the module's other variables, e.g. running statistics.
      optimizer: state of the optimizer; hyperparameters injected with
        `optax.inject_hyperparams` are part of it.
      steps: int32 scalar, updates made (minibatches without a kept row make none).
    """

    weights: PyTree
    collections: dict[str, PyTree]
    optimizer: PyTree
    steps: Array


def weighted_cross_entropy(logits: Array, label: Array, weight: Array) -> Array:
    """Mean cross-entropy over rows of positive weight; 0 without any.

    Args:
      logits: ``[B, K]``.
      label: ``[B]`` int32 in 0..K-1 where the weight is positive.
      weight: ``[B]`` float.

    Returns:
      Scalar.
    """
    classes = jnp.arange(logits.shape[1], dtype=jnp.int32)
    # Classes come first inside: no transpose behind a module that computes so (MLP).
    is_given = jnp.where(weight > 0, label, 0)[None, :] == classes[:, None]
    by_class = logits.T
    greatest = jax.lax.stop_gradient(jnp.max(by_class, axis=0))
    below = by_class - greatest[None, :]
    # A comparison, not a gather: the gradient of a gather is a scatter.
    given = jnp.sum(jnp.where(is_given, below, 0.0), axis=0)
    losses = jnp.log(jnp.sum(jnp.exp(below), axis=0)) - given
    return jnp.sum(losses * weight) / jnp.maximum(jnp.sum(weight), 1e-12)


def _options(module: nn.Module, train: bool, mask: Array) -> dict[str, Any]:
    """What the module's `__call__` names of `train` and `mask`."""
    named = inspect.signature(type(module).__call__).parameters
    offered = {"train": train, "mask": mask}
    return {name: value for name, value in offered.items() if name in named}


@functools.cache
def _functions(
    make_module: Callable[[int], nn.Module],
    optimizer: optax.GradientTransformation,
    training: Training,
    regularizer: Callable[[PyTree], Array] | None,
    augment: Callable[[PRNGKey, Array], Array] | None,
    seeds_in_turn: bool,
):

    @functools.cache
    def checked_module(spec: Spec) -> nn.Module:
        module = make_module(spec.num_classes)
        _check_module(module, spec)
        return module

    def init(spec: Spec, params, key) -> NetworkModel:
        module = checked_module(spec)
        row = jnp.zeros((1, *spec.feature_shape), jnp.float32)
        options = _options(module, False, jnp.ones(1, bool))
        collections = dict(module.init(key, row, **options))
        weights = collections.pop("params")
        state = optimizer.init(weights)
        if params:
            known = getattr(state, "hyperparams", {})
            unknown = sorted(set(params) - set(known))
            if unknown:
                raise ValueError(
                    f"params names {unknown}; the optimizer's injected hyperparameters "
                    f"are {sorted(known)} (see optax.inject_hyperparams)"
                )
            state = state._replace(
                hyperparams={
                    name: jnp.asarray(params.get(name, value), jnp.float32)
                    for name, value in state.hyperparams.items()
                }
            )
        return NetworkModel(weights, collections, state, jnp.zeros((), jnp.int32))

    def update(
        module, model: NetworkModel, features, label, weight, key
    ) -> NetworkModel:
        any_kept = jnp.any(weight > 0)
        augment_key, dropout_key = jax.random.split(key)
        if augment is not None:
            features = augment(augment_key, features)

        def loss(weights):
            logits, collections = module.apply(
                {"params": weights, **model.collections},
                features,
                mutable=list(model.collections),
                rngs={"dropout": dropout_key},
                # Statistics of no row at all would not be finite.
                **_options(module, True, (weight > 0) | ~any_kept),
            )
            total = weighted_cross_entropy(logits, label, weight)
            if regularizer is not None:
                total = total + regularizer(weights)
            return total, collections

        gradient, collections = jax.grad(loss, has_aux=True)(model.weights)
        change, state = optimizer.update(gradient, model.optimizer, model.weights)
        new = NetworkModel(
            weights=optax.apply_updates(model.weights, change),
            collections=dict(collections),
            optimizer=state,
            steps=model.steps + 1,
        )
        return jax.tree.map(lambda n, o: jnp.where(any_kept, n, o), new, model)

    def fit_one(
        spec: Spec, params, model, examples: Examples, init_key, order_key
    ) -> NetworkModel:
        module = make_module(spec.num_classes)
        size = min(training.minibatch_size, spec.capacity)
        before = model
        if training.mode == "refit":
            model = init(spec, params, init_key)
        num_rows = jnp.sum(examples.valid, dtype=jnp.int32)
        per_epoch = jnp.maximum(-(-num_rows // size), 1)
        weights = jnp.where(examples.valid, examples.weight, 0.0)

        # Slots by rank among those that hold a row.
        held = jnp.nonzero(examples.valid, size=spec.capacity, fill_value=0)[0]

        def step(index, carry):
            model, keys = carry
            within = index % per_epoch
            epoch_key = jax.random.fold_in(order_key, index // per_epoch)
            keys = jax.lax.cond(
                within == 0, lambda: shuffling.round_keys(epoch_key), lambda: keys
            )
            position = within * size + jnp.arange(size, dtype=jnp.int32)
            slots = held[shuffling.nth(keys, position, num_rows)]
            inside = position < num_rows
            return (
                update(
                    module,
                    model,
                    examples.features[slots].astype(jnp.float32),
                    examples.label[slots].astype(jnp.int32),
                    jnp.where(inside, weights[slots], 0.0),
                    jax.random.fold_in(order_key, _UPDATES + index),
                ),
                keys,
            )

        num_steps = training.steps_at(examples.arrival)
        keys = shuffling.round_keys(order_key)
        model, _ = jax.lax.fori_loop(0, num_steps, step, (model, keys))
        any_kept = jnp.any(weights > 0)
        return jax.tree.map(lambda n, o: jnp.where(any_kept, n, o), model, before)

    def fit(
        spec: Spec, params, model, examples: Examples, *, init_key, order_key
    ) -> NetworkModel:
        function = functools.partial(fit_one, spec)
        if seeds_in_turn:
            function = jax.custom_batching.sequential_vmap(function)
        return function(params, model, examples, init_key, order_key)

    def classify(spec: Spec, model: NetworkModel, features: Array) -> Array:
        module = make_module(spec.num_classes)

        def logits(rows: Array) -> Array:
            options = _options(module, False, jnp.ones(rows.shape[0], bool))
            variables = {"params": model.weights, **model.collections}
            return jnp.asarray(module.apply(variables, rows, **options))

        def in_pieces(features: Array, size: int) -> Array:
            short = -features.shape[0] % size
            padded = jnp.pad(features, ((0, short), *[(0, 0)] * (features.ndim - 1)))
            out = jax.lax.map(logits, padded.reshape(-1, size, *spec.feature_shape))
            return out.reshape(-1, spec.num_classes)[: features.shape[0]]

        if len(spec.feature_shape) > 1:
            # Activations of images are large: as many rows at a time as in training.
            size = training.minibatch_size
            few = features.shape[0] <= size
            return logits(features) if few else in_pieces(features, size)
        if features.shape[0] <= 2 * _ROWS:
            return logits(features)
        return jax.lax.platform_dependent(
            features, cpu=lambda x: in_pieces(x, _ROWS), default=logits
        )

    def predict_proba(spec: Spec, params, model, memory, queries: Queries) -> Array:
        del params, memory
        function = functools.partial(classify, spec)
        if seeds_in_turn:
            function = jax.custom_batching.sequential_vmap(function)
        features = queries.features.astype(jnp.float32)
        return jax.nn.softmax(function(model, features))

    def nbytes(spec: Spec, num_queries: int) -> int:
        model = jax.eval_shape(
            lambda key: init(spec, {}, key), jax.eval_shape(lambda: jax.random.key(0))
        )
        state = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(model))
        probs = num_queries * spec.num_classes * 8
        # The model as it is and as it was; and each row's weight.
        own = 2 * state + probs + 4 * spec.capacity
        if seeds_in_turn:
            return own
        # Seeds share the features; their kernels, which `activations` counts in, are
        # there, and their gradients are beside.
        size = min(training.minibatch_size, spec.capacity)
        rows = 4 * size * math.prod(spec.feature_shape)
        return own + sum(activations(spec, model)) - rows

    def activations(spec: Spec, model: NetworkModel) -> list[int]:
        """Bytes of each array that a gradient step keeps of the forward pass."""
        size = min(training.minibatch_size, spec.capacity)
        rows = jax.ShapeDtypeStruct((size, *spec.feature_shape), jnp.float32)
        module = make_module(spec.num_classes)

        def backward(weights, collections, rows, key):
            def logits(weights):
                return module.apply(
                    {"params": weights, **collections},
                    rows,
                    mutable=list(collections),
                    rngs={"dropout": key},
                    **_options(module, True, jnp.ones(size, bool)),
                )[0]

            return jax.vjp(logits, weights)[1]

        key = jax.eval_shape(lambda: jax.random.key(0))
        kept = jax.eval_shape(backward, model.weights, model.collections, rows, key)
        return [math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(kept)]

    def workspace(spec: Spec, num_queries: int) -> int:
        del num_queries
        model = jax.eval_shape(
            lambda key: init(spec, {}, key), jax.eval_shape(lambda: jax.random.key(0))
        )
        kept = activations(spec, model)
        # Beside, of one layer at a time: what comes back, what goes on, and what both
        # and the layer's inputs are laid out anew as.
        return sum(kept) + _LAYER * max(kept, default=0)

    return init, fit, predict_proba, nbytes, workspace


def _check_module(module: nn.Module, spec: Spec) -> None:
    """Raises ValueError unless the module's variables and outputs are what we need."""
    row = jax.ShapeDtypeStruct((1, *spec.feature_shape), jnp.float32)
    options = _options(module, False, jnp.ones(1, bool))
    key = jax.eval_shape(lambda: jax.random.key(0))
    variables = jax.eval_shape(lambda k, x: module.init(k, x, **options), key, row)
    extra = sorted(set(variables) - {"params"})
    name = type(module).__name__
    if extra and not {"train", "mask"} <= set(options):
        raise ValueError(
            f"module {name} keeps the collections {extra}, which change in training "
            "and must not be touched by rows of weight 0: its __call__ must take the "
            "keywords `train` (bool) and `mask` ([B] bool, for nn.BatchNorm: "
            "`mask[:, None]`)"
        )
    shape = jax.eval_shape(
        lambda v, x: module.apply(v, x, **options), variables, row
    ).shape
    if shape != (1, spec.num_classes):
        raise ValueError(
            f"module {name} maps features [1, *{spec.feature_shape}] "
            f"to {list(shape)}; it must give logits [1, {spec.num_classes}], one per "
            "class"
        )


@functools.cache
def _steps(training: Training) -> Callable[[int], int]:
    """One object for equal trainings (a bound method would differ each time)."""
    return training.steps_at


@functools.cache
def _constant(module: nn.Module) -> Callable[[int], nn.Module]:
    return lambda num_classes: module


def network(
    module: nn.Module | Callable[[int], nn.Module],
    optimizer: optax.GradientTransformation,
    *,
    training: Training | None = None,
    params: dict | None = None,
    name: str = "network",
    regularizer: Callable[[PyTree], Array] | None = None,
    augment: Callable[[PRNGKey, Array], Array] | None = None,
    seeds_in_turn: bool = False,
) -> Learner:
    """Any Linen module, trained by any optax optimizer.

    A module whose `__call__` names the keyword `train` is told whether it is trained
    (dropout gets its own random stream, the same for all seeds that share minibatches);
    one that names `mask` gets ``[B]`` bool, the rows that weigh anything. A module with
    running statistics must take both, see `rad_jax.learners.VGG`.

    Args:
      module: maps features ``[B, *S]`` to logits ``[B, K]``, or a function that makes
        such a module for a given K. Keep one object and pass it each time: equal
        modules share compiled code.
      optimizer: from `optax`. Keep one object; a new one is compiled anew.
      training: steps, minibatches, mode; the default `Training()`.
      params: hyperparameters of an optimizer made with `optax.inject_hyperparams`
        that replace its own; they become array parameters and may be vmapped.
      name: how reports call it.
      regularizer: ``(weights) -> scalar``, added to the loss. Keep one object.
      augment: ``(key, features [B, *S]) -> features``, applied to every minibatch in
        training only. Keep one object.
      seeds_in_turn: train and predict one seed after the other under `vmap`, for
        networks large enough to fill the machine alone: activations of one seed exist
        at a time.

    Returns:
      The learner.

    Raises:
      ValueError: for a training out of range; when initialised, for a module that
        keeps other collections than 'params' but takes no `train` and `mask`, or has
        the wrong number of outputs.
    """
    training = training or Training()
    training.check()
    make_module = _constant(module) if isinstance(module, nn.Module) else module
    init, fit, predict_proba, nbytes, workspace = _functions(
        make_module, optimizer, training, regularizer, augment, seeds_in_turn
    )
    return Learner(
        name=name,
        init=init,
        fit=fit,
        predict_proba=predict_proba,
        bytes=nbytes,
        params=dict(params or {}),
        steps=_steps(training),
        workspace=workspace if seeds_in_turn else no_workspace,
    )
