"""A data set cut into clean rows, a stream of batches, and test rows."""

import operator
from typing import NamedTuple

import numpy as np

from rad_jax.datasets.base import Dataset
from rad_jax.datasets.scaling import Standardizer

ORDERS = ("shuffle", "time")
#: Test rows, unless their number is given: at most so many, …
MAX_TEST_SIZE = 3_000
#: … and, where the number of batches isn't given either, this part of the rows that
#: follow the clean ones, rounded down, at least one.
TEST_PART = 1 / 5


class StreamData(NamedTuple):
    """What arrives, in numpy arrays; labels are the true ones, noise is added later.

    Attributes:
      initial_features: ``[n0, D]`` float32, finite: D_0, the rows known to be clean.
      initial_labels: ``[n0]`` int32 in ``0..K-1``.
      features: ``[T, N, D]`` float32, T batches of N rows in the order of arrival.
      labels: ``[T, N]`` int32, TRUE labels.
      test_features: ``[Q, D]`` float32, rows after the last batch.
      test_labels: ``[Q]`` int32.
      num_classes: K.
      class_names: K names.
    """

    initial_features: np.ndarray
    initial_labels: np.ndarray
    features: np.ndarray
    labels: np.ndarray
    test_features: np.ndarray
    test_labels: np.ndarray
    num_classes: int
    class_names: tuple[str, ...]


def split(
    dataset: Dataset,
    *,
    initial_size: int,
    batch_size: int,
    num_batches: int | None,
    test_size: int | None = None,
    order: str = "shuffle",
    seed: int = 0,
    scale: bool = True,
) -> StreamData:
    """Cuts a data set: D_0 first, then the batches, then the test rows.

    Args:
      dataset: n rows in the order of arrival.
      initial_size: number of clean rows, n0 >= 1.
      batch_size: rows of a batch, N >= 1.
      num_batches: batches, T >= 1. None: as many whole ones as fit between the clean
        rows and the test rows, of which `test_size` are kept back or, if that is None
        too, a fifth of the rows after D_0 (rounded down, at least 1, at most 3,000).
      test_size: test rows, Q >= 1, those right after the last batch. None: all that
        are left there, at most 3,000.
      order: 'shuffle' permutes all rows first; 'time' keeps the order of arrival.
      seed: of the permutation (`np.random.default_rng`); no part of it depends on the
        sizes.
      scale: whether to standardise the columns, by mean and standard deviation of D_0
        (`Standardizer`); else the features are rounded to float32 as they are.

    Returns:
      The parts, which share no row; rows after the last test row are left out.

    Raises:
      TypeError: A size is not a whole number.
      ValueError: A size is below 1, the sizes exceed the rows there are, no row is
        left for the test, or the order is unknown.
      DataError: A feature is not finite in float32 (a `ValueError`, too).
    """
    if order not in ORDERS:
        raise ValueError(f"order={order!r} is unknown; known: {', '.join(ORDERS)}")
    num_batches, test_size = _sizes(
        len(dataset.labels), initial_size, batch_size, num_batches, test_size
    )
    first_test = initial_size + num_batches * batch_size
    total = first_test + test_size
    if order == "shuffle":
        rows = np.random.default_rng(seed).permutation(len(dataset.labels))[:total]
    else:
        rows = np.arange(total)

    raw, labels = dataset.features[rows], dataset.labels[rows]
    if scale:
        scaling = Standardizer.fit(raw[:initial_size])
    else:
        width = raw.shape[1]
        scaling = Standardizer(mean=np.zeros(width), scale=np.ones(width))
    features = scaling.transform(raw)
    stream = slice(initial_size, first_test)
    return StreamData(
        initial_features=features[:initial_size],
        initial_labels=labels[:initial_size],
        features=features[stream].reshape(num_batches, batch_size, -1),
        labels=labels[stream].reshape(num_batches, batch_size),
        test_features=features[first_test:],
        test_labels=labels[first_test:],
        num_classes=dataset.num_classes,
        class_names=dataset.class_names,
    )


def _sizes(
    rows: int,
    initial_size: int,
    batch_size: int,
    num_batches: int | None,
    test_size: int | None,
) -> tuple[int, int]:
    """Checks the sizes; returns num_batches and test_size as they are to be used."""
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

    after_initial = rows - initial_size
    if test_size is not None:
        kept_back = test_size
    elif num_batches is not None:
        kept_back = 1
    else:
        kept_back = min(MAX_TEST_SIZE, max(1, int(after_initial * TEST_PART)))
    batches = num_batches
    if batches is None:
        batches = max(1, (after_initial - kept_back) // batch_size)
    asked = initial_size + batches * batch_size + kept_back
    if asked > rows:
        raise ValueError(
            f"the data set has {rows} rows, {asked} were asked for: "
            f"initial_size={initial_size} + batch_size={batch_size} * "
            f"num_batches={num_batches or f'{batches} (the least)'} + "
            f"test_size={test_size or f'{kept_back} (the least)'}"
        )
    left = asked - kept_back
    if test_size is None:
        test_size = min(MAX_TEST_SIZE, rows - left)
    return batches, test_size
