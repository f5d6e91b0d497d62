"""The offline study with scikit-learn's classifiers, to hold ours against."""

import math
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from experiments.worker_processes import Workers
from rad_jax.files import require


class Settings(NamedTuple):
    """What the counterparts of our learners are made with.

    Attributes:
      neighbours: of KNN.
      hidden: widths of the MLP.
      learning_rate: of the MLP.
      minibatch_size: of the MLP.
      epochs: of the MLP, all of them.
      svm_c: of both SVMs.
      num_trees: of the random forest, as are the next two.
      max_depth: of its trees.
      max_features: candidates at a split.
      seed: where something is random.
    """

    neighbours: int
    hidden: tuple[int, ...]
    learning_rate: float
    minibatch_size: int
    epochs: int
    svm_c: float
    num_trees: int
    max_depth: int
    max_features: int
    seed: int


def _mlp(settings: Settings) -> Any:
    return require("sklearn.neural_network").MLPClassifier(
        settings.hidden,
        learning_rate_init=settings.learning_rate,
        batch_size=settings.minibatch_size,
        max_iter=settings.epochs,
        n_iter_no_change=settings.epochs + 1,  # never stops early
        random_state=settings.seed,
    )


def _knn(settings: Settings) -> Any:
    return require("sklearn.neighbors").KNeighborsClassifier(
        settings.neighbours, weights="distance"
    )


def _random_forest(settings: Settings) -> Any:
    return require("sklearn.ensemble").RandomForestClassifier(
        settings.num_trees,
        max_depth=settings.max_depth,
        max_features=settings.max_features,
        random_state=settings.seed,
    )


#: By our learner's name, its counterpart.
COUNTERPARTS: dict[str, Callable[[Settings], Any]] = {
    "knn": _knn,
    "nearest_centroid": lambda settings: require("sklearn.neighbors").NearestCentroid(),
    "mlp": _mlp,
    "linear_svm": lambda settings: require("sklearn.svm").LinearSVC(
        C=settings.svm_c, random_state=settings.seed
    ),
    "rbf_svm": lambda settings: require("sklearn.svm").SVC(
        C=settings.svm_c, gamma="scale"
    ),
    "random_forest": _random_forest,
}


def _fit_and_predict(
    estimator: Any, train: np.ndarray, label: np.ndarray, test: np.ndarray
) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "has not converged" after all epochs
        return estimator.fit(train, label).predict(test)


def study(
    learner: str,
    settings: Settings,
    train_features: np.ndarray,
    given_labels: np.ndarray,
    test_features: np.ndarray,
) -> tuple[np.ndarray, float]:
    """Fits and predicts run by run, on all cores.

    Args:
      learner: one of `COUNTERPARTS`.
      settings: of the classifier.
      train_features: ``[n, *S]``; flattened.
      given_labels: ``[R, n]`` int.
      test_features: ``[Q, *S]``.

    Returns:
      ``[R, Q]`` predictions, and seconds without the start of the worker processes.
    """
    train, test = (
        x.reshape(len(x), math.prod(x.shape[1:]))
        for x in (train_features, test_features)
    )
    with Workers() as workers:
        begin = time.perf_counter()
        found = workers.map(
            _fit_and_predict,
            (
                (COUNTERPARTS[learner](settings), train, label, test)
                for label in given_labels
            ),
        )
        seconds = time.perf_counter() - begin
    return np.stack(found), seconds
