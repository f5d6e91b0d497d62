r"""The main job: a stream with wrong labels, every scheme and noise seed at once.

  python -m experiments.stream --num_seeds=16 --noise_rates=0.2,0.4
  python -m experiments.stream --dataset=google_cluster --data_dir=DIR
  python -m experiments.stream --dataset=rows.csv --label_column=class

Prints what it is about to do, its progress and a table; writes summary.csv,
history.csv, per_class.csv, confusion.csv, config.json, accuracy.png, selection.png and
prequential.png to --output_dir; with --sweep_budget, budget.csv and budget.png, too.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from absl import app
from rich.console import Console

from experiments import (
    budget_curve,
    command,
    distributed,
    fingerprint,
    flags,
    names,
    noises,
    progress,
    sources,
)
from experiments.distributed import SINGLE, Processes
from experiments.settings import (
    Config,
    complete,
    config_from_flags,
    scaling_note,
    suit,
)
from rad_jax import Training, checks, chunks, datasets, experts, report, sweep
from rad_jax.devices import free_bytes
from rad_jax.files import check_output_dir
from rad_jax.statistics import SweepResult
from rad_jax.types import UNLABELLED, Learner

#: Folder of finished chunks, in the folder of the results.
CHUNKS = "chunks"


def read(config: Config) -> datasets.Dataset:
    """The rows, as their source has them.

    Raises:
      ValueError: for files that cannot be read.
    """
    return sources.find(config.dataset).load(config)


def cut(config: Config, dataset: datasets.Dataset) -> datasets.StreamData:
    """The data set, cut into arrivals.

    Args:
      config: as `suit` returns it.
      dataset: as `read` returns it.

    Raises:
      ValueError: for sizes beyond the data.
    """
    return datasets.split(
        dataset,
        initial_size=config.initial_size or 0,
        batch_size=config.batch_size or 0,
        num_batches=config.num_batches,
        test_size=config.test_size,
        order=config.order or "shuffle",
        seed=config.seed,
        scaling=config.scaling,
    )


def load(config: Config) -> datasets.StreamData:
    """`read`, `suit` and `cut` in one.

    Args:
      config: as `complete` returns it.

    Raises:
      ValueError: for sizes beyond the data, or files that cannot be read.
    """
    dataset = read(config)
    return cut(suit(config, dataset), dataset)


def _arms(config: Config) -> list[sweep.Arm]:
    """The schemes; the limited ones once for each score and budget of a curve."""
    arms = []
    for name in config.schemes:
        variants: list[tuple[str | None, str, int]] = [
            (None, config.uncertainty, config.query_budget or 0)
        ]
        if config.sweep_budget and name in names.LIMITED:
            variants = budget_curve.variants(config, name)
        arms += [
            names.arm(
                name,
                label=label,
                query_budget=rows,
                score=score,
                source=config.uncertainty_source,
                total_budget=config.total_budget,
                min_per_class=config.min_per_class,
                dynamic=config.dynamic_budget,
                cap=config.budget_cap,
                new_classes=config.new_classes == "expert",
            )
            for label, score, rows in variants
        ]
    return arms


def learner(config: Config, name: str) -> Learner:
    """The learner of that name, with what the flags say of it.

    Args:
      config: as `suit` returns it.
      name: one of `names.LEARNERS`.
    """
    training = Training(
        mode=config.training,
        steps=config.steps_per_batch,
        initial_steps=config.initial_steps,
        minibatch_size=config.minibatch_size or 0,
    )
    options = {flag: getattr(config, flag) for flag in names.LEARNER_FLAGS}
    return names.learner(name, training=training, **options)


def prepare(
    config: Config,
    data: datasets.StreamData,
    processes: Processes = SINGLE,
) -> sweep.Sweep:
    """Everything up to the run itself; all bad input is found here.

    Args:
      config: as `suit` returns it.
      data: as `cut` returns it.
      processes: among which seeds are shared out.

    Raises:
      ValueError: for a value out of range.
    """
    if config.new_classes == "refuse":
        checks.no_new_classes(
            config.dataset,
            data.labels,
            data.initial_labels,
            "raise --initial_size, or let an expert admit it by --new_classes=expert",
            data.class_names,
        )
    expert = None
    if config.expert_error:
        expert = experts.erring(config.expert_error, data.num_classes)
    first_seed, num_seeds = processes.block(config.num_seeds)
    per_chunk, most = config.seeds_per_chunk, -(-config.num_seeds // processes.count)
    if per_chunk is not None and processes.count > 1:  # whose blocks may differ by one
        if per_chunk > most:
            raise ValueError(
                f"--seeds_per_chunk={per_chunk} must be at most {most}: "
                f"{processes.count} processes share --num_seeds={config.num_seeds}"
            )
        per_chunk = min(per_chunk, num_seeds)
    return sweep.prepare(
        data,
        _arms(config),
        label_model=learner(config, config.label_model),
        classifier=learner(config, config.classifier),
        noise_rates=config.noise_rates or (),
        noise=noises.make(config, data),
        expert=expert,
        cleaning_window=config.cleaning_window,
        memory_window=config.memory_window,
        label_delay=config.label_delay,
        new_classes="admit" if config.new_classes == "expert" else "refuse",
        num_seeds=num_seeds,
        first_seed=first_seed,
        seeds_per_chunk=per_chunk,
        num_devices=config.num_devices,
        alpha=config.alpha,
        calibrate=config.calibrate,
        randomness=config.randomness,
        seed=config.seed,
    )


def _size(num_bytes: float) -> str:
    return (
        f"{num_bytes / 1e6:,.0f} MB" if num_bytes < 1e9 else f"{num_bytes / 1e9:.1f} GB"
    )


def _changes(config: Config, data: datasets.StreamData) -> list[str]:
    """What differs from plain noise, no cleaning and an expert who is right."""
    lines = []
    kind = config.noise.replace("_", " ")
    if config.noise_schedule is not None:
        lines.append(
            f"{kind} noise, at arrival i of the noise rate x {config.noise_schedule}"
        )
    elif config.noise_matrix is not None:
        lines.append(f"{kind} noise, the noise rate x {config.noise_matrix}")
    window, num_batches = config.cleaning_window, len(data.labels)
    if window:
        earlier = num_batches - 1
        if window > 0:
            earlier = min(window + config.label_delay, earlier)
        rows = earlier * (config.batch_size or 0)
        if config.memory_window is not None:
            rows = min(rows, config.memory_window)
        lines.append(
            f"cleaning: at each arrival up to {rows:,} earlier rows are selected again"
        )
    if config.memory_window is not None:
        lines.append(
            f"memory: the last {config.memory_window:,} rows; counts of selection are "
            "of those"
        )
    if config.label_delay:
        lines.append(
            f"labels come {config.label_delay} arrivals late; until then rows are "
            "predicted only"
        )
    if config.sweep_budget:
        lines.append(
            "accuracy against the budget: only the baselines and the limited schemes "
            "are run"
        )
    if config.expert_error:
        lines.append(
            f"an expert who errs on about {config.expert_error:.0%} of the rows"
        )
    return lines


def announce(
    config: Config,
    data: datasets.StreamData,
    planned: sweep.Sweep,
    console: Console,
    processes: Processes = SINGLE,
) -> None:
    """Prints what a run is about to do, and what it takes."""
    num_runs = len(planned.arms) * len(planned.noise_rates) * planned.num_seeds
    num_rates, num_seeds = len(planned.noise_rates), planned.num_seeds
    lines = [
        f"{config.dataset} (order: {config.order}, scaling: {config.scaling}): "
        f"{config.initial_size:,} clean rows, then "
        f"{planned.num_arrivals} arrivals of {config.batch_size:,}; "
        f"{len(data.test_labels):,} test rows",
        f"L = {config.label_model}, C = {config.classifier}; the ensemble is weighed "
        f"by accuracy on {config.alpha} rows",
        f"{len(planned.arms)} schemes x {num_rates} noise rates x {num_seeds} seeds = "
        f"{num_runs:,} runs, {planned.num_steps:,} gradient steps, about "
        f"{_size(planned.estimated_bytes)} of memory; compiling comes first",
    ]
    if processes.count > 1:
        lines.append(
            f"{processes.count} processes share the {config.num_seeds:,} seeds; these "
            f"lines are of process {processes.index}"
        )
    if planned.num_chunks > 1 or planned.num_devices > 1:
        lines.append(
            f"chunks: {planned.num_chunks} x {planned.seeds_per_chunk:,} seeds "
            "(progress counts the arrivals of all of them); devices: "
            f"{planned.num_devices}, about "
            f"{_size(planned.estimated_bytes / planned.num_devices)} on each"
        )
    lines += _changes(config, data)
    everything = (data.initial_features, data.features, data.test_features)
    lines += scaling_note(config, everything)
    arriving = data.labels[data.labels != UNLABELLED]
    if arriving.size < data.labels.size:
        lines.append(
            f"note: {data.labels.size - arriving.size:,} of the rows that arrive have "
            "no label: they are neither trained on nor counted"
        )
    if data.num_copies:
        lines.append(
            f"note: {data.num_copies:,} rows after the last arrival repeat rows that "
            "were trained on: they are no test rows"
        )
    absent = set(np.unique(arriving)) - set(np.unique(data.initial_labels))
    if absent:
        classes = ", ".join(data.class_names[k] for k in sorted(absent))
        lines.append(
            f"note: no clean row is of class {classes}: L and C learn it only from "
            "rows that an expert labels"
        )
    available = free_bytes(planned.num_devices)
    if available is not None and planned.estimated_bytes > available:
        lines.append(
            f"warning: that is more than the {_size(available)} that are free; lower "
            "--seeds_per_chunk, --schemes or --num_batches"
        )
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _all_seeds(result: SweepResult, processes: Processes) -> SweepResult:
    """What all processes have measured, in process 0; elsewhere what it is given."""
    if processes.count == 1:
        return result
    mine = chunks.Part(*(getattr(result, name) for name in chunks.Part._fields))
    parts = [chunks.Part.from_bytes(x) for x in processes.gather(mine.to_bytes())]
    if not parts:
        return result
    return dataclasses.replace(result, **chunks.join(parts)._asdict())


def run(
    config: Config,
    console: Console | None = None,
    processes: Processes = SINGLE,
    *,
    keep_chunks: bool = False,
) -> SweepResult:
    """Runs the experiment and writes its report.

    Args:
      config: what to run; see the flags.
      console: where to print; nothing is printed without.
      processes: among which seeds are shared out; only process 0 prints, and writes
        the report.
      keep_chunks: leave what was computed in `CHUNKS`, to be taken up by another run
        with ``config.resume``, rather than delete it once the report is written.

    Returns:
      What was measured; in another process than 0, for its own seeds.

    Raises:
      ValueError, OSError: for bad input, before any long work.
    """
    if console is None or not processes.first:
        console = Console(quiet=True)
    output_dir = check_output_dir(config.output_dir)
    config = complete(config)
    settings = fingerprint.settings(config)
    processes.agree("settings", settings)
    dataset = read(config)
    config = suit(config, dataset)
    data = cut(config, dataset)
    settings["data"] = fingerprint.digest(data)
    processes.agree("data", {"data": settings["data"]})
    planned = prepare(config, data, processes)
    own = f"_{processes.index}_of_{processes.count}" if processes.count > 1 else ""
    store = chunks.Store(output_dir / f"{CHUNKS}{own}", settings, resume=config.resume)
    announce(config, data, planned, console, processes)
    if config.resume:
        there = sum(len(part.seeds) for part in store.finished)
        console.print(f"--resume: {there} seeds are finished", highlight=False)
    total = planned.num_arrivals * planned.num_chunks
    with progress.Reporter(total, console) as on_progress:
        result = planned.run(on_progress, store)
    result = _all_seeds(result, processes)
    if processes.first:
        curve = _write(config, result, output_dir)
    processes.written()
    if not keep_chunks:
        store.remove()
    if processes.first:
        _show(result, curve, output_dir, console)
    return result


def _write(config: Config, result: SweepResult, output_dir: Path) -> list:
    """Writes tables and pictures; returns the points of a budget curve."""
    result.config = dataclasses.asdict(config)
    report.write_report(result, output_dir)
    curve = []
    if config.sweep_budget:
        curve = budget_curve.points(config, result)
        budget_curve.write_csv(curve, output_dir / "budget.csv")
        budget_curve.plot(curve, result, output_dir / "budget.png")
    return curve


def _show(result: SweepResult, curve: list, output_dir: Path, console: Console) -> None:
    """Prints the table, and how long it took."""
    report.print_summary(result, console)
    if curve:
        budget_curve.show(curve, console)
    console.print(
        f"compiled in {result.compile_seconds:.1f} s, ran in "
        f"{result.run_seconds:.1f} s, "
        f"{1e3 * result.run_seconds / result.num_arrivals:,.3g} ms an arrival"
        f"{progress.peak_memory()}; tables and pictures are in {output_dir}",
        highlight=False,
    )


def main(argv: Sequence[str]) -> None:
    """Runs the experiment that the flags describe."""

    def work() -> None:
        with distributed.join() as processes:
            run(config_from_flags(), Console(), processes)

    command.call(argv, work)


if __name__ == "__main__":
    flags.define()
    distributed.define_flags()
    __doc__ = f"{__doc__}{flags.help_text()}"  # for --help
    app.run(main)
