r"""The paper's three use cases, from raw files to its figures beside ours.

  python -m experiments.use_cases --use_case=cluster --data_dir=DIR
  python -m experiments.use_cases --use_case=all --data_dir=DIR --num_seeds=5

iot: a device of N-BaIoT with all its 11 classes if there is one, else UNSW-NB15.
cluster: the Google trace. faces: FaceScrub, with RAD Slim and a VGG.

Each run is one of `experiments.stream` with settings after the paper, and leaves its
tables and pictures in --output_dir/<use case>/<learners>; use_cases.csv has a row for
each scheme of all of them. A use case whose data cannot be read does not keep the
others from running.
"""

import csv
import dataclasses
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import app, flags
from rich.console import Console

from experiments import command, comparison, presets, progress, stream
from experiments.presets import USE_CASES, Options
from rad_jax import chunks
from rad_jax.files import atomic_path, check_output_dir

_ALL = "all"


def define_flags() -> None:
    """Defines the flags, which are the fields of `Options`."""
    flags.DEFINE_list(
        "use_case", [_ALL], f"Which, of {', '.join(USE_CASES)}; or {_ALL}."
    )
    flags.DEFINE_string(
        "data_dir",
        os.environ.get("RAD_JAX_DATA"),
        "Folder of the raw files; by default the variable RAD_JAX_DATA.",
    )
    flags.DEFINE_string(
        "cache_dir",
        Options.cache_dir,
        "Where data sets are kept once parsed; by default $XDG_CACHE_HOME/rad_jax or "
        "~/.cache/rad_jax, nowhere if empty.",
    )
    flags.DEFINE_integer("num_seeds", Options.num_seeds, "Noise seeds, run at once.")
    flags.DEFINE_float(
        "noise_rate",
        Options.noise_rate,
        "Share of wrong labels, in [0, 1]; by default the paper's: "
        + ", ".join(f"{name} {case.paper.noise_rate}" for name, case in _cases())
        + ".",
    )
    flags.DEFINE_integer(
        "num_people",
        Options.num_people,
        "Of faces: the people with the most images, at most as many as there are; in "
        "the paper 100.",
    )
    flags.DEFINE_float(
        "vgg_width", Options.vgg_width, "Of faces: factor of the VGG's widths."
    )
    flags.DEFINE_bool(
        "quick", Options.quick, "Fewer rows and steps, to see whether it runs."
    )
    flags.DEFINE_integer("seed", Options.seed, "Of all keys, and of the row order.")
    flags.DEFINE_bool(
        "resume",
        Options.resume,
        "Go on from what a killed run left in --output_dir.",
    )
    flags.DEFINE_string(
        "output_dir", Options.output_dir, "Where tables and pictures are written."
    )


def _cases():
    return USE_CASES.items()


def options_from_flags() -> Options:
    """The flags as they were given."""
    given: dict[str, Any] = {
        field.name: flags.FLAGS[field.name].value
        for field in dataclasses.fields(Options)
    }
    return Options(**given | {"use_case": tuple(given["use_case"])})


def complete(options: Options) -> Options:
    """Checks what needs no data, and puts names for 'all'.

    Raises:
      ValueError: naming the flag, what came and what is allowed.
    """
    known = f"{', '.join(USE_CASES)}, {_ALL}"
    if not options.use_case:
        raise ValueError(f"--use_case is empty; known: {known}")
    unknown = [name for name in options.use_case if name not in (*USE_CASES, _ALL)]
    if unknown:
        raise ValueError(
            f"--use_case has the unknown {', '.join(map(repr, unknown))}; known: "
            f"{known}"
        )
    for name, least in (("num_seeds", 1), ("num_people", 2), ("seed", 0)):
        value = getattr(options, name)
        if not least <= value < 2**31:
            raise ValueError(f"--{name} must lie in {least}..2^31-1, got {value}")
    if options.noise_rate is not None and not 0 <= options.noise_rate <= 1:
        raise ValueError(f"--noise_rate must lie in [0, 1], got {options.noise_rate}")
    if not 0 < options.vgg_width <= 16:
        raise ValueError(f"--vgg_width must be > 0 and <= 16, got {options.vgg_width}")
    asked = tuple(USE_CASES) if _ALL in options.use_case else options.use_case
    return dataclasses.replace(options, use_case=tuple(dict.fromkeys(asked)))


