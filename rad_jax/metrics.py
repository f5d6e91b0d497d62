"""Figures of one run at one arrival, as pure functions on arrays.

Spread over seeds, gap closed and the like are `rad_jax.statistics`'s.
"""

from typing import NamedTuple

import chex
import jax.numpy as jnp

from rad_jax.types import UNLABELLED, Array, RowStatus


class Targets(NamedTuple):
    """True classes to measure against.

    Attributes:
      label: ``[Q]`` int32.
      balance: ``[Q]`` float32, weights that sum to 1 and to the same for every class
        that occurs.
    """

    label: Array
    balance: Array


def targets(label: Array, num_classes: int) -> Targets:
    """Weighs the rows of a test set so that classes count alike."""
    chex.assert_rank(label, 1)
    classes = jnp.arange(num_classes, dtype=label.dtype)
    count = jnp.sum(label[:, None] == classes[None, :], axis=0)
    present = jnp.sum(count > 0)
    return Targets(label, 1.0 / (count[label] * present))


def accuracy(predicted: Array, target: Targets) -> Array:
    """Share of rows predicted right, scalar."""
    return jnp.mean(predicted == target.label)


def known_accuracy(predicted: Array, true_label: Array, valid: Array) -> Array:
    """Share of the valid rows with a true label that are predicted right.

    Args:
      predicted: ``[N]`` int.
      true_label: ``[N]`` int, -1 where there is none.
      valid: ``[N]`` bool.

    Returns:
      Scalar; NaN without any such row.
    """
    chex.assert_equal_shape((predicted, true_label, valid))
    known = valid & (true_label != UNLABELLED)
    count = jnp.sum(known)
    right = jnp.sum(known & (predicted == true_label))
    return jnp.where(count > 0, right / jnp.maximum(count, 1), jnp.nan)


def balanced_accuracy(predicted: Array, target: Targets) -> Array:
    """Mean over the occurring classes of the share predicted right, scalar."""
    return jnp.sum(jnp.where(predicted == target.label, target.balance, 0.0))


def confusion(predicted: Array, label: Array, num_classes: int) -> Array:
    """``[K, K]`` int32 counts: rows true class, columns predicted class."""
    cell = label.astype(jnp.int32) * num_classes + predicted.astype(jnp.int32)
    counts = jnp.zeros(num_classes * num_classes, jnp.int32).at[cell].add(1)
    return counts.reshape(num_classes, num_classes)


def selection_figures(
    given: Array, label: Array, status: Array, true_label: Array, counted: Array
) -> dict[str, Array]:
    """What selection has made of the stored rows so far.

    Args:
      given: ``[M]`` int, labels as they arrived, -1 for none.
      label: ``[M]`` int, labels trained on.
      status: ``[M]`` int, `RowStatus`.
      true_label: ``[M]`` int, -1 where it is not known.
      counted: ``[M]`` bool, leaves out empty slots and the clean batch.

    Returns:
      Scalars: kept (rows trained on), purity = P(label trained on is true | kept,
      true label known), recall = P(kept | given label is true), queries (rows an
      expert was asked about), wasted_queries (of those, whose given label was true).
      Purity and recall are NaN where nothing can be counted.
    """
    chex.assert_rank((given, label, status, true_label, counted), 1)
    chex.assert_equal_shape((given, label, status, true_label, counted))
    verified = status == RowStatus.VERIFIED
    kept = counted & ((status == RowStatus.KEPT) | verified)
    queried = counted & ((status == RowStatus.PENDING) | verified)
    right = counted & (given == true_label) & (given != UNLABELLED)
    known = kept & (true_label != UNLABELLED)
    num_right = jnp.sum(right)
    pure = jnp.sum(known & (label == true_label))

    def ratio(part, whole):
        return jnp.where(whole > 0, part / jnp.maximum(whole, 1), jnp.nan)

    return {
        "kept": jnp.sum(kept),
        "purity": ratio(pure, jnp.sum(known)),
        "recall": ratio(jnp.sum(kept & right), num_right),
        "queries": jnp.sum(queried),
        "wasted_queries": jnp.sum(queried & right),
    }
