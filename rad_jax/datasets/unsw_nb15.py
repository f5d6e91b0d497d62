"""UNSW-NB15: flows of a network, normal or of one of nine kinds of attack.

References:
  N. Moustafa, J. Slay, UNSW-NB15: a comprehensive data set for network intrusion
  detection systems, MilCIS 2015 (https://research.unsw.edu.au/projects/unsw-nb15-dataset);
  free for academic research, other use by agreement with the authors.
"""

import os
import pathlib
from collections.abc import Sequence

import numpy as np

from rad_jax.datasets import _csv
from rad_jax.datasets.base import DataError, Dataset

#: Of the parser: a prepared copy of its rows is out of date when it changes.
VERSION = 1
#: The files that are read, those that are there, in this order; and the folders above
#: them that may be left out.
FILES = ("UNSW_NB15_training-set.csv", "UNSW_NB15_testing-set.csv")
FOLDERS = ("unsw_nb15", "UNSW-NB15")

CLASS_NAMES = (
    "Normal",
    "Analysis",
    "Backdoor",
    "DoS",
    "Exploits",
    "Fuzzers",
    "Generic",
    "Reconnaissance",
    "Shellcode",
    "Worms",
)

_BEFORE = ("dur",)
_AFTER = (
    *("spkts", "dpkts", "sbytes", "dbytes", "rate", "sttl", "dttl", "sload", "dload"),
    *("sloss", "dloss", "sinpkt", "dinpkt", "sjit", "djit", "swin", "stcpb", "dtcpb"),
    *("dwin", "tcprtt", "synack", "ackdat", "smean", "dmean", "trans_depth"),
    *("response_body_len", "ct_srv_src", "ct_state_ttl", "ct_dst_ltm"),
    *("ct_src_dport_ltm", "ct_dst_sport_ltm", "ct_dst_src_ltm", "is_ftp_login"),
    *("ct_ftp_cmd", "ct_flw_http_mthd", "ct_src_ltm", "ct_srv_dst"),
    "is_sm_ips_ports",
)
#: The columns of the files.
COLUMNS = (
    "id",
    *_BEFORE,
    "proto",
    "service",
    "state",
    *_AFTER,
    "attack_cat",
    "label",
)
#: The columns of texts, with the values that have a feature of their own.
CATEGORIES = {
    "proto": ("arp", "ospf", "sctp", "tcp", "udp", "unas"),
    "service": (
        *("-", "dhcp", "dns", "ftp", "ftp-data", "http", "irc", "pop3", "radius"),
        *("smtp", "snmp", "ssh", "ssl"),
    ),
    "state": (
        *("ACC", "CLO", "CON", "ECO", "FIN", "INT"),
        *("PAR", "REQ", "RST", "URN", "no"),
    ),
}
#: Of these columns other values are allowed, and share one more feature.
OPEN = ("proto",)
_OTHER = "other"

_NUMERIC = (*_BEFORE, *_AFTER)
FEATURE_NAMES = (
    *_NUMERIC,
    *(
        f"{column}={value}"
        for column, values in CATEGORIES.items()
        for value in (*values, *((_OTHER,) if column in OPEN else ()))
    ),
)


