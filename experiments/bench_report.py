"""What the benchmark says before and after: cost, machine, figures that have an aim."""

import os
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

from experiments import devices
from experiments.bench_presets import AIMS, Sizes
from experiments.bench_timing import Part


def machine() -> dict[str, Any]:
    """What the figures depend on beside the program."""
    device = jax.devices()[0]
    return {
        "device": device.device_kind,
        "platform": device.platform,
        "devices": len(jax.devices()),
        "cores": devices.num_cores(),
        "processor": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
        "load_average": load(),
    }


def load() -> float | None:
    """Processes that ran or waited in the last minute, None where nobody counts."""
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):
        return None


def announce(
    parts: Sequence[str], sizes: Sizes, machine: Mapping[str, Any], console: Console
) -> None:
    """Says what it will take, and whether the machine is busy."""
    costs = ", ".join(f"{name} {sizes.minutes[name]:g}" for name in parts)
    total = sum(sizes.minutes[name] for name in parts)
    lines = [
        f"{machine['devices']} x {machine['device']}, {machine['cores']} cores; about "
        f"{total:g} minutes on two idle cores ({costs})"
    ]
    load = machine["load_average"]
    if load is not None and load > 0.5:
        lines.append(
            f"warning: the machine is busy (load average {load:.1f}): ratios will "
            "spread, and it will take longer"
        )
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def aim_of(name: str, value: float) -> tuple[str, bool] | None:
    """The aim of a figure in words, and whether it is met; None if it has none."""
    for prefix, (low, high) in AIMS.items():
        if name == prefix or name.startswith(f"{prefix}."):
            words = [
                *([f"at least {low:g}"] if low is not None else []),
                *([f"at most {high:g}"] if high is not None else []),
            ]
            met = (low is None or value >= low) and (high is None or value <= high)
            return " and ".join(words), met
    return None


def summarize(parts: Mapping[str, Part], console: Console) -> None:
    """Prints the figures that have an aim."""
    table = Table(title="figures with an aim", title_justify="left")
    for column in ("figure", "median (least to greatest)", "aim", "met"):
        table.add_column(column, justify="left" if column == "figure" else "right")
    for part in parts.values():
        for name, value in part.figures.items():
            aim = aim_of(name, value.median)
            if aim is not None:
                words, met = aim
                met = met and name not in part.settings.get("void", ())
                table.add_row(name, str(value), words, "yes" if met else "NO")
    if table.row_count:
        console.print(table)
