"""Pictures of a sweep. matplotlib is imported when first needed."""

import itertools
import math
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from rad_jax import spread
from rad_jax.files import atomic_path, require
from rad_jax.statistics import LOWER_BASELINE, UPPER_BASELINE, SweepResult

# Okabe and Ito's colours, which colour-blind readers can tell apart. The baselines are
# uncoloured, above the others, and the dashes of the one fall into the gaps of the
# other. Schemes that are not listed take what is left, in their order.
_STYLES: dict[str, dict[str, Any]] = {
    LOWER_BASELINE: {"color": "0.5", "linestyle": (0, (3, 3)), "zorder": 3},
    UPPER_BASELINE: {"color": "black", "linestyle": (3, (3, 3)), "zorder": 3},
    "basic": {"color": "#0072B2", "marker": "o"},
    "voting": {"color": "#56B4E9", "marker": "s"},
    "active": {"color": "#D55E00", "marker": "^"},
    "active_limited": {"color": "#E69F00", "marker": "v"},
    "slim": {"color": "#009E73", "marker": "D"},
    "slim_limited": {"color": "#CC79A7", "marker": "P"},
}
_SPARE_STYLES: list[dict[str, Any]] = [
    {"color": color, "marker": marker}
    for marker in ("X", "*", "<", ">")
    for color in ("#882255", "#332288", "#999933", "#44AA99", "#AA4499")
]
_COLUMNS = 4  # panels side by side at most
_MARKERS = 5  # markers on a line, about


class _Panel(NamedTuple):
    """One row of panels: a metric, and the dotted line to hold it against."""

    metric: str
    label: str
    reference: Callable[[float], float] | None = None  # of the share of wrong labels
    reference_name: str = ""
    near_one: bool = False  # spread out the values near 1
    one_line: bool = False  # the same for all schemes
    from_zero: bool = False  # show 0


def plot_accuracy(result: SweepResult, path: str | os.PathLike[str]) -> None:
    """Draws accuracy over arrivals: above as a user gets it, below C alone.

    A panel per noise rate, a line per scheme with its 95% band over seeds, the share
    of the commonest class dotted.

    Args:
      result: what the sweep measured.
      path: of the PNG.
    """
    majority = (lambda rate: result.majority_accuracy, "majority class")
    panels = [
        _Panel("accuracy", "accuracy (ensemble or slim)", *majority),
        _Panel("classifier_accuracy", "accuracy of C alone", *majority),
    ]
    _plot(result, path, panels)


def plot_selection(result: SweepResult, path: str | os.PathLike[str]) -> None:
    """Draws purity and recall of selection over arrivals, as `plot_accuracy` does.

    Args:
      result: what the sweep measured.
      path: of the PNG.
    """
    panels = [
        _Panel(
            "purity",
            "purity of kept rows",
            reference=lambda rate: 1 - rate,
            reference_name="noise-free share",
            near_one=True,
        ),
        _Panel("recall", "recall of clean rows"),
    ]
    _plot(result, path, panels)


def plot_prequential(result: SweepResult, path: str | os.PathLike[str]) -> None:
    """Draws accuracy on each batch before its labels are seen, and the noise in it.

    Above as a user gets it, then C alone, below the share of labels that came out
    wrong (the same for every scheme); otherwise as `plot_accuracy` does.

    Args:
      result: what the sweep measured.
      path: of the PNG.
    """
    panels = [
        _Panel("prequential_accuracy", "prequential accuracy"),
        _Panel("classifier_prequential_accuracy", "prequential accuracy of C"),
        _Panel(
            "realised_noise", "share of wrong labels", from_zero=True, one_line=True
        ),
    ]
    _plot(result, path, panels)


def _plot(
    result: SweepResult, path: str | os.PathLike[str], panels: Sequence[_Panel]
) -> None:
    """Draws one row of axes per panel and one column per noise rate.

    Beyond `_COLUMNS` rates the rows are repeated below.
    """
    # No pyplot: its figures are global state, and it looks for a display.
    figure_module = require("matplotlib.figure")
    require("matplotlib.backends.backend_agg")
    rates, wrong = result.noise_rates, _shares_wrong(result)
    columns = min(len(rates), _COLUMNS)
    rows = math.ceil(len(rates) / _COLUMNS) * len(panels)
    figure = figure_module.Figure(
        figsize=(3.2 * columns + 1.8, 2.5 * rows + 0.5), layout="constrained"
    )
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.ravel():
        axes.set_visible(False)
    for r, rate in enumerate(rates):
        block, column = divmod(r, _COLUMNS)
        for p, panel in enumerate(panels):
            axes = grid[block * len(panels) + p, column]
            axes.set_visible(True)
            _draw_lines(axes, result, panel, r)
            if panel.reference is not None:
                value = panel.reference(wrong[r])
                _draw_reference(axes, value, panel.reference_name)
            if p == 0:
                title = f"{100 * rate:g}% noise"
                if wrong[r] != rate:
                    title = f"noise rate {rate:g}: {wrong[r]:.0%} wrong"
                axes.set_title(title, fontsize=10)
            if p == len(panels) - 1:
                axes.set_xlabel("arrival", fontsize=9)
            if column == 0:
                axes.set_ylabel(panel.label, fontsize=9)
            axes.tick_params(labelsize=8, labelleft=column == 0)
    figure.legend(
        *grid[0, 0].get_legend_handles_labels(),
        loc="outside right upper",
        title=f"mean and 95% interval\n(noise seeds: {len(result.seeds)})\n",
        title_fontsize=8,
        fontsize=9,
        frameon=False,
        alignment="left",
    )
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=200)


