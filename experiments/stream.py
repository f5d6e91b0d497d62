r"""The main job: a stream with wrong labels, every scheme and noise seed at once.

  python -m experiments.stream --num_seeds=16 --noise_rates=0.2,0.4
  python -m experiments.stream --dataset=google_cluster --data_dir=DIR
  python -m experiments.stream --dataset=rows.csv --label_column=class

Prints what it is about to do, its progress and a table; writes summary.csv,
history.csv, per_class.csv, confusion.csv, config.json, accuracy.png and selection.png
to --output_dir.
"""

import dataclasses
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import app, logging
from absl import flags as absl_flags
from rich.console import Console

from experiments import flags, names, sources
from experiments.progress import Reporter
from rad_jax import Training, datasets, report, sweep
from rad_jax.files import check_output_dir
from rad_jax.statistics import SweepResult
from rad_jax.types import UNLABELLED, Learner


@dataclasses.dataclass(frozen=True)
class Config:
    """One value for each flag; None means the default that suits the data set."""

    dataset: str = "digits"
    data_dir: str | None = None
    device: str = "all"
    image_size: int = 32
    num_people: int | None = None
    skip_bad_images: bool = False
    label_column: str | None = None
    drop_columns: tuple[str, ...] = ()
    time_column: str | None = None
    cache_dir: str | None = None
    order: str = "shuffle"
    scaling: str | None = None
    initial_size: int | None = None
    batch_size: int | None = None
    num_batches: int | None = None
    test_size: int | None = None
    noise_rates: tuple[float, ...] = (0.4,)
    noise: str = "symmetric"
    num_seeds: int = 8
    randomness: str = "fixed_model"
    schemes: tuple[str, ...] = names.SCHEMES
    query_budget: int | None = None
    uncertainty: str = "margin"
    uncertainty_source: str = "mean"
    alpha: str = "validation"
    calibrate: bool = False
    label_model: str = "mlp"
    classifier: str = "knn"
    training: str = "continue"
    steps_per_batch: int = 100
    initial_steps: int = 500
    minibatch_size: int | None = None
    learning_rate: float | None = None
    hidden: tuple[int, ...] = (28, 28)
    neighbours: int = 5
    svm_c: float = 1.0
    num_landmarks: int = 512
    num_trees: int = 100
    max_depth: int = 5
    max_features: int = 10
    vgg_width: float = 1.0
    vgg_blocks: int = 3
    augment: bool = False
    seed: int = 0
    output_dir: str = "results/stream"


def _numbers(name: str, texts: Sequence[str], kind: type) -> tuple:
    try:
        return tuple(kind(text) for text in texts)
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise ValueError(f"--{name} must be {what}, got {','.join(texts)}") from None


def config_from_flags() -> Config:
    """The flags as they were given.

    Raises:
      ValueError: for a list flag that does not hold numbers.
    """
    given: dict[str, Any] = {
        field.name: flags.FLAGS[field.name].value
        for field in dataclasses.fields(Config)
    }
    given["noise_rates"] = _numbers("noise_rates", given["noise_rates"], float)
    given["hidden"] = _numbers("hidden", given["hidden"], int)
    given["schemes"] = tuple(given["schemes"])
    given["drop_columns"] = tuple(given["drop_columns"])
    return Config(**given)


#: Flags that the data set bounds.
_SIZES = ("initial_size", "batch_size", "num_batches", "test_size")
#: The least that whole-number flags may be.
_LEAST = {
    "initial_size": 1,
    "batch_size": 1,
    "num_batches": 1,
    "test_size": 1,
    "image_size": 1,
    "num_people": 1,
    "num_seeds": 1,
    "query_budget": 0,
    "steps_per_batch": 1,
    "initial_steps": 1,
    "minibatch_size": 1,
    "neighbours": 1,
    "num_landmarks": 1,
    "num_trees": 1,
    "max_depth": 1,
    "max_features": 1,
    "vgg_blocks": 1,
    "seed": 0,
}


def _fill(config: Config, sizes: sources.Sizes) -> Config:
    """Gives sizes that are None their defaults."""
    filled = {
        name: size
        for name, size in sizes._asdict().items()
        if getattr(config, name) is None
    }
    config = dataclasses.replace(config, **filled)
    if config.query_budget is None:
        tenth = max(1, round((config.batch_size or 0) / 10))
        config = dataclasses.replace(config, query_budget=tenth)
    return config


