"""The paper's use cases: what is run on which files, what is said of the results."""

import csv
import dataclasses
import gzip
import io
import math
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from experiments import comparison, presets, stream, use_cases
from experiments.presets import Options
from rad_jax.datasets import DataError, nbaiot, unsw_nb15
from rad_jax.statistics import HISTORY_METRICS, SweepResult

ROOT = pathlib.Path(__file__).parent.parent
SCHEMES = ("no_selection", "oracle_selection", "basic")


# --- tiny files in the real formats ---------------------------------------------------


def make_cluster(folder, tasks=400):
    """Each user's tasks end in one way."""
    rng = np.random.default_rng(0)
    lines = []
    for task in range(tasks):
        end = int(rng.integers(4))
        priority = 2 * end + 1
        for time, event in ((600 + 2 * task, 0), (601 + 2 * task, end + 2)):
            lines.append(
                f"{time},,{task + 1},0,,{event},u{end},1,{priority},"
                f"0.{rng.integers(1, 10)},0.5,0.1,1\n"
            )
    path = folder / "task_events" / "part-00000-of-00500.csv.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress("".join(lines).encode()))


def make_unsw(folder, rows=300):
    rng = np.random.default_rng(0)
    lines = [",".join(unsw_nb15.COLUMNS)]
    for row in range(rows):
        label = int(rng.integers(3))
        values = dict.fromkeys(unsw_nb15.COLUMNS, "0") | {
            "id": str(row),
            "dur": f"{rng.normal(5 * label):.4f}",
            "proto": "tcp",
            "service": "-",
            "state": "FIN",
            "attack_cat": unsw_nb15.CLASS_NAMES[label],
        }
        lines.append(",".join(values.values()))
    (folder / unsw_nb15.FILES[0]).write_text("\n".join(lines) + "\n")


def make_device(folder, device, classes=nbaiot.CLASS_NAMES, rows=24):
    number = nbaiot.DEVICES.index(device) + 1
    header = ",".join(nbaiot.FEATURE_NAMES)
    for label, name in enumerate(classes):
        values = np.random.default_rng(label).normal(4 * label, 1, (rows, 115))
        text = "\n".join([header, *(",".join(map(repr, x)) for x in values.tolist())])
        (folder / f"{number}.{name}.csv").write_text(text + "\n")


def make_faces(folder, people=3, images=20):
    rng = np.random.default_rng(0)
    for person in range(people):
        (folder / f"person{person}").mkdir(parents=True)
        for i in range(images):
            pixels = rng.integers(0, 60, (20, 20, 3)) + 60 * person
            path = folder / f"person{person}" / f"{i}.png"
            Image.fromarray(pixels.astype(np.uint8)).save(path)


def options(folder, **changes):
    return Options(
        **{
            "data_dir": str(folder / "data"),
            "cache_dir": "",
            "output_dir": str(folder / "out"),
            "num_seeds": 2,
        }
        | changes
    )


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def table(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


# --- from the command line ------------------------------------------------------------


def call(*arguments, **changes):
    env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "RAD_JAX_DATA")}
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "experiments.use_cases", *arguments],
        cwd=ROOT,
        env=env | {"PYTHONIOENCODING": "utf-8"} | changes,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.slow
