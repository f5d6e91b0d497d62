"""Arrays of one's own, in a NumPy `.npz`."""

import os
import pathlib
import zipfile
import zlib

import numpy as np

from rad_jax.datasets.base import DataError, Dataset
from rad_jax.types import MAX_CLASSES, UNLABELLED

_OPTIONAL = ("class_names", "feature_names")


def load_npz(path: str | os.PathLike[str]) -> Dataset:
    """Loads a file of arrays.

    Args:
      path: an `.npz` that holds

        - `features`: a table ``[n, D]`` of numbers, NaN where a value is missing (then
          a column `<name> is missing` is added), or images ``[n, H, W, C]`` or
          ``[n, H, W]`` (grey) of uint8 or floats;
        - `labels`: ``[n]`` whole numbers, -1 or NaN for no label, or texts, '' for no
          label;
        - `class_names`, not needed: K texts, then numbers in `labels` must lie in
          0..K-1. Without it the classes are what occurs in `labels`, sorted;
        - `feature_names`, not needed: D texts.

        Rows stand in the order of arrival.

    Returns:
      The data set; features in float64 for tables, uint8 or float32 for images.

    Raises:
      DataError: The file is damaged, holds pickled objects, which are never loaded, or
        is not as said above.
    """
    path = pathlib.Path(path)
    arrays = _read(path)
    for name in ("features", "labels"):
        if name not in arrays:
            raise DataError(
                f"{path}: holds no array {name!r}; it holds "
                f"{', '.join(map(repr, arrays)) or 'nothing'}"
            )
    features = _features(path, arrays["features"])
    names: tuple[str, ...] = ()
    missing = False
    if features.ndim == 2:
        width = features.shape[1]
        names = _names(path, "feature_names", arrays) or tuple(
            f"feature {column}" for column in range(1, width + 1)
        )
        if len(names) != width:
            raise DataError(
                f"{path}: feature_names holds {len(names)} names; features has {width} "
                "columns"
            )
        gaps = np.isnan(features)
        columns = np.flatnonzero(gaps.any(axis=0))
        missing = columns.size > 0
        if missing:
            features = np.column_stack([features, gaps[:, columns]])
            names += tuple(f"{names[column]} is missing" for column in columns)
    labels, class_names = _labels(
        path, arrays["labels"], _names(path, "class_names", arrays), len(features)
    )
    return Dataset(path.name, features, labels, class_names, names, missing)


def _read(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Reads the arrays that are known; refuses pickled objects."""
    arrays: dict[str, np.ndarray] = {}
    name = "file"
    try:
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                raise DataError(f"{path}: is one array, not an .npz of several")
            with loaded:
                for name in loaded.files:
                    arrays[name] = loaded[name]
    except DataError:
        raise
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, ValueError) as error:
        if "allow_pickle" in str(error):
            raise DataError(
                f"{path}: {name} holds pickled objects, which are never loaded: they "
                "could run any program; save texts as dtype str, numbers as numbers"
            ) from error
        raise DataError(
            f"{path}: {name} cannot be read, the file is damaged, incomplete or of "
            f"another kind ({error})"
        ) from error
    return arrays


def _features(path: pathlib.Path, features: np.ndarray) -> np.ndarray:
    """Brings features into a form that `Dataset` knows."""
    if features.ndim not in (2, 3, 4) or features.dtype.kind not in "biuf":
        raise DataError(
            f"{path}: features has shape {features.shape} and dtype {features.dtype}; "
            "numbers [n, D], or images [n, H, W] or [n, H, W, C], are needed"
        )
    wrong = np.isinf(features) if features.ndim == 2 else ~np.isfinite(features)
    if wrong.any():
        place = [int(i) for i in np.argwhere(wrong)[0]]
        raise DataError(
            f"{path}: features{place} is {features[tuple(place)]}, where a finite "
            "number is needed"
        )
    if features.ndim == 2:
        return features.astype(np.float64)
    if features.ndim == 3:
        features = features[..., None]
    return features if features.dtype == np.uint8 else features.astype(np.float32)


def _names(
    path: pathlib.Path, name: str, arrays: dict[str, np.ndarray]
) -> tuple[str, ...]:
    """An array of names as a tuple, () where there is none."""
    names = arrays.get(name)
    if names is None:
        return ()
    if names.ndim != 1 or names.dtype.kind != "U":
        raise DataError(
            f"{path}: {name} has shape {names.shape} and dtype {names.dtype}; texts "
            "[K] are needed"
        )
    return tuple(names.tolist())


def _labels(
    path: pathlib.Path, labels: np.ndarray, class_names: tuple[str, ...], rows: int
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Labels as ``[n]`` int32, and the names of the classes."""
    if labels.shape != (rows,) or labels.dtype.kind not in "biufU":
        raise DataError(
            f"{path}: labels has shape {labels.shape} and dtype {labels.dtype}; whole "
            f"numbers or texts [{rows}] are needed, one for each row of features"
        )
    if labels.dtype.kind == "U":
        none = labels == ""
    else:
        none = np.isnan(labels) if labels.dtype.kind == "f" else np.zeros(rows, bool)
        whole = np.where(none, UNLABELLED, labels)
        _refuse(path, labels, whole != np.rint(whole), "whole numbers")
        labels = whole.astype(np.int64)
        none = labels == UNLABELLED
        highest = len(class_names) - 1 if class_names else np.iinfo(np.int32).max
        _refuse(
            path,
            labels,
            (labels < UNLABELLED) | (labels > highest),
            f"-1 (no label) to {highest}",
        )
        if class_names:
            return labels.astype(np.int32), class_names
    known = np.unique(labels[~none])
    if class_names:  # and texts
        known = np.array(class_names)
        _refuse(path, labels, ~none & ~np.isin(labels, known), "one of class_names")
    if not 2 <= len(known) <= MAX_CLASSES:
        raise DataError(
            f"{path}: labels holds {len(known)} classes, where 2 to {MAX_CLASSES} are "
            "needed"
        )
    order = np.argsort(known, kind="stable")
    places = order[np.searchsorted(known[order], labels[~none])]
    result = np.full(rows, UNLABELLED, np.int32)
    result[~none] = places
    return result, tuple(str(name) for name in known.tolist())


def _refuse(
    path: pathlib.Path, labels: np.ndarray, wrong: np.ndarray, needed: str
) -> None:
    """Raises DataError for the first label that is wrong."""
    places = np.flatnonzero(wrong)
    if places.size:
        raise DataError(
            f"{path}: labels[{places[0]}] is {labels[places[0]]!r}, where {needed} is "
            "needed"
        )
