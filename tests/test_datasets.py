"""Loaders against plain-Python rules, what they refuse, scaling and splitting."""

import gzip
import math
import os
import pathlib
import sys
import tempfile
from typing import NamedTuple

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from rad_jax.datasets import (
    DataError,
    Dataset,
    Standardizer,
    digits,
    google_cluster,
    split,
)
from rad_jax.datasets.duplicates import first_places
from rad_jax.datasets.scaling import fit, quantile

PART = "task_events/part-00000-of-00500.csv.gz"
AFTER_END = 2**63 - 1
DAY = 86_400 * 10**6
START = 600 * 10**6
SUBMIT, SCHEDULE, EVICT, FAIL, FINISH, KILL = range(6)


# ---------------------------------------------------------------- google cluster


class Event(NamedTuple):
    """One line of a task_events file, each field as text or number, '' if missing."""

    time: object
    job: object
    index: object
    event: object
    user: object = "ann"
    scheduling_class: object = 1
    priority: object = 4
    cpu: object = 0.25
    memory: object = 0.5
    disk: object = 0.125
    different: object = 1

    def line(self):
        fields = [self.time, "", self.job, self.index, "", *self[3:]]
        return ",".join(str(field) for field in fields)


#: A task that is submitted and finishes.
GOOD = [Event(START, 1, 0, SUBMIT), Event(START + 1, 1, 0, FINISH)]


def write(folder, text):
    path = pathlib.Path(folder, PART)
    path.parent.mkdir(parents=True)
    data = text if isinstance(text, bytes) else gzip.compress(text.encode())
    path.write_bytes(data)
    return path


def load(events):
    with tempfile.TemporaryDirectory() as folder:
        write(folder, "".join(event.line() + "\n" for event in events))
        return google_cluster.load(folder)


def oracle(events):
    """The rule of `google_cluster.load`, row by row: features and labels."""
    events = sorted(events, key=lambda e: e.time)  # stable: ties as in the file
    latest, label = {}, {}
    for place, event in enumerate(events):
        task = (event.job, event.index)
        if event.event == SUBMIT:
            latest[task] = place
        elif event.event in (EVICT, FAIL, FINISH, KILL) and task in latest:
            label.setdefault(latest[task], event.event - EVICT)
    features = []
    for place in sorted(label):
        row = events[place]
        known = row.time not in (0, AFTER_END)
        feature = [float(value or 0) for value in row[5:]]
        feature += [math.log1p(row.index), row.time % DAY / DAY if known else 0.0]
        for same in (
            lambda e, row=row: e.job == row.job,
            lambda e, row=row: row.user != "" and e.user == row.user,
            lambda e, row=row: (e.job, e.index) == (row.job, row.index),
        ):
            for kind in range(6):
                feature.append(
                    math.log1p(
                        sum(
                            e.time < row.time and e.event == kind and same(e)
                            for e in events
                        )
                    )
                )
        features.append(feature)
    return np.array(features), np.array([label[place] for place in sorted(label)])


def counts(dataset, row):
    """The counts of a row: [job, user, task] by [event type]."""
    return np.expm1(dataset.features[row, 8:]).round(9).reshape(3, 6).tolist()


def test_google_cluster_by_hand():
    hour = START + 3600 * 10**6
    big = 6_252_020_683  # job IDs exceed 32 bits
    dataset = load(
        [
            Event(0, big, 0, SUBMIT),
            Event(0, big, 3, SUBMIT, cpu="", memory="", disk="", different=""),
            Event(0, big, 3, SCHEDULE),
            Event(START, big, 3, FAIL),
            Event(START, 7, 0, SUBMIT, user="bob"),  # finishes after the end
            Event(hour, big, 3, SUBMIT, scheduling_class=2, different=0),
            Event(hour + 1, big, 3, KILL),
            Event(hour + 2, big, 3, SUBMIT),  # still runs: no row
            Event(hour + 2, 8, 1, EVICT),  # submitted before the file: no row
            Event(AFTER_END, big, 0, EVICT),
            Event(AFTER_END, 7, 0, FINISH),
        ]
    )
    assert dataset.class_names == ("evict", "fail", "finish", "kill")
    assert dataset.labels.tolist() == [0, 1, 2, 3]
    assert dataset.labels.dtype == np.int32
    assert dataset.features[:, :6].tolist() == [
        [1, 4, 0.25, 0.5, 0.125, 1],
        [1, 4, 0, 0, 0, 0],
        [1, 4, 0.25, 0.5, 0.125, 1],
        [2, 4, 0.25, 0.5, 0.125, 0],
    ]
    np.testing.assert_allclose(dataset.features[:, 6], np.log([1, 4, 1, 4]))
    np.testing.assert_allclose(
        dataset.features[:, 7], [0, 0, 600 / 86_400, 4200 / 86_400]
    )
    nothing = [0.0] * 6
    assert counts(dataset, 0) == counts(dataset, 1) == [nothing] * 3
    assert counts(dataset, 2) == [nothing] * 3  # another job, another user
    assert counts(dataset, 3) == [
        [2, 1, 0, 1, 0, 0],
        [2, 1, 0, 1, 0, 0],
        [1, 1, 0, 1, 0, 0],
    ]
    assert len(dataset.feature_names) == dataset.features.shape[1] == 26
    assert dataset.feature_names[8:10] == ("log_job_submit", "log_job_schedule")
    assert dataset.feature_names[-1] == "log_task_kill"


