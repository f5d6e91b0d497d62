"""Parts of the benchmark that use other processes, and PyTorch."""

import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console
from running import is_running

from experiments import bench_child, bench_processes, bench_torch, bench_vgg
from experiments.bench_presets import QUICK, TINY
from rad_jax.learners.convolutional import VGG

QUIET = Console(quiet=True)
MEGABYTE = 1_000_000


# --- memory ---------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="peaks are reset through /proc")
def test_peak_is_of_the_call_alone():
    kept = np.ones(10 * MEGABYTE // 8)  # before: does not count

    def run():
        for _ in range(3):  # one after the other: counts once
            np.ones(64 * MEGABYTE // 8)

    np.ones(200 * MEGABYTE // 8)  # an earlier peak: does not count
    assert 60 * MEGABYTE < bench_child.peak_bytes(run) < 70 * MEGABYTE
    assert kept.all()


def test_jax_cannot_use_the_streams_arrays_in_place():
    data = bench_child.random_stream(90, (4,), 3)
    assert data.initial_features.shape == (81, 4)
    assert data.features.shape == (3, 3, 4)
    for array in (data.initial_features, data.features, data.test_labels):
        copy = jnp.asarray(array)
        np.testing.assert_array_equal(copy, array)
        assert copy.unsafe_buffer_pointer() != array.ctypes.data


def test_memory_is_measured_for_several_pairs_of_learners():
    tasks = bench_processes.memory_tasks(QUICK)
    learners = {task["classifier"] for task in tasks.values()}
    assert learners == {"knn", "mlp", "random_forest", "vgg"}
    assert all(task["num_rows"] >= 500 for task in tasks.values())


@pytest.mark.slow
def test_memory_part(monkeypatch):
    tasks = bench_processes.memory_tasks(TINY)
    one = {"pair": next(iter(tasks.values())) | {"label_model": "nearest_centroid"}}
    monkeypatch.setattr(bench_processes, "memory_tasks", lambda sizes: one)
    part = bench_processes.measure_memory(TINY, QUIET)
    (row,) = part.rows
    assert row["peak_MB"] > 1_000 * 115 * 4 / MEGABYTE
    assert set(part.figures) == {
        "memory_estimated_over_peak.nearest_centroid_knn",
        "memory_compiled_over_peak.nearest_centroid_knn",
    }
    assert all(value.median > 0 for value in part.figures.values())


# --- compilation ----------------------------------------------------------------------


@pytest.mark.slow
def test_compile_part(monkeypatch):
    folders = []
    child = bench_processes.child

    def watched(task, *, cache_dir, config):
        before = set(map(str, bench_processes.Path(cache_dir).rglob("*")))
        found = child(task, cache_dir=cache_dir, config=config)
        after = set(map(str, bench_processes.Path(cache_dir).rglob("*")))
        folders.append((before, after))
        return found

    monkeypatch.setattr(bench_processes, "child", watched)
    small = {
        "label_model": "nearest_centroid",
        "classifier": "nearest_centroid",
        "schemes": ["basic"],
        "num_seeds": 1,
    }
    monkeypatch.setattr(bench_processes, "COMPILED", bench_processes.COMPILED | small)
    part = bench_processes.measure_compile(TINY, QUIET)
    (empty, filled), (found, unchanged) = folders
    assert not empty
    assert filled
    assert found == filled

    def programs(names):
        return {name for name in names if name.endswith("-cache")}

    assert programs(filled)
    assert programs(unchanged) == programs(filled)  # nothing was compiled anew
    assert set(part.figures) == {
        "compile_seconds.cold",
        "compile_seconds.cached",
        "compile_cold_over_cached",
    }
    assert all(value.median > 0 for value in part.figures.values())


@pytest.mark.skipif(sys.platform != "linux", reason="processes are read from /proc")
def test_a_childs_input_ends_with_who_started_it(tmp_path):
    """In place of Python runs what reads to the end of its input, and waits for it."""
    reader = tmp_path / "reader"
    reader.write_text("#!/bin/sh\nexec cat\n")
    reader.chmod(0o755)
    code = (
        "import sys; from experiments import bench_processes\n"
        f"sys.executable = {str(reader)!r}; bench_processes.child('any')\n"
    )
    root = str(Path(__file__).parents[1])
    process = subprocess.Popen([sys.executable, "-c", code], cwd=root)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline = time.monotonic() + 120
    while not (found := children.read_text().split()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.2)
    assert process.poll() is None
    assert is_running(found[0])
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while is_running(found[0]):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_child_ends_with_its_input():
    """Whatever it is at: here a task that never ends."""
    code = (
        "import sys, threading; from experiments import bench_child\n"
        "def forever(task): print('working', flush=True); threading.Event().wait()\n"
        "bench_child.TASKS['forever'] = forever\n"
        'sys.argv[1:] = [\'{"task": "forever", "num_cpu_devices": 1}\']\n'
        "bench_child.main()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "working\n"
        assert process.poll() is None
        process.stdin.close()
        assert process.wait(60) == 1


def test_a_child_that_fails_says_why():
    with pytest.raises(
        RuntimeError, match=r"task compilation ended .* --dataset=nowhere"
    ):
        bench_processes.child(
            "compilation", cache_dir="", config={"dataset": "nowhere"}
        )


# --- VGG ------------------------------------------------------------------------------


@pytest.mark.slow
def test_vgg_part_without_pytorch(monkeypatch):
    monkeypatch.setattr(bench_torch, "find", lambda: None)
    monkeypatch.setattr(bench_vgg, "_SIDE", 8)
    part = bench_vgg.measure(TINY._replace(repeats=1), QUIET)
    assert [row["what"] for row in part.rows] == ["one seed", "seed per device"]
    assert set(part.figures) == {"vgg_step_ms.one_seed", "vgg_step_ms.seed_per_device"}
    assert all(value.median > 0 for value in part.figures.values())
    assert "pip install torch" in part.notes[0]


def test_pytorchs_network_is_ours():
    """Same logits for the same weights, in training mode."""
    torch = pytest.importorskip("torch")
    channels, dense, classes, side = (3, 4, 5), 6, 7, 16
    theirs = bench_torch.network(torch, channels, dense, side, classes)
    ours = VGG(classes, channels, dense, "native")
    images = np.random.default_rng(0).random((9, side, side, 3), np.float32)
    variables = ours.init(jax.random.key(0), images)
    flat = side // 8
    weights = jax.tree.map(np.asarray, variables["params"])
    convolutions = [weights[f"Convolution_{i}"] for i in range(6)]
    linear = [weights["hidden"], weights["output"]]
    with torch.no_grad():
        for layer in theirs:
            if isinstance(layer, torch.nn.Conv2d):
                kernel = convolutions.pop(0)["kernel"].transpose(3, 2, 0, 1)
            elif isinstance(layer, torch.nn.Linear):
                kernel = linear.pop(0)["kernel"]
                if kernel.shape[0] == channels[-1] * flat**2:  # NHWC against NCHW
                    kernel = kernel.reshape(flat, flat, channels[-1], -1)
                    kernel = kernel.transpose(2, 0, 1, 3).reshape(-1, kernel.shape[-1])
                kernel = kernel.T
            else:
                continue
            assert layer.weight.shape == kernel.shape
            layer.weight.copy_(torch.from_numpy(np.ascontiguousarray(kernel)))
        x = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
        expected = theirs.train()(x).numpy()
    found, _ = ours.apply(variables, images, train=True, mutable=["batch_stats"])
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    run = bench_torch.training(
        torch,
        theirs,
        images,
        np.arange(9) % classes,
        minibatch=4,
        steps=2,
        channels_last=True,
        device="cpu",
    )
    before = theirs[0].weight.detach().clone()
    run()
    assert (theirs[0].weight != before).any()
