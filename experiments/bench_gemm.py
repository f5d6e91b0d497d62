"""How much of a matrix product's speed the MLP's training reaches, by seeds."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console

from experiments import bench_sklearn, bench_training
from experiments.bench_presets import Sizes
from experiments.bench_timing import (
    Figure,
    Part,
    figure,
    interleave,
    ratio,
    scaled,
    seconds_of_each,
)
from experiments.worker_processes import Workers
from rad_jax import Training, mlp

#: The network that is trained: features, hidden layers, classes.
WIDTHS = (115, 28, 28, 11)

#: Rows of a minibatch.
MINIBATCH = 200

#: Rows that minibatches are drawn from.
_ROWS = 6000
#: Passes over them that scikit-learn is timed with.
_EPOCHS = 10
#: By how scikit-learn is run, the figure that holds ours against it.
_SKLEARN = {
    "scikit_learn": "mlp_step_vs_sklearn",
    "scikit_learn, one process": "mlp_step_vs_sklearn_one_process",
}


def needed_flops(widths: tuple[int, ...], minibatch: int) -> int:
    """Floating point operations that a gradient step of an MLP needs.

    Forward pass, gradients of the weights, and gradients of the inputs of every layer
    but the first; a product and a sum count as two.

    Args:
      widths: of input, hidden layers and output.
      minibatch: rows.
    """
    first, *others = (a * b for a, b in itertools.pairwise(widths))
    return 2 * minibatch * (2 * first + 3 * sum(others))


def measure(sizes: Sizes, console: Console) -> Part:
    """Times training at several numbers of seeds, matrix products and scikit-learn.

    Args:
      sizes: of the preset.
      console: for progress.

    Returns:
      Figures ``gemm_fraction.R_seeds``; ``mlp_step_vs_sklearn.R_seeds``, scikit-learn
      with a process on each core; ``mlp_step_vs_sklearn_one_process.R_seeds``, with
      one process as a plain script is, its libraries free to use all cores.
    """
    rng = np.random.default_rng(0)
    features = rng.standard_normal((_ROWS, WIDTHS[0]), np.float32)
    labels = rng.integers(0, WIDTHS[-1], (max(sizes.gemm_seeds), _ROWS))
    learner = mlp(
        WIDTHS[1:-1],
        training=Training(
            steps=sizes.gemm_steps, initial_steps=1, minibatch_size=MINIBATCH
        ),
    )
    timed: dict[str, Callable[[], float]] = {}

    def add(name: str, function: Callable[[], Any], per: float) -> None:
        function()  # warms up
        timed[name] = seconds_of_each(function, per)

    for n in sizes.gemm_seeds:
        console.print(f"gemm: compiling, {n} seeds", highlight=False)
        train = bench_training.training(
            learner, features, labels[:n], num_classes=WIDTHS[-1]
        )
        add(f"{n}", train, n * sizes.gemm_steps)
    products = bench_training.products(sizes.gemm_size)
    for name, (product, flops) in products.items():
        add(name, product, flops)
    settings = bench_sklearn.settings(
        neighbours=5, hidden=WIDTHS[1:-1], learning_rate=1e-3, epochs=_EPOCHS
    )
    console.print("gemm: timing in turns", highlight=False)
    with Workers() as workers:
        timed["scikit_learn"] = lambda: bench_sklearn.fit(
            workers, features, labels[0], settings
        )
        timed["scikit_learn, one process"] = lambda: bench_sklearn.step_seconds(
            features, labels[0], settings
        )
        times = interleave(timed, sizes.repeats)
    return _part(sizes, times, list(products))


def _part(sizes: Sizes, times: dict[str, list[float]], products: list[str]) -> Part:
    """From seconds per operation, and per seed and step, to figures."""
    flops = needed_flops(WIDTHS, MINIBATCH)
    # The faster way to use the devices is what training is held against.
    product = [
        min(values) for values in zip(*(times[p] for p in products), strict=True)
    ]
    rows: list[dict[str, Any]] = []
    figures: dict[str, Figure] = {}
    for n in sizes.gemm_seeds:
        took = times[f"{n}"]
        fraction = ratio([flops * t for t in product], took)
        speedups = {name: ratio(times[name], took) for name in _SKLEARN}
        figures[f"gemm_fraction.{n}_seeds"] = fraction
        for name, short in _SKLEARN.items():
            figures[f"{short}.{n}_seeds"] = speedups[name]
        rows.append(
            {
                "what": f"{n} seeds",
                "us_per_seed_and_step": scaled(took, 1e6),
                "GFLOP/s": figure([1e-9 * flops / t for t in took]),
                "gemm_fraction": fraction,
                "against_scikit_learn": speedups["scikit_learn"],
                "against_one_process": speedups["scikit_learn, one process"],
            }
        )
    rows += [
        {
            "what": name.replace("_", "-"),
            "us_per_seed_and_step": scaled(times[name], 1e6),
            "GFLOP/s": figure([1e-9 * flops / t for t in times[name]]),
            "gemm_fraction": ratio([flops * t for t in product], times[name]),
            "against_scikit_learn": None,
            "against_one_process": None,
        }
        for name in _SKLEARN
    ]
    rows += [
        {
            "what": f"product {name}",
            "us_per_seed_and_step": None,
            "GFLOP/s": figure([1e-9 / t for t in times[name]]),
            "gemm_fraction": None,
            "against_scikit_learn": None,
            "against_one_process": None,
        }
        for name in products
    ]
    widths = "-".join(map(str, WIDTHS))
    return Part(
        title=f"MLP {widths}, minibatch {MINIBATCH}, Adam, against "
        f"{sizes.gemm_size}² matrix products",
        rows=rows,
        figures=figures,
        settings={
            "flops_per_step": flops,
            "steps": sizes.gemm_steps,
            "rows": _ROWS,
            "product_size": sizes.gemm_size,
            "scikit_learn_epochs": _EPOCHS,
        },
        notes=(
            f"a step needs {flops / 1e6:.2f} MFLOP; scikit-learn trains a seed on each "
            "core; its one process may use all of them. GFLOP/s count what is needed, "
            "not what is computed",
        ),
    )
