"""Figure 3: how far runs spread that differ in noise, in the model, or in both."""

import math
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from experiments import progress, study
from experiments.study import Config
from rad_jax import offline, study_figures
from rad_jax.spread import mean_std_ci95
from rad_jax.types import PRNGKey

#: What runs differ in, as in `rad_jax.sweep`.
SETTINGS = ("fixed_model", "fixed_noise", "double_random")


class Randomness(NamedTuple):
    """Figure 3: accuracies ``[E, R]`` by learner and setting."""

    noise_rates: tuple[float, ...]
    accuracy: dict[str, dict[str, np.ndarray]]


def run(config: Config, output_dir: Path, console: Console) -> Randomness:
    """Spread over runs that differ in noise, in the model, or in both.

    Args:
      config: completed.
      output_dir: takes config.json, randomness.csv and randomness_LEARNER.png.
      console: where to print.
    """
    assert config.noise_rates is not None
    assert config.learners is not None
    rows = study.load_rows(config)
    learners = {
        name: study.make_learner(config, name, rows) for name in config.learners
    }
    bases = study.base_keys(config)
    shape = (len(SETTINGS), len(config.noise_rates), config.runs)
    # By setting and run: which key of initialisation and order, and which of noise.
    run = np.arange(config.runs)
    model = np.stack([0 * run, run, run])
    noise = np.stack([run, 0 * run, run])

    def key(base: PRNGKey, index: np.ndarray) -> PRNGKey:
        """One key for each run, in the order setting, rate, run."""
        spread = np.broadcast_to(index[:, None], shape).ravel()
        return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(base, spread)

    noise_keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(bases[2], run)
    given = study.given_labels(config, rows, noise_keys)  # [E, R, n]
    labels = np.concatenate([given[:, noise[s]] for s in range(len(SETTINGS))])
    result = Randomness(config.noise_rates, {})
    study.describe(console, config, rows)
    for name, learner in learners.items():
        study.announce(console, config, learner, rows, math.prod(shape))
        found = offline.study(
            learner,
            rows.train,
            labels.reshape(-1, labels.shape[-1]),
            rows.test,
            num_classes=rows.num_classes,
            init_key=key(bases[0], model),
            order_key=key(bases[1], model),
            runs_per_chunk=config.runs_per_chunk,
        )
        accuracy = found.accuracy(rows.test_label).reshape(shape)
        result.accuracy[name] = dict(zip(SETTINGS, accuracy, strict=True))
        study.write_config(config, output_dir)
        _write_randomness(result, output_dir)
        study_figures.plot_randomness(
            result.accuracy[name],
            config.noise_rates,
            output_dir / f"randomness_{name}.png",
            title=f"{config.dataset}, {name.replace('_', ' ')}, {config.runs} runs",
        )
        _print_randomness(result, name, console)
        progress.say(
            console,
            f"{name}: compiled in {found.compile_seconds:.1f} s, ran in "
            f"{found.run_seconds:.1f} s",
        )
    return result


def _write_randomness(result: Randomness, output_dir: Path) -> None:
    study.write_csv(
        output_dir / "randomness.csv",
        ["learner", "setting", "noise_rate", "run", "accuracy"],
        (
            (name, setting, rate, r, value)
            for name, settings in result.accuracy.items()
            for setting, accuracy in settings.items()
            for rate, values in zip(result.noise_rates, accuracy, strict=True)
            for r, value in enumerate(values)
        ),
    )


def _print_randomness(result: Randomness, name: str, console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("noise", justify="right")
    for setting in SETTINGS:
        table.add_column(f"{setting} (std)", justify="right", no_wrap=True)
    for e, rate in enumerate(result.noise_rates):
        cells = [f"{rate:g}"]
        for accuracy in result.accuracy[name].values():
            mean, std, _ = mean_std_ci95(accuracy[e])
            spread = "-" if math.isnan(std) else f"{std:.4f}"
            cells.append(f"{mean:.3f} ({spread})")
        table.add_row(*cells)
    console.print(table)