def test_what_came_after_the_end_has_no_time_of_day():
    lines = [*GOOD, *(line._replace(time=AFTER_END) for line in GOOD)]
    dataset = load(lines)
    np.testing.assert_allclose(dataset.features[:, 7], [600 / 86_400, 0])
    assert counts(dataset, 1) == [[1, 0, 0, 0, 1, 0]] * 3


def test_simultaneous_events_are_not_counted():
    before = [Event(START, 1, 0, kind) for kind in (SUBMIT, SCHEDULE, FAIL)]
    again = [Event(START, 1, 0, SUBMIT), Event(START + 5, 1, 0, FINISH)]
    assert counts(load(before + again), 1) == [[0.0] * 6] * 3
    later = [again[0]._replace(time=START + 1), again[1]]
    assert counts(load(before + later), 1) == [[1, 1, 0, 1, 0, 0]] * 3


def test_a_missing_user_is_nobody():
    lines = [
        Event(START + i, i, 0, kind, user="")
        for i in range(2)
        for kind in (SUBMIT, FINISH)
    ]
    assert counts(load(lines), 1) == [[0.0] * 6] * 3


def test_the_first_of_two_final_events_counts():
    lines = [Event(START + i, 1, 0, kind) for i, kind in enumerate([0, 1, 5, 2])]
    assert load(lines).labels.tolist() == [KILL - EVICT]


def test_lines_out_of_order_are_sorted_by_time():
    lines = [Event(START + i, i // 2, 0, [SUBMIT, FINISH][i % 2]) for i in range(8)]
    reversed_lines = load(lines[::-1])
    np.testing.assert_array_equal(reversed_lines.features, load(lines).features)


TIMES = (0, START, START + 1, START + 2, DAY - 1, DAY, 3 * DAY + 7, AFTER_END)
EVENT = st.builds(
    Event,
    time=st.sampled_from(TIMES),
    job=st.sampled_from([3, 6_252_020_683]),
    index=st.sampled_from([0, 1, 20_009]),
    event=st.sampled_from([*range(6), 0, 0, 4, 5, 6, 7, 8]),
    user=st.sampled_from(["", "ann", "bob"]),
    scheduling_class=st.sampled_from(["", 0, 3]),
    priority=st.sampled_from([0, 11]),
    cpu=st.sampled_from(["", 0.015625, "2.5e-01"]),
    memory=st.sampled_from(["", 0.5]),
    disk=st.sampled_from(["", 0.0004244]),
    different=st.sampled_from(["", 0, 1]),
)
CHECK = settings(max_examples=60, deadline=None, derandomize=True, database=None)


@CHECK
@given(st.lists(EVENT, min_size=1, max_size=40))
def test_google_cluster_agrees_with_the_rule(events):
    features, labels = oracle(events)
    if not len(labels):
        with pytest.raises(DataError, match="none of the"):
            load(events)
        return
    dataset = load(events)
    np.testing.assert_array_equal(dataset.labels, labels)
    np.testing.assert_allclose(dataset.features, features, rtol=1e-12)


@CHECK
@given(
    submission=EVENT.map(lambda e: e._replace(event=SUBMIT, memory=0.777)),
    past=st.lists(EVENT, max_size=20),
    futures=st.lists(st.lists(EVENT, max_size=20), min_size=2, max_size=2),
    data=st.data(),
)
def test_what_is_not_earlier_has_no_part(submission, past, futures, data):
    """Altered, added, deleted events from the submission's time on: same bits."""
    past = [e for e in past if e.time < submission.time]
    rows = []
    for future in futures:
        later = [e for e in future if e.time >= submission.time]
        events = data.draw(st.permutations(past + later))
        place = data.draw(st.integers(0, len(events)))
        # Its end at once after it, so that it is a row whatever the others are.
        events[place:place] = [submission, submission._replace(event=FINISH)]
        dataset = load(events)
        (row,) = np.flatnonzero(dataset.features[:, 3] == 0.777)
        assert dataset.labels[row] == FINISH - EVICT
        rows.append(dataset.features[row].tobytes())
    assert rows[0] == rows[1]


@pytest.mark.parametrize(
    ("change", "column", "value"),
    [
        ({"time": "noon"}, "time", "noon"),
        ({"time": -1}, "time", "-1"),
        ({"time": 2**63}, "time", str(2**63)),
        ({"job": "1.5"}, "job ID", "1.5"),
        ({"index": ""}, "task index", ""),
        ({"event": 9}, "event type", "9"),
        ({"event": "submit"}, "event type", "submit"),
        ({"scheduling_class": "x"}, "scheduling class", "x"),
        ({"priority": ""}, "priority", ""),
        ({"cpu": "much"}, "CPU request", "much"),
        ({"memory": "nan"}, "memory request", "nan"),
        ({"disk": "inf"}, "disk space request", "inf"),
        ({"different": 2}, "different machines restriction", "2"),
    ],
)
def test_a_bad_value_is_located(tmp_path, change, column, value):
    lines = [*GOOD, GOOD[0]._replace(**change), GOOD[1]]
    path = write(tmp_path, "".join(event.line() + "\n" for event in lines))
    with pytest.raises(DataError) as error:
        google_cluster.load(tmp_path)
    assert f"{path}, line 3, column {column!r}: {value!r}" in str(error.value)
    if column == "event type":
        assert "0..8" in str(error.value)
        assert "update_running" in str(error.value)


def test_lines_are_counted_over_the_whole_file(tmp_path):
    good = GOOD[0].line() + "\n"
    write(tmp_path, good * 50_001 + good.replace(",4,", ",four,", 1))
    with pytest.raises(DataError, match=r"line 50002, column 'priority': 'four'"):
        google_cluster.load(tmp_path)


@pytest.mark.parametrize("line", ["1,2,3", GOOD[0].line() + ",1", ""])
def test_a_wrong_number_of_columns_is_located(tmp_path, line):
    write(tmp_path, f"{GOOD[0].line()}\n{line}\n{GOOD[1].line()}\n")
    width = len(line.split(",")) if line else 0
    with pytest.raises(DataError, match=rf"line 2: {width} columns, where 13 .*user"):
        google_cluster.load(tmp_path)


def test_no_trace_in_the_folder_says_what_was_looked_for(tmp_path):
    with pytest.raises(DataError) as error:
        google_cluster.load(tmp_path)
    message = str(error.value)
    assert str(tmp_path / PART) in message
    assert str(tmp_path / "google_cluster_2011" / PART) in message


def test_the_parent_folder_will_do(tmp_path):
    write(tmp_path / "google_cluster_2011", "\n".join(e.line() for e in GOOD))
    assert google_cluster.load(str(tmp_path)).labels.tolist() == [2]


@pytest.mark.parametrize("text", ["", b""])
def test_an_empty_file_is_refused(tmp_path, text):
    write(tmp_path, text)
    with pytest.raises(DataError, match=r"csv\.gz: is empty"):
        google_cluster.load(tmp_path)


def test_a_truncated_file_is_refused_with_the_line(tmp_path):
    rng = np.random.default_rng(0)
    times = np.sort(rng.integers(0, 10**12, 2000))
    text = "".join(GOOD[0]._replace(time=time).line() + "\n" for time in times)
    whole = gzip.compress(text.encode())
    path = write(tmp_path, whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"csv\.gz, line \d+: cannot be read") as error:
        google_cluster.load(tmp_path)
    line = int(str(error.value).split("line ")[1].split(":")[0])
    assert 500 < line < 1500
    damaged = bytearray(whole)
    damaged[-8:-4] = b"\0\0\0\0"  # the checksum
    path.write_bytes(damaged)
    with pytest.raises(DataError, match=r"line \d+: cannot be read.*CRC"):
        google_cluster.load(tmp_path)


def test_a_file_that_is_no_gzip_is_refused(tmp_path):
    write(tmp_path, GOOD[0].line().encode())
    with pytest.raises(DataError, match=r"csv\.gz, line 1: cannot be read"):
        google_cluster.load(tmp_path)


def test_the_published_trace():
    data_dir = os.environ.get("RAD_JAX_DATA")
    if not data_dir:
        pytest.skip("RAD_JAX_DATA does not name the folder of real data")
    if not pathlib.Path(data_dir, "google_cluster_2011", PART).is_file():
        pytest.skip("no google_cluster_2011 in the folder RAD_JAX_DATA")
    dataset = google_cluster.load(data_dir)
    assert dataset.features.shape == (58_661, 26)
    assert np.bincount(dataset.labels).tolist() == [4_338, 581, 43_237, 10_505]
    assert np.isfinite(dataset.features).all()
    time_of_day = dataset.features[:, dataset.feature_names.index("time_of_day")]
    assert (np.diff(time_of_day) >= 0).all()  # less than a day, in order
    assert (time_of_day == 0).sum() == 9_536
    assert not dataset.features[time_of_day == 0, 8:].any()  # nothing before zero
    requests = dataset.features[:, 2:5]
    assert (requests == 0).all(axis=1).sum() >= 4
    assert requests.max() < 1


# ------------------------------------------------------------- digits and Dataset


def test_digits():
    dataset = digits.load()
    assert dataset.features.shape == (1797, 64)
    assert (dataset.features.min(), dataset.features.max()) == (0, 16)
    assert dataset.class_names == tuple("0123456789")
    assert set(dataset.labels.tolist()) == set(range(10))


def test_digits_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ImportError, match=r"pip install 'rad-jax\[experiments\]'"):
        digits.load()


def make(rows=100, width=3, classes=2, **changes):
    rng = np.random.default_rng(1)
    fields = {
        "name": "made",
        "features": rng.normal(size=(rows, width)),
        "labels": (np.arange(rows) % classes).astype(np.int32),
        "class_names": tuple(f"class {k}" for k in range(classes)),
        "feature_names": tuple(f"feature {d}" for d in range(width)),
    }
    return Dataset(**(fields | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": [[1.0]]}, "features is a list"),
        ({"features": np.ones((100, 3), np.float16)}, "dtype float16; .*float64"),
        ({"features": np.ones((100, 3), np.uint8)}, "dtype uint8; .*float64"),
        ({"features": np.ones((100, 2, 2, 3))}, "dtype float64; .*images .*uint8"),
        ({"features": np.ones(100)}, r"features has shape \(100,\)"),
        ({"features": np.ones((100, 0))}, "at least one row and one column"),
        ({"features": np.full((100, 3), np.inf)}, "row 0, column 0 .* is inf"),
        ({"features": np.full((100, 3), np.nan)}, "row 0, column 0 .* is nan"),
        (
            {"features": np.full((100, 3), np.inf), "missing": True},
            "row 0, column 0 .* is inf",
        ),
        ({"labels": np.zeros(100, np.int64)}, "labels .*int64.*int32"),
        ({"labels": np.zeros(99, np.int32)}, r"labels has shape \(99,\).*\(100,\)"),
        ({"labels": np.full(100, 2, np.int32)}, r"labels run from 2 to 2;.*0\.\.1"),
        ({"labels": np.full(100, -2, np.int32)}, "run from -2 to -2; .*-1 for no"),
        ({"labels": np.full(100, -1, np.int32)}, "none of the 100 rows has a label"),
        ({"class_names": ["a", "b"]}, "class_names is .* tuple of str"),
        ({"class_names": ("a", "a")}, "class_names is .* no name twice"),
        ({"class_names": ()}, "at least one name"),
        ({"feature_names": ("a", "b")}, "feature_names holds 2 names.* 3 columns"),
        ({"source_row": list(range(100))}, "source_row is a list; None or distinct"),
        ({"source_row": np.arange(100, dtype=np.int32)}, "source_row .*int32.*int64"),
        ({"source_row": np.arange(99)}, r"source_row has shape \(99,\)"),
        ({"source_row": np.zeros(100, np.int64)}, "source_row holds .* a number twice"),
        ({"source_row": np.arange(-1, 99)}, "source_row holds negative numbers"),
        ({"scaling": "ranks"}, "scaling is .ranks.; .* standard, log, quantile"),
    ],
)
def test_a_dataset_checks_itself(changes, message):
    with pytest.raises(DataError, match=message):
        make(**changes)


@pytest.mark.parametrize(
    ("features", "changes", "message"),
    [
        (
            np.ones((100, 2, 2, 3), np.uint8),
            {"feature_names": ("a",)},
            r"\(\) is needed",
        ),
        (np.ones((100, 2, 0, 3), np.uint8), {}, "at least one row and one column"),
        (np.ones((100, 2, 2, 3), np.float32), {"missing": True}, "not for images"),
        (
            np.full((100, 2, 2, 1), np.nan, np.float32),
            {},
            r"row 0, pixel \(0, 0, 0\) is nan",
        ),
    ],
)
def test_images_are_checked(features, changes, message):
    with pytest.raises(DataError, match=message):
        make(**({"features": features, "feature_names": ()} | changes))


def test_what_a_dataset_may_hold():
    images = make(features=np.zeros((100, 4, 5, 3), np.uint8), feature_names=())
    assert images.is_images
    assert not make(features=np.ones((100, 3), np.float32)).is_images
    assert make(labels=np.arange(-1, 99, dtype=np.int32) % 3 - 1).num_classes == 2
    assert make(features=np.full((100, 3), np.nan), missing=True).missing


def test_a_class_that_does_not_occur_counts():
    assert make(class_names=("a", "b", "never")).num_classes == 3


# -------------------------------------------------------------------------- scaling


def test_standardizer_gives_zero_mean_and_unit_variance():
    features = np.random.default_rng(0).normal(5e3, 20, size=(400, 3))
    scaled = Standardizer.fit(features).transform(features)
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled.mean(axis=0, dtype=np.float64), 0, atol=1e-6)
    np.testing.assert_allclose(scaled.std(axis=0, dtype=np.float64), 1, rtol=1e-6)


