"""What every loader returns: a checked, in-memory data set in arrival order."""

import dataclasses

import numpy as np


class DataError(ValueError):
    """Data that cannot be used: a missing or damaged file, an unfit array."""


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Rows in the order in which they arrived, with their true labels.

    Attributes:
      name: what the data set is called in reports.
      features: ``[n, D]`` float64, finite, in the units of the source (not scaled).
      labels: ``[n]`` int32, the true class of each row in ``0..K-1``.
      class_names: K names; the name of class ``k`` is ``class_names[k]``.
      feature_names: D names.

    Raises:
      DataError: An array or tuple does not have the form given above.
    """

    name: str
    features: np.ndarray
    labels: np.ndarray
    class_names: tuple[str, ...]
    feature_names: tuple[str, ...]

    def __post_init__(self) -> None:
        _check_array(self.name, "features", self.features, 2, np.float64)
        _check_array(self.name, "labels", self.labels, 1, np.int32)
        rows, width = self.features.shape
        if rows < 1 or width < 1:
            raise DataError(
                f"{self.name}: features has shape {self.features.shape}; at least one "
                "row and one column are needed"
            )
        if self.labels.shape != (rows,):
            raise DataError(
                f"{self.name}: labels has shape {self.labels.shape}; features has "
                f"{rows} rows, so ({rows},) is needed"
            )
        _check_names(self.name, "class_names", self.class_names)
        _check_names(self.name, "feature_names", self.feature_names)
        if len(self.feature_names) != width:
            raise DataError(
                f"{self.name}: feature_names holds {len(self.feature_names)} names; "
                f"features has {width} columns"
            )
        finite = np.isfinite(self.features)
        if not finite.all():
            row, column = np.argwhere(~finite)[0]
            raise DataError(
                f"{self.name}: features must be finite; row {row}, column {column} "
                f"({self.feature_names[column]!r}) is {self.features[row, column]}"
            )
        lowest, highest = int(self.labels.min()), int(self.labels.max())
        if lowest < 0 or highest >= self.num_classes:
            raise DataError(
                f"{self.name}: labels run from {lowest} to {highest}; with "
                f"{self.num_classes} class_names 0..{self.num_classes - 1} is allowed"
            )

    @property
    def num_classes(self) -> int:
        """K, the number of classes, whether or not each of them occurs."""
        return len(self.class_names)


def _check_array(
    dataset: str, argument: str, value: object, rank: int, dtype: type
) -> None:
    """Raises DataError unless `value` is a numpy array of this rank and dtype."""
    wanted = f"a numpy array of rank {rank} and dtype {np.dtype(dtype)}"
    if not isinstance(value, np.ndarray):
        raise DataError(
            f"{dataset}: {argument} is a {type(value).__name__}; {wanted} is needed"
        )
    if value.ndim != rank or value.dtype != dtype:
        raise DataError(
            f"{dataset}: {argument} has shape {value.shape} and dtype {value.dtype}; "
            f"{wanted} is needed"
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
