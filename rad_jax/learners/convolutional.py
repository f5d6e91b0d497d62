"""VGG for images, after the paper: 3x3 convolutions, pooling, one dense layer."""

import functools
import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from rad_jax import checks
from rad_jax.learners.batch_norm import BatchNormReLU
from rad_jax.learners.image_ops import CONVOLUTIONS, FORMULATIONS, max_pool
from rad_jax.learners.neural import network
from rad_jax.learners.training import Training, check_learning_rate
from rad_jax.types import Array, Learner, PRNGKey, PyTree

#: Channels of the two convolutions of each block; each block halves the image.
CHANNELS = (64, 128, 196)


class Convolution(nn.Module):
    """A 3x3 convolution with bias, He-normal, SAME padding.

    Attributes:
      features: output channels.
      formulation: one of `FORMULATIONS`; all give the same to rounding.
    """

    features: int
    formulation: str = "auto"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Maps ``[B, H, W, I]`` to ``[B, H, W, features]``."""
        shape = (3, 3, x.shape[-1], self.features)
        init = nn.initializers
        kernel = self.param("kernel", init.he_normal(), shape, jnp.float32)
        bias = self.param("bias", init.zeros_init(), shape[-1:], jnp.float32)
        out = CONVOLUTIONS[self.formulation](x, kernel)
        return out + bias[None, None, None, :]


class VGG(nn.Module):
    """Blocks of two 3x3 convolutions and a 2x2 maximum, then two dense layers.

    Batch normalisation and ReLU follow every layer but the last; its statistics leave
    out rows whose mask is False.

    Attributes:
      num_classes: K, width of the output.
      channels: of each block's convolutions.
      dense: width of the hidden dense layer.
      formulation: of the convolutions, one of `FORMULATIONS`.
    """

    num_classes: int
    channels: tuple[int, ...] = CHANNELS
    dense: int = 256
    formulation: str = "auto"

    @nn.compact
    def __call__(
        self, x: Array, train: bool = False, mask: Array | None = None
    ) -> Array:
        """Maps images to logits.

        Args:
          x: ``[B, H, W, C]`` float32, about in [0, 1].
          train: normalise by this batch's statistics and update the running ones.
          mask: ``[B]`` bool, rows that enter the statistics; all by default.

        Returns:
          ``[B, K]`` float32.

        Raises:
          ValueError: x has another rank, or images too small for so many blocks.
        """
        least = 2 ** len(self.channels)
        if x.ndim != 4 or min(x.shape[1:3]) < least:
            raise ValueError(
                f"features must be images [height, width, channels] of at least "
                f"{least}x{least} pixels for {len(self.channels)} blocks, got rows of "
                f"shape {list(x.shape[1:])}"
            )

        for width in self.channels:
            for _ in range(2):
                x = Convolution(width, self.formulation)(x)
                x = BatchNormReLU()(x, train, mask)
            x = max_pool(x)
        x = x.reshape(x.shape[0], -1)
        init = nn.initializers.he_normal()
        x = nn.Dense(self.dense, kernel_init=init, name="hidden")(x)
        x = BatchNormReLU()(x, train, mask)
        return nn.Dense(self.num_classes, kernel_init=init, name="output")(x)


def _dense_l2(weights: PyTree) -> Array:
    """0.01 times the sum of squares of the hidden dense layer's kernel."""
    return 0.01 * jnp.sum(jnp.square(weights["hidden"]["kernel"]))


def _decayed_sgd(learning_rate, momentum) -> optax.GradientTransformation:
    """Momentum on steps of ``learning_rate / (1 + 1e-4 step)``."""
    return optax.chain(
        optax.scale_by_schedule(lambda step: learning_rate / (1.0 + 1e-4 * step)),
        optax.trace(decay=momentum),
        optax.scale(-1.0),
    )


@functools.cache
def _optimizer() -> optax.GradientTransformation:
    return optax.inject_hyperparams(_decayed_sgd)(learning_rate=0.01, momentum=0.9)


