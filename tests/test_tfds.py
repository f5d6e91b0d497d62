"""The builders give the rows of the plain loaders, bit by bit and in their order."""

import gzip
import importlib
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from rad_jax.datasets import DataError, facescrub, google_cluster, nbaiot, unsw_nb15

tfds = pytest.importorskip("tensorflow_datasets")
builders = importlib.import_module("rad_jax.datasets.tfds")

RNG = np.random.default_rng(0)


def make_nbaiot(folder):
    """Times near 1.5e9 that differ by microseconds; two classes on two devices."""
    for device, name, number in [
        ("Ennio_Doorbell", "gafgyt_attacks/tcp.csv", 7),
        ("Ennio_Doorbell", "benign_traffic.csv", 40),
        ("Danmini_Doorbell", "benign_traffic.csv", 3),
    ]:
        path = folder / device / name
        path.parent.mkdir(parents=True, exist_ok=True)
        values = 1.5e9 + RNG.random((number, 115))
        lines = [",".join(map(repr, row)) for row in values.tolist()]
        path.write_text("\n".join([",".join(nbaiot.FEATURE_NAMES), *lines]))


def make_google_cluster(folder):
    """Two parts; tasks end in the order opposite to that of their submission."""
    (folder / "task_events").mkdir()
    for part, event in enumerate((0, 4)):
        lines = [
            f"{600 + 100 * part + i},,{i},{i},,{event},ann,1,4,0.1,0.3,0.7,1\n"
            for i in ((range(20), range(19, -1, -1))[part])
        ]
        name = f"task_events/part-{part:05}-of-00500.csv.gz"
        (folder / name).write_bytes(gzip.compress("".join(lines).encode()))


def make_unsw_nb15(folder):
    for name, number in zip(unsw_nb15.FILES, (9, 4), strict=True):
        row = dict.fromkeys(unsw_nb15.COLUMNS, "0") | {"service": "-", "state": "FIN"}
        lines = [
            row | {"dur": repr(RNG.random()), "attack_cat": unsw_nb15.CLASS_NAMES[i]}
            for i in range(number)
        ]
        text = [",".join(unsw_nb15.COLUMNS), *(",".join(r.values()) for r in lines)]
        (folder / name).write_text("\n".join(text))


def make_facescrub(folder):
    for person, number in (("Zoe", 3), ("Ann", 2), ("Bob", 1)):
        (folder / person).mkdir()
        for i in range(number):
            pixels = RNG.integers(0, 256, (40, 50, 3), np.uint8)
            Image.fromarray(pixels).save(folder / person / f"{i}.png")


def small_faces():
    return builders.FacescrubConfig(name="8_of_2", image_size=8, num_people=2)


#: The builder, its configuration, what makes the files, and the plain loader.
CASES = {
    "nbaiot": (builders.Nbaiot, "all", make_nbaiot, nbaiot.load),
    "nbaiot/device": (
        builders.Nbaiot,
        "Ennio_Doorbell",
        make_nbaiot,
        lambda folder: nbaiot.load(folder, "Ennio_Doorbell"),
    ),
    "google_cluster": (
        builders.GoogleCluster2011,
        None,
        make_google_cluster,
        google_cluster.load,
    ),
    "unsw_nb15": (builders.UnswNb15, None, make_unsw_nb15, unsw_nb15.load),
    "facescrub": (
        builders.Facescrub,
        "32",
        make_facescrub,
        lambda folder: facescrub.load(folder, 32),
    ),
    "facescrub/own config": (
        builders.Facescrub,
        small_faces(),
        make_facescrub,
        lambda folder: facescrub.load(folder, 8, 2),
    ),
}


def prepare(builder, manual_dir):
    config = tfds.download.DownloadConfig(manual_dir=str(manual_dir))
    builder.download_and_prepare(download_config=config)
    return builder


def check_same(builder, dataset):
    rows = builder.as_data_source(split="train")
    assert len(rows) == len(dataset.labels)
    rows = rows.__getitems__(list(range(len(rows))))  # one by one is far slower
    name = "image" if dataset.is_images else "features"
    features = np.stack([row[name] for row in rows])
    assert features.dtype == dataset.features.dtype
    np.testing.assert_array_equal(features, dataset.features)
    assert [row["label"] for row in rows] == dataset.labels.tolist()
    assert tuple(builder.info.features["label"].names) == dataset.class_names
    assert builder.info.splits["train"].num_examples == len(dataset.labels)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("file_format", ["array_record", "parquet"])
def test_rows_are_those_of_the_plain_loader(tmp_path, case, file_format):
    make_builder, config, make, load = CASES[case]
    manual, prepared = tmp_path / "manual", tmp_path / "prepared"
    manual.mkdir()
    make(manual)
    how = {"config": config, "data_dir": prepared, "file_format": file_format}
    dataset = load(manual)
    check_same(prepare(make_builder(**how), manual), dataset)
    check_same(make_builder(**how), dataset)  # found prepared, from the disk alone


