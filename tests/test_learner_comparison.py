"""`python -m experiments.learners` as a user runs it."""

import csv
import os
import subprocess
import sys

import numpy as np
import pytest

from experiments import learner_comparison as learners
from rad_jax import datasets


def run(*flags):
    env = {k: v for k, v in os.environ.items() if k != "RAD_JAX_DATA"}
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "experiments.learners", *flags],
        capture_output=True,
        text=True,
        env=env,
        timeout=300,
    )


@pytest.mark.slow
def test_neighbours_and_centroids_predict_what_scikit_learn_predicts(tmp_path):
    done = run(
        "--learners=knn,nearest_centroid",
        "--draws=2",
        "--train_size=300",
        "--test_size=200",
        "--seeds=1,2",
        f"--output_dir={tmp_path}",
    )
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "learners.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * 2
    assert {row["of_them_no_tie"] for row in rows} == {"0"}
    assert all(0.5 < float(row["accuracy"]) < 1 for row in rows)
    with open(tmp_path / "times.csv") as file:
        times = list(csv.DictReader(file))
    assert [row["learner"] for row in times] == ["knn", "nearest_centroid"]
    assert all(float(row[n]) > 0 for row in times for n in ("1", "2", "sklearn"))
    assert "milliseconds" in done.stdout


def test_draws_share_no_row_and_are_scaled_by_training_rows():
    dataset = datasets.digits.load()
    draw = learners.draw_rows(dataset, 500, 300, seed=3)
    assert draw.train.shape == (500, 64)
    assert draw.test.shape == (300, 64)
    mean = draw.train.mean(axis=0)
    np.testing.assert_allclose(mean, 0.0, atol=1e-5)
    order = np.random.default_rng(3).permutation(1797)
    np.testing.assert_array_equal(draw.truth, dataset.labels[order[500:800]])


def test_masked_rows_are_left_out_and_noise_flips_two_in_five():
    draw = learners.draw_rows(datasets.digits.load(), 500, 300, seed=3)
    masked = learners.given_labels(draw, "masked", 10, 3, seed=0)
    assert masked.shape == (3, 500)
    kept = masked >= 0
    assert 0.5 < kept.mean() < 0.7
    assert (masked[kept] == np.broadcast_to(draw.label, (3, 500))[kept]).all()
    noisy = learners.given_labels(draw, "noisy", 10, 3, seed=0)
    np.testing.assert_array_equal((noisy != draw.label).sum(axis=1), 200)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--learners=knn,tree"], "--learners has the unknown tree; known: knn"),
        (["--draws=0"], "--draws must be at least 1, got 0"),
        (["--seeds=1,x"], "--seeds must be whole numbers, got 1,x"),
        (["--seeds=0"], "--seeds must be at least 1, got 0"),
        (
            ["--train_size=1500", "--test_size=300"],
            "ask for 1800 rows; digits has 1797",
        ),
        (["--dataset=google_cluster"], "--dataset=google_cluster needs --data_dir"),
    ],
)
def test_bad_flags(flags, message, tmp_path):
    done = run(*flags, f"--output_dir={tmp_path}")
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr
