"""Label noise: how given labels differ from true ones, as pure functions.

A noise model is a value, `rad_jax.types.Noise`. The same key gives the same noise; a
stream keys batch i by ``fold_in(key, i)``, so that noise does not depend on how many
batches or seeds are run.

| noise | which rows | to which class |
|---|---|---|
| `symmetric` | exactly so many | any other, evenly |
| `independent` | each with the same probability | any other, or any, evenly |
| `pair_flip` | exactly so many | the next one |
| `asymmetric` | by true class | by true class |
| `feature_dependent` | those near another class | the nearest other one |

Every one of them has an array parameter "rate" and `scheduled` lets it follow a
`rad_jax.schedules.Schedule`.
"""

import functools

import chex
import jax
import jax.numpy as jnp

from rad_jax.feature_noise import class_centroids, feature_dependent
from rad_jax.schedules import Schedule, check_rate, rate_at
from rad_jax.transition import check_matrix
from rad_jax.transition import estimate as estimate_transition_matrix
from rad_jax.types import UNLABELLED, Array, Noise, PRNGKey, PyTree

__all__ = [
    "asymmetric",
    "check_noise",
    "check_rate",
    "class_centroids",
    "corrupt",
    "estimate_transition_matrix",
    "exact_count",
    "feature_dependent",
    "independent",
    "pair_flip",
    "realised_rate",
    "scheduled",
    "symmetric",
]


def _eligible(label: Array, valid: Array, num_classes: int) -> Array:
    chex.assert_rank((label, valid), 1)
    chex.assert_equal_shape((label, valid))
    if num_classes < 2:
        raise ValueError(f"num_classes must be at least 2, got {num_classes}")
    return valid & (label != UNLABELLED)


def exact_count(rate: Array, num_rows: Array) -> Array:
    """``floor(rate * num_rows + 1e-3)`` as int32, safe against float32 rounding.

    A float32 rate and its product are off by up to 2^-23 of the product, so a product
    within that (and 1e-3) below a whole number counts as that number.
    """
    product = rate * jnp.asarray(num_rows, jnp.float32)
    nearest = jnp.round(product)
    close = jnp.abs(product - nearest) <= 1e-3 + 2.0**-23 * product
    return jnp.where(close, nearest, jnp.floor(product)).astype(jnp.int32)


def _another_class(key: PRNGKey, label: Array, num_classes: int) -> Array:
    shift = jax.random.randint(key, label.shape, 1, num_classes, dtype=jnp.int32)
    return ((label.astype(jnp.int32) + shift) % num_classes).astype(label.dtype)


def _draw_exactly(key: PRNGKey, eligible: Array, rate: Array) -> Array:
    """``[N]`` bool: that share of the eligible rows, drawn without replacement."""
    draw = jax.random.uniform(key, eligible.shape, jnp.float32)
    draw = jnp.where(eligible, draw, jnp.inf)
    # Numbers of at least 0 are in the same order as their bits, and XLA's CPU backend
    # sorts whole numbers faster.
    bits = jax.lax.bitcast_convert_type(draw, jnp.int32)
    index = jnp.arange(draw.size, dtype=jnp.int32)
    _, order = jax.lax.sort((bits, index), num_keys=1, is_stable=True)
    rank = jnp.zeros_like(index).at[order].set(index, unique_indices=True)
    return eligible & (rank < exact_count(rate, jnp.sum(eligible)))


def _symmetric(params, label, valid, *, num_classes, key):
    eligible = _eligible(label, valid, num_classes)
    which, to = jax.random.split(key)
    flipped = _draw_exactly(which, eligible, params["rate"])
    return jnp.where(flipped, _another_class(to, label, num_classes), label)


def symmetric(rate) -> Noise:
    """Exactly ``floor(rate * n + 1e-3)`` of n labelled rows get another class.

    Rows are drawn without replacement; the class uniformly from the K - 1 others
    (the paper's convention).

    Args:
      rate: in [0, 1]; an array parameter, may be vmapped.

    Returns:
      The noise model.

    Raises:
      ValueError: for a rate outside [0, 1].
    """
    return Noise(_symmetric, {"rate": check_rate(rate)})


