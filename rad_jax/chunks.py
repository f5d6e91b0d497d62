"""Chunks of seeds: what they gave, and keeping it on disk; see `chunk_size`."""

import io
import json
import math
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rad_jax.files import atomic_path

_HISTORY = "history/"
_SETTINGS = "settings.json"


class Part(NamedTuple):
    """What was measured for some seeds; axes are scheme, rate, seed and more.

    Attributes:
      seeds: n ids.
      history: by metric, ``[S, R, n, T + 1]``.
      confusion: ``[S, R, n, K, K]``.
      classifier_confusion: likewise of C alone.
    """

    seeds: tuple[int, ...]
    history: dict[str, np.ndarray]
    confusion: np.ndarray
    classifier_confusion: np.ndarray

    def take(self, count: int) -> "Part":
        """The first seeds only."""
        return Part(
            self.seeds[:count],
            {name: x[:, :, :count] for name, x in self.history.items()},
            self.confusion[:, :, :count],
            self.classifier_confusion[:, :, :count],
        )

    def to_bytes(self) -> bytes:
        """As a file of NumPy arrays (.npz)."""
        file = io.BytesIO()
        arrays = {_HISTORY + name: x for name, x in self.history.items()}
        np.savez(
            file,
            seeds=np.asarray(self.seeds),
            confusion=self.confusion,
            classifier_confusion=self.classifier_confusion,
            **arrays,  # type: ignore[arg-type]
        )
        return file.getvalue()

    @staticmethod
    def from_bytes(data: bytes) -> "Part":
        """What `to_bytes` made.

        Raises:
          ValueError: it is something else.
        """
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                seeds = arrays["seeds"]
                part = Part(
                    tuple(seeds.tolist()),
                    {
                        name.removeprefix(_HISTORY): arrays[name]
                        for name in arrays.files
                        if name.startswith(_HISTORY)
                    },
                    arrays["confusion"],
                    arrays["classifier_confusion"],
                )
        except (
            zipfile.BadZipFile,
            zlib.error,
            KeyError,
            EOFError,
            AttributeError,
            TypeError,
            RuntimeError,  # flipped bits say that it is encrypted
        ) as error:
            raise ValueError(f"it does not hold a chunk: {error}") from error
        measured = [*part.history.values(), part.confusion, part.classifier_confusion]
        if (
            not part.seeds
            or not part.history
            or seeds.dtype.kind != "i"
            or len(set(seeds.ravel().tolist())) < len(seeds)
            or any(x.shape[2:3] != seeds.shape for x in measured)
            or any(x.dtype.kind not in "iuf" for x in measured)
        ):
            raise ValueError("it does not hold a chunk: arrays are not as `to_bytes`'s")
        return part

    def layout(self) -> dict[str, tuple[int, ...]]:
        """Shapes by name, but for the number of seeds; equal in parts of one sweep."""
        arrays = {**self.history, "": self.confusion, "C": self.classifier_confusion}
        return {name: x.shape[:2] + x.shape[3:] for name, x in arrays.items()}


def join(parts: Sequence[Part]) -> Part:
    """Parts of different seeds as one, in the order of the seeds."""
    seeds = [seed for part in parts for seed in part.seeds]
    order = np.argsort(seeds)

    def along_seeds(arrays) -> np.ndarray:
        return np.concatenate(arrays, axis=2)[:, :, order]

    return Part(
        tuple(sorted(seeds)),
        {
            name: along_seeds([part.history[name] for part in parts])
            for name in parts[0].history
        },
        along_seeds([part.confusion for part in parts]),
        along_seeds([part.classifier_confusion for part in parts]),
    )


def cut(seeds: Sequence[int], seeds_per_chunk: int) -> Iterator[tuple[list[int], int]]:
    """Chunks of seeds, all as long.

    Yields:
      The seeds, the last of all once more where they do not suffice; how many of them
      count.
    """
    for first in range(0, len(seeds), seeds_per_chunk):
        chunk = list(seeds[first : first + seeds_per_chunk])
        yield chunk + chunk[-1:] * (seeds_per_chunk - len(chunk)), len(chunk)


def run(
    seeds: Sequence[int],
    seeds_per_chunk: int,
    run_chunk: Callable[..., tuple[Part, tuple[float, float]]],
    num_arrivals: int,
    progress: Callable[[int], None] | None,
    store: "Store | None",
) -> tuple[Part, tuple[float, float]]:
    """Runs the chunks that a store does not hold, one after the other.

    Args:
      seeds: all of them.
      seeds_per_chunk: as many in each call.
      run_chunk: ``(seeds, progress) -> (part, (compile_seconds, run_seconds))``.
      num_arrivals: of a chunk.
      progress: called with the number of arrivals done, over all chunks.
      store: where finished chunks are and go.

    Returns:
      Everything, and the seconds spent.
    """
    parts = []
    if store is not None:
        parts = [part for part in store.finished if set(part.seeds) <= set(seeds)]
    finished = {seed for part in parts for seed in part.seeds}
    left = list(cut([s for s in seeds if s not in finished], seeds_per_chunk))
    before = num_arrivals * (math.ceil(len(seeds) / seeds_per_chunk) - len(left))
    before = max(0, before)  # earlier chunks may have been of another size
    compiling = running = 0.0
    for chunk, count in left:

        def report(done: int, before: int = before) -> None:
            if progress is not None:
                progress(before + done)

        part, (compiled_in, ran_in) = run_chunk(chunk, report)
        parts.append(part.take(count))
        if store is not None:
            store.save(parts[-1])
        before += num_arrivals
        compiling, running = compiling + compiled_in, running + ran_in
    return join(parts), (compiling, running)


