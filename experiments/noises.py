"""How labels go wrong, from the flags: kinds, a matrix in a file, a rate over time.

`--noise_schedule` is one schedule, such as ``sin(0.4,0.2,20)``, or several joined by
semicolons, each with its batches: ``0-30:constant(0.2);30-:linear(0.2,0.8,30,60)``.
Batches are counted as arrivals are (1 is the first one) and ``0-30`` ends before batch
30; the end may be left out of the last one. Names and arguments are those of
`rad_jax.schedules`.
"""

import inspect
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from experiments import names
from rad_jax import datasets, noise, schedules
from rad_jax.schedules import Schedule
from rad_jax.transition import check_matrix
from rad_jax.types import UNLABELLED, Noise

if TYPE_CHECKING:
    from experiments.settings import Config

SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "constant": schedules.constant,
    "uniform": schedules.uniform,
    "gaussian": schedules.gaussian,
    "sin": schedules.sin,
    "linear": schedules.linear,
}

_CALL = re.compile(r"\s*(\w+)\s*\(([^()]*)\)\s*")
_PIECE = re.compile(r"\s*(\d+)\s*-\s*(\d*)\s*:(.*)", re.DOTALL)


def _known() -> str:
    calls = (
        f"{name}({','.join(inspect.signature(make).parameters)})"
        for name, make in SCHEDULES.items()
    )
    return ", ".join(calls)


def _one(text: str) -> Schedule:
    match = _CALL.fullmatch(text)
    if match is None or match[1] not in SCHEDULES:
        raise ValueError(f"{text.strip()!r} is no schedule; known: {_known()}")
    make = SCHEDULES[match[1]]
    wanted = list(inspect.signature(make).parameters)
    given = [part.strip() for part in match[2].split(",")] if match[2].strip() else []
    if len(given) != len(wanted):
        raise ValueError(
            f"{text.strip()!r} has {len(given)} numbers, {match[1]}"
            f"({','.join(wanted)}) takes {len(wanted)}"
        )
    values: list[float] = []
    for name, number in zip(wanted, given, strict=True):
        whole = name in ("start", "stop")  # batches
        try:
            values.append(int(number) if whole else float(number))
        except ValueError:
            kind = "a whole number" if whole else "a number"
            raise ValueError(
                f"{name} of {text.strip()!r} must be {kind}, got {number!r}"
            ) from None
    return make(*values)


def parse_schedule(text: str) -> Schedule:
    """A schedule from its text; see the module.

    Args:
      text: of the flag.

    Raises:
      ValueError: naming the flag, for what cannot be read, rates outside [0, 1], gaps
        and overlaps.
    """
    try:
        parts = [part for part in text.split(";") if part.strip()]
        if len(parts) == 1 and _PIECE.fullmatch(parts[0]) is None:
            return _one(parts[0])
        pieces: list[tuple[int, int | None, Schedule]] = []
        for part in parts:
            match = _PIECE.fullmatch(part)
            if match is None:
                raise ValueError(
                    f"{part.strip()!r} must be START-STOP:SCHEDULE, one of several "
                    "joined by semicolons"
                )
            stop = int(match[2]) if match[2] else None
            pieces.append((int(match[1]), stop, _one(match[3])))
        if not pieces:
            raise ValueError(f"it is empty; known: {_known()}")
        return schedules.piecewise(pieces)
    except (ValueError, TypeError) as error:  # TypeError: an open end in the middle
        raise ValueError(f"--noise_schedule={text}: {error}") from None


def _read_csv(path: str) -> np.ndarray:
    """Numbers of a file of commas, without header.

    Raises:
      ValueError: naming the line.
    """
    rows: list[list[float]] = []
    with open(path, encoding="utf-8-sig") as file:  # spreadsheets write that mark
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                rows.append([float(x) for x in line.split(",")])
            except ValueError:
                raise ValueError(
                    f"line {number} must be numbers between commas (the file has no "
                    f"header), got {line.strip()[:40]!r}"
                ) from None
            if len(rows[-1]) != len(rows[0]):
                raise ValueError(
                    f"line {number} has {len(rows[-1])} numbers, those before it have "
                    f"{len(rows[0])}"
                )
    return np.array(rows)


