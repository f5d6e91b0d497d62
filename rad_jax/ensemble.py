"""Ensemble prediction (Algorithm 1 of the paper) and calibration of confidences."""

import chex
import jax
import jax.numpy as jnp

from rad_jax.types import Array


def classifier_decides(
    label_probs: Array, class_probs: Array, label_alpha: Array, class_alpha: Array
) -> Array:
    """Where the ensemble takes the classifier's class, ``[N]`` bool.

    Args:
      label_probs: ``[N, K]``, of the label model L.
      class_probs: ``[N, K]``, of the classifier C.
      label_alpha: accuracy of L at the arrival before, scalar in [0, 1].
      class_alpha: accuracy of C likewise.

    Returns:
      True where ``alpha_C * max p_C > alpha_L * max p_L``, strictly.
    """
    chex.assert_rank((label_probs, class_probs), 2)
    chex.assert_equal_shape((label_probs, class_probs))
    class_confidence = class_alpha * jnp.max(class_probs, axis=-1)
    label_confidence = label_alpha * jnp.max(label_probs, axis=-1)
    return class_confidence > label_confidence


def combine(
    label_probs: Array, class_probs: Array, label_alpha: Array, class_alpha: Array
) -> Array:
    """Predicted class of each row by Algorithm 1.

    Where both models agree, that class; elsewhere the class of the model whose
    largest probability, times its accuracy, is larger; L's when they are equal.

    Args:
      label_probs: ``[N, K]``, of the label model L.
      class_probs: ``[N, K]``, of the classifier C.
      label_alpha: accuracy of L at the arrival before, scalar in [0, 1].
      class_alpha: accuracy of C likewise.

    Returns:
      ``[N]`` int32.
    """
    takes = classifier_decides(label_probs, class_probs, label_alpha, class_alpha)
    by_classifier = jnp.argmax(class_probs, axis=-1)
    by_label_model = jnp.argmax(label_probs, axis=-1)
    return jnp.where(takes, by_classifier, by_label_model).astype(jnp.int32)


def combine_proba(
    label_probs: Array, class_probs: Array, label_alpha: Array, class_alpha: Array
) -> Array:
    """Probabilities of the model that decides each row, ``[N, K]``; see `combine`."""
    takes = classifier_decides(label_probs, class_probs, label_alpha, class_alpha)
    return jnp.where(takes[:, None], class_probs, label_probs)


_SHARPNESS_RANGE = (0.02, 50.0)


def apply_temperature(probs: Array, temperature: Array) -> Array:
    """``p(k)^(1/t)``, normalised: ``[N, K] -> [N, K]``; t = 1 changes nothing."""
    return jax.nn.softmax(jnp.log(jnp.maximum(probs, 1e-6)) / temperature, axis=-1)


def fit_temperature(
    probs: Array, label: Array, weight: Array, *, num_steps: int = 40
) -> Array:
    """The temperature that makes the labels most likely.

    The negative log likelihood is convex in ``1/t``, so bisection of its derivative
    over 1/50 <= t <= 50 finds the minimum.

    Args:
      probs: ``[N, K]`` on rows that the model was not trained on.
      label: ``[N]`` int, true classes.
      weight: ``[N]`` float, 0 leaves a row out.
      num_steps: halvings of log t.

    Returns:
      Scalar float32; 1 where all weights are 0.
    """
    chex.assert_rank((probs, label, weight), (2, 1, 1))
    log_probs = jnp.log(jnp.maximum(probs, 1e-6))
    picked = jnp.take_along_axis(log_probs, label[:, None].astype(jnp.int32), axis=-1)

    def slope(sharpness: Array) -> Array:
        scaled = jax.nn.softmax(sharpness * log_probs, axis=-1)
        expected = jnp.sum(scaled * log_probs, axis=-1)
        return jnp.sum(weight * (expected - picked[:, 0]))

    def halve(_, bounds):
        low, high = bounds
        middle = (low + high) / 2
        rising = slope(jnp.exp(middle)) > 0
        return jnp.where(rising, low, middle), jnp.where(rising, middle, high)

    start = tuple(jnp.log(jnp.float32(b)) for b in _SHARPNESS_RANGE)
    low, high = jax.lax.fori_loop(0, num_steps, halve, start)
    temperature = jnp.exp(-(low + high) / 2)
    return jnp.where(jnp.sum(weight) > 0, temperature, 1.0)
