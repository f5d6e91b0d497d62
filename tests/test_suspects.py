"""Suspect labels of a file of one's own: the list, its lines, what is refused."""

import csv
import dataclasses
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest
from rich.console import Console

from experiments import flags, suspects, suspects_report
from experiments.suspects import Config
from experiments.suspects_report import Findings, Status, evaluate
from rad_jax.datasets import Dataset

ROOT = Path(__file__).parent.parent
CLASSES = ("ok", "attack", "scan")
NUM_ROWS, TRUSTED = 400, 80
HEADER = ("when", "checked", "size", "rate", "proto", "class", "truth")


def make_rows(first=None):
    """Rows as texts: well apart, 15% wrong labels, some values and labels missing.

    Args:
      first: which rows are not wrong: ``[n]`` bool of the row's place and time.
    """
    rng = np.random.default_rng(0)
    when = rng.permutation(NUM_ROWS)
    clean = np.arange(NUM_ROWS) < TRUSTED if first is None else first(when)
    truth = rng.integers(3, size=NUM_ROWS)
    given = truth.copy()
    wrong = rng.choice(np.flatnonzero(~clean), round(0.15 * (~clean).sum()), False)
    given[wrong] = (given[wrong] + rng.integers(1, 3, len(wrong))) % 3
    rows = []
    for i in range(NUM_ROWS):
        size = f"{rng.normal(6 * truth[i]):.3f}" if i % 9 else ""
        rate = f"{rng.normal(-5 * truth[i]):.3f}"
        proto = ("tcp", "udp", "icmp")[truth[i]] if i % 5 else "?"
        label = "" if not clean[i] and i % 17 == 0 else CLASSES[given[i]]
        checked = "yes" if clean[i] else ""
        row = (str(when[i]), checked, size, rate, proto, label, CLASSES[truth[i]])
        rows.append(row)
    return rows


def write_csv(path, rows):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([HEADER, *rows])
    return path


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def settings(path, folder, **changes):
    given = {
        "dataset": str(path),
        "label_column": "class",
        "drop_columns": ("when", "checked"),
        "evaluate_column": "truth",
        "initial_size": TRUSTED,
        "batch_size": 30,  # 320 rows: the last has 20
        "hidden": (16,),
        "steps_per_batch": 30,
        "initial_steps": 200,
        "cache_dir": "",
        "output_dir": str(folder),
    }
    return Config(**given | changes)


#: Learners that compile at once.
FAST = {"label_model": "nearest_centroid", "classifier": "nearest_centroid"}


