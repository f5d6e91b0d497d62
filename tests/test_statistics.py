"""Figures of a sweep: hand-computed values, invariances, coverage of intervals."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from rad_jax import spread, statistics
from rad_jax.statistics import SweepResult

NAN = math.nan


def make_result(
    schemes=("no_selection", "oracle_selection", "basic"),
    noise_rates=(0.2, 0.4),
    seeds=(0, 1, 2),
    num_arrivals=12,
    **history,
):
    """Every metric counts up from 0 by .01 an arrival, unless given."""
    shape = (len(schemes), len(noise_rates), len(seeds), num_arrivals + 1)
    ramp = np.broadcast_to(0.01 * np.arange(num_arrivals + 1), shape)
    metrics = {name: ramp.copy() for name in statistics.HISTORY_METRICS}
    metrics |= {name: np.broadcast_to(x, shape).copy() for name, x in history.items()}
    confusion = np.broadcast_to([[8, 2], [0, 0]], (*shape[:3], 2, 2)).copy()
    return SweepResult(
        schemes=schemes,
        noise_rates=noise_rates,
        seeds=seeds,
        class_names=("finish", "kill"),
        history=metrics,
        confusion=confusion,
        classifier_confusion=confusion,
        majority_accuracy=0.7,
        compile_seconds=1.0,
        run_seconds=2.0,
        config={},
    )


def by_key(rows):
    return {(row.scheme, row.noise_rate, row.metric): row for row in rows}


class TestSweepResult:
    def test_counts_arrivals_without_the_clean_batch(self):
        assert make_result(num_arrivals=5).num_arrivals == 5

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"seeds": (0, 1)}, r"history\['accuracy'\] has shape \(3, 2, 3, 13\)"),
            ({"seeds": (0, 1, 1)}, "seeds=.* twice"),
            ({"schemes": ()}, "schemes is empty"),
            ({"class_names": ("a", "b", "c")}, "confusion has shape"),
            ({"confusion": np.zeros((3, 2, 3, 2, 2))}, "dtype float64, expected int"),
            ({"history": {}}, "history lacks"),
            ({"majority_accuracy": 70.0}, "majority_accuracy=70.0"),
        ],
    )
    def test_bad_field_is_named(self, change, message):
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(make_result(), **change)

    def test_no_arrival_is_an_error(self):
        with pytest.raises(ValueError, match="no arrival"):
            make_result(num_arrivals=0)

    def test_integer_history_is_an_error(self):
        result = make_result()
        history = result.history | {"kept": np.zeros((3, 2, 3, 13), int)}
        with pytest.raises(ValueError, match=r"history\['kept'\] is of dtype int64"):
            dataclasses.replace(result, history=history)


class TestMeanStdCi95:
    def test_by_hand(self):
        # Deviations -1, 0, 1: variance 2 / 2; t(.975, 2) = 4.302653.
        mean, std, ci95 = spread.mean_std_ci95([1.0, 2.0, 3.0])
        assert (mean, std) == (2, 1)
        assert ci95 == pytest.approx(4.302652730 / math.sqrt(3), rel=1e-8)

    def test_equals_scipy(self):
        x = np.random.default_rng(0).normal(size=9)
        mean, std, ci95 = spread.mean_std_ci95(x)
        low, high = stats.t.interval(0.95, df=8, loc=np.mean(x), scale=stats.sem(x))
        np.testing.assert_allclose([mean - ci95, mean + ci95], [low, high])
        assert std == pytest.approx(x.std(ddof=1))

    def test_seeds_with_nan_are_left_out(self):
        with_nan = spread.mean_std_ci95([1.0, NAN, 4.0, NAN, 5.0])
        np.testing.assert_allclose(with_nan, spread.mean_std_ci95([1.0, 4.0, 5.0]))

    def test_one_value_has_no_spread(self):
        np.testing.assert_equal(spread.mean_std_ci95([3.0]), (3.0, NAN, NAN))
        np.testing.assert_equal(spread.mean_std_ci95([3.0, NAN]), (3, NAN, NAN))

    def test_no_value(self):
        np.testing.assert_equal(spread.mean_std_ci95([NAN, NAN]), (NAN,) * 3)
        np.testing.assert_equal(spread.mean_std_ci95([]), (NAN,) * 3)

    def test_axis(self):
        x = np.random.default_rng(1).normal(size=(4, 5, 3))
        x[0, :, 1] = NAN
        whole = spread.mean_std_ci95(x, axis=1)
        for i, j in np.ndindex(4, 3):
            single = spread.mean_std_ci95(x[i, :, j])
            np.testing.assert_allclose([part[i, j] for part in whole], single)


accuracies = st.integers(2, 12).flatmap(
    lambda n: st.lists(
        st.tuples(st.floats(0, 1), st.floats(0, 0.4), st.floats(0.5, 1)),
        min_size=n,
        max_size=n,
    )
)


class TestGapClosed:
    def test_ratio_of_means_by_hand(self):
        estimate = spread.gap_closed([0.8, 0.9], [0.6, 0.8], [1.0, 0.9])
        assert estimate.mean == pytest.approx((0.85 - 0.7) / (0.95 - 0.7))

    def test_bootstrap_by_hand(self):
        # Four seeds with ratios 0, 0, 1, 1 at the same gap: a resample's ratio is the
        # mean of four fair coins, of standard deviation sqrt(1/4/4). The interval at
        # these levels holds all of it: 0 to 1.
        estimate = spread.gap_closed(
            [0.5, 0.9] * 2, [0.5] * 4, [0.9] * 4, num_bootstrap=20_000
        )
        assert estimate.mean == pytest.approx(0.5)
        assert estimate.std == pytest.approx(1 / 4, rel=0.02)
        assert estimate.ci95 == pytest.approx(0.5)

    def test_three_seeds_give_a_ratio_and_no_interval(self):
        estimate = spread.gap_closed([0.5, 0.9, 0.7], [0.5] * 3, [0.9] * 3)
        assert estimate.mean == pytest.approx(0.5)
        assert np.isnan([estimate.std, estimate.ci95]).all()

    @given(accuracies)
    @settings(max_examples=50, deadline=None)
    def test_baselines_are_zero_and_one(self, rows):
        _, no_sel, opt_sel = np.transpose(rows)
        for values, expected in ((no_sel, 0), (opt_sel, 1)):
            estimate = spread.gap_closed(values, no_sel, opt_sel, num_bootstrap=100)
            blank = 0 if len(rows) >= 4 else NAN
            np.testing.assert_allclose(estimate, (expected, blank, blank), atol=1e-12)

    @given(accuracies, st.floats(0.1, 10), st.floats(-3, 3))
    @settings(max_examples=50, deadline=None)
    def test_invariant_to_affine_maps(self, rows, scale, shift):
        arrays = np.transpose(rows)
        plain = spread.gap_closed(*arrays, num_bootstrap=100)
        mapped = spread.gap_closed(
            *(scale * arrays + shift), num_bootstrap=100, minimum_gap=0.01 * scale
        )
        np.testing.assert_allclose(mapped, plain, rtol=1e-6, atol=1e-9)

    @given(accuracies, st.randoms())
    @settings(max_examples=30, deadline=None)
    def test_ratio_does_not_depend_on_the_order_of_seeds(self, rows, random):
        shuffled = random.sample(rows, len(rows))
        one = spread.gap_closed(*np.transpose(rows), num_bootstrap=10)
        two = spread.gap_closed(*np.transpose(shuffled), num_bootstrap=10)
        np.testing.assert_allclose(one.mean, two.mean, atol=1e-12)

    def test_blank_below_the_minimum_gap(self):
        no_sel = np.full(5, 0.9)
        for gap in (0.009, 0.0, -0.2):
            estimate = spread.gap_closed(no_sel, no_sel, no_sel + gap)
            np.testing.assert_equal(estimate, (NAN,) * 3)
        assert spread.gap_closed(no_sel, no_sel, no_sel + 0.011).mean == 0

    def test_one_seed_has_a_ratio_and_no_spread(self):
        estimate = spread.gap_closed([0.8], [0.7], [0.9])
        np.testing.assert_allclose(estimate, (0.5, NAN, NAN))

    def test_seeds_with_nan_are_left_out(self):
        values, no_sel, opt_sel = [0.8, 0.1, 0.85], [0.7, NAN, 0.6], [0.9, 0.9, 0.95]
        both = [x[::2] for x in (values, no_sel, opt_sel)]
        np.testing.assert_equal(
            spread.gap_closed(values, no_sel, opt_sel), spread.gap_closed(*both)
        )
        nothing = spread.gap_closed([NAN], [0.1], [0.9])
        np.testing.assert_equal(nothing, (NAN,) * 3)

    def test_a_gap_that_may_be_zero_has_no_interval(self):
        # Gaps of -.4, 0, 0, .6: mean .05, many resamples near or below 0.
        opt_sel = np.array([0.1, 0.5, 0.5, 1.1])
        estimate = spread.gap_closed(np.full(4, 0.52), np.full(4, 0.5), opt_sel)
        np.testing.assert_allclose(estimate, (0.4, NAN, NAN))

    def test_a_rare_resample_without_gap_only_widens(self):
        # One seed of 8 carries no gap: a resample of it alone has probability 8^-8.
        random = np.random.default_rng(0)
        gap = np.array([0.0, *random.uniform(0.08, 0.12, 7)])
        values = 0.5 + 0.7 * gap + random.normal(0, 0.005, 8)
        estimate = spread.gap_closed(values, np.full(8, 0.5), 0.5 + gap)
        assert 0 < estimate.ci95 < 0.3

    def test_pure_function_of_its_arguments(self):
        levels = np.array([[0.6], [0.5], [0.8]])
        arrays = levels + np.random.default_rng(3).uniform(0, 0.1, (3, 6))
        one, two = (spread.gap_closed(*arrays) for _ in range(2))
        np.testing.assert_equal(one, two)
        other = spread.gap_closed(*arrays, seed=1)
        assert other.mean == one.mean
        assert other.std == pytest.approx(one.std, rel=0.1)

    @pytest.mark.parametrize("n", [4, 8, 30])
    def test_coverage(self, n):
        """The interval holds the true ratio in about 95% of repetitions."""
        random = np.random.default_rng(n)
        repeats, truth, hits = 400, 0.6, 0
        for _ in range(repeats):
            no_sel = random.normal(0.80, 0.010, n)
            opt_sel = no_sel + random.normal(0.10, 0.010, n)
            values = no_sel + random.normal(0.06, 0.008, n)
            ratio, _, half = spread.gap_closed(
                values, no_sel, opt_sel, num_bootstrap=500
            )
            hits += abs(ratio - truth) <= half
        # 4 standard errors of a share are .044. With 4 seeds no resampling gets there.
        low, high = (0.82, 0.94) if n == 4 else (0.90, 0.99)
        assert low < hits / repeats < high

    def test_spread_agrees_with_repetition(self):
        random = np.random.default_rng(5)

        def draw():
            no_sel = random.normal(0.80, 0.010, 20)
            opt_sel = no_sel + random.normal(0.10, 0.010, 20)
            values = no_sel + random.normal(0.06, 0.008, 20)
            return spread.gap_closed(values, no_sel, opt_sel, num_bootstrap=500)

        means, stds, _ = np.transpose([draw() for _ in range(300)])
        assert np.mean(stds) == pytest.approx(np.std(means), rel=0.15)

    def test_bad_arguments(self):
        with pytest.raises(ValueError, match=r"\(2,\), \(2,\), \(3,\)"):
            spread.gap_closed([0, 0], [0, 0], [0, 0, 0])
        with pytest.raises(ValueError, match="minimum_gap=0"):
            spread.gap_closed([0], [0], [0], minimum_gap=0)


class TestSummarize:
    def test_rows_and_their_order(self):
        rows = statistics.summarize(make_result())
        metrics = [
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
        ]
        assert [(row.scheme, row.noise_rate, row.metric) for row in rows] == [
            (scheme, rate, metric)
            for scheme in ("no_selection", "oracle_selection", "basic")
            for rate in (0.2, 0.4)
            for metric in metrics
        ]

    def test_which_arrivals_count(self):
        rows = by_key(statistics.summarize(make_result()))  # a ramp 0, .01, … .12
        mean = {metric: rows["basic", 0.4, metric].mean for _, _, metric in rows}
        assert mean["final_accuracy"] == pytest.approx(0.12)
        assert mean["purity"] == pytest.approx(0.12)
        assert mean["last10_accuracy"] == pytest.approx(np.mean(np.arange(3, 13)) / 100)
        over_all = pytest.approx(np.mean(np.arange(1, 13)) / 100)
        assert mean["realised_noise"] == over_all
        assert mean["prequential_accuracy"] == over_all
        assert mean["classifier_prequential_accuracy"] == over_all

    def test_fewer_than_ten_arrivals_leave_the_clean_batch_out(self):
        rows = by_key(statistics.summarize(make_result(num_arrivals=3)))
        assert rows["basic", 0.2, "last10_accuracy"].mean == pytest.approx(0.02)

    def test_each_metric_is_its_own(self):
        names = statistics.HISTORY_METRICS
        history = {name: float(i) for i, name in enumerate(names)}
        rows = by_key(statistics.summarize(make_result(**history)))
        for name in names[1:]:
            assert rows["basic", 0.2, name].mean == history[name]
        assert rows["basic", 0.2, "final_accuracy"].mean == history["accuracy"]

    def test_gaps_by_hand(self):
        def cells(no_sel, opt_sel, basic):
            values = np.array([no_sel, opt_sel, basic]).reshape(3, 1, 1, 1)
            return values + np.array([0, 0.01, -0.01]).reshape(3, 1)

        result = make_result(
            accuracy=cells(0.5, 0.9, 0.8), classifier_accuracy=cells(0.4, 0.8, 0.5)
        )
        rows = by_key(statistics.summarize(result))
        # Seeds differ by a shift common to all schemes: pairing cancels it.
        for scheme, gap, own in (
            ("no_selection", 0, 0),
            ("oracle_selection", 1, 1),
            ("basic", 0.75, 0.25),
        ):
            figures = [*rows[scheme, 0.4, "gap_closed"][3:]]
            np.testing.assert_allclose(figures, [gap, NAN, NAN], atol=1e-9)
            figures = [*rows[scheme, 0.4, "classifier_gap_closed"][3:]]
            np.testing.assert_allclose(figures, [own, NAN, NAN], atol=1e-9)

    def test_gaps_need_both_baselines(self):
        result = make_result(schemes=("no_selection", "basic"))
        rows = by_key(statistics.summarize(result))
        assert math.isnan(rows["basic", 0.2, "gap_closed"].mean)

    def test_undefined_everywhere_stays_blank(self):
        rows = by_key(statistics.summarize(make_result(purity=NAN)))
        np.testing.assert_equal(rows["basic", 0.2, "purity"][3:], (NAN,) * 3)

    def test_majority_has_no_spread(self):
        rows = by_key(statistics.summarize(make_result()))
        figures = rows["basic", 0.2, "majority_accuracy"][3:]
        np.testing.assert_equal(figures, (0.7, NAN, NAN))


class TestPerClass:
    def test_by_hand(self):
        result = make_result(noise_rates=(0.4,), seeds=(0, 1))
        # Class 1 is predicted by the second seed only.
        result.confusion[2, 0] = [[[6, 0], [4, 0]], [[3, 3], [1, 3]]]
        rows = {
            (row.scheme, row.prediction, row.class_name): row
            for row in statistics.per_class(result)
        }
        assert len(rows) == 3 * 2 * 2
        first = rows["basic", "user", "finish"]
        np.testing.assert_allclose(first[4:6], [6, np.mean([6 / 10, 3 / 4])])
        np.testing.assert_allclose(first[7:], [np.mean([1, 0.5]), math.sqrt(1 / 8)])
        second = rows["basic", "user", "kill"]
        np.testing.assert_allclose(second[4:7], [4, 0.5, NAN])
        assert second.recall_mean == np.mean([0, 3 / 4])

    def test_class_without_test_rows(self):
        rows = statistics.per_class(make_result())
        absent = [row for row in rows if row.class_name == "kill"]
        assert {row.support for row in absent} == {0}
        assert all(math.isnan(row.recall_mean) for row in absent)
        assert {row.precision_mean for row in absent} == {0}

    def test_predictions_are_not_mixed_up(self):
        result = make_result()
        result = dataclasses.replace(
            result, classifier_confusion=result.confusion[..., ::-1]
        )
        recall = {
            row.prediction: row.recall_mean
            for row in statistics.per_class(result)
            if row.class_name == "finish"
        }
        assert recall == pytest.approx({"user": 0.8, "classifier": 0.2})
