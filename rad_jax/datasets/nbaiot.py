"""N-BaIoT: traffic of nine devices at home, benign or of one of two botnets.

One row is a summary of recent traffic at the arrival of a packet: 115 statistics over
five time windows. Its class is the kind of traffic in which it was recorded.

References:
  Y. Meidan et al., N-BaIoT: network-based detection of IoT botnet attacks using deep
  autoencoders, IEEE Pervasive Computing 17(3), 2018; data at UCI
  (https://doi.org/10.24432/C5RC8J), under CC BY 4.0.
"""

import os
import pathlib
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rad_jax.datasets import _csv
from rad_jax.datasets.base import DataError, Dataset

#: Of the parser: a prepared copy of its rows is out of date when it changes.
VERSION = 1
#: Folders above the devices that may be left out.
FOLDERS = ("nbaiot", "N-BaIoT")

#: In UCI's order: in the flat layout the files of the first one are `1.benign.csv`, ...
DEVICES = (
    "Danmini_Doorbell",
    "Ecobee_Thermostat",
    "Ennio_Doorbell",
    "Philips_B120N10_Baby_Monitor",
    "Provision_PT_737E_Security_Camera",
    "Provision_PT_838_Security_Camera",
    "Samsung_SNH_1011_N_Webcam",
    "SimpleHome_XCS7_1002_WHT_Security_Camera",
    "SimpleHome_XCS7_1003_WHT_Security_Camera",
)
#: Devices on which no Mirai was recorded.
WITHOUT_MIRAI = ("Ennio_Doorbell", "Samsung_SNH_1011_N_Webcam")

CLASS_NAMES = (
    "benign",
    *(f"gafgyt.{attack}" for attack in ("combo", "junk", "scan", "tcp", "udp")),
    *(f"mirai.{attack}" for attack in ("ack", "scan", "syn", "udp", "udpplain")),
)

_WINDOWS = ("L5", "L3", "L1", "L0.1", "L0.01")
_ONE = ("weight", "mean", "variance")
_TWO = ("weight", "mean", "std", "magnitude", "radius", "covariance", "pcc")
FEATURE_NAMES = tuple(
    f"{stream}_{window}_{statistic}"
    for stream, statistics in (
        ("MI_dir", _ONE),
        ("H", _ONE),
        ("HH", _TWO),
        ("HH_jit", _ONE),
        ("HpHp", _TWO),
    )
    for window in _WINDOWS
    for statistic in statistics
)


class Part(NamedTuple):
    """A file: the traffic of one class on one device."""

    device: str
    label: int
    path: pathlib.Path


def load(data_dir: str | os.PathLike[str], device: str = "all") -> Dataset:
    """Loads the traffic of one device, or of all that are there.

    Two layouts are known, of plain and of gzipped (`.csv.gz`) files: UCI's,
    `<device>/benign_traffic.csv` and `<device>/{gafgyt,mirai}_attacks/<attack>.csv`,
    where UCI's archives `{gafgyt,mirai}_attacks.rar` must have been unpacked (this
    library does not read them); and a flat one, `<number>.benign.csv`,
    `<number>.gafgyt.combo.csv`, ..., with the device's number 1..9 in the order of
    `DEVICES`. Of a class that is not there are no rows; K is 11 all the same.

    The whole of the published data is 7,062,606 rows, which take 6.5 GB, and twice that
    while they are put together: load a device, or use the builder in `datasets.tfds`.

    Columns `HH_jit_*_mean` hold times near 1.5e9 s: scale them before a cast to
    float32.

    Args:
      data_dir: the folder that holds one of the layouts, or one in whose `nbaiot` or
        `N-BaIoT` it lies.
      device: one of `DEVICES`, or 'all'.

    Returns:
      A data set with features ``[n, 115]`` float64 in the order of `FEATURE_NAMES`
      and labels ``[n]`` int32 into `CLASS_NAMES`, rows by device, then by class, then
      as in the file. Each file is one class: shuffle.

    Raises:
      ValueError: `device` is unknown.
      DataError: None of the files is there, a device's attacks are still packed, or a
        file is not as it should be (with its line and column).
    """
    parts = find(data_dir, device)
    blocks = [read(part.path) for part in parts]
    labels = np.repeat([part.label for part in parts], [len(rows) for rows in blocks])
    return Dataset(
        name="nbaiot" if device == "all" else f"nbaiot_{device}",
        features=np.concatenate(blocks),
        labels=labels.astype(np.int32),
        class_names=CLASS_NAMES,
        feature_names=FEATURE_NAMES,
        # A few rows have times of seconds where all others have 1.5e9: after
        # "standard" those others are all but equal.
        scaling="quantile",
    )


