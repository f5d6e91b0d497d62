"""Files of one's own: what becomes of their columns, and what is refused where."""

import csv
import datetime
import functools
import gzip
import io
import math
import sys
import zipfile

import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rad_jax.datasets import DataError, split, table

Y = {"label_column": "y"}


@pytest.fixture
def write(tmp_path):
    def write(text, name="rows.csv"):
        path = tmp_path / name
        data = text if isinstance(text, bytes) else text.encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write


def refused(path, *parts, **options):
    with pytest.raises(DataError) as error:
        table.load(path, **options)
    message = str(error.value)
    assert message.startswith(str(path))
    for part in parts:
        assert part in message
    return message


# -------------------------------------------------------------------------- columns


def test_columns_by_hand(write):
    text = """\
when,size,kind,y,id
2020-01-02,1.5,tcp, up ,a
2020-01-01T10:00:00Z,,udp,down,b
2021-01-01,2,?,,c
2019-01-01,-3e2, tcp,up,d
"""
    path = write(text)
    options = {"label_column": "y", "drop_columns": ["id"], "time_column": "when"}
    dataset = table.load(path, **options)
    assert dataset.name == "rows.csv"
    assert dataset.feature_names == ("size", "size is missing", "kind=tcp", "kind=udp")
    np.testing.assert_array_equal(
        dataset.features,
        [[-300, 0, 1, 0], [math.nan, 1, 0, 1], [1.5, 0, 1, 0], [2, 0, 0, 0]],
    )
    assert dataset.class_names == ("down", "up")
    assert dataset.labels.tolist() == [1, 0, 1, -1]
    assert dataset.missing
    zipped = table.load(write(text, "rows.csv.gz"), **options)
    np.testing.assert_array_equal(zipped.features, dataset.features)
    semicolons = table.load(write(text.replace(",", ";"), "semi.csv"), **options)
    np.testing.assert_array_equal(semicolons.features, dataset.features)


LINES = """\
t,x,y

3,"two
lines",a
1,b,

2,"c",b
2,d,c
"""


@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz"])
def test_rows_know_their_lines(write, name):
    path = write(LINES, name)
    options = Y | {"drop_columns": ["x"]}
    assert table.load(path, **options).source_row.tolist() == [3, 5, 7, 8]
    dataset = table.load(path, time_column="t", drop_columns=[], **Y)
    assert dataset.source_row.tolist() == [5, 7, 8, 3]
    assert dataset.source_row.dtype == np.int64
    assert dataset.labels.tolist() == [-1, 1, 2, 0]


def test_rows_without_a_header_know_their_lines(write):
    path = write("5,a\n\n4,b\n")
    assert table.load(path, label_column="2").source_row.tolist() == [1, 3]


def test_rows_of_parquet_know_their_index(tmp_path):
    path = tmp_path / "a.parquet"
    columns = {"t": [3, 1, 2], "x": [0, 1, 2], "y": ["a", "b", "a"]}
    pandas.DataFrame(columns).to_parquet(path)
    assert table.load(path, **Y, drop_columns=["t"]).source_row.tolist() == [0, 1, 2]
    assert table.load(path, **Y, time_column="t").source_row.tolist() == [1, 2, 0]


def test_another_column_of_classes(write):
    path = write("t,x,y,z,w\n2,0,a, b ,01\n1,0,b,?,2\n3,1,a,7,\n")
    read = functools.partial(table.column, path, argument="truth")
    assert read("z").tolist() == ["b", "", "7"], "in the order of the file"
    assert read("w").tolist() == ["1", "2", ""], "whole numbers"
    assert read("y").tolist() == ["a", "b", "a"]
    with pytest.raises(DataError, match=r"truth='no' is unknown; the columns are 't'"):
        read("no")
    with pytest.raises(DataError, match="there is no such file"):
        table.column("no.csv", "y", argument="truth")
    numbered = write("5,a,0.5\n4,b,1\n", "no_header.csv")
    options = {"argument": "truth", "has_header": False}
    assert table.column(numbered, "2", **options).tolist() == ["a", "b"]
    with pytest.raises(DataError, match=r"line 1, column '3': 0\.5, where the"):
        table.column(numbered, "3", **options)


def test_another_column_may_hold_one_value_only(tmp_path):
    path = tmp_path / "a.parquet"
    pandas.DataFrame({"x": [1, 2], "sure": [True, True]}).to_parquet(path)
    assert table.column(path, "sure", argument="c").tolist() == ["True", "True"]