def test_standardizer_scales_nearly_constant_columns_by_one():
    noise = np.random.default_rng(0).normal(size=200)
    rare = np.zeros(200)
    rare[:4] = 1, 2, 1, 1
    often = np.where(np.arange(200) < 5, 1.0, 0.0)
    columns = {
        "constant": np.full(200, 3.0),
        "zero": np.zeros(200),
        "rounding": 1e9 + 1e-2 * noise,
        "four rows differ": rare,
        "rare and great": 1e6 * rare,
        "five rows differ": often,
        "small but varied": 1e-9 * noise,
    }
    scaling = Standardizer.fit(np.stack(list(columns.values()), axis=1))
    assert scaling.scale[:4].tolist() == [1, 1, 1, 1]
    np.testing.assert_allclose(
        scaling.scale[4:],
        [1e6 * rare.std(), often.std(), 1e-9 * noise.std()],
        rtol=1e-6,
    )


def test_digits_with_few_clean_rows_do_not_explode():
    plain, robust = [], []
    for seed in range(5):
        data = split(
            digits.load(), initial_size=200, batch_size=50, num_batches=24, seed=seed
        )
        robust.append(np.abs(data.features).max())
        raw = split(
            digits.load(),
            initial_size=200,
            batch_size=50,
            num_batches=24,
            seed=seed,
            scaling="none",
        )
        std = raw.initial_features.std(axis=0)
        centred = raw.features - raw.initial_features.mean(axis=0)
        plain.append(np.abs(centred / np.where(std == 0, 1, std)).max())
    assert max(robust) < 40 < max(plain)


