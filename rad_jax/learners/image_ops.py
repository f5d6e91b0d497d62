"""3x3 convolutions and 2x2 pooling of images, fast on CPU inside loops too."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from rad_jax.types import Array

#: How a convolution and its gradients are computed; "auto" is "forward" on CPU and
#: "native" elsewhere.
FORMULATIONS = ("auto", "native", "forward")
_LAYOUT = ("NHWC", "HWIO", "NHWC")


def _native(x: Array, kernel: Array) -> Array:
    return jax.lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=_LAYOUT
    )


def _native_backward(x: Array, kernel: Array, change: Array) -> tuple[Array, Array]:
    return jax.vjp(_native, x, kernel)[1](change)


# Grouped convolutions, which is what vmap makes of these, are slow on CPU.
_forward = jax.custom_batching.sequential_vmap(_native)


@jax.custom_batching.sequential_vmap
def _forward_backward(x: Array, kernel: Array, change: Array) -> tuple[Array, Array]:
    """Both gradients as convolutions in the one layout that is fast inside loops.

    That of the kernel has the channels for images, the images for channels, and what
    comes back, as large as they are, for a kernel.
    """
    turned = jnp.swapaxes(kernel[::-1, ::-1], 2, 3)
    by_input = jax.lax.conv_general_dilated(
        jnp.transpose(x, (3, 1, 2, 0)),
        jnp.transpose(change, (1, 2, 0, 3)),
        (1, 1),
        ((1, 1), (1, 1)),
        dimension_numbers=_LAYOUT,
    )
    return _native(change, turned), jnp.moveaxis(by_input, 0, 2)


def _by_platform(cpu: Callable, default: Callable) -> Callable:
    return lambda *args: jax.lax.platform_dependent(*args, cpu=cpu, default=default)


def _with_gradient(forward: Callable, backward: Callable) -> Callable:
    """A convolution that keeps its arguments for its gradient, and nothing else."""
    convolve = jax.custom_vjp(forward)
    convolve.defvjp(
        lambda x, kernel: (forward(x, kernel), (x, kernel)),
        lambda kept, change: backward(*kept, change),
    )
    return convolve


#: By formulation: ``(images [B, H, W, I], kernel [3, 3, I, O]) -> [B, H, W, O]``, SAME
#: padding. On CPU the gradient of the kernel that XLA derives is 16 to 100 times slower
#: in a loop than outside; written as a forward convolution it is not. Nobody asks for
#: the gradient of the first layer's images: it is dead code, which XLA drops.
CONVOLUTIONS = {
    "native": _native,
    "forward": _with_gradient(_forward, _forward_backward),
    "auto": _with_gradient(
        _by_platform(_forward, _native),
        _by_platform(_forward_backward, _native_backward),
    ),
}


def _quarters(x: Array) -> Array:
    """``[B, H, W, C] -> [B, H // 2, 2, W // 2, 2, C]``, odd borders cut off."""
    batch, height, width, channels = x.shape
    x = x[:, : height // 2 * 2, : width // 2 * 2]
    return x.reshape(batch, height // 2, 2, width // 2, 2, channels)


@jax.custom_vjp
def max_pool(x: Array) -> Array:
    """The greatest of each 2x2 pixels, ``[B, H, W, C] -> [B, H // 2, W // 2, C]``.

    The first of equal ones gets the gradient, as in `flax.linen.max_pool`, which on CPU
    takes ten times as long for it.
    """
    return jnp.max(_quarters(x), axis=(2, 4))


def _pool_forward(x: Array):
    parts = _quarters(x)
    out = jnp.max(parts, axis=(2, 4))
    first = jnp.full(out.shape, 4, jnp.int8)
    for place in (3, 2, 1, 0):
        is_greatest = parts[:, :, place // 2, :, place % 2] == out
        first = jnp.where(is_greatest, jnp.int8(place), first)
    return out, (first, x[:0])


def _pool_backward(kept: tuple[Array, Array], change: Array):
    first, none = kept  # of no row: for the shape
    place = jnp.arange(4, dtype=jnp.int8).reshape(1, 1, 2, 1, 2, 1)
    here = first[:, :, None, :, None, :] == place
    spread = jnp.where(here, change[:, :, None, :, None, :], 0.0)
    batch, height, width, channels = first.shape
    cut = spread.reshape(batch, 2 * height, 2 * width, channels)
    rest = [none.shape[1] - 2 * height, none.shape[2] - 2 * width]
    return (jnp.pad(cut, ((0, 0), (0, rest[0]), (0, rest[1]), (0, 0))),)


max_pool.defvjp(_pool_forward, _pool_backward)
