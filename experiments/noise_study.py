r"""Noise as it was asked for, as it came out, and as it is estimated.

  python -m experiments.noise_study
  python -m experiments.noise_study --dataset=google_cluster --data_dir=DIR
  python -m experiments.noise_study --noise=pair_flip --noise_rates=0.1,0.3
  python -m experiments.noise_study --noise_schedule='sin(0.4,0.2,8)'

Without a flag that says which noise: symmetric with rates 0.2, 0.4 and 0.6, pairs with
0.3. A stream is run at each; from the probabilities with which its rows were judged
when they arrived (means of L's and C's), the transition matrix T[true, given] is
estimated by the library (with the clean rows held out, as they are judged in the end),
by the confident joint (Northcutt et al. 2021), and by taking the most probable class
for the true one.

Prints errors against the matrix that was asked for and the one that came out. Writes
estimates.csv (a line for each case, seed and method), transition.csv (matrices, means
over seeds), rates.csv (by arrival), config.json, transition.png and rates.png to
--output_dir. Without --noise_schedule, rates.png has an example of each schedule.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from absl import app
from absl import flags as absl_flags
from rich.console import Console

from experiments import (
    command,
    flags,
    noise_cases,
    noise_estimates,
    noise_report,
    stream,
)
from experiments.noise_cases import Case
from experiments.noise_report import Outcome
from experiments.progress import Reporter, say
from experiments.settings import Config, complete, config_from_flags, scaling_note, suit
from rad_jax import rad, sweep
from rad_jax.datasets import StreamData
from rad_jax.files import check_output_dir
from rad_jax.rad import Rad

#: Schemes by which rows may be chosen: they ask nobody and look at no true label.
SCHEMES = ("voting", "basic", "slim", "no_selection")

#: Flags that have no meaning here.
_OTHERS = (
    "test_size",
    "randomness",
    "cleaning_window",
    "memory_window",
    "label_delay",
    "min_per_class",
    "alpha",
    "query_budget",
    "sweep_budget",
    "total_budget",
    "dynamic_budget",
    "budget_cap",
    "uncertainty",
    "sweep_uncertainty",
    "uncertainty_source",
    "expert_error",
    "new_classes",
    "seeds_per_chunk",
    "num_devices",
    "resume",
)


def check(config: Config) -> tuple[Config, bool]:
    """Fills in what needs no data, and checks it.

    Args:
      config: as given. `schemes` must be one of `SCHEMES`; left alone, it is voting.

    Returns:
      The configuration, and whether the noise is left to `noise_cases.STANDARD`.

    Raises:
      ValueError: naming the flag, what came and what is allowed.
    """
    scheme = SCHEMES[:1] if config.schemes == Config.schemes else config.schemes
    if len(scheme) != 1 or scheme[0] not in SCHEMES:
        raise ValueError(
            f"--schemes must be one of {', '.join(SCHEMES)} here, got "
            f"{','.join(scheme) or 'none'}"
        )
    for name in _OTHERS:
        if getattr(config, name) != getattr(Config, name):
            raise ValueError(f"--{name} has no meaning for experiments.noise_study")
    noise = ("noise", "noise_rates", "noise_matrix", "noise_schedule")
    standard = all(getattr(config, name) == getattr(Config, name) for name in noise)
    return dataclasses.replace(complete(config), schemes=scheme), standard


def _cases(config: Config, standard: bool) -> list[Case]:
    if standard:
        return [noise_cases.case(config, *one) for one in noise_cases.STANDARD]
    schedule = config.noise_schedule
    rates = config.noise_rates or ()
    return [noise_cases.case(config, config.noise, rate, schedule) for rate in rates]


def _plan(config: Config, data: StreamData) -> sweep.Sweep:
    """What it takes: all runs go at once, on one device (`judge_stream`)."""
    config = dataclasses.replace(
        config, seeds_per_chunk=config.num_seeds, num_devices=1
    )
    return stream.prepare(config, data)


def _algorithm(config: Config, planned: sweep.Sweep, data: StreamData) -> Rad:
    (arm,) = planned.arms
    fraction = 0.2
    initial = len(data.initial_labels)
    return rad(
        label_model=None
        if arm.one_model
        else stream.learner(config, config.label_model),
        classifier=stream.learner(config, config.classifier),
        selection=arm.scheme,
        num_classes=data.num_classes,
        memory_capacity=initial - round(fraction * initial) + data.labels.size,
        validation_fraction=fraction,
        calibrate=config.calibrate,
    )


def _announce(
    config: Config, cases: Sequence[Case], planned: sweep.Sweep, console: Console
) -> None:
    num_runs = len(cases) * config.num_seeds
    say(
        console,
        f"{config.dataset} ({config.order}): {config.initial_size:,} clean rows, then "
        f"{planned.num_arrivals} arrivals of {config.batch_size:,}; L = "
        f"{config.label_model}, C = {config.classifier}, {config.schemes[0]}",
    )
    say(console, f"noise: {', '.join(case.name for case in cases)}")
    say(
        console,
        f"{len(cases)} cases x {config.num_seeds} seeds = {num_runs:,} runs, "
        f"{planned.num_steps:,} gradient steps, about "
        f"{planned.estimated_bytes / 1e6:,.0f} MB of memory; compiling comes first",
    )


def run(config: Config, console: Console | None = None) -> Outcome:
    """Runs the study and writes its report.

    Args:
      config: what to run; see the flags.
      console: where to print; nothing is printed without.

    Returns:
      What was measured.

    Raises:
      ValueError, OSError: for bad input, before any long work.
    """
    console = console or Console(quiet=True)
    output_dir = check_output_dir(config.output_dir)
    config, standard = check(config)
    dataset = stream.read(config)
    config = suit(config, dataset)
    data = stream.cut(config, dataset)
    cases = _cases(config, standard)
    rates = tuple(case.rate for case in cases)
    planned = _plan(dataclasses.replace(config, noise_rates=rates), data)
    keys = noise_cases.noise_keys(config.seed, config.num_seeds)
    examples = []
    if config.noise_schedule is None:
        examples = noise_cases.examples(config, planned.num_arrivals)
    _announce(config, cases, planned, console)
    rows = (data.initial_features, data.features)
    say(console, *scaling_note(config, rows, dataset.feature_names))
    realised = [noise_cases.realise(case, data, keys) for case in cases]
    of_examples = [noise_cases.realise(case, data, keys) for case in examples]
    algo = _algorithm(config, planned, data)
    given = np.concatenate([one.given for one in realised])
    with Reporter(planned.num_arrivals, console) as on_progress:
        judged = noise_estimates.judge_stream(
            algo, data, given, config.seed, on_progress
        )
    num_seeds = config.num_seeds
    found = [
        noise_estimates.compare(judged, given, slice(i, i + num_seeds))
        for i in range(0, len(given), num_seeds)
    ]
    outcome = Outcome(cases, realised, found, examples, of_examples)
    noise_report.write(config, outcome, data.class_names, output_dir)
    noise_report.show(outcome, console)
    say(
        console,
        f"compiled in {judged.compile_seconds:.1f} s, ran in {judged.run_seconds:.1f} "
        f"s; tables and pictures are in {output_dir}",
    )
    return outcome


# --- flags ----------------------------------------------------------------------------


def define_flags() -> None:
    """Defines the shared flags, with the defaults of this script."""
    flags.define()
    defaults = {"schemes": SCHEMES[0], "output_dir": "results/noise_study"}
    for name, value in defaults.items():
        absl_flags.FLAGS.set_default(name, value)
    meaning = {
        "schemes": f"By which rows are chosen, one of {', '.join(SCHEMES)}.",
        "noise_rates": "Shares of wrong labels, in [0, 1]; by default 0.4 if --noise "
        "is given. What a matrix or schedule gives is multiplied by it, by default by "
        "1.",
    }
    for name, text in meaning.items():
        absl_flags.FLAGS[name].help = text
    for field in dataclasses.fields(Config):
        if field.name not in _OTHERS:
            absl_flags.declare_key_flag(field.name)


def read_flags() -> Config:
    """The flags as they were given.

    Raises:
      ValueError: for a list flag that does not hold numbers, or a flag without meaning
        here.
    """
    for name in _OTHERS:
        if absl_flags.FLAGS[name].present:
            raise ValueError(f"--{name} has no meaning for experiments.noise_study")
    config = config_from_flags()
    kind_alone = config.noise_schedule is None and config.noise_matrix is None
    if absl_flags.FLAGS["noise"].present and config.noise_rates is None and kind_alone:
        config = dataclasses.replace(config, noise_rates=(0.4,))
    return config


def main(argv: Sequence[str]) -> None:
    """Runs the study that the flags describe."""
    command.call(argv, lambda: run(read_flags(), Console()))


if __name__ == "__main__":
    define_flags()
    app.run(main)
