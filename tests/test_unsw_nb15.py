"""UNSW-NB15: features and labels of made files, what is refused, the real file."""

import gzip

import numpy as np
import pytest

from rad_jax.datasets import DataError, unsw_nb15
from rad_jax.datasets.unsw_nb15 import COLUMNS, FEATURE_NAMES

TRAINING, TESTING = unsw_nb15.FILES
ROW = {
    **dict.fromkeys(COLUMNS, "0"),
    "id": "17",
    "dur": "1.5e-05",
    "proto": "tcp",
    "service": "-",
    "state": "FIN",
    "is_sm_ips_ports": "1",
    "attack_cat": "Normal",
}


def write(path, *changes, columns=COLUMNS):
    """A file with one row for each dict of changes to `ROW`."""
    lines = [columns, *([(ROW | change)[c] for c in columns] for change in changes)]
    data = "\ufeff" + "".join(",".join(line) + "\r\n" for line in lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = data.encode()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def test_features_and_labels(tmp_path):
    write(
        tmp_path / TRAINING,
        {},
        {"proto": "chaos", "service": "ftp-data", "state": "no", "attack_cat": "DoS"},
        {"proto": "udp", "service": "dns", "sload": "5268000000.0", "label": "1"},
    )
    dataset = unsw_nb15.load(tmp_path)
    assert dataset.features.shape == (3, 70)
    assert dataset.feature_names == FEATURE_NAMES
    assert not {"id", "label", "attack_cat"} & set(FEATURE_NAMES)
    assert dataset.labels.tolist() == [0, 3, 0]
    assert dataset.labels.dtype == np.int32
    assert dataset.class_names[0] == "Normal"
    assert dataset.num_classes == 10
    held = [
        {name: value for name, value in zip(FEATURE_NAMES, row, strict=True) if value}
        for row in dataset.features.tolist()
    ]
    same = {"dur": 1.5e-05, "is_sm_ips_ports": 1}
    assert held == [
        {**same, "proto=tcp": 1, "service=-": 1, "state=FIN": 1},
        {**same, "proto=other": 1, "service=ftp-data": 1, "state=no": 1},
        {**same, "proto=udp": 1, "service=dns": 1, "state=FIN": 1, "sload": 5.268e9},
    ]


def test_all_classes_have_their_place(tmp_path):
    write(tmp_path / TRAINING, *({"attack_cat": c} for c in unsw_nb15.CLASS_NAMES))
    assert unsw_nb15.load(tmp_path).labels.tolist() == list(range(10))


def test_both_files_in_order_and_the_parent_folder(tmp_path):
    write(tmp_path / "unsw_nb15" / TESTING, {"dur": "2"}, {"dur": "3"})
    write(tmp_path / "unsw_nb15" / f"{TRAINING}.gz", {"dur": "1"})
    write(tmp_path / "unsw_nb15" / "UNSW-NB15_1.csv", {"dur": "9"})
    assert unsw_nb15.load(str(tmp_path)).features[:, 0].tolist() == [1, 2, 3]
    assert [path.name for path in unsw_nb15.files(tmp_path)] == [
        f"{TRAINING}.gz",
        TESTING,
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"attack_cat": "Backdoors"},
            "column 'attack_cat': 'Backdoors' is unknown; kno",
        ),
        (
            {"service": "gopher"},
            "column 'service': 'gopher' is unknown; known: -, dhcp",
        ),
        ({"state": ""}, "column 'state': '' is unknown; known: ACC"),
        ({"ct_srv_dst": "few"}, "column 'ct_srv_dst': 'few', where a finite number"),
        ({"dur": "nan"}, "column 'dur': 'nan', where a finite number"),
        ({"service": '"-'}, "column 'service': '\"-' is unknown; known: -, dhcp"),
        ({"dur": "1_0"}, "column 'dur': '1_0', where a finite number"),
        ({"dur": ""}, "column 'dur': '', where a finite number"),
        ({"label": "0,1"}, "46 columns, where 45 are needed; additional after column"),
    ],
)
def test_a_bad_value_is_located(tmp_path, change, message):
    path = write(tmp_path / TRAINING, {}, {}, change, {})
    with pytest.raises(DataError) as error:
        unsw_nb15.load(tmp_path)
    separator = ": " if message.startswith("46") else ", "
    assert f"{path}, line 4{separator}{message}" in str(error.value)


def test_missing_and_additional_columns_are_named(tmp_path):
    write(tmp_path / TRAINING, {"srcip": "1"}, columns=("srcip", *COLUMNS[1:]))
    with pytest.raises(DataError, match=r"line 1.*missing: 'id'; additional: 'srcip'"):
        unsw_nb15.load(tmp_path)


def test_a_file_without_header_or_rows_is_refused(tmp_path):
    path = write(tmp_path / TRAINING, {})
    path.write_text(path.read_text(encoding="utf-8-sig").split("\n", 1)[1])
    with pytest.raises(DataError, match=r"line 1: .*missing: 'id'"):
        unsw_nb15.load(tmp_path)
    path.write_text("")
    with pytest.raises(DataError, match="is empty"):
        unsw_nb15.load(tmp_path)
    write(path)
    with pytest.raises(DataError, match="a header, but no rows"):
        unsw_nb15.load(tmp_path)


def test_a_truncated_gzip_is_refused(tmp_path):
    path = write(tmp_path / f"{TRAINING}.gz", *[{"id": str(i)} for i in range(4000)])
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(DataError, match=r"csv\.gz, line \d+: cannot be read"):
        unsw_nb15.load(tmp_path)


def test_nothing_in_the_folder_says_what_was_looked_for(tmp_path):
    with pytest.raises(DataError) as error:
        unsw_nb15.load(tmp_path)
    for part in (TRAINING, TESTING, ".gz", str(tmp_path / "unsw_nb15")):
        assert part in str(error.value)


def test_the_published_file(data_dir):
    if not (data_dir / "unsw_nb15").is_dir():
        pytest.skip("no unsw_nb15 in the folder RAD_JAX_DATA")
    dataset = unsw_nb15.load(data_dir)
    assert dataset.features.shape == (82_332, 70)
    assert dataset.scaling == "log"
    counts = np.bincount(dataset.labels)
    assert dict(zip(dataset.class_names, counts.tolist(), strict=True)) == {
        "Normal": 37_000,
        "Generic": 18_871,
        "Exploits": 11_132,
        "Fuzzers": 6_062,
        "DoS": 4_089,
        "Reconnaissance": 3_496,
        "Analysis": 677,
        "Backdoor": 583,
        "Shellcode": 378,
        "Worms": 44,
    }
    one_hot = dataset.features[:, 39:]
    assert (one_hot.reshape(-1, 31).sum(axis=1) == 3).all()
    assert not dataset.features[:, 39:][(one_hot != 0) & (one_hot != 1)].size