def test_from_raw_files_to_the_paper_s_figures_beside_ours(tmp_path, data):
    make_cluster(data / "google_cluster_2011")
    done = call(
        "--use_case=iot,cluster",
        "--quick",
        "--num_seeds=1",
        f"--output_dir={tmp_path}",
        "--cache_dir=",
        RAD_JAX_DATA=str(data),
    )
    # What is there has been run; what is not is an error in the end.
    assert done.returncode == 1
    (error,) = done.stderr.splitlines()
    for text in ("error: iot: ", "benign_traffic.csv", unsw_nb15.FILES[0], str(data)):
        assert text in error
    rows = table(tmp_path / "use_cases.csv")
    assert len(rows) == 12
    assert {(r["use_case"], r["folder"]) for r in rows} == {
        ("cluster", "cluster/mlp_knn"),
        ("cluster", "cluster/mlp_mlp"),
    }
    for row in rows:
        own = {
            (r["scheme"], r["metric"]): r["mean"]
            for r in table(tmp_path / row["folder"] / "summary.csv")
        }
        assert (tmp_path / row["folder"] / "accuracy.png").exists()
        assert row["accuracy"] == own[row["scheme"], "final_accuracy"]
        assert row["classifier_accuracy"] == own[row["scheme"], "classifier_accuracy"]
    for text in (
        "iot cannot be run: ",
        "here: Google trace 2011: 400 rows, 26 features",
        "L = mlp, C = knn: ",
        "Paper: No-Sel (no_selection) is C alone",
    ):
        assert text in done.stdout
    lines = [line.split() for line in done.stdout.splitlines()]
    (no_sel,) = (
        line for line in lines if line[:4] == ["mlp", "knn", "no_selection", "0.710"]
    )
    expected = [
        float(r["accuracy"])
        for r in rows
        if (r["classifier"], r["scheme"]) == ("knn", "no_selection")
    ]
    assert [float(no_sel[4])] == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--use_case=iot,mars", "--use_case has the unknown 'mars'; known: iot, clust"),
        ("surplus", "unknown arguments: surplus"),
    ],
)
def test_a_bad_command_line_is_one_line(tmp_path, flag, message):
    done = call(flag, f"--output_dir={tmp_path}")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_seeds": 0}, r"--num_seeds must lie in 1\.\.2\^31-1, got 0"),
        ({"num_people": 1}, r"--num_people must lie in 2\.\."),
        ({"seed": -1}, r"--seed must lie in 0\.\."),
        ({"noise_rate": 1.01}, r"--noise_rate must lie in \[0, 1\], got 1\.01"),
        ({"noise_rate": math.nan}, r"--noise_rate must lie in \[0, 1\], got nan"),
        ({"vgg_width": 0.0}, r"--vgg_width must be > 0 and <= 16, got 0\.0"),
        ({"use_case": ("",)}, "--use_case has the unknown ''"),
        ({"use_case": ()}, "--use_case is empty; known: iot"),
    ],
)
def test_flags_out_of_range(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        use_cases.run(options(tmp_path, **changes))
    assert not (tmp_path / "out").exists()


def test_all_is_each_of_them_once():
    asked = use_cases.complete(Options(use_case=("faces", "all"))).use_case
    assert sorted(asked) == ["cluster", "faces", "iot"]
    asked = use_cases.complete(Options(use_case=("faces", "iot", "faces"))).use_case
    assert asked == ("faces", "iot")


# --- what is run ----------------------------------------------------------------------


@pytest.fixture
def planned(monkeypatch):
    """Streams are prepared, but not run; lists what was asked for."""
    asked = []

    def prepare_only(config, console=None, keep_chunks=False):
        asked.append(config)
        if keep_chunks:
            folder = pathlib.Path(config.output_dir, stream.CHUNKS)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "seeds_0000000.npz").touch()
        config = stream.complete(config)
        dataset = stream.read(config)
        config = stream.suit(config, dataset)
        prepared = stream.prepare(config, stream.cut(config, dataset))
        result = made([0.7] * 3, [0.9] * 3, [0.8] * 3)
        index = [min(i, 2) for i in range(len(prepared.arms))]
        return dataclasses.replace(
            result,
            schemes=tuple(arm.name for arm in prepared.arms),
            history={name: x[index] for name, x in result.history.items()},
            confusion=result.confusion[index],
            classifier_confusion=result.classifier_confusion[index],
            config=dataclasses.asdict(config),
        )

    monkeypatch.setattr(stream, "run", prepare_only)
    return asked


