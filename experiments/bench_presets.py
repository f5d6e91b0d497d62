"""Sizes of the benchmark by preset, and about how long each part takes."""

from typing import NamedTuple

#: The parts, in the order in which they run.
PARTS = ("online", "gemm", "scaling", "memory", "compile", "vgg", "latency")


class Sizes(NamedTuple):
    """What a preset fixes.

    Attributes:
      repeats: interleaved repetitions of every figure.
      online_repeats: of part online, which takes longest.
      scaling_repeats: of part scaling.
      initial_size: online: clean rows.
      batch_size: online: rows of an arrival.
      num_batches: online: T.
      test_size: online: test rows.
      online_seeds: online: seeds of ours.
      sklearn_seeds: online: seeds of scikit-learn's, for each core.
      epochs: online: of both sides at equal epochs.
      initial_epochs: online: of ours on the clean rows at equal accuracy.
      steps: online: of ours at an arrival at equal accuracy.
      gemm_seeds: gemm: numbers of seeds.
      gemm_steps: gemm: gradient steps that are timed.
      gemm_size: gemm: rows of the square matrices.
      seeds: scaling: numbers of seeds.
      share_seeds: scaling: those of which training's share is measured.
      arrivals: scaling: lengths of the stream.
      rows: scaling: rows stored.
      compile_repeats: compile: pairs of processes.
      memory_rows: memory: rows of the tables.
      memory_images: memory: images.
      vgg_steps: vgg: gradient steps that are timed.
      vgg_width: vgg: factor of the paper's widths.
      vgg_batch: vgg: rows of a minibatch.
      minutes: by part, about how long it takes on two idle cores, with an empty
        compilation cache.
    """

    repeats: int
    online_repeats: int
    scaling_repeats: int
    initial_size: int
    batch_size: int
    num_batches: int
    test_size: int
    online_seeds: int
    sklearn_seeds: int
    epochs: int
    initial_epochs: int
    steps: int
    gemm_seeds: tuple[int, ...]
    gemm_steps: int
    gemm_size: int
    seeds: tuple[int, ...]
    share_seeds: tuple[int, ...]
    arrivals: tuple[int, ...]
    rows: tuple[int, ...]
    compile_repeats: int
    memory_rows: int
    memory_images: int
    vgg_steps: int
    vgg_width: float
    vgg_batch: int
    minutes: dict[str, float]


QUICK = Sizes(
    repeats=3,
    online_repeats=2,
    scaling_repeats=2,
    initial_size=6000,
    batch_size=300,
    num_batches=10,
    test_size=3000,
    online_seeds=32,
    sklearn_seeds=1,
    epochs=50,
    initial_epochs=20,
    steps=20,
    gemm_seeds=(1, 8, 32, 128),
    gemm_steps=300,
    gemm_size=2048,
    seeds=(1, 64),
    share_seeds=(),
    arrivals=(50, 100),
    rows=(10_000, 30_000),
    compile_repeats=2,
    memory_rows=100_000,
    memory_images=500,
    vgg_steps=5,
    vgg_width=0.25,
    vgg_batch=128,
    minutes=dict(zip(PARTS, (3.6, 0.4, 2.2, 1.8, 1.0, 0.3, 0.2), strict=True)),
)

FULL = QUICK._replace(
    repeats=5,
    online_repeats=3,
    scaling_repeats=3,
    sklearn_seeds=2,
    gemm_steps=1000,
    seeds=(1, 8, 32, 64, 256),
    share_seeds=(1, 8, 64),
    arrivals=(50, 200, 1000),
    rows=(10_000, 100_000, 1_000_000),
    vgg_steps=10,
    minutes=dict(zip(PARTS, (13, 2, 14, 2, 1, 1, 0.5), strict=True)),
)

#: Whether it runs at all; its figures mean nothing.
TINY = QUICK._replace(
    repeats=2,
    online_repeats=2,
    initial_size=300,
    batch_size=50,
    num_batches=2,
    test_size=100,
    online_seeds=2,
    epochs=2,
    initial_epochs=2,
    steps=2,
    gemm_seeds=(1, 2),
    gemm_steps=4,
    gemm_size=64,
    seeds=(1, 2),
    share_seeds=(2,),
    arrivals=(4, 5),
    rows=(600, 700),
    compile_repeats=1,
    memory_rows=1_000,
    memory_images=100,
    vgg_steps=1,
    vgg_width=0.05,
    vgg_batch=16,
    minutes=dict(zip(PARTS, (0.8, 0.3, 1.5, 1.0, 0.8, 0.4, 0.3), strict=True)),
)

PRESETS = {"tiny": TINY, "quick": QUICK, "full": FULL}

#: By figure, or by what its name begins with: the least and the greatest it should be.
AIMS: dict[str, tuple[float | None, float | None]] = {
    "speedup_vs_sklearn.equal_epochs": (10.0, None),
    "speedup_vs_sklearn.equal_accuracy": (150.0, None),
    "gemm_fraction.32_seeds": (0.45, None),
    "mlp_step_vs_sklearn.32_seeds": (13.0, None),
    "mlp_step_vs_sklearn_one_process.32_seeds": (13.0, None),
    "seconds_per_seed_gain.64_seeds": (3.0, None),
    "memory_estimated_over_peak": (0.75, 1.25),
    "compile_seconds.cached": (None, 3.0),
    "vgg_step_vs_pytorch.one_seed": (1.0, None),
}
