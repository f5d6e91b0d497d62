"""Columns of a table, of whatever type, as features, labels and times."""

import decimal
import numbers
import pathlib
import re
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rad_jax.datasets.base import DataError
from rad_jax.files import require
from rad_jax.types import MAX_CLASSES, UNLABELLED

if TYPE_CHECKING:
    import pandas

#: What stands for a missing value, beside an empty field.
MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "?")
_EXACT = 2**53  # whole numbers beyond it may be rounded in float64
#: The most different texts that a column may hold.
MAX_CATEGORIES = 64
#: Numbers with decimal commas, other groups of digits, per cent or a currency.
_OTHER_NOTATION = re.compile(
    r"(?!((25[0-5]|2[0-4]\d|1?\d?\d)(\.|$)){4}$)"  # an address of the Internet
    r"[-+$€£]{0,2}(\d{1,3}([.,'\s_]\d{3})+([.,]\d*)?|\d+([.,]\d*)?|[.,]\d+)\s?[%$€£]?"
)

_RIGHT_NOTATION = "write them with a decimal point and without signs such as %"


class Source(NamedTuple):
    """Where rows come from, for messages.

    Attributes:
      path: the file.
      place: from the index of a row to its line, or row, in words.
      has_header: False where the first row may be a header by mistake.
    """

    path: pathlib.Path
    place: Callable[[int], str]
    has_header: bool = True

    def error(self, row: int | np.integer, column: str, message: str) -> DataError:
        """An error about the value in a row, an index, and a column."""
        if not row and not self.has_header:
            message += (
                "; if this line is a header, give label_column as one of its names"
            )
        where = f"{self.path}, {self.place(int(row))}"
        return DataError(f"{where}, column {column!r}: {message}")


class _Values(NamedTuple):
    """The values of a column.

    Attributes:
      missing: ``[n]`` bool.
      number: ``[n]`` float64, NaN where the value is no number.
      text: ``[n]`` object, texts without blanks around them; None where all values
        are numbers.
    """

    missing: np.ndarray
    number: np.ndarray
    text: np.ndarray | None


