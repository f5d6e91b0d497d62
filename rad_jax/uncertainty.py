"""How unsure a row of class probabilities is: scores, highest = ask first.

Every score maps probabilities ``[N, K]`` and given labels ``[N]`` (-1 for none) to
``[N]`` float32. Probabilities are clipped at 1e-6.
"""

from collections.abc import Callable

import chex
import jax.numpy as jnp

from rad_jax.types import UNLABELLED, Array

#: A score: ``(probs [N, K], label [N]) -> [N]``.
Score = Callable[[Array, Array], Array]

_FLOOR = 1e-6


def _two_largest(probs: Array) -> tuple[Array, Array]:
    first = jnp.argmax(probs, axis=-1)
    largest = jnp.max(probs, axis=-1)
    classes = jnp.arange(probs.shape[-1])
    others = jnp.where(classes[None, :] == first[:, None], -jnp.inf, probs)
    return largest, jnp.max(others, axis=-1)


def margin(probs: Array, label: Array) -> Array:
    """``1 - (p1 - p2)``, p1 and p2 the two largest probabilities."""
    del label
    chex.assert_rank(probs, 2)
    largest, second = _two_largest(jnp.maximum(probs, _FLOOR))
    return 1.0 - (largest - second)


def least_confidence(probs: Array, label: Array) -> Array:
    """``1 - p1``."""
    del label
    chex.assert_rank(probs, 2)
    return 1.0 - jnp.max(jnp.maximum(probs, _FLOOR), axis=-1)


def entropy(probs: Array, label: Array) -> Array:
    """``-sum_k p(k) log p(k)``, in nats."""
    del label
    chex.assert_rank(probs, 2)
    probs = jnp.maximum(probs, _FLOOR)
    return -jnp.sum(probs * jnp.log(probs), axis=-1)


def cross_entropy(probs: Array, label: Array) -> Array:
    """``-log p(given label)``, in nats; for a row without label its expectation.

    The expectation of ``-log p(y)`` over ``y ~ p`` is the entropy: a row without a
    label is neither ahead of all labelled ones nor behind them.
    """
    chex.assert_rank(probs, 2)
    clipped = jnp.maximum(probs, _FLOOR)
    index = jnp.maximum(label, 0).astype(jnp.int32)
    picked = jnp.take_along_axis(clipped, index[:, None], axis=-1)[:, 0]
    return jnp.where(label == UNLABELLED, entropy(probs, label), -jnp.log(picked))


def cent(probs: Array, label: Array) -> Array:
    """Cross-entropy of the given label plus entropy.

    References:
      QActor, the follow-up of RAD's authors, ranks queries this way.
    """
    return cross_entropy(probs, label) + entropy(probs, label)
