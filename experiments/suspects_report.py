"""What `experiments.suspects` leaves behind: two tables, a picture, a summary."""

import csv
import enum
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from experiments import progress
from rad_jax.datasets import Dataset
from rad_jax.files import atomic_path, require
from rad_jax.types import UNLABELLED

_MOST_ROWS = 20  # of a printed table
_MOST_CLASSES = 20  # in the picture
_SUSPECT, _OTHER = "#D55E00", "#56B4E9"  # Okabe and Ito's


class Status(enum.IntEnum):
    """What was made of a row."""

    TRUSTED = 0
    KEPT = 1
    DROPPED = 2
    NO_LABEL = 3

    @property
    def text(self) -> str:
        """As it is written in tables."""
        return self.name.lower().replace("_", " ")


class Findings(NamedTuple):
    """What was found. Rows are counted from 0 in the order of arrival.

    Attributes:
      dataset: n rows with the given labels.
      status: ``[n]`` int8, `Status`.
      arrival: ``[n]`` int32, in which the row was judged, from 1; 0: trusted.
      probs: ``[n, K]`` float32, of the classes, at the end.
      row: ``[m]`` int, the suspect rows, those of most doubt first.
      suggested: ``[m]`` int32, their most probable class.
      doubt: ``[m]`` float32, 1 - probability of the given label.
      truth: ``[n]`` str, names of the true classes, '' where not known; or None.
    """

    dataset: Dataset
    status: np.ndarray
    arrival: np.ndarray
    probs: np.ndarray
    row: np.ndarray
    suggested: np.ndarray
    doubt: np.ndarray
    truth: np.ndarray | None


class Evaluation(NamedTuple):
    """How good a list is, by rows that arrived with a label and whose truth is known.

    Attributes:
      rows: how many there are.
      wrong: how many labels are wrong.
      suspects: how many are on the list.
      found: suspects whose label is wrong.
      repaired: suspects whose suggested class is the true one.
      wrong_trusted: trusted rows whose label is wrong.
    """

    rows: int
    wrong: int
    suspects: int
    found: int
    repaired: int
    wrong_trusted: int

    @property
    def precision(self) -> float:
        """Share of suspects whose label is wrong."""
        return self.found / self.suspects if self.suspects else float("nan")

    @property
    def recall(self) -> float:
        """Share of wrong labels that are on the list."""
        return self.found / self.wrong if self.wrong else float("nan")


def evaluate(findings: Findings) -> Evaluation:
    """Holds a list against the truth, which must be known."""
    dataset, truth = findings.dataset, findings.truth
    assert truth is not None
    names = np.array((*dataset.class_names, ""))  # -1 is the last
    labelled = (truth != "") & (dataset.labels != UNLABELLED)
    wrong = labelled & (names[dataset.labels] != truth)
    arrived = findings.status != Status.TRUSTED
    known = labelled[findings.row]
    return Evaluation(
        rows=int((labelled & arrived).sum()),
        wrong=int((wrong & arrived).sum()),
        suspects=int(known.sum()),
        found=int(wrong[findings.row].sum()),
        repaired=int(
            (known & (names[findings.suggested] == truth[findings.row])).sum()
        ),
        wrong_trusted=int((wrong & ~arrived).sum()),
    )


def numbering(dataset: Dataset) -> tuple[str, np.ndarray]:
    """How rows are told apart.

    Returns:
      'line', counted from 1, of a file of text, or 'index', counted from 0; and it for
      each row, ``[n]`` int64.
    """
    is_text = dataset.name.lower().endswith((".csv", ".csv.gz"))
    numbers = dataset.source_row
    if numbers is None:
        numbers = np.arange(len(dataset.labels))
    return ("line" if is_text else "index"), numbers


