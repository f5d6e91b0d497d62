"""The builder of FaceScrub."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow_datasets as tfds

from rad_jax.datasets import facescrub
from rad_jax.datasets.tfds._rows import RowsBuilder


@dataclasses.dataclass
class FacescrubConfig(tfds.core.BuilderConfig):
    """Which images, and how large; as of `rad_jax.datasets.facescrub.load`.

    Attributes:
      image_size: height and width of the images.
      num_people: the people with the most images; None: all.
      skip_bad_images: whether to leave out images that cannot be decoded.
    """

    image_size: int = 128
    num_people: int | None = None
    skip_bad_images: bool = False


class Facescrub(RowsBuilder):
    """Faces of people, one class a person."""

    VERSION = tfds.core.Version(f"{facescrub.VERSION}.0.0")
    RELEASE_NOTES = {str(VERSION): "First version."}  # noqa: RUF012
    BUILDER_CONFIGS = [  # noqa: RUF012
        FacescrubConfig(
            name=str(size),
            image_size=size,
            description=f"All people, {size}x{size} pixels.",
        )
        for size in (128, 64, 32)
    ]
    MANUAL_DOWNLOAD_INSTRUCTIONS = """\
Ask at http://vintage.winklerbros.net/facescrub.html for the lists of addresses, fetch
the photographs, and put the faces cut out of them into `manual_dir` or into a folder
`facescrub` there, one folder a person: <person>/<image>.jpg
"""
    FEATURES = "image"
    DESCRIPTION = (
        "FaceScrub: faces of people, cut out of photographs found on the web, made "
        "square and resized. Rows come by person, then by the name of the file."
    )
    HOMEPAGE = "http://vintage.winklerbros.net/facescrub.html"
    LICENSE = (
        "The lists of addresses are given out for research, on request; the "
        "photographs belong to their owners"
    )
    CITATION = """\
@inproceedings{ng2014facescrub,
  title = {A data-driven approach to cleaning large face datasets},
  author = {Ng, Hong-Wei and Winkler, Stefan},
  booktitle = {IEEE International Conference on Image Processing (ICIP)},
  pages = {343--347}, year = {2014},
}
"""

    def _shape(self) -> tuple[tuple[int, ...], type]:
        size = self.builder_config.image_size
        return (size, size, 3), np.uint8

    def _people(self, manual_dir: str) -> list[facescrub.Person]:
        return facescrub.people(manual_dir, self.builder_config.num_people)

    def _class_names(self, manual_dir: str) -> Sequence[str]:
        return [person.name for person in self._people(manual_dir)]

    def _blocks(self, manual_dir: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        config = self.builder_config
        bad, total = [], 0
        for path, label in facescrub.images(self._people(manual_dir)):
            total += 1
            try:
                image = facescrub.read(path, config.image_size)
            except facescrub.BadImageError:
                if not config.skip_bad_images:
                    raise
                bad.append(path)
                continue
            yield image[None], np.array([label])
        facescrub.report_skipped(bad, total)
