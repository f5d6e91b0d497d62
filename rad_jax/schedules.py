"""Rates over time: how much noise a batch has, by its index.

A schedule is a value, `Schedule`. Batches are counted as arrivals are: D_0, the clean
batch, is 0 and the first batch that may be noisy is 1. An interval ``(start, stop)``
holds the batches ``start, ..., stop - 1``, as `range` does, so ``(0, 50)`` and
``(1, 50)`` both begin with the stream.

The schedule gives a rate in [0, 1]; `rad_jax.noise.scheduled` multiplies it by the
rate of the noise, so that a sweep over noise rates scales the whole curve, and a rate
of 1 takes the schedule as it is.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rad_jax.types import Array, PRNGKey, PyTree, as_arrays

#: Indices of batches are int32.
_MOST = 2**31 - 1
#: Above it, float32 cannot tell spreads apart; below its inverse, waves.
_WIDEST = 1e6

#: What a batch's key is folded with for its rate; see `batch_key`.
_RATE = (1 << 30) + 1


def check_rate(rate, name: str = "rate"):
    """Raises ValueError unless concrete rates lie in [0, 1]; returns them."""
    if not isinstance(rate, jax.core.Tracer):
        values = np.asarray(rate)
        if values.dtype.kind in "OUS":  # no numbers, or a text that holds one
            values = np.asarray(np.nan)
        if not np.all((values >= 0.0) & (values <= 1.0)):
            raise ValueError(f"{name} must lie in [0, 1], got {rate}")
    return rate


class Schedule(NamedTuple):
    """A rate that follows the index of the batch.

    Attributes:
      apply: ``(params, index, key) -> rate``, a float32 scalar in [0, 1]; a pure
        function, `key` being that of the batch.
      params: pytree of numbers that may be vmapped.
      start: the first batch for which a rate is defined.
      stop: the first batch for which none is any more; None for ever.
    """

    apply: Callable[[PyTree, Array, PRNGKey], Array]
    params: PyTree
    start: int = 0
    stop: int | None = None


def batch_key(noise_key: PRNGKey, index: Array) -> PRNGKey:
    """The key of a batch's noise: batches do not depend on how many are run."""
    return jax.random.fold_in(noise_key, index)


def rate_at(schedule: Schedule, params: PyTree, index: Array, key: PRNGKey) -> Array:
    """The rate of one batch.

    Args:
      schedule: the schedule.
      params: its parameters.
      index: int scalar, the batch.
      key: of the batch's noise; the rate has a stream of its own.
    """
    rate = schedule.apply(params, index, jax.random.fold_in(key, _RATE))
    return jnp.clip(rate, 0.0, 1.0).astype(jnp.float32)


def rates(schedule: Schedule, noise_key: PRNGKey, num_batches: int) -> Array:
    """The rates of batches 1 … `num_batches`, as a stream with this key sees them.

    Returns:
      ``[num_batches]`` float32.
    """
    check_covers(schedule, num_batches)
    params = as_arrays(schedule.params)

    def one(index: Array) -> Array:
        return rate_at(schedule, params, index, batch_key(noise_key, index))

    return jax.vmap(one)(jnp.arange(1, num_batches + 1))


def check_covers(schedule: Schedule, num_batches: int) -> None:
    """Raises ValueError unless batches 1 … `num_batches` all have a rate."""
    stop = schedule.stop
    if schedule.start > 1 or (stop is not None and stop <= num_batches):
        held = f"{schedule.start} up to {'ever' if stop is None else stop - 1}"
        raise ValueError(
            f"schedule must give a rate to every batch 1..{num_batches}, got one for "
            f"batches {held}"
        )


def _constant(params, index, key):
    del index, key
    return params["rate"]


def constant(rate) -> Schedule:
    """The same rate for every batch.

    Raises:
      ValueError: for a rate outside [0, 1].
    """
    return Schedule(_constant, {"rate": check_rate(rate)})


def _uniform(params, index, key):
    del index
    draw = jax.random.uniform(key, (), jnp.float32)
    return params["lo"] + (params["hi"] - params["lo"]) * draw


def uniform(lo, hi) -> Schedule:
    """Every batch draws its rate evenly between `lo` and `hi`.

    Raises:
      ValueError: unless 0 <= lo <= hi <= 1.
    """
    check_rate(lo, "lo")
    check_rate(hi, "hi")
    if _concrete(lo, hi) and np.any(np.asarray(lo) > np.asarray(hi)):
        raise ValueError(f"lo must not be above hi, got lo={lo} and hi={hi}")
    return Schedule(_uniform, {"lo": lo, "hi": hi})


def _gaussian(params, index, key):
    del index
    return params["mean"] + params["sd"] * jax.random.normal(key, (), jnp.float32)


def gaussian(mean, sd) -> Schedule:
    """Every batch draws its rate from a normal distribution, clipped to [0, 1].

    Raises:
      ValueError: for a mean outside [0, 1] or an sd that is negative or not finite.
    """
    check_rate(mean, "mean")
    if _concrete(sd):
        value = np.asarray(sd, np.float64)
        if not np.all((value >= 0) & (value <= _WIDEST)):
            raise ValueError(
                f"sd must be finite and at least 0 (at most {_WIDEST:g}), got {sd}"
            )
    return Schedule(_gaussian, {"mean": mean, "sd": sd})


def _sin(params, index, key):
    del key
    turns = index / params["period"]
    return params["mid"] + params["half_range"] * jnp.sin(2 * jnp.pi * turns)


