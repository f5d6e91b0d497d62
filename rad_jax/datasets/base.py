"""What every loader returns: a checked, in-memory data set in arrival order."""

import dataclasses

import numpy as np

from rad_jax.types import UNLABELLED


class DataError(ValueError):
    """Data that cannot be used: a missing or damaged file, an unfit array."""


#: The dtypes that features may have, by their rank.
FEATURE_DTYPES: dict[int, tuple[type, ...]] = {
    2: (np.float64, np.float32),
    4: (np.uint8, np.float32),
}


#: What may be done to features; see `rad_jax.datasets.scaling.fit`.
SCALINGS = ("standard", "log", "quantile", "unit", "none")


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Rows in the order in which they arrived, with their true labels.

    Attributes:
      name: what the data set is called in reports.
      features: a table, ``[n, D]`` float64 or float32 in the units of the source (not
        scaled); or images, ``[n, H, W, C]`` uint8 or float32. Finite, but for NaN
        where `missing` allows it.
      labels: ``[n]`` int32, the true class of each row in ``0..K-1``, or -1 where it
        is not known; at least one row has a label.
      class_names: K names; the name of class ``k`` is ``class_names[k]``.
      feature_names: D names for a table, ``()`` for images.
      missing: whether NaN is allowed in a table, for values that are missing; `split`
        fills them in.
      source_row: ``[n]`` int64, where each row stands in its file: its first line,
        counted from 1, in a file of text, else its index, counted from 0. None: 0,
        1, …, n - 1, or it is not known.
      scaling: the one of `SCALINGS` that suits the columns; '' for the one that suits
        most tables, or images.

    Raises:
      DataError: An array or tuple does not have the form given above.
    """

    name: str
    features: np.ndarray
    labels: np.ndarray
    class_names: tuple[str, ...]
    feature_names: tuple[str, ...] = ()
    missing: bool = False
    source_row: np.ndarray | None = None
    scaling: str = ""

    def __post_init__(self) -> None:
        self._check_features()
        self._check_labels()
        if self.scaling not in ("", *SCALINGS):
            raise DataError(
                f"{self.name}: scaling is {self.scaling!r}; '' or one of "
                f"{', '.join(SCALINGS)} is needed"
            )
        if self.is_images:
            if self.feature_names != ():
                raise DataError(
                    f"{self.name}: feature_names is {self.feature_names!r}; () is "
                    "needed for images"
                )
        else:
            _check_names(self.name, "feature_names", self.feature_names)
            if len(self.feature_names) != self.features.shape[1]:
                raise DataError(
                    f"{self.name}: feature_names holds {len(self.feature_names)} "
                    f"names; features has {self.features.shape[1]} columns"
                )
        self._check_values()
        self._check_source_row()

    @property
    def num_classes(self) -> int:
        """K, the number of classes, whether or not each of them occurs."""
        return len(self.class_names)

    @property
    def is_images(self) -> bool:
        """Whether a row is an image, ``[H, W, C]``, rather than numbers, ``[D]``."""
        return self.features.ndim == 4

    def _check_features(self) -> None:
        """Raises DataError unless features has one of the allowed forms."""
        array = self.features
        if not isinstance(array, np.ndarray):
            came = f"is a {type(array).__name__}"
        elif array.dtype not in FEATURE_DTYPES.get(array.ndim, ()):
            came = f"has shape {array.shape} and dtype {array.dtype}"
        elif not array.size:
            raise DataError(
                f"{self.name}: features has shape {array.shape}; at least one row and "
                "one column are needed"
            )
        elif self.missing and array.ndim != 2:
            raise DataError(f"{self.name}: missing=True is for tables, not for images")
        else:
            return
        raise DataError(
            f"{self.name}: features {came}; a numpy array [n, D] of float64 or "
            "float32, or images [n, H, W, C] of uint8 or float32, is needed"
        )

    def _check_labels(self) -> None:
        """Raises DataError unless labels are int32 in range, one for each row."""
        labels, rows = self.labels, len(self.features)
        _check_names(self.name, "class_names", self.class_names)
        if not isinstance(labels, np.ndarray):
            raise DataError(
                f"{self.name}: labels is a {type(labels).__name__}; a numpy array "
                "[n] of int32 is needed"
            )
        if labels.dtype != np.int32 or labels.shape != (rows,):
            raise DataError(
                f"{self.name}: labels has shape {labels.shape} and dtype "
                f"{labels.dtype}; features has {rows} rows, so ({rows},) and int32 is "
                "needed"
            )
        lowest, highest = int(labels.min()), int(labels.max())
        if lowest < UNLABELLED or highest >= self.num_classes:
            raise DataError(
                f"{self.name}: labels run from {lowest} to {highest}; with "
                f"{self.num_classes} class_names 0..{self.num_classes - 1} is allowed, "
                f"and {UNLABELLED} for no label"
            )
        if highest == UNLABELLED:
            raise DataError(f"{self.name}: none of the {rows} rows has a label")

    def _check_values(self) -> None:
        """Raises DataError unless features are finite, or NaN where allowed."""
        if self.features.dtype == np.uint8:
            return
        allowed = np.isfinite(self.features)
        if allowed.all():
            return
        if self.missing:
            allowed |= np.isnan(self.features)
        if not allowed.all():
            row, *rest = (int(i) for i in np.argwhere(~allowed)[0])
            value = self.features[(row, *rest)]
            where = (
                f"pixel {tuple(rest)}"
                if self.is_images
                else f"column {rest[0]} ({self.feature_names[rest[0]]!r})"
            )
            raise DataError(
                f"{self.name}: features must be finite; row {row}, {where} is {value}"
            )

    def _check_source_row(self) -> None:
        """Raises DataError unless source_row is int64, distinct and not negative."""
        rows, needed = self.source_row, len(self.features)
        if rows is None:
            return
        if not isinstance(rows, np.ndarray):
            came = f"is a {type(rows).__name__}"
        elif rows.dtype != np.int64 or rows.shape != (needed,):
            came = f"has shape {rows.shape} and dtype {rows.dtype}"
        elif rows.min() < 0 or len(np.unique(rows)) < needed:
            came = "holds negative numbers, or a number twice"
        else:
            return
        raise DataError(
            f"{self.name}: source_row {came}; None or distinct numbers >= 0 in a numpy "
            f"array ({needed},) of int64 are needed"
        )


def _check_names(dataset: str, argument: str, names: object) -> None:
    """Raises DataError unless `names` is a tuple of distinct strings, not empty."""
    if not isinstance(names, tuple) or not all(isinstance(n, str) for n in names):
        raise DataError(f"{dataset}: {argument} is {names!r}; a tuple of str is needed")
    if not names or len(set(names)) != len(names):
        raise DataError(
            f"{dataset}: {argument} is {names!r}; at least one name is needed, and no "
            "name twice"
        )
