"""Devices, chunks and resumption from the command line's settings."""

import dataclasses
import io
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from rich.console import Console

from experiments import devices, distributed, fingerprint, stream
from experiments.stream import Config
from rad_jax import chunks, sweep

SMALL = Config(
    label_model="nearest_centroid",
    classifier="nearest_centroid",
    schemes=("basic",),
    num_seeds=3,
    initial_size=60,
    batch_size=20,
    num_batches=2,
    test_size=80,
    seeds_per_chunk=2,
    num_devices=1,
)
TABLES = ("summary.csv", "history.csv", "per_class.csv", "confusion.csv")


class Killed(Exception):
    pass


def kill_after_saving(monkeypatch):
    save = chunks.Store.save

    def save_and_die(self, part):
        save(self, part)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(chunks.Store, "save", save_and_die)
        yield


def change(**changes):
    return dataclasses.replace(SMALL, **changes)


def test_a_killed_run_is_resumed_and_writes_the_same(monkeypatch, tmp_path):
    text = io.StringIO()
    stream.run(change(output_dir=str(tmp_path / "whole")), Console(file=text))
    assert "chunks: 2 x 2 seeds" in text.getvalue()
    assert "arrival 4/4" in text.getvalue()

    broken = change(output_dir=str(tmp_path / "broken"))
    for _ in kill_after_saving(monkeypatch):
        with pytest.raises(Killed):
            stream.run(broken)
    assert [f.name for f in (tmp_path / "broken").iterdir()] == ["chunks"]
    with pytest.raises(ValueError, match=r"1 finished chunks .* --resume"):
        stream.run(broken)
    resumed = dataclasses.replace(broken, resume=True)
    with pytest.raises(ValueError, match=r"--noise_rates \(\[0\.4\], now \[0\.3\]\)"):
        stream.run(dataclasses.replace(resumed, noise_rates=(0.3,)))
    with pytest.raises(ValueError, match=r"--seed \(0, now 1\); data \("):
        stream.run(dataclasses.replace(resumed, seed=1))

    text = io.StringIO()
    stream.run(resumed, Console(file=text), keep_chunks=True)
    assert "arrival 4/4" in text.getvalue()
    assert "arrival 1/4" not in text.getvalue()  # was done before
    for name in TABLES:
        whole, broken = ((tmp_path / x / name) for x in ("whole", "broken"))
        assert whole.read_bytes() == broken.read_bytes(), name
        broken.unlink()

    def never(*args):
        raise AssertionError("everything has been computed")

    monkeypatch.setattr(sweep, "execute", never)
    stream.run(resumed)
    for name in TABLES:
        whole, broken = ((tmp_path / x / name) for x in ("whole", "broken"))
        assert whole.read_bytes() == broken.read_bytes(), name
    assert not (tmp_path / "broken" / "chunks").exists()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_devices": 64}, r"num_devices=64 .* has \d+ cpu devices"),
        ({"num_devices": 0}, "--num_devices must be at least 1, got 0"),
        ({"seeds_per_chunk": 4}, "seeds_per_chunk=4 .* num_seeds=3"),
        ({"seeds_per_chunk": 0}, "--seeds_per_chunk must be at least 1, got 0"),
    ],
    ids=str,
)
def test_bad_input_is_found_before_any_work(changes, says, tmp_path):
    with pytest.raises(ValueError, match=says):
        stream.run(change(output_dir=str(tmp_path), **changes))
    assert list(tmp_path.iterdir()) == []


def test_a_matrix_is_what_its_file_holds(tmp_path):
    file = tmp_path / "matrix.csv"
    config = change(noise_matrix=str(file))
    seen = []
    for text in ("1,0\n0,1\n", "0.9,0.1\n0,1\n"):
        file.write_text(text)
        seen.append(fingerprint.settings(config))
    assert chunks.differences(*seen).keys() == {"--noise_matrix"}


# --- compiled programs ----------------------------------------------------------------


@pytest.fixture
def _configuration():
    names = (
        "jax_compilation_cache_dir",
        "jax_persistent_cache_min_compile_time_secs",
        "jax_persistent_cache_min_entry_size_bytes",
    )
    before = {name: getattr(jax.config, name) for name in names}
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.mark.usefixtures("_configuration")
def test_programs_are_kept_in_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = devices.keep_programs(None)
    assert folder.parent == tmp_path / "rad_jax" / "xla"
    assert jax.config.jax_compilation_cache_dir == str(folder)
    own = devices.keep_programs(str(tmp_path / "own"))
    assert own.parent == tmp_path / "own"
    jax.config.update("jax_compilation_cache_dir", None)
    assert devices.keep_programs("") is None
    assert jax.config.jax_compilation_cache_dir is None


@pytest.mark.usefixtures("_configuration")
def test_a_cache_that_cannot_be_written(monkeypatch, tmp_path):
    file = tmp_path / "file"
    file.write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    assert devices.keep_programs(None) is None  # does without
    with pytest.raises(OSError, match=r"--compilation_cache_dir=.*file cannot be"):
        devices.keep_programs(str(file))


def test_each_core_is_a_device():
    code = (
        "from experiments import devices; devices.use_all_cores(); import jax; "
        "print(jax.local_device_count() == devices.num_cores())"
    )
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")
    } | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "True"


def test_a_chunk_under_another_name_is_refused_before_any_work(tmp_path):
    part = chunks.Part((0, 1), {"x": np.zeros((1, 1, 2, 2))}, *2 * [np.ones((1, 1, 2))])
    chunks.Store(tmp_path, {"a": 1}, resume=False).save(part)
    (file,) = tmp_path.glob("*.npz")
    copy = tmp_path / "seeds_0000007.npz"
    copy.write_bytes(file.read_bytes())
    with pytest.raises(
        ValueError, match=r"seeds_0000007.npz cannot be read: its seeds"
    ):
        chunks.Store(tmp_path, {"a": 1}, resume=True)
    copy.unlink()
    assert len(chunks.Store(tmp_path, {"a": 1}, resume=True).finished) == 1
    np.save(file.with_suffix(""), np.zeros(3))
    file.with_suffix(".npy").rename(file)
    with pytest.raises(ValueError, match="does not hold a chunk"):
        chunks.Store(tmp_path, {"a": 1}, resume=True)
    (tmp_path / "settings.json").write_text("[]")
    with pytest.raises(ValueError, match="it holds no settings"):
        chunks.Store(tmp_path, {"a": 1}, resume=True)


def test_blocks_of_seeds_that_differ_take_the_same_chunk_flag():
    config = stream.suit(
        stream.complete(change(num_seeds=5, seeds_per_chunk=3)),
        stream.read(SMALL),
    )
    data = stream.cut(config, stream.read(config))
    for index, seeds in ((0, 3), (1, 2)):
        planned = stream.prepare(config, data, distributed.Processes(index, 2))
        assert planned.num_seeds == planned.seeds_per_chunk == seeds
    config = dataclasses.replace(config, seeds_per_chunk=4)
    for index in (0, 1):
        with pytest.raises(ValueError, match="--seeds_per_chunk=4 must be at most 3"):
            stream.prepare(config, data, distributed.Processes(index, 2))
