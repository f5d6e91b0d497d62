"""The builder of N-BaIoT."""

import dataclasses
from collections.abc import Iterator

import numpy as np
import tensorflow_datasets as tfds

from rad_jax.datasets import nbaiot
from rad_jax.datasets.tfds._rows import RowsBuilder


@dataclasses.dataclass
class NbaiotConfig(tfds.core.BuilderConfig):
    """Whose traffic.

    Attributes:
      device: one of `rad_jax.datasets.nbaiot.DEVICES`, or 'all'.
    """

    device: str = "all"


class Nbaiot(RowsBuilder):
    """Traffic of IoT devices, benign or of a botnet: 115 statistics, 11 classes."""

    VERSION = tfds.core.Version(f"{nbaiot.VERSION}.0.0")
    RELEASE_NOTES = {str(VERSION): "First version."}  # noqa: RUF012
    BUILDER_CONFIGS = [  # noqa: RUF012
        NbaiotConfig(
            name=device,
            device=device,
            description="All devices." if device == "all" else f"The {device} alone.",
        )
        for device in ("all", *nbaiot.DEVICES)
    ]
    MANUAL_DOWNLOAD_INSTRUCTIONS = """\
Download the archive from https://archive.ics.uci.edu/dataset/442 and unpack it into
`manual_dir` or into a folder `nbaiot` there; unpack in each device's folder
gafgyt_attacks.rar and, where it exists, mirai_attacks.rar into folders of these names:

    <device>/benign_traffic.csv
    <device>/gafgyt_attacks/{combo,junk,scan,tcp,udp}.csv
    <device>/mirai_attacks/{ack,scan,syn,udp,udpplain}.csv

or give the flat layout 1.benign.csv, 1.gafgyt.combo.csv, ..., 9.mirai.udpplain.csv.
Files may be gzipped (.csv.gz).
"""
    CLASS_NAMES = nbaiot.CLASS_NAMES
    DESCRIPTION = (
        "N-BaIoT: network traffic of nine IoT devices, benign or while infected by "
        "Gafgyt (BASHLITE) or Mirai. A row holds 115 statistics of recent traffic in "
        "float64 (times near 1.5e9 among them); rows come by device, then by class."
    )
    HOMEPAGE = "https://archive.ics.uci.edu/dataset/442"
    LICENSE = "Creative Commons Attribution 4.0 International (CC BY 4.0)"
    CITATION = """\
@article{meidan2018nbaiot,
  title = {{N-BaIoT}: Network-Based Detection of {IoT} Botnet Attacks Using Deep
           Autoencoders},
  author = {Meidan, Yair and Bohadana, Michael and Mathov, Yael and Mirsky, Yisroel and
            Shabtai, Asaf and Breitenbacher, Dominik and Elovici, Yuval},
  journal = {IEEE Pervasive Computing},
  volume = {17}, number = {3}, pages = {12--22}, year = {2018},
  note = {Data: https://doi.org/10.24432/C5RC8J},
}
"""

    def _shape(self) -> tuple[tuple[int, ...], type]:
        return (len(nbaiot.FEATURE_NAMES),), np.float64

    def _blocks(self, manual_dir: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for part in nbaiot.find(manual_dir, self.builder_config.device):
            features = nbaiot.read(part.path)
            yield features, np.full(len(features), part.label)
