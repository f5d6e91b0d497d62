"""The motivation study as a user runs it: what it computes, writes and refuses."""

import csv
import dataclasses
import io
import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import oracles
import pytest
from rich.console import Console
from running import as_a_user
from sklearn.neighbors import KNeighborsClassifier

import rad_jax
from experiments import devices, motivation, names, reference, study
from experiments.study import Config
from rad_jax import offline

ROOT = Path(__file__).parent.parent
SMALL = Config(
    train_size=300,
    test_size=200,
    runs=3,
    epochs=10,
    minibatch_size=30,
    learning_rate=3e-3,
    learners=("knn",),
)
THREE_RATES = (0.8, 0.0, 0.29)  # always as many: other shapes are compiled anew


def execute(config, tmp_path):
    printed = io.StringIO()
    config = dataclasses.replace(config, output_dir=str(tmp_path))
    result = motivation.run(config, Console(file=printed, width=150))
    return result, printed.getvalue()


def call(*arguments):
    command = [
        sys.executable,
        "-W",
        "error",
        "-m",
        "experiments.motivation",
        *arguments,
    ]
    return subprocess.run(
        command, cwd=ROOT, env=as_a_user(), capture_output=True, text=True, timeout=300
    )


def table(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def is_picture(path):
    return path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 10_000


# --- offline --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Three learners and their counterparts at three rates."""
    path = tmp_path_factory.mktemp("offline")
    config = dataclasses.replace(
        SMALL,
        learners=("knn", "nearest_centroid", "mlp"),
        noise_rates=THREE_RATES,
        compare_sklearn=True,
    )
    return *execute(config, path), path


def test_ours_beside_scikit_learn(compared):
    result, printed, _ = compared
    assert result.noise_rates == (0.0, 0.29, 0.8)
    for name in ("knn", "nearest_centroid"):
        # Pixels are whole numbers: neighbours at the same distance do occur.
        np.testing.assert_allclose(
            result.ours[name].accuracy, result.theirs[name].accuracy, atol=0.01
        )
    assert np.all(np.ptp(result.ours["mlp"].accuracy[1:], axis=1) > 0)
    assert np.ptp(result.ours["mlp"].accuracy[0]) == 0  # the model is fixed
    for name, measured in result.ours.items():
        means = measured.accuracy.mean(axis=1)
        assert np.all(np.diff(means) < 0.01), name
        theirs = result.theirs[name].accuracy.mean(axis=1)
        np.testing.assert_allclose(means, theirs, atol=0.15)
    assert "times as long" in printed
    assert "times without compilation" in printed


def test_realised_noise_is_exact(compared):
    result, _, path = compared
    for rate, realised in zip(result.noise_rates, result.realised_noise, strict=True):
        np.testing.assert_array_equal(
            realised, oracles.symmetric_count(rate, 300) / 300
        )
    rows = table(path / "runs.csv")
    assert {(row["noise_rate"], row["realised_noise"]) for row in rows} == {
        ("0", "0"),
        ("0.29", "0.29"),
        ("0.8", "0.8"),
    }


def test_tables_hold_what_was_measured(compared):
    result, printed, path = compared
    rows = table(path / "runs.csv")
    assert len(rows) == 2 * 3 * 3 * 3
    for source, measured in (("rad_jax", result.ours), ("scikit-learn", result.theirs)):
        for name, figures in measured.items():
            mine = [r for r in rows if (r["source"], r["learner"]) == (source, name)]
            for metric in ("accuracy", "balanced_accuracy"):
                found = np.array([float(row[metric]) for row in mine]).reshape(3, 3)
                np.testing.assert_allclose(found, getattr(figures, metric), atol=1e-8)
    summary = table(path / "summary.csv")
    assert len(summary) == 2 * 3 * 3 * 2
    for row in summary:
        values = [
            float(r[row["metric"]])
            for r in rows
            if all(r[k] == row[k] for k in ("source", "learner", "noise_rate"))
        ]
        np.testing.assert_allclose(float(row["mean"]), np.mean(values), atol=1e-8)
        np.testing.assert_allclose(float(row["std"]), np.std(values, ddof=1), atol=1e-8)
    rows_used = study.load_rows(SMALL)
    majority = np.bincount(rows_used.test_label).max() / 200
    assert result.majority == majority
    assert (
        f"commonest class: accuracy {majority:.3f}, balanced accuracy 0.100" in printed
    )
    times = table(path / "times.csv")
    assert [row["source"] for row in times] == ["rad_jax"] * 3 + ["scikit-learn"] * 3
    assert is_picture(path / "offline.png")


def test_cost_is_announced_before_a_learner_runs(compared):
    _, printed, _ = compared
    assert "mlp: 9 runs, 900 gradient steps, about " in printed  # 9 x 10 epochs x 10
    assert "knn(k=4): 9 runs, 0 gradient steps" in printed
    cost, done = (printed.index(text) for text in ("mlp: 9 runs", "mlp: compiled in"))
    assert cost < done


def test_knn_is_the_one_of_the_off_line_study(tmp_path):
    rows = study.load_rows(SMALL)
    result, _ = execute(dataclasses.replace(SMALL, noise_rates=THREE_RATES), tmp_path)
    theirs = KNeighborsClassifier(4, weights="distance")
    predicted = theirs.fit(rows.train, rows.train_label).predict(rows.test)
    np.testing.assert_allclose(
        result.ours["knn"].accuracy[0, 0], np.mean(predicted == rows.test_label)
    )


def test_flags_reach_the_learners_they_are_for():
    training = rad_jax.Training(steps=3)
    options = {
        "training": training,
        "learning_rate": 0.5,
        "hidden": (7,),
        "neighbours": 3,
        "svm_c": 7.0,
        "num_landmarks": 9,
        "num_trees": 4,
        "max_depth": 2,
        "max_features": 6,
        "vgg_width": 0.5,
        "vgg_blocks": 2,
        "augment": True,
    }
    assert set(options) == {"training", *names.LEARNER_FLAGS}
    expected = {
        "mlp": rad_jax.mlp((7,), learning_rate=0.5, training=training),
        "knn": rad_jax.knn(3),
        "nearest_centroid": rad_jax.nearest_centroid(),
        "linear_svm": rad_jax.linear_svm(7.0),
        "rbf_svm": rad_jax.rbf_svm(C=7.0, num_landmarks=9),
        "random_forest": rad_jax.random_forest(4, max_depth=2, max_features=6),
        "vgg": rad_jax.vgg(
            width=0.5, blocks=2, learning_rate=0.5, training=training, augment=True
        ),
    }
    assert set(expected) == set(names.LEARNERS)
    for name, learner in expected.items():
        assert names.learner(name, **options) == learner, name


def test_sizes_keep_the_papers_ratio():
    def sizes(**options):
        rows = study.load_rows(Config(**options))
        return len(rows.train), len(rows.test)

    assert sizes() == (1257, 539)  # 70% of 1,797, rounded down, and 3/7 of that
    assert sizes(train_size=700) == (700, 300)
    assert sizes(train_size=1700) == (1700, 97)
    assert sizes(test_size=797) == (1000, 797)


def test_rows_are_scaled_by_the_training_rows_and_copies_are_no_test_rows(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(5.0, 3.0, (100, 3))[rng.integers(0, 100, 300)]  # many rows twice
    path = tmp_path / "rows.npz"
    np.savez(path, features=x, labels=np.where(np.arange(300) < 30, -1, x[:, 0] > 5))
    rows = study.load_rows(
        Config(dataset=str(path), train_size=40, test_size=50, cache_dir="")
    )
    np.testing.assert_allclose(rows.train.mean(axis=0), 0.0, atol=1e-5)
    np.testing.assert_allclose(rows.train.std(axis=0), 1.0, atol=1e-5)
    apart = np.abs(rows.test[:, None] - rows.train[None]).max(axis=2)
    assert apart.min() > 1e-4
    assert rows.num_copies > 20
    assert (len(rows.train), len(rows.test)) == (40, 50)
    assert min(rows.train_label.min(), rows.test_label.min()) >= 0


@pytest.mark.slow
def test_the_papers_sizes_on_the_cluster_data(data_dir):
    rows = study.load_rows(Config(dataset="google_cluster", data_dir=str(data_dir)))
    assert (rows.train.shape, rows.test.shape) == ((14_000, 26), (6_000, 26))
    assert rows.train.std(axis=0).max() < 1.001


# --- published curves -----------------------------------------------------------------

CURVE = {
    "id": "tasks/nearestcentroid",
    "dataset": "tasks",
    "model": "NearestCentroid",
    "noise": [0, 50, 100],
    "accuracy": [0.5, 0.4, 0.2],
}


def curves_file(tmp_path, curves):
    path = tmp_path / "curves.json"
    path.write_text(curves if isinstance(curves, str) else json.dumps(curves))
    return str(path)


def test_published_curves_are_found_by_learner(tmp_path):
    other = CURVE | {"id": "tasks/knn", "dataset": "Tasks", "std": [0, 0.1, 0.2]}
    old = CURVE | {"superseded": True, "accuracy": [0.9, 0.9, 0.9]}
    elsewhere = CURVE | {"dataset": "faces"}
    path = curves_file(tmp_path, {"curves": [other, CURVE, old, elsewhere], "note": ""})
    found = reference.load(path, "tasks", ("nearest_centroid", "knn", "mlp"))
    assert set(found) == {"nearest_centroid", "knn"}
    np.testing.assert_array_equal(found["nearest_centroid"].noise_rates, [0, 0.5, 1])
    np.testing.assert_array_equal(found["nearest_centroid"].accuracy, [0.5, 0.4, 0.2])
    assert np.isnan(found["nearest_centroid"].spread).all()
    np.testing.assert_array_equal(found["knn"].spread, [0, 0.1, 0.2])


def test_published_curves_are_drawn(tmp_path):
    path = curves_file(tmp_path, {"curves": [CURVE | {"id": "tasks/knn"}]})
    config = dataclasses.replace(SMALL, noise_rates=THREE_RATES)
    execute(config, tmp_path / "without")
    with_curves = dataclasses.replace(
        config, reference_curves=path, reference_dataset="tasks"
    )
    execute(with_curves, tmp_path / "with")
    without, drawn = (
        (tmp_path / name / "offline.png").read_bytes() for name in ("without", "with")
    )
    assert without != drawn


@pytest.mark.parametrize(
    ("curves", "message"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[1]", "object with a list 'curves'"),
        ({"curves": []}, "object with a list 'curves'"),
        ({"curves": [7]}, "curve 0 must be an object, got 7"),
        ({"curves": [CURVE | {"model": None}]}, "'model' must be a text, got None"),
        ({"curves": [CURVE, CURVE | {"noise": [0]}]}, "curve 1: 'noise' has 1 entries"),
        (
            {"curves": [CURVE | {"accuracy": [50, 40, 20]}]},
            r"'accuracy' .* 0\.\.1, got 50",
        ),
        (
            {"curves": [CURVE | {"noise": [0, 10**400, 50]}]},
            r"'noise' .* 0\.\.100, got 10",
        ),
        ({"curves": [CURVE | {"noise": "0"}]}, "'noise' must be a list of numbers"),
        ({"curves": [CURVE | {"std": [0.1]}]}, "'std' 1"),
        (
            {"curves": [CURVE | {"dataset": "faces"}]},
            "no curves of .*'tasks'; it has: faces",
        ),
    ],
)
def test_malformed_curves_end_the_run_before_it_starts(tmp_path, curves, message):
    path = curves_file(tmp_path, curves)
    config = dataclasses.replace(
        SMALL, reference_curves=path, reference_dataset="tasks"
    )
    with pytest.raises(ValueError, match=f"--reference_curves=.*{message}"):
        execute(config, tmp_path)
    assert not (tmp_path / "runs.csv").exists()


# --- toy and randomness ---------------------------------------------------------------


def test_toy(tmp_path):
    result, printed = execute(Config(study="toy", runs=20), tmp_path)
    assert result.clean[0] >= 0.9
    assert result.clean[1] >= 0.9
    # Every cluster holds labels of the other classes only: worse than guessing.
    assert result.noisy.shape == (20, 2)
    assert result.noisy.mean() < 0.1
    points = table(tmp_path / "points.csv")
    assert len(points) == 30
    assert all(row["true_class"] != row["given_label"] for row in points)
    x = np.array([[float(row["x"]), float(row["y"])] for row in points])
    for labels, predictions in (
        ("true_class", "predicted_clean"),
        ("given_label", "predicted_noisy"),
    ):
        y = [int(row[labels]) for row in points]
        expected = KNeighborsClassifier(5).fit(x, y).predict(x)
        assert [int(row[predictions]) for row in points] == expected.tolist()
    share = np.mean([row["true_class"] == row["predicted_noisy"] for row in points])
    assert result.noisy[0, 0] == share
    assert "guessing 0.333" in printed
    assert is_picture(tmp_path / "toy.png")


@pytest.mark.slow
def test_randomness(tmp_path):
    config = dataclasses.replace(
        SMALL,
        study="randomness",
        learners=("mlp", "nearest_centroid"),
        noise_rates=(0.0, 0.4),
    )
    result, _ = execute(config, tmp_path)
    spread = {
        name: {s: np.ptp(a, axis=1) for s, a in settings.items()}
        for name, settings in result.accuracy.items()
    }
    # Without noise only the model can differ; centroids differ by noise only.
    assert spread["mlp"]["fixed_model"][0] == 0
    assert spread["mlp"]["fixed_model"][1] > 0
    assert np.all(spread["mlp"]["fixed_noise"] > 0)
    assert np.all(spread["mlp"]["double_random"] > 0)
    np.testing.assert_array_equal(spread["nearest_centroid"]["fixed_noise"], 0)
    accuracy = result.accuracy["nearest_centroid"]
    np.testing.assert_array_equal(accuracy["fixed_model"], accuracy["double_random"])
    rows = table(tmp_path / "randomness.csv")
    assert len(rows) == 2 * 3 * 2 * 3
    assert is_picture(tmp_path / "randomness_mlp.png")
    assert is_picture(tmp_path / "randomness_nearest_centroid.png")


def test_what_is_finished_outlives_an_interruption(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text('{"learners": "of a run before"}')
    study_of_runs = offline.study

    def interrupted(learner, *arguments, **options):
        if learner.name == "mlp":
            raise KeyboardInterrupt
        return study_of_runs(learner, *arguments, **options)

    monkeypatch.setattr(offline, "study", interrupted)
    config = dataclasses.replace(
        SMALL, learners=("nearest_centroid", "mlp"), noise_rates=(0.0, 0.4)
    )
    with pytest.raises(KeyboardInterrupt):
        execute(config, tmp_path)
    assert {row["learner"] for row in table(tmp_path / "runs.csv")} == {
        "nearest_centroid"
    }
    assert is_picture(tmp_path / "offline.png")
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["learners"] == ["nearest_centroid", "mlp"]


# --- bad input ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"study": "figure1"}, "--study=figure1 is unknown; known: offline, toy"),
        ({"dataset": "mnist"}, "--dataset=mnist is unknown"),
        ({"noise": "pepper"}, "--noise=pepper is unknown"),
        ({"learners": ("knn", "gnn")}, "--learners has the unknown 'gnn'; known: "),
        ({"learners": ()}, "--learners is empty"),
        ({"noise_rates": ()}, "--noise_rates is empty"),
        ({"noise_rates": (0.1, 1.1)}, r"--noise_rates must lie in \[0, 1\], got 1\.1"),
        ({"noise_rates": (float("nan"),)}, r"--noise_rates must lie in \[0, 1\]"),
        ({"runs": 0}, r"--runs must lie in 1\.\.2\^31-1, got 0"),
        ({"epochs": 0}, "--epochs must lie"),
        ({"neighbours": 0}, "--neighbours must lie"),
        ({"neighbours": 301}, "--neighbours=301 exceeds the 300 training rows"),
        (
            {"train_size": 1700},
            "--train_size=1700 and --test_size=200 ask for 1900 rows",
        ),
        ({"dataset": "google_cluster", "data_dir": None}, "needs --data_dir"),
        (
            {"reference_curves": "missing.json"},
            "--reference_curves needs --reference_data",
        ),
        (
            {"reference_curves": "missing.json", "reference_dataset": "tasks"},
            "--reference_curves=missing.json cannot be read",
        ),
        (
            {"reference_dataset": "tasks"},
            "--reference_dataset needs --reference_curves",
        ),
        ({"study": "toy"}, "--train_size is for --study=offline or randomness only"),
        (
            {"study": "randomness", "compare_sklearn": True},
            "--compare_sklearn is for --study=offline only",
        ),
        ({"hidden": (0,)}, "--hidden must be widths of at least 1"),
        ({"learning_rate": -1.0}, "--learning_rate must be > 0"),
        ({"svm_c": 0.0}, "--svm_c must be > 0"),
        ({"num_trees": 0}, "--num_trees must lie"),
        ({"learners": ("knn", "vgg")}, "--learners has vgg: "),
    ],
)
def test_bad_settings(changes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        execute(dataclasses.replace(SMALL, **changes), tmp_path)
    assert not (tmp_path / "runs.csv").exists()


def test_a_learner_without_counterpart_is_not_compared(monkeypatch, tmp_path):
    monkeypatch.setattr(names, "LEARNERS", (*names.LEARNERS, "odd"))
    config = dataclasses.replace(SMALL, learners=("odd",), compare_sklearn=True)
    with pytest.raises(ValueError, match="no counterpart of odd; it has one of knn"):
        execute(config, tmp_path)


def test_the_command(tmp_path):
    done = call(
        "--noise_rates=0,0.5",
        "--runs=2",
        "--learners=nearest_centroid",
        "--train_size=200",
        f"--output_dir={tmp_path}",
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert {path.name for path in tmp_path.iterdir()} == {
        "runs.csv",
        "summary.csv",
        "times.csv",
        "offline.png",
        "config.json",
    }
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["noise_rates"] == [0.0, 0.5]
    assert config["neighbours"] == 4
    assert "200 training rows, 86 clean test rows" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--noise_rates=0,much"], "error: --noise_rates must be numbers, got 0,much"),
        (
            ["--schemes=basic"],
            "error: --schemes has no meaning for experiments.motivation",
        ),
    ],
)
def test_bad_flags(arguments, message, tmp_path):
    done = call(*arguments, f"--output_dir={tmp_path}")
    assert done.returncode == 1
    assert done.stderr.strip() == message
    assert list(tmp_path.iterdir()) == []


def test_one_cpu_device_per_core_is_asked_for_once_only():
    before = len(jax.devices())
    devices.use_all_cores()  # JAX has started: without effect, without error
    assert len(jax.devices()) == before
