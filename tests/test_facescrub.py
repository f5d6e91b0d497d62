"""Folders of images by person: sizes, modes, choice of people, bad images."""

import sys
import warnings

import numpy as np
import pytest
from PIL import Image

from rad_jax.datasets import DataError, facescrub

RED, GREEN, BLUE = (250, 10, 20), (10, 240, 30), (5, 15, 245)


def picture(path, color=RED, size=(8, 8), mode="RGB", **save):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).convert(mode).save(path, **save)
    return path


@pytest.fixture
def folder(tmp_path):
    """Ann has 1 image, Bob 3, Cyd 2, Dan 3."""
    for name, number in (("Dan", 3), ("Cyd", 2), ("Ann", 1), ("Bob", 3)):
        for i in range(number):
            picture(tmp_path / name / f"{i}.png", (ord(name[0]), i, 0))
    (tmp_path / "notes.txt").write_text("no person")
    (tmp_path / "Ann" / "Thumbs.db").write_bytes(b"no image")
    (tmp_path / "Nobody").mkdir()
    return tmp_path


def test_rows_by_person_then_by_file(folder):
    dataset = facescrub.load(folder, image_size=8)
    assert dataset.class_names == ("Ann", "Bob", "Cyd", "Dan")
    assert dataset.labels.tolist() == [0, 1, 1, 1, 2, 2, 3, 3, 3]
    assert dataset.features.shape == (9, 8, 8, 3)
    assert dataset.features.dtype == np.uint8
    assert dataset.feature_names == ()
    assert dataset.features[:, 7, 0, 0].tolist() == [65, *[66] * 3, 67, 67, *[68] * 3]
    assert dataset.features[:, 0, 7, 1].tolist() == [0, 0, 1, 2, 0, 1, 0, 1, 2]


@pytest.mark.parametrize(
    ("number", "names"),
    [(1, ["Bob"]), (2, ["Bob", "Dan"]), (3, ["Bob", "Cyd", "Dan"])],
)
def test_the_people_with_the_most_images(folder, number, names):
    dataset = facescrub.load(folder, 4, num_people=number)
    assert dataset.class_names == tuple(names)
    assert set(dataset.labels.tolist()) == set(range(number))
    assert [p.parent.name for p in facescrub.files(folder, number)] == [
        names[label] for label in dataset.labels
    ]


@pytest.mark.parametrize("size", [(128, 128), (40, 100), (100, 40), (1, 1), (31, 33)])
@pytest.mark.parametrize("image_size", [1, 32])
def test_any_size_becomes_square(tmp_path, size, image_size):
    picture(tmp_path / "Ann" / "a.png", GREEN, size)
    features = facescrub.load(tmp_path, image_size).features
    np.testing.assert_array_equal(
        features, np.broadcast_to(GREEN, (1, image_size, image_size, 3))
    )


def test_the_middle_is_kept(tmp_path):
    strip = np.zeros((10, 30, 3), np.uint8)
    strip[:, :10], strip[:, 10:20], strip[:, 20:] = RED, GREEN, BLUE
    (tmp_path / "Ann").mkdir()
    Image.fromarray(strip).save(tmp_path / "Ann" / "wide.png")
    Image.fromarray(strip.swapaxes(0, 1)).save(tmp_path / "Ann" / "tall.png")
    features = facescrub.load(tmp_path, 10).features
    np.testing.assert_array_equal(features, np.broadcast_to(GREEN, (2, 10, 10, 3)))


def test_rows_and_columns_are_not_exchanged(tmp_path):
    values = np.random.default_rng(0).integers(0, 256, (6, 6, 3), np.uint8)
    (tmp_path / "Ann").mkdir()
    Image.fromarray(values).save(tmp_path / "Ann" / "a.png")
    np.testing.assert_array_equal(facescrub.load(tmp_path, 6).features[0], values)


def test_fine_patterns_turn_grey(tmp_path):
    board = (np.indices((64, 64)).sum(axis=0) % 2 * 255).astype(np.uint8)
    (tmp_path / "Ann").mkdir()
    Image.fromarray(board).save(tmp_path / "Ann" / "a.png")
    features = facescrub.load(tmp_path, 8).features.astype(int)
    assert abs(features[:, 1:-1, 1:-1] - 127).max() <= 2


