"""Figure 1: test accuracy over label noise, per learner."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from experiments import progress, reference, sklearn_study, study
from experiments.devices import num_cores
from experiments.study import Config
from rad_jax import offline, study_figures
from rad_jax.spread import mean_std_ci95
from rad_jax.study_figures import Curve, Curves

_OURS, _THEIRS = "rad_jax", "scikit-learn"


class Measured(NamedTuple):
    """One learner's figures over noise rates and runs.

    Attributes:
      accuracy: ``[E, R]``.
      balanced_accuracy: ``[E, R]``.
      compile_seconds: of compilation.
      run_seconds: of the rest.
    """

    accuracy: np.ndarray
    balanced_accuracy: np.ndarray
    compile_seconds: float
    run_seconds: float


class Offline(NamedTuple):
    """Figure 1.

    Attributes:
      noise_rates: ``[E]``.
      realised_noise: ``[E, R]``.
      majority: accuracy of predicting the commonest class.
      ours: by learner.
      theirs: scikit-learn's, by learner; empty unless asked for.
    """

    noise_rates: tuple[float, ...]
    realised_noise: np.ndarray
    majority: float
    ours: dict[str, Measured]
    theirs: dict[str, Measured]


def _measured(predictions: np.ndarray, rows: study.Rows, shape, seconds) -> Measured:
    result = offline.Result(predictions, *seconds)
    return Measured(
        result.accuracy(rows.test_label).reshape(shape),
        result.balanced_accuracy(rows.test_label).reshape(shape),
        *seconds,
    )


def run(config: Config, output_dir: Path, console: Console) -> Offline:
    """Accuracy over label noise, learner by learner.

    Args:
      config: completed.
      output_dir: takes config.json, runs.csv, summary.csv, times.csv and offline.png;
        they are written anew after each learner.
      console: where to print.
    """
    assert config.noise_rates is not None
    assert config.learners is not None
    published = _published(config)
    rows = study.load_rows(config)
    learners = {
        name: study.make_learner(config, name, rows) for name in config.learners
    }
    init_key, order_key, noise_key = study.base_keys(config)
    given = study.given_labels(config, rows, jax.random.split(noise_key, config.runs))
    result = Offline(
        noise_rates=config.noise_rates,
        realised_noise=np.mean(given != rows.train_label, axis=-1),
        majority=rows.majority,
        ours={},
        theirs={},
    )
    shape = given.shape[:2]
    labels = given.reshape(-1, given.shape[-1])
    study.describe(console, config, rows)
    for name, learner in learners.items():
        study.announce(console, config, learner, rows, len(labels))
        found = offline.study(
            learner,
            rows.train,
            labels,
            rows.test,
            num_classes=rows.num_classes,
            init_key=init_key,
            order_key=order_key,
            runs_per_chunk=config.runs_per_chunk,
        )
        seconds = (found.compile_seconds, found.run_seconds)
        result.ours[name] = _measured(found.predictions, rows, shape, seconds)
        if config.compare_sklearn:
            result.theirs[name] = _counterpart(
                config, name, rows, labels, shape, console
            )
        study.write_config(config, output_dir)
        _write_offline(result, output_dir)
        _draw_offline(config, result, published, output_dir)
        _print_learner(result, name, console)
    if config.compare_sklearn:
        _print_times(result, console)
    return result


def _published(config: Config) -> dict[str, Curve]:
    if not config.reference_curves:
        return {}
    dataset = config.reference_dataset or reference.DATASETS.get(config.dataset)
    if dataset is None:
        raise ValueError(
            f"--reference_curves needs --reference_dataset: it is not known what the "
            f"file calls {config.dataset}"
        )
    return reference.load(config.reference_curves, dataset, config.learners or ())


def _counterpart(
    config: Config,
    name: str,
    rows: study.Rows,
    labels: np.ndarray,
    shape,
    console: Console,
) -> Measured:
    progress.say(
        console,
        f"{name} in scikit-learn: {len(labels):,} runs, {num_cores()} at a time",
    )
    settings = sklearn_study.Settings(
        neighbours=config.neighbours or 1,
        hidden=config.hidden,
        learning_rate=config.learning_rate or 1e-3,
        minibatch_size=min(config.minibatch_size, len(rows.train)),
        epochs=config.epochs,
        svm_c=config.svm_c,
        num_trees=config.num_trees,
        max_depth=config.max_depth,
        max_features=config.max_features,
        seed=config.seed,
    )
    predictions, seconds = sklearn_study.study(
        name, settings, rows.train, labels, rows.test
    )
    return _measured(predictions, rows, shape, (0.0, seconds))


def _sources(result: Offline) -> Iterable[tuple[str, str, Measured]]:
    for source, measured in ((_OURS, result.ours), (_THEIRS, result.theirs)):
        for name, figures in measured.items():
            yield source, name, figures


def _write_offline(result: Offline, output_dir: Path) -> None:
    num_runs = result.realised_noise.shape[1]
    study.write_csv(
        output_dir / "runs.csv",
        [
            "source",
            "learner",
            "noise_rate",
            "run",
            "realised_noise",
            "accuracy",
            "balanced_accuracy",
        ],
        (
            (
                source,
                name,
                rate,
                r,
                result.realised_noise[e, r],
                figures.accuracy[e, r],
                figures.balanced_accuracy[e, r],
            )
            for source, name, figures in _sources(result)
            for e, rate in enumerate(result.noise_rates)
            for r in range(num_runs)
        ),
    )
    study.write_csv(
        output_dir / "summary.csv",
        [
            "source",
            "learner",
            "noise_rate",
            "metric",
            "mean",
            "std",
            "ci95",
            "runs",
            "majority",
        ],
        (
            (
                source,
                name,
                rate,
                metric,
                *mean_std_ci95(getattr(figures, metric)[e]),
                num_runs,
                result.majority,
            )
            for source, name, figures in _sources(result)
            for e, rate in enumerate(result.noise_rates)
            for metric in ("accuracy", "balanced_accuracy")
        ),
    )
    study.write_csv(
        output_dir / "times.csv",
        ["source", "learner", "compile_seconds", "run_seconds"],
        (
            (source, name, figures.compile_seconds, figures.run_seconds)
            for source, name, figures in _sources(result)
        ),
    )


def _print_learner(result: Offline, name: str, console: Console) -> None:
    ours, theirs = result.ours[name], result.theirs.get(name)
    progress.say(
        console,
        f"{name}: compiled in {ours.compile_seconds:.1f} s, ran in "
        f"{ours.run_seconds:.1f} s"
        + (f"; scikit-learn {theirs.run_seconds:.1f} s" if theirs else ""),
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    headings = ["noise", "realised", "accuracy", "std", "balanced", "majority"]
    for heading in headings + (["scikit-learn", "std"] if theirs else []):
        table.add_column(heading, justify="right", no_wrap=True)
    for e, rate in enumerate(result.noise_rates):
        cells = [rate, result.realised_noise[e].mean()]
        cells += mean_std_ci95(ours.accuracy[e])[:2]
        cells += [ours.balanced_accuracy[e].mean(), result.majority]
        if theirs:
            cells += mean_std_ci95(theirs.accuracy[e])[:2]
        first, *others = ("-" if math.isnan(x) else f"{x:.3f}" for x in cells)
        table.add_row(f"{float(first):g}", *others)
    console.print(table)


def _print_times(result: Offline, console: Console) -> None:
    running = sum(x.run_seconds for x in result.ours.values())
    compiling = sum(x.compile_seconds for x in result.ours.values())
    theirs = sum(x.run_seconds for x in result.theirs.values())
    progress.say(
        console,
        f"in all: {running + compiling:.1f} s, of which {compiling:.1f} s compiling; "
        f"scikit-learn {theirs:.1f} s on {num_cores()} cores: "
        f"{theirs / (running + compiling):.1f} times as long, "
        f"{theirs / running:.1f} times without compilation",
    )


def _draw_offline(
    config: Config, result: Offline, published: dict[str, Curve], output_dir: Path
) -> None:
    def curves(measured: dict[str, Measured]) -> dict[str, Curve]:
        return {
            name: Curve(
                np.asarray(result.noise_rates), *mean_std_ci95(figures.accuracy)[:2]
            )
            for name, figures in measured.items()
        }

    study_figures.plot_offline(
        Curves(curves(result.ours), curves(result.theirs), published),
        output_dir / "offline.png",
        majority=result.majority,
        title=f"{config.dataset}, {config.runs} runs",
        other_name=f"{_THEIRS}, same labels",
        reference_name="published curve",
    )