CELL = st.one_of(
    st.none(), st.integers(-5, 5), st.floats(allow_nan=False, allow_infinity=False)
)
TEXT = st.sampled_from([None, "a", "b", 'say "no"', "x,y", "two\nlines", "é"])
ROWS = st.lists(
    st.tuples(CELL, TEXT, st.sampled_from([None, "u", "v", "w"])),
    min_size=3,
    max_size=20,
).filter(
    lambda rows: len({r[2] for r in rows} - {None}) > 1 and any(r[1] for r in rows)
)


@settings(max_examples=60)
@given(rows=ROWS, parquet=st.booleans())
def test_columns_agree_with_the_rule(tmp_path_factory, rows, parquet):
    folder = tmp_path_factory.mktemp("table")
    names = ("number", "text", "y")
    if parquet:
        path = folder / "a.parquet"
        columns = {n: [r[i] for r in rows] for i, n in enumerate(names)}
        columns["number"] = pandas.array(
            [math.nan if v is None else float(v) for v in columns["number"]]
        )
        pandas.DataFrame(columns).to_parquet(path)
    else:
        path, text = folder / "a.csv", io.StringIO(newline="")
        csv.writer(text).writerows([names, *rows])
        path.write_text(text.getvalue(), newline="")
    dataset = table.load(path, **Y)
    texts = sorted({row[1] for row in rows} - {None})
    classes = sorted({row[2] for row in rows} - {None})
    gaps = any(row[0] is None for row in rows)
    expected = [
        [
            math.nan if number is None else float(number),
            *([float(number is None)] if gaps else []),
            *(float(text == category) for category in texts),
        ]
        for number, text, _ in rows
    ]
    np.testing.assert_array_equal(dataset.features, expected)
    assert dataset.class_names == tuple(classes)
    assert dataset.missing == gaps
    assert dataset.labels.tolist() == [
        -1 if label is None else classes.index(label) for *_, label in rows
    ]
    assert len(dataset.feature_names) == len(expected[0])


def test_too_many_texts_that_look_like_numbers_are_told_from_others(write):
    amounts = [f"{i},5" for i in range(65)]
    texts = [f"user{i}" for i in range(65)]
    for values, hint in ((amounts, True), (texts, False)):
        rows = "".join(f"{value};{'ab'[i % 2]}\n" for i, value in enumerate(values))
        with pytest.raises(DataError, match="drop_columns") as caught:
            table.load(write("x;y\n" + rows), **Y)
        assert ("decimal point" in str(caught.value)) is hint


@pytest.mark.parametrize(
    "values", [("1,5", "2,25"), ("10%", "7 %"), ("$3", "$4.5"), ("1'000", "-2'000")]
)
def test_numbers_in_another_notation_are_announced(write, values):
    path = write("x;y\n{};a\n{};b\n".format(*values))
    with pytest.warns(UserWarning, match=r"column 'x': all 2 .*look like numbers"):
        dataset = table.load(path, **Y)
    assert dataset.feature_names == tuple(f"x={value}" for value in sorted(values))


@pytest.mark.parametrize(
    "values",
    [
        ("1,5", "tcp"),
        ("10.0.0.1", "10.0.0.2"),
        ("192.168.100.200", "192.168.100.201"),
        ("7 mm", "8"),
        ("-", "%"),
    ],
)
def test_other_texts_are_categories(write, values):
    dataset = table.load(write("x;y\n{};a\n{};b\n".format(*values)), **Y)
    assert dataset.features.tolist() in ([[1, 0], [0, 1]], [[0, 1], [1, 0]])


def test_a_file_without_header_has_numbers_for_names(write):
    dataset = table.load(
        write("5,2.5,b\n4,1.5,a\n3,0.5,\n"), label_column="3", time_column="1"
    )
    assert dataset.feature_names == ("2",)
    assert dataset.features.tolist() == [[0.5], [1.5], [2.5]]
    assert dataset.labels.tolist() == [-1, 0, 1]


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (["10", "9", ""], ("9", "10")),
        (["1.0", "0.0", ""], ("0", "1")),
        (["007", "10", "7"], ("7", "10")),
        (["10", "9", "b"], ("10", "9", "b")),
        (["True", "False", ""], ("False", "True")),
    ],
)
def test_class_names_are_sorted(write, labels, names):
    text = "".join(f"{x},{label}\n" for x, label in enumerate(labels))
    dataset = table.load(write("x,y\n" + text), **Y)
    assert dataset.class_names == names
    for label, k in zip(labels, dataset.labels, strict=True):
        if label:
            same = names[k] == label or float(names[k]) == float(label)
            assert same
        else:
            assert k == -1


