"""Networks: any Linen module with any optax optimizer, and the paper's MLP."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from rad_jax.types import Array, Examples, Learner, PyTree, Queries, Spec

#: Training goes on from the present weights, or starts again at every arrival.
MODES = ("continue", "refit")


class NetworkModel(NamedTuple):
    """A network in training.

    Attributes:
      weights: the module's parameters.
      optimizer: state of the optimizer; hyperparameters injected with
        `optax.inject_hyperparams` are part of it.
      steps: int32 scalar, updates made (minibatches without a kept row make none).
    """

    weights: PyTree
    optimizer: PyTree
    steps: Array


class Training(NamedTuple):
    """How long and how a network is trained.

    Attributes:
      mode: "continue": at every arrival `steps` further gradient steps; "refit": from
        the initial weights again, with as many steps as "continue" would have taken
        by then.
      steps: gradient steps at an arrival.
      initial_steps: gradient steps on the clean batch.
      minibatch_size: rows of a minibatch. Minibatches are drawn from all stored
        rows, kept or not, so that every seed sees the same features; rows that a
        seed has not kept weigh nothing.
    """

    mode: str = "continue"
    steps: int = 100
    initial_steps: int = 500
    minibatch_size: int = 200

    def steps_at(self, arrival):
        """Gradient steps at an arrival (int or int32 scalar)."""
        first = arrival == 0
        if self.mode == "refit":
            return self.initial_steps + self.steps * arrival
        if isinstance(arrival, int):
            return self.initial_steps if first else self.steps
        return jnp.where(first, self.initial_steps, self.steps)

    def check(self) -> None:
        """Raises ValueError where a field is out of range."""
        if self.mode not in MODES:
            raise ValueError(f"mode must be one of {MODES}, got {self.mode!r}")
        for name in ("steps", "initial_steps", "minibatch_size"):
            value = getattr(self, name)
            if not 1 <= value < 2**31:
                raise ValueError(f"{name} must lie in 1..2^31-1, got {value}")


def weighted_cross_entropy(logits: Array, label: Array, weight: Array) -> Array:
    """Mean cross-entropy over rows of positive weight; 0 without any.

    Args:
      logits: ``[B, K]``.
      label: ``[B]`` int32 in 0..K-1 where the weight is positive.
      weight: ``[B]`` float.

    Returns:
      Scalar.
    """
    safe = jnp.where(weight > 0, label, 0)
    losses = optax.losses.softmax_cross_entropy_with_integer_labels(logits, safe)
    return jnp.sum(losses * weight) / jnp.maximum(jnp.sum(weight), 1e-12)


def _shuffled(key: jax.Array, valid: Array, padding: int) -> Array:
    """The valid slots in random order, then the others, then padding."""
    draw = jnp.where(valid, jax.random.uniform(key, valid.shape), 2.0)
    return jnp.pad(jnp.argsort(draw).astype(jnp.int32), (0, padding))


@functools.cache
def _functions(
    make_module: Callable[[int], nn.Module],
    optimizer: optax.GradientTransformation,
    training: Training,
):

    def init(spec: Spec, params, key) -> NetworkModel:
        module = make_module(spec.num_classes)
        variables = module.init(key, jnp.zeros((1, *spec.feature_shape), jnp.float32))
        _check_module(module, variables, spec)
        weights = variables["params"]
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
        return NetworkModel(weights, state, jnp.zeros((), jnp.int32))

    def update(module, model: NetworkModel, features, label, weight) -> NetworkModel:
        def loss(weights):
            logits = module.apply({"params": weights}, features)
            return weighted_cross_entropy(logits, label, weight)

        gradient = jax.grad(loss)(model.weights)
        change, state = optimizer.update(gradient, model.optimizer, model.weights)
        new = NetworkModel(
            optax.apply_updates(model.weights, change), state, model.steps + 1
        )
        any_kept = jnp.any(weight > 0)
        return jax.tree.map(lambda n, o: jnp.where(any_kept, n, o), new, model)

    def fit(
        spec: Spec, params, model, examples: Examples, *, init_key, order_key
    ) -> NetworkModel:
        module = make_module(spec.num_classes)
        size = min(training.minibatch_size, spec.capacity)
        before = model
        if training.mode == "refit":
            model = init(spec, params, init_key)
        num_rows = jnp.sum(examples.valid, dtype=jnp.int32)
        per_epoch = jnp.maximum(-(-num_rows // size), 1)
        weights = jnp.where(examples.valid, examples.weight, 0.0)

        def step(index, carry):
            model, order = carry
            within = index % per_epoch
            order = jax.lax.cond(
                within == 0,
                lambda: _shuffled(
                    jax.random.fold_in(order_key, index // per_epoch),
                    examples.valid,
                    size,
                ),
                lambda: order,
            )
            start = within * size
            slots = jax.lax.dynamic_slice(order, (start,), (size,))
            inside = start + jnp.arange(size) < num_rows
            return (
                update(
                    module,
                    model,
                    examples.features[slots].astype(jnp.float32),
                    examples.label[slots].astype(jnp.int32),
                    jnp.where(inside, weights[slots], 0.0),
                ),
                order,
            )

        order = jnp.zeros(spec.capacity + size, jnp.int32)
        num_steps = training.steps_at(examples.arrival)
        model, _ = jax.lax.fori_loop(0, num_steps, step, (model, order))
        any_kept = jnp.any(weights > 0)
        return jax.tree.map(lambda n, o: jnp.where(any_kept, n, o), model, before)

    def predict_proba(spec: Spec, params, model, memory, queries: Queries) -> Array:
        del params, memory
        module = make_module(spec.num_classes)
        features = queries.features.astype(jnp.float32)
        logits = jnp.asarray(module.apply({"params": model.weights}, features))
        return jax.nn.softmax(logits)

    def nbytes(spec: Spec, num_queries: int) -> int:
        model = jax.eval_shape(
            lambda key: init(spec, {}, key), jax.eval_shape(lambda: jax.random.key(0))
        )
        state = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(model))
        weights = sum(math.prod(x.shape) * 4 for x in jax.tree.leaves(model.weights))
        return 2 * state + 2 * weights + num_queries * spec.num_classes * 8

    return init, fit, predict_proba, nbytes


def _check_module(module: nn.Module, variables, spec: Spec) -> None:
    extra = sorted(set(variables) - {"params"})
    if extra:
        raise ValueError(
            f"module {type(module).__name__} keeps the collections {extra}; a network "
            "learner takes modules that have 'params' only"
        )
    shape = jax.eval_shape(
        module.apply,
        variables,
        jax.ShapeDtypeStruct((1, *spec.feature_shape), jnp.float32),
    ).shape
    if shape != (1, spec.num_classes):
        raise ValueError(
            f"module {type(module).__name__} maps features [1, *{spec.feature_shape}] "
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
) -> Learner:
    """Any Linen module, trained by any optax optimizer.

    Args:
      module: maps features ``[B, *S]`` to logits ``[B, K]``, or a function that makes
        such a module for a given K. Keep one object and pass it each time: equal
        modules share compiled code.
      optimizer: from `optax`. Keep one object; a new one is compiled anew.
      training: steps, minibatches, mode; the default `Training()`.
      params: hyperparameters of an optimizer made with `optax.inject_hyperparams`
        that replace its own; they become array parameters and may be vmapped.
      name: how reports call it.

    Returns:
      The learner.

    Raises:
      ValueError: for a training out of range; when initialised, for a module that
        keeps other collections than 'params' or has the wrong number of outputs.
    """
    training = training or Training()
    training.check()
    make_module = _constant(module) if isinstance(module, nn.Module) else module
    init, fit, predict_proba, nbytes = _functions(make_module, optimizer, training)
    return Learner(
        name=name,
        init=init,
        fit=fit,
        predict_proba=predict_proba,
        bytes=nbytes,
        params=dict(params or {}),
        steps=_steps(training),
    )


class MLP(nn.Module):
    """Dense layers with ReLU between them; features are flattened first.

    Attributes:
      hidden: widths of the hidden layers.
      num_classes: K, width of the output.
    """

    hidden: tuple[int, ...]
    num_classes: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Maps ``[B, *S]`` to logits ``[B, K]``."""
        x = x.reshape(x.shape[0], -1)
        for width in self.hidden:
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(self.num_classes)(x)