@pytest.mark.parametrize(
    ("mode", "suffix"),
    [("L", "png"), ("P", "gif"), ("RGBA", "png"), ("CMYK", "jpg"), ("1", "bmp")],
)
def test_any_mode_becomes_three_colours(tmp_path, mode, suffix):
    picture(tmp_path / "Ann" / f"a.{suffix.upper()}", (255, 255, 255), (9, 9), mode)
    features = facescrub.load(tmp_path, 9).features
    assert features.shape == (1, 9, 9, 3)
    assert features.min() >= 250


def test_a_palette_with_transparency(tmp_path):
    picture(tmp_path / "Ann" / "a.png", RED, mode="P", transparency=b"\x00" * 256)
    assert facescrub.load(tmp_path, 8).features.shape == (1, 8, 8, 3)


def spoil(path, how):
    data = path.read_bytes()
    path.write_bytes(
        {
            "truncated": data[: len(data) // 2],
            "a web page": b"<html>gone</html>",
            "empty": b"",
        }[how]
    )


@pytest.mark.parametrize("how", ["truncated", "a web page", "empty"])
@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_a_bad_image_is_named_or_skipped(tmp_path, how, suffix):
    rng = np.random.default_rng(0)
    for name in ("a", "b", "c"):
        path = picture(tmp_path / "Ann" / f"{name}.{suffix}")
        Image.fromarray(rng.integers(0, 256, (40, 40, 3), np.uint8)).save(path)
    picture(tmp_path / "Bob" / f"a.{suffix}", BLUE)
    bad = tmp_path / "Ann" / f"b.{suffix}"
    whole = facescrub.load(tmp_path, 16)
    spoil(bad, how)
    with pytest.raises(DataError, match="cannot be decoded as an image") as error:
        facescrub.load(tmp_path, 16)
    assert str(bad) in str(error.value)
    with pytest.warns(UserWarning, match=r"left out 1 of 4 images .*the first is") as w:
        rest = facescrub.load(tmp_path, 16, skip_bad_images=True)
    assert str(bad) in str(w[0].message)
    np.testing.assert_array_equal(rest.features, whole.features[[0, 2, 3]])
    assert rest.labels.tolist() == [0, 0, 1]


def test_only_bad_images_are_refused_even_if_skipped(tmp_path):
    spoil(picture(tmp_path / "Ann" / "a.png"), "empty")
    with pytest.raises(
        DataError, match=r"1 of 1 images cannot be decoded.*none is left"
    ):
        facescrub.load(tmp_path, skip_bad_images=True)


def test_good_images_make_no_warning_if_skipping(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(facescrub.load(folder, 4, skip_bad_images=True).labels) == 9


def test_the_parent_folder_will_do(tmp_path):
    picture(tmp_path / "facescrub_people" / "Ann" / "a.jpg")
    (tmp_path / "other").mkdir()
    assert facescrub.load(tmp_path, 4).class_names == ("Ann",)
    picture(tmp_path / "facescrub" / "Bob" / "a.jpg")
    with pytest.raises(
        DataError, match="2 folders of people, facescrub, facescrub_peo"
    ):
        facescrub.load(tmp_path, 4)


def test_nothing_in_the_folder_says_what_was_looked_for(tmp_path):
    picture(tmp_path / "loose.jpg")
    (tmp_path / "facescrub").mkdir()
    with pytest.raises(DataError) as error:
        facescrub.load(tmp_path)
    for part in ("<person>/<image>", str(tmp_path / "facescrub"), ".jpg"):
        assert part in str(error.value)
    with pytest.raises(DataError, match="no people's folders"):
        facescrub.load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"image_size": 0}, "image_size=0 must be at least 1"),
        ({"num_people": 0}, "num_people=0 must be at least 1"),
        ({"num_people": 5}, "num_people=5, but .* holds images of 4 people"),
    ],
)
def test_what_cannot_be_is_refused(folder, asked, message):
    with pytest.raises(ValueError, match=message):
        facescrub.load(folder, **asked)


def test_without_pillow_it_says_what_to_install(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"pip install 'rad-jax\[datasets\]'"):
        facescrub.load(folder)


def test_the_published_images(data_dir):
    if not (data_dir / "facescrub12").is_dir():
        pytest.skip("no facescrub12 in the folder RAD_JAX_DATA")
    dataset = facescrub.load(data_dir, image_size=32)
    counts = np.bincount(dataset.labels)
    assert dataset.features.shape == (1808, 32, 32, 3)
    assert (len(counts), counts.min(), counts.max()) == (12, 103, 193)
    assert (dataset.features.std(axis=(1, 2, 3)) > 5).all()