@functools.cache
def _maker(
    channels: tuple[int, ...], dense: int, formulation: str
) -> Callable[[int], nn.Module]:
    return lambda num_classes: VGG(num_classes, channels, dense, formulation)


@functools.cache
def shift_and_flip(
    shift: float = 0.1, flip: bool = True
) -> Callable[[PRNGKey, Array], Array]:
    """Augmentation of images: each is moved, and mirrored or not, at random.

    Args:
      shift: greatest move along each side, as a part of it, rounded to whole pixels;
        the border is repeated. At least 0, below 1.
      flip: mirror left and right, every other image.

    Returns:
      ``(key, images [B, H, W, C]) -> images``.

    Raises:
      ValueError: for a shift out of range.
    """
    if not 0.0 <= shift < 1.0:
        raise ValueError(f"shift must lie in [0, 1), got {shift}")

    def augment(key: PRNGKey, images: Array) -> Array:
        batch, height, width = images.shape[:3]
        keys = jax.random.split(key, 3)

        def moves(key: PRNGKey, size: int) -> Array:
            reach = round(shift * size)
            return jax.random.randint(key, (batch,), -reach, reach + 1, jnp.int32)

        mirrored = flip & (jax.random.uniform(keys[2], (batch,), jnp.float32) < 0.5)

        def one(image, down, right, mirror):
            row = jnp.clip(jnp.arange(height) - down, 0, height - 1)
            column = jnp.clip(jnp.arange(width) - right, 0, width - 1)
            column = jnp.where(mirror, column[::-1], column)
            return image[row][:, column]

        return jax.vmap(one)(
            images, moves(keys[0], height), moves(keys[1], width), mirrored
        )

    return augment


def vgg(
    *,
    width: float = 1.0,
    blocks: int = 3,
    learning_rate: float = 0.01,
    training: Training | None = None,
    augment: bool = False,
    formulation: str = "auto",
) -> Learner:
    """The paper's VGG for images ``[H, W, C]``.

    Blocks of two 3x3 convolutions of 64, 128 and 196 channels, each halving the
    image; a dense layer of 256 with an L2 penalty of 0.01; SGD with momentum 0.9 and
    a learning rate that decays as ``1 / (1 + 1e-4 step)``. Seeds are trained one
    after the other, each fills the machine.

    Args:
      width: factor of all widths, rounded; 1 is the paper's.
      blocks: 1 to 5; a fourth and fifth have as many channels as the third. Images
        must measure at least ``2^blocks`` pixels a side.
      learning_rate: of the first step; an array parameter.
      training: steps, minibatches, mode; by default minibatches of 128.
      augment: move training images by up to 10% and mirror them at random.
      formulation: of the convolutions, one of `FORMULATIONS`.

    Returns:
      The learner.

    Raises:
      TypeError: for blocks that are no whole number.
      ValueError: for a value out of range; when initialised, for features that are no
        images or are too small.
    """
    if not (math.isfinite(width) and 0.0 < width <= 16.0):
        raise ValueError(f"width must lie in (0, 16], got {width}")
    blocks = checks.whole("blocks", blocks, 1, 5)
    if formulation not in FORMULATIONS:
        raise ValueError(
            f"formulation must be one of {FORMULATIONS}, got {formulation!r}"
        )
    check_learning_rate(learning_rate)
    channels = (*CHANNELS, CHANNELS[-1], CHANNELS[-1])[:blocks]
    scaled = tuple(max(1, round(width * c)) for c in channels)
    return network(
        _maker(scaled, max(1, round(width * 256)), formulation),
        _optimizer(),
        training=training or Training(minibatch_size=128),
        params={"learning_rate": learning_rate},
        name="vgg",
        regularizer=_dense_l2,
        augment=shift_and_flip() if augment else None,
        seeds_in_turn=True,
    )
