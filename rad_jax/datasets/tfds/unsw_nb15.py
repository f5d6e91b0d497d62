"""The builder of UNSW-NB15."""

from collections.abc import Iterator

import numpy as np
import tensorflow_datasets as tfds

from rad_jax.datasets import unsw_nb15
from rad_jax.datasets.tfds._rows import RowsBuilder


class UnswNb15(RowsBuilder):
    """Flows of a network, normal or an attack: 70 features, 10 classes."""

    VERSION = tfds.core.Version(f"{unsw_nb15.VERSION}.0.0")
    RELEASE_NOTES = {str(VERSION): "First version."}  # noqa: RUF012
    MANUAL_DOWNLOAD_INSTRUCTIONS = """\
Download UNSW_NB15_training-set.csv, UNSW_NB15_testing-set.csv or both (folder "Training
and Testing Sets") from https://research.unsw.edu.au/projects/unsw-nb15-dataset into
`manual_dir` or into a folder `unsw_nb15` there. They may be gzipped (.csv.gz).
"""
    CLASS_NAMES = unsw_nb15.CLASS_NAMES
    DESCRIPTION = (
        "UNSW-NB15: flows of a network, normal or of nine kinds of attack. A row holds "
        "39 numbers and one-hot columns of protocol, service and state; rows lie in "
        "blocks of one class."
    )
    HOMEPAGE = "https://research.unsw.edu.au/projects/unsw-nb15-dataset"
    LICENSE = "Free for academic research; commercial use by agreement with the authors"
    CITATION = """\
@inproceedings{moustafa2015unsw,
  title = {{UNSW-NB15}: a comprehensive data set for network intrusion detection
           systems},
  author = {Moustafa, Nour and Slay, Jill},
  booktitle = {Military Communications and Information Systems Conference (MilCIS)},
  year = {2015},
}
"""

    def _shape(self) -> tuple[tuple[int, ...], type]:
        return (len(unsw_nb15.FEATURE_NAMES),), np.float64

    def _blocks(self, manual_dir: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        return (unsw_nb15.read(path) for path in unsw_nb15.files(manual_dir))
