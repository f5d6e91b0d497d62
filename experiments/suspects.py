r"""The list of suspect labels of a file of one's own.

  python -m experiments.suspects --dataset=alerts.csv --label_column=class

The first --initial_size rows with a label are trusted: put rows that have been checked
first, or name them by --trusted_column. All others arrive in batches, in the order of
the file or of --time_column, and each label is judged before it is trained on. Rows
without a label get a prediction. Prints a summary; writes suspects.csv,
predictions.csv, config.json and suspects.png to --output_dir.
"""

import dataclasses
import json
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from absl import app
from absl import flags as absl_flags
from rich.console import Console

from experiments import command, flags, progress, settings, stream, suspects_report
from experiments.suspects_input import SCHEMES, YES, Config, Rows, complete, read
from experiments.suspects_report import Findings, Status
from rad_jax import rad
from rad_jax.datasets import scaling, table
from rad_jax.files import atomic_path, check_output_dir
from rad_jax.online import OnlineRad
from rad_jax.types import UNLABELLED


def define_flags() -> None:
    """Defines the flags, which are the fields of `Config`."""
    absl_flags.DEFINE_string("dataset", "", f"The file: *{', *'.join(table.SUFFIXES)}.")
    flags.define_file("rows arrive by; by default they arrive as in the file")
    absl_flags.DEFINE_string(
        "trusted_column",
        None,
        f"Of a file: the column that says which labels are trusted, by "
        f"{', '.join(YES)}; instead of --initial_size.",
    )
    absl_flags.DEFINE_string(
        "evaluate_column",
        None,
        "Of a file: a column of true classes. They are used for nothing but to say how "
        "good the list is.",
    )
    absl_flags.DEFINE_integer(
        "initial_size",
        None,
        "Rows that are trusted, the first with a label; by default a tenth, at most "
        "6,000.",
    )
    absl_flags.DEFINE_integer("batch_size", None, "Rows of an arrival.")
    absl_flags.DEFINE_enum(
        "scheme",
        Config.scheme,
        list(SCHEMES),
        "basic: L judges labels; voting: L or C may say that a label is right.",
    )
    absl_flags.DEFINE_bool(
        "calibrate",
        Config.calibrate,
        "Fit a temperature to each model, so that doubts can be compared.",
    )
    flags.define_learners()
    absl_flags.DEFINE_integer("seed", 0, "Base of all random keys.")
    absl_flags.DEFINE_string(
        "output_dir", Config.output_dir, "Where tables and the picture are written."
    )


def config_from_flags() -> Config:
    """The flags as they were given.

    Raises:
      ValueError: for a list flag that does not hold numbers.
    """
    return Config(**flags.values(Config))


def announce(
    config: Config,
    shared: settings.Config,
    rows: Rows,
    parts: Iterable[np.ndarray],
    console: Console,
) -> None:
    """Prints what is about to be done, above all which rows are trusted.

    Args:
      config: the flags.
      shared: from `settings.suit`.
      rows: from `read`.
      parts: all features, scaled, some rows at a time.
      console: where to print.
    """
    dataset, trusted, _ = rows
    labels, size = dataset.labels, shared.batch_size or 0
    count = int(trusted.sum())
    name, number = suspects_report.numbering(dataset)
    first, last = number[trusted][0], number[trusted][-1]
    if config.trusted_column is not None:
        which = (
            f"the {count:,} rows that --trusted_column={config.trusted_column} names"
        )
    elif config.time_column is not None:
        which = (
            f"the first {count:,} rows with a label by --time_column="
            f"{config.time_column} (from {name} {first} to {name} {last})"
        )
    else:
        which = f"the first {count:,} rows with a label ({name}s {first} to {last})"
    arriving = labels[~trusted]
    missing = int((arriving == UNLABELLED).sum())
    order = f"--time_column={config.time_column}" if config.time_column else "the file"
    lines = [
        f"{dataset.name}: {len(labels):,} rows in the order of {order}, "
        f"{dataset.num_classes} classes",
        f"TRUSTED: {which}. Nothing checks their labels and everything is learned from "
        "them"
        + (
            "."
            if config.trusted_column is not None
            else ": put rows that have been checked first, or name them by "
            "--trusted_column."
        ),
        f"then {len(arriving):,} rows in {-(-len(arriving) // size):,} arrivals of "
        f"{size:,}; {missing:,} of them have no label and get a prediction only",
        f"L = {config.label_model}, C = {config.classifier}, scheme {config.scheme}; "
        "compiling comes first",
    ]
    absent = np.setdiff1d(arriving, np.append(labels[trusted], UNLABELLED))
    if absent.size:
        lines.append(
            f"warning: no trusted row is of class "
            f"{', '.join(dataset.class_names[k] for k in absent)}: rows of it will be "
            "suspect, right or wrong"
        )
    lines += settings.scaling_note(shared, parts, dataset.feature_names)
    progress.say(console, *lines)


