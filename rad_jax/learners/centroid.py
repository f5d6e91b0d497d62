"""Nearest centroid: one mean per class of the rows that a seed has kept."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rad_jax.learners.nearest import distances2, flat
from rad_jax.types import Array, Examples, Learner, Queries, Spec

_BLOCK_ROWS = 4096


class CentroidModel(NamedTuple):
    """Sums over the kept rows of one seed.

    Attributes:
      mean: ``[K, D]`` float32, of each class.
      count: ``[K]`` float32, kept rows of each class; 0: can't be predicted.
      variance: float32 scalar, mean squared distance of kept rows to the mean of
        their own class.
    """

    mean: Array
    count: Array  # type: ignore[assignment]
    variance: Array


def _init(spec: Spec, params, key) -> CentroidModel:
    del params, key
    width = math.prod(spec.feature_shape)
    return CentroidModel(
        mean=jnp.zeros((spec.num_classes, width), jnp.float32),
        count=jnp.zeros(spec.num_classes, jnp.float32),
        variance=jnp.ones((), jnp.float32),
    )


def _blocks(examples: Examples):
    """Rows in blocks, so that the one-hot labels of all rows never exist at once."""
    features = flat(examples.features)
    weight = examples.weight * examples.valid
    size = min(_BLOCK_ROWS, features.shape[0])
    short = -features.shape[0] % size
    return (
        jnp.pad(features, ((0, short), (0, 0))).reshape(-1, size, features.shape[1]),
        jnp.pad(examples.label, (0, short)).reshape(-1, size),
        jnp.pad(weight, (0, short)).reshape(-1, size),
    )


def _fit(
    spec: Spec, params, model: CentroidModel, examples: Examples, *, init_key, order_key
) -> CentroidModel:
    del params, init_key, order_key
    blocks = _blocks(examples)
    classes = jnp.arange(spec.num_classes, dtype=examples.label.dtype)

    def one_hot(label, weight):
        return (label[:, None] == classes[None, :]) * weight[:, None]

    def add(total, block):
        features, label, weight = block
        member = one_hot(label, weight)
        product = jnp.matmul(member.T, features, precision=jax.lax.Precision.HIGHEST)
        return (total[0] + product, total[1] + jnp.sum(member, axis=0)), None

    zero = (jnp.zeros_like(model.mean), jnp.zeros_like(model.count))
    (total, count), _ = jax.lax.scan(add, zero, blocks)
    mean = total / jnp.maximum(count, 1e-12)[:, None]

    def spread(sum_, block):
        features, label, weight = block
        own = mean[label.astype(jnp.int32)]
        distance2 = jnp.sum(jnp.square(features - own), axis=-1)
        return sum_ + jnp.sum(weight * distance2), None

    squares, _ = jax.lax.scan(spread, jnp.zeros((), jnp.float32), blocks)
    rows = jnp.sum(count)
    variance = jnp.maximum(squares / jnp.maximum(rows, 1e-12), 1e-12)
    new = CentroidModel(mean, count, variance)
    return jax.tree.map(lambda fresh, old: jnp.where(rows > 0, fresh, old), new, model)


def _predict_proba(
    spec: Spec, params, model: CentroidModel, memory, queries: Queries
) -> Array:
    del spec, params, memory
    features = flat(queries.features)
    distance2 = distances2(features, model.mean)
    logits = -distance2 / (2.0 * model.variance)
    known = model.count > 0
    # With no row at all every class is equally probable.
    possible = jnp.where(jnp.any(known), known, True)[None, :]
    return jax.nn.softmax(logits, axis=-1, where=possible)


def _nbytes(spec: Spec, num_queries: int) -> int:
    width = math.prod(spec.feature_shape)
    block = _BLOCK_ROWS * (spec.num_classes + width)
    return 4 * (3 * spec.num_classes * width + block + num_queries * spec.num_classes)


def nearest_centroid() -> Learner:
    """The class whose mean is nearest (Euclidean); equal distances: the lowest class.

    Probabilities are ``softmax(-d^2 / (2 s^2))`` with ``s^2`` the mean squared
    distance of kept rows to their own mean. They saturate near 1 (in D dimensions
    ``s^2`` is about D times the variance of one), so weigh them with care against
    those of other learners. A class without a kept row has probability 0.
    """
    return Learner(
        name="nearest_centroid",
        init=_init,
        fit=_fit,
        predict_proba=_predict_proba,
        bytes=_nbytes,
    )