def run(config):
    text = io.StringIO()
    findings = suspects.run(config, Console(file=text, width=200))
    return findings, text.getvalue()


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run in the order of the file: rows, findings, what was printed, folder."""
    folder = tmp_path_factory.mktemp("plain")
    rows = make_rows()
    path = write_csv(folder / "rows.csv", rows)
    return rows, *run(settings(path, folder / "out")), folder / "out"


def wrong_lines(rows):
    """The lines, from 1, of labels that are wrong."""
    return {
        i + 2 for i, row in enumerate(rows) if row[5] not in ("", row[6])
    }  # below the header


# --- the list -------------------------------------------------------------------------


def test_most_suspects_are_wrong_and_most_wrong_labels_are_suspect(plain):
    rows, findings, printed, folder = plain
    listed = read(folder / "suspects.csv")
    found, wrong = {int(row["line"]) for row in listed}, wrong_lines(rows)
    assert len(wrong) > 40
    precision, recall = len(found & wrong) / len(found), len(found & wrong) / len(wrong)
    assert precision > 0.8
    assert recall > 0.8
    assert f"precision of the list {precision:.3f}" in printed
    assert f"recall {recall:.3f}" in printed
    result = evaluate(findings)
    assert (result.precision, result.recall) == (precision, recall)
    assert result.wrong_trusted == 0
    right = [row for row in listed if rows[int(row["line"]) - 2][6] == row["suggested"]]
    assert result.repaired == len(right) > 0.9 * len(found & wrong)


def test_lines_are_those_of_the_file_and_doubts_fall(plain):
    rows, _, _, folder = plain
    listed = read(folder / "suspects.csv")
    for row in listed:
        assert rows[int(row["line"]) - 2][5] == row["given"] != row["suggested"]
        assert row["status"] == "dropped"
        assert 1 <= int(row["arrival"]) <= 11
    doubts = [float(row["doubt"]) for row in listed]
    assert doubts == sorted(doubts, reverse=True)
    assert all(0 <= doubt <= 1 for doubt in doubts)


def test_every_row_is_predicted_and_judged_once(plain):
    rows, _, _, folder = plain
    predicted = read(folder / "predictions.csv")
    assert [int(row["line"]) for row in predicted] == list(range(2, NUM_ROWS + 2))
    assert [row["given"] for row in predicted] == [row[5] for row in rows]
    arrivals = [0] * TRUSTED + [1 + i // 30 for i in range(NUM_ROWS - TRUSTED)]
    assert [int(row["arrival"]) for row in predicted] == arrivals
    assert arrivals.count(11) == 20, "the last arrival must be a short one"
    for i, row in enumerate(predicted):
        if i < TRUSTED:
            assert row["status"] == "trusted"
        else:
            allowed = ("kept", "dropped") if row["given"] else ("no label",)
            assert row["status"] in allowed
        assert 1 / 3 <= float(row["probability"]) <= 1
    unlabelled = [i for i, row in enumerate(predicted) if row["status"] == "no label"]
    assert len(unlabelled) == sum(not row[5] for row in rows) > 10
    right = [predicted[i]["predicted"] == rows[i][6] for i in unlabelled]
    assert np.mean(right) > 0.9
    assert {row["status"] for row in predicted[-20:]} == {"kept", "dropped", "no label"}


def test_what_is_trusted_is_said_and_counts_add_up(plain):
    rows, findings, printed, folder = plain
    assert f"TRUSTED: the first {TRUSTED} rows with a label (lines 2 to 81)" in printed
    assert "then 320 rows in 11 arrivals of 30" in printed
    lines = [line.split() for line in printed.splitlines()]
    start = lines.index(
        ["given", "class", "trusted", "kept", "dropped", "suspect", "suggested"]
    )
    counts = {line[0]: [*map(int, line[1:])] for line in lines[start + 1 : start + 4]}
    for name in CLASSES:
        trusted, kept, dropped, suspect, _ = counts[name]
        assert trusted == sum(row[5] == name for row in rows[:TRUSTED])
        assert kept + dropped == sum(row[5] == name for row in rows[TRUSTED:])
        assert suspect <= dropped
    assert sum(line[3] for line in counts.values()) == len(findings.row)
    assert sum(line[4] for line in counts.values()) == len(findings.row)
    top = [line for line in lines if len(line) == 5 and line[0].isdecimal()]
    assert [line[0] for line in top] == [
        row["line"] for row in read(folder / "suspects.csv")[:20]
    ]


def test_files_of_a_run(plain):
    *_, folder = plain
    files = {path.name for path in folder.iterdir()}
    assert files == {"suspects.csv", "predictions.csv", "config.json", "suspects.png"}
    assert (folder / "suspects.png").read_bytes()[:4] == b"\x89PNG"
    config = json.loads((folder / "config.json").read_text())
    assert (config["initial_size"], config["batch_size"]) == (TRUSTED, 30)
    assert set(config) == {field.name for field in dataclasses.fields(Config)}


def test_the_truth_reaches_no_training(plain, tmp_path):
    rows, findings, printed, _ = plain
    names = findings.dataset.feature_names
    assert not any("truth" in name for name in names)
    assert names == (
        "size",
        "size is missing",
        "rate",
        *(f"proto={text}" for text in ("icmp", "tcp", "udp")),
    )
    path = tmp_path / "rows.csv"
    lies = [(*row[:6], "ok") for row in rows]
    honest, _ = run(settings(write_csv(path, rows), tmp_path, **FAST))
    misled, said = run(settings(write_csv(path, lies), tmp_path, **FAST))
    np.testing.assert_array_equal(misled.row, honest.row)
    np.testing.assert_array_equal(misled.probs, honest.probs)
    assert evaluate(misled) != evaluate(honest)
    assert "warning:" not in printed
    assert "of the trusted labels are wrong" in said


# --- order and trust ------------------------------------------------------------------


def test_in_the_order_of_time_lines_are_still_those_of_the_file(tmp_path):
    rows = make_rows(lambda when: when < TRUSTED)
    path = write_csv(tmp_path / "rows.csv", rows)
    config = settings(
        path, tmp_path / "out", time_column="when", drop_columns=("checked",), **FAST
    )
    findings, printed = run(config)
    listed = read(tmp_path / "out" / "suspects.csv")
    found, wrong = {int(row["line"]) for row in listed}, wrong_lines(rows)
    assert len(found & wrong) > 0.8 * max(len(found), len(wrong))
    for row in listed:
        source = rows[int(row["line"]) - 2]
        assert source[5] == row["given"]
        assert int(row["arrival"]) == 1 + (int(source[0]) - TRUSTED) // 30
    predicted = read(tmp_path / "out" / "predictions.csv")
    assert [row["given"] for row in predicted] == [row[5] for row in rows]
    trusted = [i for i, row in enumerate(predicted) if row["status"] == "trusted"]
    assert trusted == [i for i, row in enumerate(rows) if int(row[0]) < TRUSTED]
    assert evaluate(findings).wrong == len(wrong), "truth must be put in order, too"
    first = next(i for i, row in enumerate(rows) if row[0] == "0") + 2
    assert f"by --time_column=when (from line {first} to line" in printed


def test_a_column_names_the_trusted_rows(tmp_path):
    rows = make_rows()
    order = np.random.default_rng(1).permutation(NUM_ROWS)
    rows = [rows[i] for i in order]
    path = write_csv(tmp_path / "rows.csv", rows)
    config = settings(
        path,
        tmp_path / "out",
        trusted_column="checked",
        initial_size=None,
        drop_columns=("when",),
        **FAST,
    )
    findings, printed = run(config)
    assert not any("checked" in name for name in findings.dataset.feature_names)
    assert "that --trusted_column=checked names" in printed
    for row, source in zip(
        read(tmp_path / "out" / "predictions.csv"), rows, strict=True
    ):
        assert (row["status"] == "trusted") == (source[1] == "yes")
    result = evaluate(findings)
    assert result.precision > 0.8
    assert result.recall > 0.8


@pytest.mark.parametrize("suffix", ["parquet", "npz"])
def test_rows_of_other_files_have_an_index_from_0(tmp_path, plain, suffix):
    rows, findings, _, _ = plain
    path = tmp_path / f"rows.{suffix}"
    changes = dict(FAST)
    if suffix == "npz":
        labels = np.array([row[5] for row in rows])
        features = findings.dataset.features[:, [0, 2, 3, 4, 5]]
        np.savez(path, features=features, labels=labels)
        changes |= {
            "label_column": None,
            "drop_columns": (),
            "evaluate_column": None,
        }
    else:
        frame = pandas.DataFrame(rows, columns=HEADER)
        for name in ("size", "rate"):
            frame[name] = pandas.to_numeric(frame[name])
        frame["class"] = frame["class"].replace("", None)
        frame.to_parquet(path)
    run(settings(path, tmp_path, **changes))
    found = {int(row["index"]) for row in read(tmp_path / "suspects.csv")}
    expected = {line - 2 for line in wrong_lines(rows)}
    assert len(found & expected) > 0.8 * max(len(found), len(expected))


# --- bad input ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"dataset": "digits"}, ["--dataset=digits", "*.csv"]),
        ({"dataset": "no.csv"}, ["no.csv: there is no such file"]),
        ({"label_column": "klass"}, ["label_column='klass' is unknown", "'class'"]),
        ({"label_column": None}, ["label_column is not given", "'class'"]),
        ({"trusted_column": "size"}, ["--trusted_column=size", "--initial_size=80"]),
        (
            {"trusted_column": "proto", "initial_size": None},
            ["--trusted_column=proto holds 'udp'", "1, true, yes"],
        ),
        (
            {"trusted_column": "no", "initial_size": None},
            ["trusted_column='no' is unknown", "'checked'"],
        ),
        ({"evaluate_column": "no"}, ["evaluate_column='no' is unknown", "'truth'"]),
        ({"evaluate_column": "class"}, ["--evaluate_column=class is the --label"]),
        ({"evaluate_column": "proto"}, ["--evaluate_column=proto", "none of the cla"]),
        ({"initial_size": 9}, ["--initial_size must be at least 10, got 9"]),
        ({"initial_size": 399}, ["--initial_size=399: 381 of the 400", "399 are nee"]),
        ({"scheme": "active"}, ["--scheme=active is unknown", "basic, voting"]),
        ({"batch_size": 0}, ["--batch_size must be at least 1, got 0"]),
        ({"scaling": "unit"}, ["scaling='unit' is not for rows.csv"]),
        ({"classifier": "tree"}, ["--classifier=tree is unknown", "random_forest"]),
    ],
)
def test_bad_input_is_refused_by_name(tmp_path, monkeypatch, changes, parts):
    monkeypatch.chdir(tmp_path)
    write_csv("rows.csv", make_rows())
    with pytest.raises((ValueError, OSError)) as error:
        suspects.run(settings("rows.csv", tmp_path / "out", **changes))
    for part in parts:
        assert part in str(error.value)
    assert not any((tmp_path / "out").iterdir())


def test_trusted_rows_must_be_of_two_classes_and_leave_some(tmp_path):
    rows = [
        ("1", "1", str(i), "0", "a", "ok" if i < 20 else "no", "") for i in range(40)
    ]
    path = write_csv(tmp_path / "rows.csv", rows)
    config = settings(path, tmp_path, initial_size=20, evaluate_column=None)
    with pytest.raises(ValueError, match="20 trusted rows are of class 'ok'; at least"):
        suspects.run(config)
    with pytest.raises(ValueError, match="all 40 rows are trusted; none is left"):
        suspects.run(
            dataclasses.replace(
                config, initial_size=None, trusted_column="checked", drop_columns=()
            )
        )


def test_classes_that_no_trusted_row_has_are_named(tmp_path):
    rows = [("1", "", str(i), "0", "a", "ok" if i % 2 else "no", "") for i in range(40)]
    rows[30] = (*rows[30][:5], "new", "")
    path = write_csv(tmp_path / "rows.csv", rows)
    config = settings(path, tmp_path, initial_size=20, evaluate_column=None)
    shared = suspects.complete(config)
    text = io.StringIO()
    suspects.announce(
        config, shared, suspects.read(config, shared), [], Console(file=text, width=200)
    )
    assert "warning: no trusted row is of class new:" in text.getvalue()


# --- the pieces -----------------------------------------------------------------------


def test_a_run_without_suspects_has_its_files_too(plain, tmp_path):
    findings = plain[1]
    none = np.zeros(0, np.int32)
    text = io.StringIO()
    empty = findings._replace(row=none, suggested=none, doubt=none.astype(float))
    suspects_report.write(empty, tmp_path)
    suspects_report.print_summary(empty, Console(file=text, width=200))
    assert read(tmp_path / "suspects.csv") == []
    assert (tmp_path / "suspects.png").stat().st_size
    assert "0 of the 301 labels that arrived are suspect" in text.getvalue()
    assert "precision of the list nan (0 of 0), recall 0.000" in text.getvalue()


def test_a_class_that_is_suspect_as_a_whole_is_named(plain):
    _, findings, printed, _ = plain
    assert "more than half" not in printed
    labels = findings.dataset.labels
    scan = findings.dataset.class_names.index("scan")
    row = np.flatnonzero((labels == scan) & (findings.status != Status.TRUSTED))
    text = io.StringIO()
    suspects_report.print_summary(
        findings._replace(
            row=row, suggested=np.full(len(row), 0), doubt=np.full(len(row), 0.9)
        ),
        Console(file=text, width=200),
    )
    assert "warning: more than half of the labels of class scan are" in text.getvalue()


def test_evaluation_by_hand():
    dataset = Dataset(
        "rows.csv",
        np.zeros((6, 1)),
        np.array([0, 1, 0, 1, -1, 0], np.int32),
        ("a", "b"),
        ("x",),
    )
    status = [Status.TRUSTED, *[Status.DROPPED] * 3, Status.NO_LABEL, Status.KEPT]
    findings = Findings(
        dataset,
        np.array(status, np.int8),
        np.array([0, 1, 1, 1, 1, 1], np.int32),
        np.full((6, 2), 0.5, np.float32),
        row=np.array([1, 2, 3]),
        suggested=np.array([0, 1, 0]),
        doubt=np.array([0.9, 0.8, 0.7]),
        truth=np.array(["b", "a", "a", "", "b", "c"]),
    )
    # Of rows 1, 2 and 5 the truth is known; 1 and 5 are wrong; 1 and 2 are listed.
    result = evaluate(findings)
    assert result == (3, 2, 2, 1, 1, 1)
    assert (result.precision, result.recall) == (0.5, 0.5)


def test_flags_and_config_have_the_same_names_and_defaults():
    code = (
        "import dataclasses; from absl import flags; from experiments import suspects\n"
        "suspects.define_flags()\n"
        "for field in dataclasses.fields(suspects.Config):\n"
        "    flag = flags.FLAGS[field.name]\n"
        "    default = flag.default\n"
        "    if isinstance(field.default, tuple):\n"
        "        default = tuple(type(field.default[0])(x) for x in default)\n"
        "    assert flag.help and default == field.default, field.name\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=300)
    assert flags.numbers("hidden", ["3", "4"], int) == (3, 4)


def test_command_line_refuses_in_one_line(tmp_path):
    path = write_csv(tmp_path / "rows.csv", make_rows())
    command = [sys.executable, "-W", "error", "-m", "experiments.suspects"]
    done = subprocess.run(
        [*command, f"--dataset={path}", f"--output_dir={tmp_path}", "--cache_dir="],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {path}: label_column is not given")
    assert done.stderr.count("\n") == 1


def test_a_column_with_a_value_far_out_is_named_and_ranks_do_without(tmp_path):
    rng = np.random.default_rng(0)
    rows = [
        (
            str(i),
            "",
            f"{rng.normal() + 4 * (i % 2):.3f}",
            "1",
            "a",
            "no" if i % 2 else "ok",
            "",
        )
        for i in range(60)
    ]
    rows[50] = (*rows[50][:2], "1e12", *rows[50][3:])
    path = write_csv(tmp_path / "rows.csv", rows)
    config = settings(
        path, tmp_path / "out", initial_size=20, evaluate_column=None, **FAST
    )
    _, printed = run(config)
    assert "note: features reach" in printed
    assert "--scaling=quantile" in printed
    used = json.loads((tmp_path / "out" / "config.json").read_text())
    assert used["scaling"] == "standard"
    _, printed = run(dataclasses.replace(config, scaling="quantile"))
    assert "features reach" not in printed