def read_matrix(path: str) -> np.ndarray:
    """A transition matrix ``[K, K]`` from a file of commas (.csv) or of NumPy (.npy).

    Args:
      path: of the file; row i holds the shares of the given classes among the rows
        whose true class is i.

    Raises:
      ValueError: naming the flag, for a file that cannot be read or holds no
        row-stochastic matrix.
    """
    where = f"--noise_matrix={path}"
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in (".csv", ".npy"):
        raise ValueError(f"{where} must be a .csv or .npy file")
    try:
        if suffix == ".npy":
            with open(os.path.expanduser(path), "rb") as file:
                matrix = np.lib.format.read_array(file, allow_pickle=False)
        else:
            matrix = _read_csv(os.path.expanduser(path))
    except (OSError, ValueError, EOFError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ValueError(f"{where} cannot be read: {reason}") from None
    if matrix.dtype.kind not in "fiu" or matrix.ndim != 2:
        raise ValueError(
            f"{where} must hold numbers, [K, K], got {matrix.dtype} of shape "
            f"{matrix.shape}"
        )
    return np.asarray(check_matrix(matrix, where))


def check(config: "Config") -> None:
    """Checks what needs no data.

    Raises:
      ValueError: naming the flag.
    """
    if config.noise == "asymmetric" and config.noise_matrix is None:
        raise ValueError(
            "--noise=asymmetric needs --noise_matrix, a .csv or .npy file of K x K "
            "shares: a row for each true class, a column for each given one"
        )
    if config.noise_matrix is not None:
        if config.noise != "asymmetric":
            raise ValueError(
                f"--noise_matrix={config.noise_matrix} is for --noise=asymmetric, got "
                f"--noise={config.noise}"
            )
        read_matrix(config.noise_matrix)
    if config.noise_schedule is not None:
        parse_schedule(config.noise_schedule)


def make(config: "Config", data: datasets.StreamData) -> Noise:
    """The noise, whose rate a sweep puts in.

    Args:
      config: checked.
      data: what arrives.

    Raises:
      ValueError: naming the flag, for a matrix of other classes, a class without rows
        whose centroid is needed, or a schedule that ends before the stream.
    """
    if config.noise == "asymmetric":
        matrix = read_matrix(config.noise_matrix or "")
        if len(matrix) != data.num_classes:
            raise ValueError(
                f"--noise_matrix={config.noise_matrix} must have a row and a column "
                f"for each of the {data.num_classes} classes "
                f"{', '.join(data.class_names)}; got {len(matrix)}"
            )
        made = noise.asymmetric(matrix)
    elif config.noise == "feature_dependent":
        made = noise.feature_dependent(0.0, _centroids(data))
    else:
        made = names.NOISES[config.noise](0.0)
    if config.noise_schedule is None:
        return made
    schedule = parse_schedule(config.noise_schedule)
    try:
        schedules.check_covers(schedule, len(data.labels))
    except ValueError as error:
        raise ValueError(f"--noise_schedule={config.noise_schedule}: {error}") from None
    return noise.scheduled(made, schedule)


def _centroids(data: datasets.StreamData) -> np.ndarray:
    """Mean of each true class over the clean batch and the stream."""
    labels = np.concatenate([data.initial_labels, data.labels.ravel()])
    arriving = data.features.reshape(-1, *data.features.shape[2:])
    features = np.concatenate([data.initial_features, arriving])
    known = labels != UNLABELLED
    counts = np.bincount(labels[known], minlength=data.num_classes)
    if not counts.all():
        absent = [data.class_names[k] for k in np.flatnonzero(counts == 0)]
        raise ValueError(
            "--noise=feature_dependent needs rows of every class before the test rows; "
            f"there are none of {', '.join(absent)}"
        )
    return noise.class_centroids(features[known], labels[known], data.num_classes)
