"""The main job as a user runs it: what it prints, writes, accepts and refuses."""

import csv
import dataclasses
import io
import json
import math
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from running import as_a_user
from scipy import stats

from experiments import flags, names, stream
from experiments.stream import Config
from rad_jax.statistics import HISTORY_METRICS

ROOT = Path(__file__).parent.parent
FILES = {
    "summary.csv",
    "history.csv",
    "per_class.csv",
    "confusion.csv",
    "config.json",
    "accuracy.png",
    "selection.png",
    "prequential.png",
}
TABLES = sorted(name for name in FILES if name.endswith(".csv"))
#: The metrics that summary.csv must have.
METRICS = {
    "final_accuracy",
    "classifier_accuracy",
    "label_model_accuracy",
    "last10_accuracy",
    "balanced_accuracy",
    "purity",
    "recall",
    "queries",
    "wasted_queries",
    "realised_noise",
    "prequential_accuracy",
    "classifier_prequential_accuracy",
    "gap_closed",
    "classifier_gap_closed",
}


def command(*arguments):
    return [sys.executable, "-W", "error", "-m", "experiments.stream", *arguments]


def call(*arguments, **changes):
    return subprocess.run(
        command(*arguments),
        cwd=ROOT,
        env=as_a_user(**changes),
        capture_output=True,
        text=True,
        timeout=300,
    )


