"""N-BaIoT: both layouts, and what is refused, on made files; the real ones if there."""

import gzip

import numpy as np
import pytest

from rad_jax.datasets import DataError, Standardizer, nbaiot
from rad_jax.datasets.scaling import fit

HEADER = ",".join(nbaiot.FEATURE_NAMES)
WIDTH = 115


def rows(number, seed=0):
    """Values that are not all equal after a cast to float32."""
    return np.random.default_rng(seed).normal(1.5e9, 1, (number, WIDTH))


def text(values, header=HEADER, end="\n"):
    lines = [header, *(",".join(map(repr, row)) for row in values.tolist())]
    return end.join(lines) + end


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def test_the_names_of_the_features_are_uci_s():
    assert len(nbaiot.FEATURE_NAMES) == len(set(nbaiot.FEATURE_NAMES)) == WIDTH
    assert nbaiot.FEATURE_NAMES[:4] == (
        "MI_dir_L5_weight",
        "MI_dir_L5_mean",
        "MI_dir_L5_variance",
        "MI_dir_L3_weight",
    )
    assert nbaiot.FEATURE_NAMES[30] == "HH_L5_weight"
    assert nbaiot.FEATURE_NAMES[66] == "HH_jit_L5_mean"
    assert nbaiot.FEATURE_NAMES[-1] == "HpHp_L0.01_pcc"


def test_uci_s_layout(tmp_path):
    made = {
        "Ecobee_Thermostat/mirai_attacks/udpplain.csv": rows(2, 1),
        "Ecobee_Thermostat/gafgyt_attacks/scan.csv.gz": rows(3, 2),
        "Ecobee_Thermostat/benign_traffic.csv": rows(4, 3),
        "Danmini_Doorbell/mirai_attacks/scan.csv": rows(1, 4),
    }
    for name, values in made.items():
        write(tmp_path / name, text(values, end="\r\n" if "gz" in name else "\n"))
    (tmp_path / "demonstrate_structure.csv").write_text(HEADER + "\n")
    dataset = nbaiot.load(tmp_path)
    assert dataset.labels.tolist() == [7] + [0] * 4 + [3] * 3 + [10] * 2
    assert dataset.labels.dtype == np.int32
    expected = np.concatenate(list(made.values())[::-1])
    np.testing.assert_array_equal(dataset.features, expected)  # to the last bit
    assert dataset.class_names == nbaiot.CLASS_NAMES
    assert dataset.num_classes == 11

    one = nbaiot.load(str(tmp_path), "Danmini_Doorbell")
    np.testing.assert_array_equal(one.features, rows(1, 4))
    assert one.num_classes == 11
    assert nbaiot.files(tmp_path, "Ecobee_Thermostat") == [
        tmp_path / name for name in list(made)[2::-1]
    ]


def test_the_flat_layout(tmp_path):
    write(tmp_path / "2.benign.csv", text(rows(2, 1)))
    write(tmp_path / "2.mirai.ack.csv.gz", text(rows(1, 2)))
    write(tmp_path / "1.gafgyt.combo.csv", text(rows(3, 3)))
    write(tmp_path / "device_info.csv", "a,b\n1,2\n")
    dataset = nbaiot.load(tmp_path)
    assert dataset.labels.tolist() == [1, 1, 1, 0, 0, 6]
    one = nbaiot.load(tmp_path, "Ecobee_Thermostat")
    np.testing.assert_array_equal(one.features, [*rows(2, 1), *rows(1, 2)])


@pytest.mark.parametrize("folder", ["nbaiot", "N-BaIoT"])
def test_the_parent_folder_will_do(tmp_path, folder):
    write(tmp_path / folder / "9.benign.csv", text(rows(2)))
    assert nbaiot.load(tmp_path).labels.tolist() == [0, 0]


def test_classes_of_a_device_that_are_not_there(tmp_path):
    write(tmp_path / "3.benign.csv", text(rows(1)))
    for name in nbaiot.CLASS_NAMES[1:6]:
        write(tmp_path / f"3.{name}.csv", text(rows(1)))
        write(tmp_path / f"2.{name}.csv", text(rows(1)))
    assert nbaiot.missing_classes(tmp_path, "Ennio_Doorbell") == ()
    missing = ("benign", *nbaiot.CLASS_NAMES[6:])
    assert nbaiot.missing_classes(tmp_path, "Ecobee_Thermostat") == missing


