"""One learner's training for many seeds at once, as a sweep does it, to be timed."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rad_jax import devices
from rad_jax.types import Array, Examples, Learner, Spec, as_arrays


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
    mesh = devices.mesh(min(num_seeds, num_devices or len(jax.local_devices())))
    labels = labels[devices.fill_up(num_seeds, mesh.size)].astype(np.int16)
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

    model = jax.jit(learner.init, static_argnums=0)(spec, params, init_key)
    shape = (len(labels),)
    models = jax.tree.map(lambda x: jnp.broadcast_to(x, shape + x.shape), model)
    arguments = (
        *devices.put((features, jnp.ones((), jnp.int32)), mesh),
        *devices.put((models, labels), mesh, devices.RUNS),
    )
    several, options = devices.over_runs(
        jax.vmap(fit, in_axes=(None, None, 0, 0)),
        mesh,
        (devices.SHARED, devices.SHARED, devices.RUNS, devices.RUNS),
        devices.RUNS,
    )
    compiled = jax.jit(several, **options).lower(*arguments).compile()
    return functools.partial(compiled, *arguments)


def products(size: int) -> dict[str, tuple[Callable[[], Any], int]]:
    """Compiles float32 matrix products ``[size, size] x [size, size]``.

    Returns:
      By how they use the devices, a function and the number of floating point
      operations it makes: one product on the first device, and one on each.
    """
    local = jax.local_devices()
    repeats = 1 if local[0].platform == "cpu" else 16  # to last longer than a launch
    found: dict[str, tuple[Callable[[], Any], int]] = {}

    def multiply(a: Array, b: Array) -> Array:
        for _ in range(repeats):
            a = a @ b
        return a

    for count in sorted({1, len(local)}):
        mesh = devices.mesh(count)
        a = jax.random.normal(jax.random.key(0), (count * size, size)) / size**0.5
        arguments = (
            devices.put(np.asarray(a), mesh, devices.RUNS),
            devices.put(np.asarray(a[:size]), mesh),
        )
        several, options = devices.over_runs(
            multiply, mesh, (devices.RUNS, devices.SHARED), devices.RUNS
        )
        compiled = jax.jit(several, **options).lower(*arguments).compile()
        name = "on one device" if count == 1 else f"on each of {count} devices"
        found[name] = (
            functools.partial(compiled, *arguments),
            repeats * count * 2 * size**3,
        )
    return found
