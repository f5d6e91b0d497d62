"""Support vector machines, linear or of the RBF kernel, solved by Newton's method."""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rad_jax import checks
from rad_jax.learners.hinge import Plane, minimise, values_at
from rad_jax.learners.kernel import nystroem
from rad_jax.learners.nearest import flat
from rad_jax.types import Array, Examples, Learner, Queries, Spec

#: Slack up to which the RBF machine's loss is quadratic.
_CAPS = {"one_vs_rest": 1.0, "one_vs_one": 0.25}


class SVMModel(NamedTuple):
    """P hyperplanes: one per class, or per pair of classes.

    Attributes:
      weights: ``[P, W]`` float32, W the features' width (D, or the landmarks').
      bias: ``[P]`` float32.
      known: ``[K]`` bool, classes that have a kept row.
    """

    weights: Array
    bias: Array
    known: Array


def _problems(num_classes: int, pairs: bool) -> tuple[np.ndarray, np.ndarray]:
    """Classes ``[P]`` on either side of each plane; -1 for all others."""
    if pairs:
        first, second = np.triu_indices(num_classes, 1)
        return first, second
    return np.arange(num_classes), np.full(num_classes, -1)


def _elect(values: Array, known: Array) -> Array:
    """Votes ``[Q, K]`` of pairs ``[P, Q]``; equal numbers by the sum of values."""
    first, second = _problems(known.shape[0], pairs=True)
    classes = np.arange(known.shape[0])
    wins = jnp.asarray(first[:, None] == classes[None, :], jnp.float32)
    loses = jnp.asarray(second[:, None] == classes[None, :], jnp.float32)
    takes_part = (known[first] & known[second])[:, None]
    values = jnp.where(takes_part, values, 0.0)
    won = (values > 0) & takes_part
    lost = (values <= 0) & takes_part
    exact = jax.lax.Precision.HIGHEST
    votes = jnp.matmul(won.T.astype(jnp.float32), wins, precision=exact)
    votes += jnp.matmul(lost.T.astype(jnp.float32), loses, precision=exact)
    total = jnp.matmul(values.T, wins - loses, precision=exact)
    return votes + total / (3.0 * (jnp.abs(total) + 1.0))


class _Form(NamedTuple):
    """What is static of a machine; hashable.

    Attributes:
      kernel: gamma and number of landmarks, or None.
      pairs: one plane for each pair of classes, instead of one for each class.
      cap: slack up to which the loss is quadratic; inf: everywhere.
      max_newton: bound on Newton steps.
      max_cg: bound on conjugate gradient iterations of a step.
    """

    kernel: tuple[float | str, int] | None
    pairs: bool
    cap: float
    max_newton: int
    max_cg: int


@functools.cache
def _functions(form: _Form):
    preparation = None if form.kernel is None else nystroem(*form.kernel)

    def shape(spec: Spec) -> tuple[int, int]:
        """P planes, of features of which width."""
        num_planes = len(_problems(spec.num_classes, form.pairs)[0])
        if form.kernel is None:
            return num_planes, math.prod(spec.feature_shape)
        return num_planes, min(form.kernel[1], spec.capacity)

    def init(spec: Spec, params, key) -> SVMModel:
        del params, key
        return SVMModel(
            weights=jnp.zeros(shape(spec), jnp.float32),
            bias=jnp.zeros(shape(spec)[0], jnp.float32),
            known=jnp.zeros(spec.num_classes, bool),
        )

    def fit(
        spec: Spec, params, model: SVMModel, examples: Examples, *, init_key, order_key
    ) -> SVMModel:
        del init_key, order_key
        if preparation is None:
            rows = flat(examples.features)
        else:
            rows = examples.prepared[preparation.name].mapped
        weight = jnp.where(examples.valid, examples.weight, 0.0)
        label = jnp.where(weight > 0, examples.label.astype(jnp.int32), -1)
        first, second = _problems(spec.num_classes, form.pairs)
        own = label[None, :] == first[:, None]
        # The cost of a unit of slack, in the quadratic part.
        price = 2.0 if math.isinf(form.cap) else 1.0 / form.cap
        cost = price * jnp.asarray(params["C"], jnp.float32) * weight[None, :]
        if form.pairs:
            cost = jnp.where(own | (label[None, :] == second[:, None]), cost, 0.0)
        plane = minimise(
            rows,
            examples.valid,
            jnp.where(own, 1.0, -1.0),
            cost,
            form.cap,
            Plane(model.weights, model.bias),
            form.max_newton,
            form.max_cg,
        )
        classes = jnp.arange(spec.num_classes, dtype=jnp.int32)
        known = jnp.any(label[None, :] == classes[:, None], axis=1)
        any_kept = jnp.any(weight > 0)
        return jax.tree.map(
            lambda new, old: jnp.where(any_kept, new, old),
            SVMModel(plane.weights, plane.bias, known),
            model,
        )

    def predict_proba(spec, params, model: SVMModel, memory, queries: Queries):
        del spec, params, memory
        if preparation is None:
            rows = flat(queries.features)
        else:
            rows = queries.prepared[preparation.name]
        values = values_at(Plane(model.weights, model.bias), rows)
        scores = _elect(values, model.known) if form.pairs else values.T
        # With no row at all every class is equally probable.
        possible = jnp.where(jnp.any(model.known), model.known, True)[None, :]
        return jax.nn.softmax(scores, axis=-1, where=possible)

    def nbytes(spec: Spec, num_queries: int) -> int:
        num_planes, width = shape(spec)
        model = num_planes * (width + 2)
        rows = 4 * spec.capacity + 2 * num_queries
        return 4 * (6 * model + rows * num_planes)

    return init, fit, predict_proba, preparation, nbytes