def test_types_of_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    day = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    frame = pandas.DataFrame(
        {
            "whole": pandas.array([1, None, 3], "Int64"),
            "kind": pandas.Categorical(["b", None, "a"]),
            "flag": [True, False, True],
            "level": pandas.Categorical([3, 1, 3]),
            "t": [day + datetime.timedelta(days=d) for d in (2, 1, 0)],
            "y": pandas.array([True, None, False], "boolean"),
        }
    )
    frame.to_parquet(path)
    dataset = table.load(path, **Y, time_column="t")
    assert dataset.feature_names == (
        *("whole", "whole is missing", "kind=a", "kind=b", "flag", "level"),
    )
    np.testing.assert_array_equal(
        dataset.features,
        [[3, 0, 1, 0, 1, 3], [math.nan, 1, 0, 0, 0, 1], [1, 0, 0, 1, 1, 3]],
    )
    assert dataset.class_names == ("False", "True")
    assert dataset.labels.tolist() == [0, -1, 1]
    refused(path, "row 1, column 't'", "time_column", **Y)


def test_times_are_compared_whole(write):
    """Nanoseconds since 1970 do not fit into a float64; one time keeps its order."""
    base = 1_600_000_000_000_000_000
    lines = [f"{base + t},{i},{i % 2}" for i, t in enumerate([3, 1, 2, 1])]
    dataset = table.load(write("t,x,y\n" + "\n".join(lines)), **Y, time_column="t")
    assert dataset.features.ravel().tolist() == [1, 3, 2, 0]


def test_a_byte_order_mark_and_quotes(write):
    text = '\ufeffx, "the, class"\r\n1,"a ""b"""\r\n\r\n2, c\r\n'
    dataset = table.load(write(text), label_column="the, class")
    assert dataset.class_names == ('a "b"', "c")
    assert dataset.features.tolist() == [[1], [2]]


def test_missing_values_go_through_the_split(write):
    rng = np.random.default_rng(0)
    values = rng.normal(size=40)
    lines = [f"{v if i % 3 else ''},{i % 2}" for i, v in enumerate(values)]
    dataset = table.load(write("x,y\n" + "\n".join(lines)), **Y)
    sizes = {"initial_size": 12, "batch_size": 5, "num_batches": 2}
    data = split(dataset, **sizes, order="time", scaling="none")
    median = np.median([v for i, v in enumerate(values[:12]) if i % 3])
    filled = np.float32([v if i % 3 else median for i, v in enumerate(values)])
    np.testing.assert_array_equal(data.features.reshape(-1, 2)[:, 0], filled[12:22])