def test_a_complete_device_is_preferred(tmp_path, data, planned):
    make_device(data, "Danmini_Doorbell", nbaiot.CLASS_NAMES[:6], rows=2)
    make_device(data, "Ennio_Doorbell", nbaiot.CLASS_NAMES[:6], rows=2)
    make_device(data, "Provision_PT_838_Security_Camera")
    make_unsw(data)
    printed = io.StringIO()
    rows, failed = use_cases.run(
        options(tmp_path, use_case=("iot",), noise_rate=0.2), Console(file=printed)
    )
    assert not failed
    assert [(c.label_model, c.classifier) for c in planned] == [
        ("mlp", "knn"),
        ("knn", "mlp"),
    ]
    for config in planned:
        assert config.dataset == "nbaiot"
        assert config.device == "Provision_PT_838_Security_Camera"
        assert config.noise_rates == (0.2,)
    assert len(rows) == 12
    assert rows[0]["data"] == (
        "N-BaIoT, Provision_PT_838_Security_Camera: 264 rows, 115 features, 11 classes"
    )
    for text in (
        "Provision_PT_838_Security_Camera instead of Ecobee_Thermostat",
        "noise: 20% instead of 40%",
        "instead of 6,000, then 170 of 300",
    ):
        assert text in printed.getvalue()
    by_scheme = {row["scheme"]: row for row in rows}
    assert by_scheme["basic"]["paper_accuracy"] == 0.9895
    assert by_scheme["no_selection"]["paper_accuracy"] == 0.9227
    assert math.isnan(by_scheme["voting"]["paper_accuracy"])

    make_device(data, "Ecobee_Thermostat", rows=3)
    plan = presets.plan("iot", options(tmp_path))
    assert {c.device for c in plan.configs.values()} == {"Ecobee_Thermostat"}


def test_unsw_nb15_stands_in_and_says_so(tmp_path, data):
    make_unsw(data)
    plan = presets.plan("iot", options(tmp_path))
    assert {c.dataset for c in plan.configs.values()} == {"unsw_nb15"}
    assert plan.data == "UNSW-NB15: 300 rows, 70 features, 3 classes"
    assert "stands in for N-BaIoT: no N-BaIoT files" in plan.notes[0]
    make_device(data, "Ecobee_Thermostat", ("benign",), rows=2)
    make_device(data, "Samsung_SNH_1011_N_Webcam", ("benign",), rows=2)
    plan = presets.plan("iot", options(tmp_path))
    assert {c.dataset for c in plan.configs.values()} == {"unsw_nb15"}
    assert plan.notes[0].endswith(
        "no device has all 11 classes (Ecobee_Thermostat lacks 10, "
        "Samsung_SNH_1011_N_Webcam was recorded without Mirai)"
    )


def test_attacks_still_packed_are_spoken_of(tmp_path, data):
    folder = data / "Ecobee_Thermostat"
    folder.mkdir()
    (folder / "mirai_attacks.rar").write_bytes(b"Rar!")
    with pytest.raises(DataError, match=r"is still packed.* no UNSW-NB15 files"):
        presets.plan("iot", options(tmp_path))
    make_unsw(data)
    assert "is still packed" in presets.plan("iot", options(tmp_path)).notes[0]


def test_the_paper_s_sizes_if_there_are_rows():
    assert presets._table_sizes(58_661, False)[:3] == (6000, 300, 170)
    assert presets._table_sizes(82_332, True)[:3] == (1000, 100, 20)


@pytest.mark.parametrize("num_rows", [40, 300, 7_000, 57_999])
def test_fewer_rows_are_cut_such_that_they_suffice(num_rows):
    sizes = presets._table_sizes(num_rows, False)
    assert sizes.num_batches >= 20
    used = sizes.initial_size + sizes.batch_size * sizes.num_batches
    assert num_rows / 2 < used < num_rows * 0.9


def test_faces_take_the_people_there_are(tmp_path, data, planned):
    make_faces(data, people=4, images=15)
    assert presets.plan("faces", options(tmp_path)).configs["vgg"].num_people == 4
    asked = options(tmp_path, num_people=3, use_case=("faces",))
    printed = io.StringIO()
    rows, failed = use_cases.run(asked, Console(file=printed))
    assert not failed
    for text in (
        "people: 3, 45 images of 32 x 32 pixels; in the paper 100",
        "learning rate 0.003",
        "min on two CPU cores",
        "Slim one model.",
    ):
        assert text in printed.getvalue()
    lines = [line.split() for line in printed.getvalue().splitlines()]
    assert any(line[:4] == ["-", "vgg", "slim", "0.775"] for line in lines)
    (config,) = planned
    assert (config.num_people, config.image_size, config.augment) == (3, 32, True)
    assert config.initial_size + config.batch_size * config.num_batches < 45
    assert [row["scheme"] for row in rows][2:] == ["slim", "slim_limited"]
    # A pass is as many gradient steps as minibatches hold all rows.
    passes = config.initial_steps * config.minibatch_size / config.initial_size
    assert presets._INITIAL_PASSES <= passes < presets._INITIAL_PASSES + 64 / 9