def table(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def number(text):
    return float(text) if text else math.nan


class Summary:
    """summary.csv: ``summary[scheme, rate, metric] -> (mean, std, ci95)``."""

    def __init__(self, folder):
        self.rows = table(folder / "summary.csv")
        self.cells = {
            (row["scheme"], float(row["noise_rate"]), row["metric"]): tuple(
                number(row[name]) for name in ("mean", "std", "ci95")
            )
            for row in self.rows
        }
        self.schemes = tuple(dict.fromkeys(row["scheme"] for row in self.rows))
        self.rates = tuple(dict.fromkeys(float(row["noise_rate"]) for row in self.rows))

    def __getitem__(self, key):
        return self.cells[key]


def history_of(folder):
    """history.csv: ``[scheme, rate] -> {metric: [seeds, arrivals + 1]}``."""
    cells = defaultdict(list)
    for row in table(folder / "history.csv"):
        cells[row["scheme"], float(row["noise_rate"])].append(row)
    out = {}
    for key, rows in cells.items():
        seeds = sorted({int(row["seed"]) for row in rows})
        arrivals = sorted({int(row["arrival"]) for row in rows})
        assert seeds == list(range(len(seeds)))
        assert arrivals == list(range(len(arrivals)))
        values = {
            name: np.full((len(seeds), len(arrivals)), math.inf)
            for name in rows[0]
            if name not in ("scheme", "noise_rate", "seed", "arrival")
        }
        for row in rows:
            for name, array in values.items():
                array[int(row["seed"]), int(row["arrival"])] = number(row[name])
        assert not any(np.isinf(array).any() for array in values.values())
        out[key] = values
    return out


# --- two runs from the command line, with the same seed -------------------------------

SEEDS, ARRIVALS, BATCH, BUDGET, TEST = 3, 12, 20, 3, 80
RATES = (0.2, 0.5)
ASKED = ("active_limited", "slim")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folders and outputs of two equal runs (side by side: each takes one core)."""
    folders = [tmp_path_factory.mktemp("runs") / f"{i}" / "deep" for i in range(2)]
    processes = [
        subprocess.Popen(
            command(
                "--label_model=nearest_centroid",
                "--classifier=nearest_centroid",
                f"--schemes={','.join(ASKED)}",
                f"--noise_rates={','.join(map(str, RATES))}",
                f"--num_seeds={SEEDS}",
                "--initial_size=60",
                f"--batch_size={BATCH}",
                f"--num_batches={ARRIVALS}",
                f"--test_size={TEST}",
                f"--query_budget={BUDGET}",
                "--seed=5",
                f"--output_dir={folder}",
            ),
            cwd=ROOT,
            env=as_a_user(PYTHONHASHSEED=str(i)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i, folder in enumerate(folders)
    ]
    results = [process.communicate(timeout=300) for process in processes]
    for process, (_, errors) in zip(processes, results, strict=True):
        assert process.returncode == 0, errors
        assert errors == ""
    return folders, [output for output, _ in results]


@pytest.fixture(scope="module")
def folder(runs):
    return runs[0][0]


@pytest.fixture(scope="module")
def summary(folder):
    return Summary(folder)


@pytest.fixture(scope="module")
def history(folder):
    return history_of(folder)


def test_writes_every_file_and_no_other(runs):
    for folder in runs[0]:
        assert {path.name for path in folder.iterdir()} == FILES


def test_two_runs_with_one_seed_write_equal_tables(runs):
    (one, other), _ = runs
    for name in TABLES:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def test_pictures_are_pictures(folder):
    for name in ("accuracy.png", "selection.png", "prequential.png"):
        content = (folder / name).read_bytes()
        assert content.startswith(b"\x89PNG\r\n\x1a\n")
        assert len(content) > 10_000


def test_the_baselines_are_added(folder, summary):
    expected = (*names.BASELINES, *ASKED)
    assert summary.schemes == expected
    assert set(expected) == {row["scheme"] for row in table(folder / "history.csv")}
    assert json.loads((folder / "config.json").read_text())["flags"]["schemes"] == [
        *expected
    ]


def test_columns_and_metrics(folder, summary):
    header = (folder / "summary.csv").read_text().splitlines()[0]
    assert header == "scheme,noise_rate,metric,mean,std,ci95"
    assert summary.rates == RATES
    cells = defaultdict(set)
    for scheme, rate, metric in summary.cells:
        cells[scheme, rate].add(metric)
    assert len(cells) == 4 * 2
    assert all(metrics >= METRICS for metrics in cells.values())
    assert len(summary.rows) == len(summary.cells), "a figure is there twice"

    header = (folder / "history.csv").read_text().splitlines()[0].split(",")
    assert header[:4] == ["scheme", "noise_rate", "seed", "arrival"]
    assert set(header[4:]) >= set(HISTORY_METRICS)
    assert len(table(folder / "history.csv")) == 4 * 2 * SEEDS * (ARRIVALS + 1)


def test_summary_can_be_computed_from_history(summary, history):
    """Every mean, standard deviation and interval but those of the gaps."""

    def check(key, values):
        mean, std = values.mean(), values.std(ddof=1)
        half = stats.t.ppf(0.975, SEEDS - 1) * std / math.sqrt(SEEDS)
        np.testing.assert_allclose(
            summary[key], (mean, std, half), rtol=1e-5, atol=1e-6, err_msg=str(key)
        )

    last = {
        "final_accuracy": "accuracy",
        **{
            name: name
            for name in (
                "classifier_accuracy",
                "label_model_accuracy",
                "balanced_accuracy",
                "classifier_balanced_accuracy",
                "purity",
                "recall",
                "queries",
                "wasted_queries",
                "kept",
            )
        },
    }
    for (scheme, rate), figures in history.items():
        for metric, column in last.items():
            check((scheme, rate, metric), figures[column][:, -1])
        recent = figures["accuracy"][:, -10:]
        check((scheme, rate, "last10_accuracy"), recent.mean(axis=1))
        for metric in (
            "realised_noise",
            "prequential_accuracy",
            "classifier_prequential_accuracy",
        ):
            of_batches = figures[metric]
            assert np.isnan(of_batches[:, 0]).all()
            check((scheme, rate, metric), of_batches[:, 1:].mean(axis=1))
    assert not np.allclose(
        summary["slim", 0.5, "last10_accuracy"], summary["slim", 0.5, "final_accuracy"]
    ), "the test must be able to tell them apart"


def test_gaps_are_ratios_of_means(summary, history):
    defined = 0
    for metric, column in [
        ("gap_closed", "accuracy"),
        ("classifier_gap_closed", "classifier_accuracy"),
    ]:
        for scheme, rate in history:
            value, lower, upper = (
                history[name, rate][column][:, -1].mean()
                for name in (scheme, "no_selection", "oracle_selection")
            )
            mean, std, half = summary[scheme, rate, metric]
            if upper - lower < 0.01:
                assert math.isnan(mean)
                assert math.isnan(std)
                assert math.isnan(half)
            else:
                defined += 1
                expected = (value - lower) / (upper - lower)
                np.testing.assert_allclose(mean, expected, rtol=1e-4, atol=1e-5)
                assert math.isnan(std) or std >= 0
                assert math.isnan(half) or half >= 0
    assert defined >= 4, "choose another seed: no gap to speak of"


def test_figures_are_those_of_the_scheme(summary, history):
    for rate in RATES:
        wrong = math.floor(rate * BATCH + 1e-3) / BATCH
        for scheme in summary.schemes:
            figures = history[scheme, rate]
            np.testing.assert_allclose(figures["realised_noise"][:, 1:], wrong)
            assert np.isnan(figures["purity"][:, 0]).all(), "D_0 is left out"
        no_sel, opt_sel = (
            history["no_selection", rate],
            history["oracle_selection", rate],
        )
        rows = BATCH * np.arange(1, ARRIVALS + 1)
        np.testing.assert_allclose(no_sel["purity"][:, 1:], 1 - wrong, rtol=1e-6)
        np.testing.assert_allclose(no_sel["recall"][:, 1:], 1)
        np.testing.assert_allclose(opt_sel["purity"][:, 1:], 1)
        np.testing.assert_allclose(opt_sel["recall"][:, 1:], 1)
        np.testing.assert_allclose(
            no_sel["kept"][:, 1:], np.broadcast_to(rows, (SEEDS, ARRIVALS))
        )
        for scheme in ("no_selection", "oracle_selection", "slim"):
            assert not history[scheme, rate]["queries"].any()
        queries = history["active_limited", rate]["queries"]
        assert (np.diff(queries, axis=1) <= BUDGET).all()
        assert (np.diff(queries, axis=1) >= 0).all()
        assert queries[:, -1].min() > 0
        assert (history["active_limited", rate]["wasted_queries"] <= queries).all()
        slim = history["slim", rate]
        np.testing.assert_array_equal(slim["accuracy"], slim["classifier_accuracy"])
        np.testing.assert_array_equal(slim["accuracy"], slim["label_model_accuracy"])


def test_seeds_differ_and_start_alike(history):
    figures = history["no_selection", 0.5]["classifier_accuracy"]
    assert len(set(figures[:, 0])) == 1, "the clean batch is the same for all"
    assert len({tuple(row) for row in figures.tolist()}) == SEEDS
    at_start = {tuple(cell["classifier_accuracy"][:, 0]) for cell in history.values()}
    assert len(at_start) == 1, "nor does it depend on scheme or rate"


def test_learns(summary):
    for rate in RATES:
        assert summary["oracle_selection", rate, "final_accuracy"][0] > 0.6


def test_per_class_and_confusion_agree_with_the_accuracy(folder, summary):
    rows = table(folder / "per_class.csv")
    assert list(rows[0])[:5] == [
        "scheme",
        "noise_rate",
        "prediction",
        "class",
        "support",
    ]
    counts = defaultdict(float)
    for row in table(folder / "confusion.csv"):
        cell = (row["scheme"], float(row["noise_rate"]), row["prediction"])
        counts[(*cell, row["true_class"], row["predicted_class"])] += number(
            row["mean_count"]
        )
    classes = [str(k) for k in range(10)]
    for scheme in summary.schemes:
        for prediction, metric in [
            ("user", "final_accuracy"),
            ("classifier", "classifier_accuracy"),
        ]:
            cell = (scheme, 0.5, prediction)
            right = sum(counts[(*cell, k, k)] for k in classes)
            assert math.isclose(
                right / TEST, summary[scheme, 0.5, metric][0], abs_tol=1e-5
            )
    checked = 0
    for row in rows:
        cell = (row["scheme"], float(row["noise_rate"]), row["prediction"])
        of_class = [counts[(*cell, row["class"], k)] for k in classes]
        assert math.isclose(sum(of_class), float(row["support"]), abs_tol=1e-4)
        right = counts[(*cell, row["class"], row["class"])]
        assert math.isclose(
            right, number(row["recall_mean"]) * float(row["support"]), abs_tol=1e-3
        )
        checked += 1
    assert checked == 4 * 2 * 2 * 10
    support = [float(row["support"]) for row in rows[:10]]
    assert sum(support) == TEST
    majority = summary["no_selection", 0.2, "majority_accuracy"][0]
    assert math.isclose(majority, max(support) / TEST, abs_tol=1e-6)


def test_config_json_holds_every_flag_and_where_it_ran(folder):
    config = json.loads((folder / "config.json").read_text())
    assert set(config["flags"]) == {field.name for field in dataclasses.fields(Config)}
    given = {
        "dataset": "digits",
        "order": "shuffle",
        "label_model": "nearest_centroid",
        "classifier": "nearest_centroid",
        "noise_rates": list(RATES),
        "num_seeds": SEEDS,
        "initial_size": 60,
        "batch_size": BATCH,
        "num_batches": ARRIVALS,
        "test_size": TEST,
        "query_budget": BUDGET,
        "uncertainty": "margin",
        "alpha": "validation",
        "training": "continue",
        "steps_per_batch": 100,
        "minibatch_size": 64,
        "seed": 5,
        "output_dir": str(folder),
    }
    for name, value in given.items():
        assert config["flags"][name] == value, name
    for module in ("python", "rad_jax", "jax", "jaxlib", "flax", "optax", "numpy"):
        assert config["versions"][module][0].isdigit(), module
    assert config["device"]["platform"] in ("cpu", "gpu", "tpu")
    assert config["compile_seconds"] > 0
    assert config["run_seconds"] > 0


def test_says_what_it_will_do_then_how_far_it_is_then_the_table(runs):
    folders, outputs = runs
    text = outputs[0]
    lines = text.splitlines()

    def line_with(*words, start=0):
        for i, line in enumerate(lines[start:], start):
            if all(word in line for word in words):
                return i
        raise AssertionError(f"no line with {words} after line {start} in\n{text}")

    plan = line_with("4 schemes", "2 noise rates", f"{SEEDS} seeds")
    assert "memory" in " ".join(lines[plan : plan + 2])
    progress = line_with(f"{ARRIVALS}/{ARRIVALS}", start=plan)
    majority = line_with("Majority", "0.", start=progress)
    summary = Summary(folders[0])
    shown = summary["slim", 0.2, "majority_accuracy"][0]
    assert f"{shown:.3f}" in lines[majority]
    head = line_with("scheme", "accuracy", "purity", "recall", start=majority)
    for rate in RATES:
        for scheme in summary.schemes:
            row = lines[line_with(f" {scheme} ", f"{rate:g}", start=head)].split()
            assert row[:2] == [f"{rate:g}", scheme]
            mean, _, half = summary[scheme, rate, "final_accuracy"]
            assert row[2] == f"{mean:.3f}±{half:.3f}"
            mean, _, half = summary[scheme, rate, "classifier_accuracy"]
            assert row[3] == f"{mean:.3f}±{half:.3f}"
            for column, metric, form in [
                (4, "balanced_accuracy", ".3f"),
                (5, "purity", ".3f"),
                (6, "recall", ".3f"),
                (7, "queries", ".0f"),
                (8, "gap_closed", ".2f"),
                (9, "classifier_gap_closed", ".2f"),
            ]:
                mean = summary[scheme, rate, metric][0]
                expected = "-" if math.isnan(mean) else format(mean, form)
                assert row[column] == expected, (scheme, rate, metric)
    assert "Traceback" not in text


# --- one run from Python: the default learners, the other settings --------------------


@pytest.fixture(scope="module")
def other_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("python")
    config = Config(
        order="time",
        initial_size=50,
        batch_size=16,
        num_batches=3,
        noise_rates=(0.3, 0.3),
        noise="independent",
        num_seeds=3,
        randomness="fixed_noise",
        schemes=("basic", "no_selection", "basic"),
        alpha="test",
        training="refit",
        steps_per_batch=4,
        initial_steps=30,
        minibatch_size=16,
        learning_rate=0.01,
        output_dir=str(folder),
    )
    out = io.StringIO()
    result = stream.run(config, Console(file=out, width=120))
    return result, folder, out.getvalue()


def test_default_learners_and_other_settings_run(other_run):
    result, folder, text = other_run
    assert {path.name for path in folder.iterdir()} == FILES
    assert result.schemes == ("no_selection", "oracle_selection", "basic")
    assert result.noise_rates == (0.3,)
    config = json.loads((folder / "config.json").read_text())
    assert config["flags"]["label_model"] == "mlp"
    assert config["flags"]["classifier"] == "knn"
    assert config["flags"]["alpha"] == "test"
    assert config["flags"]["query_budget"] == 2, "a tenth of a batch"
    steps = 3 * 3 * (30 + sum(30 + 4 * i for i in (1, 2, 3)))
    assert f"{steps:,} gradient steps" in text


def test_python_returns_what_is_written(other_run):
    result, folder, _ = other_run
    for (scheme, rate), figures in history_of(folder).items():
        s, r = result.schemes.index(scheme), result.noise_rates.index(rate)
        for name, values in figures.items():
            np.testing.assert_allclose(result.history[name][s, r], values, rtol=1e-6)


def test_the_rows_left_are_for_the_test_by_default(other_run):
    result, _, _ = other_run
    rows = stream.load(stream.complete(Config(**_sizes(result.config)))).test_labels
    assert result.confusion[0, 0, 0].sum() == len(rows) == 1797 - 50 - 3 * 16


def _sizes(config):
    wanted = ("order", "initial_size", "batch_size", "num_batches", "seed")
    return {name: config[name] for name in wanted}


def test_fixed_noise_is_the_same_for_every_seed(other_run):
    result, _, _ = other_run
    noise = result.history["realised_noise"][..., 1:]
    assert (noise == noise[:1, :, :1]).all()
    assert len(np.unique(noise)) > 1, "independent flips vary with the batch"
    accuracy = result.history["label_model_accuracy"][0, 0]
    assert len(np.unique(accuracy[:, 0])) == 3, "three initialisations"


def test_learns_from_python(other_run):
    result, _, _ = other_run
    assert result.history["classifier_accuracy"][1, 0, :, -1].min() > 0.6


def test_the_seed_decides_the_order_and_time_order_ignores_it():
    def rows(**changes):
        return stream.load(stream.complete(Config(**changes))).labels

    assert (rows(seed=1) == rows(seed=1)).all()
    assert (rows(seed=1) != rows(seed=2)).any()
    assert (rows(seed=1, order="time") == rows(seed=2, order="time")).all()


# --- real data ------------------------------------------------------------------------


@pytest.mark.slow
def test_google_cluster_from_the_command_line(data_dir, tmp_path):
    """The folder comes from the variable RAD_JAX_DATA, the test size by default."""
    done = call(
        "--dataset=google_cluster",
        "--order=time",
        "--label_model=nearest_centroid",
        "--classifier=nearest_centroid",
        "--schemes=basic",
        "--initial_size=600",
        "--batch_size=100",
        "--num_batches=2",
        "--num_seeds=2",
        f"--output_dir={tmp_path}",
        RAD_JAX_DATA=str(data_dir),
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert {path.name for path in tmp_path.iterdir()} == FILES
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["flags"]["data_dir"] == str(data_dir)
    classes = {row["class"] for row in table(tmp_path / "per_class.csv")}
    assert classes == {"evict", "fail", "finish", "kill"}
    user = [
        row
        for row in table(tmp_path / "per_class.csv")
        if (row["scheme"], row["prediction"]) == ("basic", "user")
    ]
    assert sum(float(row["support"]) for row in user) == 3000
    majority = max(float(row["support"]) for row in user) / 3000
    assert f"accuracy {majority:.3f}" in done.stdout
    summary = Summary(tmp_path)
    assert summary["no_selection", 0.4, "realised_noise"][0] == pytest.approx(0.4)
    assert summary["oracle_selection", 0.4, "final_accuracy"][0] > 0.25


# --- flags ----------------------------------------------------------------------------


def test_flags_and_config_have_the_same_names_and_defaults():
    flags.define()
    flags.define()  # a second call changes nothing
    for field in dataclasses.fields(Config):
        flag = flags.FLAGS[field.name]
        assert flag.help, field.name
        if field.name == "data_dir":
            continue
        default = flag.default
        if isinstance(field.default, tuple):
            default = tuple(type(field.default[0])(text) for text in default)
        assert default == field.default, field.name


def test_defaults_are_those_of_the_issue():
    config = stream.complete(Config())
    sizes = (config.initial_size, config.batch_size, config.num_batches)
    assert (config.dataset, config.order, config.alpha) == (
        "digits",
        "shuffle",
        "validation",
    )
    assert config.schemes == names.SCHEMES
    assert len(config.schemes) == 8
    data = stream.load(config)
    assert data.initial_labels.shape + data.labels.shape == (
        sizes[0],
        sizes[2],
        sizes[1],
    )
    assert config.training == "continue"
    assert config.uncertainty == "margin"


def test_help_lists_every_flag():
    done = call("--help")
    assert "Traceback" not in done.stdout + done.stderr
    for field in dataclasses.fields(Config):
        assert f"--{field.name}" in done.stdout or (
            f"--[no]{field.name}" in done.stdout
        ), field.name


# --- bad input: one clear line before any work ----------------------------------------

NAN, INF = math.nan, math.inf
SCHEME_NAMES = [
    "no_selection",
    "oracle_selection",
    "basic",
    "voting",
    "active",
    "active_limited",
    "slim",
    "slim_limited",
]
LEARNER_NAMES = ["mlp", "knn", "nearest_centroid"]

#: Fields, and what the message must hold beside the name of the first of them.
BAD = [
    # unknown names: the known ones are listed
    ({"dataset": "mnist"}, ["mnist", "digits", "google_cluster"]),
    ({"schemes": ("basic", "best")}, ["best", *SCHEME_NAMES]),
    ({"schemes": ("",)}, SCHEME_NAMES),
    ({"label_model": "svm9"}, ["svm9", *LEARNER_NAMES]),
    ({"classifier": "svm9"}, ["svm9", *LEARNER_NAMES]),
    ({"uncertainty": "doubt"}, ["doubt", "margin", "cross_entropy", "entropy", "cent"]),
    ({"uncertainty_source": "both"}, ["both", "label_model", "classifier", "mean"]),
    ({"noise": "pink"}, ["pink", "symmetric", "independent"]),
    ({"order": "random"}, ["random", "shuffle", "time"]),
    ({"alpha": "train"}, ["train", "validation", "test"]),
    ({"training": "forget"}, ["forget", "continue", "refit"]),
    ({"randomness": "none"}, ["none", "fixed_model", "fixed_noise", "double_random"]),
    # rates
    ({"noise_rates": (1.5,)}, ["1.5", "[0, 1]"]),
    ({"noise_rates": (0.2, -0.1)}, ["-0.1", "[0, 1]"]),
    ({"noise_rates": (NAN,)}, ["nan", "[0, 1]"]),
    ({"noise_rates": (INF,)}, ["inf", "[0, 1]"]),
    # empty lists
    ({"noise_rates": ()}, ["empty", "[0, 1]"]),
    ({"schemes": ()}, ["empty", *SCHEME_NAMES]),
    # numbers that are too small
    ({"query_budget": -1}, ["-1", "0"]),
    ({"query_budget": -1, "schemes": ("basic",)}, ["-1", "0"]),
    ({"initial_size": 0}, ["0", "at least 1"]),
    ({"initial_size": -5}, ["-5", "at least 1"]),
    ({"batch_size": 0}, ["0", "at least 1"]),
    ({"num_batches": 0}, ["0", "at least 1"]),
    ({"num_batches": -1}, ["-1", "at least 1"]),
    ({"test_size": 0}, ["0", "at least 1"]),
    ({"test_size": -1}, ["-1", "at least 1"]),
    ({"num_seeds": 0}, ["0", "at least 1"]),
    ({"num_seeds": -3}, ["-3", "at least 1"]),
    ({"minibatch_size": 0}, ["0", "at least 1"]),
    ({"minibatch_size": -2}, ["-2", "at least 1"]),
    ({"steps_per_batch": 0}, ["0", "at least 1"]),
    ({"steps_per_batch": -1}, ["-1", "at least 1"]),
    ({"initial_steps": 0}, ["0", "at least 1"]),
    ({"neighbours": 0}, ["0", "at least 1"]),
    ({"neighbours": -2}, ["-2", "at least 1"]),
    ({"hidden": (28, 0)}, ["0", "at least 1"]),
    ({"seed": -1}, ["-1", "at least 0"]),
    # numbers that are too large
    ({"seed": 2**31}, [2**31, "below 2^31"]),
    ({"query_budget": 10**12}, [10**12]),
    ({"steps_per_batch": 2**31}, [2**31]),
    ({"initial_size": 1797}, ["1797 rows", "initial_size=1797"]),
    ({"batch_size": 1000}, ["1797 rows", "batch_size=1000"]),
    ({"num_batches": 1000}, ["1797 rows", "num_batches=1000"]),
    ({"test_size": 1000}, ["1797 rows", "test_size=1000"]),
    ({"initial_size": 10**30}, ["1797 rows", 10**30]),
    # learning rates that no one wants
    ({"learning_rate": 0.0}, ["0.0", "> 0"]),
    ({"learning_rate": -1e-3}, ["-0.001", "> 0"]),
    ({"learning_rate": NAN}, ["nan"]),
    ({"learning_rate": INF}, ["inf"]),
    ({"learning_rate": 1e300}, ["1e+300"]),
    # data that is not there
    ({"data_dir": None, "dataset": "google_cluster"}, ["google_cluster"]),
    ({"data_dir": "", "dataset": "google_cluster"}, ["google_cluster"]),
    ({"data_dir": "EMPTY", "dataset": "google_cluster"}, ["EMPTY", "part-00000"]),
    ({"data_dir": "ABSENT", "dataset": "google_cluster"}, ["ABSENT", "part-00000"]),
]


class Begun(Exception):
    """The run has announced itself: the bad value was accepted."""


class _NothingIsPrinted(io.StringIO):
    def write(self, text):
        raise Begun(text)


def _name(case):
    return ",".join(f"{key}={value}" for key, value in case.items())


@pytest.mark.parametrize(("case", "says"), BAD, ids=[_name(case) for case, _ in BAD])
def test_bad_value(case, says, tmp_path):
    (tmp_path / "EMPTY").mkdir()
    fields = dict(case)
    if fields.get("data_dir"):
        fields["data_dir"] = str(tmp_path / fields["data_dir"])
    output = tmp_path / "out"
    console = Console(file=_NothingIsPrinted())
    with pytest.raises((ValueError, OSError)) as caught:
        stream.run(Config(output_dir=str(output), **fields), console)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500
    for text in (next(iter(case)), *map(str, says)):
        assert text in message, f"{text!r} is not in: {message}"
    assert not output.exists() or not list(output.iterdir())


@pytest.mark.parametrize("where", ["file", "file/below", ""])
def test_output_dir_that_cannot_be_written_is_found_first(where, tmp_path):
    (tmp_path / "file").write_text("keep me")
    path = str(tmp_path / where) if where else ""
    with pytest.raises(OSError, match="--output_dir") as caught:
        stream.run(Config(output_dir=path, dataset="unknown"))
    message = str(caught.value)
    assert "\n" not in message
    assert path in message
    assert "directory" in message
    assert (tmp_path / "file").read_text() == "keep me"


def test_a_damaged_trace_names_file_and_line(data_dir, tmp_path):
    part = "task_events/part-00000-of-00500.csv.gz"
    whole = (data_dir / "google_cluster_2011" / part).read_bytes()
    path = tmp_path / part
    path.parent.mkdir()
    path.write_bytes(whole[:20_000])
    with pytest.raises(ValueError, match=r"line \d+") as caught:
        stream.run(
            Config(
                dataset="google_cluster",
                data_dir=str(tmp_path),
                output_dir=str(tmp_path / "out"),
            )
        )
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--dataset=mnist"], ["--dataset", "mnist", "digits", "google_cluster"]),
        (["--schemes=basic,best"], ["--schemes", "best", *SCHEME_NAMES]),
        (["--noise_rates=0.2,1.5"], ["noise_rates", "1.5", "[0, 1]"]),
        (["--noise_rates=0.2,much"], ["--noise_rates", "0.2,much", "numbers"]),
        (["--steps_per_batch=0"], ["steps_per_batch", "0", "at least 1"]),
        (["--dataset=google_cluster"], ["--data_dir", "google_cluster"]),
        (["digits", "--seed=1"], ["unknown arguments", "digits"]),
        (["--no_such_flag=1"], ["no_such_flag"]),
    ],
    ids=lambda value: value[0] if str(value[0]).startswith(("--", "digits")) else "",
)
def test_bad_command_line(arguments, says, tmp_path):
    done = call(*arguments, f"--output_dir={tmp_path}", RAD_JAX_DATA=None)
    assert done.returncode not in (0, -9)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    # absl adds a line on how to see the flags.
    lines = [line for line in lines if not line.startswith("Pass --help")]
    assert len(lines) == 1, done.stderr
    for text in says:
        assert text in lines[0], f"{text!r} is not in: {lines[0]}"
    assert list(tmp_path.iterdir()) == []