def test_nothing_in_the_folder_says_what_was_looked_for(tmp_path):
    write(tmp_path / "3.benign.csv", text(rows(1)))
    with pytest.raises(DataError) as error:
        nbaiot.load(tmp_path, "Danmini_Doorbell")
    for part in (
        "Danmini_Doorbell/benign_traffic.csv",
        "1.gafgyt.combo.csv",
        str(tmp_path),
        str(tmp_path / "nbaiot"),
    ):
        assert part in str(error.value)
    with pytest.raises(DataError, match="of the other devices"):
        nbaiot.load(tmp_path / "nowhere")


def test_an_unknown_device_is_refused(tmp_path):
    with pytest.raises(ValueError, match="device='Ennio' is unknown; known: all, Dan"):
        nbaiot.load(tmp_path, "Ennio")


def test_attacks_still_packed_are_refused(tmp_path):
    write(tmp_path / "Ennio_Doorbell/benign_traffic.csv", text(rows(1)))
    packed = write(tmp_path / "Ennio_Doorbell/gafgyt_attacks.rar", b"Rar!")
    with pytest.raises(DataError, match=r"gafgyt_attacks\.rar is still packed: unpack"):
        nbaiot.load(tmp_path)
    write(tmp_path / "Ennio_Doorbell/gafgyt_attacks/tcp.csv", text(rows(1)))
    assert packed.is_file()
    assert nbaiot.load(tmp_path).labels.tolist() == [0, 4]


def test_the_same_traffic_in_both_layouts_is_refused(tmp_path):
    write(tmp_path / "Ennio_Doorbell/benign_traffic.csv", text(rows(1)))
    write(tmp_path / "3.benign.csv", text(rows(1)))
    with pytest.raises(DataError, match="are the same traffic: keep one"):
        nbaiot.load(tmp_path)


def changed(line, column, value):
    """Three rows; `value` stands in a line, counted from 1 for the header."""
    lines = text(rows(3)).splitlines()
    fields = lines[line - 1].split(",")
    fields[column] = value
    lines[line - 1] = ",".join(fields)
    return "\n".join(lines) + "\n"