def test_array_record_unless_told_otherwise(tmp_path):
    builder = builders.UnswNb15(data_dir=tmp_path)
    assert builder.info.file_format is tfds.core.FileFormat.ARRAY_RECORD


@pytest.mark.parametrize("case", CASES)
def test_source_licence_citation_and_how_to_download(tmp_path, case):
    make_builder, config, *_ = CASES[case]
    builder = make_builder(config=config, data_dir=tmp_path)
    info = builder.info
    assert info.homepage.startswith("http")
    assert info.redistribution_info.license
    assert "@" in info.citation
    assert "year = {20" in info.citation
    assert "manual_dir" in builder.MANUAL_DOWNLOAD_INSTRUCTIONS
    assert "http" in builder.MANUAL_DOWNLOAD_INSTRUCTIONS
    assert info.disable_shuffling
    with pytest.raises(AssertionError, match="manual_dir"):
        prepare(builder, tmp_path / "nowhere")


def test_configurations():
    assert list(builders.Nbaiot.builder_configs) == ["all", *nbaiot.DEVICES]
    sizes = {n: c.image_size for n, c in builders.Facescrub.builder_configs.items()}
    assert sizes == {"128": 128, "64": 64, "32": 32}


def test_known_to_tensorflow_datasets_by_name(tmp_path):
    builder = tfds.builder("nbaiot/Ennio_Doorbell", data_dir=tmp_path)
    assert isinstance(builder, builders.Nbaiot)
    assert builder.info.features["features"].shape == (115,)


def test_a_bad_file_leaves_nothing_that_would_be_read(tmp_path):
    manual, prepared = tmp_path / "manual", tmp_path / "prepared"
    manual.mkdir()
    make_nbaiot(manual)
    path = manual / "Ennio_Doorbell/gafgyt_attacks/tcp.csv"
    good = path.read_text()
    path.write_text(good.replace("1500000000.", "x", 1))
    builder = builders.Nbaiot(data_dir=prepared)
    with pytest.raises(DataError, match=r"tcp\.csv, line 2, column .*'x"):
        prepare(builder, manual)
    fresh = builders.Nbaiot(data_dir=prepared)
    with pytest.raises(KeyError, match="not been generated yet"):
        fresh.as_data_source(split="train")
    path.write_text(good)
    check_same(prepare(fresh, manual), nbaiot.load(manual))


def test_bad_images_are_named_or_skipped(tmp_path):
    manual = tmp_path / "manual"
    manual.mkdir()
    make_facescrub(manual)
    bad = manual / "Zoe" / "1.png"
    bad.write_bytes(bad.read_bytes()[:100])
    first = builders.Facescrub(config="32", data_dir=tmp_path / "a")
    with pytest.raises(DataError, match=r"1\.png: cannot be decoded"):
        prepare(first, manual)

    config = builders.FacescrubConfig(name="s", image_size=4, skip_bad_images=True)
    builder = builders.Facescrub(config=config, data_dir=tmp_path / "b")
    with pytest.warns(UserWarning, match="left out 1 of 6 images"):
        prepare(builder, manual)
    with pytest.warns(UserWarning, match="left out 1 of 6 images"):
        dataset = facescrub.load(manual, 4, skip_bad_images=True)
    check_same(builder, dataset)

    Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(bad)
    check_same(prepare(first, manual), facescrub.load(manual, 32))


@pytest.mark.parametrize("absent", ["tensorflow_datasets", "importlib_resources"])
def test_what_is_absent_is_said(monkeypatch, absent):
    for name in list(sys.modules):
        if name.startswith("rad_jax.datasets.tfds"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(ImportError, match=r"pip install 'rad-jax\[datasets\]'"):
        importlib.import_module("rad_jax.datasets.tfds")


def test_the_rest_works_without_what_is_optional():
    absent = ("tensorflow_datasets", "tensorflow", "array_record", "pyarrow", "PIL")
    blocked = f"import sys; sys.modules.update(dict.fromkeys({absent}))"
    subprocess.run(
        [sys.executable, "-c", f"{blocked}; import rad_jax.datasets"], check=True
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make_builder", "load", "rows"),
    [
        (lambda d: builders.Nbaiot(data_dir=d), nbaiot.load, 415_186),
        (lambda d: builders.UnswNb15(data_dir=d), unsw_nb15.load, 82_332),
        (lambda d: builders.GoogleCluster2011(data_dir=d), google_cluster.load, 58_661),
        (lambda d: builders.Facescrub(data_dir=d), facescrub.load, 1_808),
    ],
    ids=["nbaiot", "unsw_nb15", "google_cluster", "facescrub"],
)
def test_published_files(data_dir, tmp_path, make_builder, load, rows):
    dataset = load(data_dir)
    assert len(dataset.labels) == rows
    check_same(prepare(make_builder(tmp_path), data_dir), dataset)
