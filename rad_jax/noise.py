"""Label noise: how given labels differ from true ones, as pure functions.

A noise model is a value, `rad_jax.types.Noise`. The same key gives the same noise; a
stream keys batch i by ``fold_in(key, i)``, so that noise does not depend on how many
batches or seeds are run.
"""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rad_jax.types import UNLABELLED, Array, Noise, PRNGKey


def check_rate(rate, name: str = "rate"):
    """Raises ValueError unless concrete rates lie in [0, 1]; returns them."""
    if not isinstance(rate, jax.core.Tracer):
        values = np.asarray(rate, np.float64)
        if not np.all((values >= 0.0) & (values <= 1.0)):
            raise ValueError(f"{name} must lie in [0, 1], got {rate}")
    return rate


def _eligible(label: Array, valid: Array, num_classes: int) -> Array:
    chex.assert_rank((label, valid), 1)
    chex.assert_equal_shape((label, valid))
    if num_classes < 2:
        raise ValueError(f"num_classes must be at least 2, got {num_classes}")
    return valid & (label != UNLABELLED)


def exact_count(rate: Array, num_rows: Array) -> Array:
    """``floor(rate * num_rows + 1e-3)`` as int32, safe against float32 rounding.

    A float32 rate and its product are off by up to 2^-23 of the product, so a product
    within that (and 1e-3) below a whole number counts as that number.
    """
    product = rate * jnp.asarray(num_rows, jnp.float32)
    nearest = jnp.round(product)
    close = jnp.abs(product - nearest) <= 1e-3 + 2.0**-23 * product
    return jnp.where(close, nearest, jnp.floor(product)).astype(jnp.int32)


def _another_class(key: PRNGKey, label: Array, num_classes: int) -> Array:
    shift = jax.random.randint(key, label.shape, 1, num_classes, dtype=jnp.int32)
    return ((label.astype(jnp.int32) + shift) % num_classes).astype(label.dtype)


def _symmetric(params, label, valid, *, num_classes, key):
    eligible = _eligible(label, valid, num_classes)
    which, to = jax.random.split(key)
    draw = jnp.where(eligible, jax.random.uniform(which, label.shape), jnp.inf)
    rank = jnp.argsort(jnp.argsort(draw))
    count = exact_count(params["rate"], jnp.sum(eligible))
    flipped = eligible & (rank < count)
    return jnp.where(flipped, _another_class(to, label, num_classes), label)


def symmetric(rate) -> Noise:
    """Exactly ``floor(rate * n + 1e-3)`` of n labelled rows get another class.

    Rows are drawn without replacement; the class uniformly from the K - 1 others
    (the paper's convention).

    Args:
      rate: in [0, 1]; an array parameter, may be vmapped.

    Returns:
      The noise model.

    Raises:
      ValueError: for a rate outside [0, 1].
    """
    return Noise(_symmetric, {"rate": check_rate(rate)})


@functools.cache
def _independent(include_true: bool):
    def apply(params, label, valid, *, num_classes, key):
        eligible = _eligible(label, valid, num_classes)
        which, to = jax.random.split(key)
        flipped = eligible & (jax.random.uniform(which, label.shape) < params["rate"])
        if include_true:
            other = jax.random.randint(
                to, label.shape, 0, num_classes, dtype=jnp.int32
            ).astype(label.dtype)
        else:
            other = _another_class(to, label, num_classes)
        return jnp.where(flipped, other, label)

    return apply


def independent(rate, *, include_true: bool = False) -> Noise:
    """Every labelled row is redrawn on its own with probability `rate`.

    Args:
      rate: in [0, 1]; an array parameter, may be vmapped.
      include_true: redraw from all K classes, so that a flip may land on the true one
        and the realised rate is ``rate * (K - 1) / K``; else from the K - 1 others.

    Returns:
      The noise model.

    Raises:
      ValueError: for a rate outside [0, 1].
    """
    return Noise(_independent(include_true), {"rate": check_rate(rate)})


def realised_rate(given: Array, true_label: Array, valid: Array) -> Array:
    """Share of labelled valid rows whose given label is wrong; 0 without any."""
    labelled = valid & (given != UNLABELLED)
    wrong = jnp.sum(labelled & (given != true_label))
    return wrong / jnp.maximum(jnp.sum(labelled), 1)
