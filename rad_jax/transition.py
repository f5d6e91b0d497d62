"""Transition matrices ``T[true, given]``: how true classes turn into given ones.

Rows are true classes and sum to 1, columns are given classes.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln

from rad_jax.types import UNLABELLED, Array

#: No class is impossible: this much of a row's probability is spread evenly.
_FLOOR = 1e-3
#: Strengths of the prior to choose from, in rows per class, …
_STRENGTHS = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
#: … and the one used for the first steps, while the counts still change.
_FIRST_STRENGTH = 10.0
_SETTLED = 5
#: Rows that speak for the probabilities as they came: a few clean rows without a
#: mistake would otherwise ask for an endless sharpness.
_PRIOR_ROWS = 20.0


def symmetric(rate, num_classes: int) -> Array:
    """``[K, K]``: 1 - rate on the diagonal, the rest spread evenly."""
    eye = jnp.eye(num_classes)
    return (1 - rate) * eye + rate * (1 - eye) / (num_classes - 1)


def pair(rate, num_classes: int) -> Array:
    """``[K, K]``: class k is given as k + 1 (the last as 0) with probability rate."""
    eye = jnp.eye(num_classes)
    return (1 - rate) * eye + rate * jnp.roll(eye, 1, axis=1)


def check_matrix(matrix, name: str = "matrix"):
    """Raises ValueError unless a concrete ``T[true, given]`` is row-stochastic.

    Returns:
      ``[..., K, K]`` float32.
    """
    if isinstance(matrix, jax.core.Tracer):
        return matrix
    try:
        values = np.asarray(matrix, np.float64)
    except (TypeError, ValueError) as error:  # texts; rows of different lengths
        raise ValueError(f"{name} must be numbers, [K, K]: {error}") from None
    if values.ndim < 2 or values.shape[-1] != values.shape[-2] or values.shape[-1] < 2:
        raise ValueError(
            f"{name} must be square, [K, K] for K >= 2 classes, got shape "
            f"{values.shape}"
        )
    if not np.all(np.isfinite(values)) or values.min() < 0:
        worst = values[~np.isfinite(values) | (values < 0)][0]
        raise ValueError(f"{name} must have entries of at least 0, got {worst}")
    sums = values.sum(-1)
    bad = np.argwhere(np.abs(sums - 1) > 1e-5)
    if bad.size:
        at = tuple(bad[0])
        raise ValueError(
            f"{name} must have rows (true classes) that sum to 1, row "
            f"{', '.join(map(str, at))} sums to {sums[at]:.6g}"
        )
    return jnp.asarray(values, jnp.float32)


def realised(given: Array, true_label: Array, valid: Array, num_classes: int) -> Array:
    """``T[true, given]`` as it came out.

    Returns:
      ``[K, K]`` float32; a row of NaN for a class without labelled rows.
    """
    labelled = valid & (given != UNLABELLED) & (true_label != UNLABELLED)
    cell = true_label.astype(jnp.int32) * num_classes + given.astype(jnp.int32)
    cell = jnp.where(labelled, cell, num_classes * num_classes)
    counts = jnp.zeros(num_classes * num_classes, jnp.float32)
    counts = counts.at[cell].add(1.0, mode="drop").reshape(num_classes, num_classes)
    return counts / jnp.sum(counts, axis=1, keepdims=True)


class Estimate(NamedTuple):
    """How labels seem to go wrong.

    Attributes:
      matrix: ``[K, K]`` float32, ``T[true, given]``, rows sum to 1.
      error_rate: scalar, share of the counted rows whose given label seems wrong.
      strength: scalar, rows of prior knowledge that each class was given.
      temperature: scalar, by which probabilities were calibrated.
    """

    matrix: Array
    error_rate: Array
    strength: Array
    temperature: Array


def estimate(
    probs: Array,
    given: Array,
    counted: Array,
    *,
    clean_probs: Array | None = None,
    clean_label: Array | None = None,
    clean_weight: Array | None = None,
    known: Array | None = None,
    num_steps: int = 30,
) -> Estimate:
    """Estimates ``T[true, given]`` from given labels and class probabilities.

    Expectation maximisation: a row's true class is k with probability proportional to
    ``p(k) * T[k, given]``, and T is what these say of all rows. Two things make it
    better than counting. Each class has a Dirichlet prior around symmetric noise of
    the present error rate, whose strength the data choose (by marginal likelihood):
    strong where classes go wrong alike and evenly, weak where they do not (pairs). And
    one temperature calibrates the probabilities as it goes, since too flat ones take
    good labels for noise, too sharp ones the models' own mistakes.

    Count kept and dropped rows alike: the kept ones alone are those whose labels look
    right. Rows of the clean batch are not counted; those that validate can be given
    beside, for the temperature.

    Args:
      probs: ``[M, K]``, from models that were not trained on the row: best those that
        judged it when it arrived (`Info.label_probs`, or the mean of both models').
      given: ``[M]`` int, given labels, -1 for none.
      counted: ``[M]`` bool, the rows to go by.
      clean_probs: ``[V, K]``, the same for rows known to be clean, also not trained
        on; None for none. They matter most where labels are bad and rows few.
      clean_label: ``[V]`` int, their classes.
      clean_weight: ``[V]`` float, 0 leaves a row out; None: all count.
      known: ``[M]`` int, the true class where an expert has said it, else -1.
      num_steps: EM steps.

    Returns:
      The estimate. Without rows to count, the identity.

    Raises:
      ValueError: if only one of `clean_probs` and `clean_label` is given, for fewer
        than two classes, and (not under `jit`) for probabilities that are not finite
        or negative, or labels outside -1..K-1.

    References:
      Northcutt et al., "Confident learning", JAIR 2021: the confident joint, which is
      what this is compared with.
    """
    probs, given, counted = _float(probs), jnp.asarray(given), jnp.asarray(counted)
    chex.assert_rank((probs, given, counted), (2, 1, 1))
    chex.assert_equal_shape((given, counted))
    size, num_classes = probs.shape
    if num_classes < 2 or given.shape != (size,):
        raise ValueError(
            "probs must be [M, K] for K >= 2 classes and the M rows of given, got "
            f"shapes {probs.shape} and {given.shape}"
        )
    if (clean_probs is None) != (clean_label is None):
        raise ValueError("clean_probs and clean_label go together; only one was given")
    if clean_probs is None or clean_label is None:
        clean_probs, clean_label = probs[:0], given[:0]
    clean_probs, clean_label = _float(clean_probs), jnp.asarray(clean_label)
    for name, values in (("probs", probs), ("clean_probs", clean_probs)):
        _check_probs(name, values, num_classes)
    for name, labels in (("given", given), ("clean_label", clean_label)):
        _check_labels(name, labels, num_classes)
    if clean_weight is None:
        clean_weight = jnp.ones(clean_label.shape, probs.dtype)
    weight = (counted & (given != UNLABELLED)).astype(probs.dtype)
    given = jnp.maximum(given, 0).astype(jnp.int32)

    def one_hot(label: Array) -> Array:
        return jax.nn.one_hot(label, num_classes, dtype=probs.dtype)

    of_given = one_hot(given) * weight[:, None]
    known = jnp.full(given.shape, -1) if known is None else known
    every = jnp.concatenate([probs, clean_probs])
    log_probs = jnp.log(jnp.maximum(every, 1e-6))
    weights = jnp.concatenate([weight, clean_weight.astype(probs.dtype)])
    doubt = _PRIOR_ROWS * weights / jnp.maximum(jnp.sum(weights), 1.0)
    grid = jnp.asarray(_STRENGTHS, probs.dtype)

    def step(i, state: tuple[Array, Array, Array, Array]):
        matrix, _, _, sharpness = state
        calibrated = jax.nn.softmax(sharpness * log_probs, axis=-1)
        likely = (1 - _FLOOR) * calibrated[:size] + _FLOOR / num_classes
        posterior = likely * matrix.T[given]
        posterior /= jnp.sum(posterior, axis=1, keepdims=True)
        posterior = jnp.where((known >= 0)[:, None], one_hot(known), posterior)
        matrix, rate, strength = _maximise(posterior, of_given, grid, i >= _SETTLED)
        # Prior: as many rows as `_PRIOR_ROWS` whose classes follow the raw figures.
        target = jnp.concatenate([posterior, one_hot(clean_label)])
        target = weights[:, None] * target + doubt[:, None] * every
        sharpness = _sharpen(sharpness, log_probs, calibrated, target)
        return matrix, rate, strength, sharpness

    begin = (
        symmetric(jnp.asarray(0.3, probs.dtype), num_classes),
        jnp.zeros((), probs.dtype),
        jnp.asarray(_FIRST_STRENGTH, probs.dtype),
        jnp.ones((), probs.dtype),
    )
    matrix, rate, strength, sharpness = jax.lax.fori_loop(0, num_steps, step, begin)
    return Estimate(matrix, rate, strength, 1 / sharpness)


def _float(values) -> Array:
    values = jnp.asarray(values)
    floating = jnp.issubdtype(values.dtype, jnp.floating)
    return values if floating else values.astype(jnp.float32)


def _check_probs(name: str, probs: Array, num_classes: int) -> None:
    if probs.shape[-1] != num_classes:
        raise ValueError(
            f"{name} must have {num_classes} classes like probs, got shape "
            f"{probs.shape}"
        )
    if isinstance(probs, jax.core.Tracer):
        return
    bad = ~(jnp.isfinite(probs) & (probs >= 0)).all(axis=-1)
    if bad.any():
        raise ValueError(
            f"{name} must be finite and at least 0, row {int(jnp.argmax(bad))} is not "
            f"({int(bad.sum())} of {len(bad)} rows)"
        )


def _check_labels(name: str, labels: Array, num_classes: int) -> None:
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        raise ValueError(f"{name} must have an integer dtype, got {labels.dtype}")
    if isinstance(labels, jax.core.Tracer):
        return
    bad = (labels < UNLABELLED) | (labels >= num_classes)
    if bad.any():
        raise ValueError(
            f"{name} must lie in -1..{num_classes - 1}, got "
            f"{int(labels[jnp.argmax(bad)])} ({int(bad.sum())} of {len(bad)} rows)"
        )


def _maximise(posterior: Array, of_given: Array, grid: Array, settled: Array):
    """The matrix, the error rate and the strength of the prior for given posteriors."""
    counts = jnp.matmul(posterior.T, of_given, precision=jax.lax.Precision.HIGHEST)
    total = jnp.sum(counts)
    rate = jnp.where(total > 0, 1 - jnp.trace(counts) / jnp.maximum(total, 1e-9), 0.0)
    rate = jnp.clip(rate, 0.0, 1.0)
    prior = symmetric(jnp.clip(rate, 1e-6, 1 - 1e-6), counts.shape[0])
    evidence = jax.vmap(_log_evidence, in_axes=(None, None, 0))(counts, prior, grid)
    strength = jnp.where(settled, grid[jnp.argmax(evidence)], _FIRST_STRENGTH)
    matrix = (counts + strength * prior) / (
        jnp.sum(counts, axis=1, keepdims=True) + strength
    )
    return matrix, rate, strength


def _sharpen(sharpness: Array, log_probs: Array, calibrated: Array, target: Array):
    """One Newton step for 1 / temperature; the negative log likelihood is convex."""
    weight = jnp.sum(target, axis=1)
    mean = jnp.sum(calibrated * log_probs, axis=1)
    variance = jnp.sum(calibrated * (log_probs - mean[:, None]) ** 2, axis=1)
    slope = jnp.sum(weight * mean) - jnp.sum(target * log_probs)
    moved = sharpness - slope / jnp.maximum(jnp.sum(weight * variance), 1e-9)
    return jnp.clip(jnp.clip(moved, sharpness / 2, sharpness * 2), 0.02, 50.0)


def _log_evidence(counts: Array, prior: Array, strength: Array) -> Array:
    """Log marginal likelihood of counts ``[K, K]`` under a Dirichlet for each row."""
    pseudo = strength * prior
    per_cell = gammaln(pseudo + counts) - gammaln(pseudo)
    per_row = gammaln(strength) - gammaln(strength + jnp.sum(counts, axis=1))
    return jnp.sum(per_cell) + jnp.sum(per_row)
