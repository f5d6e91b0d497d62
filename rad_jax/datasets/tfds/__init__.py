"""Builders of tensorflow-datasets for the data sets of this package; no TensorFlow.

Importing this package makes them known to tensorflow-datasets. The files must be
downloaded by hand (each builder says from where) into one folder, `manual_dir`; then

    from rad_jax.datasets import tfds as builders

    builder = builders.Nbaiot(config="Ecobee_Thermostat", data_dir=prepared)
    config = tensorflow_datasets.download.DownloadConfig(manual_dir=downloaded)
    builder.download_and_prepare(download_config=config)
    source = builder.as_data_source(split="train")
    rows = source.__getitems__([0, 1, 2])  # rows[0]["features"], rows[0]["label"]

Many rows at once are read far faster than one by one. They are those of the plain
loaders, in the same order, with the same bits. There is one split, 'train', since a
stream is cut into clean rows, arrivals and test rows later.
"""

try:
    import importlib_resources  # noqa: F401  (tensorflow-datasets forgets to ask for it)
    import tensorflow_datasets  # noqa: F401
except ImportError as error:
    raise ImportError(
        "rad_jax.datasets.tfds needs tensorflow-datasets, which cannot be imported "
        f"({error}); pip install 'rad-jax[datasets]' (TensorFlow is not needed). The "
        "plain loaders in rad_jax.datasets work without it"
    ) from error

from rad_jax.datasets.tfds.facescrub import Facescrub, FacescrubConfig
from rad_jax.datasets.tfds.google_cluster import GoogleCluster2011
from rad_jax.datasets.tfds.nbaiot import Nbaiot, NbaiotConfig
from rad_jax.datasets.tfds.unsw_nb15 import UnswNb15

__all__ = [
    "Facescrub",
    "FacescrubConfig",
    "GoogleCluster2011",
    "Nbaiot",
    "NbaiotConfig",
    "UnswNb15",
]