def _learner(name: str, form: _Form, C) -> Learner:
    if not isinstance(C, jax.core.Tracer):
        values = np.asarray(C, np.float64)
        if not np.all((values > 0) & (values <= 1e6)):
            raise ValueError(f"C must lie in (0, 10^6], got {C}")
    form = form._replace(
        max_newton=checks.whole("max_newton", form.max_newton, 1),
        max_cg=checks.whole("max_cg", form.max_cg, 1),
    )
    init, fit, predict_proba, preparation, nbytes = _functions(form)
    return Learner(
        name=name,
        init=init,
        fit=fit,
        predict_proba=predict_proba,
        bytes=nbytes,
        params={"C": C},
        preparation=preparation,
    )


def linear_svm(C: float = 1.0, *, max_newton: int = 50, max_cg: int = 200) -> Learner:
    """Linear support vector machine, as scikit-learn's `LinearSVC`.

    One-vs-rest; each class minimises ``|w|^2/2 + b^2/2 + C sum max(0, 1 - y f(x))^2``
    over all kept rows (the bias is regularised as any other weight, which is
    `LinearSVC` with ``intercept_scaling=1``). Solved to convergence at every arrival
    by Newton's method with exact line search, from the present hyperplanes: no
    learning rate, no minibatches, and the same answer wherever it starts. Standardise
    features first.

    Probabilities are the softmax of the decision values. Their order is right, their
    size means little: weigh them against another learner's with ``calibrate=True``,
    which fits a temperature. A class without a kept row has probability 0.

    Args:
      C: cost of errors, in (0, 10^6]; an array parameter, may be vmapped.
      max_newton: bound on Newton steps at an arrival.
      max_cg: bound on the conjugate gradient iterations of one Newton step.

    Returns:
      The learner.

    Raises:
      TypeError: for a bound that is no whole number.
      ValueError: for a C or a bound out of range.

    References:
      S. Keerthi, D. DeCoste, A modified finite Newton method for fast solution of large
      scale linear SVMs, JMLR 2005.
    """
    return _learner("linear_svm", _Form(None, False, math.inf, max_newton, max_cg), C)


def rbf_svm(
    gamma: float | str = "scale",
    *,
    C: float = 1.0,
    multiclass: str = "one_vs_rest",
    num_landmarks: int = 512,
    max_newton: int = 50,
    max_cg: int = 200,
) -> Learner:
    """Support vector machine with the kernel ``exp(-gamma |x - y|^2)``, approximate.

    The exact kernel of 50,000 rows takes 10 GB. Rows are described by `num_landmarks`
    Nystroem features instead, which are computed once for all seeds and take
    ``4 num_landmarks`` bytes for each slot of memory and each query (100 MB for 50,000
    slots by default). Landmarks are rows of the clean batch, evenly spaced in it; all
    of them if they are fewer. What the clean batch does not resemble is described
    poorly.

    On these features each plane minimises ``|w|^2/2 + b^2/2 + C sum h(1 - y f(x))``,
    where h is the hinge of scikit-learn's `SVC`, rounded off: quadratic up to a slack
    of 1 ("one_vs_rest") or 0.25 ("one_vs_one"), linear beyond. (`SVC` does not
    regularise the bias.) Solved as `linear_svm` is; probabilities as there, of decision
    values or of votes.

    Args:
      gamma: "scale" for ``1 / (D var(X))`` over the clean rows, or a number > 0.
      C: cost of errors, in (0, 10^6]; an array parameter, may be vmapped.
      multiclass: "one_vs_rest", a plane for each class; or "one_vs_one", a plane for
        each pair of classes that vote, as in `SVC`. The latter bears wrong labels
        better where classes are many (a pair sees few of them) and takes
        ``(K - 1) / 2`` times the time and memory.
      num_landmarks: at least 1.
      max_newton: bound on Newton steps at an arrival.
      max_cg: bound on the conjugate gradient iterations of one Newton step.

    Returns:
      The learner.

    Raises:
      TypeError: for a number that must be whole and is not.
      ValueError: for an unknown multiclass; for a gamma, C, num_landmarks or bound out
        of range; when started, for kernel features that take more than 8 GiB.
    """
    if isinstance(gamma, str):
        if gamma != "scale":
            raise ValueError(f"gamma must be 'scale' or a number > 0, got {gamma!r}")
    elif not (0 < gamma < math.inf):
        raise ValueError(f"gamma must be 'scale' or a number > 0, got {gamma}")
    else:
        gamma = float(gamma)
    if multiclass not in _CAPS:
        raise ValueError(
            f"multiclass must be one of {tuple(_CAPS)}, got {multiclass!r}"
        )
    form = _Form(
        kernel=(gamma, checks.whole("num_landmarks", num_landmarks, 1)),
        pairs=multiclass == "one_vs_one",
        cap=_CAPS[multiclass],
        max_newton=max_newton,
        max_cg=max_cg,
    )
    return _learner("rbf_svm", form, C)
