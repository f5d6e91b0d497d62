"""What the results of a run depend on: processes and resumed runs must agree in it."""

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import jax
import numpy as np

import rad_jax
from experiments.settings import Config
from rad_jax import datasets
from rad_jax.program import StreamArrays

#: Flags on which results do not depend; the data themselves are compared.
_NO_MATTER = (
    *("output_dir", "cache_dir", "data_dir", "resume"),
    *("seeds_per_chunk", "num_devices"),
)


def settings(config: Config) -> dict[str, Any]:
    """What results depend on beside the data, by name: flags and versions."""
    flag_values = dataclasses.asdict(config)
    matrix = config.noise_matrix
    if matrix is not None:
        flag_values["noise_matrix"] = _hash(Path(matrix).expanduser().read_bytes())
    return {
        **{f"--{k}": v for k, v in flag_values.items() if k not in _NO_MATTER},
        "version of rad_jax": rad_jax.__version__,
        "version of jax": jax.__version__,
    }


def digest(data: datasets.StreamData) -> str:
    """A name for the rows themselves."""
    return _hash(*(getattr(data, name) for name in StreamArrays._fields))


def _hash(*parts: Any) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        whole = np.frombuffer(part, np.uint8) if isinstance(part, bytes) else part
        digest.update(np.ascontiguousarray(whole).tobytes())
    return digest.hexdigest()
