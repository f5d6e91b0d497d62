"""What the studies of `experiments.motivation` share: settings, rows, learners."""

import csv
import dataclasses
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import numpy as np
from rich.console import Console

from experiments import names, progress, sources
from experiments.shared_settings import DataSettings, LearnerSettings
from rad_jax import Training, knn, offline
from rad_jax.datasets import duplicates, scaling
from rad_jax.files import atomic_path
from rad_jax.types import UNLABELLED, Learner, PRNGKey, Spec

_TRAIN_SIZE, _TEST_SIZE = 14_000, 6_000  # the paper's
_TRAIN_PART = 0.7


@dataclasses.dataclass(frozen=True)
class Config(DataSettings, LearnerSettings):
    """One value for each flag; None means a default that suits study and data set."""

    study: str = "offline"
    train_size: int | None = None
    test_size: int | None = None
    learners: tuple[str, ...] | None = None
    noise: str = "symmetric"
    noise_rates: tuple[float, ...] | None = None
    runs: int = 10
    epochs: int = 50
    minibatch_size: int = 200
    neighbours: int | None = None
    runs_per_chunk: int | None = None
    compare_sklearn: bool = False
    reference_curves: str | None = None
    reference_dataset: str | None = None
    seed: int = 0
    output_dir: str = "results/motivation"


class Rows(NamedTuple):
    """Training and test rows; every label is the true one.

    Attributes:
      train: ``[n, *S]`` float32.
      train_label: ``[n]`` int32.
      test: ``[Q, *S]`` float32.
      test_label: ``[Q]`` int32.
      num_classes: K.
      num_copies: rows that are no test rows because they equal a training row.
    """

    train: np.ndarray
    train_label: np.ndarray
    test: np.ndarray
    test_label: np.ndarray
    num_classes: int
    num_copies: int = 0

    @property
    def majority(self) -> float:
        """Share of the commonest class among the test rows."""
        return float(np.bincount(self.test_label).max() / len(self.test_label))


def load_rows(config: Config) -> Rows:
    """Draws training and test rows, and scales them by the training rows.

    Rows without label are left out. No test row has the features of a training row.

    Args:
      config: completed.

    Raises:
      ValueError: for sizes beyond the data, or files that cannot be read.
    """
    dataset = sources.find(config.dataset).load(cast(Any, config))
    kind = scaling.check(dataset, config.scaling or scaling.default(dataset))
    order = np.random.default_rng(config.seed).permutation(len(dataset.labels))
    order = order[dataset.labels[order] != UNLABELLED]
    train_size = config.train_size or _default_train_size(len(order), config.test_size)
    train, rest = order[:train_size], order[train_size:]
    group = duplicates.first_places(dataset.features)
    is_copy = np.isin(group[rest], group[train])
    test = rest[~is_copy]
    test_size = config.test_size
    if test_size is None:
        wanted = max(1, round(train_size * (1 - _TRAIN_PART) / _TRAIN_PART))
        test_size = max(1, min(wanted, len(test)))
    if len(train) < train_size or len(test) < test_size:
        raise ValueError(
            f"--train_size={train_size} and --test_size={test_size} ask for "
            f"{train_size + test_size} rows; {config.dataset} has {len(order)} with a "
            f"label, {is_copy.sum()} of them no test rows because they equal a "
            "training row"
        )
    test = test[:test_size]
    transform = scaling.fit(dataset, dataset.features[train], kind)
    return Rows(
        transform(dataset.features[train]),
        dataset.labels[train],
        transform(dataset.features[test]),
        dataset.labels[test],
        dataset.num_classes,
        int(is_copy.sum()),
    )


def _default_train_size(num_rows: int, test_size: int | None) -> int:
    size = _TRAIN_SIZE
    if num_rows < _TRAIN_SIZE + _TEST_SIZE:
        size = int(_TRAIN_PART * num_rows)
    if test_size is not None:
        size = min(size, num_rows - test_size)
    return max(1, size)


def make_learner(config: Config, name: str, rows: Rows) -> Learner:
    """The learner of that name, with a network's steps for `Config.epochs`.

    Raises:
      ValueError: for rows that it cannot take.
    """
    size = len(rows.train)
    if name == "knn":
        k = config.neighbours or 1
        if k > size:
            raise ValueError(f"--neighbours={k} exceeds the {size} training rows")
        # Every row votes, so lists need not be longer than k.
        return knn(k, weighting="distance", num_candidates=k)
    minibatch_size = min(config.minibatch_size, size)
    steps = config.epochs * math.ceil(size / minibatch_size)
    learner = names.learner(
        name,
        training=Training(initial_steps=steps, minibatch_size=minibatch_size),
        **{flag: getattr(config, flag) for flag in names.LEARNER_FLAGS},
    )
    spec = Spec(rows.train.shape[1:], rows.num_classes, size)
    try:
        jax.eval_shape(
            lambda key: learner.init(spec, learner.params, key), jax.random.key(0)
        )
    except ValueError as error:
        raise ValueError(f"--learners has {name}: {error}") from error
    return learner


def base_keys(config: Config) -> tuple[PRNGKey, PRNGKey, PRNGKey]:
    """Bases of initialisation, order and noise."""
    base = jax.random.key(config.seed)
    init, order, noise = (jax.random.fold_in(base, i) for i in range(3))
    return init, order, noise


def given_labels(config: Config, rows: Rows, noise_keys: PRNGKey) -> np.ndarray:
    """Given labels ``[E, R, n]``."""
    return offline.noisy_labels(
        names.NOISES[config.noise](0.0),
        config.noise_rates or (),
        noise_keys,
        rows.train_label,
        num_classes=rows.num_classes,
    )


def announce(
    console: Console, config: Config, learner: Learner, rows: Rows, num_runs: int
) -> None:
    """Prints what a learner's runs are going to take."""
    planned = offline.plan(
        learner,
        rows.train.shape,
        len(rows.test),
        num_runs,
        num_classes=rows.num_classes,
        runs_per_chunk=config.runs_per_chunk,
    )
    chunks = "" if planned.num_chunks == 1 else f" in {planned.num_chunks} chunks"
    progress.say(
        console,
        f"{learner.name}: {num_runs:,} runs{chunks}, {planned.num_steps:,} gradient "
        f"steps, about {planned.num_bytes / 1e6:,.0f} MB of memory; compiling first",
    )


def describe(console: Console, config: Config, rows: Rows) -> None:
    """Prints the sizes, and what the commonest class alone would achieve."""
    progress.say(
        console,
        f"{config.dataset}: {len(rows.train):,} training rows, {len(rows.test):,} "
        f"clean test rows, {rows.num_classes} classes; {config.runs} runs; predicting "
        f"the commonest class: accuracy {rows.majority:.3f}, balanced accuracy "
        f"{1 / len(np.unique(rows.test_label)):.3f}",
    )
    if rows.num_copies:
        progress.say(
            console,
            f"note: {rows.num_copies:,} rows are no test rows because they equal a "
            "training row",
        )


def write_config(config: Config, output_dir: Path) -> None:
    """Writes config.json, beside the first results: what they are results of."""
    with atomic_path(output_dir / "config.json") as temporary:
        temporary.write_text(
            json.dumps(dataclasses.asdict(config), indent=2) + "\n", encoding="utf-8"
        )


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence]) -> None:
    """Writes a table; floats have nine digits, NaN is an empty field."""

    def field(value):
        if not isinstance(value, float | np.floating):
            return value
        return "" if math.isnan(value) else f"{value:.9g}"

    with (
        atomic_path(path) as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows([field(x) for x in row] for row in rows)
