"""FaceScrub, or any folder of images by person: who is it?

References:
  H.-W. Ng, S. Winkler, A data-driven approach to cleaning large face datasets, ICIP
  2014 (http://vintage.winklerbros.net/facescrub.html). Its authors publish addresses
  of photographs, for research; the photographs belong to their owners.
"""

import os
import pathlib
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rad_jax.datasets.base import DataError, Dataset

#: Of the parser: a prepared copy of its rows is out of date when it changes.
VERSION = 1
#: Folders of these names, with whatever follows, may be left out.
FOLDER = "facescrub"
#: What an image's name ends in.
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp")


class BadImageError(DataError):
    """An image that cannot be decoded."""


class Person(NamedTuple):
    """A folder of images.

    Attributes:
      name: of the folder, and so of the class.
      images: the files, by name.
    """

    name: str
    images: tuple[pathlib.Path, ...]


def load(
    data_dir: str | os.PathLike[str],
    image_size: int = 128,
    num_people: int | None = None,
    skip_bad_images: bool = False,
) -> Dataset:
    """Loads images of people, one folder a person.

    An image of any size and mode becomes a square one of three colours: what exceeds
    the square in its middle is cut off, and the rest is resized (bilinear, each pixel
    the mean over all it covers, so that fine patterns do not turn into coarse ones).

    Args:
      data_dir: the folder that holds the people's folders, or one in which it lies,
        named `facescrub` or `facescrub<anything>`. A person's folder holds the images
        itself, not in folders within it; files that are no images by their names
        (`SUFFIXES`, in upper or lower case) are passed over.
      image_size: s, height and width of the result, >= 1.
      num_people: N >= 1, the people with the most image files (of equally many the
        first by name). None: all.
      skip_bad_images: whether to leave out images that cannot be decoded, with a
        warning that says how many, instead of raising the error.

    Returns:
      A data set with features ``[n, s, s, 3]`` uint8, red, green, blue, and labels
      ``[n]`` int32 into `class_names`, the names of the folders in alphabetical order;
      rows by person, then by the name of the file: shuffle. A person none of whose
      images can be decoded remains a class.

    Raises:
      ImportError: Pillow is not installed.
      ValueError: `image_size` or `num_people` is less than 1, or there are not so many
        people.
      DataError: There is no folder of images, an image cannot be decoded (its name is
        given), or none can be.
    """
    if image_size < 1:
        raise ValueError(f"image_size={image_size} must be at least 1")
    found = people(data_dir, num_people)
    total = sum(len(person.images) for person in found)
    features = np.empty((total, image_size, image_size, 3), np.uint8)
    labels = np.empty(total, np.int32)
    row, bad = 0, []
    for path, label in images(found):
        try:
            features[row] = read(path, image_size)
        except BadImageError:
            if not skip_bad_images:
                raise
            bad.append(path)
            continue
        labels[row] = label
        row += 1
    report_skipped(bad, total)
    return Dataset(
        name="facescrub",
        features=features[:row],
        labels=labels[:row],
        class_names=tuple(person.name for person in found),
    )


def files(
    data_dir: str | os.PathLike[str], num_people: int | None = None
) -> list[pathlib.Path]:
    """The files that `load` reads, in its order; it says what is raised."""
    return [path for path, _ in images(people(data_dir, num_people))]


def images(found: list[Person]) -> Iterator[tuple[pathlib.Path, int]]:
    """Yields every image file of these people, with the number of the person."""
    for label, person in enumerate(found):
        for path in person.images:
            yield path, label


def report_skipped(bad: list[pathlib.Path], total: int) -> None:
    """Warns of images left out; DataError if that is all of them."""
    if not bad:
        return
    count = f"{len(bad)} of {total} images cannot be decoded (the first is {bad[0]})"
    if len(bad) == total:
        raise DataError(f"facescrub: {count}: none is left")
    warnings.warn(f"facescrub: left out {count}", stacklevel=3)


def people(
    data_dir: str | os.PathLike[str], num_people: int | None = None
) -> list[Person]:
    """Finds the folders of images.

    Args:
      data_dir: as of `load`.
      num_people: as of `load`.

    Returns:
      At least one person, in alphabetical order.

    Raises:
      ValueError, DataError: As `load`.
    """
    if num_people is not None and num_people < 1:
        raise ValueError(f"num_people={num_people} must be at least 1")
    root = pathlib.Path(data_dir)
    places = [root]
    if root.is_dir():
        places += sorted(path for path in root.glob(f"{FOLDER}*") if path.is_dir())
    held = {place: some for place in places if (some := _people_in(place))}
    if not held:
        raise DataError(
            f"no people's folders with images: looked for <person>/<image> in "
            f"{', '.join(map(str, places))} and for a folder {FOLDER}* in {root}, with "
            f"names of images that end in {', '.join(SUFFIXES)}"
        )
    place, *more = held
    if place != root and more:
        raise DataError(
            f"{root} holds {len(held)} folders of people, "
            f"{', '.join(path.name for path in held)}: name one of them as data_dir"
        )
    found = held[place]
    if num_people is None:
        return found
    if num_people > len(found):
        raise ValueError(
            f"num_people={num_people}, but {place} holds images of {len(found)} people"
        )
    most = sorted(found, key=lambda person: -len(person.images))[:num_people]
    return sorted(most)


def _people_in(place: pathlib.Path) -> list[Person]:
    """The folders in `place` that hold images, by name."""
    if not place.is_dir():
        return []
    return [
        Person(folder.name, some)
        for folder in sorted(place.iterdir())
        if folder.is_dir() and (some := _images_in(folder))
    ]


def _images_in(folder: pathlib.Path) -> tuple[pathlib.Path, ...]:
    """The files in `folder` that are images by their names, by name."""
    return tuple(
        path
        for path in sorted(folder.iterdir())
        if path.suffix.lower() in SUFFIXES and path.is_file()
    )


def read(path: pathlib.Path, image_size: int) -> np.ndarray:
    """Reads an image and makes it square.

    Args:
      path: an image file of any size and mode.
      image_size: s.

    Returns:
      ``[s, s, 3]`` uint8.

    Raises:
      ImportError: Pillow is not installed.
      BadImageError: The file cannot be decoded.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise ImportError(
            f"images are decoded by Pillow, which cannot be imported ({error}); "
            "pip install 'rad-jax[datasets]'"
        ) from error
    try:
        with Image.open(path) as image:
            full = image.convert("RGBA") if "transparency" in image.info else image
            square = ImageOps.fit(
                full.convert("RGB"),
                (image_size, image_size),
                method=Image.Resampling.BILINEAR,
            )
    except Exception as error:  # decoders raise OSError, SyntaxError, struct.error, ...
        raise BadImageError(
            f"{path}: cannot be decoded as an image ({type(error).__name__}: {error})"
        ) from error
    return np.asarray(square)