def _chunk_name(part: Part) -> str:
    return f"seeds_{part.seeds[0]:07}.npz"


class Store:
    """Finished chunks on disk, so that a killed run loses at most the one it was at."""

    def __init__(
        self, folder: Path, settings: Mapping[str, Any], *, resume: bool
    ) -> None:
        """Looks at what an earlier run has left; nothing is written yet.

        Args:
          folder: of this run alone.
          settings: what results depend on, by name; anything that JSON can hold.
          resume: go on from what is there.

        Raises:
          ValueError: there are chunks, and `resume` is false, or they are of other
            settings, or a file is damaged.
          OSError: it is no folder, or no file can be made in it.
        """
        self._folder, self._settings = folder, json.loads(json.dumps(settings))
        if os.path.lexists(folder):  # found out now, and not after a chunk
            try:
                tempfile.TemporaryFile(dir=folder).close()
            except OSError as error:
                raise OSError(
                    f"{folder} cannot be written to ({error.strerror})"
                ) from error
        files = sorted(folder.glob("seeds_*.npz"))
        self._known = {file.name for file in files}
        if files and not resume:
            raise ValueError(
                f"{folder} holds {len(files)} finished chunks of a run that did not "
                "end: go on with --resume, or delete that folder"
            )
        if files:
            self._compare()
        self.finished: list[Part] = []
        for file in files:
            try:
                part = Part.from_bytes(file.read_bytes())
                known = {seed for one in self.finished for seed in one.seeds}
                named = file.name == _chunk_name(part)
                if not named or known & set(part.seeds):
                    raise ValueError(
                        "its seeds are not those of its name, or are in another chunk, "
                        "too; delete it"
                    )
                if self.finished and self.finished[0].layout() != part.layout():
                    raise ValueError("it is of another sweep than the first chunk")
            except (ValueError, OSError) as error:
                raise ValueError(f"{file} cannot be read: {error}") from error
            self.finished.append(part)

    def _compare(self) -> None:
        file = self._folder / _SETTINGS
        try:
            there = json.loads(file.read_text(encoding="utf-8"))
            if not isinstance(there, dict):
                raise ValueError("it holds no settings")
        except (ValueError, OSError, RecursionError) as error:
            raise ValueError(f"{file} cannot be read: {error}") from error
        differ = differences(there, self._settings)
        if differ:
            raise ValueError(
                f"--resume: the chunks in {self._folder} are of a run with other "
                f"{'; '.join(f'{k} ({a}, now {b})' for k, (a, b) in differ.items())}"
            )

    def save(self, part: Part) -> None:
        """Writes a chunk, whole or not at all.

        Raises:
          OSError: it cannot be written; or another run, perhaps with other settings,
            writes into the same folder.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        there = {file.name for file in self._folder.glob("seeds_*.npz")}
        if there - self._known:
            raise OSError(
                f"{self._folder}: another run writes its chunks there, too "
                f"({', '.join(sorted(there - self._known))}); give each run its own "
                "--output_dir"
            )
        try:
            with atomic_path(self._folder / _SETTINGS) as path:
                path.write_text(json.dumps(self._settings, indent=2), encoding="utf-8")
            with atomic_path(self._folder / _chunk_name(part)) as path:
                path.write_bytes(part.to_bytes())
        except OSError as error:
            raise OSError(
                f"{self._folder} cannot be written to ({error.strerror}); the chunks "
                "before are kept"
            ) from error
        self._known.add(_chunk_name(part))

    def remove(self) -> None:
        """Deletes what `save` wrote; see `remove`."""
        remove(self._folder)


def remove(folder: Path) -> None:
    """Deletes what a `Store` has written, and the folder if nothing else is in it."""
    # With what a kill left half written, which has a dot before its name.
    for pattern in ("seeds_*.npz", ".seeds_*.npz", ".settings_*.json", _SETTINGS):
        for file in folder.glob(pattern):
            file.unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def differences(
    there: Mapping[str, Any], here: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """Names whose values differ, with both values; None where there is none."""
    names = [*here, *(name for name in there if name not in here)]
    return {
        name: (there.get(name), here.get(name))
        for name in names
        if there.get(name) != here.get(name)
    }
