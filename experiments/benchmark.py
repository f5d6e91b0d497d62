r"""How long a sweep takes, what it spends on training, and one arrival's latency.

  python -m experiments.benchmark --repeats=3

Figures are medians over interleaved repetitions in one run, since these machines are
noisy: compare them with each other, not with those of another day. Takes the flags of
experiments.stream (schemes, learners, sizes); prints a table and writes
benchmark.json to --output_dir.
"""

import dataclasses
import json
import statistics
import time
from collections.abc import Sequence

import jax
import numpy as np
from absl import app
from absl import flags as absl_flags
from rich.console import Console
from rich.table import Table

from experiments import command, flags, names, stream
from rad_jax import Training, rad
from rad_jax.files import atomic_path, check_output_dir
from rad_jax.online import OnlineRad
from rad_jax.types import UNLABELLED

#: The first arrivals compile; they are not timed.
_COMPILING = 3


def seed_scaling(
    config: stream.Config, seeds: Sequence[int], repeats: int, console: Console
) -> list[dict]:
    """Seconds per run (one seed of one scheme), and the share that is training.

    Training is timed as the difference between sweeps with all gradient steps and
    with half of them at each arrival: both sweeps do everything else alike.

    Args:
      config: completed, one noise rate.
      seeds: numbers of seeds.
      repeats: interleaved repetitions; the median counts.
      console: where to say what is going on.

    Returns:
      A dict for each number of seeds.
    """
    data = stream.load(config)
    half = dataclasses.replace(config, steps_per_batch=config.steps_per_batch // 2)
    sweeps = {
        (n, name): stream.prepare(dataclasses.replace(which, num_seeds=n), data)
        for n in seeds
        for name, which in (("all", config), ("half", half))
    }
    compile_seconds = {}
    for (n, name), planned in sweeps.items():
        console.print(f"compiling and warming up: {n} seeds, {name} of the steps")
        compile_seconds[n, name] = planned.run().compile_seconds
    times: dict = {key: [] for key in sweeps}
    for _ in range(repeats):
        for key, planned in sweeps.items():
            times[key].append(planned.run().run_seconds)
    rows = []
    for n in seeds:
        whole = statistics.median(times[n, "all"])
        fewer = statistics.median(times[n, "half"])
        steps, steps_of_half = (sweeps[n, name].num_steps for name in ("all", "half"))
        training = (whole - fewer) * steps / (steps - steps_of_half)
        runs = n * len(config.schemes)
        rows.append(
            {
                "seeds": n,
                "runs": runs,
                "compile_seconds": compile_seconds[n, "all"],
                "seconds": whole,
                "seconds_per_seed": whole / n,
                "training_share": training / whole,
                "us_per_gradient_step": 1e6 * training / steps,
            }
        )
    return rows


def latency(config: stream.Config, repeats: int) -> dict:
    """Milliseconds of one arrival that Python feeds, batches of changing length."""
    data = stream.load(config)
    assert config.batch_size is not None
    assert config.minibatch_size is not None
    training = Training(
        steps=config.steps_per_batch,
        initial_steps=config.initial_steps,
        minibatch_size=config.minibatch_size,
    )
    label_model, classifier = (
        names.learner(
            name,
            training=training,
            learning_rate=config.learning_rate,
            hidden=config.hidden,
            neighbours=config.neighbours,
        )
        for name in (config.label_model, config.classifier)
    )
    arm = names.arm(
        "active_limited",
        query_budget=config.query_budget or 1,
        score=config.uncertainty,
        source=config.uncertainty_source,
    )
    online = OnlineRad(
        rad(
            label_model=label_model,
            classifier=classifier,
            selection=arm.scheme,
            num_classes=data.num_classes,
            memory_capacity=len(data.initial_labels) + data.labels.size,
        ),
        max_batch_size=config.batch_size,
    )
    online.start(data.initial_features, data.initial_labels)
    rng = np.random.default_rng(0)
    times: dict[str, list[float]] = {"judge": [], "answer": [], "learn": [], "all": []}
    arrivals = min(len(data.labels), 3 + 10 * repeats)
    for i in range(arrivals):
        n = int(rng.integers(config.batch_size // 2, config.batch_size + 1))
        x, y = data.features[i][:n], data.labels[i][:n]
        marks = [time.perf_counter()]
        verdict = online.judge(x, y)
        marks.append(time.perf_counter())
        asked = verdict.queried & (y != UNLABELLED)
        online.answer(verdict.row_id[asked], y[asked])
        jax.block_until_ready(online.state)
        marks.append(time.perf_counter())
        online.learn()
        jax.block_until_ready(online.state)
        marks.append(time.perf_counter())
        if i >= _COMPILING:
            for name, seconds in zip(times, np.diff(marks), strict=False):
                times[name].append(1e3 * float(seconds))
            times["all"].append(1e3 * (marks[-1] - marks[0]))
    return {f"{name}_ms": statistics.median(ms) for name, ms in times.items()} | {
        "arrivals": len(times["all"])
    }


def run(
    config: stream.Config, seeds: Sequence[int], repeats: int, console: Console
) -> dict:
    """Measures and prints everything; writes benchmark.json.

    Args:
      config: see the flags; the first noise rate is used.
      seeds: numbers of seeds.
      repeats: of every figure.
      console: where to print.

    Returns:
      What was measured.
    """
    output_dir = check_output_dir(config.output_dir)
    if config.num_batches is not None and config.num_batches <= _COMPILING:
        raise ValueError(
            f"--num_batches must be more than {_COMPILING} to time arrivals, got "
            f"{config.num_batches}"
        )
    if repeats < 1 or not seeds or min(seeds) < 1:
        raise ValueError(
            f"--repeats and --seeds must be at least 1, got {repeats} and {seeds}"
        )
    config = stream.complete(config)
    config = stream.suit(config, stream.read(config))
    config = dataclasses.replace(config, noise_rates=(config.noise_rates or ())[:1])
    if config.steps_per_batch < 2:
        raise ValueError("--steps_per_batch must be at least 2 to time training")
    scaling = seed_scaling(config, seeds, repeats, console)
    table = Table(title=f"{config.dataset}, {len(config.schemes)} schemes")
    for column in scaling[0]:
        table.add_column(column.replace("_", " "), justify="right")
    for row in scaling:
        table.add_row(
            *(f"{x:.3g}" if isinstance(x, float) else str(x) for x in row.values())
        )
    console.print(table)
    arrival = latency(config, repeats)
    console.print(
        "one arrival from Python: "
        + ", ".join(f"{k.replace('_', ' ')} {v:.3g}" for k, v in arrival.items()),
        highlight=False,
    )
    result = {
        "config": dataclasses.asdict(config),
        "device": jax.devices()[0].device_kind,
        "seed_scaling": scaling,
        "latency": arrival,
    }
    with atomic_path(output_dir / "benchmark.json") as path:
        path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return result


def main(argv: Sequence[str]) -> None:
    """Runs the benchmark that the flags describe."""

    def work() -> None:
        seeds = flags.numbers("seeds", absl_flags.FLAGS.seeds, int)
        run(stream.config_from_flags(), seeds, absl_flags.FLAGS.repeats, Console())

    command.call(argv, work)


if __name__ == "__main__":
    flags.define()
    __doc__ = f"{__doc__}{flags.help_text()}"  # for --help
    absl_flags.DEFINE_list("seeds", ["1", "8", "32"], "Numbers of seeds to time.")
    absl_flags.DEFINE_integer("repeats", 3, "Repetitions; medians are reported.")
    app.run(main)
