"""Prepared data sets on disk: parsed once, mapped into memory afterwards.

An entry is a folder `<name>-<key>` of `.npy` files and `about.json`. The key is a
digest of the source files' paths, sizes and times of change, of the version of the
parser and of its options, so that an entry never goes stale; one that is not needed any
more may be deleted at any time. An entry is written under another name and renamed when
it is complete: what a killed process leaves is never read.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
import tempfile
import time
import tokenize
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rad_jax.datasets.base import DataError, Dataset

_LAYOUT = 3  # of an entry
_ABOUT = "about.json"
_ARRAYS = ("features", "labels", "source_row")  # the last may be None
_WRITING = ".writing-"  # of folders that are not complete
_ABANDONED = 86_400  # seconds after which nobody can be writing such a folder
#: What reading an entry that is not as it was written may raise.
_DAMAGE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    EOFError,
    RecursionError,
    tokenize.TokenError,
)


def default_dir() -> pathlib.Path | None:
    """`$XDG_CACHE_HOME/rad_jax`, or `~/.cache/rad_jax`; None where there is no home."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        root = pathlib.Path(base) if base else pathlib.Path.home() / ".cache"
    except RuntimeError:
        return None
    return root / "rad_jax"


def cached(
    name: str,
    files: Sequence[str | os.PathLike[str]],
    build: Callable[[], Dataset],
    *,
    version: int,
    options: Mapping[str, Any] | None = None,
    cache_dir: str | os.PathLike[str] | None,
) -> Dataset:
    """The data set that `build` returns, from disk if it has been built before.

    Any number of processes may do so at once: each builds, and one entry stays.

    Args:
      name: of the data set; the first part of the entry's name.
      files: all source files that `build` reads.
      build: parses them. Warnings that it gives are given again with a cached copy.
      version: of the parser; to be raised when its results change.
      options: on what else the result depends: what JSON can hold.
      cache_dir: folder of the entries, made if need be; None or empty: no cache.

    Returns:
      The data set. From disk, its arrays are mapped into memory and read-only.

    Warns:
      UserWarning: An entry is damaged (it is built anew), or cannot be written (the
        data set is returned all the same).

    Raises:
      Exception: what `build` raises; nothing is written then.
    """
    if not cache_dir:
        return build()
    sources = _states(files)
    if sources is None:  # `build` says it better
        return build()
    key = [_LAYOUT, name, version, sorted((options or {}).items()), sources]
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:20]
    entry = pathlib.Path(os.path.expanduser(cache_dir)) / f"{name}-{digest}"
    if os.path.isdir(entry):  # which raises nothing
        try:
            dataset, messages = _read(entry)
        except _DAMAGE as error:
            warnings.warn(
                f"cache {entry} is damaged ({error}); built anew", stacklevel=2
            )
        else:
            for message in messages:
                warnings.warn(message, stacklevel=2)
            return dataset
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dataset = build()
    messages = [str(w.message) for w in caught if w.category is UserWarning]
    for given in caught:
        warnings.warn(given.message, stacklevel=2)
    if _states(files) == sources:  # else it is of files that are not the same any more
        try:
            _write(entry, dataset, messages)
        except (OSError, ValueError) as error:  # a null byte
            warnings.warn(
                f"cache_dir={os.fspath(cache_dir)} cannot be written to ({error}); the "
                "next start will parse the files again",
                stacklevel=2,
            )
    return dataset


def _states(
    files: Sequence[str | os.PathLike[str]],
) -> list[tuple[str, int, int]] | None:
    """Path, size and time of change of each file; None if one is not there."""
    states = []
    for file in files:
        path = pathlib.Path(file).resolve()
        try:
            status = path.stat()
        except OSError:
            return None
        states.append((str(path), status.st_size, status.st_mtime_ns))
    return states


def _read(entry: pathlib.Path) -> tuple[Dataset, list[str]]:
    """Reads an entry and the warnings that came with it.

    Raises:
      Exception: Of `_DAMAGE`: it is not as it was written.
    """
    about = json.loads((entry / _ABOUT).read_text("utf-8"))
    arrays = {}
    for array in about["sizes"]:
        path = entry / f"{array}.npy"
        size, expected = path.stat().st_size, about["sizes"][array]
        if size != expected:
            raise DataError(f"{path.name} has {size} bytes, {expected} are needed")
        arrays[array] = np.load(path, mmap_mode="r", allow_pickle=False)
    dataset = Dataset(
        name=about["name"],
        class_names=tuple(about["class_names"]),
        feature_names=tuple(about["feature_names"]),
        missing=about["missing"],
        scaling=about["scaling"],
        **arrays,
    )
    return dataset, list(about["warnings"])


def _write(entry: pathlib.Path, dataset: Dataset, messages: list[str]) -> None:
    """Writes an entry whole or not at all.

    Raises:
      OSError: It cannot be written.
    """
    entry.parent.mkdir(parents=True, exist_ok=True)
    _clean(entry.parent)
    folder = pathlib.Path(tempfile.mkdtemp(prefix=_WRITING, dir=entry.parent))
    try:
        sizes = {}
        for array in _ARRAYS:
            if getattr(dataset, array) is None:
                continue
            path = folder / f"{array}.npy"
            with path.open("wb") as file:
                np.save(file, np.ascontiguousarray(getattr(dataset, array)))
                _to_disk(file)
            sizes[array] = path.stat().st_size
        about = {
            field.name: getattr(dataset, field.name)
            for field in dataclasses.fields(dataset)
            if field.name not in _ARRAYS
        }
        with (folder / _ABOUT).open("w", encoding="utf-8") as file:
            json.dump(about | {"sizes": sizes, "warnings": messages}, file, indent=1)
            _to_disk(file)
        if entry.exists() and not _is_whole(entry):
            with contextlib.suppress(FileNotFoundError):  # another process was first
                os.rename(entry, f"{folder}-damaged")
        try:
            os.rename(folder, entry)
        except OSError:
            if not entry.is_dir():  # else another process was first
                raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(f"{folder}-damaged", ignore_errors=True)


def _is_whole(entry: pathlib.Path) -> bool:
    """Whether an entry can be read."""
    try:
        _read(entry)
    except _DAMAGE:
        return False
    return True


def _to_disk(file) -> None:
    """Makes what was written last, so that a rename cannot come before it."""
    file.flush()
    os.fsync(file.fileno())


def _clean(cache_dir: pathlib.Path) -> None:
    """Removes what killed processes left behind."""
    for folder in cache_dir.glob(f"{_WRITING}*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > _ABANDONED:
                shutil.rmtree(folder, ignore_errors=True)
