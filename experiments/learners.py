r"""Every learner beside its scikit-learn counterpart: same rows, labels and mask.

  python -m experiments.learners
  python -m experiments.learners --dataset=google_cluster --data_dir=DIR

For a few draws of training and test rows, each learner is trained on a random 60% of
the rows with true labels (`masked`), and on all rows with 40% wrong ones (`noisy`).
Prints accuracies, their difference and on how many test rows the classes differ; then
the time of a fit with its predictions at 1 and at several vmapped seeds. Writes
learners.csv and times.csv to --output_dir.
"""

import contextlib
import csv
import dataclasses
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import app, logging
from absl import flags as absl_flags
from rich.console import Console
from rich.table import Table

from experiments import sources, stream
from experiments.sklearn_study import COUNTERPARTS, Settings
from rad_jax import (
    Training,
    datasets,
    knn,
    linear_svm,
    mlp,
    nearest_centroid,
    offline,
    random_forest,
    rbf_svm,
)
from rad_jax.datasets import Dataset
from rad_jax.files import check_output_dir, require
from rad_jax.noise import symmetric
from rad_jax.types import Learner

#: Training and test rows by data set, unless flags say otherwise.
SIZES = {"digits": (1200, 597), "google_cluster": (6000, 3000)}
SETTINGS = ("masked", "noisy")


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


class Pair(NamedTuple):
    """A learner and what makes its counterpart for one draw."""

    ours: Learner
    theirs: Callable[[int], Any]


