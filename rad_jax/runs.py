"""How the runs of a sweep are laid out: schemes x noise rates x seeds, vmapped.

A group is the runs of the schemes that have as many models; each group has an axis of
its own. A chunk is the runs of some of the seeds.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from rad_jax.devices import RUNS, SHARED, fill_up, put
from rad_jax.types import Noise, PRNGKey, PyTree, SelectionScheme, as_arrays

#: What differs between seeds, in the paper's words.
RANDOMNESS = ("fixed_model", "fixed_noise", "double_random")


class Runs(NamedTuple):
    """The vmapped axis of one group: R runs, in the order scheme, rate, seed."""

    selection: PyTree  # [R, ...] parameters of `selections.switch`
    noise: PyTree  # [R] parameters of the noise
    noise_key: PRNGKey  # [R]
    init_key: PRNGKey  # [R], or one for all
    order_key: PRNGKey  # [R], or one for all


def axes(random_model: bool) -> Runs:
    """The axes of `jax.vmap`: whether each run has keys of the model of its own."""
    model = 0 if random_model else None
    return Runs(0, 0, 0, model, model)  # type: ignore[arg-type]


def specs(random_model: bool) -> Runs:
    """What of the runs is cut along a mesh."""
    model = RUNS if random_model else SHARED
    return Runs(RUNS, RUNS, RUNS, model, model)  # type: ignore[arg-type]


def place(runs: Runs, mesh: Mesh, random_model: bool) -> Runs:
    """Puts them on a mesh."""
    return Runs(*map(put, runs, (mesh,) * len(runs), specs(random_model)))


def make(
    num_arms: int,
    scheme: SelectionScheme,
    noise: Noise,
    rates: Sequence[float],
    seeds: Sequence[int],
    key: PRNGKey,
    randomness: str,
    num_devices: int = 1,
) -> Runs:
    """Lays out the runs of one group; seed s of every scheme has the same noise.

    Args:
      num_arms: schemes of the group, members of `scheme`.
      scheme: made by `rad_jax.selection.switch`.
      noise: how labels go wrong.
      rates: noise rates.
      seeds: whole numbers; keys are folded from these, wherever they stand.
      key: base of all keys.
      randomness: of `RANDOMNESS`.
      num_devices: the last run is repeated until runs divide by it.
    """
    shape = (num_arms, len(rates), len(seeds))
    index = fill_up(int(np.prod(shape)), num_devices)
    arm, rate, position = (grid.ravel()[index] for grid in np.indices(shape))
    seed = np.asarray(seeds)[position]
    init_base, order_base, noise_base = (jax.random.fold_in(key, i) for i in range(3))
    seed_keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))

    def per_seed(base):
        return seed_keys(base, jnp.asarray(seed))

    fixed_noise = randomness == "fixed_noise"
    random_model = randomness != "fixed_model"

    def spread(params):
        return jax.tree.map(
            lambda x: jnp.broadcast_to(x, (index.size, *x.shape)), as_arrays(params)
        )

    rates_of_runs = jnp.asarray(np.asarray(rates)[rate], jnp.float32)
    return Runs(
        selection={
            "index": jnp.asarray(arm, jnp.int32),
            "members": spread(scheme.params["members"]),
        },
        noise=spread(noise.params) | {"rate": rates_of_runs},
        noise_key=seed_keys(noise_base, jnp.asarray(seed * (not fixed_noise))),
        init_key=per_seed(init_base) if random_model else init_base,
        order_key=per_seed(order_base) if random_model else order_base,
    )


def gather(
    groups: Sequence[Sequence[int]], shape: tuple[int, int, int], values: Sequence[Any]
) -> np.ndarray:
    """Puts the runs of all groups in order.

    Args:
      groups: positions of each group's schemes among all of them.
      shape: numbers of schemes, rates and seeds.
      values: ``[R, ...]`` of each group, R as `make` filled it up.

    Returns:
      ``[scheme, rate, seed, ...]``.
    """
    rest = np.asarray(values[0]).shape[1:]
    out = np.empty((*shape, *rest), np.asarray(values[0]).dtype)
    for group, value in zip(groups, values, strict=True):
        num_runs = len(group) * shape[1] * shape[2]
        here = np.asarray(value)[:num_runs]
        out[list(group)] = here.reshape(len(group), *shape[1:], *rest)
    return out