def test_standardizer_scales_before_it_rounds():
    seconds = 1.5e9 + np.arange(200.0)  # epochs; a float32 there is a multiple of 128
    features = seconds[:, None]
    assert len(np.unique(features.astype(np.float32))) < 4
    assert len(np.unique(Standardizer.fit(features).transform(features))) == 200


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (np.ones(3), r"shape \(3,\)"),
        (np.ones((0, 3)), r"shape \(0, 3\)"),
        (np.array([[1.0, np.nan]]), r"column 1 \(from 0\) holds nan"),
        (np.array([[1e300], [-1e300]]), "mean and standard deviation must be finite"),
    ],
)
def test_standardizer_refuses_to_fit(features, message):
    with pytest.raises(DataError, match=message):
        Standardizer.fit(features)


def test_standardizer_refuses_to_transform():
    scaling = Standardizer.fit(np.random.default_rng(0).normal(size=(50, 3)))
    with pytest.raises(DataError, match=r"shape \(5, 2\).*3 columns"):
        scaling.transform(np.ones((5, 2)))
    with pytest.raises(DataError, match=r"float32.*column 2 \(from 0\) holds inf"):
        scaling.transform(np.array([[0, 0, 1e200]]))
    assert scaling.transform(np.ones((2, 5, 3))).shape == (2, 5, 3)


# ---------------------------------------------------------------------------- split


def numbered(rows=100):
    """A data set whose only feature is the number of the row, its label its parity."""
    return make(rows, 1, features=np.arange(rows, dtype=np.float64)[:, None])


def row_numbers(data):
    parts = (data.initial_features, data.features, data.test_features)
    return [part.ravel().astype(int).tolist() for part in parts]


def test_split_in_the_order_of_arrival():
    data = split(
        numbered(),
        initial_size=10,
        batch_size=20,
        num_batches=3,
        order="time",
        scaling="none",
    )
    assert row_numbers(data) == [
        list(range(10)),
        list(range(10, 70)),
        list(range(70, 100)),
    ]
    assert data.features.shape == (3, 20, 1)
    assert data.labels.shape == (3, 20)
    labels = (data.initial_labels, data.labels, data.test_labels)
    for part, numbers in zip(labels, row_numbers(data), strict=True):
        assert part.dtype == np.int32
        assert (part.ravel() == np.array(numbers) % 2).all()
    assert data.features.dtype == data.test_features.dtype == np.float32
    assert (data.num_classes, data.class_names) == (2, ("class 0", "class 1"))


def test_split_shuffled_is_the_permutation_of_the_seed():
    order = np.random.default_rng(5).permutation(100).tolist()
    sizes = {"initial_size": 10, "batch_size": 7, "num_batches": 4, "test_size": 30}
    data = split(numbered(), **sizes, seed=5, scaling="none")
    assert row_numbers(data) == [order[:10], order[10:38], order[38:68]]
    other = split(numbered(), **sizes, seed=6, scaling="none")
    assert row_numbers(other) != row_numbers(data)


def test_split_scales_by_the_clean_rows_alone():
    dataset = make()
    sizes = {"initial_size": 20, "batch_size": 10, "num_batches": 5}
    data = split(dataset, **sizes, order="time")
    scaling = Standardizer.fit(dataset.features[:20])
    expected = scaling.transform(dataset.features)
    np.testing.assert_array_equal(data.initial_features, expected[:20])
    np.testing.assert_array_equal(data.features.reshape(50, 3), expected[20:70])
    np.testing.assert_array_equal(data.test_features, expected[70:])


