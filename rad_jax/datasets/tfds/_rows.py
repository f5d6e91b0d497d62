"""What the builders have in common: rows of features and a label, in their order."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow_datasets as tfds


class RowsBuilder(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # type: ignore[call-arg]
    """Prepares rows that a plain loader has parsed, in the order in which they arrived.

    A subclass gives the class attributes below, and the methods `_shape` and `_blocks`.

    Attributes:
      FEATURES: the name of the features, 'features' or 'image'.
      CLASS_NAMES: names of the classes; None if only the files tell.
      DESCRIPTION, HOMEPAGE, LICENSE, CITATION: of the data set.
    """

    FEATURES = "features"
    CLASS_NAMES: Sequence[str] | None = None
    DESCRIPTION = HOMEPAGE = LICENSE = CITATION = ""

    def __init__(self, *, file_format: str | None = "array_record", **rest: Any):
        """Takes what every builder of tensorflow-datasets takes.

        Args:
          file_format: of the prepared files. Without TensorFlow 'array_record' (where
            that package exists: Linux) and 'parquet' can be read again.
          **rest: config, version, data_dir.
        """
        super().__init__(file_format=file_format, **rest)

    def _shape(self) -> tuple[tuple[int, ...], type]:
        """Shape and dtype of the features of a row."""
        raise NotImplementedError

    def _blocks(self, manual_dir: str) -> Iterable[tuple[np.ndarray, np.ndarray]]:
        """Features ``[m, ...]`` and labels ``[m]`` of the next rows, block by block."""
        raise NotImplementedError

    def _class_names(self, manual_dir: str) -> Sequence[str]:
        """Names of the classes, where `CLASS_NAMES` does not give them."""
        raise NotImplementedError

    def _info(self) -> tfds.core.DatasetInfo:
        shape, dtype = self._shape()
        # Without an encoding as bytes a float64 would be stored as float32.
        row = tfds.features.Tensor(
            shape=shape, dtype=dtype, encoding=tfds.features.Encoding.BYTES
        )
        label = tfds.features.ClassLabel(names=self.CLASS_NAMES)
        return tfds.core.DatasetInfo(
            builder=self,
            description=self.DESCRIPTION,
            features=tfds.features.FeaturesDict({self.FEATURES: row, "label": label}),
            supervised_keys=(self.FEATURES, "label"),
            homepage=self.HOMEPAGE,
            license=self.LICENSE,
            citation=self.CITATION,
            disable_shuffling=True,  # rows stay in the order of arrival
        )

    def _split_generators(self, dl_manager: Any) -> dict:
        manual_dir = str(dl_manager.manual_dir)
        if self.CLASS_NAMES is None:
            self.info.features["label"].names = self._class_names(manual_dir)
        return {"train": self._generate_examples(manual_dir)}

    def _generate_examples(self, manual_dir: str) -> Iterator[tuple[int, dict]]:
        done = 0
        for features, labels in self._blocks(manual_dir):
            for row, label in zip(features, labels, strict=True):
                yield done, {self.FEATURES: row, "label": int(label)}
                done += 1
