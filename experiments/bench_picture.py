"""The benchmark's picture: time per seed, and share of a matrix product, by seeds."""

import os
from collections.abc import Mapping
from typing import Any

from experiments.bench_timing import Figure, Part
from rad_jax.files import atomic_path, require

_BLUE, _ORANGE = "#0072B2", "#D55E00"


def points(
    figures: Mapping[str, Figure], prefix: str
) -> tuple[list[int], list[Figure]]:
    """The figures named ``prefix.R_seeds``, by the number of seeds R."""
    found = {
        int(name.removeprefix(f"{prefix}.").removesuffix("_seeds")): value
        for name, value in figures.items()
        if name.startswith(f"{prefix}.") and name.endswith("_seeds")
    }
    return sorted(found), [found[n] for n in sorted(found)]


def _line(axes: Any, seeds: list[int], values: list[Figure], color: str) -> None:
    median = [value.median for value in values]
    spread = [
        [value.median - value.min for value in values],
        [value.max - value.median for value in values],
    ]
    axes.errorbar(seeds, median, yerr=spread, color=color, marker="o", capsize=3)
    axes.set_xscale("log", base=2)
    axes.set_xticks(seeds, [str(n) for n in seeds])
    axes.minorticks_off()
    axes.set_xlabel("seeds")
    axes.grid(color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def plot(parts: Mapping[str, Part], path: str | os.PathLike[str]) -> bool:
    """Draws what there is of the two; bars are the least and the greatest repetition.

    Args:
      parts: by name, what was measured.
      path: of the PNG.

    Returns:
      Whether there was anything to draw.
    """
    panels = []
    if "scaling" in parts:
        panels.append(("seconds_per_seed", parts["scaling"], "seconds per seed", _BLUE))
    if "gemm" in parts:
        label = "share of a matrix product's FLOP/s"
        panels.append(("gemm_fraction", parts["gemm"], label, _ORANGE))
    if not panels:
        return False
    figure_module = require("matplotlib.figure")
    require("matplotlib.backends.backend_agg")
    size = (4.2 * len(panels), 3.4)
    figure = figure_module.Figure(figsize=size, layout="constrained")
    grid = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (prefix, part, label, color) in zip(grid, panels, strict=True):
        _line(axes, *points(part.figures, prefix), color)
        axes.set_ylabel(label)
        what = part.title.split(":")[0].split(",")[0]
        axes.set_title(f"{what}; bars: least to greatest", fontsize=9, loc="left")
        if prefix == "seconds_per_seed":
            axes.set_yscale("log")
            ticker = require("matplotlib.ticker")
            axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_locator(ticker.NullLocator())
        else:
            axes.set_ylim(bottom=0)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=150)
    return True
