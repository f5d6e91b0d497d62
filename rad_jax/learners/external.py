"""Classifiers that are not JAX (scikit-learn's and their like), one step at a time.

They are called with NumPy arrays, so nothing that contains one can be traced: `jit`,
`vmap`, `scan` and sweeps are closed to them, and everything else is open.
scikit-learn itself is not needed here.
"""

import copy
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rad_jax.types import (
    Array,
    Examples,
    Learner,
    Preparation,
    PRNGKey,
    Queries,
    Spec,
)

#: Fit anew on all kept rows, or show the estimator the rows that are new.
MODES = ("refit", "continue")
_OFF = 1e-3  # by how much the probabilities of a row may miss the sum 1


@jax.tree_util.register_pytree_node_class
class ExternalModel:
    """A fitted estimator: a node of the state without arrays, never changed in place.

    Attributes:
      estimator: fitted, or None before the first fit and where one class was all
        there was to fit.
      classes: int array, the class of each column of its probabilities; of length 1
        without an estimator, 0 before the first fit.
      seen: by row id, the label it was last shown with; only in mode "continue".
    """

    def __init__(
        self, estimator: Any, classes: np.ndarray, seen: dict[int, int]
    ) -> None:
        self.estimator = estimator
        self.classes = classes
        self.seen = seen

    def tree_flatten(self) -> tuple[tuple, "ExternalModel"]:
        """No leaves; the object itself, which compares by identity."""
        return (), self

    @classmethod
    def tree_unflatten(cls, model: "ExternalModel", leaves: tuple) -> "ExternalModel":
        """The same object again."""
        del leaves
        return model


class _Kept(NamedTuple):
    """Rows of positive weight as NumPy arrays, in the order of their slots."""

    features: np.ndarray  # [n, D]
    label: np.ndarray  # [n]
    row_id: np.ndarray  # [n]


def _kept(examples: Examples) -> _Kept:
    rows = np.flatnonzero(
        np.asarray(examples.valid) & (np.asarray(examples.weight) > 0)
    )
    return _Kept(
        _flat(examples.features)[rows],
        np.asarray(examples.label)[rows].astype(np.int64),
        np.asarray(examples.row_id)[rows],
    )


def _flat(features: Array) -> np.ndarray:
    values = np.asarray(features)
    return values.reshape(len(values), math.prod(values.shape[1:]))


def _check_untraced(name: str, values: Any) -> None:
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(values)):
        raise TypeError(
            f"{name} is no JAX learner: it can be used step by step only, outside jit, "
            "vmap, scan and sweeps. Call init, judge, answer, learn, step and predict "
            "directly, or use OnlineRad, which compiles nothing then"
        )


def _unfitted(estimator: Any) -> Any:
    """A copy that knows nothing, by scikit-learn's own means where it has them."""
    if hasattr(estimator, "get_params"):
        try:
            from sklearn.base import clone
        except ImportError:
            pass
        else:
            return clone(estimator)
    return copy.deepcopy(estimator)


def _with_seed(estimator: Any, key: PRNGKey) -> Any:
    """Sets every `random_state` that is None, those of nested estimators too."""
    if not hasattr(estimator, "get_params"):
        return estimator
    unset = sorted(
        name
        for name, value in estimator.get_params(deep=True).items()
        if name.rsplit("__", 1)[-1] == "random_state" and value is None
    )
    if unset:
        bits = np.asarray(jax.random.bits(key, (len(unset),), jnp.uint32))
        seeds = (bits >> 1).tolist()
        estimator.set_params(**dict(zip(unset, seeds, strict=True)))
    return estimator


def _check_estimator(estimator: Any, mode: str) -> str:
    """Returns what to call the estimator in messages."""
    if isinstance(estimator, type):
        raise TypeError(
            f"estimator must be an object, got the class {estimator.__name__}; write "
            f"{estimator.__name__}()"
        )
    name = type(estimator).__name__
    if not callable(getattr(estimator, "fit", None)):
        raise TypeError(f"estimator must have a method fit, got {estimator!r}")
    if not callable(getattr(estimator, "predict_proba", None)):
        raise TypeError(
            f"estimator {name} gives no class probabilities (it has no predict_proba); "
            f"wrap it in sklearn.calibration.CalibratedClassifierCV({name}(...)), or "
            "choose an option that provides them, such as probability=True of SVC or "
            "loss='log_loss' of SGDClassifier"
        )
    if mode not in MODES:
        raise ValueError(f"mode must be one of {MODES}, got {mode!r}")
    if mode == "continue" and not callable(getattr(estimator, "partial_fit", None)):
        raise TypeError(
            f"mode='continue' needs an estimator with partial_fit, which {name} lacks; "
            "use mode='refit'"
        )
    return name


def _columns(name: str, classes: Any, num_classes: int) -> np.ndarray:
    """The class of each column of an estimator's probabilities."""
    classes = np.asarray(classes)
    known = np.arange(num_classes)
    if classes.ndim != 1 or not np.isin(classes, known).all():
        raise ValueError(
            f"{name}.classes_ must hold classes in 0..{num_classes - 1}, got "
            f"{classes.tolist()}"
        )
    return classes.astype(np.int64)


def _check_probabilities(name: str, probs: np.ndarray, shape: tuple[int, int]) -> None:
    if probs.shape != shape:
        raise ValueError(
            f"{name}.predict_proba must return shape {list(shape)}, one column for "
            f"each of its classes, got {list(probs.shape)}"
        )
    bad = ~(np.isfinite(probs) & (probs >= 0)).all(axis=1)
    bad |= ~(np.abs(probs.sum(axis=1) - 1) <= _OFF)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"{name}.predict_proba must return probabilities that sum to 1, got "
            f"{probs[row].tolist()} for row {row} ({bad.sum()} of {len(probs)} rows)"
        )


