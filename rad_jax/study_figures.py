"""Pictures of the motivation study. matplotlib is imported when first needed."""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rad_jax.files import atomic_path, require

# Okabe and Ito's colours, which colour-blind readers can tell apart.
_STYLES: dict[str, dict[str, Any]] = {
    "knn": {"color": "#D55E00", "marker": "o"},
    "nearest_centroid": {"color": "#009E73", "marker": "s"},
    "mlp": {"color": "#0072B2", "marker": "^"},
    "linear_svm": {"color": "#E69F00", "marker": "D"},
    "rbf_svm": {"color": "#CC79A7", "marker": "v"},
    "random_forest": {"color": "#56B4E9", "marker": "P"},
    "vgg": {"color": "black", "marker": "X"},
}
_SPARE_COLORS = ("#882255", "#332288", "#999933", "#44AA99")
_CLASS_COLORS = ("#0072B2", "#E69F00", "#009E73")
_CLASS_MARKERS = ("o", "s", "^")
_COLUMNS = 4  # panels side by side at most
_SETTING_COLORS = ("#0072B2", "#E69F00", "#009E73")


class Curve(NamedTuple):
    """Accuracy over label noise.

    Attributes:
      noise_rates: ``[E]`` in [0, 1].
      accuracy: ``[E]`` means over runs.
      spread: ``[E]`` standard deviations over runs, NaN for one run.
    """

    noise_rates: np.ndarray
    accuracy: np.ndarray
    spread: np.ndarray


class Curves(NamedTuple):
    """What `plot_offline` draws, by learner.

    Attributes:
      ours: solid, with a band.
      others: of another implementation, hollow markers; may lack learners.
      reference: published ones, dashed; may lack learners.
    """

    ours: Mapping[str, Curve]
    others: Mapping[str, Curve]
    reference: Mapping[str, Curve]


def _figure(width: float, height: float) -> Any:
    # No pyplot: its figures are global state, and it looks for a display.
    figure_module = require("matplotlib.figure")
    require("matplotlib.backends.backend_agg")
    return figure_module.Figure(figsize=(width, height), layout="constrained")


def _save(figure: Any, path: str | os.PathLike[str]) -> None:
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=200)


def _style(name: str, names: Sequence[str]) -> dict[str, Any]:
    spare = [other for other in names if other not in _STYLES]
    if name in _STYLES:
        return _STYLES[name]
    return {"color": _SPARE_COLORS[spare.index(name) % 4], "marker": "*"}