def write(findings: Findings, output_dir: Path) -> None:
    """Writes suspects.csv, predictions.csv and suspects.png.

    Args:
      findings: what was found.
      output_dir: where to.

    Raises:
      OSError: if something cannot be written.
    """
    name, number = numbering(findings.dataset)
    _write_csv(
        output_dir / "suspects.csv",
        (name, "given", "suggested", "doubt", "status", "arrival"),
        _suspect_rows(findings),
    )
    names = (*findings.dataset.class_names, "")
    predicted = findings.probs.argmax(axis=1)
    _write_csv(
        output_dir / "predictions.csv",
        (name, "given", "predicted", "probability", "status", "arrival"),
        (
            (
                number[row],
                names[findings.dataset.labels[row]],
                names[predicted[row]],
                f"{findings.probs[row, predicted[row]]:.6g}",
                Status(findings.status[row]).text,
                findings.arrival[row],
            )
            for row in np.argsort(number)
        ),
    )
    plot(findings, output_dir / "suspects.png")


def _suspect_rows(findings: Findings) -> list[tuple[Any, ...]]:
    """The lines of suspects.csv."""
    names = findings.dataset.class_names
    _, number = numbering(findings.dataset)
    return [
        (
            number[row],
            names[findings.dataset.labels[row]],
            names[suggested],
            f"{doubt:.6g}",
            Status(findings.status[row]).text,
            findings.arrival[row],
        )
        for row, suggested, doubt in zip(
            findings.row, findings.suggested, findings.doubt, strict=True
        )
    ]