def _shares_wrong(result: SweepResult) -> tuple[float, ...]:
    """Share of wrong labels at each noise rate.

    The rate itself, unless a schedule or a matrix multiplies it: then as it came out,
    over all seeds and arrivals.
    """
    if not any(result.config.get(x) for x in ("noise_schedule", "noise_matrix")):
        return result.noise_rates
    came_out = result.history["realised_noise"][..., 1:]
    return tuple(float(np.nanmean(came_out[:, r])) for r in range(came_out.shape[1]))


def _draw_lines(axes: Any, result: SweepResult, panel: _Panel, r: int) -> None:
    """One line and band per scheme, at noise rate `r`."""
    history = result.history[panel.metric]
    arrivals = np.arange(result.num_arrivals + 1)
    spare = itertools.cycle(_SPARE_STYLES)
    step = math.ceil(len(arrivals) / _MARKERS)
    for s, scheme in enumerate(result.schemes):
        style = _STYLES.get(scheme) or next(spare)
        if panel.one_line:
            if s:
                break
            style = {"color": "black"}
        mean, _, half = spread.mean_std_ci95(history[s, r], axis=0)
        band = {"color": style["color"], "alpha": 0.15, "linewidth": 0}
        axes.fill_between(arrivals, mean - half, mean + half, **band)
        axes.plot(
            arrivals,
            mean,
            label=scheme.replace("_", " "),
            linewidth=1.4,
            markersize=4,
            markevery=(s * step // len(result.schemes), step),
            **style,
        )
    _scale(axes, panel, spread.nan_mean(history, axis=2), _shares_wrong(result))
    axes.set_xlim(-0.02 * arrivals[-1], 1.02 * arrivals[-1])
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _scale(
    axes: Any, panel: _Panel, curves: np.ndarray, rates: Sequence[float]
) -> None:
    """Range of y from all mean curves, so that it is the same for every noise rate.

    The bands do not count: with few seeds they would flatten the lines. The dotted
    lines do unless that, too, would flatten the lines.
    """
    known = curves[~np.isnan(curves)]
    low, high = (known.min(), known.max()) if known.size else (0.0, 1.0)
    if panel.reference is not None:
        lowest = min(panel.reference(rate) for rate in rates)
        if panel.near_one or low - lowest < 0.5 * (high - low):
            low = min(low, lowest)
    low = min(low, 0.0) if panel.from_zero else low
    margin = max(0.06 * (high - low), 0.005)
    low, high = low - margin, high + margin
    if panel.near_one:
        # Distances as those of log(1 - y); the addend lets 1 itself be shown.
        addend = 0.01
        functions = (
            lambda y: -np.log(np.maximum(1 + addend - y, 0.1 * addend)),
            lambda z: 1 + addend - np.exp(-z),
        )
        high = min(high, 1 + 0.3 * addend)
        axes.set_yscale("function", functions=functions)
        ticks = (0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.98, 0.99, 1)
        axes.set_yticks([y for y in ticks if low <= y <= high])
    axes.set_ylim(low, high)


def _draw_reference(axes: Any, value: float, name: str) -> None:
    """A dotted line with its name; the name alone where `value` is out of range."""
    text = f"{name} {value:.3f}"
    low, high = axes.get_ylim()
    style: dict[str, Any] = {"fontsize": 7, "color": "0.3", "ha": "right"}
    if low <= value <= high:
        axes.axhline(value, color="0.3", linestyle=":", linewidth=1.2)
        style |= {"xy": (0.99, value), "xycoords": ("axes fraction", "data")}
    else:
        text += " (off scale)"
        style |= {"xy": (0.99, 0.02), "xycoords": "axes fraction"}
    offset = {"xytext": (0, 2), "textcoords": "offset points"}
    axes.annotate(text, **offset, **style)


# --- All of it ------------------------------------------------------------------------
