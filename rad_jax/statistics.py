"""From the raw figures of a sweep to what is reported: means, intervals, gap closed.

NumPy on the host, float64, after the run. Axes: S schemes, R noise rates, n noise
seeds, T arrivals (index 0 of the arrival axis is the state after the clean batch
``D_0``), K classes. All accuracies, purities and recalls are shares in [0, 1]. NaN
means "undefined here" throughout, and is left out of every mean.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rad_jax.spread import Estimate, divide, gap_closed, mean_std_ci95, nan_mean

#: Names of the two baselines between which `gap_closed` measures.
LOWER_BASELINE = "no_selection"
UPPER_BASELINE = "oracle_selection"

#: What a sweep records per arrival, in the order of the columns of history.csv.
#: ``accuracy`` is of the prediction a user gets (ensemble or slim). ``purity`` to
#: ``wasted_queries`` are over arrivals 1..i; ``realised_noise`` is of arrival i alone,
#: as are the ``prequential`` accuracies: on its rows, before their labels are seen.
HISTORY_METRICS = (
    "accuracy",
    "classifier_accuracy",
    "label_model_accuracy",
    "balanced_accuracy",
    "classifier_balanced_accuracy",
    "purity",
    "recall",
    "kept",
    "queries",
    "wasted_queries",
    "realised_noise",
    "prequential_accuracy",
    "classifier_prequential_accuracy",
)

#: What `summarize` reports, in the order of the rows of summary.csv.
SUMMARY_METRICS = (
    "final_accuracy",
    "classifier_accuracy",
    "label_model_accuracy",
    "last10_accuracy",
    "balanced_accuracy",
    "purity",
    "recall",
    "queries",
    "wasted_queries",
    "realised_noise",
    "gap_closed",
    "classifier_gap_closed",
    "classifier_balanced_accuracy",
    "kept",
    "prequential_accuracy",
    "classifier_prequential_accuracy",
    "majority_accuracy",
)

#: Metrics of a batch, which `summarize` averages over all arrivals.
_MEANS = ("realised_noise", "prequential_accuracy", "classifier_prequential_accuracy")

#: Arrivals that ``last10_accuracy`` averages (all of them, where there are fewer).
LAST_ARRIVALS = 10


@dataclasses.dataclass
class SweepResult:
    """What a sweep over schemes × noise rates × seeds measured.

    Attributes:
      schemes: S distinct names.
      noise_rates: R rates in [0, 1].
      seeds: n noise seeds. Seed j of every scheme saw the same noise.
      class_names: K names.
      history: by metric, ``[S, R, n, T+1]`` float; has every `HISTORY_METRICS` (more
        are carried along into history.csv). NaN where undefined.
      confusion: ``[S, R, n, K, K]`` int, rows true class, columns predicted class, of
        the user's prediction at the last arrival.
      classifier_confusion: likewise of C alone.
      majority_accuracy: share of the test rows that are of the commonest class.
      compile_seconds: time spent compiling.
      run_seconds: time spent running, compilation left out.
      config: the flags of the run.

    Raises:
      ValueError: a shape or name that does not fit the others.
    """

    schemes: tuple[str, ...]
    noise_rates: tuple[float, ...]
    seeds: tuple[int, ...]
    class_names: tuple[str, ...]
    history: dict[str, np.ndarray]
    confusion: np.ndarray
    classifier_confusion: np.ndarray
    majority_accuracy: float
    compile_seconds: float
    run_seconds: float
    config: dict[str, Any]

    def __post_init__(self) -> None:
        for name in ("schemes", "noise_rates", "seeds", "class_names"):
            values = tuple(getattr(self, name))
            if not values:
                raise ValueError(f"{name} is empty; it needs at least one entry")
            if len(set(values)) < len(values):
                raise ValueError(f"{name}={values} has an entry twice")
            setattr(self, name, values)
        missing = [name for name in HISTORY_METRICS if name not in self.history]
        if missing:
            raise ValueError(f"history lacks {missing}; it needs {HISTORY_METRICS}")
        grid = (len(self.schemes), len(self.noise_rates), len(self.seeds))
        length = np.shape(self.history[HISTORY_METRICS[0]])[-1:]
        if not length or length[0] < 2:
            raise ValueError("history holds no arrival after the clean batch")
        self.history = {
            name: _checked(f"history[{name!r}]", x, (*grid, *length), np.floating)
            for name, x in self.history.items()
        }
        square = (*grid, len(self.class_names), len(self.class_names))
        for name in ("confusion", "classifier_confusion"):
            counts = _checked(name, getattr(self, name), square, np.integer)
            setattr(self, name, counts)
        if not 0 <= self.majority_accuracy <= 1:
            raise ValueError(
                f"majority_accuracy={self.majority_accuracy} is outside [0, 1]"
            )

    @property
    def num_arrivals(self) -> int:
        """T, arrivals after the clean batch."""
        return self.history[HISTORY_METRICS[0]].shape[-1] - 1


def _checked(name: str, x: ArrayLike, shape: tuple[int, ...], kind: type) -> np.ndarray:
    """`x` on the host; an error unless it has this shape and kind of dtype."""
    x = np.asarray(x)
    if x.shape != shape:
        raise ValueError(
            f"{name} has shape {x.shape}, expected {shape} (schemes, noise rates, "
            f"seeds, then {'arrivals + 1' if len(shape) == 4 else 'classes, classes'})"
        )
    if not np.issubdtype(x.dtype, kind):
        raise ValueError(f"{name} is of dtype {x.dtype}, expected {kind.__name__}")
    return x


class SummaryRow(NamedTuple):
    """One figure of one cell of the sweep: a row of summary.csv."""

    scheme: str
    noise_rate: float
    metric: str
    mean: float
    std: float
    ci95: float


class PerClassRow(NamedTuple):
    """How well one class is predicted, mean and standard deviation over seeds.

    Attributes:
      scheme: name.
      noise_rate: rate.
      prediction: ``user`` (ensemble or slim) or ``classifier`` (C alone).
      class_name: name.
      support: test rows of the class (mean over seeds, should they differ).
      precision_mean: over the seeds that predict the class at all.
      precision_std: likewise.
      recall_mean: NaN for a class without test rows.
      recall_std: likewise.
    """

    scheme: str
    noise_rate: float
    prediction: str
    class_name: str
    support: float
    precision_mean: float
    precision_std: float
    recall_mean: float
    recall_std: float


def summarize(result: SweepResult) -> list[SummaryRow]:
    """`SUMMARY_METRICS` of every scheme and noise rate.

    At the last arrival, except ``last10_accuracy`` (mean of the user's accuracy over
    the last `LAST_ARRIVALS`), ``realised_noise`` and the ``prequential`` accuracies
    (means over arrivals). The two gaps are NaN unless both baselines are among the
    schemes. ``majority_accuracy`` is a fact of the test set and has no spread.

    Args:
      result: what the sweep measured.

    Returns:
      Rows ordered by scheme, then noise rate, then metric.
    """
    history = result.history
    last = {name: x[..., -1] for name, x in history.items()}  # [S, R, n]
    last["final_accuracy"] = last["accuracy"]
    recent = history["accuracy"][..., 1:][..., -LAST_ARRIVALS:]
    last["last10_accuracy"] = nan_mean(recent)
    for name in _MEANS:
        last[name] = nan_mean(history[name][..., 1:])
    tables = {
        name: mean_std_ci95(last[name]) for name in SUMMARY_METRICS if name in last
    }
    tables["gap_closed"] = _gaps(result, last["accuracy"])
    tables["classifier_gap_closed"] = _gaps(result, last["classifier_accuracy"])
    grid = (len(result.schemes), len(result.noise_rates))
    blank = np.full(grid, np.nan)
    majority = np.full(grid, result.majority_accuracy)
    tables["majority_accuracy"] = Estimate(majority, blank, blank)
    return [
        SummaryRow(scheme, rate, name, *(float(x[s, r]) for x in tables[name]))
        for s, scheme in enumerate(result.schemes)
        for r, rate in enumerate(result.noise_rates)
        for name in SUMMARY_METRICS
    ]


def _gaps(result: SweepResult, accuracy: np.ndarray) -> Estimate:
    """Gap closed of every cell, fields ``[S, R]``, from accuracies ``[S, R, n]``."""
    table = np.full((3, *accuracy.shape[:2]), np.nan)
    if {LOWER_BASELINE, UPPER_BASELINE} <= set(result.schemes):
        lower = accuracy[result.schemes.index(LOWER_BASELINE)]
        upper = accuracy[result.schemes.index(UPPER_BASELINE)]
        for s, r in np.ndindex(accuracy.shape[:2]):
            table[:, s, r] = gap_closed(accuracy[s, r], lower[r], upper[r])
    return Estimate(*table)


def predictions(result: SweepResult) -> Mapping[str, np.ndarray]:
    """Confusion matrices ``[S, R, n, K, K]`` by the name of the prediction."""
    return {"user": result.confusion, "classifier": result.classifier_confusion}


def per_class(result: SweepResult) -> list[PerClassRow]:
    """Precision and recall of each class at the last arrival.

    The precision of a class that a seed never predicts is undefined, and that seed is
    left out of its mean.

    Args:
      result: what the sweep measured.

    Returns:
      Rows ordered by prediction, then scheme, noise rate, class.
    """
    rows = []
    for prediction, counts in predictions(result).items():
        correct = np.diagonal(counts, axis1=-2, axis2=-1)  # [S, R, n, K]
        support = counts.sum(axis=-1)
        precision = mean_std_ci95(divide(correct, counts.sum(axis=-2)), axis=2)
        recall = mean_std_ci95(divide(correct, support), axis=2)
        columns = (support.mean(axis=2), *precision[:2], *recall[:2])
        for s, r, k in np.ndindex(columns[0].shape):
            figures = (float(x[s, r, k]) for x in columns)
            rows.append(
                PerClassRow(
                    result.schemes[s],
                    result.noise_rates[r],
                    prediction,
                    result.class_names[k],
                    *figures,
                )
            )
    return rows
