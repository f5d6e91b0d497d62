"""The cache: the same data set again, and never a damaged or half-written one."""

import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from rad_jax.datasets import Dataset, cache

TABLE = Dataset(
    name="made",
    features=np.asfortranarray(np.random.default_rng(0).normal(size=(50, 3))),
    labels=(np.arange(50) % 3 - 1).astype(np.int32),
    class_names=("ä", "b"),
    feature_names=("x", "y", "z"),
    scaling="log",
)
IMAGES = Dataset(
    name="pictures",
    features=np.random.default_rng(0).integers(0, 256, (9, 4, 5, 3), dtype=np.uint8),
    labels=np.zeros(9, np.int32),
    class_names=("a",),
)


class Built:
    """A `build` that counts how often it was called."""

    def __init__(self, dataset=TABLE):
        self.dataset, self.times = dataset, 0

    def __call__(self):
        self.times += 1
        return self.dataset


@pytest.fixture
def source(tmp_path):
    file = tmp_path / "source.csv"
    file.write_text("1,2,3")
    return file


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "deep" / "cache"


def load(build, source, folder, **changes):
    options = {"version": 1, "options": {"device": "all"}, "cache_dir": folder}
    return cache.cached("made", [source], build, **(options | changes))


def assert_same(one, other):
    for array in ("features", "labels"):
        a, b = getattr(one, array), getattr(other, array)
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    for name in ("name", "class_names", "feature_names", "missing", "scaling"):
        assert getattr(one, name) == getattr(other, name)


def only_entry(folder):
    (entry,) = folder.iterdir()
    return entry


@pytest.mark.parametrize("dataset", [TABLE, IMAGES])
def test_the_second_time_it_comes_from_disk(source, folder, dataset):
    build = Built(dataset)
    first, second = (load(build, source, folder) for _ in range(2))
    assert build.times == 1
    assert isinstance(second.features, np.memmap)
    assert second.features.flags.c_contiguous
    assert_same(first, second)
    assert_same(dataset, second)


def test_the_rows_of_the_source_come_back(source, folder):
    rows = np.random.default_rng(0).permutation(50).astype(np.int64)
    build = Built(dataclasses.replace(TABLE, source_row=rows))
    for _ in range(2):
        again = load(build, source, folder)
        assert again.source_row.dtype == np.int64
        np.testing.assert_array_equal(again.source_row, rows)
    assert build.times == 1
    for _ in range(2):
        assert load(Built(), source, folder, version=2).source_row is None


def test_missing_values_stay_allowed(source, folder):
    features = TABLE.features.copy()
    features[3, 1] = np.nan
    dataset = Dataset("made", features, TABLE.labels, ("a", "b"), ("x", "y", "z"), True)
    build = Built(dataset)
    for _ in range(2):
        assert_same(load(build, source, folder), dataset)
    assert build.times == 1


@pytest.mark.parametrize("change", ["size", "time", "version", "options", "name"])
def test_whatever_it_depends_on_makes_another_entry(source, folder, change):
    build, changes, old = Built(), {}, source.stat()
    load(build, source, folder)
    if change == "size":
        source.write_text("1,2,3,4")
        os.utime(source, ns=(old.st_atime_ns, old.st_mtime_ns))
    elif change == "time":
        os.utime(source, ns=(old.st_atime_ns, old.st_mtime_ns + 1_000_000_000))
    elif change == "name":
        source = source.rename(source.with_name("other.csv"))
    else:
        changes = {"version": {"version": 2}, "options": {"options": {}}}[change]
    load(build, source, folder, **changes)
    assert build.times == 2
    load(build, source, folder, **changes)
    assert build.times == 2


@pytest.mark.parametrize("without", [None, ""])
def test_without_a_folder_nothing_is_cached(source, tmp_path, without):
    build = Built()
    for _ in range(2):
        load(build, source, without)
    assert build.times == 2
    assert [path.name for path in tmp_path.iterdir()] == ["source.csv"]


def truncate(entry):
    path = entry / "features.npy"
    path.write_bytes(path.read_bytes()[:-8])


def lengthen(entry):
    with (entry / "labels.npy").open("ab") as file:
        file.write(b"\0")


def wrong_label(entry):
    path = entry / "labels.npy"
    path.write_bytes(path.read_bytes()[:-4] + b"\7\0\0\0")


def wrong_header(entry):
    path = entry / "features.npy"
    path.write_bytes(b"\0" * 20 + path.read_bytes()[20:])


def open_header(entry):
    path = entry / "features.npy"
    path.write_bytes(path.read_bytes().replace(b"(50, 3)", b"(50, 3 "))


def no_array(entry):
    (entry / "labels.npy").unlink()


def no_description(entry):
    (entry / "about.json").unlink()


def half_a_description(entry):
    path = entry / "about.json"
    path.write_text(path.read_text()[:40])


def other_description(entry):
    (entry / "about.json").write_text("[]")


