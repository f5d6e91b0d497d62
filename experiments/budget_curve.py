"""Accuracy against what an expert is asked: the limited schemes, budget by budget.

With several scores of uncertainty, once for each of them.
"""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments import names, study
from rad_jax import statistics
from rad_jax.files import atomic_path, require
from rad_jax.statistics import SweepResult

if TYPE_CHECKING:
    from rich.console import Console

    from experiments.settings import Config

#: Metrics of `rad_jax.statistics` that the curve is made of, by their headings.
METRICS = {
    "queries": "queries",
    "accuracy": "final_accuracy",
    "C alone": "classifier_accuracy",
    "gap closed": "gap_closed",
    "gap (C)": "classifier_gap_closed",
}
_COLORS = {"active_limited": "#E69F00", "slim_limited": "#CC79A7"}  # as elsewhere
_SCORE_COLORS = dict(
    zip(
        names.SCORES,
        ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"),
        strict=True,
    )
)
_LINES = {"active_limited": "-", "slim_limited": ":"}


def scores_of(config: "Config") -> tuple[str, ...]:
    """The scores of uncertainty that are compared."""
    return config.sweep_uncertainty or (config.uncertainty,)


def label(config: "Config", scheme: str, score: str, share: float) -> str:
    """What reports call a limited scheme with that score and share of a batch."""
    several = f"[{score}]" if len(scores_of(config)) > 1 else ""
    return f"{scheme}{several}@{share:g}"


def variants(config: "Config", scheme: str) -> list[tuple[str | None, str, int]]:
    """Label, score and rows a batch of each run of a limited scheme."""
    return [
        (label(config, scheme, score, share), score, rows)
        for score in scores_of(config)
        for share, rows in rows_of(config)
    ]


def rows_of(config: "Config") -> list[tuple[float, int]]:
    """Each share of `sweep_budget` and the rows a batch: halves are rounded up."""
    size = config.batch_size or 0
    return [(share, math.floor(share * size + 0.5)) for share in config.sweep_budget]


def points(config: "Config", result: SweepResult) -> list[dict[str, Any]]:
    """The curve: one entry for each limited scheme, noise rate and budget.

    Args:
      config: as `experiments.stream.run` completes it.
      result: of its sweep.

    Returns:
      Dicts of scheme, uncertainty (the score), noise_rate, budget (share of a batch),
      rows (a batch), and each of the values of `METRICS` as (mean, half of the 95%
      interval).
    """
    cells = {
        (row.scheme, row.noise_rate, row.metric): (row.mean, row.ci95)
        for row in statistics.summarize(result)
    }
    return [
        {
            "scheme": scheme,
            "uncertainty": score,
            "noise_rate": rate,
            "budget": share,
            "rows": rows,
        }
        | {
            m: cells[label(config, scheme, score, share), rate, m]
            for m in METRICS.values()
        }
        for scheme in config.schemes
        if scheme in names.LIMITED
        for score in scores_of(config)
        for rate in result.noise_rates
        for share, rows in rows_of(config)
    ]


def write_csv(curve: list[dict[str, Any]], path: Path) -> None:
    """Writes one line a point; columns with _ci95 are halves of 95% intervals."""
    facts = ("scheme", "uncertainty", "noise_rate", "budget", "rows")
    header = [*facts]
    for metric in METRICS.values():
        header += [metric, f"{metric}_ci95"]
    study.write_csv(
        path,
        header,
        [
            [p[name] for name in facts] + [x for m in METRICS.values() for x in p[m]]
            for p in curve
        ],
    )


def plot(curve: list[dict[str, Any]], result: SweepResult, path: Path) -> None:
    """Draws the user's accuracy, and C's alone, against the rows asked about.

    Args:
      curve: of `points`.
      result: for the baselines, which are drawn dashed.
      path: of the PNG.
    """
    figure_module = require("matplotlib.figure")
    require("matplotlib.backends.backend_agg")
    rates = result.noise_rates
    figure = figure_module.Figure(
        figsize=(3.4 * len(rates) + 1.6, 5.4), layout="constrained"
    )
    panels = figure.subplots(2, len(rates), squeeze=False, sharey="row", sharex="col")
    titles = {
        "final_accuracy": "accuracy",
        "classifier_accuracy": "accuracy of C alone",
    }
    baselines = {
        (row.scheme, row.noise_rate, row.metric): row.mean
        for row in statistics.summarize(result)
        if row.scheme in names.BASELINES
    }
    kinds = list(dict.fromkeys((p["scheme"], p["uncertainty"]) for p in curve))
    several = len({score for _, score in kinds}) > 1
    for (i, (metric, title)), (r, rate) in (
        (a, b) for a in enumerate(titles.items()) for b in enumerate(rates)
    ):
        axes = panels[i, r]
        for scheme, score in kinds:
            mine = [
                p
                for p in curve
                if (p["scheme"], p["uncertainty"], p["noise_rate"])
                == (scheme, score, rate)
            ]
            mean, half = np.array([p[metric] for p in mine]).T
            axes.errorbar(
                [p["queries"][0] for p in mine],
                mean,
                yerr=np.nan_to_num(half),
                marker="o",
                markersize=4,
                linewidth=1.4,
                linestyle=_LINES[scheme] if several else "-",
                capsize=2,
                color=_SCORE_COLORS[score] if several else _COLORS[scheme],
                label=(f"{scheme}, {score}" if several else scheme).replace("_", " "),
            )
        for name, color in zip(names.BASELINES, ("0.5", "black"), strict=True):
            axes.axhline(
                baselines[name, rate, metric],
                color=color,
                linestyle="--",
                linewidth=1.2,
                label=name.replace("_", " "),
            )
        axes.grid(color="0.9", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
        if i == 0:
            axes.set_title(f"noise {rate:g}", fontsize=10)
        else:
            axes.set_xlabel("rows asked about", fontsize=9)
        if r == 0:
            axes.set_ylabel(title, fontsize=9)
    figure.legend(
        *panels[0, 0].get_legend_handles_labels(),
        loc="outside right upper",
        title=f"mean and 95% interval\n(noise seeds: {len(result.seeds)})\n",
        title_fontsize=8,
        fontsize=9,
        frameon=False,
        alignment="left",
    )
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=200)


def show(curve: list[dict[str, Any]], console: "Console") -> None:
    """Prints the curve as a table."""
    table = require("rich.table").Table(
        box=require("rich.box").SIMPLE_HEAD, pad_edge=False, collapse_padding=True
    )
    sign = "±" if console.encoding.lower().startswith("utf") else "+-"
    for name in ("noise", "scheme", "chosen by"):
        table.add_column(name, no_wrap=True)
    for name in ("budget", *METRICS):
        table.add_column(name, justify="right", no_wrap=True)
    for point in curve:
        cells = []
        for metric in METRICS.values():
            mean, half = point[metric]
            form = ".0f" if metric == "queries" else ".3f"
            text = "-" if np.isnan(mean) else format(mean, form)
            known = metric != "queries" and not np.isnan(half)
            cells.append(f"{text}{sign}{half:.3f}" if known else text)
        budget = f"{point['budget']:g} ({point['rows']})"
        facts = (f"{point['noise_rate']:g}", point["scheme"], point["uncertainty"])
        table.add_row(*facts, budget, *cells)
    console.print("Against the budget (share of a batch, and rows):", highlight=False)
    wide = console.options.update(max_width=max(console.width, 200))
    segments = require("rich.segment").Segments(console.render(table, wide))
    console.print(segments, crop=False, soft_wrap=True)
