"""Figures of one run at one arrival, against scikit-learn and a loop over rows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from rad_jax import metrics
from rad_jax.types import RowStatus

NUM_ROWS = 40
SEEDS = range(20)

# scikit-learn says so whenever a class is predicted that does not occur.
absent_classes = pytest.mark.filterwarnings("ignore:y_pred contains classes not in")


@functools.partial(jax.jit, static_argnames="num_classes")
def figures(predicted, label, num_classes):
    target = metrics.targets(label, num_classes)
    return (
        metrics.accuracy(predicted, target),
        metrics.balanced_accuracy(predicted, target),
        metrics.confusion(predicted, label, num_classes),
    )


@jax.jit
def selection_figures(given, label, status, true_label, counted):
    return metrics.selection_figures(given, label, status, true_label, counted)


def rows(seed, num_classes, occurring=None):
    """Predicted and true classes; about half of the predictions are right."""
    rng = np.random.default_rng(seed)
    occurring = np.arange(num_classes) if occurring is None else np.array(occurring)
    weight = rng.dirichlet(np.ones(len(occurring)))
    label = rng.choice(occurring, NUM_ROWS, p=weight)
    guess = rng.integers(0, num_classes, NUM_ROWS)
    return np.where(rng.random(NUM_ROWS) < 0.4, label, guess), label


class TestPredictions:
    @absent_classes
    @pytest.mark.parametrize("occurring", [None, [0, 3], [1], [2, 4]])
    def test_equal_scikit_learn(self, occurring):
        for seed in SEEDS:
            predicted, label = rows(seed, 5, occurring)
            accuracy, balanced, confusion = figures(predicted, label, 5)
            np.testing.assert_allclose(
                accuracy, sklearn_metrics.accuracy_score(label, predicted), rtol=1e-6
            )
            np.testing.assert_allclose(
                balanced,
                sklearn_metrics.balanced_accuracy_score(label, predicted),
                rtol=1e-5,
            )
            np.testing.assert_array_equal(
                confusion,
                sklearn_metrics.confusion_matrix(label, predicted, labels=range(5)),
            )

    def test_balanced_accuracy_counts_classes_and_not_rows(self):
        label = jnp.array([0] * 9 + [1])
        majority = jnp.zeros(10, jnp.int32)
        target = metrics.targets(label, 3)
        np.testing.assert_allclose(metrics.accuracy(majority, target), 0.9, rtol=1e-6)
        np.testing.assert_allclose(
            metrics.balanced_accuracy(majority, target), 0.5, rtol=1e-6
        )

    def test_weights_of_a_test_set_sum_to_one(self):
        for seed in SEEDS:
            _, label = rows(seed, 5)
            balance = np.asarray(metrics.targets(jnp.asarray(label), 5).balance)
            np.testing.assert_allclose(balance.sum(), 1.0, rtol=1e-6)
            per_class = [balance[label == k].sum() for k in np.unique(label)]
            np.testing.assert_allclose(per_class, 1 / len(per_class), rtol=1e-6)

    def test_confusion_has_true_classes_in_rows(self):
        counts = metrics.confusion(jnp.array([2, 2, 1]), jnp.array([0, 0, 1]), 3)
        np.testing.assert_array_equal(counts, [[0, 0, 2], [0, 1, 0], [0, 0, 0]])

    def test_confusion_of_many_classes_in_two_byte_labels(self):
        # 300 * 300 does not fit into int16.
        label = jnp.array([299, 298, 0, 299], jnp.int16)
        predicted = jnp.array([299, 0, 298, 0], jnp.int16)
        counts = np.asarray(metrics.confusion(predicted, label, 300))
        expected = np.zeros((300, 300), int)
        for true, guess in zip(label.tolist(), predicted.tolist(), strict=True):
            expected[true, guess] += 1
        np.testing.assert_array_equal(counts, expected)


def recount(given, label, status, true_label, counted):
    """SPEC 3, 'Figures of selection', and the queries, row by row."""
    kept = known = pure = right = right_and_kept = queries = wasted = 0
    for g, y, s, t, c in zip(given, label, status, true_label, counted, strict=True):
        if not c:
            continue
        trained_on = s in (RowStatus.KEPT, RowStatus.VERIFIED)
        asked = s in (RowStatus.PENDING, RowStatus.VERIFIED)
        kept += trained_on
        queries += asked
        if t < 0:
            continue
        known += trained_on
        pure += trained_on and y == t
        right += g == t
        right_and_kept += trained_on and g == t
        wasted += asked and g == t
    return {
        "kept": kept,
        "purity": pure / known if known else np.nan,
        "recall": right_and_kept / right if right else np.nan,
        "queries": queries,
        "wasted_queries": wasted,
    }


class TestSelectionFigures:
    @pytest.mark.parametrize("statuses", [(0, 1, 2, 3), (0, 1), (0,), (0, 2), (3,)])
    def test_equal_a_loop_over_rows(self, statuses):
        for seed in SEEDS:
            rng = np.random.default_rng(seed)
            true_label = rng.integers(-1, 3, NUM_ROWS)
            given = rng.integers(-1, 3, NUM_ROWS)
            given = np.where(rng.random(NUM_ROWS) < 0.4, true_label, given)
            status = rng.choice(statuses, NUM_ROWS)
            answer = np.where(rng.random(NUM_ROWS) < 0.8, true_label, 1)
            label = np.where(status == RowStatus.VERIFIED, answer, given)
            counted = rng.random(NUM_ROWS) < rng.choice([0.1, 0.7, 1.0])
            columns = (given, label, status, true_label, counted)
            got = selection_figures(*columns)
            expected = recount(*columns)
            assert set(got) == set(expected)
            for name, value in expected.items():
                np.testing.assert_allclose(got[name], value, rtol=1e-6, err_msg=name)

    def test_undefined_where_nothing_can_be_counted(self):
        one = jnp.zeros(4, jnp.int32)
        got = selection_figures(one, one, one, one, jnp.zeros(4, bool))
        assert np.isnan(got["purity"])
        assert np.isnan(got["recall"])
        assert got["kept"] == got["queries"] == got["wasted_queries"] == 0

    def test_an_experts_label_counts_for_purity_and_not_for_recall(self):
        given = jnp.array([1, 0, -1])
        label = true_label = jnp.array([0, 0, 2])
        status = jnp.array([RowStatus.VERIFIED, RowStatus.DROPPED, RowStatus.VERIFIED])
        got = selection_figures(given, label, status, true_label, jnp.ones(3, bool))
        assert got["purity"] == 1.0
        assert got["recall"] == 0.0  # the one row whose label was right is dropped
        assert got["queries"] == 2
        assert got["wasted_queries"] == 0

    def test_a_pending_row_is_a_query_that_is_not_kept(self):
        labels = jnp.array([1, 1])
        status = jnp.array([RowStatus.PENDING, RowStatus.KEPT])
        got = selection_figures(labels, labels, status, labels, jnp.ones(2, bool))
        assert got["kept"] == 1
        assert got["queries"] == got["wasted_queries"] == 1
        assert got["recall"] == 0.5


class TestKnownAccuracy:
    @pytest.mark.parametrize("seed", SEEDS)
    def test_counts_only_valid_rows_with_a_true_label(self, seed):
        random = np.random.default_rng(seed)
        predicted, true = (
            random.integers(0, 3, NUM_ROWS),
            random.integers(-1, 3, NUM_ROWS),
        )
        valid = random.random(NUM_ROWS) < 0.7
        right = rows = 0
        for guess, label, counts in zip(predicted, true, valid, strict=True):
            if counts and label != -1:
                rows += 1
                right += guess == label
        got = metrics.known_accuracy(predicted, true, valid)
        assert float(got) == pytest.approx(right / rows)

    def test_is_undefined_without_rows(self):
        predicted, valid = jnp.zeros(3, jnp.int32), jnp.ones(3, bool)
        nothing = jnp.full(3, -1)
        assert np.isnan(metrics.known_accuracy(predicted, nothing, valid))
        assert np.isnan(metrics.known_accuracy(predicted, predicted, ~valid))