@pytest.mark.parametrize(
    ("rows", "asked", "batches", "test_rows"),
    [
        (100, {"num_batches": 3}, 3, 60),
        (100, {"num_batches": 3, "test_size": 5}, 3, 5),
        (100, {"num_batches": None, "test_size": 5}, 8, 5),
        (100, {"num_batches": None}, 7, 20),  # a fifth of 90 kept back: 18
        (12, {"num_batches": None, "batch_size": 1}, 1, 1),
        (20_000, {"num_batches": None, "batch_size": 100}, 169, 3000),
        (20_000, {"num_batches": 1}, 1, 3000),
    ],
)
def test_split_sizes_by_default(rows, asked, batches, test_rows):
    sizes = {"initial_size": 10, "batch_size": 10} | asked
    data = split(numbered(rows), **sizes)
    assert data.features.shape[:2] == (batches, sizes["batch_size"])
    assert len(data.test_labels) == len(data.test_features) == test_rows


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        ({"initial_size": 0}, ValueError, "initial_size=0 must be at least 1"),
        ({"batch_size": -2}, ValueError, "batch_size=-2 must be at least 1"),
        ({"num_batches": 0}, ValueError, "num_batches=0 must be at least 1"),
        ({"test_size": 0}, ValueError, "test_size=0 must be at least 1"),
        ({"batch_size": 2.5}, TypeError, r"batch_size=2\.5 must be a whole number"),
        ({"initial_size": None}, TypeError, "initial_size=None must be a whole number"),
        ({"order": "random"}, ValueError, "order='random' .* known: shuffle, time"),
        (
            {"test_size": 31},
            ValueError,
            r"has 100 rows, 101 were asked for: initial_size=10 \+ batch_size=20 \* "
            r"num_batches=3 \+ test_size=31",
        ),
        (
            {"initial_size": 40},
            ValueError,
            r"100 rows, 101 were asked .*test_size=1 \(the least\)",
        ),
        (
            {"initial_size": 90, "num_batches": None},
            ValueError,
            r"100 rows, 112 were asked .*num_batches=1 \(the least\) \+ test_size=2",
        ),
    ],
)
def test_split_refuses(asked, error, message):
    sizes = {"initial_size": 10, "batch_size": 20, "num_batches": 3}
    with pytest.raises(error, match=message):
        split(numbered(), **(sizes | asked))


# ---------------------------------------------------- split: labels, copies, images

FEW = st.sampled_from([0.0, -0.0, 1.0, 2.5])


@given(st.lists(st.tuples(FEW, FEW, FEW), min_size=1, max_size=30), st.booleans())
def test_first_places_are_those_of_equal_rows(rows, wide):
    features = np.array(rows, np.float64 if wide else np.float32)
    expected = [rows.index(row) for row in rows]  # 0.0 == -0.0 here, too
    assert first_places(features).tolist() == expected
    images = features.astype(np.uint8).reshape(len(rows), 1, 3, 1)
    flat = [row.tolist() for row in images.reshape(-1, 3)]
    assert first_places(images).tolist() == [flat.index(row) for row in flat]


def test_first_places_beyond_one_piece_and_with_missing_values():
    features = np.random.default_rng(0).normal(size=(4000, 115))
    features[:, 7] = np.nan
    features[3000:] = features[:1000]
    features[3000:, 7] = -np.nan  # another bit pattern
    assert features[0, 7].tobytes() != features[3000, 7].tobytes()
    expected = [*range(3000), *range(1000)]
    assert first_places(features).tolist() == expected


def test_rows_that_differ_by_one_bit_differ():
    features = np.ones((64 * 3, 3))
    for bit in range(64):
        for column in range(3):
            row = features[3 * bit + column]
            row.view(np.uint64)[column] ^= np.uint64(1 << bit)
    features[np.isnan(features)] = 0  # none is
    assert first_places(features).tolist() == list(range(64 * 3))


SIZES = {"initial_size": 4, "batch_size": 3, "num_batches": 2}


