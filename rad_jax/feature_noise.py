"""Noise that depends on features: rows near another class are the ones mislabelled."""

import jax
import jax.numpy as jnp
import numpy as np

from rad_jax.schedules import check_rate
from rad_jax.types import UNLABELLED, Array, Noise

#: Weights are floored at exp of this: every row can be flipped if the rate asks so.
_LOWEST = -60.0


def class_centroids(features, label, num_classes: int) -> np.ndarray:
    """Mean of the rows of each true class, on the host.

    Args:
      features: ``[N, *S]``; those that the stream will show, scaled alike.
      label: ``[N]`` int, true classes in ``0..K-1``.
      num_classes: K.

    Returns:
      ``[K, *S]`` float32.

    Raises:
      ValueError: for a class without rows.
    """
    features, label = np.asarray(features), np.asarray(label)
    if features.shape[:1] != label.shape:
        raise ValueError(
            f"features must have a row for each of the labels, {label.shape}, got "
            f"shape {features.shape}"
        )
    count = np.bincount(label, minlength=num_classes)
    if len(count) > num_classes or not count.all():
        raise ValueError(
            f"label must hold rows of each class 0..{num_classes - 1} and of no other, "
            f"got {count.tolist()} rows of class 0, 1, …"
        )
    return np.stack(
        [features[label == k].mean(0, dtype=np.float64) for k in range(num_classes)]
    ).astype(np.float32)


def nearest_other(
    features: Array, label: Array, centroids: Array
) -> tuple[Array, Array]:
    """How near a row is to another class.

    Args:
      features: ``[N, *S]``.
      label: ``[N]`` int, true classes; -1 is read as 0.
      centroids: ``[K, *S]``.

    Returns:
      ``[N]`` float32, distance to the nearest centroid of another class less that to
      its own; ``[N]`` int32, that other class.
    """
    rows = features.reshape(features.shape[0], -1)
    centres = centroids.reshape(centroids.shape[0], -1)
    middle = jnp.mean(centres, axis=0, keepdims=True)
    rows, centres = rows - middle, centres - middle  # squares that cancel less
    product = jnp.matmul(rows, centres.T, precision=jax.lax.Precision.HIGHEST)
    squares = (
        jnp.sum(rows**2, axis=1)[:, None] - 2 * product + jnp.sum(centres**2, 1)[None]
    )
    distance = jnp.sqrt(jnp.maximum(squares, 0.0))
    own = jnp.maximum(label, 0).astype(jnp.int32)
    mine = jnp.arange(centres.shape[0])[None, :] == own[:, None]
    others = jnp.where(mine, jnp.inf, distance)
    gap = jnp.min(others, axis=1) - jnp.sum(jnp.where(mine, distance, 0.0), axis=1)
    return gap, jnp.argmin(others, axis=1).astype(jnp.int32)


def flip_chances(log_weight: Array, eligible: Array, rate: Array) -> Array:
    """Probabilities proportional to weights, clipped at 1, of a given mean.

    Args:
      log_weight: ``[N]`` float.
      eligible: ``[N]`` bool, rows that count; others get 0.
      rate: scalar in [0, 1], the mean over the eligible rows.

    Returns:
      ``[N]`` float32: ``min(1, c * weight)`` with the one c that gives the mean.
    """
    top = jnp.max(jnp.where(eligible, log_weight, -jnp.inf), initial=-jnp.inf)
    scaled = jnp.where(eligible, log_weight - jnp.where(eligible, top, 0.0), 0.0)
    weight = jnp.where(eligible, jnp.exp(jnp.maximum(scaled, _LOWEST)), 0.0)
    # If the m heaviest are at 1, c = (asked - m) / (sum of the others); m is the
    # least for which the next one is not above 1.
    heaviest = jnp.sort(weight, descending=True)
    rest = jnp.cumsum(heaviest[::-1])[::-1]
    clipped = jnp.arange(weight.shape[0], dtype=weight.dtype)
    asked = rate * jnp.sum(eligible)
    factor = jnp.maximum(asked - clipped, 0.0) / jnp.maximum(rest, 1e-30)
    fits = factor * heaviest <= 1.0
    factor = jnp.where(jnp.any(fits), factor[jnp.argmax(fits)], jnp.inf)
    chance = jnp.where(weight > 0, jnp.minimum(factor * weight, 1.0), 0.0)
    return jnp.where(rate >= 1.0, eligible.astype(chance.dtype), chance)


def _feature_dependent(params, label, valid, *, num_classes, key, features):
    if num_classes < 2:
        raise ValueError(f"num_classes must be at least 2, got {num_classes}")
    centroids = jnp.asarray(params["centroids"])
    if centroids.shape != (num_classes, *features.shape[1:]):
        raise ValueError(
            f"centroids must be [{num_classes}, *{features.shape[1:]}], one for each "
            f"class like the rows of features, got shape {centroids.shape}"
        )
    eligible = valid & (label != UNLABELLED)
    gap, other = nearest_other(features, label, centroids)
    count = jnp.maximum(jnp.sum(eligible), 1)
    scale = jnp.sum(jnp.where(eligible, jnp.abs(gap), 0.0)) / count
    chance = flip_chances(-gap / jnp.maximum(scale, 1e-12), eligible, params["rate"])
    flipped = eligible & (jax.random.uniform(key, label.shape, jnp.float32) < chance)
    return jnp.where(flipped, other.astype(label.dtype), label)


def feature_dependent(rate, centroids) -> Noise:
    """Rows near another class become that class, the nearer the likelier.

    A row's weight is ``exp(-(d_other - d_own) / s)``: d_own its distance to the
    centroid of its true class, d_other that to the nearest other centroid, s the mean
    of ``|d_other - d_own|`` over the labelled rows of the batch. The probability of a
    flip is proportional to the weight, clipped at 1, with the batch's mean equal to
    `rate`; rows flip independently, to that nearest other class.

    Args:
      rate: in [0, 1], the mean rate; an array parameter, may be vmapped.
      centroids: ``[K, *S]``, of the true classes (`class_centroids`).

    Returns:
      The noise model; it needs features.

    Raises:
      ValueError: for a rate outside [0, 1] or centroids that are not finite.
    """
    if not isinstance(centroids, jax.core.Tracer):
        values = np.asarray(centroids, np.float32)
        if values.ndim < 2 or not np.isfinite(values).all():
            raise ValueError(
                "centroids must be finite, [K, ...] like the features, got shape "
                f"{values.shape} with {np.sum(~np.isfinite(values))} not finite"
            )
    params = {"rate": check_rate(rate), "centroids": centroids}
    return Noise(_feature_dependent, params, ("features",))
