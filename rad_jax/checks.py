"""Checks of what users hand in, before any work: argument, what came, what may."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from rad_jax.types import UNLABELLED

_SHOWN = 5
_LARGEST = 1e15  # squares of differences, summed, must be finite in float32


def _some(values) -> str:
    """The first few values, for a message."""
    shown = ", ".join(str(v) for v in list(values)[:_SHOWN])
    return shown + (", …" if len(values) > _SHOWN else "")


def _array(name: str, values: ArrayLike) -> np.ndarray:
    if isinstance(values, np.ma.MaskedArray):
        raise ValueError(
            f"{name} must not be a masked array: fill or drop what is masked"
        )
    try:
        return np.asarray(values)
    except ValueError as error:  # rows of different lengths
        raise ValueError(f"{name} must be a regular array: {error}") from None


def whole(
    name: str, value: object, least: int | None = None, most: int | None = None
) -> int:
    """A number of things.

    Args:
      name: of the argument, for messages.
      value: what came.
      least: that is allowed, if there is such a bound.
      most: likewise.

    Returns:
      The number as a Python integer.

    Raises:
      TypeError: for what is no whole number.
      ValueError: for one out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if most is not None and not (least or 0) <= value <= most:
        raise ValueError(f"{name} must lie in {least or 0}..{most}, got {value}")
    if least is not None and value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return int(value)


def features(
    name: str,
    values: ArrayLike,
    *,
    row_shape: Sequence[int] | None = None,
    dtype: np.dtype | None = None,
) -> np.ndarray:
    """Finite numbers, at least one row, and the row shape and dtype that are expected.

    Args:
      name: of the argument, for messages.
      values: ``[N, *S]``.
      row_shape: ``S`` as it must be, if it is known.
      dtype: as it must be, if it is known.

    Returns:
      ``[N, *S]`` in float32.

    Raises:
      ValueError: naming the argument, what came and what is allowed.
    """
    array = _array(name, values)
    if array.ndim < 2:
        raise ValueError(
            f"{name} must have rows and columns, [N, D] or [N, height, width, …]; got "
            f"shape {array.shape}"
        )
    if not array.shape[0]:
        raise ValueError(f"{name} has no rows; at least one is needed")
    if not array.size:
        raise ValueError(f"{name} has no columns, got shape {array.shape}")
    if array.dtype.kind not in "biuf" and not jnp.issubdtype(array.dtype, jnp.floating):
        raise ValueError(f"{name} must be numbers, got dtype {array.dtype}")
    if row_shape is not None and array.shape[1:] != tuple(row_shape):
        raise ValueError(
            f"{name} must have rows of shape {tuple(row_shape)} like those before, got "
            f"{array.shape[1:]}"
        )
    if dtype is not None and array.dtype != dtype:
        raise ValueError(
            f"{name} must have dtype {dtype} like those before, got {array.dtype}"
        )
    with np.errstate(over="ignore"):
        cast = array.astype(np.float32)
    bad = ~(np.abs(cast) <= _LARGEST).reshape(array.shape[0], -1).all(axis=1)
    if bad.any():
        raise ValueError(
            f"{name} must be finite in float32 and at most {_LARGEST:g} in size; rows "
            f"{_some(np.flatnonzero(bad))} hold NaN, infinite or too large values "
            f"({bad.sum()} of {array.shape[0]} rows)"
        )
    return cast


def labels(
    name: str, values: ArrayLike, num_rows: int, num_classes: int, *, missing: bool
) -> np.ndarray:
    """Whole numbers in 0..K-1, and -1 for rows without label where that is allowed.

    Args:
      name: of the argument, for messages.
      values: ``[N]``.
      num_rows: N as it must be.
      num_classes: K.
      missing: whether -1 is allowed.

    Returns:
      ``[N]`` int32.

    Raises:
      ValueError: naming the argument, what came and what is allowed.
    """
    array = _array(name, values)
    allowed = f"0..{num_classes - 1}" + (" or -1 (no label)" if missing else "")
    if array.shape != (num_rows,):
        raise ValueError(
            f"{name} must have one label for each of {num_rows} rows, got shape "
            f"{array.shape}"
        )
    if array.dtype.kind not in "iuf":
        raise ValueError(
            f"{name} must be whole numbers in {allowed}, got dtype {array.dtype}"
        )
    whole = np.isfinite(array) & (array == np.floor(array))
    if not whole.all():
        raise ValueError(
            f"{name} must be whole numbers in {allowed}, got {_some(array[~whole])}"
        )
    lowest = UNLABELLED if missing else 0
    outside = (array < lowest) | (array >= num_classes)
    if outside.any():
        raise ValueError(
            f"{name} must lie in {allowed}, got {_some(np.unique(array[outside]))} "
            f"({outside.sum()} of {num_rows} rows)"
        )
    return array.astype(np.int32)


#: What to do about classes of which the clean batch has no row.
NEW_CLASSES = ("refuse", "admit")


def no_new_classes(
    name: str,
    values: ArrayLike,
    known: ArrayLike,
    remedy: str,
    class_names: Sequence[str] | None = None,
) -> None:
    """Raises where labels are of classes that no clean row has.

    A model cannot predict a class that it has never seen, so a filter drops every row
    of it, right or wrong, for good.

    Args:
      name: of the argument, for messages.
      values: ints of any shape, -1 for rows without label.
      known: ints, the classes that trusted rows have.
      remedy: what the caller can do.
      class_names: by class, for messages.

    Raises:
      ValueError: naming the classes, how many rows they have, and the remedy.
    """
    new = np.setdiff1d(np.asarray(values), np.append(known, UNLABELLED))
    if not new.size:
        return
    named = [str(k) if class_names is None else class_names[k] for k in new]
    count = int(np.isin(values, new).sum())
    raise ValueError(
        f"{name}: {count:,} rows are of class {', '.join(named)}, of which no clean "
        f"row is: selection would drop it for good; {remedy}"
    )


def row_ids(name: str, values: ArrayLike, num_rows: int) -> np.ndarray:
    """Whole numbers in int32, not negative, each once.

    Args:
      name: of the argument, for messages.
      values: ``[N]``.
      num_rows: N as it must be.

    Returns:
      ``[N]`` int32.

    Raises:
      ValueError: naming the argument, what came and what is allowed.
    """
    array = _array(name, values)
    if array.shape != (num_rows,) or array.dtype.kind not in "iu":
        raise ValueError(
            f"{name} must be {num_rows} whole numbers, got shape {array.shape} and "
            f"dtype {array.dtype}"
        )
    outside = (array < 0) | (array > np.iinfo(np.int32).max)
    if outside.any():
        raise ValueError(f"{name} must lie in 0..2^31-1, got {_some(array[outside])}")
    unique, count = np.unique(array, return_counts=True)
    if (count > 1).any():
        raise ValueError(f"{name} must differ, {_some(unique[count > 1])} occur twice")
    return array.astype(np.int32)