def rule(values, labels, rows, num_batches, test_size):
    """The rule of `split` with `SIZES`, row by row: rows that arrive, T, test rows."""
    clean = [r for r in rows if labels[r] >= 0][:4]
    arrive = [*clean, *(r for r in rows if r not in clean)]

    def new(end):
        seen = {values[r] for r in arrive[:end]}
        return [r for r in arrive[end:] if labels[r] >= 0 and values[r] not in seen]

    needed = test_size or (1 if num_batches else max(1, len(new(4)) // 5))
    fitting = [t for t in range(1, 20) if len(new(4 + 3 * t)) >= needed]
    batches = num_batches or max(fitting, default=1)
    end = 4 + 3 * batches
    enough = batches in fitting
    return arrive[:end], batches, new(end)[:test_size] if enough else None


@settings(max_examples=100)
@given(
    st.lists(st.integers(0, 15), min_size=20, max_size=50),
    st.sampled_from(["shuffle", "time"]),
    st.sampled_from([None, 1, 4]),
    st.sampled_from([None, 2]),
    st.integers(0, 3),
)
def test_copies_never_lie_on_both_sides(values, order, test_size, num_batches, seed):
    features = np.array(values, np.float64)[:, None]
    labels = (np.arange(len(values)) % 3 - 1).astype(np.int32)
    dataset = make(len(values), 1, features=features, labels=labels)
    rows = np.arange(len(values))
    if order == "shuffle":
        rows = np.random.default_rng(seed).permutation(len(values))
    arrive, batches, test = rule(values, labels, rows, num_batches, test_size)

    def cut():
        sizes = SIZES | {"test_size": test_size, "num_batches": num_batches}
        return split(dataset, **sizes, order=order, seed=seed, scaling="none")

    if test is None:
        with pytest.raises(ValueError, match="asked for"):
            cut()
        return
    data = cut()
    trained = np.concatenate([data.initial_features, *data.features])
    assert not set(trained.ravel()) & set(data.test_features.ravel())
    assert min(data.initial_labels) >= 0
    assert min(data.test_labels) >= 0
    assert data.labels.shape == (batches, 3)
    assert data.labels.ravel().tolist() == labels[arrive[4:]].tolist()
    assert trained.ravel().tolist() == [values[r] for r in arrive]
    assert data.test_features.ravel().tolist() == [values[r] for r in test]
    seen = {values[r] for r in arrive}
    left = set(range(len(values))) - set(arrive)
    copies = [r for r in left if labels[r] >= 0 and values[r] in seen]
    assert data.num_copies == len(copies)


def test_too_few_new_rows_are_explained():
    dataset = make(40, 1, features=np.arange(40.0)[:, None] % 20)
    with pytest.raises(ValueError, match=r"of the 20 rows .* only 0 can be test rows"):
        split(dataset, initial_size=5, batch_size=5, num_batches=3, order="time")
    labels = np.full(40, -1, np.int32)
    labels[::10] = 0
    with pytest.raises(ValueError, match=r"40 rows, 4 of them with a label; 5 were"):
        split(make(40, 1, labels=labels), initial_size=4, batch_size=5, num_batches=3)


def test_images_become_numbers_from_0_to_1():
    images = np.random.default_rng(0).integers(0, 256, (40, 4, 5, 3), dtype=np.uint8)
    dataset = make(40, features=images, feature_names=())
    data = split(dataset, **SIZES, order="time")
    assert data.features.shape == (2, 3, 4, 5, 3)
    assert data.features.dtype == data.test_features.dtype == np.float32
    np.testing.assert_allclose(data.initial_features, images[:4] / 255, rtol=1e-6)
    np.testing.assert_allclose(data.test_features, images[10:] / 255, rtol=1e-6)
    raw = split(dataset, **SIZES, order="time", scaling="none")
    np.testing.assert_array_equal(raw.features.reshape(-1, 4, 5, 3), images[4:10])
    real = make(40, features=images / np.float32(7), feature_names=())
    same = split(real, **SIZES, order="time")
    np.testing.assert_array_equal(same.test_features, real.features[10:])


@pytest.mark.parametrize(
    ("features", "scaling", "message"),
    [
        (
            np.ones((20, 2)),
            "unit",
            r"not for made, a table .*: standard, log, quantile, none",
        ),
        (np.ones((20, 2, 2, 1), np.uint8), "log", "allowed: unit, none"),
        (np.ones((20, 2, 2, 1), np.float32), "unit", "allowed: none"),
        (np.ones((20, 2)), "max", "scaling='max' is unknown; known: standard, log"),
    ],
)
def test_a_scaling_that_does_not_fit_is_refused(features, scaling, message):
    names = ("a", "b") if features.ndim == 2 else ()
    dataset = make(20, features=features, feature_names=names)
    with pytest.raises(ValueError, match=message):
        split(dataset, **SIZES, scaling=scaling)


def test_a_column_that_does_not_fit_into_float32_is_named():
    features = np.ones((20, 2))
    features[15, 1] = 1e200
    for scaling in ("standard", "none"):
        with pytest.raises(DataError, match=r"float32.*column 'feature 1' holds inf"):
            split(make(20, 2, features=features), **SIZES, scaling=scaling)
    logs = split(make(20, 2, features=features), **SIZES, scaling="log")
    assert np.isfinite(logs.features).all()


def test_log_is_taken_before_standardising():
    counts = np.expm1(np.random.default_rng(0).uniform(0, 20, (60, 2)))
    counts[:, 1] *= -1
    sizes = SIZES | {"initial_size": 20}
    data = split(make(60, 2, features=counts), **sizes, order="time", scaling="log")
    logs = np.log1p(np.abs(counts)) * [1, -1]
    expected = (logs - logs[:20].mean(axis=0)) / logs[:20].std(axis=0)
    np.testing.assert_allclose(data.initial_features, expected[:20], rtol=1e-5)
    np.testing.assert_allclose(data.test_features, expected[26:], rtol=1e-5)


def test_a_data_set_may_say_which_scaling_suits_it():
    counts = np.expm1(np.random.default_rng(0).uniform(0, 20, (60, 2)))
    plain, says = (
        make(60, 2, features=counts),
        make(60, 2, features=counts, scaling="log"),
    )
    for dataset, asked, expected in (
        (plain, None, "standard"),
        (says, None, "log"),
        (says, "none", "none"),
    ):
        found = split(dataset, **SIZES, scaling=asked)
        other = split(plain, **SIZES, scaling=expected)
        np.testing.assert_array_equal(found.features, other.features)


def normal_scores(column, clean):
    """Of each value's rank among the clean ones, a loop from `quantile`'s docstring."""
    distinct = sorted(set(clean))
    ranks = []
    for value in distinct:
        below = sum(other < value for other in clean)
        equal = sum(other == value for other in clean)
        ranks.append((below + equal / 2 + 0.5) / (len(clean) + 1))
    found = []
    for value in column:
        if value < distinct[0]:
            found.append(0.5 / (len(clean) + 1))
        elif value > distinct[-1]:
            found.append((len(clean) + 0.5) / (len(clean) + 1))
        else:
            found.append(np.interp(value, distinct, ranks))
    return scipy.stats.norm.ppf(found)


def test_quantiles_are_ranks_among_the_clean_rows():
    """In any units, ties included; beyond the clean rows lie the ends."""
    rng = np.random.default_rng(0)
    features = np.exp(3 * rng.normal(size=(60, 3)))
    features[:, 2] = rng.integers(0, 4, 60)
    features[30], features[31] = 1e14, -1e14
    sizes = SIZES | {"initial_size": 20}
    dataset = make(60, 3, features=features)
    data = split(dataset, **sizes, order="time", scaling="quantile")
    bent = np.stack([normal_scores(c, c[:20]) for c in features.T], axis=1)
    expected = (bent - bent[:20].mean(axis=0)) / bent[:20].std(axis=0)
    np.testing.assert_allclose(data.initial_features, expected[:20], atol=1e-4)
    np.testing.assert_allclose(data.test_features, expected[26:], atol=1e-4)
    assert np.abs(data.test_features).max() < 3
    tiny = split(
        make(60, 3, features=features * 1e-14),
        **sizes,
        order="time",
        scaling="quantile",
    )
    np.testing.assert_allclose(tiny.features, data.features, atol=1e-5)
    one = split(
        make(60, 3, features=features),
        **SIZES | {"initial_size": 1},
        scaling="quantile",
    )
    assert np.abs(one.test_features).max() < 1


def test_quantiles_of_many_values_with_a_tie_amid_them():
    """Thinned to a thousand ranks, but exact beside the tie, and the same mirrored."""
    clean = np.concatenate(
        [np.arange(-3000.0, 0), np.zeros(3000), np.arange(1.0, 3001)]
    )
    rows = np.concatenate([np.unique(clean), [-0.25, 0.25, -5000, 5000]])
    found, mirrored = quantile(clean[:, None]), quantile(-clean[:, None])
    ranks = scipy.stats.norm.cdf(found(rows[:, None])[:, 0])
    np.testing.assert_allclose(
        ranks, scipy.stats.norm.cdf(normal_scores(rows, clean.tolist())), atol=1e-3
    )
    np.testing.assert_allclose(
        found(rows[:, None]), -mirrored(-rows[:, None]), rtol=1e-9, atol=1e-12
    )
    assert (np.diff(ranks[: len(rows) - 4]) > 0).all()


def test_quantiles_leave_rare_and_constant_columns_in_bounds():
    """Two values stay two, as far apart as `standard` has them."""
    clean = np.zeros((200, 4))
    clean[:, 0] = np.arange(200)
    clean[:100, 1] = 1
    clean[:6, 2] = 1  # a rare category; column 3 is constant
    later = np.array([[5.0, 1, 1, 1e6], [1e9, 0, 0, -1]])
    dataset = make(202, 4, features=np.concatenate([clean, later]))
    by_rank = fit(dataset, clean, "quantile")
    standard = fit(dataset, clean, "standard")
    both = slice(1, 3)
    np.testing.assert_allclose(
        by_rank(later)[:, both], standard(later)[:, both], rtol=1e-5
    )
    assert (by_rank(clean)[:, 3] == 0).all()
    assert np.abs(by_rank(later)).max() < 6
    assert 2 < by_rank(later)[0, 3] < 3


@pytest.mark.parametrize("scaling", ["standard", "log", "quantile", "none"])
def test_missing_values_become_the_median_of_the_clean_rows(scaling):
    rng = np.random.default_rng(0)
    features = rng.normal(size=(60, 3))
    features[rng.random((60, 3)) < 0.3] = np.nan
    features[:20, 2] = np.nan  # never seen among the clean rows: becomes 0
    medians = np.nanmedian(features[:20, :2], axis=0)
    filled = np.where(np.isnan(features), [*medians, 0.0], features)
    sizes = SIZES | {"initial_size": 20}
    given_missing = split(
        make(60, 3, features=features, missing=True),
        **sizes,
        order="time",
        scaling=scaling,
    )
    given_filled = split(
        make(60, 3, features=filled), **sizes, order="time", scaling=scaling
    )
    for one, other in zip(given_missing[:6], given_filled[:6], strict=True):
        np.testing.assert_array_equal(one, other)