def test_what_a_killed_run_left_is_taken_up(tmp_path, data, planned, monkeypatch):
    make_cluster(data)
    asked = options(tmp_path, use_case=("cluster",))
    left = tmp_path / "out" / "cluster" / "mlp_knn" / stream.CHUNKS
    write = use_cases._write

    def write_and_die(path, rows):
        write(path, rows)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(use_cases, "_write", write_and_die)
        with pytest.raises(KeyboardInterrupt):
            use_cases.run(asked)
    assert left.exists()  # of a run that had ended
    use_cases.run(dataclasses.replace(asked, resume=True))
    assert [config.resume for config in planned] == [False, True, True]
    assert not list((tmp_path / "out").rglob(stream.CHUNKS))


def test_a_use_case_that_fails_midway_keeps_the_rows_of_the_others(
    tmp_path, data, planned
):
    make_unsw(data)
    make_cluster(data)
    path = data / "task_events" / "part-00000-of-00500.csv.gz"
    path.write_bytes(path.read_bytes()[:-20])
    rows, failed = use_cases.run(options(tmp_path, use_case=("iot", "cluster")))
    # What ended may be run again, with `--resume` or without.
    assert not list((tmp_path / "out" / "iot").rglob(stream.CHUNKS))
    assert {row["use_case"] for row in rows} == {"iot"}
    assert list(failed) == ["cluster"]
    assert str(path) in failed["cluster"]
    assert len(table(tmp_path / "out" / "use_cases.csv")) == len(rows) == 12


def test_without_a_folder_each_says_so(tmp_path):
    rows, failed = use_cases.run(options(tmp_path, data_dir=None))
    assert not rows
    assert set(failed) == {"iot", "cluster", "faces"}
    assert all("--data_dir" in reason for reason in failed.values())
    assert not (tmp_path / "out" / "use_cases.csv").exists()


def test_the_real_files_have_presets(data_dir, tmp_path):
    asked = Options(data_dir=str(data_dir))
    cluster = presets.plan("cluster", asked)
    assert set(cluster.configs) == {"mlp_knn", "mlp_mlp"}
    for config in cluster.configs.values():
        assert (config.initial_size, config.batch_size) == (6000, 300)
        assert config.num_batches == 170
        assert config.noise_rates == (0.4,)
        assert config.order == "shuffle"
    assert "58,661 rows, 26 features, 4 classes" in cluster.data
    faces = presets.plan("faces", asked)
    assert "1,808 rows, 32 x 32 x 3 features, 12 classes" in faces.data


# --- what is said of the results ------------------------------------------------------


def made(no_sel, opt_sel, basic, *, purity=0.95, recall=0.95, confusion=None, **last):
    """A result of three seeds; each accuracy is a list of one for each seed."""
    shape = (3, 1, 3, 2)
    history = {name: np.full(shape, 0.5) for name in HISTORY_METRICS}
    for s, values in enumerate((no_sel, opt_sel, basic)):
        history["classifier_accuracy"][s, 0, :, -1] = values
        history["accuracy"][s, 0, :, -1] = last.get("ensemble", values)
    history["label_model_accuracy"][...] = last.get("label_model", 0.5)
    history["purity"][0], history["purity"][2] = 0.6, purity
    history["recall"][0], history["recall"][2] = 1.0, recall
    if confusion is None:
        confusion = np.tile(np.eye(2, dtype=int) * 10, (3, 1, 3, 1, 1))
    return SweepResult(
        schemes=SCHEMES,
        noise_rates=(0.4,),
        seeds=(0, 1, 2),
        class_names=("common", "rare"),
        history=history,
        confusion=confusion,
        classifier_confusion=confusion,
        majority_accuracy=0.7,
        compile_seconds=1.0,
        run_seconds=2.0,
        config={"label_model": "mlp", "classifier": "knn"},
    )


def said(result, ensemble=False):
    return "\n".join(comparison.verdicts(result, ensemble=ensemble))