# --------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("text", "options", "parts"),
    [
        (
            "x,y\n1,a\n2,b\nmuch,a\n3,b\n",
            Y,
            ["line 4, column 'x': 'much'", "3 of the 4"],
        ),
        (
            'x,s,y\n1,"two\nlines",a\n\n2,,b\nmuch,,a\n3,,b\n',
            Y,
            ["line 6, column 'x': 'much', where a number is needed"],
        ),
        ("x,y\n1,a\n-inf,b\n", Y, ["line 3, column 'x': -inf", "finite number"]),
        ("x,y\n1,a\n2,b,3\n", Y, ["line 3: 3 columns, where line 1 has 2"]),
        ("x,y\n1,a\n2\n", Y, ["line 3: 1 columns, where line 1 has 2"]),
        ("", Y, ["is empty"]),
        ("\nx,y\n1,a\n", Y, ["line 1: is empty"]),
        ("x,y\n", Y, ["holds a header, but no rows"]),
        ("x,y\n1,a\n2,b\n", {}, ["label_column is not given", "'x', 'y'"]),
        (
            "x,y\n1,a\n2,b\n",
            {"label_column": "class"},
            ["label_column='class' is unknown; the columns are 'x', 'y'"],
        ),
        (
            "x,y\n1,a\n2,b\n",
            Y | {"drop_columns": ["z"]},
            ["drop_columns='z' is unknown; the columns are 'x', 'y'"],
        ),
        ("x,y\n1,a\n2,b\n", Y | {"time_column": "t"}, ["time_column='t' is unknown"]),
        ("x,y\n1,a\n2,b\n", Y | {"time_column": "y"}, ["'y' is the label_column"]),
        (
            "t,x,y\n1,2,a\n",
            Y | {"time_column": "t", "drop_columns": ["t"]},
            ["time_column='t' is in drop_columns"],
        ),
        ("x,y\n1,a\n2,b\n", Y | {"drop_columns": ["x"]}, ["no column is left"]),
        ("1,1\n2,2\n", Y, ["line 1: holds numbers, where a header is needed"]),
        (
            "x,z,y\n1,2,a\n2,3,b\n3,4,a\n",
            {"label_column": "3"},
            ["line 1, column '1': 'x'", "if this line is a header"],
        ),
        ("1,a\n2,b\n", {"label_column": "3"}, ["'3' is unknown", "'1', '2' (a number"]),
        ("x,x,y\n1,2,a\n", Y, ["line 1", "more than one column is called 'x'"]),
        (",x,y\n0,1,a\n1,2,b\n", Y, ["line 1: column 1 has no name", "drop_columns=1"]),
        ("x,y\n1,a\n2,a\n", Y, ["column 'y': number of classes 1 ('a'), where 2 to"]),
        ("x,y\n1,\n2,\n", Y, ["column 'y': number of classes 0, where 2 to"]),
        ("x,y\n1,0.5\n2,1\n", Y, ["line 2, column 'y': 0.5", "whole numbers"]),
        (
            "t,x,y\n1,2,a\n,2,b\n",
            Y | {"time_column": "t"},
            ["line 3, column 't': nothing, where a number is needed in every row"],
        ),
        (
            "t,x,y\n2020-01-01,2,a\nnoon,2,b\n",
            Y | {"time_column": "t"},
            ["line 3, column 't': 'noon', where a number or an ISO 8601 time"],
        ),
        (
            "x,y\n" + "".join(f"id{i},{i % 2}\n" for i in range(65)),
            Y,
            ["line 2, column 'x': 'id0'", "65 different texts, where 64 are allowed"],
        ),
        (b"x,y\n1,a\n\xff,b\n", Y, ["line 3: cannot be read"]),
        ('t,x,y\n"2,2,a\n1,2,b\n', Y, ["line 3: 1 columns, where line 1 has 3"]),
    ],
)
def test_what_is_wrong_is_located(write, text, options, parts):
    refused(write(text), *parts, **options)


def test_64_texts_are_allowed(write):
    text = "x,y\n" + "".join(f"id{i:02},{i % 2}\n" for i in range(64))
    np.testing.assert_array_equal(table.load(write(text), **Y).features, np.eye(64))


def test_a_truncated_file_is_refused_with_the_line(write):
    rng = np.random.default_rng(0)
    text = "x,y\n" + "".join(f"{v},{v > 0}\n" for v in rng.normal(size=2000))
    path = write(text, "a.csv.gz")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    message = refused(path, "cannot be read, the file is damaged", **Y)
    assert 500 < int(message.split("line ")[1].split(":")[0]) < 1500
    path.write_bytes(text.encode())
    refused(path, "line 1: cannot be read", **Y)


def test_files_of_other_kinds_are_refused(tmp_path, write):
    refused(tmp_path / "none.csv", "there is no such file", **Y)
    refused(write("x", "a.txt"), ".csv, .csv.gz, .parquet, .npz", **Y)
    refused(write("x,y\n", "a.parquet"), "cannot be read", "damaged", **Y)
    path = tmp_path / "b.parquet"
    frame = pandas.DataFrame({"x": [[1], [2]], "y": ["a", "b"]})
    frame.to_parquet(path)
    refused(path, "row 1, column 'x'", "a number or a text is needed", **Y)
    refused(path, "label_column='z' is unknown; the columns", label_column="z")
    path.write_bytes(path.read_bytes()[:-20])
    refused(path, "cannot be read", **Y)
    frame[:0].to_parquet(path)
    refused(path, "no rows", **Y)


def test_without_pandas(write, monkeypatch):
    path = write("x,y\n1,a\n2,b\n")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pandas is needed for tables: pip install"):
        table.load(path, **Y)


# ------------------------------------------------------------------------------- npz


def save(tmp_path, **arrays):
    path = tmp_path / "a.npz"
    np.savez(path, **arrays)
    return path


