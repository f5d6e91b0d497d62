"""Files of one's own: a table as CSV or Parquet, arrays as NPZ.

Every column but the label and the time of arrival is a feature:

- A column of numbers is taken as it is. Where values are missing, they become the
  median of the clean rows (`rad_jax.datasets.split`), and a column `<name> is missing`
  of 0 and 1 is added.
- A column of texts becomes one column of 0 and 1 for each text that occurs, in
  alphabetical order, `<name>=<text>`; all are 0 where the text is missing. More than
  `MAX_CATEGORIES` texts are refused: such a column is an identifier rather.
- A column of which more than half are numbers is one of numbers; text in it is an
  error.
- Missing is an empty field, and each of `MISSING`.

Which texts occur and where values are missing is looked up in the whole file; it
decides on the columns that there are, not on what stands in them.
"""

import csv
import itertools
import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rad_jax.datasets import _csv
from rad_jax.datasets._columns import (
    MAX_CATEGORIES,
    MISSING,
    Source,
    features_of,
    labels_of,
    times_of,
)
from rad_jax.datasets.arrays import load_npz
from rad_jax.datasets.base import DataError, Dataset
from rad_jax.files import require

if TYPE_CHECKING:
    import pandas

__all__ = ["MAX_CATEGORIES", "MISSING", "SUFFIXES", "VERSION", "is_table", "load"]

#: Of the parser: a prepared copy of its rows is out of date when it changes.
VERSION = 1
#: What the name of a file must end in.
SUFFIXES = (".csv", ".csv.gz", ".parquet", ".npz")

_DELIMITERS = ",;\t"


def is_table(path: str) -> bool:
    """Whether a name is that of a file of one's own rather than of a data set."""
    return path.lower().endswith(SUFFIXES)


def load(
    path: str | os.PathLike[str],
    *,
    label_column: str | None = None,
    drop_columns: Sequence[str] = (),
    time_column: str | None = None,
) -> Dataset:
    """Loads a file.

    Args:
      path: a `.csv` or `.csv.gz` (UTF-8; separated by the one of comma, semicolon and
        tabulator that occurs most often in the first line), a `.parquet` or an `.npz`
        (`rad_jax.datasets.arrays.load_npz`; it has no columns to choose from).
      label_column: the column of the classes, texts or whole numbers; a row without one
        has no label. A whole number says that a CSV file has no header: then its
        columns are called '1', '2', ... in all three arguments and in messages.
      drop_columns: columns that are no features.
      time_column: a column of numbers or ISO 8601 times; rows are put into its order,
        those of one time as in the file. None: they arrive in the order of the file.

    Returns:
      A data set with features ``[n, D]`` float64, NaN where values are missing. Its
      class names are sorted: by number where all are numbers, else by alphabet.

    Raises:
      DataError: The file is not there, is damaged or empty, or does not hold what is
        said above; with the line (of a CSV; else the row; both counted from 1) and
        the column.
      ImportError: pandas, or pyarrow for Parquet, is not installed.
    """
    path = pathlib.Path(path).expanduser()
    if not path.is_file():
        raise DataError(f"{path}: there is no such file")
    name = path.name.lower()
    if not name.endswith(SUFFIXES):
        raise DataError(f"{path}: ends in none of {', '.join(SUFFIXES)}")
    if name.endswith(".npz"):
        if label_column or drop_columns or time_column:
            raise DataError(
                f"{path}: label_column, drop_columns and time_column are for tables; "
                "an .npz holds 'features' and 'labels'"
            )
        return load_npz(path)
    wanted = _Wanted(label_column, tuple(drop_columns), time_column)
    read = _read_parquet if name.endswith(".parquet") else _read_csv
    frame, source = read(path, wanted)
    special = (wanted.label, wanted.time)
    columns = {c: frame[c] for c in frame.columns if c not in special}
    if not columns:
        raise DataError(f"{path}: no column is left to be a feature")
    features, names = features_of(columns, source)
    labels, class_names = labels_of(frame[wanted.label], source)
    if wanted.time is not None:
        order = np.argsort(times_of(frame[wanted.time], source), kind="stable")
        features, labels = features[order], labels[order]
    return Dataset(
        name=path.name,
        features=features,
        labels=labels,
        class_names=class_names,
        feature_names=names,
        missing=bool(np.isnan(features).any()),
    )


class _Wanted(NamedTuple):
    """The arguments of `load` that name columns."""

    label: str | None
    drop: tuple[str, ...]
    time: str | None

    def check(self, path: pathlib.Path, columns: Sequence[str], hint: str) -> None:
        """Raises DataError unless all columns named are there, each for one use."""
        listed = f"the columns are {', '.join(map(repr, columns))}{hint}"
        if not self.label:
            raise DataError(f"{path}: label_column is not given; {listed}")
        for argument, names in (
            ("label_column", (self.label,)),
            ("drop_columns", self.drop),
            ("time_column", (self.time,) if self.time is not None else ()),
        ):
            for name in names:
                if name not in columns:
                    raise DataError(f"{path}: {argument}={name!r} is unknown; {listed}")
                if argument != "label_column" and name == self.label:
                    raise DataError(f"{path}: {argument}={name!r} is the label_column")
        if self.time in self.drop:
            raise DataError(f"{path}: time_column={self.time!r} is in drop_columns")