def test_a_scheme_that_wins_needs_no_words():
    result = made([0.7, 0.71, 0.69], [0.9] * 3, [0.85, 0.86, 0.84])
    assert said(result) == "C alone: every scheme beats No-Sel"


def test_no_gap_to_close_is_said_with_figures():
    result = made([0.900, 0.901, 0.902], [0.905] * 3, [0.902, 0.901, 0.900])
    text = said(result)
    assert "nothing to gain: No-Sel 0.901, Opt-Sel 0.905" in text
    assert "basic" not in text  # it does no harm either
    harmful = made([0.900, 0.901, 0.902], [0.905] * 3, [0.80, 0.801, 0.802])
    assert "basic is 0.100 below No-Sel" in said(harmful)

    assert "5% of the right labels that it drops cost more" in said(harmful)


def test_a_win_at_the_cost_of_a_rare_class_is_told():
    confusion = np.tile(np.eye(2, dtype=int) * 20, (3, 1, 3, 1, 1))
    confusion[2, ..., 1, :] = (1, 19)
    result = made([0.7] * 3, [0.9] * 3, [0.8] * 3, confusion=confusion)
    assert len(said(result).splitlines()) == 1
    result.history["classifier_balanced_accuracy"][2] -= 0.025
    assert said(result).splitlines() == [
        "C alone: every scheme beats No-Sel",
        "C alone: balanced accuracy of basic is 0.025 below No-Sel: it loses recall of "
        "rare (20 test rows, 1.00 to 0.95)",
    ]


def test_an_ensemble_that_follows_a_robust_l_is_told_apart():
    result = made(
        [0.7, 0.71, 0.69], [0.9] * 3, [0.8] * 3, ensemble=0.91, label_model=0.905
    )
    first, second = said(result, ensemble=True).splitlines()
    assert first.startswith("ensemble: nothing to gain")
    assert "do not harm L (0.905 without selection; C 0.700), which" in first
    assert second == "C alone: every scheme beats No-Sel"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"purity": 0.65}, "the rows kept are hardly cleaner than those that came"),
        ({"recall": 0.3}, "70% of the right labels are dropped"),
        ({}, "selection itself works (purity 0.950, recall 0.950)"),
    ],
)
def test_why_a_scheme_loses(changes, reason):
    result = made([0.8, 0.81, 0.79], [0.9] * 3, [0.7, 0.71, 0.69], **changes)
    assert f"basic is 0.100 below No-Sel: {reason}" in said(result)


def test_a_class_that_is_lost_is_named():
    confusion = np.tile(np.eye(2, dtype=int) * 10, (3, 1, 3, 1, 1))
    confusion[2, ..., 1, :] = (9, 1)
    result = made([0.8] * 3, [0.9] * 3, [0.7] * 3, confusion=confusion)
    assert "loses recall of rare (10 test rows, 1.00 to 0.10)" in said(result)


def test_a_difference_within_the_spread_is_no_win():
    result = made([0.8] * 3, [0.9] * 3, [0.7, 0.82, 0.94])
    assert "basic differs from No-Sel by +0.020, no more than the seeds do" in said(
        result
    )


def test_rows_and_table_hold_the_same():
    result = made([0.7, 0.71, 0.69], [0.9] * 3, [0.8] * 3, ensemble=0.91)
    rows = comparison.rows("iot", "rows", result, {"basic": 0.9895}, "iot/mlp_knn")
    assert [row["scheme"] for row in rows] == list(SCHEMES)
    assert all(tuple(row) == comparison.HEADER for row in rows)
    assert rows[2]["classifier_gap_closed"] == pytest.approx(0.5)
    assert math.isnan(rows[2]["gap_closed"])  # no gap of the ensemble
    head, *lines = comparison.table(rows, ensemble=True, plus_minus="+-")
    assert head.split()[:4] == ["L", "C", "scheme", "paper"]
    assert lines[2].split()[:5] == ["mlp", "knn", "basic", "0.990", "0.910+-0.000"]
    assert lines[0].split()[3] == "-"
    alone = comparison.table(rows, ensemble=False)
    assert "ensemble" not in alone[0]
    assert alone[3].split() == [
        *("-", "knn", "basic", "0.990", "0.800±0.000", "0.500", "0.50")
    ]
