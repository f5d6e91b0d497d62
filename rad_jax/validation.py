"""Clean rows held out: how they are chosen, and what is measured on them."""

import jax
import jax.numpy as jnp

from rad_jax.types import Array, PRNGKey


def stratified_split(
    key: PRNGKey, label: Array, valid: Array, num_validation: int
) -> tuple[Array, Array]:
    """Rows for training and for validation, every class in proportion.

    The r-th of the n rows of a class (in random order) has rank ``(r + 1/2) / n``;
    the rows of lowest rank validate. So classes are rounded by Webster's rule, and a
    class of one or two rows keeps them for training as long as less than a quarter
    validates.

    Args:
      key: which rows of a class.
      label: ``[N]`` int.
      valid: ``[N]`` bool; padding comes last in both.
      num_validation: how many rows validate.

    Returns:
      ``[N - num_validation]`` and ``[num_validation]`` int32 indices.
    """
    size = label.shape[0]
    shuffle = jax.random.permutation(key, size)
    by_class = shuffle[jnp.argsort(label[shuffle], stable=True)]
    ordered = label[by_class]
    first = jnp.searchsorted(ordered, ordered, side="left")
    last = jnp.searchsorted(ordered, ordered, side="right")
    rank = (jnp.arange(size) - first + 0.5) / (last - first)
    rank = jnp.where(valid[by_class], rank, 2.0)
    order = by_class[jnp.argsort(rank, stable=True)].astype(jnp.int32)
    validation, training = order[:num_validation], order[num_validation:]
    return jnp.sort(training), jnp.sort(validation)


def accuracy(probs: Array, label: Array, valid: Array) -> Array:
    """Share of the valid rows whose most probable class is `label`, scalar."""
    right = valid & (jnp.argmax(probs, axis=-1) == label)
    return jnp.sum(right) / jnp.maximum(jnp.sum(valid), 1)
