"""Reads the `task_events` of the Google cluster-usage trace 2011, and checks them.

References:
  C. Reiss, J. Wilkes, J. Hellerstein, Google cluster-usage traces: format + schema,
  version 2, 2011 (https://github.com/google/cluster-data).
"""

import csv
import gzip
import pathlib
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rad_jax.datasets.base import DataError

#: Names of the event types 0..8.
EVENT_TYPES = (
    "submit",
    "schedule",
    "evict",
    "fail",
    "finish",
    "kill",
    "lost",
    "update_pending",
    "update_running",
)
#: The time of what happened before the trace began, and after it ended.
BEFORE_START, AFTER_END = 0, 2**63 - 1

#: Job IDs and task indices fit into so many bits: one number holds both.
JOB_BITS, INDEX_BITS = 40, 23

_CHUNK = 50_000  # lines turned into arrays at once: bounds the memory taken by text


class Events(NamedTuple):
    """E events, ordered by time, those of one time as in the file.

    Attributes:
      time: ``[E]`` int64, microseconds; zero is ten minutes before the trace's start.
      job: ``[E]`` int64, job ID.
      task_index: ``[E]`` int64, task index within the job.
      event: ``[E]`` int64, an index into `EVENT_TYPES`.
      user: ``[E]`` int64, a number in place of each name, -1 where it is missing.
      request: ``[E, 6]`` float64, scheduling class, priority, request for CPU, for
        memory, for disk space, different machines; 0 where missing.
    """

    time: np.ndarray
    job: np.ndarray
    task_index: np.ndarray
    event: np.ndarray
    user: np.ndarray
    request: np.ndarray

    @property
    def task(self) -> np.ndarray:
        """``[E]`` int64, equal for events of one task (job ID and task index)."""
        return (self.job << INDEX_BITS) | self.task_index

    def part(self, which: slice) -> "Events":
        """Those events alone."""
        return Events(*(values[which] for values in self))


class _Column(NamedTuple):
    """A column of numbers: its name, its type, and which values are allowed."""

    name: str
    parse: Callable[[str], float]
    required: bool
    highest: float = AFTER_END

    def allows(self, text: str) -> bool:
        """Whether `text` may stand in this column."""
        if not text and not self.required:
            return True
        try:
            return 0 <= self.parse(text) <= self.highest  # False for NaN
        except ValueError:
            return False

    @property
    def allowed(self) -> str:
        """What is allowed, in words."""
        kind = "a whole number" if self.parse is int else "a finite number"
        where = " >= 0" if self.highest >= AFTER_END else f" in 0..{self.highest}"
        return kind + where + ("" if self.required else ", or nothing,")


_LARGEST = sys.float_info.max
_COLUMNS: tuple[_Column | None, ...] = (
    _Column("time", int, True),
    _Column("missing info", int, False),
    _Column("job ID", int, True, 2**JOB_BITS - 1),
    _Column("task index", int, True, 2**INDEX_BITS - 1),
    _Column("machine ID", int, False),
    _Column("event type", int, True, len(EVENT_TYPES) - 1),
    None,  # user: any text
    _Column("scheduling class", int, False),
    _Column("priority", int, True),
    _Column("CPU request", float, False, _LARGEST),
    _Column("memory request", float, False, _LARGEST),
    _Column("disk space request", float, False, _LARGEST),
    _Column("different machines restriction", int, False, 1),
)


def in_order(paths: Sequence[pathlib.Path]) -> Iterator[Events]:
    """Reads parts one after the other, so that no more than two are in memory.

    Args:
      paths: files as of `read`, each one later in time than the one before it.

    Yields:
      All their events, in the order of time, those of one time as in the files. Events
      of one time are never in two pieces.

    Raises:
      DataError: As `read`, or a part begins before the one before it ends. (Events
        after the trace's end may stand in any part.)
    """
    users = {"": -1}
    held: Events | None = None  # what may have the same time as the next part's first
    last = 0
    for place, path in enumerate(paths):
        events = read(path, users)
        if held is not None:
            if events.time[0] < last:
                raise DataError(
                    f"{path}: begins at time {events.time[0]}, but {paths[place - 1]} "
                    f"goes on until {last}; parts must follow each other in time"
                )
            events = _sorted([held, events])
        known = events.time[events.time < AFTER_END]
        last = int(known[-1]) if len(known) else last
        end = int(np.searchsorted(events.time, last))
        if end:
            yield events.part(slice(end))
        held = events.part(slice(end, None))
    if held is not None:
        yield held


