"""The on-line protocol in scikit-learn: a loop over arrivals, a process on a core."""

import time
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.sklearn_study import COUNTERPARTS, Settings
from experiments.worker_processes import Workers
from rad_jax.datasets import StreamData
from rad_jax.files import require
from rad_jax.statistics import LOWER_BASELINE, UPPER_BASELINE

#: Schemes that the loop knows.
SCHEMES = (LOWER_BASELINE, UPPER_BASELINE, "basic")


class Measured(NamedTuple):
    """What the loop found.

    Attributes:
      ensemble: ``[S, n, T]`` test accuracy of the ensemble, by scheme and seed.
      label_model: likewise, of L alone.
      classifier: likewise, of C alone.
      seconds_per_seed: of one seed's arrivals under all schemes, the cores being shared
        by as many seeds.
      steps: gradient steps of one seed's arrivals under all schemes, mean over seeds.
    """

    ensemble: np.ndarray
    label_model: np.ndarray
    classifier: np.ndarray
    seconds_per_seed: float
    steps: float


def settings(
    *, neighbours: int, hidden: tuple[int, ...], learning_rate: float, epochs: int
) -> Settings:
    """What the loop makes L and C with; minibatches have 200 rows."""
    return Settings(
        neighbours=neighbours,
        hidden=hidden,
        learning_rate=learning_rate,
        minibatch_size=200,
        epochs=epochs,
        svm_c=1.0,
        num_trees=100,
        max_depth=5,
        max_features=10,
        seed=0,
    )


def _fit(estimator: Any, features: np.ndarray, label: np.ndarray) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "has not converged" after all epochs
        return estimator.fit(features, label)


def _probabilities(estimator: Any, features: np.ndarray, num_classes: int):
    """``[Q, K]``; a class that the model has not seen has probability 0."""
    probs = np.zeros((len(features), num_classes))
    probs[:, estimator.classes_] = estimator.predict_proba(features)
    return probs


def _ensemble(probs: Sequence[np.ndarray], alpha: Sequence[float]) -> np.ndarray:
    """Algorithm 1: where L and C differ, the one that is surer by its accuracy."""
    by_label, by_class = (p.argmax(axis=1) for p in probs)
    surer = alpha[1] * probs[1].max(axis=1) > alpha[0] * probs[0].max(axis=1)
    return np.where(surer, by_class, by_label)


def one_seed(
    data: StreamData, given: np.ndarray, settings: Settings
) -> tuple[np.ndarray, float, int]:
    """All schemes on one seed's labels: judge, refit L and C, predict the test rows.

    Args:
      data: the stream, with the true labels.
      given: ``[T, N]`` int, the labels as they arrive.
      settings: of L (KNN) and C (MLP).

    Returns:
      ``[3, S, T]`` accuracies of ensemble, L and C; seconds of the arrivals (the clean
      batch is learned before); gradient steps.
    """

    def train(features, label):
        neighbours = require("sklearn.neighbors").KNeighborsClassifier(
            settings.neighbours
        )
        network = COUNTERPARTS["mlp"](settings)
        return [_fit(neighbours, features, label), _fit(network, features, label)]

    def test(models):
        return [_probabilities(m, data.test_features, data.num_classes) for m in models]

    def accuracy(predicted) -> float:
        return float(np.mean(predicted == data.test_labels))

    start = train(data.initial_features, data.initial_labels)
    first = [accuracy(p.argmax(axis=1)) for p in test(start)]
    found = np.zeros((3, len(SCHEMES), len(given)))
    steps = 0
    begin = time.perf_counter()
    for s, scheme in enumerate(SCHEMES):
        models, alpha = start, first
        features, label = [data.initial_features], [data.initial_labels]
        for t, y in enumerate(given):
            x = data.features[t]
            if scheme == LOWER_BASELINE:
                keep = np.ones(len(y), bool)
            elif scheme == UPPER_BASELINE:
                keep = y == data.labels[t]
            else:
                keep = models[0].predict(x) == y
            features.append(x[keep])
            label.append(y[keep])
            models = train(np.concatenate(features), np.concatenate(label))
            steps += -(-sum(map(len, label)) // settings.minibatch_size) * (
                settings.epochs
            )
            probs = test(models)
            alone = [accuracy(p.argmax(axis=1)) for p in probs]
            found[:, s, t] = accuracy(_ensemble(probs, alpha)), *alone
            alpha = alone
    return found, time.perf_counter() - begin, steps


def fixed_epochs(
    features: np.ndarray, label: np.ndarray, settings: Settings
) -> tuple[float, int]:
    """Seconds and gradient steps of one fit of the MLP."""
    network = COUNTERPARTS["mlp"](settings)
    begin = time.perf_counter()
    _fit(network, features, label)
    elapsed = time.perf_counter() - begin
    return elapsed, -(-len(label) // settings.minibatch_size) * settings.epochs


def protocol(
    workers: Workers, data: StreamData, given: np.ndarray, settings: Settings
) -> Measured:
    """Runs the protocol for seeds ``given [n, T, N]``, n a multiple of the workers.

    A seed's share of the time is that of its process over the number of processes.
    """
    results = workers.map(one_seed, [(data, labels, settings) for labels in given])
    accuracies = np.stack([found for found, _, _ in results], axis=2)
    elapsed = [took for _, took, _ in results]
    ensemble, label_model, classifier = accuracies
    return Measured(
        ensemble,
        label_model,
        classifier,
        seconds_per_seed=float(np.mean(elapsed)) / min(workers.number, len(given)),
        steps=float(np.mean([steps for _, _, steps in results])),
    )


def step_seconds(features: np.ndarray, label: np.ndarray, settings: Settings) -> float:
    """Seconds per gradient step of the MLP in this process."""
    took, steps = fixed_epochs(features, label, settings)
    return took / steps


def fit(
    workers: Workers, features: np.ndarray, label: np.ndarray, settings: Settings
) -> float:
    """Seconds per seed and gradient step of the MLP, every core training a seed."""
    work = [(features, label, settings)] * workers.number
    return float(np.mean(workers.map(step_seconds, work))) / workers.number
