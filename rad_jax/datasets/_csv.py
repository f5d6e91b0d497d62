"""Reads files of separated values, plain or gzipped, and says where they are wrong.

Fields are not quoted in these formats, so that one line is one row, also in a damaged
file.
"""

import contextlib
import csv
import gzip
import os
import pathlib
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO

import numpy as np

from rad_jax.datasets.base import DataError

#: What reading a file that is damaged or of another kind may raise.
DAMAGE = (OSError, EOFError, zlib.error, csv.Error, UnicodeDecodeError)
NO_ROWS = "holds a header, but no rows"


def find(folder: pathlib.Path, name: str) -> pathlib.Path | None:
    """Finds `folder/name` or, where that is not there, `folder/name.gz`."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    return None


def places(
    data_dir: str | os.PathLike[str], folders: Sequence[str]
) -> list[pathlib.Path]:
    """Where to look for a data set: in `data_dir`, then in its `folders`."""
    root = pathlib.Path(data_dir)
    return [root, *(root / name for name in folders)]


def read_numbers(path: pathlib.Path, names: Sequence[str]) -> np.ndarray:
    """Reads a file of numbers under a header.

    Args:
      path: a file of comma separated values, gzipped if its name ends in `.gz`.
      names: the D names that its first line must hold, in this order.

    Returns:
      ``[n, D]`` float64, finite, n >= 1, each number the float64 next to its text.

    Raises:
      DataError: The file cannot be read to its end, is empty, its header is not as
        said, or a line does not hold D finite numbers (with the line, counted from 1,
        and the name of the column).
    """
    try:
        with opened(path) as file:
            check_header(
                path, next(csv.reader(file, quoting=csv.QUOTE_NONE), []), names
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # no rows: said below
                values = np.loadtxt(file, delimiter=",", comments=None, ndmin=2)
    except DAMAGE as error:
        raise damaged(path, error) from error
    except DataError:
        raise
    except ValueError as error:  # from loadtxt; found again, with its place
        _check_lines(path, names)
        raise DataError(f"{path}: {error}") from error
    if not values.size:
        raise DataError(f"{path}: {NO_ROWS}")
    if values.shape[1] != len(names) or not np.isfinite(values).all():
        _check_lines(path, names)
    return values


def rows(path: pathlib.Path, names: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Reads a file of texts under a header, line by line.

    Args:
      path: a file of comma separated values, gzipped if its name ends in `.gz`.
      names: the D names that its first line must hold, in this order.

    Yields:
      The number of each line after the header, counted from 1 for the header, and its
      D fields; empty lines are left out.

    Raises:
      DataError: As `read_numbers`, but for what the fields hold.
    """
    done = 0
    try:
        with opened(path) as file:
            reader = csv.reader(file, quoting=csv.QUOTE_NONE)
            check_header(path, next(reader, []), names)
            for fields in reader:
                if fields:
                    done = reader.line_num
                    _check_width(path, done, fields, names)
                    yield done, fields
    except DAMAGE as error:
        raise damaged(path, error) from error
    if not done:
        raise DataError(f"{path}: {NO_ROWS}")


def number(path: pathlib.Path, line: int, column: str, text: str) -> float:
    """Turns a field into a finite number, or says where it stands."""
    try:
        value = float(text) if "_" not in text else np.nan
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        raise DataError(
            f"{path}, line {line}, column {column!r}: {text!r}, where a finite number "
            "is needed"
        )
    return value


def check_header(
    path: pathlib.Path, header: Sequence[str], names: Sequence[str]
) -> None:
    """Raises DataError unless the first line of a file holds these names.

    Args:
      path: the file, for messages.
      header: the fields of its first line.
      names: what they must be.
    """
    header = [name.strip() for name in header]
    if header == list(names):
        return
    if not header:
        raise DataError(f"{path}: is empty")
    if all(is_number(text) for text in header):
        raise DataError(
            f"{path}, line 1: holds numbers, where a header of {len(names)} names is "
            f"needed ({names[0]}, {names[1]}, ...)"
        )
    absent = [name for name in names if name not in header]
    more = [name for name in header if name not in names]
    twice = sorted({name for name in header if header.count(name) > 1})
    if absent or more or twice:
        parts = [
            f"{what}: {', '.join(map(repr, some[:8]))}{' ...' * (len(some) > 8)}"
            for what, some in (
                ("missing", absent),
                ("additional", more),
                ("more than once", twice),
            )
            if some
        ]
        raise DataError(
            f"{path}, line 1: {len(header)} columns, where the {len(names)} of this "
            f"format are needed; columns {'; '.join(parts)}"
        )
    place = next(i for i, name in enumerate(names) if header[i] != name)
    raise DataError(
        f"{path}, line 1: column {place + 1} is {header[place]!r}, where "
        f"{names[place]!r} is needed: the columns are in another order"
    )


def _check_lines(path: pathlib.Path, names: Sequence[str]) -> None:
    """Raises DataError for the first line that does not hold D finite numbers."""
    for line, fields in rows(path, names):
        for column, text in zip(names, fields, strict=True):
            number(path, line, column, text)


def _check_width(
    path: pathlib.Path, line: int, fields: Sequence[str], names: Sequence[str]
) -> None:
    """Raises DataError unless a line has as many fields as there are names."""
    width, needed = len(fields), len(names)
    if width != needed:
        which = (
            f"missing from column {names[width]!r} on"
            if width < needed
            else f"additional after column {names[-1]!r}: {fields[needed]!r}"
        )
        raise DataError(
            f"{path}, line {line}: {width} columns, where {needed} are needed; {which}"
        )


def is_number(text: str) -> bool:
    """Whether a text is a number, or nan or inf."""
    try:
        float(text)
    except ValueError:
        return False
    return True


@contextlib.contextmanager
def opened(path: pathlib.Path) -> Iterator[TextIO]:
    """Opens a file of text, through gzip if its name ends in `.gz`."""
    with _opener(path)(path, "rt", encoding="utf-8-sig", newline="") as file:
        yield file


def damaged(path: pathlib.Path, error: BaseException) -> DataError:
    """Says up to which line a file can be read."""
    line = 0
    with contextlib.suppress(*DAMAGE), _opener(path)(path, "rb") as file:
        for text in file:
            text.decode()
            line += 1
    return DataError(
        f"{path}, line {line + 1}: cannot be read, the file is damaged, incomplete or "
        f"of another kind ({error})"
    )


def _opener(path: pathlib.Path) -> Callable[..., Any]:
    """`gzip.open` or `open`, by the name of the file."""
    return gzip.open if path.suffix.lower() == ".gz" else open