def run(
    options: Options, console: Console | None = None
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Runs use cases one after the other and writes their tables.

    Args:
      options: what to run; see the flags.
      console: where to print; nothing is printed without.

    Returns:
      The rows of use_cases.csv; and by use case that could not be run, why.

    Raises:
      ValueError, OSError: for bad flags, before any work.
    """
    console = console or Console(quiet=True)
    options = complete(options)
    output_dir = check_output_dir(options.output_dir)
    rows: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    folders: list[Path] = []
    for name in options.use_case:
        try:
            _run_one(name, options, output_dir, rows, folders, console)
        except (ValueError, OSError, ImportError) as error:
            failed[name] = str(error)
            progress.say(console, f"{name} cannot be run: {error}")
    for folder in folders:
        chunks.remove(folder / stream.CHUNKS)
    if rows:
        progress.say(console, f"all figures are in {output_dir / 'use_cases.csv'}")
    return rows, failed


def _run_one(
    name: str,
    options: Options,
    output_dir: Path,
    rows: list[dict[str, Any]],
    folders: list[Path],
    console: Console,
) -> None:
    """Runs a use case, appends its rows and folders, and writes all rows so far."""
    progress.say(console, f"--- {name} ---")
    paper = USE_CASES[name].paper
    plan = presets.plan(name, options)
    progress.say(console, f"paper: {paper.setting}", f"here: {plan.data}")
    progress.say(console, "Differences:", *(f"  {note}" for note in plan.notes))
    own: list[dict[str, Any]] = []
    verdicts = []
    for learners, config in plan.configs.items():
        folder = Path(name, learners)
        config = dataclasses.replace(config, output_dir=str(output_dir / folder))
        result = stream.run(config, console, keep_chunks=True)
        folders.append(Path(config.output_dir))
        own += comparison.rows(
            name, plan.data, result, paper.accuracy, folder.as_posix()
        )
        _write(output_dir / "use_cases.csv", rows + own)
        who = f"L = {config.label_model}, C = {config.classifier}: "
        verdicts += [
            (who if plan.ensemble else "") + text
            for text in comparison.verdicts(result, ensemble=plan.ensemble)
        ]
    rows += own
    _report(name, plan, own, verdicts, console)


def _report(
    name: str,
    plan: presets.Plan,
    rows: Sequence[dict[str, Any]],
    verdicts: Sequence[str],
    console: Console,
) -> None:
    """Prints a use case's table beside the paper's figures, and what to make of it."""
    sign = "±" if console.encoding.lower().startswith("utf") else "+-"
    progress.say(
        console,
        f"--- {name}: the paper's accuracy beside ours ---",
        f"paper: {USE_CASES[name].paper.setting}",
        f"here: {plan.data}, {rows[0]['noise_rate']:.0%} noise, "
        f"{rows[0]['num_seeds']} seeds; majority class: accuracy "
        f"{rows[0]['majority_accuracy']:.3f}",
    )
    progress.say(
        console, "", *comparison.table(rows, ensemble=plan.ensemble, plus_minus=sign)
    )
    progress.say(
        console,
        "",
        "Paper: No-Sel (no_selection) is C alone, RAD "
        + ("(basic, active) the ensemble." if plan.ensemble else "Slim one model."),
        "Differences:",
        *(f"  {note}" for note in plan.notes),
        "Against No-Sel:",
        *(f"  {text}" for text in verdicts),
        "",
    )


def _write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Writes use_cases.csv; NaN is an empty field."""
    with (
        atomic_path(path) as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(comparison.HEADER)
        for row in rows:
            writer.writerow(
                ("" if math.isnan(x) else f"{x:.9g}") if isinstance(x, float) else x
                for x in row.values()
            )


def main(argv: Sequence[str]) -> None:
    """Runs the use cases that the flags name."""

    def work() -> None:
        _, failed = run(options_from_flags(), Console())
        if failed:
            sys.exit(
                "\n".join(f"error: {name}: {reason}" for name, reason in failed.items())
            )

    command.call(argv, work)


if __name__ == "__main__":
    define_flags()
    app.run(main)
