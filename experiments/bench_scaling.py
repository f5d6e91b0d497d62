"""How the main job's time grows: with seeds, with arrivals, with stored rows."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console

from experiments import stream
from experiments.bench_presets import Sizes
from experiments.bench_timing import Figure, Part, figure, interleave, scaled
from rad_jax.sweep import Sweep

#: Seeds of the runs whose arrivals or rows grow.
_SEEDS = 8
#: Features and classes of the stream made up for them.
_WIDTH, _CLASSES = 115, 11
#: Arrivals and rows of an arrival where stored rows grow; the clean rows are the rest.
_FEW_ARRIVALS, _BATCH = 10, 300
#: Clean rows, rows of an arrival, test rows, gradient steps where arrivals grow.
_SMALL = {"initial_size": 1000, "batch_size": 100, "test_size": 1000}


def by_seeds(config: stream.Config, seeds: Sequence[int]) -> dict[str, stream.Config]:
    """The run of `config` with other numbers of seeds."""
    return {
        f"{n} seeds": dataclasses.replace(config, num_seeds=n)
        for n in sorted(set(seeds))
    }


def _made_up(config: stream.Config, **sizes: int) -> stream.Config:
    """The same schemes, learners and training on a stream as long as asked."""
    changed: dict[str, Any] = {
        "dataset": "synthetic",
        "num_classes": _CLASSES,
        "width": _WIDTH,
        "num_seeds": _SEEDS,
        **sizes,
    }
    kept = (
        "schemes",
        "label_model",
        "classifier",
        "training",
        "steps_per_batch",
        "initial_steps",
        "minibatch_size",
        "hidden",
        "neighbours",
        "noise_rates",
        "seed",
    )
    return stream.Config(**{name: getattr(config, name) for name in kept}, **changed)


def by_arrivals(
    config: stream.Config, arrivals: Sequence[int]
) -> dict[str, stream.Config]:
    """Streams of several lengths; every arrival is as large."""
    return {
        f"{n} arrivals": _made_up(config, num_batches=n, **_SMALL)
        for n in sorted(set(arrivals))
    }


def by_rows(config: stream.Config, rows: Sequence[int]) -> dict[str, stream.Config]:
    """As many arrivals, after ever more clean rows."""
    found = {}
    for n in sorted(set(rows)):
        batch = min(_BATCH, n // (2 * _FEW_ARRIVALS))
        found[f"{n:,} rows"] = _made_up(
            config,
            initial_size=n - _FEW_ARRIVALS * batch,
            batch_size=batch,
            num_batches=_FEW_ARRIVALS,
            test_size=1000,
        )
    return found


def training_share(
    whole: Sequence[float], fewer: Sequence[float], steps: int, steps_of_fewer: int
) -> Figure:
    """Share of a run that is gradient steps, from runs with and without half of them.

    Args:
      whole: seconds of the run.
      fewer: of the same run with fewer steps, in turns.
      steps: of the run.
      steps_of_fewer: of the other.
    """
    factor = steps / (steps - steps_of_fewer)
    return figure(
        [factor * (w - f) / w for w, f in zip(whole, fewer, strict=True)],
    )


def measure(config: stream.Config, sizes: Sizes, console: Console) -> Part:
    """Times whole runs, compilation left out, in turns within each group.

    Args:
      config: the run, as `stream.complete` returns it.
      sizes: of the preset.
      console: for progress.

    Returns:
      Figures ``seconds_per_seed.R_seeds``, ``seconds_per_seed_gain.R_seeds`` over the
      least number of seeds, and ``arrival_time_growth`` by arrivals and by rows.
    """
    rows: list[dict[str, Any]] = []
    figures: dict[str, Figure] = {}
    groups = {
        "seeds": by_seeds(config, sizes.seeds),
        "arrivals": by_arrivals(config, sizes.arrivals),
        "rows": by_rows(config, sizes.rows),
    }
    for group, configs in groups.items():
        if group == "seeds":
            half = dataclasses.replace(
                config, steps_per_batch=config.steps_per_batch // 2
            )
            configs |= {
                f"{name}, half the steps": one
                for name, one in by_seeds(half, sizes.share_seeds).items()
            }
        planned, compiled, times = _time(configs, sizes.scaling_repeats, console)
        first = next(iter(configs))
        for name, one in configs.items():
            if name.endswith("half the steps"):
                continue
            per_seed = [t / one.num_seeds for t in times[name]]
            per_arrival = [t / planned[name].num_arrivals for t in per_seed]
            share = None
            if (less := f"{name}, half the steps") in times:
                share = training_share(
                    times[name],
                    times[less],
                    planned[name].num_steps,
                    planned[less].num_steps,
                )
            growth = _growth(group, times[first], times[name], configs[first], one)
            label = name.replace(" ", "_").replace(",", "")
            figures[f"{_GROWTH[group]}.{label}"] = growth
            if group == "seeds":
                figures[f"seconds_per_seed.{label}"] = figure(per_seed)
            rows.append(
                {
                    "run": name,
                    "seconds": figure(times[name]),
                    "seconds_per_seed": figure(per_seed),
                    "ms_per_seed_and_arrival": scaled(per_arrival, 1e3),
                    "against_first": growth,
                    "training's_share": share,
                    "compile_seconds": compiled[name],
                }
            )
    return Part(
        title=f"whole runs: {', '.join(config.schemes)}; L = {config.label_model}, "
        f"C = {config.classifier}",
        rows=rows,
        figures=figures,
        settings={
            "dataset": config.dataset,
            "steps_per_batch": config.steps_per_batch,
            "seeds_of_arrivals_and_rows": _SEEDS,
        },
        notes=(
            "against first: for seeds, seconds per seed at the least number of seeds "
            "over those here (greater is better); for arrivals and rows, time per seed "
            "and arrival here over that of the shortest",
        ),
    )


#: Names of the figures.
_GROWTH = {
    "seeds": "seconds_per_seed_gain",
    "arrivals": "arrival_time_growth",
    "rows": "arrival_time_growth",
}


def _growth(
    group: str,
    first: Sequence[float],
    times: Sequence[float],
    first_config: stream.Config,
    config: stream.Config,
) -> Figure:
    """Gain per seed by the number of seeds, or growth of an arrival's time."""
    if group == "seeds":
        factor = config.num_seeds / first_config.num_seeds
        return figure([factor * t for t in ratio_of(first, times)])
    factor = (first_config.num_batches or 1) / (config.num_batches or 1)
    return figure([factor * t for t in ratio_of(times, first)])


