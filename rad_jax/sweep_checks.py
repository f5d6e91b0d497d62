"""Checks of what a sweep is given, before any work."""

import numpy as np

from rad_jax import checks, stream
from rad_jax import noise as noises
from rad_jax.program import StreamArrays
from rad_jax.runs import RANDOMNESS

_MAX_RUNS = 1 << 20


def check_options(arms, rates, num_seeds, first_seed, alpha, randomness) -> None:
    """Raises ValueError, or TypeError, for the first wrong option of a sweep."""
    if not arms:
        raise ValueError("arms must name at least one scheme, got none")
    names = [arm.name for arm in arms]
    if len(set(names)) < len(names):
        raise ValueError(f"arms must have different names, got {names}")
    if not rates:
        raise ValueError("noise_rates must name at least one rate, got none")
    for rate in rates:
        noises.check_rate(rate, "noise_rates")
    checks.whole("num_seeds", num_seeds)
    checks.whole("first_seed", first_seed)
    if num_seeds < 1:
        raise ValueError(f"num_seeds must be at least 1, got {num_seeds}")
    if not 0 <= first_seed <= 2**31 - num_seeds:
        raise ValueError(f"first_seed must lie in 0..2^31-num_seeds, got {first_seed}")
    num_runs = len(arms) * len(rates) * num_seeds
    if num_runs > _MAX_RUNS:
        raise ValueError(
            f"num_seeds={num_seeds} makes {num_runs:,} runs of {len(arms)} schemes and "
            f"{len(rates)} noise rates; at most {_MAX_RUNS:,} are allowed"
        )
    if alpha not in stream.ALPHA_SOURCES:
        raise ValueError(f"alpha must be one of {stream.ALPHA_SOURCES}, got {alpha!r}")
    if randomness not in RANDOMNESS:
        raise ValueError(f"randomness must be one of {RANDOMNESS}, got {randomness!r}")


def check_data(data, num_classes: int) -> StreamArrays:
    """The arrays of a stream: finite features of one shape, true labels in range."""
    arrays = StreamArrays(
        *(np.asarray(getattr(data, name)) for name in StreamArrays._fields)  # type: ignore[arg-type]
    )
    labels = arrays.labels
    if labels.ndim != 2 or not labels.size:
        raise ValueError(
            f"labels must be [T, N] with at least one arrival, got {labels.shape}"
        )
    if arrays.features.shape[:2] != labels.shape:
        raise ValueError(
            f"features must be [T, N, ...] like labels {labels.shape}, got "
            f"{arrays.features.shape}"
        )
    row_shape = arrays.features.shape[2:]
    flat = arrays.features.reshape(-1, *row_shape)
    for prefix, x, y in (
        ("initial_", arrays.initial_features, arrays.initial_labels),
        ("test_", arrays.test_features, arrays.test_labels),
        ("", flat, labels.ravel()),
    ):
        checks.features(f"{prefix}features", x, row_shape=row_shape)
        missing = not prefix  # rows that arrive may lack a label
        checks.labels(f"{prefix}labels", y, len(x), num_classes, missing=missing)
    return arrays