def from_sklearn(
    estimator: Any, *, mode: str = "refit", name: str | None = None
) -> Learner:
    """Any classifier with scikit-learn's ``fit`` and ``predict_proba`` as a learner.

    It can be L or C, beside a JAX learner or another of its kind, with the functions
    of `rad_jax.rad` called step by step or through `OnlineRad`; not under `jit`,
    `vmap` or `scan`, nor in a sweep. (The JAX learner beside it is compiled all the
    same.) The estimator handed in is copied, never fitted. Every fit makes a new copy,
    so states of earlier arrivals stay usable.

    It is fitted on the rows of positive weight, features flattened to ``[n, D]``, in
    the order of arrival. Rows of a class that it has not seen have probability 0;
    before the first fit every class is equally probable; with rows of one class only
    that class is predicted, and the estimator is not asked. Each `random_state` that
    is None is drawn from the key of initialisation.

    Args:
      estimator: unfitted (what it has learned is forgotten); nested ones, such as a
        pipeline, will do.
      mode: "refit": anew on everything kept so far, at each arrival. "continue":
        ``partial_fit`` on the kept rows that it has not seen with this label; what
        it has seen it cannot be made to forget, even if the row is dropped later.
      name: how reports call it, by default the estimator's class.

    Returns:
      The learner.

    Raises:
      TypeError: for something without ``fit`` or ``predict_proba``, or (with
        "continue") without ``partial_fit``; in use, if it is traced.
      ValueError: for an unknown mode; in use, for probabilities that are none.
    """
    kind = _check_estimator(estimator, mode)
    name = name or kind
    blank = _unfitted(estimator)

    def init(spec: Spec, params, key: PRNGKey) -> ExternalModel:
        del spec, params
        _check_untraced(name, key)
        return ExternalModel(None, np.zeros(0, np.int64), {})

    def refit(spec: Spec, rows: _Kept, key: PRNGKey) -> ExternalModel:
        found = np.unique(rows.label)
        if len(found) == 1:
            return ExternalModel(None, found, {})
        fitted = _with_seed(_unfitted(blank), key)
        fitted.fit(rows.features, rows.label)
        classes = getattr(fitted, "classes_", found)
        return ExternalModel(fitted, _columns(name, classes, spec.num_classes), {})

    def continue_(
        spec: Spec, model: ExternalModel, rows: _Kept, key: PRNGKey
    ) -> ExternalModel:
        shown = list(zip(rows.row_id.tolist(), rows.label.tolist(), strict=True))
        new = np.array([model.seen.get(row) != label for row, label in shown])
        if not new.any():
            return model
        if model.estimator is None:
            fitted = _with_seed(_unfitted(blank), key)
        else:
            fitted = copy.deepcopy(model.estimator)
        every = np.arange(spec.num_classes)
        fitted.partial_fit(rows.features[new], rows.label[new], classes=every)
        classes = getattr(fitted, "classes_", every)
        return ExternalModel(
            fitted, _columns(name, classes, spec.num_classes), model.seen | dict(shown)
        )

    def fit(
        spec: Spec,
        params,
        model: ExternalModel,
        examples: Examples,
        *,
        init_key: PRNGKey,
        order_key: PRNGKey,
    ) -> ExternalModel:
        del params, order_key
        _check_untraced(name, (examples, init_key))
        rows = _kept(examples)
        if not len(rows.label):
            return model
        if mode == "continue":
            return continue_(spec, model, rows, init_key)
        return refit(spec, rows, init_key)

    def predict_proba(
        spec: Spec, params, model: ExternalModel, memory, queries: Queries
    ) -> Array:
        del params, memory
        _check_untraced(name, queries)
        features = _flat(queries.features)
        shape = (len(features), spec.num_classes)
        if not len(model.classes):
            return jnp.full(shape, 1.0 / spec.num_classes, jnp.float32)
        if model.estimator is None:
            found = np.ones((len(features), 1))
        else:
            found = np.asarray(model.estimator.predict_proba(features))
            _check_probabilities(name, found, (len(features), len(model.classes)))
        probs = np.zeros(shape, np.float32)
        probs[:, model.classes] = found
        return jnp.asarray(probs)

    def nbytes(spec: Spec, num_queries: int) -> int:
        """The arrays handed over; what an estimator holds cannot be known."""
        width = math.prod(spec.feature_shape)
        return 4 * spec.capacity * (width + 3) + 12 * num_queries * spec.num_classes

    return Learner(
        name=name,
        init=init,
        fit=fit,
        predict_proba=predict_proba,
        bytes=nbytes,
        traceable=False,
    )


@functools.cache
def compile_apart(learners: tuple[Learner, ...]) -> tuple[Learner, ...]:
    """Compiles JAX learners one by one where another keeps them from it as a whole.

    Untraced, their loops would be compiled anew at every call.

    Args:
      learners: hashable, so without parameters.

    Returns:
      The learners: as they came if all can be traced.
    """
    if all(learner.traceable for learner in learners):
        return learners
    return tuple(
        learner._replace(
            init=jax.jit(learner.init, static_argnums=0),
            fit=jax.jit(learner.fit, static_argnums=0),
            predict_proba=jax.jit(learner.predict_proba, static_argnums=0),
            preparation=learner.preparation and _compiled(learner.preparation),
        )
        if learner.traceable
        else learner
        for learner in learners
    )


@functools.cache
def _compiled(preparation: Preparation) -> Preparation:
    return preparation._replace(
        start=jax.jit(preparation.start),
        store=jax.jit(preparation.store),
        build=jax.jit(preparation.build),
        extend=jax.jit(preparation.extend),
    )