def load(data_dir: str | os.PathLike[str]) -> Dataset:
    """Loads the two published files of flows with features, or the one that is there.

    - The 39 columns of numbers as they are; `id` and `label` (whether it is an attack)
      are no features.
    - `service` (13 values) and `state` (11) as one feature for each, 1 where the flow
      has it and else 0. Other values are refused.
    - `proto` likewise, for the six protocols of more than 100 flows; all others share
      one feature, `proto=other`. They are 125 in the file of 82,332 flows, nearly
      all of them on some 32 flows each: scans over all protocol numbers. (Without
      the protocol the accuracy of a KNN(5) on 6,000 shuffled rows is .787 instead of
      .791, that of an MLP .826 instead of .832.)

    The lists are fixed: the width is the same whatever the file holds.

    Args:
      data_dir: the folder that holds `UNSW_NB15_training-set.csv` (82,332 flows in some
        distributions, 175,341 in others, which swap the names) or
        `UNSW_NB15_testing-set.csv` or both, plain or gzipped (`.csv.gz`), or one in
        whose `unsw_nb15` or `UNSW-NB15` they lie. The four raw files
        `UNSW-NB15_<number>.csv`, of other columns and without header, are not read.

    Returns:
      A data set with features ``[n, 70]`` float64 and labels ``[n]`` int32 into
      `CLASS_NAMES`, rows as in the files. They lie in blocks of one class: shuffle.

    Raises:
      DataError: Neither file is there, or one is not as it should be (with its line
        and column).
    """
    blocks = [read(path) for path in files(data_dir)]
    return Dataset(
        name="unsw_nb15",
        features=np.concatenate([features for features, _ in blocks]),
        labels=np.concatenate([labels for _, labels in blocks]),
        class_names=CLASS_NAMES,
        feature_names=FEATURE_NAMES,
        scaling="log",  # counts, bytes and durations
    )


def files(data_dir: str | os.PathLike[str]) -> list[pathlib.Path]:
    """The files that `load` reads, in its order; DataError if there are none."""
    places = _csv.places(data_dir, FOLDERS)
    for place in places:
        found = [path for name in FILES if (path := _csv.find(place, name))]
        if found:
            return found
    raise DataError(
        f"no UNSW-NB15 files: looked for {' and '.join(FILES)}, each also with .gz, in "
        f"{', '.join(map(str, places))}"
    )


def read(path: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    """Reads one file.

    Args:
      path: a file of the columns `COLUMNS`, plain or gzipped.

    Returns:
      Features ``[n, 70]`` float64 and labels ``[n]`` int32.

    Raises:
      DataError: The file is not as it should be (with its line and column).
    """
    lines, rows = zip(*_csv.rows(path, COLUMNS), strict=True)
    texts = dict(zip(COLUMNS, zip(*rows, strict=True), strict=True))
    features = [
        *(_numbers(path, lines, name, texts[name])[:, None] for name in _NUMERIC),
        *(
            _one_hot(_codes(path, lines, name, texts[name], known), name, len(known))
            for name, known in CATEGORIES.items()
        ),
    ]
    labels = _codes(path, lines, "attack_cat", texts["attack_cat"], CLASS_NAMES)
    return np.concatenate(features, axis=1), labels.astype(np.int32)


def _numbers(
    path: pathlib.Path, lines: Sequence[int], column: str, texts: Sequence[str]
) -> np.ndarray:
    """Turns the texts of a column into ``[n]`` float64, or says which is none."""
    try:
        values = np.array([float(text) for text in texts])
        if np.isfinite(values).all() and not any("_" in text for text in texts):
            return values
    except ValueError:
        pass  # found again below, with its place
    return np.array(
        [
            _csv.number(path, line, column, text)
            for line, text in zip(lines, texts, strict=True)
        ]
    )


def _codes(
    path: pathlib.Path,
    lines: Sequence[int],
    column: str,
    texts: Sequence[str],
    known: Sequence[str],
) -> np.ndarray:
    """Turns texts into places in `known` ``[n]``; ``len(known)`` for allowed others."""
    places = {value: place for place, value in enumerate(known)}
    codes = np.array([places.get(text.strip(), len(known)) for text in texts])
    unknown = np.flatnonzero(codes == len(known))
    if unknown.size and column not in OPEN:
        row = unknown[0]
        raise DataError(
            f"{path}, line {lines[row]}, column {column!r}: {texts[row]!r} is unknown; "
            f"known: {', '.join(known)}"
        )
    return codes


def _one_hot(codes: np.ndarray, column: str, known: int) -> np.ndarray:
    """Turns codes ``[n]`` into columns ``[n, known]``, or one more for others."""
    width = known + (column in OPEN)
    return (codes[:, None] == np.arange(width)).astype(np.float64)
