"""What a use case gave, beside the paper's figures, and where RAD gained nothing."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from rad_jax import spread, statistics
from rad_jax.statistics import LOWER_BASELINE, UPPER_BASELINE, SweepResult

#: What `rows` takes from `statistics.summarize`, by the name of the column.
_MEANS = {
    "accuracy": "final_accuracy",
    "classifier_accuracy": "classifier_accuracy",
    "label_model_accuracy": "label_model_accuracy",
    "balanced_accuracy": "balanced_accuracy",
    "classifier_balanced_accuracy": "classifier_balanced_accuracy",
    "gap_closed": "gap_closed",
    "classifier_gap_closed": "classifier_gap_closed",
    "purity": "purity",
    "recall": "recall",
    "queries": "queries",
    "realised_noise": "realised_noise",
}
_INTERVALS = ("accuracy", "classifier_accuracy")
#: Columns of use_cases.csv; those with _ci95 are halves of 95% intervals over seeds.
HEADER = (
    *("use_case", "data", "label_model", "classifier", "scheme", "noise_rate"),
    *("num_seeds", "paper_accuracy"),
    *_MEANS,
    *(f"{name}_ci95" for name in _INTERVALS),
    *("majority_accuracy", "compile_seconds", "run_seconds", "folder"),
)
#: A gap below this is none (as in `spread.gap_closed`).
_NO_GAP = 0.01
_BALANCED = {
    "accuracy": "balanced_accuracy",
    "classifier_accuracy": "classifier_balanced_accuracy",
}


def rows(
    use_case: str,
    data: str,
    result: SweepResult,
    paper_accuracy: dict[str, float],
    folder: str,
) -> list[dict[str, Any]]:
    """One row of use_cases.csv for each scheme of a run at one noise rate.

    Args:
      use_case: its name.
      data: what the rows were, in words.
      result: what the run measured.
      paper_accuracy: the paper's figures by scheme.
      folder: where the run's own tables are.

    Returns:
      Dicts with the keys `HEADER`; NaN where there is no figure.
    """
    cells: dict[str, dict[str, statistics.SummaryRow]] = {}
    for row in statistics.summarize(result):
        cells.setdefault(row.scheme, {})[row.metric] = row
    made = []
    for scheme, cell in cells.items():
        values = {
            "use_case": use_case,
            "data": data,
            "label_model": result.config["label_model"],
            "classifier": result.config["classifier"],
            "scheme": scheme,
            "noise_rate": result.noise_rates[0],
            "num_seeds": len(result.seeds),
            "paper_accuracy": paper_accuracy.get(scheme, math.nan),
            "majority_accuracy": result.majority_accuracy,
            "compile_seconds": result.compile_seconds,
            "run_seconds": result.run_seconds,
            "folder": folder,
        }
        values |= {name: cell[metric].mean for name, metric in _MEANS.items()}
        values |= {f"{name}_ci95": cell[_MEANS[name]].ci95 for name in _INTERVALS}
        made.append({name: values[name] for name in HEADER})
    return made


def table(
    of_use_case: Sequence[dict[str, Any]], *, ensemble: bool, plus_minus: str = "±"
) -> list[str]:
    """Lines of text: the paper's accuracy beside ours, for all runs of a use case.

    Args:
      of_use_case: from `rows`.
      ensemble: whether to show the prediction a user gets beside that of C alone.
      plus_minus: the sign before an interval.
    """
    heads = ["L", "C", "scheme", "paper"]
    heads += ["ensemble", "bal. acc.", "gap closed"] if ensemble else []
    heads += ["C alone", "bal. acc.", "gap closed"]
    lines = [heads]
    for row in of_use_case:

        def share(name: str, digits: int = 3, row=row) -> str:
            value = row[name]
            return "-" if math.isnan(value) else f"{value:.{digits}f}"

        def interval(name: str, row=row, share=share) -> str:
            half = row[f"{name}_ci95"]
            return share(name) + ("" if math.isnan(half) else f"{plus_minus}{half:.3f}")

        label_model = row["label_model"] if ensemble else "-"
        line = [label_model, row["classifier"], row["scheme"], share("paper_accuracy")]
        for prefix in ("", "classifier_") if ensemble else ("classifier_",):
            line += [
                interval(f"{prefix}accuracy"),
                share(f"{prefix}balanced_accuracy"),
                share(f"{prefix}gap_closed", 2),
            ]
        lines.append(line)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = sum(1 for head in heads if head in ("L", "C", "scheme"))
    return [
        "  ".join(
            cell.ljust(width) if i < texts else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def verdicts(result: SweepResult, *, ensemble: bool) -> Iterator[str]:
    """Says where a run's schemes do not beat No-Sel, and what its figures show of why.

    A scheme beats No-Sel if its accuracy on the same seeds is higher by more than half
    of the difference's 95% interval (with one seed: at all).

    Args:
      result: of a run at one noise rate, with both baselines.
      ensemble: whether to speak of the prediction a user gets beside C alone.

    Yields:
      Sentences, at least one for each prediction.
    """
    kinds = ["accuracy", "classifier_accuracy"] if ensemble else ["classifier_accuracy"]
    for kind in kinds:
        name = "C alone" if kind == "classifier_accuracy" else "ensemble"
        yield from (f"{name}: {text}" for text in _of_prediction(result, kind))


def _last(result: SweepResult, metric: str, scheme: str) -> np.ndarray:
    """A metric at the last arrival ``[n]``, at the first noise rate."""
    return result.history[metric][result.schemes.index(scheme), 0, :, -1]


def _mean(result: SweepResult, metric: str, scheme: str) -> float:
    return float(spread.nan_mean(_last(result, metric, scheme)))


def _of_prediction(result: SweepResult, kind: str) -> Iterable[str]:
    no_sel, opt_sel = (
        _mean(result, kind, scheme) for scheme in (LOWER_BASELINE, UPPER_BASELINE)
    )
    closed = opt_sel - no_sel < _NO_GAP
    balanced = _BALANCED[kind]
    texts, costs = [], []
    if closed:
        texts.append(
            f"nothing to gain: No-Sel {no_sel:.3f}, Opt-Sel {opt_sel:.3f}; the wrong "
            "labels cost less than a point" + _robust(result, kind)
        )
    for scheme in result.schemes:
        if scheme in (LOWER_BASELINE, UPPER_BASELINE):
            continue
        gain, half = _gain(result, kind, scheme)
        reasons = "; ".join(_reasons(result, kind, scheme, closed))
        if gain < -half:
            texts.append(f"{scheme} is {-gain:.3f} below No-Sel: {reasons}")
        elif gain <= half and not closed:
            texts.append(
                f"{scheme} differs from No-Sel by {gain:+.3f}, no more than the seeds "
                f"do: {reasons}"
            )
        gain, half = _gain(result, balanced, scheme)
        if gain < -half:
            classes = _lost_classes(result, kind, scheme, least=0.02)
            lost = f": {'; '.join(classes)}" if classes else ""
            costs.append(
                f"balanced accuracy of {scheme} is {-gain:.3f} below No-Sel{lost}"
            )
    return (texts or ["every scheme beats No-Sel"]) + costs


def _gain(result: SweepResult, metric: str, scheme: str) -> tuple[float, float]:
    """Mean of what a scheme has more than No-Sel, and half of its 95% interval.

    The half is 0 where it cannot be known, with one seed.
    """
    gain = _last(result, metric, scheme) - _last(result, metric, LOWER_BASELINE)
    mean, _, half = spread.mean_std_ci95(gain)
    return float(mean), float(np.nan_to_num(half))


def _robust(result: SweepResult, kind: str) -> str:
    """For an ensemble: whether it is L that wrong labels do not harm."""
    if kind == "classifier_accuracy":
        return ""
    label_model = _mean(result, "label_model_accuracy", LOWER_BASELINE)
    classifier = _mean(result, "classifier_accuracy", LOWER_BASELINE)
    if label_model - classifier < _NO_GAP:
        return ""
    return (
        f" because they do not harm L ({label_model:.3f} without selection; C "
        f"{classifier:.3f}), which the ensemble follows"
    )


def _reasons(result: SweepResult, kind: str, scheme: str, closed: bool) -> list[str]:
    """What the figures of selection and the classes show of one scheme."""
    purity = _mean(result, "purity", scheme)
    recall = _mean(result, "recall", scheme)
    clean = _mean(result, "purity", LOWER_BASELINE)
    reasons = []
    if purity - clean < (1 - clean) / 2:
        reasons.append(
            f"the rows kept are hardly cleaner than those that came (purity "
            f"{purity:.3f}, without selection {clean:.3f})"
        )
    if recall < 0.8:
        reasons.append(f"{1 - recall:.0%} of the right labels are dropped")
    reasons += _lost_classes(result, kind, scheme)
    works = f"selection itself works (purity {purity:.3f}, recall {recall:.3f})"
    if closed and recall < 1:
        works += (
            f", but the {1 - recall:.0%} of the right labels that it drops cost more "
            "than the wrong ones would"
        )
    return reasons or [works]


def _lost_classes(
    result: SweepResult, kind: str, scheme: str, least: float = 0.1
) -> list[str]:
    """Classes whose recall is lower than without selection by more than `least`."""
    counts = result.confusion if kind == "accuracy" else result.classifier_confusion
    index = [result.schemes.index(name) for name in (scheme, LOWER_BASELINE)]
    of_both = counts[index, 0].mean(axis=1)  # [2, K, K]
    support = of_both.sum(axis=-1)
    correct = np.diagonal(of_both, axis1=-2, axis2=-1)
    recall = np.divide(correct, support, out=np.zeros_like(correct), where=support > 0)
    loss = recall[1] - recall[0]
    worst = [k for k in np.argsort(-loss)[:3] if loss[k] > least]
    if not worst:
        return []
    classes = ", ".join(
        f"{result.class_names[k]} ({support[0, k]:.0f} test rows, "
        f"{recall[1, k]:.2f} to {recall[0, k]:.2f})"
        for k in worst
    )
    return [f"it loses recall of {classes}"]
