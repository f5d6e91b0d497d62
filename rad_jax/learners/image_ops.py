"""3x3 convolutions and 2x2 pooling of images, fast on CPU inside loops too."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from rad_jax.types import Array, PyTree

#: How a convolution is computed; "auto" is "shifts" on CPU and "native" elsewhere.
FORMULATIONS = ("auto", "native", "shifts")
#: Floats of the columns that one piece of a minibatch is laid out in: what a core's own
#: cache holds.
_PIECE_FLOATS = 1 << 18


def _native(x: Array, kernel: Array) -> Array:
    return jax.lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _native_backward(x: Array, kernel: Array, change: Array) -> tuple[Array, Array]:
    return jax.vjp(_native, x, kernel)[1](change)


def _columns(x: Array) -> Array:
    """The nine shifts of images side by side: ``[B, H, W, C] -> [B * H * W, 9 C]``."""
    height, width, channels = x.shape[1:]
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    shifts = [
        padded[:, i : i + height, j : j + width] for i in range(3) for j in range(3)
    ]
    return jnp.concatenate(shifts, axis=-1).reshape(-1, 9 * channels)


def _pieces(function: Callable, start: PyTree, *images: Array) -> tuple[PyTree, Array]:
    """A scan over some images at a time.

    Args:
      function: ``(carry, *some) -> (carry, out)``, which lays out the first of `some`
        in columns.
      start: the first carry.
      *images: ``[B, H, W, C]`` each.

    Returns:
      The last carry, and what came out, ``[B, ...]``.
    """
    batch, height, width, channels = images[0].shape
    size = _PIECE_FLOATS // (height * width * 9 * channels)
    size = max(min(size, batch), 1)
    padding = ((0, -batch % size), (0, 0), (0, 0), (0, 0))
    pieces = [jnp.pad(x, padding).reshape(-1, size, *x.shape[1:]) for x in images]
    total, out = jax.lax.scan(
        lambda carry, some: function(carry, *some), start, tuple(pieces)
    )
    return total, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:batch], out)


def _shifts_forward(x: Array, kernel: Array) -> Array:
    matrix = kernel.reshape(9 * x.shape[-1], -1)

    def some(carry, x):
        return carry, (_columns(x) @ matrix).reshape(*x.shape[:-1], -1)

    return _pieces(some, (), x)[1]


def _shifts_backward(x: Array, kernel: Array, change: Array) -> tuple[Array, Array]:
    inputs, outputs = kernel.shape[2:]
    if 4 * inputs <= outputs:
        return _backward_from_few(x, kernel, change)
    # Against the images as they are, each shift of what comes back is a part of the
    # kernel's gradient: one set of columns serves both gradients.
    turned = jnp.swapaxes(kernel[::-1, ::-1], 2, 3).reshape(-1, inputs)

    def some(total, change, x):
        columns = _columns(change)
        # Turned in memory: see `rad_jax.learners.perceptron`.
        across = jax.lax.optimization_barrier(x.reshape(-1, inputs).T)
        total = total + across @ columns
        return total, (columns @ turned).reshape(x.shape)

    start = jnp.zeros((inputs, 9 * outputs), x.dtype)
    total, x_change = _pieces(some, start, change, x)
    by_shift = total.reshape(inputs, 3, 3, outputs)[:, ::-1, ::-1]
    return x_change, jnp.moveaxis(by_shift, 0, 2)


def _backward_from_few(x: Array, kernel: Array, change: Array) -> tuple[Array, Array]:
    """The same where the columns of x are narrow, in the first layer.

    Nobody asks for the gradient of the first layer's images: apart from that of the
    kernel it is dead code, which XLA drops.
    """
    inputs, outputs = kernel.shape[2:]
    turned = jnp.swapaxes(kernel[::-1, ::-1], 2, 3)

    def some(total, x, change):
        return total + _columns(x).T @ change.reshape(-1, outputs), ()

    start = jnp.zeros((9 * inputs, outputs), x.dtype)
    total, _ = _pieces(some, start, x, change)
    return _shifts_forward(change, turned), total.reshape(kernel.shape)


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
#: padding. On CPU a native convolution is 20 times slower inside a loop; as shifts it
#: is a matrix product, some images at a time, so that the shifts stay in the cache.
CONVOLUTIONS = {
    "native": _native,
    "shifts": _with_gradient(_shifts_forward, _shifts_backward),
    "auto": _with_gradient(
        _by_platform(_shifts_forward, _native),
        _by_platform(_shifts_backward, _native_backward),
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
