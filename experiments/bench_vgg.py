"""A training step of the VGG: ours, and PyTorch's of the same network."""

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from rich.console import Console

from experiments import bench_torch, bench_training
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
from rad_jax import Training, vgg
from rad_jax.learners.convolutional import CHANNELS

#: Height and width of the images, classes, dense layer at full width.
_SIDE, _CLASSES, _DENSE = 32, 20, 256
#: After PyTorch, until its threads no longer spin.
_PAUSE = 0.2


def measure(sizes: Sizes, console: Console) -> Part:
    """Times both in turns.

    Args:
      sizes: of the preset.
      console: for progress.

    Returns:
      Figures ``vgg_step_vs_pytorch.one_seed`` (one network, all cores on both sides)
      and ``.seed_per_device`` (ours trains one on each device), where PyTorch is.
    """
    rng = np.random.default_rng(0)
    rows = 2 * sizes.vgg_batch
    images = rng.random((rows, _SIDE, _SIDE, 3), np.float32)
    devices = len(jax.devices())
    labels = rng.integers(0, _CLASSES, (devices, rows))
    learner = vgg(
        width=sizes.vgg_width,
        training=Training(
            steps=sizes.vgg_steps, initial_steps=1, minibatch_size=sizes.vgg_batch
        ),
    )
    timed: dict[str, Callable[[], float]] = {}
    seeds_of = {"one_seed": 1, "seed_per_device": devices}
    for name, seeds in seeds_of.items():
        console.print(f"vgg: compiling, {seeds} seeds", highlight=False)
        train = bench_training.training(
            learner, images, labels[:seeds], num_classes=_CLASSES
        )
        jax.block_until_ready(train())  # warms up
        timed[name] = seconds_of_each(train, seeds * sizes.vgg_steps)
    torch = bench_torch.find()
    layouts = {"PyTorch": False, "PyTorch, channels last": True} if torch else {}
    for name, channels_last in layouts.items():
        timed[name] = _pytorch(torch, sizes, images, labels[0], channels_last)
    console.print("vgg: timing in turns", highlight=False)
    times = interleave(timed, sizes.repeats)
    return _part(sizes, times, list(seeds_of), list(layouts))


def _pytorch(
    torch: Any,
    sizes: Sizes,
    images: np.ndarray,
    labels: np.ndarray,
    channels_last: bool,
) -> Callable[[], float]:
    """Seconds of a step of PyTorch, once warm."""
    on_gpu = jax.devices()[0].platform == "gpu" and torch.cuda.is_available()
    channels = [max(1, round(sizes.vgg_width * c)) for c in CHANNELS]
    dense = max(1, round(sizes.vgg_width * _DENSE))
    run = bench_torch.training(
        torch,
        bench_torch.network(torch, channels, dense, _SIDE, _CLASSES),
        images,
        labels,
        minibatch=sizes.vgg_batch,
        steps=sizes.vgg_steps,
        channels_last=channels_last,
        device="cuda" if on_gpu else "cpu",
    )
    run()

    def timed() -> float:
        begin = time.perf_counter()
        run()
        elapsed = time.perf_counter() - begin
        time.sleep(_PAUSE)
        return elapsed / sizes.vgg_steps

    return timed


def _part(
    sizes: Sizes, times: dict[str, list[float]], ours: list[str], theirs: list[str]
) -> Part:
    figures: dict[str, Figure] = {}
    if theirs:
        # PyTorch in the layout that suits it better is what ours is held against.
        best = [min(values) for values in zip(*(times[n] for n in theirs), strict=True)]
        for name in ours:
            figures[f"vgg_step_vs_pytorch.{name}"] = ratio(best, times[name])
    rows: list[dict[str, Any]] = [
        {
            "what": name.replace("_", " "),
            "ms_per_seed_and_step": scaled(took, 1e3),
            "against_PyTorch": figures.get(f"vgg_step_vs_pytorch.{name}"),
        }
        for name, took in times.items()
    ]
    return Part(
        title=f"VGG, {_SIDE} pixels, width {sizes.vgg_width:g}, minibatch "
        f"{sizes.vgg_batch}: one training step",
        rows=rows,
        figures={
            **figures,
            **{
                f"vgg_step_ms.{name}": figure([1e3 * t for t in times[name]])
                for name in ours
            },
        },
        settings={"steps": sizes.vgg_steps, "pytorch_found": bool(theirs)},
        notes=() if theirs else (bench_torch.HOW_TO_GET,),
    )
