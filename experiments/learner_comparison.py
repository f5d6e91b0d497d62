"""One learner and its scikit-learn counterpart: same rows, same labels, same mask."""

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

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
from rad_jax.files import require
from rad_jax.noise import symmetric
from rad_jax.types import Learner

#: True labels on a random 60% of the rows; all rows, 40% of them wrongly labelled.
SETTINGS = ("masked", "noisy")


class Pair(NamedTuple):
    """A learner and what makes its counterpart for one draw."""

    ours: Learner
    theirs: Callable[[int], Any]


def pairs(train_size: int, epochs: int) -> dict[str, Pair]:
    """All learners by name.

    Args:
      train_size: training rows.
      epochs: of both MLPs.
    """
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


def draw_rows(dataset: Dataset, train_size: int, test_size: int, seed: int) -> Draw:
    """Random rows, standardised by the training rows.

    Copies of training rows may be test rows: this compares learners, both sides alike,
    and is no measure of what a data set allows.
    """
    rows = np.random.default_rng(seed).permutation(len(dataset.labels))
    train, test = np.split(rows[: train_size + test_size], [train_size])
    scaling = datasets.Standardizer.fit(dataset.features[train])
    return Draw(
        scaling.transform(dataset.features[train]),
        dataset.labels[train],
        scaling.transform(dataset.features[test]),
        dataset.labels[test],
    )


def given_labels(draw: Draw, setting: str, num_classes: int, runs: int, seed: int):
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
    given = given_labels(draw, setting, num_classes, 1, seed)
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
        given = given_labels(draw, "noisy", num_classes, runs, 0)

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
    given = given_labels(draw, "noisy", num_classes, 1, 0)[0]
    took = []
    for _ in range(3):
        begin = time.perf_counter()
        with _quietly():
            pair.theirs(0).fit(draw.train, given).predict(draw.test)
        took.append(time.perf_counter() - begin)
    row["sklearn"] = min(took)
    return row