def _write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence]) -> None:
    with (
        atomic_path(path) as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def plot(findings: Findings, path: str | os.PathLike[str]) -> None:
    """Draws doubts of all labels that arrived, and what is suggested instead of what.

    Args:
      findings: what was found.
      path: of the PNG.
    """
    figure_module = require("matplotlib.figure")
    require("matplotlib.backends.backend_agg")
    figure = figure_module.Figure(figsize=(9.5, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_doubts(left, findings)
    _draw_matrix(right, findings)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=200)


def _draw_doubts(axes: Any, findings: Findings) -> None:
    labels = findings.dataset.labels
    judged = np.isin(findings.status, (Status.KEPT, Status.DROPPED))
    doubt = 1 - findings.probs[np.arange(len(labels)), labels]
    suspect = np.zeros(len(labels), bool)
    suspect[findings.row] = True
    axes.hist(
        [doubt[judged & ~suspect], doubt[judged & suspect]],
        bins=np.linspace(0, 1, 21),
        label=[
            f"others ({(judged & ~suspect).sum():,})",
            f"suspects ({suspect.sum():,})",
        ],
        color=[_OTHER, _SUSPECT],
    )
    axes.set_yscale("symlog", linthresh=10)  # a few suspects beside many others
    axes.set_ylim(bottom=0)
    axes.set_xlim(0, 1)
    axes.set_xlabel("doubt: 1 - probability of the given label")
    axes.set_ylabel("rows that arrived with a label")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_matrix(axes: Any, findings: Findings) -> None:
    """Counts of suspects by given and suggested class, of the classes with the most."""
    given, names = findings.dataset.labels[findings.row], findings.dataset.class_names
    counts = np.zeros((len(names), len(names)), np.int64)
    np.add.at(counts, (given, findings.suggested), 1)
    most = np.argsort(-(counts.sum(axis=0) + counts.sum(axis=1)), kind="stable")
    shown = np.sort(most[:_MOST_CLASSES])
    counts = counts[np.ix_(shown, shown)]
    axes.imshow(counts, cmap="Oranges", vmin=0, vmax=max(1, counts.max()))
    short = [names[k] if len(names[k]) <= 16 else f"{names[k][:15]}…" for k in shown]
    short = [text.replace("$", r"\$") for text in short]  # no formulas
    size = 9 if len(shown) <= 10 else 6
    axes.set_xticks(
        range(len(shown)), short, rotation=45, ha="right", rotation_mode="anchor"
    )
    axes.set_yticks(range(len(shown)), short)
    axes.tick_params(labelsize=size)
    for (row, column), count in np.ndenumerate(counts):
        if count:
            axes.text(
                column,
                row,
                f"{count}",
                ha="center",
                va="center",
                fontsize=size,
                color="white" if 2 * count > counts.max() else "black",
            )
    axes.set_xlabel("suggested class")
    axes.set_ylabel("given class")
    title = "suspects"
    if len(shown) < len(names):
        title += f", the {len(shown)} classes of {len(names)} with the most"
    axes.set_title(title, fontsize=10)


def print_summary(findings: Findings, console: Console) -> None:
    """Prints counts by class, the suspects of most doubt and how good the list is.

    Args:
      findings: what was found.
      console: where to.
    """
    labels = findings.dataset.labels
    arrived = findings.status != Status.TRUSTED
    num_labelled = int((arrived & (labels != UNLABELLED)).sum())
    progress.say(
        console,
        f"{len(findings.row):,} of the {num_labelled:,} labels that arrived are "
        "suspect: not trained on, and another class is more probable",
        "",
        *_class_lines(findings),
    )
    rows = [
        tuple(map(str, (*row[:3], f"{float(row[3]):.3f}", row[5])))
        for row in _suspect_rows(findings)[:_MOST_ROWS]
    ]
    if rows:
        name, _ = numbering(findings.dataset)
        heads = (name, "given", "suggested", "doubt", "arrival")
        progress.say(
            console, "", f"The {len(rows)} of most doubt:", *_aligned([heads, *rows])
        )
    progress.say(console, "", *_doubted_classes(findings))
    if findings.truth is None:
        return
    result = evaluate(findings)
    progress.say(
        console,
        f"Truth: {result.wrong:,} of {result.rows:,} labels that arrived are wrong "
        f"({result.wrong / max(1, result.rows):.1%}); precision of the list "
        f"{result.precision:.3f} ({result.found:,} of {result.suspects:,}), recall "
        f"{result.recall:.3f}; the suggested class is right in {result.repaired:,}",
    )
    if result.wrong_trusted:
        progress.say(
            console,
            f"warning: {result.wrong_trusted:,} of the trusted labels are wrong by "
            "--evaluate_column",
        )


def _class_lines(findings: Findings) -> list[str]:
    """Counts by given class, of the classes with the most rows that arrived."""
    labels, status = findings.dataset.labels, findings.status
    names = findings.dataset.class_names

    def count(which: np.ndarray) -> np.ndarray:
        return np.bincount(which, minlength=len(names))

    columns = {
        "trusted": count(labels[status == Status.TRUSTED]),
        "kept": count(labels[status == Status.KEPT]),
        "dropped": count(labels[status == Status.DROPPED]),
        "suspect": count(labels[findings.row]),
        "suggested": count(findings.suggested),
    }
    total = columns["kept"] + columns["dropped"]
    shown = np.argsort(-total, kind="stable")[:_MOST_ROWS]
    lines = [("given class", *columns)]
    lines += [
        (names[k], *(f"{column[k]:,}" for column in columns.values())) for k in shown
    ]
    more = [f"and {len(names) - len(shown):,} smaller classes"] * (
        len(shown) < len(names)
    )
    return _aligned(lines) + more


def _doubted_classes(findings: Findings) -> list[str]:
    """Warns of classes that are suspect as a whole, which says more of the models."""
    labels, names = findings.dataset.labels, findings.dataset.class_names
    judged = np.isin(findings.status, (Status.KEPT, Status.DROPPED))
    arrived = np.bincount(labels[judged], minlength=len(names))
    suspect = np.bincount(labels[findings.row], minlength=len(names))
    most = np.flatnonzero(2 * suspect > arrived)
    if not most.size:
        return []
    return [
        "warning: more than half of the labels of class "
        f"{', '.join(names[k] for k in most)} are suspect. Rather than so many wrong "
        "labels this may be a class that the models do not know or cannot tell from "
        "others: look at some of them, and trust more rows of it"
    ]


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Lines of cells in columns."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) for cell, width in zip(line, widths, strict=True)
        ).rstrip()
        for line in lines
    ]
