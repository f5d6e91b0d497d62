"""Simulated experts, who are asked for the labels of rows that models doubt."""

import functools

import jax
import jax.numpy as jnp

from rad_jax.schedules import check_rate
from rad_jax.types import UNLABELLED, Expert


def _perfect(params, true_label, *, key):
    del params, key
    return true_label


def perfect() -> Expert:
    """Always right."""
    return Expert(_perfect, ())


@functools.cache
def _erring(num_classes: int):
    def answer(params, true_label, *, key):
        errs, to = jax.random.split(jax.random.fold_in(key, params["seed"]))
        wrong = jax.random.uniform(errs, true_label.shape, jnp.float32) < params["rate"]
        shift = jax.random.randint(to, true_label.shape, 1, num_classes, jnp.int32)
        other = (true_label.astype(jnp.int32) + shift) % num_classes
        wrong &= true_label != UNLABELLED
        return jnp.where(wrong, other.astype(true_label.dtype), true_label)

    return answer


def erring(rate, num_classes: int, *, seed: int = 0) -> Expert:
    """Wrong about each row with the same probability, and then evenly so.

    A sweep keys the expert by the noise of each seed: seeds that share models and
    minibatches still have experts of their own. `Rad.step` keys it by the order of
    data, which seeds may share: there, vmap ``params.expert["seed"]`` with them.

    Args:
      rate: probability of one of the K - 1 wrong classes; in [0, 1], an array
        parameter, may be vmapped.
      num_classes: K, at least 2.
      seed: tells experts apart who get the same key; an array parameter.

    Returns:
      The expert.

    Raises:
      ValueError: for a rate outside [0, 1] or fewer than two classes.
    """
    if num_classes < 2:
        raise ValueError(f"num_classes must be at least 2, got {num_classes}")
    params = {"rate": check_rate(rate), "seed": seed}
    return Expert(_erring(num_classes), params, num_classes)
