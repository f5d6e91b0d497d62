"""The on-line protocol: ours for many seeds at once against a scikit-learn loop."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from experiments import bench_sklearn, stream
from experiments.bench_presets import Sizes
from experiments.bench_timing import Figure, Part, figure, interleave, ratio
from experiments.worker_processes import Workers
from rad_jax import noise
from rad_jax.datasets import StreamData
from rad_jax.statistics import SweepResult

#: How much lower an accuracy may be that counts as equal.
TOLERANCE = 0.005

#: Rows of a minibatch, on both sides.
MINIBATCH = 200


def configure(config: stream.Config, sizes: Sizes) -> stream.Config:
    """The protocol of the paper's on-line experiment on the data of `config`.

    Raises:
      ValueError: naming the flag, for a noise other than symmetric.
    """
    if config.noise != "symmetric" or config.noise_schedule is not None:
        raise ValueError(
            "--parts=online compares with scikit-learn under symmetric noise of a "
            f"constant rate, got --noise={config.noise} and "
            f"--noise_schedule={config.noise_schedule}"
        )
    return stream.complete(
        dataclasses.replace(
            config,
            schemes=bench_sklearn.SCHEMES,
            label_model="knn",
            classifier="mlp",
            noise_rates=(config.noise_rates or (0.4,))[:1],
            initial_size=sizes.initial_size,
            batch_size=sizes.batch_size,
            num_batches=sizes.num_batches,
            test_size=sizes.test_size,
            minibatch_size=MINIBATCH,
            num_seeds=sizes.online_seeds,
            randomness="fixed_model",
            alpha="test",  # then no clean row is held out
        )
    )


def given_labels(
    data: StreamData, rate: float, num_seeds: int, seed: int = 0
) -> np.ndarray:
    """Labels ``[n, T, N]`` as the first seeds of a sweep see them.

    Args:
      data: the stream.
      rate: of symmetric noise.
      num_seeds: n.
      seed: base of the sweep's keys.
    """
    base = jax.random.fold_in(jax.random.key(seed), 2)
    kind = noise.symmetric(rate)

    def batch(key, index, label):
        return noise.corrupt(
            kind,
            kind.params,
            label,
            jnp.ones(label.shape, bool),
            num_classes=data.num_classes,
            key=jax.random.fold_in(key, index),
        )

    over_batches = jax.vmap(batch, in_axes=(None, 0, 0))
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(base, jnp.arange(num_seeds))
    arrivals = jnp.arange(1, len(data.labels) + 1)
    label = jnp.asarray(data.labels)
    over_seeds = jax.jit(jax.vmap(over_batches, in_axes=(0, None, None)))
    return np.asarray(over_seeds(keys, arrivals, label))


def refit_steps(sizes: Sizes) -> tuple[int, int]:
    """``(initial_steps, steps)``, with which "refit" makes `epochs` passes each time.

    A refit takes ``initial_steps + steps * i`` at arrival i. Over all arrivals that is
    as many steps as scikit-learn takes on all rows, or a few more.
    """
    rows = sizes.initial_size + sizes.batch_size * np.arange(sizes.num_batches + 1)
    per_epoch = -(-rows // MINIBATCH)
    growth = np.sum(per_epoch[1:] - per_epoch[0])
    arrivals = np.sum(np.arange(sizes.num_batches + 1))
    steps = -(-sizes.epochs * int(growth) // int(arrivals))
    return sizes.epochs * int(per_epoch[0]), max(1, steps)


def _accuracies(result: SweepResult, seeds: int) -> dict[str, np.ndarray]:
    """By model, ``[S]`` means over the first seeds and all arrivals."""
    names = {
        "ensemble": "accuracy",
        "label_model": "label_model_accuracy",
        "classifier": "classifier_accuracy",
    }
    return {
        model: result.history[name][:, 0, :seeds, 1:].mean(axis=(1, 2))
        for model, name in names.items()
    }


def measure(config: stream.Config, sizes: Sizes, console: Console) -> Part:
    """Times both sides in turns, per seed and arrival, all three schemes together.

    Args:
      config: data set and base of the keys.
      sizes: of the preset.
      console: for progress.

    Returns:
      Figures ``speedup_vs_sklearn.equal_epochs`` and ``.equal_accuracy``.

    Raises:
      ValueError: for a noise that the scikit-learn side does not know.
    """
    config = configure(config, sizes)
    data = stream.load(config)
    initial_steps, steps = refit_steps(sizes)
    per_epoch = -(-sizes.initial_size // MINIBATCH)
    ours = {
        "equal_epochs": dataclasses.replace(
            config, training="refit", initial_steps=initial_steps, steps_per_batch=steps
        ),
        "equal_accuracy": dataclasses.replace(
            config,
            training="continue",
            initial_steps=sizes.initial_epochs * per_epoch,
            steps_per_batch=sizes.steps,
        ),
    }
    planned = {name: stream.prepare(c, data) for name, c in ours.items()}
    results: dict[str, SweepResult] = {}
    compiled = dict.fromkeys(ours, 0.0)
    # The other takes too long to be run once more; no compilation is timed anyway.
    console.print("online: compiling and warming up, equal_accuracy", highlight=False)
    compiled["equal_accuracy"] = planned["equal_accuracy"].run().compile_seconds

    arrivals = len(data.labels)
    (rate,) = config.noise_rates or ()
    settings = bench_sklearn.settings(
        neighbours=config.neighbours,
        hidden=config.hidden,
        learning_rate=config.learning_rate or 1e-3,
        epochs=sizes.epochs,
    )
    with Workers() as workers:
        seeds = sizes.sklearn_seeds * workers.number
        given = given_labels(data, rate, seeds, config.seed)
        theirs: list[bench_sklearn.Measured] = []

        def scikit_learn() -> float:
            console.print(f"online: scikit-learn, {seeds} seeds", highlight=False)
            theirs.append(bench_sklearn.protocol(workers, data, given, settings))
            return theirs[-1].seconds_per_seed / arrivals

        def timed(name: str):
            def run() -> float:
                console.print(f"online: ours, {name}", highlight=False)
                results[name] = planned[name].run()
                compiled[name] += results[name].compile_seconds
                return results[name].run_seconds / config.num_seeds / arrivals

            return run

        times = interleave(
            {**{name: timed(name) for name in ours}, "scikit_learn": scikit_learn},
            sizes.online_repeats,
        )
    reference = theirs[-1]
    accuracy = {name: _accuracies(r, seeds) for name, r in results.items()}
    accuracy["scikit_learn"] = {
        model: getattr(reference, model).mean(axis=(1, 2))
        for model in ("ensemble", "label_model", "classifier")
    }
    lower, worst = _lower(accuracy["equal_accuracy"], accuracy["scikit_learn"])
    steps_per_arrival = {
        name: sweep.num_steps / config.num_seeds / arrivals
        for name, sweep in planned.items()
    } | {"scikit_learn": reference.steps / arrivals}
    rows: list[dict[str, Any]] = []
    figures: dict[str, Figure] = {}
    for name, took in times.items():
        row: dict[str, Any] = {
            "side": name,
            "ms_per_seed_and_arrival": figure([1e3 * t for t in took]),
            "seeds": seeds if name == "scikit_learn" else config.num_seeds,
            "speedup": None,
            "steps_per_seed_and_arrival": round(steps_per_arrival[name], 1),
            "compile_seconds": compiled.get(name),
        }
        if name in ours:
            row["speedup"] = ratio(times["scikit_learn"], took)
            figures[f"speedup_vs_sklearn.{name}"] = row["speedup"]
        rows.append(row)
    schemes = ", ".join(bench_sklearn.SCHEMES)
    verdict = (
        "no more than half a point below scikit-learn's"
        if lower <= TOLERANCE
        else "MORE THAN HALF A POINT BELOW scikit-learn's: equal_accuracy does not hold"
    )
    return Part(
        title=f"on-line protocol on {config.dataset}: {schemes}; L = KNN, C = MLP",
        rows=rows,
        figures=figures,
        settings={
            "schemes": bench_sklearn.SCHEMES,
            "noise_rate": rate,
            "largest_accuracy_loss": lower,
            "equal_accuracy_holds": lower <= TOLERANCE,
            "void": [] if lower <= TOLERANCE else ["speedup_vs_sklearn.equal_accuracy"],
            "accuracy": accuracy_lists(accuracy),
            "epochs": sizes.epochs,
            "initial_steps": ours["equal_accuracy"].initial_steps,
            "steps_per_batch": sizes.steps,
        },
        notes=(
            f"accuracies under {schemes}, means over {arrivals} arrivals and the same "
            f"{seeds} noise seeds:",
            *(
                f"  {side}: "
                + ", ".join(
                    f"{model.replace('_', ' ')} "
                    + " ".join(f"{value:.4f}" for value in values)
                    for model, values in by_model.items()
                )
                for side, by_model in accuracy.items()
            ),
            f"equal_accuracy: at worst {100 * lower:+.2f} points below scikit-learn "
            f"({worst}), {verdict}",
        ),
    )


def accuracy_lists(accuracy: dict[str, dict[str, np.ndarray]]) -> dict[str, dict]:
    """The accuracies as JSON takes them."""
    return {
        side: {model: values.tolist() for model, values in by_model.items()}
        for side, by_model in accuracy.items()
    }


def _lower(
    ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]
) -> tuple[float, str]:
    """By how much ours is lower at worst, of the ensemble or C, and where."""
    losses = {
        f"{model}, {scheme}": float(theirs[model][i] - ours[model][i])
        for model in ("ensemble", "classifier")
        for i, scheme in enumerate(bench_sklearn.SCHEMES)
    }
    where = max(losses, key=lambda name: losses[name])
    return losses[where], where
