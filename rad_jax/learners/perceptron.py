"""The paper's multi-layer perceptron."""

import functools
from collections.abc import Callable, Sequence

import flax.linen as nn
import optax

from rad_jax.learners.neural import network
from rad_jax.learners.training import Training, check_learning_rate
from rad_jax.types import Array, Learner


class MLP(nn.Module):
    """Dense layers with ReLU between them; features are flattened first.

    Attributes:
      hidden: widths of the hidden layers.
      num_classes: K, width of the output.
    """

    hidden: tuple[int, ...]
    num_classes: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Maps ``[B, *S]`` to logits ``[B, K]``."""
        x = x.reshape(x.shape[0], -1)
        for width in self.hidden:
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(self.num_classes)(x)


@functools.cache
def _mlp_maker(hidden: tuple[int, ...]) -> Callable[[int], nn.Module]:
    return lambda num_classes: MLP(hidden, num_classes)


@functools.cache
def _adam() -> optax.GradientTransformation:
    return optax.inject_hyperparams(
        optax.adam, static_args=("b1", "b2", "eps", "eps_root")
    )(learning_rate=1e-3)


def mlp(
    hidden: Sequence[int] = (28, 28),
    *,
    learning_rate: float = 1e-3,
    training: Training | None = None,
) -> Learner:
    """The paper's multi-layer perceptron: ReLU, Adam.

    Args:
      hidden: widths of the hidden layers, each at least 1.
      learning_rate: Adam's; an array parameter, may be vmapped.
      training: steps, minibatches, mode; the default `Training()`.

    Returns:
      The learner.

    Raises:
      ValueError: for a width below 1, a learning rate or a training out of range.
    """
    check_learning_rate(learning_rate)
    if isinstance(hidden, int):
        raise ValueError(f"hidden must be a sequence of widths, got {hidden}")
    hidden = tuple(int(width) for width in hidden)
    if any(width < 1 for width in hidden):
        raise ValueError(f"hidden widths must be at least 1, got {hidden}")
    return network(
        _mlp_maker(hidden),
        _adam(),
        training=training,
        params={"learning_rate": learning_rate},
        name="mlp",
    )