@functools.cache
def _independent(include_true: bool):
    def apply(params, label, valid, *, num_classes, key):
        eligible = _eligible(label, valid, num_classes)
        which, to = jax.random.split(key)
        draw = jax.random.uniform(which, label.shape, jnp.float32)
        flipped = eligible & (draw < params["rate"])
        if include_true:
            other = jax.random.randint(
                to, label.shape, 0, num_classes, dtype=jnp.int32
            ).astype(label.dtype)
        else:
            other = _another_class(to, label, num_classes)
        return jnp.where(flipped, other, label)

    return apply


def independent(rate, *, include_true: bool = False) -> Noise:
    """Every labelled row is redrawn on its own with probability `rate`.

    Args:
      rate: in [0, 1]; an array parameter, may be vmapped.
      include_true: redraw from all K classes, so that a flip may land on the true one
        and the realised rate is ``rate * (K - 1) / K``; else from the K - 1 others.

    Returns:
      The noise model.

    Raises:
      ValueError: for a rate outside [0, 1].
    """
    return Noise(_independent(include_true), {"rate": check_rate(rate)})


def _pair_flip(params, label, valid, *, num_classes, key):
    eligible = _eligible(label, valid, num_classes)
    flipped = _draw_exactly(key, eligible, params["rate"])
    following = (label.astype(jnp.int32) + 1) % num_classes
    return jnp.where(flipped, following.astype(label.dtype), label)


def pair_flip(rate) -> Noise:
    """Exactly ``floor(rate * n + 1e-3)`` of n labelled rows get the next class.

    Class k becomes k + 1, the last one 0; rows are drawn as by `symmetric`.

    Args:
      rate: in [0, 1]; an array parameter, may be vmapped.

    Returns:
      The noise model.

    Raises:
      ValueError: for a rate outside [0, 1].
    """
    return Noise(_pair_flip, {"rate": check_rate(rate)})


def _asymmetric(params, label, valid, *, num_classes, key):
    eligible = _eligible(label, valid, num_classes)
    matrix = jnp.asarray(params["matrix"], jnp.float32)
    if matrix.shape != (num_classes, num_classes):
        raise ValueError(
            f"matrix must have a row and a column for each of {num_classes} classes, "
            f"got shape {matrix.shape}"
        )
    which, to = jax.random.split(key)
    chance = matrix * (1.0 - jnp.eye(num_classes, dtype=matrix.dtype))
    total = jnp.sum(chance, axis=1)
    own = jnp.maximum(label, 0).astype(jnp.int32)
    draw = jax.random.uniform(which, label.shape, jnp.float32)
    flipped = eligible & (draw < params["rate"] * total[own])
    other = jax.random.categorical(to, jnp.log(chance)[own], axis=-1)
    return jnp.where(flipped, other.astype(label.dtype), label)


def asymmetric(matrix) -> Noise:
    """Every labelled row draws its given class from the row of its true class.

    Its parameter "rate", 1 at first, scales the matrix off its diagonal: a rate r
    stands for ``r * matrix + (1 - r) * identity``. A sweep that replaces the rate
    takes the matrix as it is at 1.

    Args:
      matrix: ``[K, K]``, ``matrix[true, given]``: rows are true classes and sum to 1,
        columns are given ones. An array parameter, may be vmapped.

    Returns:
      The noise model.

    Raises:
      ValueError: for a matrix that is not square, has negative entries (or some that
        are not numbers), or rows that do not sum to 1.
    """
    return Noise(_asymmetric, {"rate": 1.0, "matrix": check_matrix(matrix)})


