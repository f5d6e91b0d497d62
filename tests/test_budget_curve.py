"""Accuracy against the budget: what is printed, written and drawn."""

import csv
import dataclasses
import io

import numpy as np
import pytest
from rich.console import Console

from experiments import budget_curve, names
from experiments.settings import Config
from rad_jax import spread, statistics
from rad_jax.statistics import SweepResult

CONFIG = Config(
    schemes=(*names.BASELINES, *names.LIMITED),
    sweep_budget=(0.0, 0.05, 0.1),
    batch_size=50,
)
RATES, SEEDS = (0.2, 0.4), 6


@pytest.fixture(scope="module")
def result():
    schemes = [
        *names.BASELINES,
        *(
            budget_curve.label(CONFIG, scheme, "margin", share)
            for scheme in names.LIMITED
            for share in CONFIG.sweep_budget
        ),
    ]
    shape = (len(schemes), len(RATES), SEEDS, 3)
    rng = np.random.default_rng(0)
    history = {
        name: (0.8 + 0.01 * rng.random(shape)).astype(np.float32)
        for name in statistics.HISTORY_METRICS
    }
    for name in ("accuracy", "classifier_accuracy"):
        history[name][0] -= 0.2
        history[name][1] += 0.1
    for i in range(2, len(schemes)):
        history["queries"][i] = 7 * (i - 2)
    confusion = np.ones((*shape[:3], 2, 2), int)
    return SweepResult(
        schemes=tuple(schemes),
        noise_rates=RATES,
        seeds=tuple(range(SEEDS)),
        class_names=("a", "b"),
        history=history,
        confusion=confusion,
        classifier_confusion=confusion,
        majority_accuracy=0.5,
        compile_seconds=0.0,
        run_seconds=0.0,
        config={},
    )


def test_shares_become_rows():
    assert budget_curve.rows_of(CONFIG) == [(0.0, 0), (0.05, 3), (0.1, 5)]
    dynamic = dataclasses.replace(
        CONFIG, sweep_budget=(0.009, 0.1), dynamic_budget=True
    )
    with pytest.raises(
        ValueError, match=r"--sweep_budget=0\.009 is no row of a .* 50:"
    ):
        budget_curve.rows_of(dynamic)


def test_the_file_holds_the_figures_of_each_budget(result, tmp_path):
    curve = budget_curve.points(CONFIG, result)
    budget_curve.write_csv(curve, tmp_path / "budget.csv")
    with open(tmp_path / "budget.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(r["scheme"], r["noise_rate"], r["budget"], r["rows"]) for r in rows] == [
        (scheme, f"{rate:g}", budget, count)
        for scheme in names.LIMITED
        for rate in RATES
        for budget, count in (("0", "0"), ("0.05", "3"), ("0.1", "5"))
    ]
    for row in rows:
        s = result.schemes.index(
            budget_curve.label(CONFIG, row["scheme"], "margin", float(row["budget"]))
        )
        r = RATES.index(float(row["noise_rate"]))
        assert float(row["queries"]) == 7 * (s - 2)
        last = {name: result.history[name][:, r, :, -1] for name in ("accuracy",)}
        no_sel, opt_sel, mine = (last["accuracy"][i] for i in (0, 1, s))
        mean, _, half = spread.mean_std_ci95(mine)
        assert float(row["final_accuracy"]) == pytest.approx(mean)
        assert float(row["final_accuracy_ci95"]) == pytest.approx(half)
        gap, _, half = spread.gap_closed(mine, no_sel, opt_sel)
        assert float(row["gap_closed"]) == pytest.approx(gap)
        assert float(row["gap_closed_ci95"]) == pytest.approx(half)


def test_the_table_shows_them(result):
    out = io.StringIO()
    budget_curve.show(budget_curve.points(CONFIG, result), Console(file=out, width=100))
    lines = [line.split() for line in out.getvalue().splitlines()]
    shown = [line for line in lines if line[1:2] == ["slim_limited"]]
    assert [line[2:6] for line in shown] == 2 * [
        ["margin", "0", "(0)", "21"],
        ["margin", "0.05", "(3)", "28"],
        ["margin", "0.1", "(5)", "35"],
    ]
    mean, _, half = spread.mean_std_ci95(result.history["accuracy"][5, 0, :, -1])
    assert f"{mean:.3f}±{half:.3f}" in shown[0]


def test_the_curve_is_drawn_through_its_points(result, tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    curve = budget_curve.points(CONFIG, result)
    drawn = []
    save = Figure.savefig

    def keep(self, *args, **options):
        drawn.append(self)
        save(self, *args, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    budget_curve.plot(curve, result, tmp_path / "budget.png")
    assert (tmp_path / "budget.png").read_bytes().startswith(b"\x89PNG")
    panels = drawn[0].axes
    assert len(panels) == 4
    for i, axes in enumerate(panels):
        metric = ("accuracy", "classifier_accuracy")[i // 2]
        lines = [x for x in axes.get_lines() if len(x.get_xdata()) == 3]
        for s, scheme in enumerate(names.LIMITED):
            first = 2 + 3 * s
            cells = result.history[metric][first : first + 3, i % 2, :, -1]
            expected = cells.mean(axis=1)
            assert any(
                np.allclose(line.get_ydata(), expected)
                and list(line.get_xdata()) == [7 * (first - 2 + j) for j in range(3)]
                for line in lines
            ), scheme


def test_scores_are_compared_run_by_run(result, tmp_path):
    config = dataclasses.replace(
        CONFIG, sweep_budget=(0.1,), sweep_uncertainty=("margin", "entropy", "cent")
    )
    several = [
        label
        for scheme in names.LIMITED
        for label, _, _ in budget_curve.variants(config, scheme)
    ]
    assert several[1] == "active_limited[entropy]@0.1"
    assert [v[1:] for v in budget_curve.variants(config, "slim_limited")] == [
        ("margin", 5),
        ("entropy", 5),
        ("cent", 5),
    ]
    renamed = dataclasses.replace(result, schemes=(*names.BASELINES, *several))
    curve = budget_curve.points(config, renamed)
    for point in curve:
        name = f"{point['scheme']}[{point['uncertainty']}]@0.1"
        r = RATES.index(point["noise_rate"])
        cell = result.history["accuracy"][renamed.schemes.index(name), r, :, -1]
        assert point["final_accuracy"][0] == pytest.approx(cell.mean())
    assert len(curve) == len(several) * len(RATES)
    budget_curve.plot(curve, renamed, tmp_path / "budget.png")
    assert (tmp_path / "budget.png").read_bytes().startswith(b"\x89PNG")