def files(data_dir: str | os.PathLike[str], device: str = "all") -> list[pathlib.Path]:
    """The files that `load` reads, in its order; it says what else is raised."""
    return [part.path for part in find(data_dir, device)]


def missing_classes(data_dir: str | os.PathLike[str], device: str) -> tuple[str, ...]:
    """Names of the classes recorded on a device of which no file is there.

    Args:
      data_dir: as of `load`.
      device: one of `DEVICES`.

    Returns:
      Names out of `CLASS_NAMES`; none if the device is complete.

    Raises:
      ValueError, DataError: As `load`.
    """
    there = {part.label for part in find(data_dir, device)}
    return tuple(
        name
        for label, name in enumerate(CLASS_NAMES)
        if label not in there
        and not (name.startswith("mirai") and device in WITHOUT_MIRAI)
    )


def read(path: pathlib.Path) -> np.ndarray:
    """Reads one file: ``[n, 115]`` float64; raises DataError as `load` does."""
    return _csv.read_numbers(path, FEATURE_NAMES)


def find(data_dir: str | os.PathLike[str], device: str = "all") -> list[Part]:
    """Finds the files of a device or of all, by device, then by class.

    Args:
      data_dir: as of `load`.
      device: as of `load`.

    Returns:
      At least one part.

    Raises:
      ValueError, DataError: As `load`.
    """
    if device != "all" and device not in DEVICES:
        raise ValueError(
            f"device={device!r} is unknown; known: all, {', '.join(DEVICES)}"
        )
    devices = DEVICES if device == "all" else (device,)
    places = _csv.places(data_dir, FOLDERS)
    for place in places:
        parts = [part for name in devices for part in _of_device(place, name)]
        if parts:
            return parts
    number = DEVICES.index(devices[0]) + 1
    raise DataError(
        f"no N-BaIoT files of device={device!r}: looked for "
        f"{devices[0]}/benign_traffic.csv, "
        f"{devices[0]}/{{gafgyt,mirai}}_attacks/<attack>.csv and "
        f"{number}.benign.csv, {number}.gafgyt.combo.csv, ..., each also with .gz"
        + (", and the same of the other devices" if device == "all" else "")
        + f", in {', '.join(map(str, places))}"
    )


def _of_device(place: pathlib.Path, device: str) -> Iterator[Part]:
    """Yields the files of one device in either layout, by class."""
    folder, number = place / device, DEVICES.index(device) + 1
    for family in ("gafgyt", "mirai"):
        unpacked, packed = folder / f"{family}_attacks", f"{family}_attacks.rar"
        if (folder / packed).is_file() and not unpacked.is_dir():
            raise DataError(
                f"{folder / packed} is still packed: unpack it into the folder "
                f"{unpacked}, or take it away to go without these attacks"
            )
    _refuse_unknown(place, folder)
    for label, name in enumerate(CLASS_NAMES):
        family, _, attack = name.partition(".")
        official = f"{family}_attacks/{attack}.csv" if attack else "benign_traffic.csv"
        found = [
            path
            for path in (
                _csv.find(folder, official),
                _csv.find(place, f"{number}.{name}.csv"),
            )
            if path
        ]
        if len(found) > 1:
            raise DataError(
                f"{found[0]} and {found[1]} are the same traffic: keep one of them"
            )
        if found:
            yield Part(device, label, found[0])


def _refuse_unknown(place: pathlib.Path, folder: pathlib.Path) -> None:
    """Raises DataError for files named as traffic of no class or device we know."""
    for path in sorted(folder.glob("*_attacks/*")):
        family = path.parent.name.removesuffix("_attacks")
        attack = re.fullmatch(r"([^.]\w*)\.csv(\.gz)?", path.name)
        if attack and f"{family}.{attack[1]}" not in CLASS_NAMES:
            raise DataError(
                f"{path}: class '{family}.{attack[1]}' is unknown; known: "
                f"{', '.join(CLASS_NAMES)}"
            )
    for path in sorted(place.glob("*.csv*")):
        name = re.fullmatch(r"(\d+)\.([a-z]+(\.\w+)?)\.csv(\.gz)?", path.name)
        if not name:
            continue
        if name[2] not in CLASS_NAMES:
            raise DataError(
                f"{path}: class {name[2]!r} is unknown; known: {', '.join(CLASS_NAMES)}"
            )
        if not 1 <= int(name[1]) <= len(DEVICES):
            raise DataError(
                f"{path}: device number {name[1]} is unknown; known: 1 to "
                f"{len(DEVICES)}, in the order of {', '.join(DEVICES)}"
            )