def scaled(shared: settings.Config, rows: Rows) -> Callable[[np.ndarray], np.ndarray]:
    """From some rows, by number, to their features, scaled by the trusted ones.

    Raises:
      ValueError: Features cannot be scaled.
    """
    dataset, trusted, _ = rows
    clean = dataset.features[trusted]
    transform = scaling.fit(dataset, clean, shared.scaling or "none")
    return lambda chosen: transform(dataset.features[chosen])


def judge(
    config: Config,
    shared: settings.Config,
    rows: Rows,
    features: Callable[[np.ndarray], np.ndarray],
    console: Console,
) -> Findings:
    """Learns the trusted rows, then judges all others, batch by batch.

    Args:
      config: the flags.
      shared: from `settings.suit`.
      rows: from `read`.
      features: from `scaled`.
      console: where progress is shown.

    Raises:
      ValueError: Features cannot be scaled, or a learner cannot work with them.
    """
    dataset, trusted, truth = rows
    n, size = len(trusted), shared.batch_size or 1
    online = OnlineRad(
        rad(
            label_model=stream.learner(shared, config.label_model),
            classifier=stream.learner(shared, config.classifier),
            selection=SCHEMES[config.scheme],
            num_classes=dataset.num_classes,
            memory_capacity=n,
            calibrate=config.calibrate,
        ),
        max_batch_size=size,
        seed=config.seed,
    )

    first, rest = np.flatnonzero(trusted), np.flatnonzero(~trusted)
    batches = [rest[lo : lo + size] for lo in range(0, len(rest), size)]
    status = np.full(n, Status.TRUSTED, np.int8)
    arrival = np.zeros(n, np.int32)
    with progress.Reporter(len(batches), console) as on_progress:
        online.start(features(first), dataset.labels[first], first)
        for number, batch in enumerate(batches, 1):
            labels = dataset.labels[batch]
            verdict = online.step(features(batch), labels, batch)
            status[batch] = np.where(verdict.kept, Status.KEPT, Status.DROPPED)
            status[batch[labels == UNLABELLED]] = Status.NO_LABEL
            arrival[batch] = number
            on_progress(number)
    parts = map(features, _pieces(n, size))
    probs = np.concatenate([online.predict_proba(part) for part in parts])
    found = online.suspects()
    return Findings(
        dataset,
        status,
        arrival,
        probs,
        found.row_id,
        found.suggested,
        found.doubt,
        truth,
    )


def _pieces(n: int, size: int) -> list[np.ndarray]:
    """All rows, by number, some at a time."""
    return [np.arange(lo, min(n, lo + size)) for lo in range(0, n, size)]


def run(config: Config, console: Console | None = None) -> Findings:
    """Finds the suspect labels of a file and writes the list.

    Args:
      config: what to run; see the flags.
      console: where to print; nothing is printed without.

    Returns:
      What was found.

    Raises:
      ValueError, OSError, ImportError: for bad input, before any long work.
    """
    console = console or Console(quiet=True)
    begin = time.monotonic()
    output_dir = check_output_dir(config.output_dir)
    shared = complete(config)
    rows = read(config, shared)
    shared = dataclasses.replace(shared, initial_size=int(rows.trusted.sum()))
    shared = settings.suit(shared, rows.dataset)
    features = scaled(shared, rows)
    parts = map(features, _pieces(len(rows.trusted), 10_000))
    announce(config, shared, rows, parts, console)
    findings = judge(config, shared, rows, features, console)
    suspects_report.write(findings, output_dir)
    _write_config(config, shared, output_dir)
    suspects_report.print_summary(findings, console)
    progress.say(
        console,
        f"took {time.monotonic() - begin:.1f} s; the whole list is "
        f"{output_dir / 'suspects.csv'}",
    )
    return findings


def _write_config(config: Config, shared: settings.Config, output_dir: Path) -> None:
    """Writes config.json: the flags, with the sizes and the scaling that were used."""
    used = dataclasses.asdict(config) | {
        name: getattr(shared, name)
        for name in ("initial_size", "batch_size", "minibatch_size", "scaling")
    }
    with atomic_path(output_dir / "config.json") as temporary:
        temporary.write_text(json.dumps(used, indent=2) + "\n", encoding="utf-8")


def main(argv: Sequence[str]) -> None:
    """Finds the suspect labels of the file that the flags name."""
    command.call(argv, lambda: run(config_from_flags(), Console()))


if __name__ == "__main__":
    define_flags()
    __doc__ = f"{__doc__}{flags.help_text()}"  # for --help
    app.run(main)
