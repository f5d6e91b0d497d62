"""Sweeps over several devices and in chunks: the same as on one device at once."""

import errno
import functools
import itertools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_sweep import BY_INITIALISATION, BY_ORDER, Compilations, blobs

from rad_jax import chunk_size, chunks, compiled, devices, selection, sweep
from rad_jax.statistics import HISTORY_METRICS
from rad_jax.sweep import Arm

DEVICES = 4
ARMS = (
    Arm("slim", selection.basic(), one_model=True),
    Arm("basic", selection.basic()),
    Arm("active_limited", selection.active_limited(3)),
)
NUM_SEEDS = 6


@pytest.fixture(autouse=True, scope="module")
def _four_devices():
    if jax.local_device_count() < DEVICES:
        pytest.skip(f"needs {DEVICES} devices, there are {jax.local_device_count()}")


def prepare(arms=ARMS, **options):
    defaults = {
        "label_model": BY_INITIALISATION,
        "classifier": BY_ORDER,
        "noise_rates": (0.4,),
        "num_seeds": NUM_SEEDS,
        "seed": 3,
        "randomness": "double_random",
    }
    return sweep.prepare(blobs(), arms, **defaults | options)


@functools.cache
def reference():
    """One device, all seeds at once."""
    return prepare(num_devices=1).run()


def assert_same(got, expected):
    """To rounding: at most a row of 200 moves, or one of those that were selected."""
    assert got.seeds == expected.seeds
    rows = {"kept": 1, "queries": 1, "wasted_queries": 1, "realised_noise": 0}
    for name in HISTORY_METRICS:
        np.testing.assert_allclose(
            got.history[name],
            expected.history[name],
            rtol=1e-5,
            atol=1e-5 + rows.get(name, 1 / 20),
            err_msg=name,
        )
    for name in ("accuracy", "purity", "kept"):  # and hardly ever
        differ = ~np.isclose(got.history[name], expected.history[name], equal_nan=True)
        assert differ.mean() < 0.02, name
    for name in ("confusion", "classifier_confusion"):
        moved = np.abs(getattr(got, name) - getattr(expected, name)).sum((-1, -2))
        assert moved.max() <= 2, name


# --- devices --------------------------------------------------------------------------


def test_six_seeds_on_four_devices():
    """2 x 6 and 6 runs, the latter filled up to 8."""
    planned = prepare(num_devices=4)
    assert planned.num_devices == 4
    with Compilations() as compilations:
        result = planned.run()
    assert compilations.of_parts() == {"begin": 1, "advance": 1}
    assert_same(result, reference())
    # Runs differ, so that runs that changed places would be seen.
    final = reference().history["accuracy"][:, 0, :, -1]
    assert len({tuple(x) for x in reference().history["accuracy"][1, 0]}) == NUM_SEEDS
    assert len(np.unique(final)) > 5


def test_seeds_that_share_models():
    """Keys of initialisation and order go to every device whole."""
    one, three = (
        prepare(ARMS[:1], randomness="fixed_model", num_devices=n, num_seeds=3).run()
        for n in (1, 3)
    )
    assert_same(three, one)


