"""Peak memory against its estimates, and compile time, each in fresh processes."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from experiments import stream
from experiments.bench_presets import Sizes
from experiments.bench_timing import Figure, Part, figure, ratio

#: The folder that holds the package `experiments`.
_ROOT = Path(__file__).resolve().parent.parent


def child(task: str, **settings: Any) -> dict[str, Any]:
    """Does a task of `experiments.bench_child` in a process of its own.

    Raises:
      RuntimeError: it failed, with the last lines that it wrote.
    """
    platform = jax.devices()[0].platform
    task_and_settings = {
        "task": task,
        "num_cpu_devices": len(jax.devices()) if platform == "cpu" else 1,
        **settings,
    }
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    end, ours = os.pipe()  # however this process ends, the child reads its end
    try:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "experiments.bench_child",
                json.dumps(task_and_settings),
            ],
            env=environment,
            stdin=end,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        os.close(end)
        os.close(ours)
    if done.returncode:
        last = " | ".join(done.stderr.strip().splitlines()[-3:])
        raise RuntimeError(
            f"the process of task {task} ended with status {done.returncode}: {last}"
        )
    return json.loads(done.stdout.strip().splitlines()[-1])


def memory_tasks(sizes: Sizes) -> dict[str, dict[str, Any]]:
    """By name, the sweeps whose memory is measured."""
    table = {
        "scheme": "basic",
        "num_seeds": 8,
        "num_rows": sizes.memory_rows,
        "row_shape": (115,),
        "num_classes": 11,
        "minibatch_size": min(200, sizes.memory_rows),
        "vgg_width": sizes.vgg_width,
        "num_trees": 20,
    }
    image = table | {
        "scheme": "slim",
        "num_seeds": 2,
        "num_rows": sizes.memory_images,
        "row_shape": (32, 32, 3),
        "minibatch_size": sizes.vgg_batch,
    }
    pairs = {
        "L = mlp, C = knn": ("mlp", "knn"),
        "L = mlp, C = mlp": ("mlp", "mlp"),
        "L = mlp, C = random_forest": ("mlp", "random_forest"),
    }
    tasks = {
        name: table | {"label_model": label, "classifier": classifier}
        for name, (label, classifier) in pairs.items()
    }
    forest = tasks["L = mlp, C = random_forest"]
    forest["num_rows"] = max(500, sizes.memory_rows // 4)  # trees take their time
    return tasks | {
        "slim vgg": image | {"label_model": "vgg", "classifier": "vgg"},
    }


def measure_memory(sizes: Sizes, console: Console) -> Part:
    """Measures peak memory of several sweeps, in repeated processes.

    Args:
      sizes: of the preset.
      console: for progress.

    Returns:
      Figures ``memory_estimate_over_peak`` and ``memory_plan_over_peak`` by learners.
    """
    rows: list[dict[str, Any]] = []
    figures: dict[str, Figure] = {}
    tasks = memory_tasks(sizes)
    for name, task in tasks.items():
        console.print(f"memory: {name}", highlight=False)
        found = child("memory", **task)
        peak = max(found["peak_bytes"], 1)
        short = f"{task['label_model']}_{task['classifier']}"
        row: dict[str, Any] = {
            "sweep": name,
            "rows": f"{task['num_rows']:,} x {'x'.join(map(str, task['row_shape']))}",
            "seeds": task["num_seeds"],
            "peak_MB": 1e-6 * peak,
        }
        for kind in ("estimated", "compiled"):
            share = figure([found[f"{kind}_bytes"] / peak])
            row[f"{kind}_MB"] = 1e-6 * found[f"{kind}_bytes"]
            row[f"{kind}_over_peak"] = share.median
            figures[f"memory_{kind}_over_peak.{short}"] = share
        rows.append(row)
    return Part(
        title="memory: peak of a process's run, against the program's estimate and the "
        "compiler's plan",
        rows=rows,
        figures=figures,
        settings={"tasks": tasks},
        notes=(
            "what the run takes beyond the compiled programs and the data in numpy",
        ),
    )


#: The main job as users start it first (experiments.stream without flags), cut short.
COMPILED: dict[str, Any] = {"num_batches": 2, "steps_per_batch": 2, "initial_steps": 2}


def measure_compile(sizes: Sizes, console: Console) -> Part:
    """Compiles the main job with an empty cache, then from the filled one, in turns.

    Args:
      sizes: of the preset.
      console: for progress.

    Returns:
      Figures ``compile_seconds.cold``, ``.cached``, ``compile_cold_over_cached``.
    """
    config = stream.Config(**COMPILED)
    times: dict[str, list[float]] = {"cold": [], "cached": []}
    process: dict[str, list[float]] = {"cold": [], "cached": []}
    for i in range(sizes.compile_repeats):
        with tempfile.TemporaryDirectory() as folder:
            for state in times:
                console.print(f"compile: {state}, {i + 1}", highlight=False)
                begin = time.perf_counter()
                found = child("compilation", cache_dir=folder, config=COMPILED)
                process[state].append(time.perf_counter() - begin)
                times[state].append(found["compile_seconds"])
    return Part(
        title=f"compilation of the main job: {config.dataset}, "
        f"L = {config.label_model}, C = {config.classifier}, "
        f"{len(config.schemes)} schemes",
        rows=[
            {
                "cache": name,
                "compile_seconds": figure(times[state]),
                "whole_process_seconds": figure(process[state]),
            }
            for state, name in (("cold", "empty"), ("cached", "filled"))
        ],
        figures={
            **{f"compile_seconds.{name}": figure(took) for name, took in times.items()},
            "compile_cold_over_cached": ratio(times["cold"], times["cached"]),
        },
        settings={"config": COMPILED, "repeats": sizes.compile_repeats},
        notes=(
            "compile_seconds are tracing, lowering and compiling, as all jobs print",
        ),
    )
