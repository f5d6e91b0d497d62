"""Rows that are equal, found by a hash of 128 bits."""

from collections.abc import Iterator

import numpy as np

_CHUNK_BYTES = 1 << 20  # rows worked on at once: they stay in the processor's cache


def chunks(features: np.ndarray) -> Iterator[slice]:
    """Slices that cut n rows into pieces of about a megabyte, one row at least."""
    rows = max(1, _CHUNK_BYTES // max(1, features[:1].nbytes))
    for start in range(0, len(features), rows):
        yield slice(start, min(start + rows, len(features)))


def first_places(features: np.ndarray) -> np.ndarray:
    """Where each row occurs first.

    Numbers are compared as ``==`` does, so 0.0 equals -0.0; and NaN, which stands for
    a missing value, equals NaN. Rows that differ in one word of 8 bytes are always
    told apart; that others of a million rows get the same 128 bits has a probability
    near 1e-27.

    Args:
      features: ``[n, *S]``, gone through in pieces, so that a file that is mapped into
        memory need not fit there.

    Returns:
      ``[n]`` int64; place ``i`` holds the lowest ``j <= i`` with an equal row.
    """
    hashes = np.empty((2, len(features)), np.uint64)
    words = -(-features[:1].nbytes // 8)
    # Odd, so that multiplication loses nothing; other ones for each word of a row.
    factors = np.random.default_rng(0).integers(2**63, size=(2, words), dtype=np.uint64)
    factors = 2 * factors + 1
    for part in chunks(features):
        piece = np.ascontiguousarray(features[part])
        if piece.dtype.kind == "f":
            piece = piece + piece.dtype.type(0)  # makes -0.0 0.0
            missing = np.isnan(piece)
            if missing.any():
                piece[missing] = np.nan  # there are many NaNs
        mixed = _mix(_as_words(piece) * factors[0])
        hashes[0, part] = mixed.sum(axis=1)
        hashes[1, part] = _mix(mixed * factors[1]).sum(axis=1)
    order = np.lexsort(hashes)  # stable: equal rows in their order
    ordered = hashes[:, order]
    begins = np.ones(len(order), bool)
    begins[1:] = (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)
    first = np.empty(len(order), np.int64)
    first[order] = order[begins][np.cumsum(begins) - 1]
    return first


def _as_words(rows: np.ndarray) -> np.ndarray:
    """The bytes of ``[n, *S]`` as ``[n, words]`` uint64, the last word padded."""
    raw = rows.reshape(len(rows), -1).view(np.uint8)
    if raw.shape[1] % 8:
        raw = np.pad(raw, ((0, 0), (0, -raw.shape[1] % 8)))
    return raw.view(np.uint64)


def _mix(words: np.ndarray) -> np.ndarray:
    """Spreads every bit over the whole word, one to one (in place).

    References:
      S. Vigna, SplitMix64, 2015 (https://prng.di.unimi.it/splitmix64.c): its finish.
    """
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words ^= words >> np.uint64(shift)
        words *= np.uint64(factor)
    words ^= words >> np.uint64(31)
    return words
