"""Data sets and files as a user names them on the command line."""

import csv
import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import PIL.Image
import pytest
from rich.console import Console

from experiments import sources, stream
from experiments.stream import Config
from rad_jax.datasets import table

ROOT = pathlib.Path(__file__).parent.parent
QUICK = (
    "--label_model=nearest_centroid",
    "--classifier=nearest_centroid",
    "--schemes=basic",
    "--num_seeds=2",
)


def call(*arguments, folder, **variables):
    env = {k: v for k, v in os.environ.items() if k != "COLUMNS"}
    env |= {"PYTHONIOENCODING": "utf-8", "XDG_CACHE_HOME": str(folder / "cache")}
    env |= {name: str(value) for name, value in variables.items()}
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "experiments.stream", *arguments],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )


def write_csv(path, rows=300):
    """Two classes far apart, three columns; every seventh row has no label."""
    rng = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["when", "size", "kind", "class"])
        for row in rng.permutation(rows):
            sick = row % 2
            size = f"{rng.normal(8 * sick, 1):.3f}" if row % 5 else ""
            label = ("héalthy", "sick")[sick] if row % 7 else ""
            writer.writerow([row, size, ("a", "b")[sick], label])
    return path


def test_a_file_from_the_command_line(tmp_path):
    path, output = write_csv(tmp_path / "rows.csv"), tmp_path / "out"
    arguments = (
        f"--dataset={path}",
        "--label_column=class",
        "--time_column=when",
        "--order=time",
        "--batch_size=20",
        f"--output_dir={output}",
        *QUICK,
    )
    done = call(*arguments, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for text in ("have no label", "30 clean rows", "Recall of each class", "héalthy"):
        assert text in done.stdout
    with (output / "per_class.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["class"] for row in rows} == {"héalthy", "sick"}
    perfect = [r for r in rows if r["scheme"] == "oracle_selection"]
    assert all(float(row["recall_mean"]) > 0.95 for row in perfect)
    flags = json.loads((output / "config.json").read_text())["flags"]
    assert flags["label_column"] == "class"
    assert (flags["initial_size"], flags["batch_size"]) == (30, 20)
    assert flags["query_budget"] == 2
    entries = [entry.name for entry in (tmp_path / "cache" / "rad_jax").iterdir()]
    assert [name.partition("-")[0] for name in sorted(entries)] == ["table", "xla"]


@pytest.mark.slow  # compiles
def test_images_through_a_whole_run(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "images.npz"
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 120)
    images = rng.integers(0, 60, (120, 4, 4, 3)) + 80 * labels[:, None, None, None]
    np.savez(path, features=images.astype(np.uint8), labels=labels)
    result = stream.run(
        Config(
            dataset=str(path),
            cache_dir="",
            output_dir=str(tmp_path / "out"),
            label_model="nearest_centroid",
            classifier="nearest_centroid",
            schemes=("basic",),
            num_seeds=2,
        )
    )
    assert result.class_names == ("0", "1", "2")
    oracle = result.schemes.index("oracle_selection")
    assert (result.history["accuracy"][oracle, ..., -1] == 1).all()
    assert not (tmp_path / "cache").exists()


def test_a_file_that_is_wrong_is_one_line(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("x,y\n1,a\n2,b\nmuch,a\n4,b\n5,a\n")
    done = call(f"--dataset={path}", "--label_column=y", folder=tmp_path)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {path}, line 4, column 'x': 'much'")


def test_a_module_that_is_missing_is_one_line(tmp_path):
    (tmp_path / "pandas.py").write_text("raise ImportError('hidden by a test')")
    path = tmp_path / "rows.csv"
    path.write_text("x,y\n1,a\n2,b\n")
    done = call(
        f"--dataset={path}", "--label_column=y", folder=tmp_path, PYTHONPATH=tmp_path
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: pandas is needed for tables: pip install")


def test_the_home_in_data_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("Ann", "Bob"):
        (tmp_path / "faces" / name).mkdir(parents=True)
        image = PIL.Image.new("RGB", (4, 4))
        image.save(tmp_path / "faces" / name / "a.png")
    asked = config(dataset="facescrub", data_dir="~/faces")
    assert sources.find("facescrub").load(asked).class_names == ("Ann", "Bob")


FACES = {"dataset": "facescrub", "data_dir": "EMPTY"}


def config(**changes):
    return Config(cache_dir="", **changes)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"dataset": "rows.xls"}, ["--dataset=rows.xls", "digits", "*.csv", "*.npz"]),
        ({"dataset": "none.csv", "label_column": "y"}, ["none.csv: there is no such"]),
        (
            {"label_column": "y"},
            ["--label_column=y is not for --dataset=digits", "fil"],
        ),
        ({"drop_columns": ("y",)}, ["--drop_columns", "not for --dataset=digits"]),
        ({"time_column": "y"}, ["--time_column=y is not for --dataset=digits"]),
        ({"device": "Ennio_Doorbell"}, ["--device=Ennio_Doorbell", "but for nbaiot"]),
        ({"num_people": 3}, ["--num_people=3", "but for facescrub"]),
        ({"image_size": 64}, ["--image_size=64", "but for facescrub"]),
        (FACES | {"image_size": 0}, ["--image_size must be at least 1, got 0"]),
        (FACES | {"num_people": -1}, ["--num_people must be at least 1, got -1"]),
        ({"skip_bad_images": True}, ["--skip_bad_images=True", "but for facescrub"]),
        ({"scaling": "max"}, ["--scaling=max is unknown; known: standard, log"]),
        ({"scaling": "unit"}, ["scaling='unit' is not for digits", "standard, log"]),
        *(
            ({"dataset": name, "data_dir": None}, [f"--dataset={name}", "--data_dir"])
            for name in ("nbaiot", "unsw_nb15", "facescrub")
        ),
        *(
            ({"dataset": name, "data_dir": "EMPTY"}, ["EMPTY"])
            for name in ("nbaiot", "unsw_nb15", "facescrub")
        ),
    ],
)
def test_bad_values_are_found_before_any_work(changes, parts, tmp_path):
    if changes.get("data_dir"):
        (tmp_path / "EMPTY").mkdir()
        changes = changes | {"data_dir": str(tmp_path / "EMPTY")}
    with pytest.raises(ValueError) as error:  # noqa: PT011 (parts are checked below)
        stream.run(config(output_dir=str(tmp_path / "out"), **changes), Console())
    for part in parts:
        assert part in str(error.value)