@pytest.mark.parametrize(
    "damage",
    [
        truncate,
        lengthen,
        wrong_label,
        wrong_header,
        open_header,
        no_array,
        no_description,
        half_a_description,
        other_description,
    ],
)
def test_a_damaged_entry_is_built_anew(source, folder, damage):
    build = Built()
    load(build, source, folder)
    damage(only_entry(folder))
    with pytest.warns(UserWarning, match=r"made-\w+ is damaged \(.*built anew"):
        assert_same(load(build, source, folder), TABLE)
    assert build.times == 2
    assert_same(load(build, source, folder), TABLE)
    assert build.times == 2
    only_entry(folder)


def test_an_error_of_the_parser_leaves_nothing(source, folder):
    def build():
        raise ValueError("line 3")

    with pytest.raises(ValueError, match="line 3"):
        load(build, source, folder)
    assert not folder.exists()


def test_a_source_that_is_not_there_is_the_parsers_affair(tmp_path, folder):
    def build():
        raise ValueError("looked for it there")

    with pytest.raises(ValueError, match="looked for it there"):
        load(build, tmp_path / "absent.csv", folder)


def test_a_source_that_changes_meanwhile_is_not_cached(source, folder):
    def build():
        source.write_text("something longer")
        return TABLE

    load(build, source, folder)
    assert not folder.exists()


def test_a_folder_that_cannot_be_written_is_a_warning(source, tmp_path):
    build = Built()
    with pytest.warns(UserWarning, match=r"cache_dir=.*source.csv cannot be written"):
        assert_same(load(build, source, tmp_path / "source.csv"), TABLE)
    assert build.times == 1


@pytest.mark.parametrize("name", ["x" * 300, "nul\0", "~nobody_of_this_name/\0"])
def test_a_folder_that_cannot_be_is_a_warning(source, name):
    build = Built()
    with pytest.warns(UserWarning, match="cannot be written"):
        assert_same(load(build, source, name), TABLE)


def test_a_full_disk_is_a_warning_and_leaves_nothing(source, folder, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.warns(UserWarning, match="No space left on device"):
        load(Built(), source, folder)
    assert not list(folder.iterdir())


def test_warnings_of_the_parser_are_given_again(source, folder):
    def build():
        import warnings

        warnings.warn("left out 3 of 9 images", stacklevel=1)
        return TABLE

    for _ in range(2):
        with pytest.warns(UserWarning, match="left out 3 of 9") as given:
            load(build, source, folder)
        assert len(given) == 1


KILLED = """
import os, pathlib, sys
import numpy as np
from rad_jax.datasets import Dataset, cache

source, folder, after = sys.argv[1:]
features = np.arange(600.0).reshape(200, 3)
dataset = Dataset("made", features, np.zeros(200, np.int32), ("a",), ("x", "y", "z"))
original, calls = os.fsync, []

def fsync(number):
    original(number)
    calls.append(number)
    if len(calls) == int(after):
        os.kill(os.getpid(), 9)

os.fsync = fsync
cache.cached("made", [source], lambda: dataset, version=1, cache_dir=folder)
"""


@pytest.mark.parametrize("after", [1, 3])
def test_what_a_killed_process_leaves_is_never_read(source, folder, after):
    root = pathlib.Path(cache.__file__).parents[2]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(source), str(folder), str(after)],
        cwd=root,
        check=False,
    )
    assert killed.returncode == -9
    left = only_entry(folder)
    assert left.name.startswith(".writing-")
    build = Built()
    for _ in range(2):
        assert_same(load(build, source, folder, options=None), TABLE)
    assert build.times == 1
    assert left.exists()  # another process may be writing it
    os.utime(left, (0, time.time() - 100_000))
    load(build, source, folder, version=2)
    assert not left.exists()


def test_many_processes_at_once(source, folder):
    """Threads that build at once, as processes would: all get it, one entry stays."""
    together, results = threading.Barrier(6), []

    def build():
        return TABLE

    def start():
        together.wait()
        results.append(load(build, source, folder))

    threads = [threading.Thread(target=start) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 6
    for result in results:
        assert_same(result, TABLE)
    assert only_entry(folder).name.startswith("made-")


def test_a_race_for_a_damaged_entry(source, folder, monkeypatch):
    load(Built(), source, folder)
    entry = only_entry(folder)
    whole = folder.parent / "whole"
    shutil.copytree(entry, whole)
    truncate(entry)

    def build():  # meanwhile another process mends it
        shutil.rmtree(entry)
        whole.rename(entry)
        return TABLE

    with pytest.warns(UserWarning, match="is damaged"):
        assert_same(load(build, source, folder), TABLE)
    assert_same(load(None, source, folder), TABLE)
    only_entry(folder)


def test_the_folder_by_default(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache.default_dir() == pathlib.Path("/somewhere/rad_jax")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/ann")
    assert cache.default_dir() == pathlib.Path("/home/ann/.cache/rad_jax")
