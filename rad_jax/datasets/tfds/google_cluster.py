"""The builder of the Google cluster-usage trace."""

from collections.abc import Iterator

import numpy as np
import tensorflow_datasets as tfds

from rad_jax.datasets import google_cluster
from rad_jax.datasets.tfds._rows import RowsBuilder


class GoogleCluster2011(RowsBuilder):
    """How a submitted task will end: 26 features, 4 classes."""

    VERSION = tfds.core.Version(f"{google_cluster.VERSION}.0.0")
    RELEASE_NOTES = {str(VERSION): "First version."}  # noqa: RUF012
    MANUAL_DOWNLOAD_INSTRUCTIONS = """\
Copy as many parts of task_events as you want, from the first on, into `manual_dir` or
into a folder `google_cluster_2011` there, keeping their folder and names:

    gsutil cp gs://clusterdata-2011-2/task_events/part-0000?-of-*.csv.gz task_events/

The bucket and the format are described at
https://github.com/google/cluster-data/blob/master/ClusterData2011_2.md
"""
    CLASS_NAMES = google_cluster.CLASS_NAMES
    DESCRIPTION = (
        "Google cluster-usage trace 2011-2: a row is one submission of a task that "
        "came to an end, with what was known when it was submitted, in the order of "
        "submission; its class is the event that ended it. All parts of task_events "
        "that are there, read one at a time."
    )
    HOMEPAGE = "https://github.com/google/cluster-data"
    LICENSE = "Creative Commons Attribution (CC-BY)"
    CITATION = """\
@techreport{reiss2011google,
  title = {Google cluster-usage traces: format + schema},
  author = {Reiss, Charles and Wilkes, John and Hellerstein, Joseph L.},
  institution = {Google Inc.}, year = {2011},
  note = {https://github.com/google/cluster-data},
}
"""

    def _shape(self) -> tuple[tuple[int, ...], type]:
        return (len(google_cluster.FEATURE_NAMES),), np.float64

    def _blocks(self, manual_dir: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        return google_cluster.rows(google_cluster.files(manual_dir))