def complete(config: Config) -> Config:
    """Fills in what depends on the data set's name, and checks what needs no data.

    Raises:
      ValueError: naming the flag, what came and what is allowed.
    """
    for name, choices in names.CHOICES.items():
        value = getattr(config, name)
        if value not in choices and (name != "scaling" or value is not None):
            raise ValueError(
                f"--{name}={value} is unknown; known: {', '.join(choices)}"
            )
    source = sources.check(config)
    if source.sizes is not None:
        config = _fill(config, source.sizes)
    for name, least in _LEAST.items():
        value = getattr(config, name)
        if value is not None and value < least:
            raise ValueError(f"--{name} must be at least {least}, got {value}")
        if value is not None and value >= 2**31 and name not in _SIZES:
            raise ValueError(f"--{name} must be below 2^31, got {value}")
    for name, most in (("learning_rate", 1e3), ("svm_c", 1e6), ("vgg_width", 16.0)):
        value = getattr(config, name)
        if value is not None and not 0 < value <= most:
            raise ValueError(f"--{name} must be > 0 and <= {most:g}, got {value}")
    if not config.hidden or min(config.hidden) < 1:
        raise ValueError(f"--hidden must be widths of at least 1, got {config.hidden}")
    if not config.noise_rates:
        raise ValueError("--noise_rates is empty; give rates in [0, 1]")
    for rate in config.noise_rates:
        if not 0 <= rate <= 1:
            raise ValueError(f"--noise_rates must lie in [0, 1], got {rate}")
    return dataclasses.replace(
        config,
        schemes=_with_baselines(config.schemes),
        noise_rates=tuple(dict.fromkeys(config.noise_rates)),
    )


def _with_baselines(schemes: Sequence[str]) -> tuple[str, ...]:
    known = ", ".join(names.SCHEMES)
    if not schemes:
        raise ValueError(f"--schemes is empty; known: {known}")
    unknown = [name for name in schemes if name not in names.SCHEMES]
    if unknown:
        raise ValueError(
            f"--schemes has the unknown {', '.join(map(repr, unknown))}; known: {known}"
        )
    return tuple(dict.fromkeys((*names.BASELINES, *schemes)))


def read(config: Config) -> datasets.Dataset:
    """The rows, as their source has them.

    Raises:
      ValueError: for files that cannot be read.
    """
    return sources.find(config.dataset).load(config)


def suit(config: Config, dataset: datasets.Dataset) -> Config:
    """Fills in sizes that depend on the number of rows.

    Args:
      config: as `complete` returns it.
      dataset: as `read` returns it.
    """
    rows = len(dataset.labels)
    return _fill(config, sources.suited(rows, config.initial_size, config.batch_size))


def cut(config: Config, dataset: datasets.Dataset) -> datasets.StreamData:
    """The data set, cut into arrivals.

    Args:
      config: as `suit` returns it.
      dataset: as `read` returns it.

    Raises:
      ValueError: for sizes beyond the data.
    """
    return datasets.split(
        dataset,
        initial_size=config.initial_size or 0,
        batch_size=config.batch_size or 0,
        num_batches=config.num_batches,
        test_size=config.test_size,
        order=config.order,
        seed=config.seed,
        scaling=config.scaling,
    )


def load(config: Config) -> datasets.StreamData:
    """`read`, `suit` and `cut` in one.

    Args:
      config: as `complete` returns it.

    Raises:
      ValueError: for sizes beyond the data, or files that cannot be read.
    """
    dataset = read(config)
    return cut(suit(config, dataset), dataset)


def prepare(config: Config, data: datasets.StreamData) -> sweep.Sweep:
    """Everything up to the run itself; all bad input is found here.

    Args:
      config: as `suit` returns it.
      data: as `cut` returns it.

    Raises:
      ValueError: for a value out of range.
    """
    training = Training(
        mode=config.training,
        steps=config.steps_per_batch,
        initial_steps=config.initial_steps,
        minibatch_size=config.minibatch_size or 0,
    )

    def learner(name: str) -> Learner:
        options = {flag: getattr(config, flag) for flag in names.LEARNER_FLAGS}
        return names.learner(name, training=training, **options)

    arms = [
        names.arm(
            name,
            query_budget=config.query_budget or 0,
            score=config.uncertainty,
            source=config.uncertainty_source,
        )
        for name in config.schemes
    ]
    return sweep.prepare(
        data,
        arms,
        label_model=learner(config.label_model),
        classifier=learner(config.classifier),
        noise_rates=config.noise_rates,
        noise=names.NOISES[config.noise](0.0),
        num_seeds=config.num_seeds,
        alpha=config.alpha,
        calibrate=config.calibrate,
        randomness=config.randomness,
        seed=config.seed,
    )


