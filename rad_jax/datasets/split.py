"""A data set cut into clean rows, a stream of batches, and test rows."""

import operator
from typing import NamedTuple

import numpy as np

from rad_jax.datasets.base import Dataset
from rad_jax.datasets.duplicates import chunks, first_places
from rad_jax.datasets.scaling import Transform, check, default, fit
from rad_jax.types import UNLABELLED

ORDERS = ("shuffle", "time")
#: Test rows, unless their number is given: at most so many, …
MAX_TEST_SIZE = 3_000
#: … and, where the number of batches isn't given either, this part of the new rows
#: that follow the clean ones, rounded down, at least one.
TEST_PART = 1 / 5


class StreamData(NamedTuple):
    """What arrives, in numpy arrays; labels are the true ones, noise is added later.

    Attributes:
      initial_features: ``[n0, *S]`` float32, finite: D_0, the rows known to be clean;
        S is ``[D]`` for tables, ``[H, W, C]`` for images.
      initial_labels: ``[n0]`` int32 in ``0..K-1``.
      features: ``[T, N, *S]`` float32, T batches of N rows in the order of arrival.
      labels: ``[T, N]`` int32, TRUE labels, -1 where the source has none.
      test_features: ``[Q, *S]`` float32, rows after the last batch.
      test_labels: ``[Q]`` int32 in ``0..K-1``.
      num_classes: K.
      class_names: K names.
      num_copies: rows after the last batch that cannot be test rows, since their
        features equal those of a row before.
    """

    initial_features: np.ndarray
    initial_labels: np.ndarray
    features: np.ndarray
    labels: np.ndarray
    test_features: np.ndarray
    test_labels: np.ndarray
    num_classes: int
    class_names: tuple[str, ...]
    num_copies: int = 0


def split(
    dataset: Dataset,
    *,
    initial_size: int,
    batch_size: int,
    num_batches: int | None,
    test_size: int | None = None,
    order: str = "shuffle",
    seed: int = 0,
    scaling: str | None = None,
) -> StreamData:
    """Cuts a data set: D_0 first, then the batches, then the test rows.

    - D_0 is the first n0 rows that have a label. Rows without one that come before its
      last row arrive at once afterwards, so that none is lost.
    - The batches are the rows that follow, with or without label.
    - The test rows are those of the rest that have a label and are **new**: no row of
      D_0 and no row that arrived has equal features. So exact duplicates never lie on
      both sides, and a common row is rather trained on than tested. Where rows repeat
      themselves that leaves fewer test rows, and other ones than a random draw.

    Args:
      dataset: n rows in the order of arrival.
      initial_size: number of clean rows, n0 >= 1.
      batch_size: rows of a batch, N >= 1.
      num_batches: batches, T >= 1. None: as many whole ones as leave enough test
        rows: `test_size` or, if that is None too, a fifth of the new rows after D_0
        (rounded down, at least 1, at most 3,000).
      test_size: test rows, Q >= 1, the first that come after the last batch. None: all
        there are, at most 3,000.
      order: 'shuffle' permutes all rows first; 'time' keeps the order of arrival.
      seed: of the permutation (`np.random.default_rng`); no part of it depends on the
        sizes.
      scaling: one of `rad_jax.datasets.scaling.SCALINGS`, fitted to D_0 alone; by
        default what the data set says that suits it, else 'standard' for tables,
        'unit' (0..1) for images of uint8, 'none' for images of float32.

    Returns:
      The parts, which share no row; what is left over is left out.

    Raises:
      TypeError: A size is not a whole number.
      ValueError: A size is below 1, the sizes exceed the rows there are, no row is
        left for the test, or the order or the scaling is unknown or unfit.
      DataError: A feature is not finite in float32 (a `ValueError`, too).
    """
    if order not in ORDERS:
        raise ValueError(f"order={order!r} is unknown; known: {', '.join(ORDERS)}")
    scaling = check(dataset, scaling or default(dataset))
    _check_sizes(initial_size, batch_size, num_batches, test_size)
    rows = len(dataset.labels)
    if order == "shuffle":
        sequence = np.random.default_rng(seed).permutation(rows)
    else:
        sequence = np.arange(rows)
    sequence = _clean_first(sequence, dataset.labels, initial_size)

    labelled = dataset.labels[sequence] != UNLABELLED
    first = _first_in(sequence, first_places(dataset.features))
    # How many labelled rows are new if the batches end before place 0, 1, …, n.
    starting = np.bincount(first[labelled], minlength=rows + 1)
    num_new = np.cumsum(starting[::-1])[::-1]
    num_batches, test_size = _sizes(
        num_new, initial_size, batch_size, num_batches, test_size
    )
    end = initial_size + num_batches * batch_size
    is_copy = labelled[end:] & (first[end:] < end)
    is_test = labelled[end:] & ~is_copy
    arrive, test = sequence[:end], sequence[end:][is_test][:test_size]

    transform = fit(dataset, dataset.features[arrive[:initial_size]], scaling)
    features = _take(dataset.features, np.concatenate([arrive, test]), transform)
    row_shape = features.shape[1:]
    labels = dataset.labels[arrive]
    return StreamData(
        initial_features=features[:initial_size],
        initial_labels=labels[:initial_size],
        features=features[initial_size:end].reshape(
            num_batches, batch_size, *row_shape
        ),
        labels=labels[initial_size:].reshape(num_batches, batch_size),
        test_features=features[end:],
        test_labels=dataset.labels[test],
        num_classes=dataset.num_classes,
        class_names=dataset.class_names,
        num_copies=int(is_copy.sum()),
    )