def test_every_device_works_at_its_part(monkeypatch):
    planned = prepare(num_devices=4)
    seen = []
    call = compiled.Compiled.__call__

    def spy(self, *args):
        out = call(self, *args)
        seen.append(out)
        return out

    monkeypatch.setattr(compiled.Compiled, "__call__", spy)
    planned.run()
    _, figures = seen[0]
    for group in figures:
        shards = group["accuracy"].addressable_shards
        assert len({s.device for s in shards}) == 4
        assert {s.data.size for s in shards} == {group["accuracy"].size // 4}
    carry, _ = seen[-1]
    confusion = carry.confusions[0].ensemble
    assert confusion.shape[0] == 12
    assert {s.data.shape[0] for s in confusion.addressable_shards} == {3}


def test_more_devices_than_there_are():
    with pytest.raises(ValueError, match=r"num_devices=64 .* 1\.\.\d+.* cpu devices"):
        prepare(num_devices=64)
    with pytest.raises(ValueError, match="num_devices=0"):
        prepare(num_devices=0)


def test_no_more_devices_than_runs():
    assert prepare(num_seeds=1).num_devices == 2
    assert prepare().num_devices == jax.local_device_count()
    assert prepare(seeds_per_chunk=1).num_devices == 2


def test_fill_up():
    assert devices.fill_up(6, 4).tolist() == [0, 1, 2, 3, 4, 5, 5, 5]
    assert devices.fill_up(8, 4).tolist() == list(range(8))
    assert devices.fill_up(1, 1).tolist() == [0]


def test_free_bytes_is_of_this_machine():
    free = devices.free_bytes()
    assert free is None or 10**6 < free < 10**14


def test_unalias_copies_buffers_that_stand_twice_on_a_mesh():
    mesh = devices.mesh(2)
    x = devices.put(jnp.arange(4.0), mesh, devices.RUNS)
    one = {"a": x, "b": x, "c": devices.put(jnp.ones(2), mesh)}
    own = compiled.unalias(one)
    for name in one:
        np.testing.assert_array_equal(own[name], one[name])
        assert own[name].sharding == one[name].sharding
    jax.jit(lambda t: jax.tree.map(lambda x: x + 1, t), donate_argnums=0)(own)


# --- chunks ---------------------------------------------------------------------------


@pytest.mark.parametrize(("num_devices", "size"), [(1, 2), (4, 4)])
def test_chunks_give_the_same_and_compile_once(num_devices, size):
    planned = prepare(seeds_per_chunk=size, num_devices=num_devices)
    num_chunks = -(-NUM_SEEDS // size)
    assert (planned.seeds_per_chunk, planned.num_chunks) == (size, num_chunks)
    done = []
    with Compilations() as compilations:
        result = planned.run(done.append)
    assert compilations.of_parts() == {"begin": 1, "advance": 1}
    assert done == list(range(1, 4 * num_chunks + 1))
    assert_same(result, reference())
    assert planned.estimated_bytes < prepare(num_devices=num_devices).estimated_bytes


def test_a_later_block_of_seeds():
    """What a process of several makes."""
    block = prepare(num_seeds=2, first_seed=4, num_devices=1).run()
    assert block.seeds == (4, 5)
    whole = reference()
    # One test row or one stored row may be decided otherwise by rounding.
    for name, one_row in (("accuracy", 0.05), ("kept", 1), ("realised_noise", 0)):
        np.testing.assert_allclose(
            block.history[name],
            whole.history[name][:, :, 4:],
            rtol=1e-5,
            atol=one_row + 1e-6,
        )
        exact = np.isclose(block.history[name], whole.history[name][:, :, 4:])
        nan = np.isnan(block.history[name])
        assert (exact | nan).mean() > 0.98
    with pytest.raises(ValueError, match="first_seed"):
        prepare(first_seed=-1)


@pytest.mark.parametrize("given", [0, 7, -1])
def test_a_chunk_beyond_the_seeds(given):
    with pytest.raises(ValueError, match=rf"seeds_per_chunk={given} .*num_seeds=6"):
        prepare(seeds_per_chunk=given)


@pytest.mark.parametrize("name", ["num_seeds", "seeds_per_chunk", "num_devices"])
@pytest.mark.parametrize("value", [2.0, "2", True])
def test_what_is_no_whole_number_is_named(name, value):
    with pytest.raises(TypeError, match=f"{name} must be a whole number, got"):
        prepare(**{name: value})


def test_the_default_is_what_memory_holds(monkeypatch):
    whole = prepare(num_devices=1)
    assert whole.num_chunks == 1

    def planned(free, **options):
        monkeypatch.setattr(devices, "free_bytes", lambda count=None: free)
        return prepare(**{"num_devices": 1} | options)

    tight = planned(2 * whole.estimated_bytes - 2)
    assert (tight.seeds_per_chunk, tight.num_chunks) == (3, 2)  # not 5 and 1
    assert tight.estimated_bytes <= whole.estimated_bytes
    assert planned(2 * whole.estimated_bytes).num_chunks == 1
    assert planned(1).seeds_per_chunk == 1
    assert planned(None).num_chunks == 1
    # Devices that share their memory: fewer of them, before nothing fits.
    assert planned(1, num_devices=None).num_devices == 1


def test_a_cpu_device_works_on_no_more_than_is_fast(monkeypatch):
    monkeypatch.setattr(devices, "free_bytes", lambda count=None: None)
    most = devices.CPU_BYTES

    def together(shared, seed, num_devices=1, runs_per_seed=3, **options):
        groups = [(runs_per_seed, seed / runs_per_seed)]
        return chunk_size.size(
            7, shared, groups, num_devices=num_devices, **options
        ).seeds_per_chunk

    assert together(0, most // 7) == 7
    assert together(0, most // 3) == 4  # not 3, 3 and 1
    assert together(0, most // 6, num_devices=2) == 7
    # A little more, rather than 4 and 3 with a seed computed twice; or 4, 4 and 4.
    assert together(0, most // 6) == 7
    assert chunk_size.size(10, 0, [(2, most // 4)], num_devices=2).seeds_per_chunk == 5
    # What is computed once for all of a chunk is worth as much as they are.
    assert together(2 * most, most) == 2
    # Who asks for more gets it, and a seed of more is computed all the same.
    assert together(0, most, seeds_per_chunk=5) == 5
    assert together(0, 2 * most) == 1
    # No device is without a run.
    assert together(0, 3 * most, num_devices=2) == 1
    assert together(0, 3 * most, num_devices=2, runs_per_seed=1) == 2


@pytest.mark.parametrize("num_devices", [None, 1, 2])
def test_what_fills_up_chunks_counts_as_memory(monkeypatch, num_devices):
    """Within what is free, unless nothing smaller is left to choose."""
    every = [[(1, 6)], [(2, 30)], [(3, 20)], [(3, 4), (1, 9)], [(1, 2), (2, 25)]]
    for num_seeds, shared, groups, free in itertools.product(
        (1, 2, 5, 7), (0, 10), every, (5, 12, 65, 130, 250, 1000)
    ):
        monkeypatch.setattr(
            devices, "free_bytes", lambda count, free=free: free / devices.MEMORY_SHARE
        )
        found = chunk_size.size(num_seeds, shared, groups, num_devices=num_devices)
        count = found.num_devices
        held = count * shared
        for runs, run_bytes in groups:
            index = devices.fill_up(found.seeds_per_chunk * runs, count)
            held += len(index) * run_bytes
        assert found.num_bytes == held
        least = count == (num_devices or 1) and found.seeds_per_chunk == 1
        assert held <= free or least
        assert found.seeds_per_chunk <= num_seeds
        if num_devices is not None and free >= held:  # as many as fit, in even chunks
            assert found.num_chunks == min(
                -(-num_seeds // n)
                for n in range(1, num_seeds + 1)
                if count * shared
                + sum(len(devices.fill_up(n * runs, count)) * b for runs, b in groups)
                <= free
            )


def test_cut():
    cut = list(chunks.cut(range(10, 17), 3))
    assert cut == [([10, 11, 12], 3), ([13, 14, 15], 3), ([16, 16, 16], 1)]


# --- finished chunks on disk ----------------------------------------------------------

SETTINGS = {"seed": 3, "hidden": (28, 28), "noise_rates": [0.4]}


class Killed(Exception):
    pass


def kill_after(done):
    def progress(now):
        if now > done:
            raise Killed

    return progress


@functools.cache
def in_chunks():
    return prepare(seeds_per_chunk=2, num_devices=1)


def test_a_killed_run_goes_on(tmp_path):
    folder = tmp_path / "chunks"
    with pytest.raises(Killed):
        in_chunks().run(kill_after(5), chunks.Store(folder, SETTINGS, resume=False))
    assert sorted(f.name for f in folder.iterdir()) == [
        "seeds_0000000.npz",
        "settings.json",
    ]
    store = chunks.Store(folder, SETTINGS, resume=True)
    assert [part.seeds for part in store.finished] == [(0, 1)]
    done = []
    result = in_chunks().run(done.append, store)
    assert done == list(range(5, 13))
    unbroken = in_chunks().run()
    for name in HISTORY_METRICS:
        np.testing.assert_array_equal(result.history[name], unbroken.history[name])
    np.testing.assert_array_equal(result.confusion, unbroken.confusion)

    all_there = chunks.Store(folder, SETTINGS, resume=True)
    again = in_chunks().run(pytest.fail, all_there)  # nothing is left to do
    np.testing.assert_array_equal(again.confusion, unbroken.confusion)
    all_there.remove()
    assert not folder.exists()


def test_chunks_of_another_run_are_refused(tmp_path):
    folder = tmp_path / "chunks"
    with pytest.raises(Killed):
        in_chunks().run(kill_after(5), chunks.Store(folder, SETTINGS, resume=False))
    with pytest.raises(ValueError, match=r"1 finished chunks .* --resume"):
        chunks.Store(folder, SETTINGS, resume=False)
    other = {"seed": 4, "hidden": (28, 28), "alpha": "test", "noise_rates": [0.4]}
    with pytest.raises(ValueError, match="--resume") as caught:
        chunks.Store(folder, other, resume=True)
    assert "seed (3, now 4); alpha (None, now test)" in str(caught.value)
    assert "hidden" not in str(caught.value)

    (folder / "seeds_0000000.npz").write_bytes(b"PK damaged")
    with pytest.raises(ValueError, match=r"seeds_0000000\.npz cannot be read"):
        chunks.Store(folder, SETTINGS, resume=True)
    (folder / "settings.json").write_text(json.dumps(SETTINGS)[:-5])
    with pytest.raises(ValueError, match=r"settings\.json cannot be read"):
        chunks.Store(folder, SETTINGS, resume=True)


def a_part(*seeds, num_arrivals=3):
    n = len(seeds)
    counts = np.zeros((1, 1, n, 2, 2), int)
    return chunks.Part(
        seeds, {"accuracy": np.zeros((1, 1, n, num_arrivals))}, counts, counts
    )


def without_history(part):
    return part._replace(history={})


def of_other_seeds(part):
    return part._replace(seeds=(0, 1, 2))


def of_the_same_seeds(part):
    return part._replace(seeds=(0, 0))


@pytest.mark.parametrize(
    "damage", [without_history, of_other_seeds, of_the_same_seeds, None]
)
def test_a_chunk_that_does_not_fit_is_refused_before_any_work(damage, tmp_path):
    chunks.Store(tmp_path, SETTINGS, resume=True).save(a_part(2, 3))
    part = damage(a_part(0, 1)) if damage else a_part(0, 1, num_arrivals=4)
    (tmp_path / "seeds_0000000.npz").write_bytes(part.to_bytes())
    broken = "seeds_0000000" if damage else "seeds_0000002"
    with pytest.raises(ValueError, match=rf"{broken}\.npz cannot be read: it"):
        chunks.Store(tmp_path, SETTINGS, resume=True)


def test_any_flipped_bit_of_a_chunk_is_found_or_harmless(tmp_path):
    part = a_part(0, 1)
    data = part.to_bytes()
    for place in np.random.default_rng(0).integers(0, len(data), 150):
        flipped = bytearray(data)
        flipped[place] ^= 1 << (place % 8)
        try:
            again = chunks.Part.from_bytes(bytes(flipped))
        except ValueError:
            continue
        assert again.seeds == part.seeds
        assert again.layout() == part.layout()


def test_a_folder_of_chunks_that_is_none_is_refused_before_any_work(tmp_path):
    (tmp_path / "chunks").write_text("a file")
    with pytest.raises(OSError, match=r"chunks cannot be written to \(Not a directory"):
        chunks.Store(tmp_path / "chunks", SETTINGS, resume=False)


def test_a_full_disk_is_named_and_earlier_chunks_stay(monkeypatch, tmp_path):
    store = chunks.Store(tmp_path, SETTINGS, resume=False)
    store.save(a_part(0, 1))

    def full(self, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(OSError, match=f"{tmp_path} cannot be written to .No space"):
            store.save(a_part(2, 3))
    again = chunks.Store(tmp_path, SETTINGS, resume=True)
    assert [part.seeds for part in again.finished] == [(0, 1)]


def test_two_runs_do_not_mix_their_chunks(tmp_path):
    one = chunks.Store(tmp_path, SETTINGS, resume=False)
    other = chunks.Store(tmp_path, SETTINGS | {"seed": 4}, resume=False)
    one.save(a_part(0, 1))
    with pytest.raises(OSError, match=r"another run .*seeds_0000000\.npz"):
        other.save(a_part(0, 1))
    one.save(a_part(2, 3))
    assert len(chunks.Store(tmp_path, SETTINGS, resume=True).finished) == 2


def test_what_a_kill_left_half_written_goes_with_the_chunks(tmp_path):
    folder = tmp_path / "chunks"
    store = chunks.Store(folder, SETTINGS, resume=False)
    store.save(a_part(0, 1))
    (folder / ".seeds_0000002_77.npz").write_bytes(b"PK")
    (folder / ".settings_77.json").write_text("{")
    store = chunks.Store(folder, SETTINGS, resume=True)
    assert [part.seeds for part in store.finished] == [(0, 1)]
    store.remove()
    assert not folder.exists()


def test_nothing_to_resume_is_a_new_run(tmp_path):
    store = chunks.Store(tmp_path / "none", SETTINGS, resume=True)
    assert store.finished == []
    store.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_part_survives_the_disk():
    part = chunks.Part(
        (3, 4),
        {"accuracy": np.arange(12.0).reshape(1, 1, 2, 6)},
        np.arange(18).reshape(1, 1, 2, 3, 3),
        np.ones((1, 1, 2, 3, 3), int),
    )
    again = chunks.Part.from_bytes(part.to_bytes())
    assert again.seeds == (3, 4)
    np.testing.assert_array_equal(again.history["accuracy"], part.history["accuracy"])
    np.testing.assert_array_equal(again.confusion, part.confusion)
    other = part._replace(seeds=(0, 9))
    joined = chunks.join([part, other])
    assert joined.seeds == (0, 3, 4, 9)
    np.testing.assert_array_equal(joined.confusion[0, 0, 3], part.confusion[0, 0, 1])


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("0::/slurm/job_7", ("", "memory.max", "memory.current", "inactive_file")),
        (
            "5:cpu,memory:/slurm/job_7",
            (
                "memory",
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                "total_inactive_file",
            ),
        ),
    ],
)
def test_limits_of_nested_control_groups_are_seen(line, names, tmp_path):
    top, limit, used, cached = names
    (tmp_path / "cgroup").write_text(f"3:cpuset:/x\n{line}\n")
    root = tmp_path / "sys"
    for folder, most in (("slurm", "max"), ("slurm/job_7", "1000"), ("", "5000")):
        group = root / top / folder
        group.mkdir(parents=True, exist_ok=True)
        (group / limit).write_text(f"{most}\n")
        (group / used).write_text("300\n")
        (group / "memory.stat").write_text(f"anon 9\n{cached} 50\n")
    assert devices.group_bytes(tmp_path / "cgroup", root) == [750, 4750]
    assert devices.group_bytes(tmp_path / "missing", root) == []