def ratio_of(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Ratios within each repetition."""
    return [a / b for a, b in zip(above, below, strict=True)]


def _time(
    configs: dict[str, stream.Config], repeats: int, console: Console
) -> tuple[dict[str, Sweep], dict[str, float], dict[str, list[float]]]:
    """Plans, compiles and times the runs; data are made once for equal streams."""
    planned: dict[str, Sweep] = {}
    compiled: dict[str, float] = {}
    data: dict[stream.Config, Any] = {}
    for name, config in configs.items():
        console.print(f"scaling: compiling and warming up, {name}", highlight=False)
        config = stream.complete(config)
        rows = dataclasses.replace(
            config, num_seeds=1, steps_per_batch=1, initial_steps=1
        )
        if rows not in data:
            data[rows] = stream.load(config)
        planned[name] = stream.prepare(_sized(config, data[rows]), data[rows])
        compiled[name] = planned[name].run().compile_seconds
    times = interleave(
        {name: _run_seconds(sweep) for name, sweep in planned.items()},
        repeats,
    )
    return planned, compiled, times


def _run_seconds(sweep: Sweep) -> Callable[[], float]:
    return lambda: sweep.run().run_seconds


def _sized(config: stream.Config, data: Any) -> stream.Config:
    """What the number of rows decides where no flag does."""
    minibatch = config.minibatch_size or min(200, len(data.initial_labels))
    return dataclasses.replace(config, minibatch_size=minibatch)