def _clean_first(
    sequence: np.ndarray, labels: np.ndarray, initial_size: int
) -> np.ndarray:
    """Moves the first `initial_size` rows with a label to the front."""
    places = np.flatnonzero(labels[sequence] != UNLABELLED)
    if len(places) <= initial_size:
        raise ValueError(
            f"the data set has {len(sequence)} rows, {len(places)} of them with a "
            f"label; {initial_size + 1} were asked for: initial_size={initial_size} + "
            "at least one test row"
        )
    chosen = places[:initial_size]
    return np.concatenate([sequence[chosen], np.delete(sequence, chosen)])


def _first_in(sequence: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Where in a sequence a row equal to the one there occurs first.

    Args:
      sequence: ``[n]`` int, a permutation of the rows.
      group: ``[n]`` int, for each row the least number of an equal one.

    Returns:
      ``[n]`` int; at place p a place <= p.
    """
    earliest = np.full(len(sequence), len(sequence))
    np.minimum.at(earliest, group[sequence], np.arange(len(sequence)))
    return earliest[group[sequence]]


def _take(features: np.ndarray, rows: np.ndarray, transform: Transform) -> np.ndarray:
    """``transform(features[rows])`` in float32, piece by piece."""
    taken = np.empty((len(rows), *features.shape[1:]), np.float32)
    for part in chunks(taken):
        taken[part] = transform(features[rows[part]])
    return taken


def _check_sizes(
    initial_size: int, batch_size: int, num_batches: int | None, test_size: int | None
) -> None:
    """Raises TypeError or ValueError unless sizes are whole numbers of at least 1."""
    sizes = {
        "initial_size": initial_size,
        "batch_size": batch_size,
        "num_batches": num_batches,
        "test_size": test_size,
    }
    for name, size in sizes.items():
        if size is None and name in ("num_batches", "test_size"):
            continue
        try:
            whole = operator.index(size)  # type: ignore[arg-type]
        except TypeError:
            raise TypeError(f"{name}={size!r} must be a whole number") from None
        if whole < 1:
            raise ValueError(f"{name}={size} must be at least 1")


def _sizes(
    num_new: np.ndarray,
    initial_size: int,
    batch_size: int,
    num_batches: int | None,
    test_size: int | None,
) -> tuple[int, int]:
    """Settles num_batches and test_size.

    Args:
      num_new: ``[n + 1]`` int, not increasing: how many rows can be test rows if D_0
        and the batches take so many rows.
      initial_size: n0.
      batch_size: N.
      num_batches: T, or None.
      test_size: Q, or None.

    Returns:
      T and Q as they are to be used.

    Raises:
      ValueError: There are fewer rows.
    """
    rows = len(num_new) - 1
    if test_size is not None:
        kept_back = test_size
    elif num_batches is not None:
        kept_back = 1
    else:
        kept_back = min(MAX_TEST_SIZE, max(1, int(num_new[initial_size] * TEST_PART)))
    batches = num_batches
    if batches is None:
        enough = num_new[initial_size + batch_size :: batch_size] >= kept_back
        batches = max(1, int(enough.sum()))
    end = initial_size + batches * batch_size
    left = int(num_new[end]) if end <= rows else 0
    if left < kept_back:
        asked = (
            f"initial_size={initial_size} + batch_size={batch_size} * "
            f"num_batches={num_batches or f'{batches} (the least)'} + "
            f"test_size={test_size or f'{kept_back} (the least)'}"
        )
        message = (
            f"the data set has {rows} rows, {end + kept_back} were asked for: {asked}"
        )
        if end + kept_back <= rows:
            message = (
                f"{asked} were asked for; of the {rows - end} rows after the batches "
                f"only {left} can be test rows: the others have no label, or the same "
                "features as a row that was trained on"
            )
        raise ValueError(message)
    return batches, min(MAX_TEST_SIZE, left) if test_size is None else test_size