def _available_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def _size(num_bytes: float) -> str:
    return (
        f"{num_bytes / 1e6:,.0f} MB" if num_bytes < 1e9 else f"{num_bytes / 1e9:.1f} GB"
    )


def announce(
    config: Config, data: datasets.StreamData, planned: sweep.Sweep, console: Console
) -> None:
    """Prints what a run is about to do, and what it takes."""
    num_runs = len(planned.arms) * len(planned.noise_rates) * planned.num_seeds
    num_rates, num_seeds = len(planned.noise_rates), planned.num_seeds
    lines = [
        f"{config.dataset} ({config.order}): {config.initial_size:,} clean rows, then "
        f"{planned.num_arrivals} arrivals of {config.batch_size:,}; "
        f"{len(data.test_labels):,} test rows",
        f"L = {config.label_model}, C = {config.classifier}; the ensemble is weighed "
        f"by accuracy on {config.alpha} rows",
        f"{len(planned.arms)} schemes x {num_rates} noise rates x {num_seeds} seeds = "
        f"{num_runs:,} runs, {planned.num_steps:,} gradient steps, about "
        f"{_size(planned.estimated_bytes)} of memory; compiling comes first",
    ]
    arriving = data.labels[data.labels != UNLABELLED]
    if arriving.size < data.labels.size:
        lines.append(
            f"note: {data.labels.size - arriving.size:,} of the rows that arrive have "
            "no label: they are neither trained on nor counted"
        )
    if data.num_copies:
        lines.append(
            f"note: {data.num_copies:,} rows after the last arrival repeat rows that "
            "were trained on: they are no test rows"
        )
    absent = set(np.unique(arriving)) - set(np.unique(data.initial_labels))
    if absent:
        classes = ", ".join(data.class_names[k] for k in sorted(absent))
        lines.append(
            f"note: no clean row is of class {classes}: L and C learn it only from "
            "rows that selection keeps or an expert labels"
        )
    available = _available_bytes()
    if available is not None and planned.estimated_bytes > available:
        lines.append(
            f"warning: that is more than the {_size(available)} that are free; lower "
            "--num_seeds, --schemes or --num_batches"
        )
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def run(config: Config, console: Console | None = None) -> SweepResult:
    """Runs the experiment and writes its report.

    Args:
      config: what to run; see the flags.
      console: where to print; nothing is printed without.

    Returns:
      What was measured.

    Raises:
      ValueError, OSError: for bad input, before any long work.
    """
    console = console or Console(quiet=True)
    output_dir = check_output_dir(config.output_dir)
    config = complete(config)
    dataset = read(config)
    config = suit(config, dataset)
    data = cut(config, dataset)
    planned = prepare(config, data)
    announce(config, data, planned, console)
    with Reporter(planned.num_arrivals, console) as on_progress:
        result = planned.run(on_progress)
    result.config = dataclasses.asdict(config)
    report.write_report(result, output_dir)  # before anything is printed: it may fail
    report.print_summary(result, console)
    console.print(
        f"compiled in {result.compile_seconds:.1f} s, ran in "
        f"{result.run_seconds:.1f} s; tables and pictures are in {output_dir}",
        highlight=False,
    )
    return result


def main(argv: Sequence[str]) -> None:
    """Runs the experiment that the flags describe."""
    if len(argv) > 1:
        sys.exit(f"error: unknown arguments: {' '.join(argv[1:])}")
    logging.set_verbosity(logging.WARNING)  # JAX logs every backend it looks for
    try:
        run(config_from_flags(), Console())
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted")


if __name__ == "__main__":
    flags.define()
    absl_flags.adopt_module_key_flags(flags)  # so that --help lists them
    app.run(main)
