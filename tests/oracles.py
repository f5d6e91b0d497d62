"""What rad_jax must compute, as plain loops over rows, written from SPEC alone.

Nothing here imports rad_jax or JAX, and nothing is vectorised: each function reads as
the sentence of SPEC it stands for. Arithmetic is in double precision; where single
precision may order two nearly equal numbers either way, or where ties are broken at
random, the oracle returns every outcome that is allowed rather than one.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

UNLABELLED = -1
CLIP = 1e-6
SCORES = ("margin", "cross_entropy", "entropy", "least_confidence", "cent")
SOURCES = ("label_model", "classifier", "mean")


class Decision(NamedTuple):
    """What a scheme may decide on a batch.

    A set of queries is admissible if it has `num_queries` rows, holds every row of
    `must_query` and no row outside `may_query`.
    """

    keep: list[bool]
    num_queries: int
    must_query: list[bool]
    may_query: list[bool]


def argmax(probs: Sequence[float]) -> int:
    """Ties go to the lowest class (SPEC 2)."""
    best = 0
    for k in range(len(probs)):
        if probs[k] > probs[best]:
            best = k
    return best


# --- random inputs with many ties --------------------------------------------------


def random_probs(rng: np.random.Generator, n: int, k: int) -> np.ndarray:
    """``[n, k]`` float32 rows from a coarse grid (or, now and then, from none)."""
    kind = rng.choice(["knn", "dyadic", "tenths", "one_hot", "uniform", "mixed", "any"])
    if kind == "any":
        return rng.dirichlet(np.ones(k), n).astype(np.float32)
    if kind == "mixed":
        votes = rng.multinomial(rng.choice([1, 2, 4, 5], n), np.ones(k) / k)
    elif kind == "uniform":
        votes = np.ones((n, k), int)
    else:
        number = {"knn": 5, "dyadic": 8, "tenths": 10, "one_hot": 1}[kind]
        votes = rng.multinomial(number, np.ones(k) / k, n)
    return (votes / votes.sum(1, keepdims=True)).astype(np.float32)


def random_evidence(rng: np.random.Generator, n: int, k: int) -> dict[str, np.ndarray]:
    """Fields of an `Evidence`: unlabelled and padding rows, agreement and doubt."""
    label_probs, class_probs = random_probs(rng, n, k), random_probs(rng, n, k)
    if rng.random() < 0.2:  # slim: one model
        class_probs = label_probs
    label = rng.integers(0, k, n)
    for i in range(n):
        source = rng.random()
        if source < 0.2:
            label[i] = argmax(label_probs[i])
        elif source < 0.4:
            label[i] = argmax(class_probs[i])
        elif source < 0.55:
            label[i] = UNLABELLED
    true_label = np.where(rng.random(n) < 0.5, label, rng.integers(0, k, n))
    return {
        "label_probs": label_probs,
        "class_probs": class_probs,
        "label": label.astype(np.int16),
        "valid": rng.random(n) < rng.choice([0.5, 0.8, 1.0]),
        "true_label": true_label.astype(np.int16),
    }


# --- uncertainty scores (SPEC 3) ---------------------------------------------------


def _clipped(probs) -> list[float]:
    return [max(float(p), CLIP) for p in probs]


def _margin(probs: list[float], label: int) -> float:
    first, second = sorted(probs, reverse=True)[:2]
    return 1.0 - (first - second)


def _least_confidence(probs: list[float], label: int) -> float:
    return 1.0 - max(probs)


def _entropy(probs: list[float], label: int) -> float:
    total = 0.0
    for p in probs:
        total -= p * math.log(p)
    return total


def _cross_entropy(probs: list[float], label: int) -> float:
    # SPEC leaves rows without a label open; the library's documented choice is the
    # expectation of -log p(y) under p.
    if label == UNLABELLED:
        return _entropy(probs, label)
    return -math.log(probs[label])


def _cent(probs: list[float], label: int) -> float:
    return _cross_entropy(probs, label) + _entropy(probs, label)


_SCORES: dict[str, Callable[[list[float], int], float]] = {
    "margin": _margin,
    "least_confidence": _least_confidence,
    "entropy": _entropy,
    "cross_entropy": _cross_entropy,
    "cent": _cent,
}


def uncertainty(name: str, probs, labels) -> list[float]:
    """One score per row."""
    return [
        _SCORES[name](_clipped(row), int(label))
        for row, label in zip(probs, labels, strict=True)
    ]


# --- selection (SPEC 3) ------------------------------------------------------------


def _nobody(n: int) -> list[bool]:
    return [False] * n


def _no_queries(keep: list[bool]) -> Decision:
    n = len(keep)
    return Decision(keep, 0, _nobody(n), _nobody(n))


def _agree(probs, label: int) -> bool:
    return label != UNLABELLED and argmax(probs) == label


def no_selection(label_probs, class_probs, label, valid, true_label) -> Decision:
    keep = []
    for i in range(len(label)):
        # Rows without a label are never trained on (SPEC 2).
        keep.append(bool(valid[i]) and int(label[i]) != UNLABELLED)
    return _no_queries(keep)


def oracle_selection(label_probs, class_probs, label, valid, true_label) -> Decision:
    keep = []
    for i in range(len(label)):
        y = int(label[i])
        keep.append(bool(valid[i]) and y != UNLABELLED and y == int(true_label[i]))
    return _no_queries(keep)


def basic(label_probs, class_probs, label, valid, true_label) -> Decision:
    keep = []
    for i in range(len(label)):
        keep.append(bool(valid[i]) and _agree(label_probs[i], int(label[i])))
    return _no_queries(keep)


def _votes_and_doubts(label_probs, class_probs, label, valid):
    keep, doubt = [], []
    for i in range(len(label)):
        y = int(label[i])
        if not valid[i]:
            keep.append(False)
            doubt.append(False)
        elif _agree(label_probs[i], y) or _agree(class_probs[i], y):
            keep.append(True)
            doubt.append(False)
        else:
            keep.append(False)
            doubt.append(True)
    return keep, doubt


def voting(label_probs, class_probs, label, valid, true_label) -> Decision:
    keep, _ = _votes_and_doubts(label_probs, class_probs, label, valid)
    return _no_queries(keep)


def active(label_probs, class_probs, label, valid, true_label) -> Decision:
    keep, doubt = _votes_and_doubts(label_probs, class_probs, label, valid)
    return Decision(keep, sum(doubt), doubt, doubt)


def most_uncertain(
    mask, score, budget: int, *, atol: float = 0.0
) -> tuple[int, list[bool], list[bool]]:
    """Number of rows to choose, rows that must and rows that may be chosen.

    Scores that differ by less than `atol` count as tied.
    """
    n = len(mask)
    candidates = [i for i in range(n) if mask[i]]
    count = min(max(budget, 0), len(candidates))
    if count == 0:
        return 0, _nobody(n), _nobody(n)
    must, may = _nobody(n), _nobody(n)
    for i in candidates:
        # How many candidates may outrank row i, and how many surely do.
        above_surely = sum(score[j] > score[i] + atol for j in candidates)
        above_maybe = sum(score[j] >= score[i] - atol for j in candidates if j != i)
        must[i] = above_maybe < count
        may[i] = above_surely < count
    assert sum(must) <= count <= sum(may)
    return count, must, may


def active_limited(
    label_probs,
    class_probs,
    label,
    valid,
    true_label,
    *,
    budget: int,
    score: str = "margin",
    source: str = "mean",
    atol: float = 1e-5,
) -> Decision:
    keep, doubt = _votes_and_doubts(label_probs, class_probs, label, valid)
    probs = []
    for i in range(len(label)):
        from_l = [float(p) for p in label_probs[i]]
        from_c = [float(p) for p in class_probs[i]]
        if source == "label_model":
            probs.append(from_l)
        elif source == "classifier":
            probs.append(from_c)
        else:
            probs.append([(a + b) / 2 for a, b in zip(from_l, from_c, strict=True)])
    scores = uncertainty(score, probs, label)
    count, must, may = most_uncertain(doubt, scores, budget, atol=atol)
    return Decision(keep, count, must, may)


def check_selection(selection, decision: Decision, label) -> None:
    """Asserts that what the library decided is among what SPEC allows."""
    keep = np.asarray(selection.keep)
    query = np.asarray(selection.query)
    train_on = np.asarray(selection.label)
    assert keep.dtype == bool
    assert query.dtype == bool
    assert keep.shape == query.shape == train_on.shape == np.shape(label)
    for i in range(len(decision.keep)):
        assert keep[i] == decision.keep[i], f"row {i}: keep"
        assert not (decision.must_query[i] and not query[i]), f"row {i}: not queried"
        assert decision.may_query[i] or not query[i], f"row {i}: queried"
        if keep[i]:
            assert train_on[i] == label[i], f"row {i}: label"
    assert query.sum() == decision.num_queries


def purity_of_basic(noise_rate: float, accuracy: float, num_classes: int) -> float:
    """SPEC 3, 'Check, from arithmetic'."""
    right = (1 - noise_rate) * accuracy
    wrong = noise_rate * (1 - accuracy) / (num_classes - 1)
    return right / (right + wrong)


# --- prediction (SPEC 4) -----------------------------------------------------------


def algorithm_1(label_probs, class_probs, label_alpha: float, class_alpha: float):
    """The class of each row, and whether C decides a disagreement."""
    classes, from_c = [], []
    for i in range(len(label_probs)):
        of_l, of_c = argmax(label_probs[i]), argmax(class_probs[i])
        l_weight = float(label_alpha) * max(float(p) for p in label_probs[i])
        c_weight = float(class_alpha) * max(float(p) for p in class_probs[i])
        from_c.append(c_weight > l_weight)
        if of_l == of_c:
            classes.append(of_l)
        elif c_weight > l_weight:
            classes.append(of_c)
        else:
            classes.append(of_l)
    return classes, from_c


def tempered(probs, temperature: float) -> np.ndarray:
    """``p^(1/t)``, normalised, row by row, in logarithms."""
    rows = []
    for row in probs:
        logs = [math.log(float(p)) / temperature if p > 0 else -math.inf for p in row]
        top = max(logs)
        powers = [math.exp(v - top) for v in logs]
        rows.append([v / sum(powers) for v in powers])
    return np.array(rows)


def negative_log_likelihood(probs, label, weight, temperature: float) -> float:
    """Weighted sum of ``-log p(label)`` at a temperature; p must be positive."""
    total = 0.0
    for row, y, w in zip(probs, label, weight, strict=True):
        if w > 0:
            logs = [math.log(float(p)) / temperature for p in row]
            top = max(logs)
            log_sum = top + math.log(sum(math.exp(v - top) for v in logs))
            total += float(w) * (log_sum - logs[int(y)])
    return total


# --- noise (SPEC 6) ----------------------------------------------------------------


def symmetric_count(rate: float, num_valid: int) -> int:
    return math.floor(float(rate) * num_valid + 1e-3)


def realised_rate(given, true_label, valid) -> float:
    wrong, total = 0, 0
    for g, t, v in zip(given, true_label, valid, strict=True):
        if v and int(g) != UNLABELLED:
            total += 1
            wrong += int(g) != int(t)
    return wrong / total if total else 0.0
