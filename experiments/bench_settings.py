"""The benchmark's flags, and what they make of a preset and of the run it times."""

import dataclasses
from typing import Any

from absl import flags as absl_flags

from experiments import bench_gemm, bench_online, flags, sources, stream
from experiments.bench_presets import PARTS, PRESETS, Sizes

#: Of the classes of the made-up stream, such that neighbours in 115 dimensions tell
#: something.
_SEPARATION = 6.0

#: Of flags; see `experiments.flags`.
GROUP = "benchmark"

#: Flags that, if given, replace a size of the preset, and that size.
_SIZES = {
    "initial_size": "initial_size",
    "batch_size": "batch_size",
    "num_batches": "num_batches",
    "test_size": "test_size",
    "num_seeds": "online_seeds",
    "steps_per_batch": "steps",
    "epochs": "epochs",
}


def define_flags() -> None:
    """Defines the flags of this script beside the shared ones."""
    flags.define()
    absl_flags.DEFINE_enum(
        "preset",
        "quick",
        list(PRESETS),
        "Sizes: quick takes under 10 minutes on 2 idle cores, full half an hour, "
        "tiny a few minutes (its figures mean nothing).",
        module_name=GROUP,
    )
    absl_flags.DEFINE_list(
        "parts",
        list(PARTS),
        f"What to measure: {', '.join(PARTS)}.",
        module_name=GROUP,
    )
    absl_flags.DEFINE_list(
        "seeds",
        None,
        "Numbers of seeds of gemm and scaling; by default the preset's.",
        module_name=GROUP,
    )
    absl_flags.DEFINE_integer(
        "repeats",
        None,
        "Repetitions of every figure; by default the preset's.",
        module_name=GROUP,
    )
    absl_flags.DEFINE_integer(
        "epochs",
        None,
        "Of online: of both sides at equal epochs; by default the preset's.",
        module_name=GROUP,
    )
    defaults: dict[str, Any] = {
        "dataset": "synthetic",
        "schemes": ["basic"],
        "label_model": "knn",
        "classifier": "mlp",
        "output_dir": "results/benchmark",
    }
    for name, value in defaults.items():
        absl_flags.FLAGS.set_default(name, value)
    meaning = {
        "dataset": f"Of online, scaling by seeds, and latency: {sources.KNOWN}; by "
        "default synthetic, of --width=115, --num_classes=11 and --separation=6.",
        "num_seeds": "Of online; by default the preset's.",
        "label_model": "L, of scaling and latency.",
        "classifier": "C, of scaling and latency.",
    }
    for name, text in meaning.items():
        absl_flags.FLAGS[name].help = text


def sizes_from_flags() -> Sizes:
    """The preset, with what other flags replace of it.

    Raises:
      ValueError: for a flag out of range.
    """
    given = absl_flags.FLAGS
    sizes = PRESETS[given.preset]
    changed: dict[str, Any] = {}
    for name, size in _SIZES.items():
        if given[name].present:
            value = given[name].value
            if value is None or value < 1:
                raise ValueError(f"--{name} must be at least 1, got {value}")
            changed[size] = value
    if given.repeats is not None:
        if given.repeats < 1:
            raise ValueError(f"--repeats must be at least 1, got {given.repeats}")
        for name in ("repeats", "online_repeats", "scaling_repeats"):
            changed[name] = given.repeats
    if given.seeds is not None:
        seeds = tuple(sorted(set(flags.numbers("seeds", given.seeds, int))))
        if not seeds or seeds[0] < 1:
            raise ValueError(
                "--seeds must be whole numbers of at least 1, got "
                f"{','.join(given.seeds)}"
            )
        changed |= {"seeds": seeds, "gemm_seeds": seeds, "share_seeds": seeds[:1]}
    return sizes._replace(**changed)


def config_from_flags() -> stream.Config:
    """The flags of the stream; a made-up stream is as wide as the MLP of part gemm.

    Raises:
      ValueError: for a list flag that does not hold numbers.
    """
    config = stream.config_from_flags()
    if config.dataset == "synthetic":
        if not absl_flags.FLAGS["width"].present:
            config = dataclasses.replace(config, width=bench_gemm.WIDTHS[0])
        if not absl_flags.FLAGS["num_classes"].present:
            config = dataclasses.replace(config, num_classes=bench_gemm.WIDTHS[-1])
        if not absl_flags.FLAGS["separation"].present:
            config = dataclasses.replace(config, separation=_SEPARATION)
    return config


def run_config(config: stream.Config, sizes: Sizes) -> stream.Config:
    """The run of parts scaling and latency: the protocol of online, going on.

    Raises:
      ValueError: naming the flag, what came and what is allowed.
    """
    if sizes.steps < 2:
        raise ValueError(
            f"--steps_per_batch must be at least 2 to time training, got {sizes.steps}"
        )
    minibatch = config.minibatch_size or min(bench_online.MINIBATCH, sizes.initial_size)
    return stream.complete(
        dataclasses.replace(
            config,
            noise_rates=(config.noise_rates or (0.4,))[:1],
            initial_size=sizes.initial_size,
            batch_size=sizes.batch_size,
            num_batches=sizes.num_batches,
            test_size=sizes.test_size,
            steps_per_batch=sizes.steps,
            minibatch_size=minibatch,
        )
    )