def scheduled(noise: Noise, schedule: Schedule) -> Noise:
    """A noise whose rate follows the index of the batch.

    Batch i has the rate ``rate * schedule(i)``, where the rate is that of `noise`, or
    what a sweep puts in its place. So ``scheduled(symmetric(1.0), schedule)`` takes
    the schedule as it is, and a sweep over noise rates scales it.

    Args:
      noise: with a parameter "rate".
      schedule: its parameters become ``params["schedule"]`` beside the noise's own,
        and may be vmapped.

    Returns:
      The noise model; it needs the index of the batch.

    Raises:
      ValueError: for a noise without a rate, or one that follows a schedule already.
    """
    if not isinstance(noise.params, dict) or "rate" not in noise.params:
        raise ValueError(
            'noise must have a parameter "rate" to be scheduled, got parameters '
            f"{noise.params!r}"
        )
    if "schedule" in noise.params:
        raise ValueError(
            "noise must follow no schedule yet, got one with the parameters "
            f"{noise.params['schedule']!r}; schedules.piecewise joins schedules"
        )
    # When a schedule ends is no part of the compiled code.
    apply = _scheduled(noise._replace(params=None), Schedule(schedule.apply, None))
    needs = tuple(dict.fromkeys((*noise.needs, "arrival")))
    return Noise(apply, {**noise.params, "schedule": schedule.params}, needs)


@functools.cache
def _scheduled(noise: Noise, schedule: Schedule):
    def apply(params, label, valid, *, num_classes, key, arrival, features=None):
        inner = {name: value for name, value in params.items() if name != "schedule"}
        at = rate_at(schedule, params["schedule"], arrival, key)
        return corrupt(
            noise,
            inner | {"rate": params["rate"] * at},
            label,
            valid,
            num_classes=num_classes,
            key=key,
            features=features,
            arrival=arrival,
        )

    return apply


def check_noise(noise: Noise, name: str = "noise") -> Noise:
    """Returns a noise whose rate a sweep can put in.

    Raises:
      TypeError: for something that is no noise.
      ValueError: for one without a parameter "rate".
    """
    if not isinstance(noise, Noise):
        raise TypeError(f"{name} must be a value such as symmetric(0.4), got {noise!r}")
    if not isinstance(noise.params, dict) or "rate" not in noise.params:
        raise ValueError(
            f'{name} must have a parameter "rate", got parameters {noise.params!r}'
        )
    return noise


def corrupt(
    noise: Noise,
    params: PyTree,
    label: Array,
    valid: Array,
    *,
    num_classes: int,
    key: PRNGKey,
    features: Array | None = None,
    arrival: Array | None = None,
) -> Array:
    """Given labels of a batch: any noise, with what it needs of what is known.

    Args:
      noise: how labels go wrong.
      params: its parameters.
      label: ``[N]`` int, true labels, -1 for none.
      valid: ``[N]`` bool, False for padding.
      num_classes: K.
      key: of this batch.
      features: ``[N, *S]``, for a noise that depends on them.
      arrival: int scalar, index of the batch (1 for the first after the clean batch),
        for a noise that varies over time.

    Returns:
      ``[N]`` int, of `label`'s dtype (int32 for int64).

    Raises:
      ValueError: if the noise needs something that is not given.
    """
    known = {"features": features, "arrival": arrival}
    beside = {}
    for name in noise.needs:
        if name not in known:
            raise ValueError(
                f"noise.needs may name {tuple(known)}, got {name!r} among {noise.needs}"
            )
        if known[name] is None:
            raise ValueError(f"{name} is needed by this noise and was not given")
        beside[name] = known[name]
    label, valid = jnp.asarray(label), jnp.asarray(valid)  # NumPy's 64 bits are 32 here
    return noise.apply(params, label, valid, num_classes=num_classes, key=key, **beside)


def realised_rate(given: Array, true_label: Array, valid: Array) -> Array:
    """Share of labelled valid rows whose given label is wrong; 0 without any."""
    labelled = valid & (given != UNLABELLED)
    wrong = jnp.sum(labelled & (given != true_label))
    return wrong / jnp.maximum(jnp.sum(labelled), 1)
