r"""Every learner beside its scikit-learn counterpart: same rows, labels and mask.

  python -m experiments.learners
  python -m experiments.learners --dataset=google_cluster --data_dir=DIR

For a few draws of training and test rows, each learner is trained on a random 60% of
the rows with true labels (`masked`), and on all rows with 40% wrong ones (`noisy`).
Prints accuracies, their difference and on how many test rows the classes differ; then
the time of a fit with its predictions at 1 and at several vmapped seeds. Writes
learners.csv and times.csv to --output_dir.
"""

import csv
import dataclasses
import os
from collections.abc import Sequence

import numpy as np
from absl import app
from absl import flags as absl_flags
from rich.console import Console
from rich.table import Table

from experiments import command, flags, sources, stream
from experiments.learner_comparison import (
    LEARNERS,
    SETTINGS,
    compare,
    draw_rows,
    measure,
    pairs,
)
from rad_jax.files import check_output_dir

#: Training and test rows by data set, unless flags say otherwise.
SIZES = {"digits": (1200, 597), "google_cluster": (6000, 3000)}


@dataclasses.dataclass(frozen=True)
class Config:
    """One value for each flag; None means the default that suits the data set."""

    dataset: str = "digits"
    data_dir: str | None = None
    train_size: int | None = None
    test_size: int | None = None
    learners: tuple[str, ...] = ()
    draws: int = 5
    epochs: int = 50
    seeds: tuple[int, ...] = (1, 32)
    seed: int = 0
    output_dir: str = "results/learners"


def check(config: Config) -> Config:
    """Fills in sizes, and checks what needs no data.

    Raises:
      ValueError: naming the flag, what came and what is allowed.
    """
    if config.dataset not in SIZES:
        raise ValueError(
            f"--dataset={config.dataset} is unknown; known: {', '.join(SIZES)}"
        )
    train, test = SIZES[config.dataset]
    config = dataclasses.replace(
        config,
        train_size=train if config.train_size is None else config.train_size,
        test_size=test if config.test_size is None else config.test_size,
        learners=config.learners or LEARNERS,
    )
    unknown = [name for name in config.learners if name not in LEARNERS]
    if unknown:
        raise ValueError(
            f"--learners has the unknown {', '.join(unknown)}; known: "
            f"{', '.join(LEARNERS)}"
        )
    counts = [
        (name, getattr(config, name))
        for name in ("train_size", "test_size", "draws", "epochs")
    ]
    for name, value in [*counts, *(("seeds", n) for n in config.seeds)]:
        if value is None or value < 1:
            raise ValueError(f"--{name} must be at least 1, got {value}")
    if not config.seeds:
        raise ValueError("--seeds is empty; give numbers of at least 1")
    sources.check(_stream_config(config))
    return config


def _stream_config(config: Config) -> stream.Config:
    return stream.Config(dataset=config.dataset, data_dir=config.data_dir)


def run(config: Config, console: Console) -> tuple[list[dict], list[dict]]:
    """The comparison and the times.

    Args:
      config: as `check` returns it.
      console: for progress and tables.

    Returns:
      Rows of learners.csv and of times.csv, which are written after each learner.
    """
    dataset = stream.read(_stream_config(config))
    train, test = config.train_size or 0, config.test_size or 0
    if train + test > len(dataset.labels):
        raise ValueError(
            f"--train_size={train} and --test_size={test} ask for {train + test} rows; "
            f"{config.dataset} has {len(dataset.labels)}"
        )
    draws = [
        draw_rows(dataset, train, test, config.seed + i) for i in range(config.draws)
    ]
    both = pairs(train, config.epochs)
    num_classes = dataset.num_classes
    rows, times = [], []
    for name in config.learners:
        for setting in SETTINGS:
            for i, draw in enumerate(draws):
                figures = compare(
                    both[name], draw, setting, num_classes, config.seed + i
                )
                rows.append({"learner": name, "setting": setting, "draw": i} | figures)
        took = measure(both[name], draws[0], num_classes, config.seeds)
        times.append({"learner": name} | took)
        _write(os.path.join(config.output_dir, "learners.csv"), rows)
        _write(os.path.join(config.output_dir, "times.csv"), times)
        console.print(f"{name}: done", highlight=False)
    console.print(_accuracy_table(config, rows))
    console.print(_time_table(config, times))
    return rows, times


def _accuracy_table(config: Config, rows: list[dict]) -> Table:
    table = Table(
        title=f"{config.dataset}, {config.train_size} training and {config.test_size} "
        f"test rows, means of {config.draws} draws"
    )
    table.add_column("learner", no_wrap=True)
    for column in ("setting", "ours", "scikit-learn", "difference"):
        table.add_column(column, justify="right")
    table.add_column("differ (no tie)", justify="right")
    for name in config.learners:
        for setting in SETTINGS:
            mine = [
                row
                for row in rows
                if (row["learner"], row["setting"]) == (name, setting)
            ]
            ours = np.mean([row["accuracy"] for row in mine])
            theirs = np.mean([row["sklearn_accuracy"] for row in mine])
            differ = sum(row["rows_that_differ"] for row in mine)
            beyond = sum(row["of_them_no_tie"] for row in mine)
            table.add_row(
                name,
                setting,
                f"{ours:.4f}",
                f"{theirs:.4f}",
                f"{ours - theirs:+.4f}",
                f"{differ} ({beyond})",
            )
    return table


def _time_table(config: Config, times: list[dict]) -> Table:
    table = Table(title="milliseconds of a fit with predictions, per seed")
    table.add_column("learner")
    for runs in config.seeds:
        table.add_column(f"{runs} seed{'s' * (runs > 1)}", justify="right")
    table.add_column("scikit-learn", justify="right")
    for row in times:
        cells = [row[str(runs)] for runs in config.seeds] + [row["sklearn"]]
        table.add_row(row["learner"], *(f"{1e3 * cell:.1f}" for cell in cells))
    return table


def _write(path: str, rows: list[dict]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)


def _define_flags() -> None:
    define = absl_flags
    define.DEFINE_enum("dataset", "digits", tuple(SIZES), "Rows to compare on.")
    define.DEFINE_string(
        "data_dir", os.environ.get("RAD_JAX_DATA"), "Folder of the raw files."
    )
    define.DEFINE_integer("train_size", None, "Training rows.")
    define.DEFINE_integer("test_size", None, "Test rows.")
    define.DEFINE_list("learners", [], f"Some of {', '.join(LEARNERS)}; default all.")
    define.DEFINE_integer("draws", 5, "Random draws of rows.")
    define.DEFINE_integer("epochs", 50, "Of both MLPs.")
    define.DEFINE_list("seeds", ["1", "32"], "Numbers of vmapped seeds that are timed.")
    define.DEFINE_integer("seed", 0, "Base of all draws.")
    define.DEFINE_string("output_dir", "results/learners", "Where tables are written.")


def _config_from_flags() -> Config:
    return Config(**flags.values(Config))


def main(argv: Sequence[str]) -> None:
    """Runs the comparison that the flags describe."""

    def work() -> None:
        config = check(_config_from_flags())
        check_output_dir(config.output_dir)
        console = Console()
        run(config, console)
        written = f"wrote {config.output_dir}/learners.csv, times.csv"
        console.print(written, highlight=False)

    command.call(argv, work)


if __name__ == "__main__":
    _define_flags()
    app.run(main)