def sin(mid, half_range, period) -> Schedule:
    """A wave around `mid`.

    Batch i has ``mid + half_range * sin(2 pi i / period)``.

    Raises:
      ValueError: where the curve leaves [0, 1], or for a period that is not above 0
        or that float32 cannot hold.
    """
    check_rate(mid, "mid")
    if _concrete(mid, half_range):
        reach = np.abs(np.asarray(half_range, np.float64))
        middle = np.asarray(mid, np.float64)
        slack = 1e-6  # .4 - .4 in single precision
        if not np.all((middle - reach >= -slack) & (middle + reach <= 1 + slack)):
            raise ValueError(
                f"mid ± half_range must lie in [0, 1], got mid={mid} and "
                f"half_range={half_range}"
            )
    if _concrete(period):
        value = np.asarray(period, np.float64)
        if not np.all((value >= 1 / _WIDEST) & (value <= _MOST)):
            raise ValueError(
                f"period must be above 0 batches, got {period}; from "
                f"{1 / _WIDEST:g} to 2^31-1 are allowed"
            )
    return Schedule(_sin, {"mid": mid, "half_range": half_range, "period": period})


def _linear(params, index, key):
    del key
    last = jnp.maximum(params["stop"] - 1 - params["start"], 1)
    done = jnp.clip((index - params["start"]) / last, 0.0, 1.0)
    return params["lo"] + (params["hi"] - params["lo"]) * done


def linear(lo, hi, start: int, stop: int) -> Schedule:
    """From `lo` at batch `start` in a straight line to `hi` at batch ``stop - 1``.

    Before and after it stays at its ends; `hi` may be below `lo`.

    Raises:
      ValueError: for rates outside [0, 1], or without ``0 <= start < stop``.
    """
    check_rate(lo, "lo")
    check_rate(hi, "hi")
    _check_interval(start, stop)
    return Schedule(_linear, {"lo": lo, "hi": hi, "start": start, "stop": stop})


@functools.cache
def _piecewise(parts: tuple[Callable, ...]):
    def apply(params, index, key):
        drawn = [
            jnp.asarray(part(p, index, key), jnp.float32)
            for part, p in zip(parts, params["parts"], strict=True)
        ]
        piece = jnp.sum(index >= params["starts"]) - 1
        return jnp.stack(drawn)[jnp.clip(piece, 0, len(parts) - 1)]

    return apply


def piecewise(pieces: Sequence[tuple[int, int | None, Schedule]]) -> Schedule:
    """Schedules one after the other.

    Args:
      pieces: ``(start, stop, schedule)``, in order; each start is the stop before.
        The last stop may be None, for ever. Schedules go by the index of the batch
        in the whole stream (a sine does not begin anew).

    Returns:
      The schedule, defined from the first start to the last stop.

    Raises:
      TypeError: for something that is no schedule, or a bound that is no whole number.
      ValueError: without pieces, for gaps or overlaps, or for an empty interval.
    """
    pieces = list(pieces)
    if not pieces:
        raise ValueError("pieces must hold at least one (start, stop, schedule)")
    for i, piece in enumerate(pieces):
        if not isinstance(piece, tuple | list) or len(piece) != 3:
            raise TypeError(
                f"pieces[{i}] must be (start, stop, schedule), got {piece!r}"
            )
        start, stop, schedule = piece
        if not isinstance(schedule, Schedule):
            raise TypeError(
                f"pieces[{i}] must be (start, stop, schedule), the schedule a value "
                f"such as constant(0.4), got {schedule!r}"
            )
        if stop is None and i == len(pieces) - 1:
            _check_interval(start, start, f"pieces[{i}]", may_be_empty=True)
        else:
            _check_interval(start, stop, f"pieces[{i}]")
        before = pieces[i - 1][1] if i else start
        if start != before:
            what = "an overlap" if before is None or start < before else "a gap"
            raise ValueError(
                f"pieces[{i}] must start where the piece before stops, at {before}; "
                f"got {start}, which makes {what}"
            )
        _check_within(i, start, stop, schedule)
    starts = np.asarray([start for start, _, _ in pieces], np.int32)
    params = {"parts": tuple(s.params for _, _, s in pieces), "starts": starts}
    parts = tuple(schedule.apply for _, _, schedule in pieces)
    return Schedule(_piecewise(parts), params, pieces[0][0], pieces[-1][1])


def _check_within(i: int, start: int, stop: int | None, schedule: Schedule) -> None:
    """A piece asks a nested schedule only where that is defined."""
    longer = schedule.stop is not None and (stop is None or stop > schedule.stop)
    if start < schedule.start or longer:
        raise ValueError(
            f"pieces[{i}] is to hold for batches from {start} up to, not with, {stop}, "
            f"but its schedule is defined from {schedule.start} to {schedule.stop}"
        )


def _check_interval(
    start, stop, name: str = "start and stop", may_be_empty: bool = False
) -> None:
    for value in (start, stop):
        if isinstance(value, jax.core.Tracer):
            return
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise TypeError(
                f"{name} must be whole numbers of batches, got {start!r} and {stop!r}"
            )
    if not 0 <= start < stop + may_be_empty:
        raise ValueError(
            f"{name} must be batches with 0 <= start < stop, got {start} and {stop}"
        )
    if stop > _MOST:
        raise ValueError(f"{name} must be batches of at most 2^31-1, got {stop}")


def _concrete(*values) -> bool:
    return not any(isinstance(value, jax.core.Tracer) for value in values)
