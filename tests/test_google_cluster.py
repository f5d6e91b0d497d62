"""The Google trace in several parts: the same rows as in one, one part in memory.

What a row is, and what a bad line gets, is in test_datasets.py.
"""

import gzip
import itertools
import pathlib
import tempfile
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rad_jax.datasets import DataError, _task_events, google_cluster

AFTER_END = 2**63 - 1
SUBMIT, FINISH = 0, 4


def line(time, job, index, event, user="ann"):
    return f"{time},,{job},{index},,{event},{user},1,4,0.25,0.5,0.125,1\n"


def write(folder, parts):
    """Files of lines, each `parts[i]` a list of them; returns their paths."""
    paths = []
    for number, lines in enumerate(parts):
        path = pathlib.Path(folder, f"task_events/part-{number:05}-of-00500.csv.gz")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress("".join(lines).encode()))
        paths.append(path)
    return paths


def load(*parts):
    with tempfile.TemporaryDirectory() as folder:
        write(folder, parts)
        return google_cluster.load(folder)


EVENT = st.tuples(
    st.sampled_from([0, 600, 601, 602, 603, 604, 10**12, AFTER_END]),
    st.sampled_from([3, 6_252_020_683]),
    st.sampled_from([0, 1, 20_009]),
    st.sampled_from([*range(6), 0, 0, 4, 5, 6, 7, 8]),
    st.sampled_from(["", "ann", "bob"]),
)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    events=st.lists(EVENT, min_size=2, max_size=60),
    cuts=st.lists(st.integers(1, 59), max_size=4, unique=True),
    late=st.integers(0, 3),
)
def test_any_cut_in_time_gives_the_same_rows(events, cuts, late):
    """Cuts may part events of one time; what is after the end stands anywhere."""
    events.sort(key=lambda event: event[0])
    events += [(600, 3, 0, SUBMIT, "ann"), (600, 3, 0, FINISH, "ann")]
    events.sort(key=lambda event: event[0])
    after = [event for event in events if event[0] == AFTER_END]
    known = [line(*event) for event in events[: len(events) - len(after)]]
    places = [0, *sorted(cut for cut in cuts if cut < len(known)), len(known)]
    parts = [known[a:b] for a, b in itertools.pairwise(places)]
    parts[min(late, len(parts) - 1)] += [line(*event) for event in after]

    whole = load([line(*event) for event in events])
    cut = load(*parts)
    np.testing.assert_array_equal(cut.features, whole.features)
    np.testing.assert_array_equal(cut.labels, whole.labels)


def test_a_submission_may_end_parts_later():
    parts = [
        [line(600 + part, part, 0, SUBMIT), line(600 + part, part - 3, 0, FINISH)]
        for part in range(3, 9)
    ]
    parts[0] = parts[0][:1]
    for part in parts[1:3]:
        del part[1]
    dataset = load(*parts)
    assert dataset.labels.tolist() == [2] * 3  # those of jobs 3, 4 and 5
    submitted = dataset.features[
        :, google_cluster.FEATURE_NAMES.index("log_user_submit")
    ]
    np.testing.assert_allclose(submitted, np.log([1, 2, 3]))


def test_so_many_parts_and_no_more(tmp_path):
    parts = [[line(600 + i, i, 0, SUBMIT), line(600 + i, i, 0, FINISH)] for i in (0, 1)]
    paths = write(tmp_path / "google_cluster_2011", parts)
    assert google_cluster.files(tmp_path) == paths
    assert google_cluster.files(str(tmp_path), 1) == paths[:1]
    assert len(google_cluster.load(tmp_path).labels) == 2
    assert len(google_cluster.load(tmp_path, num_parts=1).labels) == 1
    with pytest.raises(ValueError, match=r"num_parts=3, but .*task_events holds 2"):
        google_cluster.load(tmp_path, num_parts=3)
    with pytest.raises(ValueError, match="num_parts=0 must be at least 1"):
        google_cluster.load(tmp_path, num_parts=0)


def test_a_part_without_the_first_will_do(tmp_path):
    paths = write(tmp_path, [[], [line(600, 1, 0, SUBMIT), line(601, 1, 0, FINISH)]])
    paths[0].unlink()
    assert google_cluster.load(tmp_path).labels.tolist() == [2]


