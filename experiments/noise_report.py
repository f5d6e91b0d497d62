"""What `experiments.noise_study` measured: tables, files, pictures."""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich import box
from rich.console import Console
from rich.segment import Segments
from rich.table import Table

from experiments import noise_figures
from experiments.noise_cases import Case, Realised
from experiments.noise_estimates import METHODS, Found
from experiments.progress import say
from experiments.settings import Config
from experiments.study import write_csv
from rad_jax.files import atomic_path
from rad_jax.spread import mean_std_ci95


class Outcome(NamedTuple):
    """What was measured; S seeds.

    Attributes:
      cases: which noise.
      realised: for each case.
      found: for each case, by name of the method: matrices ``[S, K, K]``, rates
        ``[S]``.
      examples: a schedule of each kind, empty with --noise_schedule.
      realised_examples: for each of them.
    """

    cases: list[Case]
    realised: list[Realised]
    found: list[dict[str, Found]]
    examples: list[Case]
    realised_examples: list[Realised]

    def error(self, i: int, method: str, against: str) -> np.ndarray:
        """Mean absolute error of case i's matrices ``[S]``.

        Args:
          i: the case.
          method: of `METHODS`.
          against: "asked" or "matrix" (as it came out); rows of it that are NaN, of
            classes that never came, are left out. NaN if there is nothing else.
        """
        off = np.abs(self.found[i][method].matrix - getattr(self.realised[i], against))
        known = ~np.isnan(off)
        total = np.where(known, off, 0).sum((1, 2))
        return np.where(
            known.any((1, 2)), total / np.maximum(known.sum((1, 2)), 1), np.nan
        )

    def wrong(self, i: int) -> np.ndarray:
        """Share of wrong labels of case i ``[S]``, of all arrivals together."""
        counts = self.realised[i].counts
        rows = np.maximum(counts.sum((1, 2)), 1)
        return 1 - np.trace(counts, axis1=1, axis2=2) / rows


def write(
    config: Config, outcome: Outcome, class_names: Sequence[str], output_dir: Path
) -> None:
    """Writes tables, config.json and pictures.

    Args:
      config: completed.
      outcome: what was measured.
      class_names: K names.
      output_dir: takes the files.
    """
    with atomic_path(output_dir / "config.json") as temporary:
        written = dataclasses.asdict(config) | {
            "cases": [case.name for case in outcome.cases]
        }
        temporary.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
    write_csv(output_dir / "estimates.csv", *_estimates(outcome))
    write_csv(output_dir / "transition.csv", *_matrices(outcome, class_names))
    write_csv(output_dir / "rates.csv", *_rates(outcome))
    noise_figures.plot_transition(
        [case.name for case in outcome.cases],
        [_mean_matrices(outcome, i) for i in range(len(outcome.cases))],
        class_names,
        output_dir / "transition.png",
        title=f"{config.dataset}: given classes by true class in percent, means of "
        f"{config.num_seeds} seeds",
    )
    shown = outcome.examples or outcome.cases
    rates = outcome.realised_examples or outcome.realised
    noise_figures.plot_rates(
        [case.name for case in shown],
        [(one.asked_rate, one.rate) for one in rates],
        output_dir / "rates.png",
        title=f"{config.dataset}, arrivals of {config.batch_size} rows",
    )


def _estimates(outcome: Outcome) -> tuple[list[str], Iterator[Sequence]]:
    header = ["case", "seed", "method", "error_asked", "error_realised"]
    header += ["rate", "realised_rate"]

    def rows() -> Iterator[Sequence]:
        for i, case in enumerate(outcome.cases):
            for method in METHODS:
                columns = (
                    outcome.error(i, method, "asked"),
                    outcome.error(i, method, "matrix"),
                    outcome.found[i][method].rate,
                    outcome.wrong(i),
                )
                for seed, values in enumerate(zip(*columns, strict=True)):
                    yield case.name, seed, method, *values

    return header, rows()


def _mean_matrices(outcome: Outcome, i: int) -> dict[str, np.ndarray]:
    """Means over seeds of case i: asked, realised, and by method."""
    one = outcome.realised[i]
    by_method = {name: outcome.found[i][name].matrix.mean(0) for name in METHODS}
    return {"asked": one.asked.mean(0), "realised": one.matrix.mean(0)} | by_method


def _matrices(
    outcome: Outcome, class_names: Sequence[str]
) -> tuple[list[str], Iterator[Sequence]]:
    header = ["case", "true", "given", "asked", "realised", *METHODS]

    def rows() -> Iterator[Sequence]:
        for i, case in enumerate(outcome.cases):
            means = _mean_matrices(outcome, i).values()
            for t, true in enumerate(class_names):
                for g, given in enumerate(class_names):
                    yield case.name, true, given, *(mean[t, g] for mean in means)

    return header, rows()


def _rates(outcome: Outcome) -> tuple[list[str], Iterator[Sequence]]:
    header = ["case", "arrival"]
    for what in ("asked", "realised"):
        header += [f"{what}_mean", f"{what}_min", f"{what}_max"]

    def rows() -> Iterator[Sequence]:
        for case, one in zip(
            (*outcome.cases, *outcome.examples),
            (*outcome.realised, *outcome.realised_examples),
            strict=True,
        ):
            for t in range(one.rate.shape[1]):
                row: list = [case.name, t + 1]
                for values in (one.asked_rate[:, t], one.rate[:, t]):
                    row += [values.mean(), values.min(), values.max()]
                yield row

    return header, rows()


def show(outcome: Outcome, console: Console) -> None:
    """Prints errors of the estimates, and how far noise is from what was asked."""
    sign = "±" if console.encoding.lower().startswith("utf") else "+-"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("noise", no_wrap=True)
    table.add_column("method", no_wrap=True)
    for name in ("MAE, asked", "MAE, realised", "rate", "wrong"):
        table.add_column(name, justify="right", no_wrap=True)

    def cell(values: np.ndarray, digits: int) -> str:
        mean, _, half = mean_std_ci95(values)
        if np.isnan(mean):
            return "-"
        spread = "" if np.isnan(half) else f"{sign}{half:.{digits}f}"
        return f"{mean:.{digits}f}{spread}"

    for i, case in enumerate(outcome.cases):
        for method in METHODS:
            table.add_row(
                case.name if method == next(iter(METHODS)) else "",
                method.replace("_", " "),
                cell(outcome.error(i, method, "asked"), 4),
                cell(outcome.error(i, method, "matrix"), 4),
                cell(np.asarray(outcome.found[i][method].rate), 3),
                f"{outcome.wrong(i).mean():.3f}",
            )
    say(
        console,
        "Mean absolute error (MAE) of the estimated transition matrix against the one "
        f"asked for and the one that came out; mean {sign} half of the 95% interval "
        f"over {len(outcome.wrong(0))} seeds. rate: estimated share of wrong labels.",
    )
    wide = console.options.update(max_width=max(console.width, 200))
    segments = Segments(console.render(table, wide))
    console.print(segments, crop=False, soft_wrap=True)
    say(console, "Largest distance of what came out from what was asked, all seeds:")
    for case, one in zip(
        (*outcome.cases, *outcome.examples),
        (*outcome.realised, *outcome.realised_examples),
        strict=True,
    ):
        off = one.deviation()
        text = "no matrix is known" if np.isnan(off) else f"{off:.1f} standard errors"
        say(console, f"  {case.name}: {text}")