def _pairs(train_size: int, epochs: int) -> dict[str, Pair]:
    minibatch = min(200, train_size)
    training = Training(
        initial_steps=epochs * -(-train_size // minibatch), minibatch_size=minibatch
    )

    def theirs(name: str) -> Callable[[int], Any]:
        return lambda seed: COUNTERPARTS[name](
            Settings(
                neighbours=4,
                hidden=(28, 28),
                learning_rate=1e-3,
                minibatch_size=minibatch,
                epochs=epochs,
                svm_c=1.0,
                num_trees=100,
                max_depth=5,
                max_features=10,
                seed=seed,
            )
        )

    return {
        "knn": Pair(
            knn(5), lambda seed: require("sklearn.neighbors").KNeighborsClassifier(5)
        ),
        "knn_distance": Pair(knn(4, weighting="distance"), theirs("knn")),
        "nearest_centroid": Pair(nearest_centroid(), theirs("nearest_centroid")),
        "linear_svm": Pair(linear_svm(), theirs("linear_svm")),
        "rbf_svm": Pair(rbf_svm(), theirs("rbf_svm")),
        "rbf_svm_pairs": Pair(rbf_svm(multiclass="one_vs_one"), theirs("rbf_svm")),
        "random_forest": Pair(random_forest(), theirs("random_forest")),
        "mlp": Pair(mlp(training=training), theirs("mlp")),
    }


LEARNERS = (
    "knn",
    "knn_distance",
    "nearest_centroid",
    "linear_svm",
    "rbf_svm",
    "rbf_svm_pairs",
    "random_forest",
    "mlp",
)


class Draw(NamedTuple):
    """Rows of one draw, standardised by the training rows."""

    train: np.ndarray
    label: np.ndarray
    test: np.ndarray
    truth: np.ndarray


def _draw(dataset: Dataset, train_size: int, test_size: int, seed: int) -> Draw:
    rows = np.random.default_rng(seed).permutation(len(dataset.labels))
    train, test = np.split(rows[: train_size + test_size], [train_size])
    scaling = datasets.Standardizer.fit(dataset.features[train])
    return Draw(
        scaling.transform(dataset.features[train]),
        dataset.labels[train],
        scaling.transform(dataset.features[test]),
        dataset.labels[test],
    )


def _given(draw: Draw, setting: str, num_classes: int, runs: int, seed: int):
    """Labels ``[runs, n]`` to train on, -1 for rows left out."""
    if setting == "masked":
        rng = np.random.default_rng(seed)
        kept = rng.random((runs, len(draw.label))) < 0.6
        return np.where(kept, draw.label, -1)
    keys = jax.random.split(jax.random.key(seed), runs)
    given = offline.noisy_labels(
        symmetric(0.0), [0.4], keys, draw.label, num_classes=num_classes
    )
    return given[0]


def _tied(model, draw: Draw) -> np.ndarray:
    """Test rows on which neighbours leave a choice: equal votes, or equal distances."""
    votes = np.sort(model.predict_proba(draw.test), axis=1)
    k = model.n_neighbors
    distance, _ = model.kneighbors(draw.test, min(k + 1, model.n_samples_fit_))
    edge = distance[:, k - 1], distance[:, -1]
    even = np.isclose(votes[:, -1], votes[:, -2], rtol=1e-5, atol=0)
    return even | np.isclose(*edge, rtol=1e-5, atol=1e-6)


def compare(pair: Pair, draw: Draw, setting: str, num_classes: int, seed: int) -> dict:
    """One learner and its counterpart on one draw."""
    given = _given(draw, setting, num_classes, 1, seed)
    result = offline.study(
        pair.ours,
        draw.train,
        given,
        draw.test,
        num_classes=num_classes,
        init_key=jax.random.key(seed),
        order_key=jax.random.key(seed + 1),
    )
    kept = given[0] >= 0
    theirs = pair.theirs(seed)
    with _quietly():
        theirs.fit(draw.train[kept], given[0][kept])
    predicted = theirs.predict(draw.test)
    differ = result.predictions[0] != predicted
    beyond = differ
    if hasattr(theirs, "kneighbors"):
        beyond = differ & ~_tied(theirs, draw)
    return {
        "accuracy": float(result.accuracy(draw.truth)[0]),
        "sklearn_accuracy": float(np.mean(predicted == draw.truth)),
        "rows_that_differ": int(differ.sum()),
        "of_them_no_tie": int(beyond.sum()),
    }


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Expected: an MLP stopped after some epochs, columns constant within a class."""
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("ignore", "self.within_class_std_dev_", UserWarning)
        yield


def measure(pair: Pair, draw: Draw, num_classes: int, seeds: Sequence[int]) -> dict:
    """Seconds of a fit and its predictions for one seed, ours and scikit-learn's.

    Args:
      pair: the learner.
      draw: rows.
      num_classes: K.
      seeds: numbers of vmapped seeds.

    Returns:
      "sklearn" and each number of seeds, to seconds a seed: the least of three runs,
      compilation left out.
    """
    row: dict[str, float] = {}
    for runs in seeds:
        given = _given(draw, "noisy", num_classes, runs, 0)

        def run(given=given) -> float:
            return offline.study(
                pair.ours,
                draw.train,
                given,
                draw.test,
                num_classes=num_classes,
                init_key=jax.random.key(0),
                order_key=jax.random.key(1),
            ).run_seconds

        run()  # compiles
        row[str(runs)] = min(run() for _ in range(3)) / runs
    given = _given(draw, "noisy", num_classes, 1, 0)[0]
    took = []
    for _ in range(3):
        begin = time.perf_counter()
        with _quietly():
            pair.theirs(0).fit(draw.train, given).predict(draw.test)
        took.append(time.perf_counter() - begin)
    row["sklearn"] = min(took)
    return row


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
      Rows of learners.csv and of times.csv.
    """
    dataset = stream.read(_stream_config(config))
    train, test = config.train_size or 0, config.test_size or 0
    if train + test > len(dataset.labels):
        raise ValueError(
            f"--train_size={train} and --test_size={test} ask for {train + test} rows; "
            f"{config.dataset} has {len(dataset.labels)}"
        )
    draws = [_draw(dataset, train, test, config.seed + i) for i in range(config.draws)]
    pairs = _pairs(train, config.epochs)
    num_classes = dataset.num_classes
    rows, times = [], []
    for name in config.learners:
        for setting in SETTINGS:
            for i, draw in enumerate(draws):
                figures = compare(
                    pairs[name], draw, setting, num_classes, config.seed + i
                )
                rows.append({"learner": name, "setting": setting, "draw": i} | figures)
        took = measure(pairs[name], draws[0], num_classes, config.seeds)
        times.append({"learner": name} | took)
        console.print(f"{name}: done", highlight=False)
    console.print(_accuracy_table(config, rows))
    console.print(_time_table(config, times))
    return rows, times


def _accuracy_table(config: Config, rows: list[dict]) -> Table:
    table = Table(
        title=f"{config.dataset}, {config.train_size} training and {config.test_size} "
        f"test rows, means of {config.draws} draws"
    )
    for column in ("learner", "setting", "ours", "scikit-learn", "difference"):
        table.add_column(column, justify="left" if column == "learner" else "right")
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
    values: dict[str, Any] = {
        field.name: absl_flags.FLAGS[field.name].value
        for field in dataclasses.fields(Config)
    }
    try:
        values["seeds"] = tuple(int(text) for text in values["seeds"])
    except ValueError:
        given = ",".join(values["seeds"])
        raise ValueError(f"--seeds must be whole numbers, got {given}") from None
    values["learners"] = tuple(values["learners"])
    return Config(**values)


def main(argv: Sequence[str]) -> None:
    """Runs the comparison that the flags describe."""
    if len(argv) > 1:
        sys.exit(f"error: unknown arguments: {' '.join(argv[1:])}")
    logging.set_verbosity(logging.WARNING)  # JAX logs every backend it looks for
    console = Console()
    try:
        config = check(_config_from_flags())
        check_output_dir(config.output_dir)
        rows, times = run(config, console)
        _write(os.path.join(config.output_dir, "learners.csv"), rows)
        _write(os.path.join(config.output_dir, "times.csv"), times)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted")
    console.print(f"wrote {config.output_dir}/learners.csv, times.csv", highlight=False)


if __name__ == "__main__":
    _define_flags()
    app.run(main)