def read(path: pathlib.Path, users: dict[str, int] | None = None) -> Events:
    """Reads a whole `task_events/part-?????-of-00500.csv.gz`.

    Args:
      path: a gzip file of lines of 13 columns separated by commas, without a header.
      users: the number of each user so far; new ones are added.

    Returns:
      Its events, in the order of time; at least one.

    Raises:
      DataError: The file cannot be read to its end (with the first line that could
        not be had), is empty, or has a line that is not as the schema says (with the
        line, counted from 1, and the name of the column).
    """
    users = {"": -1} if users is None else users
    chunks: list[Events] = []
    lines: list[list[str]] = []
    done = 0  # lines in `chunks`
    try:
        with gzip.open(
            path, "rt", encoding="utf-8", errors="surrogateescape", newline=""
        ) as file:
            # No quotes in this format; so one line is one row, also in damaged files.
            for line in csv.reader(file, quoting=csv.QUOTE_NONE):
                lines.append(line)
                if len(lines) == _CHUNK:
                    chunks.append(_parse(path, done, lines, users))
                    done, lines = done + _CHUNK, []
    except (OSError, EOFError, zlib.error, csv.Error) as error:
        raise DataError(
            f"{path}, line {done + len(lines) + 1}: cannot be read, the file is "
            f"damaged or no complete .csv.gz file ({error})"
        ) from error
    if lines:
        chunks.append(_parse(path, done, lines, users))
    if not chunks:
        raise DataError(f"{path}: is empty, holds no events")
    return _sorted(chunks)


def _sorted(parts: Sequence[Events]) -> Events:
    """Puts parts together, in the order of time, those of one time as they come."""
    events = Events(*(np.concatenate(values) for values in zip(*parts, strict=True)))
    order = np.argsort(events.time, kind="stable")
    return Events(*(values[order] for values in events))


def _parse(
    path: pathlib.Path, before: int, lines: list[list[str]], users: dict[str, int]
) -> Events:
    """Turns lines into arrays, in the order of the file.

    Args:
      path: the file, for messages.
      before: how many lines of the file precede these.
      lines: the fields of each line.
      users: the number of each user so far; new ones are added.

    Returns:
      One event for each line.

    Raises:
      DataError: A line is not as the schema says.
    """
    for number, line in enumerate(lines, before + 1):
        if len(line) != len(_COLUMNS):
            names = ", ".join(c.name if c else "user" for c in _COLUMNS)
            raise DataError(
                f"{path}, line {number}: {len(line)} columns, where {len(_COLUMNS)} "
                f"are needed ({names})"
            )
    texts = list(zip(*lines, strict=True))
    time, _, job, index, _, event, user, *request = (
        np.array([users.setdefault(text, len(users)) for text in column_texts])
        if column is None
        else _numbers(path, before, column, column_texts)
        for column, column_texts in zip(_COLUMNS, texts, strict=True)
    )
    return Events(time, job, index, event, user, np.stack(request, 1, dtype=np.float64))


def _numbers(
    path: pathlib.Path, before: int, column: _Column, texts: Sequence[str]
) -> np.ndarray:
    """Turns the texts of a column into ``[len(texts)]`` int64 or float64, '' into 0."""
    dtype = np.int64 if column.parse is int else np.float64
    present = texts if column.required else [text or "0" for text in texts]
    try:
        values = np.array([column.parse(text) for text in present], dtype)
        if ((values >= 0) & (values <= column.highest)).all():
            return values
    except (ValueError, OverflowError):
        pass  # found again below, with its place
    place = next(i for i, text in enumerate(texts) if not column.allows(text))
    known = f" ({', '.join(EVENT_TYPES)})" if column.name == "event type" else ""
    raise DataError(
        f"{path}, line {before + place + 1}, column {column.name!r}: "
        f"{texts[place]!r}, where {column.allowed} is needed{known}"
    )
