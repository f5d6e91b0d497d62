"""What a run leaves behind: tables, pictures, configuration. The edge to the disk.

Every file appears whole or not at all. matplotlib and rich are imported when first
needed, so that ``import rad_jax.report`` works without them. NaN is an empty field in
CSV, null in JSON, a gap in a picture and a dash in the printed table.
"""

import csv
import importlib
import importlib.metadata
import io
import json
import math
import os
import platform
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from rad_jax import __version__, statistics
from rad_jax.figures import plot_accuracy, plot_prequential, plot_selection
from rad_jax.files import atomic_path, require
from rad_jax.statistics import LOWER_BASELINE, UPPER_BASELINE, SweepResult

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


# --- CSV and JSON ---------------------------------------------------------------------


def _field(value: Any) -> Any:
    """Nine digits for a float (float32 returns unchanged), nothing for NaN."""
    if not isinstance(value, float | np.floating):
        return value
    return "" if math.isnan(value) else f"{value:.9g}"


def _write_csv(
    path: str | os.PathLike[str], header: Sequence[str], rows: Iterable[Iterable[Any]]
) -> None:
    with (
        atomic_path(path) as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows([_field(x) for x in row] for row in rows)


def write_summary_csv(result: SweepResult, path: str | os.PathLike[str]) -> None:
    """Writes the figures of `statistics.summarize`, one a line."""
    _write_csv(path, statistics.SummaryRow._fields, statistics.summarize(result))


def write_per_class_csv(result: SweepResult, path: str | os.PathLike[str]) -> None:
    """Writes precision and recall per class (`statistics.per_class`)."""
    names = statistics.PerClassRow._fields
    header = ["class" if name == "class_name" else name for name in names]
    _write_csv(path, header, statistics.per_class(result))


def write_confusion_csv(result: SweepResult, path: str | os.PathLike[str]) -> None:
    """Writes the confusion matrices, one entry a line, as mean counts over seeds."""
    header = "scheme noise_rate prediction true_class predicted_class mean_count"
    names = result.class_names
    rows = (
        (
            result.schemes[s],
            result.noise_rates[r],
            prediction,
            names[i],
            names[j],
            mean[s, r, i, j],
        )
        for prediction, counts in statistics.predictions(result).items()
        for mean in [counts.mean(axis=2)]
        for s, r, i, j in np.ndindex(mean.shape)
    )
    _write_csv(path, header.split(), rows)


def write_history_csv(result: SweepResult, path: str | os.PathLike[str]) -> None:
    """Writes ``scheme, noise_rate, seed, arrival``, then one column per metric.

    One scheme and rate is formatted as one string: a million lines take seconds.
    """
    names = list(result.history)
    arrivals = np.arange(result.num_arrivals + 1)
    seed, arrival = np.meshgrid(result.seeds, arrivals, indexing="ij")
    line = "%d,%d" + ",%.9g" * len(names) + "\n"  # as `_field` does it
    with (
        atomic_path(path) as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["scheme", "noise_rate", "seed", "arrival", *names])
        for s, scheme in enumerate(result.schemes):
            for r, rate in enumerate(result.noise_rates):
                columns = [seed, arrival, *(x[s, r] for x in result.history.values())]
                table = np.stack(columns, axis=-1, dtype=np.float64)
                text = (line * seed.size) % tuple(table.ravel().tolist())
                text = text.replace(",nan", ",")
                cell = io.StringIO()
                csv.writer(cell, lineterminator="\n").writerow([scheme, _field(rate)])
                start = cell.getvalue()[:-1] + ","
                file.write(start + text[:-1].replace("\n", "\n" + start) + "\n")


def _plain(value: Any) -> Any:
    """What JSON can say: lists, strings, and null for NaN and infinity."""
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        value = np.asarray(value).tolist()
    if isinstance(value, dict):
        return {str(key): _plain(x) for key, x in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(x) for x in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int) else str(value)


def write_config_json(result: SweepResult, path: str | os.PathLike[str]) -> None:
    """Writes all flags, versions, the device, and compile and run time apart."""
    device = jax.devices()[0]
    distributions = ("jax", "jaxlib", "flax", "optax", "numpy")
    config = {
        "flags": result.config,
        "schemes": result.schemes,
        "noise_rates": result.noise_rates,
        "num_seeds": len(result.seeds),
        "num_arrivals": result.num_arrivals,
        "compile_seconds": result.compile_seconds,
        "run_seconds": result.run_seconds,
        "versions": {
            "python": platform.python_version(),
            "rad_jax": __version__,
            **{name: importlib.metadata.version(name) for name in distributions},
        },
        "device": {
            "platform": device.platform,
            "kind": device.device_kind,
            "count": jax.device_count(),
            "cpu_cores": os.cpu_count(),
        },
    }
    with atomic_path(path) as temporary:
        text = json.dumps(_plain(config), indent=2, allow_nan=False)
        temporary.write_text(text + "\n", encoding="utf-8")


# --- Table ----------------------------------------------------------------------------

_TABLE_WIDTH = 200  # more than it ever needs


def summary_table(result: SweepResult, *, plus_minus: str = "±") -> "Table":
    """The main figures, grouped by noise rate; fits into 100 characters.

    Args:
      result: what the sweep measured.
      plus_minus: the sign before an interval, for terminals that know only ASCII.

    Returns:
      A `rich.table.Table`, which nothing wraps.
    """
    table = require("rich.table").Table(
        box=require("rich.box").SIMPLE_HEAD, pad_edge=False, collapse_padding=True
    )
    table.add_column("noise", no_wrap=True)
    table.add_column("scheme", no_wrap=True)
    headings = "accuracy|C alone|bal.\nacc.|purity|recall|queries|gap\nclosed|gap\n(C)"
    for heading in headings.split("|"):
        table.add_column(heading, justify="right", no_wrap=True)
    cells: dict[tuple[str, float], dict[str, statistics.SummaryRow]] = {}
    for row in statistics.summarize(result):
        cells.setdefault((row.scheme, row.noise_rate), {})[row.metric] = row

    def mean(row: statistics.SummaryRow, form: str) -> str:
        return "-" if math.isnan(row.mean) else format(row.mean, form)

    def interval(row: statistics.SummaryRow) -> str:
        if math.isnan(row.ci95):
            return mean(row, ".3f")
        return f"{row.mean:.3f}{plus_minus}{row.ci95:.3f}"

    for rate in result.noise_rates:
        for scheme in result.schemes:
            cell = cells[scheme, rate]
            table.add_row(
                f"{rate:g}",
                require("rich.markup").escape(scheme),
                interval(cell["final_accuracy"]),
                interval(cell["classifier_accuracy"]),
                mean(cell["balanced_accuracy"], ".3f"),
                mean(cell["purity"], ".3f"),
                mean(cell["recall"], ".3f"),
                mean(cell["queries"], ".0f"),
                mean(cell["gap_closed"], ".2f"),
                mean(cell["classifier_gap_closed"], ".2f"),
            )
        table.add_section()
    return table


_SHORT = {LOWER_BASELINE: "No-Sel", UPPER_BASELINE: "Opt-Sel"}
_MAX_CLASSES, _MAX_NAME = 20, 20  # lines of the table below, letters of a class name
_MAX_SCHEMES = 12  # its columns, and lines in pictures


def class_table(result: SweepResult, *, encoding: str = "utf-8") -> "Table":
    """Recall of each class under each scheme, at the last noise rate.

    Args:
      result: what the sweep measured.
      encoding: of the output; what it lacks is escaped.

    Returns:
      A `rich.table.Table` of the classes with the most test rows.
    """
    table = require("rich.table").Table(
        box=require("rich.box").SIMPLE_HEAD, pad_edge=False, collapse_padding=True
    )
    escape = require("rich.markup").escape
    table.add_column("class", no_wrap=True)
    table.add_column("test\nrows", justify="right", no_wrap=True)
    for scheme in result.schemes:
        heading = _SHORT.get(scheme, scheme.replace("_", "\n"))
        table.add_column(escape(heading), justify="right", no_wrap=True)
    rows: dict[str, list[statistics.PerClassRow]] = {}
    for row in statistics.per_class(result):
        if row.prediction == "user" and row.noise_rate == result.noise_rates[-1]:
            rows.setdefault(row.class_name, []).append(row)
    by_support = sorted(rows, key=lambda name: -rows[name][0].support)
    shown = set(by_support[:_MAX_CLASSES])
    for name, of_schemes in rows.items():
        if name in shown:
            label = " ".join(name.split())
            label = label.encode(encoding, "backslashreplace").decode(encoding)
            if len(label) > _MAX_NAME:
                label = label[: _MAX_NAME - 3] + "..."
            recalls = (row.recall_mean for row in of_schemes)
            table.add_row(
                escape(label),
                f"{of_schemes[0].support:.0f}",
                *("-" if math.isnan(x) else f"{x:.3f}" for x in recalls),
            )
    return table


def print_summary(result: SweepResult, console: "Console | None" = None) -> None:
    """Prints the majority baseline, and below it `summary_table` and `class_table`.

    The tables keep their width where the output is not a terminal (a file, a pipe), and
    where the terminal is narrower.

    Args:
      result: what the sweep measured.
      console: where to (default: stdout).
    """
    console = console or require("rich.console").Console()
    assert console is not None
    sign = "±" if console.encoding.lower().startswith("utf") else "+-"
    table = summary_table(result, plus_minus=sign)
    classes = int(np.count_nonzero(result.confusion[0, 0, 0].sum(axis=1)))
    lines = (
        f"Majority class: accuracy {result.majority_accuracy:.3f}, balanced accuracy "
        f"(bal. acc.) {1 / max(classes, 1):.3f}",
        f"Mean over noise seeds {sign} half of the 95% interval "
        f"(noise seeds: {len(result.seeds)}, arrivals: {result.num_arrivals}).",
        f"Gap closed: 0 = {LOWER_BASELINE}, 1 = {UPPER_BASELINE}.",
    )
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    _print_table(table, console)
    if len(result.schemes) > _MAX_SCHEMES:
        return  # too wide for any screen; per_class.csv has it
    line = f"Recall of each class (noise {result.noise_rates[-1]:g})"
    if len(result.class_names) > _MAX_CLASSES:
        line += f", the {_MAX_CLASSES} largest of {len(result.class_names)}"
    console.print(f"{line}; per_class.csv has more.", highlight=False, soft_wrap=True)
    _print_table(class_table(result, encoding=console.encoding), console)


def _print_table(table: "Table", console: "Console") -> None:
    """Prints a table in its own width, whatever the console's."""
    # `print(width=...)` never exceeds the console's own width, so render here.
    wide = console.options.update(max_width=max(console.width, _TABLE_WIDTH))
    segments = require("rich.segment").Segments(console.render(table, wide))
    console.print(segments, crop=False, soft_wrap=True)


#: Every file of a run, and what writes it.
WRITERS: dict[str, Callable[[SweepResult, Path], None]] = {
    "config.json": write_config_json,
    "summary.csv": write_summary_csv,
    "history.csv": write_history_csv,
    "per_class.csv": write_per_class_csv,
    "confusion.csv": write_confusion_csv,
    "accuracy.png": plot_accuracy,
    "selection.png": plot_selection,
    "prequential.png": plot_prequential,
}


def write_report(result: SweepResult, output_dir: str | os.PathLike[str]) -> list[Path]:
    """Writes every file of `WRITERS`, but no pictures of more than 12 schemes.

    They are made in a hidden folder first and then moved, so that a failure leaves an
    earlier run's files as they were, all of them.

    Args:
      result: what the sweep measured.
      output_dir: where to; created if it has gone since `check_output_dir`.

    Returns:
      The paths written.

    Raises:
      OSError: if something cannot be written.
    """
    output_dir = Path(output_dir)
    output_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unfinished_", dir=output_dir) as staging:
        crowded = len(result.schemes) > _MAX_SCHEMES
        for name, write in WRITERS.items():
            if crowded and name.endswith(".png"):
                (output_dir / name).unlink(missing_ok=True)  # an earlier run's
            else:
                write(result, Path(staging) / name)
        written = sorted(path.name for path in Path(staging).iterdir())
        for name in written:
            os.replace(Path(staging) / name, output_dir / name)
    return [output_dir / name for name in written]
