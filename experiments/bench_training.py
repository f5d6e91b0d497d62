"""One learner's training for many seeds at once, as a sweep does it, to be timed."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from rad_jax.types import Array, Examples, Learner, Spec, as_arrays

_AXIS = "seeds"


def mesh_of(num_devices: int) -> Mesh:
    """The first so many devices in a row."""
    return jax.make_mesh(
        (num_devices,),
        (_AXIS,),
        axis_types=(jax.sharding.AxisType.Auto,),
        devices=jax.devices()[:num_devices],
    )


def over_devices(function: Callable, mesh: Mesh, in_specs: Any) -> Callable:
    """The function, each device with its share of what `in_specs` shards."""
    if mesh.size == 1:
        return function
    return jax.shard_map(
        function, mesh=mesh, in_specs=in_specs, out_specs=P(_AXIS), check_vma=False
    )


def training(
    learner: Learner,
    features: np.ndarray,
    labels: np.ndarray,
    *,
    num_classes: int,
    num_devices: int | None = None,
) -> Callable[[], Any]:
    """Compiles the fit of an arrival for every seed, seeds spread over devices.

    Features, initial model and order of minibatches are the same for all seeds, as in
    a sweep under "fixed_model"; labels differ.

    Args:
      learner: takes the steps of its `Training` at an arrival.
      features: ``[n, *S]`` float32.
      labels: ``[R, n]`` int.
      num_classes: K.
      num_devices: over which the seeds are spread, by default all there are; never
        more than seeds. The last seed fills up where they do not divide.

    Returns:
      A function without arguments that trains, and returns the models.
    """
    num_seeds = len(labels)
    mesh = mesh_of(min(num_seeds, num_devices or len(jax.devices())))
    runs = -(-num_seeds // mesh.size) * mesh.size
    labels = labels[np.minimum(np.arange(runs), num_seeds - 1)].astype(np.int16)
    size = len(features)
    spec = Spec(features.shape[1:], num_classes, size)
    init_key, order_key = jax.random.key(0), jax.random.key(1)
    params = as_arrays(learner.params)

    def fit(features: Array, arrival: Array, model: Any, label: Array) -> Any:
        examples = Examples(
            features=features,
            row_id=jnp.arange(size, dtype=jnp.int32),
            valid=jnp.ones(size, bool),
            arrival=arrival,
            label=label,
            weight=jnp.ones(size, jnp.float32),
            prepared={},
        )
        return learner.fit(
            spec, params, model, examples, init_key=init_key, order_key=order_key
        )

    everywhere, apart = NamedSharding(mesh, P()), NamedSharding(mesh, P(_AXIS))
    several = jax.vmap(fit, in_axes=(None, None, 0, 0))
    model = jax.jit(learner.init, static_argnums=0)(spec, params, init_key)
    models = jax.tree.map(lambda x: jnp.broadcast_to(x, (runs, *x.shape)), model)
    arguments = (
        *jax.device_put((features, jnp.ones((), jnp.int32)), everywhere),
        *jax.device_put((models, labels), apart),
    )
    compiled = (
        jax.jit(over_devices(several, mesh, (P(), P(), P(_AXIS), P(_AXIS))))
        .lower(*arguments)
        .compile()
    )
    return lambda: compiled(*arguments)


def products(size: int) -> dict[str, tuple[Callable[[], Any], int]]:
    """Compiles float32 matrix products ``[size, size] x [size, size]``.

    Returns:
      By how they use the devices, a function and the number of floating point
      operations it makes: one product on the first device, and one on each.
    """
    devices = jax.devices()
    repeats = 1 if devices[0].platform == "cpu" else 16  # to last longer than a launch
    found: dict[str, tuple[Callable[[], Any], int]] = {}

    def multiply(a: Array, b: Array) -> Array:
        for _ in range(repeats):
            a = a @ b
        return a

    for count in sorted({1, len(devices)}):
        mesh = mesh_of(count)
        shape = (count * size, size)
        a = jax.random.normal(jax.random.key(0), shape) / size**0.5
        a = jax.device_put(a, NamedSharding(mesh, P(_AXIS)))
        b = jax.device_put(np.asarray(a[:size]), NamedSharding(mesh, P()))
        compiled = (
            jax.jit(over_devices(multiply, mesh, (P(_AXIS), P()))).lower(a, b).compile()
        )
        name = "on one device" if count == 1 else f"on each of {count} devices"
        found[name] = (
            functools.partial(compiled, a, b),
            repeats * count * 2 * size**3,
        )
    return found