def test_npz_of_a_table(tmp_path):
    features = np.array([[1, 2], [np.nan, 4], [5, 6]], np.float32)
    path = save(tmp_path, features=features, labels=np.array([7, -1, 3]))
    dataset = table.load(path)
    assert dataset.features.dtype == np.float64
    np.testing.assert_array_equal(
        dataset.features, [[1, 2, 0], [np.nan, 4, 1], [5, 6, 0]]
    )
    assert dataset.feature_names == ("feature 1", "feature 2", "feature 1 is missing")
    assert dataset.class_names == ("3", "7")
    assert dataset.labels.tolist() == [1, -1, 0]


@pytest.mark.parametrize(
    ("labels", "class_names", "expected", "names"),
    [
        ([2.0, np.nan, 0.0], ["a", "b", "c"], [2, -1, 0], ("a", "b", "c")),
        (["b", "", "a"], None, [1, -1, 0], ("a", "b")),
        (["b", "", "a"], ["z", "b", "a"], [1, -1, 2], ("z", "b", "a")),
        ([True, False, True], None, [1, 0, 1], ("0", "1")),
    ],
)
def test_labels_of_an_npz(tmp_path, labels, class_names, expected, names):
    arrays = {"features": np.eye(3, dtype=np.int64), "labels": np.array(labels)}
    if class_names:
        arrays["class_names"] = np.array(class_names)
    dataset = table.load(save(tmp_path, **arrays))
    assert dataset.labels.tolist() == expected
    assert dataset.class_names == names


def test_npz_of_images(tmp_path):
    labels = np.array([0, 1, 1])
    colour = np.random.default_rng(0).integers(0, 256, (3, 4, 5, 3), dtype=np.uint8)
    dataset = table.load(save(tmp_path, features=colour, labels=labels))
    np.testing.assert_array_equal(dataset.features, colour)
    assert dataset.features.dtype == np.uint8
    grey = table.load(save(tmp_path, features=colour[..., 0] / 255, labels=labels))
    assert grey.features.shape == (3, 4, 5, 1)
    assert grey.features.dtype == np.float32


class Dangerous:
    def __reduce__(self):
        return sys.exit, ("it was run",)


@pytest.mark.parametrize(
    ("arrays", "parts"),
    [
        ({"labels": np.eye(2)}, ["labels has shape (2, 2)", "[2]"]),
        ({"labels": np.array([0, 1, 1])}, ["labels has shape (3,)", "[2]"]),
        ({"labels": np.array([0, 0.5])}, ["labels[1] is", "0.5", "a whole number"]),
        ({"labels": np.array([0, np.inf])}, ["labels[1] is inf", "-1 (no label) to"]),
        (
            {"labels": np.array([0, 2**64 - 1], np.uint64)},
            [f"labels[1] is {2**64 - 1}", "-1 (no label) to"],
        ),
        ({"labels": np.array([0, -2])}, ["labels[1]", "-2", "-1 (no label) to"]),
        ({"labels": np.array([1, 1])}, ["holds 1 classes, where 2 to"]),
        (
            {"labels": np.array([0, 2]), "class_names": np.array(["a", "b"])},
            ["labels[1] is", "-1 (no label) to 1"],
        ),
        (
            {"labels": np.array(["a", "c"]), "class_names": np.array(["a", "b"])},
            ["labels[1] is", "'c'", "one of class_names"],
        ),
        ({"class_names": np.array(["a"]), "labels": np.zeros(2)}, ["holds 1 classes"]),
        (
            {"class_names": np.arange(32_768).astype(str)},
            ["class_names holds 32768 classes, where 2 to 32767"],
        ),
        ({"class_names": np.eye(2)}, ["class_names has shape (2, 2)", "texts"]),
        ({"feature_names": np.array(["a"])}, ["feature_names holds 1 names", "2"]),
        ({"features": np.ones(2)}, ["features has shape (2,)", "[n, D]"]),
        ({"features": np.array([["a"], ["b"]])}, ["dtype <U1", "numbers [n, D]"]),
        ({"features": np.array([[np.inf], [0]])}, ["features[0, 0] is inf"]),
        (
            {"labels": np.array([Dangerous(), 1], object)},
            ["labels holds pickled objects, which are never loaded"],
        ),
    ],
)
def test_an_npz_is_refused(tmp_path, arrays, parts):
    good = {"features": np.eye(2), "labels": np.array([0, 1])}
    refused(save(tmp_path, **(good | arrays)), *parts)