def _tidy(axes: Any) -> None:
    axes.grid(color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


def _words(name: str) -> str:
    return name.replace("_", " ")


def plot_offline(
    curves: Curves,
    path: str | os.PathLike[str],
    *,
    majority: float,
    title: str,
    other_name: str = "scikit-learn",
    reference_name: str = "reference",
) -> None:
    """Draws test accuracy over label noise, a line per learner (Figure 1).

    Args:
      curves: what was measured, and what to hold it against.
      path: of the PNG.
      majority: accuracy of predicting the commonest class, dotted.
      title: what is shown.
      other_name: whose the hollow markers are.
      reference_name: whose the dashed lines are.
    """
    lines = require("matplotlib.lines")
    figure = _figure(6.6, 4.0)
    axes = figure.subplots()
    names = list(curves.ours)
    for name, curve in curves.ours.items():
        style = _style(name, names)
        rates, mean, spread = (100 * x for x in curve)
        spread = np.nan_to_num(spread)
        axes.fill_between(
            rates,
            mean - spread,
            mean + spread,
            color=style["color"],
            alpha=0.2,
            linewidth=0,
        )
        axes.plot(rates, mean, label=_words(name), linewidth=1.5, markersize=4, **style)
        if name in curves.others:
            other = curves.others[name]
            axes.plot(
                100 * other.noise_rates,
                100 * other.accuracy,
                linestyle="",
                markersize=8,
                markerfacecolor="none",
                **style,
            )
        if name in curves.reference:
            other = curves.reference[name]
            axes.plot(
                100 * other.noise_rates,
                100 * other.accuracy,
                color=style["color"],
                linewidth=1.2,
                linestyle=(0, (4, 2)),
            )
    axes.axhline(100 * majority, color="0.3", linestyle=":", linewidth=1.2)
    handles = axes.get_legend_handles_labels()[0]
    grey = {"color": "0.3"}
    if curves.others:
        hollow = {"linestyle": "", "marker": "o", "markerfacecolor": "none"}
        handles.append(lines.Line2D([], [], label=other_name, **hollow, **grey))
    if curves.reference:
        dashes = {"linestyle": (0, (4, 2)), "linewidth": 1.2}
        handles.append(lines.Line2D([], [], label=reference_name, **dashes, **grey))
    label = f"majority class {100 * majority:.1f}%"
    handles.append(lines.Line2D([], [], label=label, linestyle=":", **grey))
    axes.set_xlabel("labels that are wrong (%)", fontsize=9)
    axes.set_ylabel("accuracy on clean test rows (%)", fontsize=9)
    axes.set_ylim(-2, 102)
    axes.set_title(title, fontsize=10)
    _tidy(axes)
    figure.legend(
        handles=handles,
        loc="outside right upper",
        title="mean and standard deviation\nover runs",
        title_fontsize=8,
        fontsize=9,
        frameon=False,
        alignment="left",
    )
    _save(figure, path)


class ToyPanel(NamedTuple):
    """One panel of Figure 2.

    Attributes:
      title: above the panel.
      label: ``[n]`` given labels, which colour the points.
      wrong: ``[n]`` bool, predicted wrong, which marks them.
      regions: ``[H, W]`` predicted classes of a grid over the panel.
    """

    title: str
    label: np.ndarray
    wrong: np.ndarray
    regions: np.ndarray


def plot_toy(
    points: np.ndarray,
    true_label: np.ndarray,
    panels: Sequence[ToyPanel],
    extent: tuple[float, float, float, float],
    path: str | os.PathLike[str],
    class_names: Sequence[str] = ("A", "B", "C"),
) -> None:
    """Draws points of three classes and the regions that a classifier gives them.

    Args:
      points: ``[n, 2]``.
      true_label: ``[n]`` int, which shapes the markers.
      panels: side by side.
      extent: left, right, bottom, top of the grid.
      path: of the PNG.
      class_names: three names.
    """
    colors = require("matplotlib.colors")
    lines = require("matplotlib.lines")
    figure = _figure(4.1 * len(panels), 4.5)
    for axes, panel in zip(
        np.ravel(figure.subplots(1, len(panels))), panels, strict=True
    ):
        axes.imshow(
            panel.regions,
            origin="lower",
            extent=extent,
            cmap=colors.ListedColormap(_CLASS_COLORS),
            vmin=-0.5,
            vmax=len(_CLASS_COLORS) - 0.5,
            alpha=0.22,
            interpolation="nearest",
            aspect="equal",
        )
        axes.plot(
            *points[panel.wrong].T,
            linestyle="",
            marker="x",
            markersize=11,
            markeredgewidth=1.1,
            color="0.15",
        )
        for k, marker in enumerate(_CLASS_MARKERS):
            own = true_label == k
            axes.scatter(
                *points[own].T,
                c=[_CLASS_COLORS[given] for given in panel.label[own]],
                marker=marker,
                s=42,
                edgecolors="white",
                linewidths=0.8,
                zorder=3,
            )
        axes.set_title(panel.title, fontsize=10)
        axes.set_xticks([])
        axes.set_yticks([])
    dot: dict[str, Any] = {"linestyle": "", "markersize": 7}
    handles = []
    for name, color, marker in zip(
        class_names, _CLASS_COLORS, _CLASS_MARKERS, strict=True
    ):
        given = {"marker": "o", "color": color, "label": f"given label {name}"}
        true = {"marker": marker, "color": "0.5", "label": f"true class {name}"}
        handles += [lines.Line2D([], [], **dot, **own) for own in (given, true)]
    cross = {"linestyle": "", "marker": "x", "markersize": 10, "color": "0.15"}
    handles.append(lines.Line2D([], [], label="predicted wrong", **cross))
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=4,
        fontsize=9,
        frameon=False,
    )
    _save(figure, path)


def plot_randomness(
    accuracy: Mapping[str, np.ndarray],
    noise_rates: Sequence[float],
    path: str | os.PathLike[str],
    *,
    title: str,
) -> None:
    """Draws box plots of accuracy over runs, by what runs differ in (Figure 3).

    A panel for each noise rate.

    Args:
      accuracy: by setting (at most three), ``[E, R]``.
      noise_rates: ``[E]``.
      path: of the PNG.
      title: what is shown.
    """
    patches = require("matplotlib.patches")
    columns = min(len(noise_rates), _COLUMNS)
    rows = math.ceil(len(noise_rates) / columns)
    figure = _figure(max(4.5, 1.8 * columns + 0.6), 2.7 * rows + 0.8)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.ravel()[len(noise_rates) :]:
        axes.set_visible(False)
    # Each panel has a range of its own: the spread is what is looked at.
    for e, (axes, rate) in enumerate(zip(grid.ravel(), noise_rates, strict=False)):
        boxes = axes.boxplot(
            [100 * values[e] for values in accuracy.values()],
            widths=0.6,
            patch_artist=True,
            medianprops={"color": "black", "linewidth": 1.2},
            flierprops={"marker": ".", "markersize": 5, "markeredgecolor": "0.3"},
            whiskerprops={"color": "0.3"},
            capprops={"color": "0.3"},
        )
        for box, color in zip(boxes["boxes"], _SETTING_COLORS, strict=False):
            box.set(facecolor=color, edgecolor="0.3", alpha=0.85)
        axes.set_xticks([])
        axes.set_title(f"{100 * rate:g}% noise", fontsize=9)
        _tidy(axes)
    figure.supylabel("accuracy on clean test rows (%)", fontsize=9)
    figure.suptitle(title, fontsize=10)
    figure.legend(
        handles=[
            patches.Patch(facecolor=color, edgecolor="0.3", label=_words(name))
            for name, color in zip(accuracy, _SETTING_COLORS, strict=False)
        ],
        loc="outside lower center",
        ncols=3,
        fontsize=9,
        frameon=False,
    )
    _save(figure, path)