def features_of(
    columns: Mapping[str, "pandas.Series"], source: Source
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Turns columns into features.

    Args:
      columns: each of n values, by their names.
      source: for messages.

    Returns:
      ``[n, D]`` float64, NaN where a number is missing, and D names.

    Warns:
      UserWarning: All texts of a column look like numbers.

    Raises:
      DataError: A value is not finite, is a text among numbers, or a column holds too
        many texts or values of another type.
    """
    parts: list[tuple[str, np.ndarray]] = []
    for name, series in columns.items():
        values = _values_of(series, name, source)
        if values.text is None:
            _check_finite(values, name, source)
            parts.append((name, values.number))
            if values.missing.any():
                parts.append((f"{name} is missing", values.missing))
            continue
        present = values.text[~values.missing]
        categories = sorted(set(present))
        numbers = bool(categories) and all(map(_OTHER_NOTATION.fullmatch, categories))
        if len(categories) > MAX_CATEGORIES:
            raise source.error(
                int(np.flatnonzero(~values.missing)[0]),
                name,
                f"{values.text[~values.missing][0]!r} is the first of "
                f"{len(categories):,} different texts, where {MAX_CATEGORIES} are "
                "allowed; leave the column out by drop_columns"
                + (f", or, if they are numbers, {_RIGHT_NOTATION}" if numbers else ""),
            )
        if numbers:
            warnings.warn(
                f"{source.path}, column {name!r}: all {len(categories)} different "
                f"texts look like numbers written another way ({categories[0]!r}); "
                f"each is taken for a category. To have numbers, {_RIGHT_NOTATION}",
                stacklevel=2,
            )
        parts += [(f"{name}={text}", values.text == text) for text in categories]
    features = np.empty((len(next(iter(columns.values()))), len(parts)))
    for place, (_, column) in enumerate(parts):
        features[:, place] = column
    return features, tuple(name for name, _ in parts)


def labels_of(
    series: "pandas.Series", source: Source
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Turns a column into labels.

    Args:
      series: n classes, as texts or whole numbers.
      source: for messages.

    Returns:
      ``[n]`` int32, -1 where missing, and the names of the K classes, sorted.

    Raises:
      DataError: There are fewer than two classes or too many, or numbers that are not
        whole.
    """
    present, keys = _keys_of(series, source)
    classes, index = np.unique(keys[present], return_inverse=True)
    if not 2 <= len(classes) <= MAX_CLASSES:
        shown = f" ({str(classes[0])!r})" if len(classes) == 1 else ""
        raise DataError(
            f"{source.path}, column {str(series.name)!r}: number of classes "
            f"{len(classes):,}{shown}, where 2 to {MAX_CLASSES:,} are needed"
        )
    labels = np.full(len(keys), UNLABELLED, np.int32)
    labels[present] = index
    return labels, tuple(str(name) for name in classes)


def names_of(series: "pandas.Series", source: Source) -> np.ndarray:
    """Turns a column into ``[n]`` str, named as `labels_of` does; '' where missing.

    Raises:
      DataError: There are numbers that are not whole.
    """
    present, keys = _keys_of(series, source)
    return np.where(present, keys.astype(str), "")


def _keys_of(series: "pandas.Series", source: Source) -> tuple[np.ndarray, np.ndarray]:
    """Turns a column into names or whole numbers.

    Returns:
      ``[n]`` bool, whether there is a value; ``[n]`` int64 or str, the values.

    Raises:
      DataError: There are numbers that are not whole.
    """
    name = str(series.name)
    if series.dtype.kind == "b":
        series = series.astype(object).map(str, na_action="ignore")
    values = _values_of(series, name, source, majority=False)
    present = ~values.missing
    keys: np.ndarray
    if values.text is None:
        whole = np.isfinite(values.number) & (values.number == np.rint(values.number))
        if not (whole | values.missing).all():
            row = int(np.flatnonzero(~whole & present)[0])
            raise source.error(
                row,
                name,
                f"{values.number[row]}, where the classes must be texts or whole "
                "numbers",
            )
        _check_exact(values, name, source)
        keys = np.where(present, values.number, 0.0).astype(np.int64)
    else:
        keys = np.where(present, values.text, "").astype(str)
    return present, keys


def times_of(series: "pandas.Series", source: Source) -> np.ndarray:
    """Turns a column into ``[n]`` numbers that rise with time.

    Raises:
      DataError: A value is missing, or neither a number nor an ISO 8601 time.
    """
    pandas, name = require("pandas", "tables"), str(series.name)
    if series.dtype.kind in "iu" and not series.hasnans:
        return series.to_numpy()  # as float64, large ones would be rounded
    if series.dtype.kind != "M":
        values = _values_of(series, name, source, majority=False)
        if values.text is None:
            _refuse(~np.isfinite(values.number), series, name, source, "a number")
            return values.number
        is_number = np.isfinite(values.number)
        if 2 * is_number.sum() > len(series):
            _refuse(~is_number, series, name, source, "a number")
        series = pandas.Series(values.text)
    times = pandas.to_datetime(series, format="ISO8601", utc=True, errors="coerce")
    _refuse(times.isna(), series, name, source, "a number or an ISO 8601 time")
    return times.to_numpy("datetime64[ns]").astype(np.int64)


def _refuse(
    wrong: Any, series: "pandas.Series", name: str, source: Source, needed: str
) -> None:
    """Raises DataError for the first row that is wrong."""
    places = np.flatnonzero(np.asarray(wrong))
    if places.size:
        value = series.iloc[places[0]]
        if require("pandas", "tables").isna(value):
            shown = "nothing"
        else:
            shown = repr(value.item() if isinstance(value, np.generic) else value)
        raise source.error(
            places[0], name, f"{shown}, where {needed} is needed in every row"
        )


def _values_of(
    series: "pandas.Series", name: str, source: Source, *, majority: bool = True
) -> _Values:
    """Tells numbers, texts and missing values apart.

    Args:
      series: n values.
      name: of the column, for messages.
      source: for messages.
      majority: whether texts are refused where more values are numbers; else one text
        makes all of them texts.

    Raises:
      DataError: There are texts among numbers, or values of another type.
    """
    pandas = require("pandas", "tables")
    if isinstance(series.dtype, pandas.CategoricalDtype):
        series = series.astype(series.cat.categories.dtype)
    types = pandas.api.types
    if types.is_numeric_dtype(series.dtype) and not types.is_complex_dtype(
        series.dtype
    ):
        number = series.to_numpy(np.float64, na_value=np.nan)
        return _Values(np.isnan(number), number, None)
    text, missing = np.array(series, object), np.array(series.isna(), bool)
    for row in np.flatnonzero(~missing):
        value = text[row]
        if isinstance(value, str):
            text[row] = value.strip()
            missing[row] = text[row] in MISSING
        elif isinstance(value, numbers.Real | decimal.Decimal | np.bool_):
            text[row] = str(value)
        else:
            raise source.error(
                row,
                name,
                f"{value!r}, where a number or a text is needed; leave the column out "
                "by drop_columns (times: or name it as time_column)",
            )
    text[missing] = ""
    number = pandas.to_numeric(pandas.Series(text), errors="coerce").to_numpy(
        np.float64, na_value=np.nan
    )
    is_text = np.isnan(number) & ~missing
    num_texts, num_values = int(is_text.sum()), int((~missing).sum())
    if not num_texts:
        return _Values(missing, number, None)
    if majority and 2 * num_texts < num_values:
        first = np.flatnonzero(is_text)[0]
        raise source.error(
            first,
            name,
            f"{text[first]!r}, where a number is needed, as in "
            f"{num_values - num_texts:,} of the {num_values:,} rows that have a value",
        )
    return _Values(missing, number, text)


def _check_exact(values: _Values, name: str, source: Source) -> None:
    """Raises DataError for a whole number that may be another one in float64."""
    wrong = np.flatnonzero(np.abs(values.number) >= _EXACT)
    if wrong.size:
        raise source.error(
            wrong[0],
            name,
            f"{values.number[wrong[0]]:.17g}, where classes that are numbers must be "
            "less than 2^53 in size: those beyond are not told apart; write a letter "
            "before each of them",
        )


def _check_finite(values: _Values, name: str, source: Source) -> None:
    """Raises DataError where a number that is there is not finite."""
    wrong = np.flatnonzero(~np.isfinite(values.number) & ~values.missing)
    if wrong.size:
        raise source.error(
            wrong[0],
            name,
            f"{values.number[wrong[0]]}, where a finite number is needed",
        )
