"""What has to be measured in a process of its own: peak memory, compile time.

Started by `experiments.bench_processes` with one JSON object as its argument; the last
line that it prints is another. It ends when its standard input does.
"""

import ctypes
import gc
import json
import os
import resource
import sys
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from experiments import devices, names, stream
from rad_jax import Training, datasets, sweep

#: Arrivals, and gradient steps of each: memory does not depend on them.
_ARRIVALS, _STEPS = 3, 3
_RATE = 0.4


def _misaligned(array: np.ndarray) -> np.ndarray:
    """A copy that JAX on CPU cannot use in place: what it stores, it allocates."""
    raw = np.empty(array.nbytes + 128, np.uint8)
    offset = -raw.ctypes.data % 64 + array.itemsize
    copy = raw[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def random_stream(
    num_rows: int, row_shape: tuple[int, ...], num_classes: int
) -> datasets.StreamData:
    """Rows of noise, nine tenths of them clean ones at the start.

    Args:
      num_rows: stored in all, at least 60.
      row_shape: of a row.
      num_classes: K.
    """
    batch = max(1, min(300, num_rows // (10 * _ARRIVALS)))
    test = min(1000, num_rows // 10)
    initial = num_rows - _ARRIVALS * batch
    rng = np.random.default_rng(0)

    def rows(*shape: int) -> tuple[np.ndarray, np.ndarray]:
        features = rng.standard_normal((*shape, *row_shape), np.float32)
        labels = rng.integers(0, num_classes, shape).astype(np.int32)
        return _misaligned(features), _misaligned(labels)

    return datasets.StreamData(
        *rows(initial),
        *rows(_ARRIVALS, batch),
        *rows(test),
        num_classes=num_classes,
        class_names=tuple(map(str, range(num_classes))),
    )


def _status(name: str) -> int | None:
    """Bytes of an entry of this process's status, None where there is no such file."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        return 1024 * int(lines[name].split()[0])
    except (OSError, KeyError, ValueError):
        return None


def _reset_peak() -> bool:
    """Gives free memory back and starts the peak anew; False where that cannot be."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
    except (OSError, AttributeError):
        return False
    return True


def peak_bytes(run: Callable[[], Any]) -> int:
    """Greatest memory that a call takes beyond what is taken before it.

    On an accelerator that of the first device since the process began. On CPU that of
    the process; everything must have been compiled before.
    """
    device = jax.devices()[0]
    if device.platform != "cpu":
        run()
        return int((device.memory_stats() or {})["peak_bytes_in_use"])
    run()  # compiles what is left
    resettable = _reset_peak()
    before = _status("VmRSS") if resettable else None
    if before is None:
        unit = 1 if sys.platform == "darwin" else 1024
        before = unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run()
    after = _status("VmHWM") if resettable else None
    if after is None:
        unit = 1 if sys.platform == "darwin" else 1024
        after = unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return after - before


def memory(task: dict[str, Any]) -> dict[str, Any]:
    """Peak memory of a sweep, and what was estimated.

    Args:
      task: label_model, classifier, scheme, num_seeds, num_rows, row_shape,
        num_classes, minibatch_size, vgg_width, num_trees.
    """
    data = random_stream(
        task["num_rows"], tuple(task["row_shape"]), task["num_classes"]
    )
    training = Training(
        steps=_STEPS, initial_steps=_STEPS, minibatch_size=task["minibatch_size"]
    )
    label_model, classifier = (
        names.learner(
            task[role],
            training=training,
            vgg_width=task["vgg_width"],
            num_trees=task["num_trees"],
        )
        for role in ("label_model", "classifier")
    )
    arm = names.arm(task["scheme"], query_budget=1, score="margin", source="mean")
    planned = sweep.prepare(
        data,
        [arm],
        label_model=label_model,
        classifier=classifier,
        noise_rates=[_RATE],
        num_seeds=task["num_seeds"],
        seeds_per_chunk=task["num_seeds"],
    )
    compiled = planned.compiled_bytes()
    return {
        "estimated_bytes": planned.estimated_bytes,
        "compiled_bytes": compiled,
        "peak_bytes": peak_bytes(planned.run),
    }


def compilation(task: dict[str, Any]) -> dict[str, Any]:
    """Seconds of tracing and compiling the main job, with a persistent cache.

    Args:
      task: cache_dir; config, fields of `stream.Config`.
    """
    devices.keep_programs(task["cache_dir"])
    given: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in task["config"].items()
    }
    config = stream.complete(stream.Config(**given))
    dataset = stream.read(config)
    config = stream.suit(config, dataset)
    result = stream.prepare(config, stream.cut(config, dataset)).run()
    return {"compile_seconds": result.compile_seconds}


TASKS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "memory": memory,
    "compilation": compilation,
}


def _end_with_input() -> None:
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


def main() -> None:
    """Does the task of the command line and prints what it found."""
    threading.Thread(target=_end_with_input, daemon=True).start()
    task = json.loads(sys.argv[1])
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", task["num_cpu_devices"])
    print(json.dumps(TASKS[task["task"]](task)), flush=True)


if __name__ == "__main__":
    main()
