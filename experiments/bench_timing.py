"""Figures of a benchmark: medians of interleaved repetitions, their spread, tables.

The machines that these figures come from are noisy, and their speed drifts. So whatever
is compared is timed in turns, once in each repetition; a ratio is formed within each
repetition, and its median, least and greatest value are what is reported.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from rich.console import Console
from rich.table import Table


class Figure(NamedTuple):
    """One figure and how far its repetitions spread.

    Attributes:
      median: over the repetitions.
      min: the least.
      max: the greatest.
      repetitions: how many.
    """

    median: float
    min: float
    max: float
    repetitions: int

    def __str__(self) -> str:
        if self.repetitions == 1:
            return number(self.median)
        return f"{number(self.median)} ({number(self.min)}-{number(self.max)})"


def number(value: float) -> str:
    """Three digits, never in powers of ten."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 1e-3 else f"{value:.2g}"


class Part(NamedTuple):
    """What one part of the benchmark measured.

    Attributes:
      title: of its table.
      rows: of its table, all with the same keys; values are `Figure`, numbers or text.
      figures: by name, what is worth a line of its own.
      settings: sizes that it was measured with.
      notes: lines below the table.
    """

    title: str
    rows: list[dict[str, Any]]
    figures: dict[str, Figure]
    settings: dict[str, Any]
    notes: tuple[str, ...] = ()


def figure(values: Sequence[float]) -> Figure:
    """Median and spread of repetitions, at least one."""
    return Figure(statistics.median(values), min(values), max(values), len(values))


def scaled(values: Sequence[float], factor: float) -> Figure:
    """Likewise of `factor` times each."""
    return figure([factor * value for value in values])


def ratio(above: Sequence[float], below: Sequence[float]) -> Figure:
    """Ratio of two things timed in turns, formed within each repetition.

    Raises:
      ValueError: unless both were repeated as often.
    """
    return figure([a / b for a, b in zip(above, below, strict=True)])


def interleave(
    timed: Mapping[str, Callable[[], float]], repeats: int
) -> dict[str, list[float]]:
    """Calls each function once in every repetition, in turns.

    Args:
      timed: by name, functions that return seconds. What they compile must be compiled
        before.
      repeats: at least 1.

    Returns:
      By name, `repeats` values.
    """
    times: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(repeats):
        for name, function in timed.items():
            times[name].append(function())
    return times


def seconds_of_each(function: Callable[[], Any], number: float) -> Callable[[], float]:
    """Makes a function that calls another and returns seconds over `number`."""
    return lambda: seconds(function) / number


def seconds(function: Callable[[], Any]) -> float:
    """Time of a call, until what it returns has been computed."""
    begin = time.perf_counter()
    jax.block_until_ready(function())
    return time.perf_counter() - begin


def text(value: Any) -> str:
    """A cell of a table."""
    if value is None:
        return ""
    return number(value) if isinstance(value, float) else str(value)


def show(part: Part, console: Console) -> None:
    """Prints the table of a part, without empty columns, and its notes."""
    table = Table(title=part.title, title_justify="left")
    columns = [
        name for name in part.rows[0] if any(row[name] is not None for row in part.rows)
    ]
    for i, column in enumerate(columns):
        justify: Any = "right" if i else "left"
        table.add_column(column.replace("_", " "), justify=justify, overflow="fold")
    for row in part.rows:
        table.add_row(*(text(row[name]) for name in columns))
    console.print(table)
    for note in part.notes:
        console.print(note, highlight=False, markup=False, soft_wrap=True)


def plain(value: Any) -> Any:
    """The value as JSON has it: a `Figure` becomes an object of its fields."""
    if isinstance(value, Figure):
        return value._asdict()
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    return value