def test_parts_out_of_order_are_refused():
    with pytest.raises(
        DataError,
        match=r"00001-of.*begins at time 600, but .*00000-of.* "
        "goes on until 601",
    ):
        load([line(601, 1, 0, SUBMIT)], [line(600, 1, 0, FINISH)])


def test_a_bad_line_names_its_part():
    good = line(600, 1, 0, SUBMIT)
    with pytest.raises(
        DataError, match=r"part-00001-of-00500.csv.gz, line 2, column 'ti"
    ):
        load([good], [good, good.replace("600", "noon")])


def test_a_header_where_none_belongs_is_refused():
    header = (
        "time,missing info,job ID,task index,machine ID,event type,user,a,b,c,d,e,f\n"
    )
    with pytest.raises(
        DataError, match=r"line 1, column 'time': 'time', where a whole"
    ):
        load([header, line(600, 1, 0, SUBMIT), line(601, 1, 0, FINISH)])


def test_parts_without_an_end_are_refused():
    with pytest.raises(
        DataError, match=r"part-00000.* to .*part-00001.*none of the 2 ev"
    ):
        load([line(600, 1, 0, SUBMIT)], [line(601, 2, 0, FINISH)])


def test_one_part_at_a_time_is_in_memory(tmp_path, monkeypatch):
    alive, most = [], []
    read, sort = _task_events.read, _task_events._sorted

    def counted(*args):
        most.append(sum(of() is not None for of in alive))
        return read(*args)

    def watched(parts):
        events = sort(parts)
        alive.append(weakref.ref(events.time))
        return events

    monkeypatch.setattr(_task_events, "read", counted)
    monkeypatch.setattr(_task_events, "_sorted", watched)
    parts = [
        [line(10 * i + j, i, j, kind) for j in range(9) for kind in (SUBMIT, FINISH)]
        for i in range(8)
    ]
    paths = write(tmp_path, parts)
    rows = sum(len(labels) for _, labels in google_cluster.rows(paths))
    assert rows == 8 * 9
    assert len(most) == 2 * 8  # read twice
    assert max(most) <= 1


def test_what_is_remembered_grows_with_the_tasks_that_run():
    counts = google_cluster._task_history.Counts()
    assert counts.counts.dtype == np.int32
    pieces = [
        _task_events.Events(
            *(np.full(2, v) for v in (i, 1, i)),
            np.array([SUBMIT, FINISH]),
            np.zeros(2, int),
            np.zeros((2, 6)),
        )
        for i in range(5)
    ]
    for i, piece in enumerate(pieces):
        seen = counts.count(piece.job, piece, np.array([0]))
        assert seen.tolist() == [[i, 0, 0, 0, i, 0]]
    assert counts.keys.tolist() == [1]


@pytest.mark.parametrize(("bits", "column"), [(40, "job ID"), (23, "task index")])
def test_greatest_job_and_index(bits, column):
    largest = [2**40 - 1, 2**23 - 1]
    lines = [line(600, *largest, SUBMIT), line(600, *largest, FINISH)]
    assert load(lines).labels.tolist() == [2]
    largest[column == "task index"] += 1
    with pytest.raises(DataError, match=rf"'{column}': '{2**bits}', where a whole nu"):
        load([line(600, *largest, SUBMIT)])


@pytest.mark.slow
def test_the_published_part_cut_in_four(data_dir, tmp_path):
    try:
        (path,) = google_cluster.files(data_dir, 1)
    except DataError:
        pytest.skip("no google_cluster_2011 in the folder RAD_JAX_DATA")
    lines = gzip.decompress(path.read_bytes()).decode().splitlines(keepends=True)
    places = [0, 100_000, 277_400, 277_401, len(lines)]
    parts = [lines[a:b] for a, b in itertools.pairwise(places)]
    write(tmp_path, parts)
    whole, cut = google_cluster.load(data_dir, 1), google_cluster.load(tmp_path)
    np.testing.assert_array_equal(cut.features, whole.features)
    np.testing.assert_array_equal(cut.labels, whole.labels)