@pytest.mark.parametrize("rows", [2, 10, 60, 1808, 58_661, 415_186])
def test_sizes_suit_any_number_of_rows(rows):
    sizes = sources.suited(rows)
    num_batches = sizes.num_batches or 1
    assert sizes.initial_size + sizes.batch_size * num_batches < rows or rows == 2
    assert min(sizes[0], sizes[1], num_batches) >= 1
    assert sources.suited(rows, 1, 1).initial_size == 1
    assert sources.suited(10_000, 500, 200)[:3] == (500, 200, None)
    assert sources.suited(100_000, None, 100)[:3] == (6000, 100, 60)


def test_sizes_that_are_given_stay(tmp_path):
    path = write_csv(tmp_path / "rows.csv")
    given = config(
        dataset=str(path), label_column="class", initial_size=50, num_batches=3
    )
    completed = stream.complete(given)
    data = stream.load(completed)
    suited = stream.suit(completed, stream.read(completed))
    assert len(data.initial_labels) == suited.initial_size == 50
    assert data.labels.shape == (3, suited.batch_size)
    assert data.class_names == ("héalthy", "sick")


def test_a_prepared_file_is_not_parsed_again(tmp_path, monkeypatch):
    path = write_csv(tmp_path / "rows.csv")
    asked = Config(
        dataset=str(path), label_column="class", cache_dir=str(tmp_path / "cache")
    )
    first = stream.load(stream.complete(asked))

    def fail(*_, **__):
        raise AssertionError("parsed again")

    monkeypatch.setattr(table, "load", fail)
    second = stream.load(stream.complete(asked))
    for one, other in zip(first[:6], second[:6], strict=True):
        np.testing.assert_array_equal(one, other)
    for changes in ({"drop_columns": ("size",)}, {"time_column": "when"}):
        with pytest.raises(AssertionError, match="parsed again"):
            stream.load(stream.complete(dataclasses.replace(asked, **changes)))


def test_faces_from_flags(tmp_path):
    """Also what was left out is said again when the images come from the cache."""
    image = pytest.importorskip("PIL.Image")
    for person, count in (("ann", 3), ("bob", 2), ("eve", 4)):
        folder = tmp_path / "data" / person
        folder.mkdir(parents=True)
        for number in range(count):
            colour = (10 * count, 50 * number, 7)
            image.new("RGB", (20, 30), colour).save(folder / f"{number}.png")
    broken = tmp_path / "data" / "eve" / "2.png"
    broken.write_bytes(b"no image")
    asked = Config(
        dataset="facescrub",
        data_dir=str(tmp_path / "data"),
        num_people=2,
        image_size=8,
        skip_bad_images=True,
        cache_dir=str(tmp_path / "cache"),
    )
    for _ in range(2):
        with pytest.warns(UserWarning, match="left out 1 of 7") as given:
            dataset = stream.read(stream.complete(asked))
        assert len(given) == 1
        assert dataset.class_names == ("ann", "eve")
        assert dataset.features.shape == (6, 8, 8, 3)
    strict = dataclasses.replace(asked, skip_bad_images=False)
    with pytest.raises(ValueError, match=str(broken)):
        stream.read(stream.complete(strict))
    larger = dataclasses.replace(strict, image_size=16)
    broken.unlink()
    assert stream.read(stream.complete(larger)).features.shape == (6, 16, 16, 3)


@pytest.mark.parametrize(
    ("dataset", "shape", "classes"),
    [("facescrub", (32, 32, 3), 12), ("unsw_nb15", None, 10)],
)
def test_raw_folders(data_dir, dataset, shape, classes, tmp_path):
    asked = Config(
        dataset=dataset, data_dir=str(data_dir), cache_dir=str(tmp_path / "cache")
    )
    first, second = (stream.load(stream.complete(asked)) for _ in range(2))
    assert len(list((tmp_path / "cache").iterdir())) == 1
    np.testing.assert_array_equal(first.features, second.features)
    assert first.num_classes == classes
    if shape:
        assert first.features.shape[2:] == shape
        assert first.features.max() <= 1
