"""The paper's multi-layer perceptron."""

import functools
from collections.abc import Callable, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from rad_jax import checks
from rad_jax.learners.neural import network
from rad_jax.learners.training import Training, check_learning_rate
from rad_jax.types import Array, Learner


@jax.custom_vjp
def _product(kernel: Array, x: Array) -> Array:
    """``kernel [H, D] @ x [D, B]``."""
    return kernel @ x


def _product_forward(kernel: Array, x: Array):
    return kernel @ x, (kernel, x)


def _product_backward(kept: tuple[Array, Array], change: Array):
    kernel, x = kept
    # Transposed in memory, which is cheap: on CPU the library that multiplies matrices
    # takes no transposed left side, and what XLA has instead is a third slower.
    turned = jax.lax.optimization_barrier(kernel.T)
    return change @ x.T, turned @ change


_product.defvjp(_product_forward, _product_backward)


def _turned(init: Callable) -> Callable:
    """Draws ``[H, D]`` as `init` would draw ``[D, H]``."""
    return lambda key, shape, dtype: init(key, shape[::-1], dtype).T


class _Layer(nn.Module):
    """A dense layer on columns: ``[D, B] -> [width, B]``.

    Attributes:
      width: of the output.
    """

    width: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        init = _turned(nn.initializers.lecun_normal())
        shape = (self.width, x.shape[0])
        kernel = self.param("kernel", init, shape, jnp.float32)
        bias = self.param("bias", nn.initializers.zeros_init(), shape[:1], jnp.float32)
        return _product(kernel, x) + bias[:, None]


class MLP(nn.Module):
    """Dense layers with ReLU between them; features are flattened first.

    A minibatch's rows are columns inside. Seeds that share a minibatch then have their
    first layers in one matrix product, ``[seeds * H, D] @ [D, B]``, whose result is
    what the next layers take, ``[seeds, H, B]``, without moving a number. Kernels are
    therefore ``[output, input]``, the transpose of `flax.linen.Dense`'s; initial
    values are the same.

    Attributes:
      hidden: widths of the hidden layers.
      num_classes: K, width of the output.
    """

    hidden: tuple[int, ...]
    num_classes: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Maps ``[B, *S]`` to logits ``[B, K]``."""
        x = x.reshape(x.shape[0], -1).T
        for i, width in enumerate(self.hidden):
            x = nn.relu(_Layer(width, name=f"Dense_{i}")(x))
        return _Layer(self.num_classes, name=f"Dense_{len(self.hidden)}")(x).T


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
      TypeError: for a width that is no whole number.
      ValueError: for a width below 1, a learning rate or a training out of range.
    """
    check_learning_rate(learning_rate)
    if isinstance(hidden, int):
        raise ValueError(f"hidden must be a sequence of widths, got {hidden}")
    hidden = tuple(checks.whole("hidden", width) for width in hidden)
    if any(width < 1 for width in hidden):
        raise ValueError(f"hidden widths must be at least 1, got {hidden}")
    return network(
        _mlp_maker(hidden),
        _adam(),
        training=training,
        params={"learning_rate": learning_rate},
        name="mlp",
    )
