"""Pictures of `experiments.noise_study`. matplotlib is imported when first needed."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rad_jax.files import atomic_path, require

_COLUMNS = 3  # panels of rates side by side at most
_MOST_NUMBERS = 11  # classes of which entries are written as numbers
_MOST_CASES = 12  # that are drawn


def _figure(width: float, height: float) -> Any:
    # No pyplot: its figures are global state, and it looks for a display.
    figure_module = require("matplotlib.figure")
    require("matplotlib.backends.backend_agg")
    return figure_module.Figure(figsize=(width, height), layout="constrained")


def plot_transition(
    names: Sequence[str],
    matrices: Sequence[Mapping[str, np.ndarray]],
    class_names: Sequence[str],
    path: Path,
    *,
    title: str,
) -> None:
    """Draws asked, realised and estimated matrices in percent, a row for each case.

    The last column is the estimate less what was asked (less what came out where no
    matrix is known). Entries are written out where there are few classes.

    Args:
      names: of the cases; the first 12 are drawn.
      matrices: for each case, ``[K, K]`` under "asked", "realised" and "estimate".
      class_names: K names.
      path: of the PNG.
      title: above all panels.
    """
    names, matrices = names[:_MOST_CASES], matrices[:_MOST_CASES]
    num_classes = len(class_names)
    written = num_classes <= _MOST_NUMBERS
    side = 1.1 + 0.26 * min(num_classes, _MOST_NUMBERS)
    figure = _figure(4 * side + 1.2, len(names) * side + 0.9)
    grid = figure.subplots(len(names), 4, squeeze=False)
    differences = []
    for one in matrices:
        known = not np.isnan(one["asked"]).all()
        target = "asked" if known else "realised"
        differences.append((target, one["estimate"] - one[target]))
    reach = max(100 * np.nanmax(np.abs(d)) for _, d in differences)
    shade = {"cmap": "Blues", "vmin": 0, "vmax": 100}
    contrast = {"cmap": "RdBu_r", "vmin": -max(reach, 1), "vmax": max(reach, 1)}
    last: list[Any] = []
    for axes_row, name, one, (target, off) in zip(
        grid, names, matrices, differences, strict=True
    ):
        panels = [
            (what, one[what], shade) for what in ("asked", "realised", "estimate")
        ]
        panels.append((f"estimate - {target}", off, contrast))
        last = [
            _draw_matrix(axes, 100 * values, colors, class_names if written else ())
            for axes, (_, values, colors) in zip(axes_row, panels, strict=True)
        ]
        for axes, (what, _, _) in zip(axes_row, panels, strict=True):
            axes.set_title(what, fontsize=9)
        axes_row[0].set_ylabel(f"{_short(name)}\n\ntrue", fontsize=9)
    for axes in grid[-1]:
        axes.set_xlabel("given", fontsize=9)
    for image, columns in ((last[0], grid[:, :3]), (last[3], grid[:, 3:])):
        bar = figure.colorbar(image, ax=columns, shrink=0.6, aspect=30, pad=0.01)
        bar.ax.tick_params(labelsize=7)
    figure.suptitle(title, fontsize=10)
    _save(figure, path)


def _draw_matrix(
    axes: Any, percent: np.ndarray, colors: dict[str, Any], class_names: Sequence[str]
) -> Any:
    """One heat map; with names of classes, its entries as numbers."""
    image = axes.imshow(percent, **colors)
    axes.set_xticks([])
    axes.set_yticks([])
    if not class_names:
        return image
    places = range(len(class_names))
    short = [str(name)[:8] for name in class_names]
    turned = {"rotation": 90} if max(map(len, short)) > 2 else {}
    axes.set_xticks(places, short, fontsize=6, **turned)
    axes.set_yticks(places, short, fontsize=6)
    axes.tick_params(length=0, pad=2)
    signed = colors["vmin"] < 0
    middle, half = (colors["vmax"] + colors["vmin"]) / 2, colors["vmax"] / 2
    for (t, g), value in np.ndenumerate(percent):
        if np.isnan(value):
            continue
        dark = abs(value) > 1.2 * half if signed else value > middle
        axes.text(
            g,
            t,
            f"{value:+z.1f}" if signed else f"{value:.0f}",
            ha="center",
            va="center",
            fontsize=5 if signed else 6,
            color="white" if dark else "black",
        )
    return image


def plot_rates(
    names: Sequence[str],
    rates: Sequence[tuple[np.ndarray, np.ndarray]],
    path: Path,
    *,
    title: str,
) -> None:
    """Draws the share of wrong labels of each arrival, a panel for each case.

    Asked (line) and realised (points) are of the first seed, the band is from the
    lowest to the highest realised of all seeds.

    Args:
      names: of the cases; the first 12 are drawn.
      rates: for each case, asked and realised, ``[S, T]``.
      path: of the PNG.
      title: above all panels.
    """
    names = names[:_MOST_CASES]
    columns = min(len(names), _COLUMNS)
    rows = math.ceil(len(names) / columns)
    figure = _figure(3.2 * columns + 1.8, 2.2 * rows + 0.8)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for axes in grid.ravel()[len(names) :]:
        axes.set_visible(False)
    for axes, name, (asked, realised) in zip(grid.ravel(), names, rates, strict=False):
        arrivals = np.arange(1, asked.shape[1] + 1)
        axes.fill_between(
            arrivals,
            realised.min(0),
            realised.max(0),
            color="#0072B2",
            alpha=0.2,
            linewidth=0,
            label="realised, all seeds",
        )
        dots = {"linestyle": "", "marker": "o", "markersize": 3, "color": "#0072B2"}
        axes.plot(arrivals, asked[0], color="black", linewidth=1.2, label="asked")
        axes.plot(arrivals, realised[0], label="realised", **dots)
        axes.set_title(_short(name), fontsize=8)
        axes.set_ylim(0, 1)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(color="0.9", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    figure.supxlabel("arrival", fontsize=9)
    figure.supylabel("share of wrong labels", fontsize=9)
    figure.suptitle(title, fontsize=10)
    figure.legend(
        *grid[0, 0].get_legend_handles_labels(),
        loc="outside right upper",
        title=f"first of {len(rates[0][0])} noise seeds\n",
        title_fontsize=8,
        fontsize=8,
        frameon=False,
        alignment="left",
    )
    _save(figure, path)


def _short(name: str) -> str:
    """A title of several lines: a schedule of many pieces is long."""
    kind, _, schedule = name.partition(" x ")
    kind = kind.replace("_", " ")
    return "\n".join([kind, *schedule.split(";")]) if schedule else kind


def _save(figure: Any, path: Path) -> None:
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=200)