def test_an_npz_without_features_or_labels_is_refused(tmp_path):
    path = save(tmp_path, features=np.eye(2), classes=np.array([0, 1]))
    refused(path, "holds no array 'labels'; it holds 'features', 'classes'")
    refused(save(tmp_path), "holds no array 'features'; it holds nothing")


def test_a_damaged_npz_is_refused(tmp_path):
    path = save(tmp_path, features=np.eye(2), labels=np.array([0, 1]))
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    refused(path, "cannot be read", "damaged")
    path.write_bytes(whole.replace(b"\x93NUMPY", b"\x93NUMPX"))
    refused(path, "cannot be read")
    np.save(tmp_path / "b.npy", np.eye(2))
    (tmp_path / "b.npy").rename(path)
    refused(path, "one array, not an .npz")
    refused(path, "are for tables", **Y)


NPY = (
    b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (2, 2), }"
    + 57 * b" "
    + b"\n"
)


@pytest.mark.parametrize(
    "member",
    [
        b"no array",
        NPY.replace(b"(2, 2), }", b"(2, 2    "),
        NPY.replace(b"(2, 2), }" + 11 * b" ", b"(9999999999999, 2)}" + b" "),
        NPY.replace(b"\x01\x00v", b"\x09\x00v"),
        NPY,
    ],
    ids=["bytes", "header", "shape", "version", "short"],
)
def test_members_of_an_npz_that_are_no_arrays_are_refused(tmp_path, member):
    path = tmp_path / "rows.npz"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("features.npy", member)
    assert "pickled" not in refused(path, "features")


def test_an_npz_that_zip_cannot_read_is_refused(tmp_path):
    path = save(tmp_path, features=np.eye(2), labels=np.array([0, 1]))
    whole = bytearray(path.read_bytes())
    central = whole.find(b"PK\x01\x02")
    for offset, value in ((8, 1), (10, 99)):  # encrypted; an unknown compression
        damaged = bytearray(whole)
        damaged[central + offset] = damaged[offset - 2] = value
        path.write_bytes(damaged)
        refused(path, "features cannot be read")


def test_numbers_that_float64_cannot_tell_apart_are_no_classes(write, tmp_path):
    refused(
        write(f"x,y\n1,2\n2,{2**53}\n3,{2**53 + 1}\n"),
        "line 3, column 'y'",
        "2^53",
        **Y,
    )
    path = tmp_path / "rows.parquet"
    pandas.DataFrame({"x": [1, 2], "y": [0.0, 1e300]}).to_parquet(path)
    refused(path, "row 2, column 'y'", "1e+300", **Y)
    load = table.load(write(f"x,y\n1,2\n2,{2**53 - 1}\n"), **Y)
    assert load.class_names == ("2", str(2**53 - 1))


def test_an_index_without_name_is_no_feature_by_accident(tmp_path):
    path, name = tmp_path / "rows.parquet", "__index_level_0__"
    frame = pandas.DataFrame({"x": [1, 2, 3], "y": ["a", "b", "a"]})
    frame.iloc[[2, 0, 1]].to_parquet(path)
    refused(path, name, "row numbers", "drop_columns", **Y)
    assert table.load(path, drop_columns=[name], **Y).feature_names == ("x",)
    assert table.load(path, time_column=name, **Y).feature_names == ("x",)


def test_a_damaged_parquet_file_is_named(tmp_path):
    path = tmp_path / "rows.parquet"
    pandas.DataFrame({"x": [1, 2, 3], "y": ["a", "b", "a"]}).to_parquet(path)
    whole = path.read_bytes()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    path.write_bytes(whole[:footer] + b"\xff" * (len(whole) - 8 - footer) + whole[-8:])
    refused(path, "damaged", **Y)


def test_the_time_that_is_no_number_is_named(write):
    text = "x,t,y\n1,2,a\n2,soon,b\n3,1,a\n"
    refused(write(text), "line 3, column 't'", "'soon'", time_column="t", **Y)
    text = "x,t,y\n1,2,a\n2,inf,b\n3,1,a\n"
    refused(write(text), "line 3, column 't'", ": inf,", time_column="t", **Y)


def test_a_home_that_is_not_there():
    path = "~nobody_of_this_name/rows.csv"
    refused(path, "no such file", **Y)
