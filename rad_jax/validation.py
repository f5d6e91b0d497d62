"""Clean rows held out: how they are chosen, and what is measured on them."""

import jax
import jax.numpy as jnp
import numpy as np

from rad_jax.types import Array, PRNGKey


def stratified_split(
    key: PRNGKey, label: Array, valid: Array, fraction: float
) -> tuple[Array, Array]:
    """Chooses rows for validation, every class in proportion.

    The r-th of the n rows of a class (in random order) has rank ``(r + 1/2) / n``;
    the rows of lowest rank validate. So classes are rounded by Webster's rule, and
    classes of one or two rows give none as long as larger ones can.

    Args:
      key: which rows of a class.
      label: ``[N]`` int.
      valid: ``[N]`` bool; others (padding, rows without label) never validate.
      fraction: share of the valid rows, rounded to whole rows; in [0, 1).

    Returns:
      ``[round(fraction * N)]`` int32 indices and as many bools: which of them
      validate (all, if every row is valid).
    """
    size = label.shape[0]
    shares = np.round(fraction * np.arange(size + 1)).astype(np.int32)
    wanted = jnp.asarray(shares)[jnp.sum(valid)]
    shuffle = jax.random.permutation(key, size)
    by_class = shuffle[jnp.argsort(label[shuffle], stable=True)]
    member = valid[by_class]
    before = jnp.cumsum(member) - member  # valid rows before this one
    ordered = label[by_class]
    first = before[jnp.searchsorted(ordered, ordered, side="left")]
    last = jnp.searchsorted(ordered, ordered, side="right") - 1
    count = before[last] + member[last] - first
    rank = (before - first + 0.5) / jnp.maximum(count, 1)
    order = by_class[jnp.argsort(jnp.where(member, rank, 2.0), stable=True)]
    num_held_out = int(shares[size])
    return order[:num_held_out].astype(jnp.int32), jnp.arange(num_held_out) < wanted


def accuracy(probs: Array, label: Array, valid: Array) -> Array:
    """Share of the valid rows whose most probable class is `label`, scalar."""
    right = valid & (jnp.argmax(probs, axis=-1) == label)
    return jnp.sum(right) / jnp.maximum(jnp.sum(valid), 1)
