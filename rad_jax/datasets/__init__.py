"""Data sets: loaders, and what makes a stream of batches of them."""

from rad_jax.datasets import (
    cache,
    digits,
    facescrub,
    google_cluster,
    nbaiot,
    table,
    unsw_nb15,
)
from rad_jax.datasets.base import DataError, Dataset
from rad_jax.datasets.scaling import Standardizer
from rad_jax.datasets.split import StreamData, split

__all__ = [
    "DataError",
    "Dataset",
    "Standardizer",
    "StreamData",
    "cache",
    "digits",
    "facescrub",
    "google_cluster",
    "nbaiot",
    "split",
    "table",
    "unsw_nb15",
]
