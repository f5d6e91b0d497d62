r"""How fast it is, part by part; every figure a ratio taken in the same run.

  python -m experiments.benchmark          # under 10 minutes on two idle cores
  python -m experiments.benchmark --preset=full
  python -m experiments.benchmark --parts=online --dataset=google_cluster --data_dir=DIR

online: the paper's protocol (KNN and MLP; no, perfect and basic selection) against a
scikit-learn loop on all cores. gemm: the MLP's training against a matrix product.
scaling: whole runs by seeds, arrivals and rows. memory: peak against the estimates.
compile: without and with a persistent cache. vgg: a training step against PyTorch, if
it is installed. latency: one arrival from Python.

What is compared is timed in turns; figures are medians over repetitions, with the least
and the greatest. Machines are noisy: compare figures of one run with each other, on an
idle machine. Prints a table for each part; writes benchmark.json (after every part) and
benchmark.png to --output_dir.
"""

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
from absl import app
from absl import flags as absl_flags
from rich.console import Console

from experiments import (
    bench_gemm,
    bench_latency,
    bench_online,
    bench_picture,
    bench_processes,
    bench_report,
    bench_scaling,
    bench_settings,
    bench_vgg,
    command,
    flags,
    stream,
)
from experiments.bench_presets import PARTS, Sizes
from experiments.bench_timing import Part, plain, show
from rad_jax import devices
from rad_jax.files import atomic_path, check_output_dir
from rad_jax.program import make_program

#: Version of the layout of benchmark.json.
FORMAT = 1

#: Columns of a table that goes to a file.
_LOG_WIDTH = 120


def measures(
    config: stream.Config, sizes: Sizes, console: Console
) -> dict[str, Callable[[], Part]]:
    """By part, what measures it.

    Raises:
      ValueError: for flags that do not go together.
    """
    whole = bench_settings.run_config(config, sizes)
    waiting = dataclasses.replace(
        whole,
        num_batches=max(
            sizes.num_batches, bench_latency.COMPILING + min(30, 10 * sizes.repeats)
        ),
    )
    return {
        "online": lambda: bench_online.measure(config, sizes, console),
        "gemm": lambda: bench_gemm.measure(sizes, console),
        "scaling": lambda: bench_scaling.measure(whole, sizes, console),
        "memory": lambda: bench_processes.measure_memory(sizes, console),
        "compile": lambda: bench_processes.measure_compile(sizes, console),
        "vgg": lambda: bench_vgg.measure(sizes, console),
        "latency": lambda: bench_latency.measure(waiting, sizes.repeats),
    }


def run(
    config: stream.Config,
    sizes: Sizes,
    parts: Sequence[str],
    console: Console,
    preset: str = "",
) -> dict[str, Any]:
    """Measures, prints and writes part by part.

    A part that fails is reported and does not stop the others.

    Args:
      config: see the flags.
      sizes: of the preset.
      parts: of `PARTS`.
      console: where to print.
      preset: its name.

    Returns:
      What benchmark.json holds.

    Raises:
      ValueError, OSError: for bad input, before any long work.
    """
    output_dir = check_output_dir(config.output_dir)
    unknown = [name for name in parts if name not in PARTS]
    if unknown or not parts:
        what = f"has the unknown {', '.join(unknown)}" if unknown else "is empty"
        raise ValueError(f"--parts {what}; known: {', '.join(PARTS)}")
    parts = [name for name in PARTS if name in parts]
    functions = measures(config, sizes, console)
    devices.mesh(config.num_devices)
    if "online" in parts:
        stream.load(bench_online.configure(config, sizes))
    elif {"scaling", "latency"} & set(parts):
        stream.load(bench_settings.run_config(config, sizes))
    machine = bench_report.machine()
    bench_report.announce(parts, sizes, machine, console)
    result: dict[str, Any] = {
        "format": FORMAT,
        "preset": preset,
        "sizes": plain(sizes._asdict()),
        "config": plain(dataclasses.asdict(config)),
        "machine": machine,
        "finished": False,
        "figures": {},
        "parts": {},
    }
    _write(result, output_dir)  # over that of an earlier run, before it is killed
    found: dict[str, Part] = {}
    for name in parts:
        begin = time.perf_counter()
        try:
            found[name] = functions[name]()
        except Exception as error:  # the other parts are worth having
            console.print(
                f"part {name} failed: {type(error).__name__}: {error}",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
            entry: dict[str, Any] = {"error": f"{type(error).__name__}: {error}"}
        else:
            show(found[name], console)
            entry = plain(found[name]._asdict())
            result["figures"] |= entry["figures"]
        make_program.cache_clear()  # a process cannot hold any number of programs
        jax.clear_caches()
        entry["seconds"] = time.perf_counter() - begin
        entry["load_average"] = bench_report.load()
        result["parts"][name] = entry
        result["finished"] = name == parts[-1]
        _write(result, output_dir)
    bench_report.summarize(found, console)
    bench_picture.plot(found, output_dir / "benchmark.png")
    console.print(f"benchmark.json is in {output_dir}", highlight=False, soft_wrap=True)
    return result


def _write(result: dict[str, Any], output_dir: Path) -> None:
    with atomic_path(output_dir / "benchmark.json") as path:
        path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def main(argv: Sequence[str]) -> None:
    """Runs the benchmark that the flags describe."""

    def work() -> None:
        given = absl_flags.FLAGS
        result = run(
            bench_settings.config_from_flags(),
            bench_settings.sizes_from_flags(),
            given.parts,
            Console(width=None if sys.stdout.isatty() else _LOG_WIDTH),
            given.preset,
        )
        failed = [name for name, part in result["parts"].items() if "error" in part]
        if failed:
            sys.exit(f"error: failed: {', '.join(failed)}")

    # Memory is measured in other processes, which need room on an accelerator.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    command.call(argv, work)


if __name__ == "__main__":
    bench_settings.define_flags()
    __doc__ = f"{__doc__}{flags.help_text(bench_settings.GROUP)}"  # for --help
    app.run(main)