@functools.cache
def _mlp_maker(hidden: tuple[int, ...]) -> Callable[[int], nn.Module]:
    return lambda num_classes: MLP(hidden, num_classes)


@functools.cache
def _adam() -> optax.GradientTransformation:
    return optax.inject_hyperparams(
        optax.adam, static_args=("b1", "b2", "eps", "eps_root")
    )(learning_rate=1e-3)


def mlp(
    hidden: Sequence[int] = (28, 28),
    *,
    learning_rate: float = 1e-3,
    training: Training | None = None,
) -> Learner:
    """The paper's multi-layer perceptron: ReLU, Adam.

    Args:
      hidden: widths of the hidden layers, each at least 1.
      learning_rate: Adam's; an array parameter, may be vmapped.
      training: steps, minibatches, mode; the default `Training()`.

    Returns:
      The learner.

    Raises:
      ValueError: for a width below 1, a learning rate or a training out of range.
    """
    if not isinstance(learning_rate, jax.core.Tracer):
        rates = np.asarray(learning_rate, np.float64)
        if not np.all((rates > 0) & (rates <= 1e3)):
            raise ValueError(
                f"learning_rate must lie in (0, 1000], got {learning_rate}"
            )
    if isinstance(hidden, int):
        raise ValueError(f"hidden must be a sequence of widths, got {hidden}")
    hidden = tuple(int(width) for width in hidden)
    if any(width < 1 for width in hidden):
        raise ValueError(f"hidden widths must be at least 1, got {hidden}")
    return network(
        _mlp_maker(hidden),
        _adam(),
        training=training,
        params={"learning_rate": learning_rate},
        name="mlp",
    )