def _read_csv(path: pathlib.Path, wanted: _Wanted) -> tuple["pandas.DataFrame", Source]:
    """Reads the columns of a CSV file that are wanted; labels stay texts."""
    has_header = not (wanted.label or "").isdecimal()
    delimiter, first, num_rows = _scan(path, has_header)
    numbers = [str(number) for number in range(1, len(first) + 1)]
    columns, hint = numbers, " (a number as label_column says: no header)"
    if has_header:
        columns = [name or number for name, number in zip(first, numbers, strict=True)]
        hint = ""
        if all(_csv.is_number(name) for name in first) and wanted.label not in first:
            raise DataError(
                f"{path}, line 1: holds numbers, where a header is needed; if there is "
                "none, give the number of the column, counted from 1, as label_column"
            )
    _check_names(path, columns)
    wanted.check(path, columns, hint)
    kept = [column for column in columns if column not in wanted.drop]
    for name, number in zip(first, numbers, strict=True):
        if has_header and not name and number in kept:
            raise DataError(
                f"{path}, line 1: column {number} has no name (row numbers, perhaps?); "
                f"name it, or leave it out by drop_columns={number}"
            )
    pandas = require("pandas", "tables")
    try:
        frame = pandas.read_csv(
            path,
            sep=delimiter,
            header=0 if has_header else None,
            names=columns,
            usecols=kept,
            index_col=False,
            dtype={wanted.label: str},
            na_values=list(MISSING),
            keep_default_na=False,
            skipinitialspace=True,
            encoding="utf-8-sig",
            compression="gzip" if path.suffix.lower() == ".gz" else None,
            low_memory=False,
        )
    except (ValueError, OverflowError) as error:  # a ParserError is a ValueError
        raise DataError(f"{path}: cannot be read ({error})") from error
    if len(frame) != num_rows:
        raise DataError(
            f"{path}: {num_rows} rows or {len(frame)}, depending on how quotation "
            "marks are read; they are not balanced"
        )

    def place(row: int) -> str:
        with _csv.opened(path) as file:
            reader = csv.reader(file, delimiter=delimiter, skipinitialspace=True)
            rows = (fields for fields in reader if fields)
            next(itertools.islice(rows, row + has_header, None))
            return f"line {reader.line_num}"

    return frame, Source(path, place, has_header)


def _scan(path: pathlib.Path, has_header: bool) -> tuple[str, list[str], int]:
    """Goes through a CSV file from beginning to end.

    Args:
      path: the file.
      has_header: whether its first line is one.

    Returns:
      The delimiter; the fields of the first line, without blanks around them; the
      number of rows, without the header and empty lines.

    Raises:
      DataError: The file cannot be read to its end, has no rows, or a line that is
        wider or narrower than the first.
    """
    try:
        with _csv.opened(path) as file:
            start = file.readline()
            if not start.strip():
                raise DataError(
                    f"{path}: is empty" if not start else f"{path}, line 1: is empty"
                )
            delimiter = max(_DELIMITERS, key=start.count)
            reader = csv.reader(
                itertools.chain([start], file),
                delimiter=delimiter,
                skipinitialspace=True,
            )
            first = [field.strip() for field in next(reader)]
            num_rows = int(not has_header)
            for fields in reader:
                if len(fields) != len(first) and fields:
                    raise DataError(
                        f"{path}, line {reader.line_num}: {len(fields)} columns, where "
                        f"line 1 has {len(first)} (separated by {delimiter!r})"
                    )
                num_rows += bool(fields)
    except _csv.DAMAGE as error:
        raise _csv.damaged(path, error) from error
    if not num_rows:
        raise DataError(f"{path}: {_csv.NO_ROWS}")
    return delimiter, first, num_rows


def _read_parquet(
    path: pathlib.Path, wanted: _Wanted
) -> tuple["pandas.DataFrame", Source]:
    """Reads the columns of a Parquet file that are wanted."""
    require("pandas", "tables")
    parquet = require("pyarrow.parquet", "tables")
    try:
        with parquet.ParquetFile(path) as file:
            columns = file.schema_arrow.names
            _check_names(path, columns)
            wanted.check(path, columns, "")
            kept = [column for column in columns if column not in wanted.drop]
            frame = file.read(kept).to_pandas(ignore_metadata=True)
    except require("pyarrow", "tables").ArrowException as error:
        raise DataError(
            f"{path}: cannot be read, the file is damaged or no Parquet ({error})"
        ) from error
    if not len(frame):
        raise DataError(f"{path}: {_csv.NO_ROWS}")
    return frame, Source(path, lambda row: f"row {row + 1}")


def _check_names(path: pathlib.Path, columns: Sequence[str]) -> None:
    """Raises DataError if a name occurs twice."""
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        raise DataError(
            f"{path}, line 1: more than one column is called "
            f"{' and '.join(map(repr, twice))}"
        )