NAMES = nbaiot.FEATURE_NAMES


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            changed(3, 1, "many"),
            r"line 3, column 'MI_dir_L5_mean': 'many', where a fin",
        ),
        (changed(4, 114, ""), "line 4, column 'HpHp_L0.01_pcc': '', where a finite"),
        (changed(2, 0, "nan"), "line 2, column 'MI_dir_L5_weight': 'nan'"),
        (changed(2, 0, "-inf"), "line 2, column 'MI_dir_L5_weight': '-inf'"),
        (changed(3, 0, '"1.0'), "line 3, column 'MI_dir_L5_weight': '\"1.0'"),
        (changed(2, 0, "1_0"), "line 2, column 'MI_dir_L5_weight': '1_0'"),
        (changed(3, 0, "1,2"), "line 3: 116 columns, where 115 .* additional"),
        (
            text(rows(3)[:, :114]),
            "line 2: 114 columns, where 115 .* missing from column 'HpHp_L0.01_pcc' on",
        ),
        (changed(1, 3, "ttl"), "line 1: 115 .* missing: 'MI_dir_L3_w.* additional: 't"),
        (changed(1, 3, NAMES[0]), "line 1: .* more than once: 'MI_dir_L5_weight'"),
        (changed(1, 114, "x,label"), "line 1: 116 columns, .*additional: 'x', 'label'"),
        (
            ",".join([NAMES[1], NAMES[0], *NAMES[2:]]) + "\n",
            "line 1: column 1 is 'MI_dir_L5_mean', where 'MI_dir_L5_weight' is needed",
        ),
        (text(rows(3)).split("\n", 1)[1], "line 1: holds numbers, where a header of"),
        ("", "is empty"),
        (HEADER, "holds a header, but no rows"),
        (HEADER + "\n\n", "holds a header, but no rows"),
        (b"\xff\xfe\x00", "line 1: cannot be read, the file is damaged"),
    ],
)
@pytest.mark.parametrize("end", ["", ".gz"])
def test_a_bad_file_is_refused_with_the_place(tmp_path, content, message, end):
    path = write(tmp_path / f"1.benign.csv{end}", content)
    write(tmp_path / "1.gafgyt.tcp.csv", text(rows(1)))
    with pytest.raises(DataError, match=message) as error:
        nbaiot.load(tmp_path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("damage", ["truncated", "corrupt", "no gzip", "empty"])
def test_a_damaged_gzip_is_refused_with_the_line(tmp_path, damage):
    path = tmp_path / "1.benign.csv.gz"
    data = gzip.compress(text(rows(300)).encode())
    path.write_bytes(
        {
            "truncated": data[: len(data) // 2],
            "corrupt": data[:-8] + bytes(4) + data[-4:],
            "no gzip": text(rows(3)).encode(),
            "empty": b"",
        }[damage]
    )
    if damage == "empty":
        with pytest.raises(DataError, match=r"csv\.gz: is empty"):
            nbaiot.load(tmp_path)
        return
    with pytest.raises(DataError, match=r"csv\.gz, line \d+: cannot be read") as error:
        nbaiot.load(tmp_path)
    line = int(str(error.value).split("line ")[1].split(":")[0])
    low, high = {"truncated": (100, 200), "corrupt": (2, 302), "no gzip": (1, 1)}[
        damage
    ]
    assert low <= line <= high


def test_lines_may_be_missing_at_the_end_or_between(tmp_path):
    content = text(rows(3)).replace("\n", "\n\n")[:-2]
    write(tmp_path / "1.benign.csv", content)
    np.testing.assert_array_equal(nbaiot.load(tmp_path).features, rows(3))


# -------------------------------------------------------------------- published files


@pytest.fixture(scope="module")
def published(data_dir):
    if not (data_dir / "nbaiot").is_dir():
        pytest.skip("no nbaiot in the folder RAD_JAX_DATA")
    return data_dir


def test_a_published_device(published):
    dataset = nbaiot.load(published / "nbaiot", "Danmini_Doorbell")
    assert np.bincount(dataset.labels, minlength=11)[[0, 3, 5]].tolist() == [299] * 3
    assert dataset.features.shape == (897, WIDTH)


@pytest.mark.slow
def test_all_published_files(published):
    dataset = nbaiot.load(published)
    assert dataset.features.shape == (415_186, WIDTH)
    counts = dict(zip(dataset.class_names, np.bincount(dataset.labels), strict=False))
    there = {name: count for name, count in counts.items() if count}
    assert there == {
        "benign": 299,
        "gafgyt.scan": 299,
        "gafgyt.tcp": 206_046,
        "gafgyt.udp": 208_542,
    }
    jitter = dataset.features[:, NAMES.index("HH_jit_L5_mean")]
    assert jitter.max() > 1.5e9
    order = np.random.default_rng(0).permutation(len(jitter))
    scaling = Standardizer.fit(dataset.features[order[:6000]])
    scaled = scaling.transform(dataset.features)
    assert np.isfinite(scaled).all()
    assert scaled.dtype == np.float32
    # Nearly all rows differ in their times alone, by microseconds: that survives
    # scaling in float64, but no cast, of which one before scaling loses most.
    assert distinct_rows(dataset.features) == 196_491
    assert distinct_rows((dataset.features - scaling.mean) / scaling.scale) == 196_491
    assert distinct_rows(scaled) > 3 * distinct_rows(dataset.features.astype("f4"))
    assert dataset.scaling == "quantile"
    by_rank = fit(dataset, dataset.features[order[:6000]], "quantile")
    assert distinct_rows(by_rank(dataset.features)) > 0.99 * 196_491


def distinct_rows(values):
    values = np.ascontiguousarray(values) + 0.0  # -0 is 0
    return len(np.unique(values.view(f"V{values.itemsize * values.shape[1]}")))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "1.mirai.foo.csv",
            r"1\.mirai\.foo\.csv: class 'mirai\.foo' is unknown; known",
        ),
        ("1.zeus.csv.gz", "class 'zeus' is unknown; known: benign, gafgyt"),
        ("12.benign.csv", "device number 12 is unknown; known: 1 to 9"),
        (
            "Danmini_Doorbell/gafgyt_attacks/ack.csv",
            r"ack\.csv: class 'gafgyt\.ack' is unknown; known: benign",
        ),
    ],
)
def test_traffic_of_no_known_class_or_device(tmp_path, name, message):
    write(tmp_path / "1.benign.csv", text(rows(2)))
    assert len(nbaiot.load(tmp_path).labels) == 2
    write(tmp_path / name, text(rows(1)))
    with pytest.raises(DataError, match=message):
        nbaiot.load(tmp_path)
