"""Noise as asked, as it came out, as estimated: what is computed, written, refused."""

import csv
import dataclasses
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

import rad_jax
from experiments import (
    noise_cases,
    noise_estimates,
    noise_figures,
    noise_study,
    noises,
)
from experiments.noise_report import Outcome
from experiments.settings import Config
from rad_jax import devices, noise, schedules, selection, spread
from rad_jax.datasets import StreamData
from rad_jax.validation import stratified_split

ROOT = Path(__file__).parent.parent
K, T, N, SEEDS = 3, 4, 120, 6
SMALL = Config(
    initial_size=100,
    batch_size=20,
    num_batches=4,
    num_seeds=2,
    label_model="nearest_centroid",
    classifier="nearest_centroid",
)


@pytest.fixture(scope="module")
def data():
    """Three clouds whose mix changes by arrival; some rows have no label."""
    rng = np.random.default_rng(0)
    centres = 3 * np.eye(K, 5)

    def rows(label):
        noisy = centres[label] + rng.normal(size=(*label.shape, 5))
        return noisy.astype(np.float32)

    mix = [[0.7, 0.2, 0.1], [0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.1, 0.1, 0.8]]
    labels = np.stack([rng.choice(K, N, p=p) for p in mix]).astype(np.int32)
    initial = np.arange(30, dtype=np.int32) % K
    features = rows(labels)
    labels[rng.random(labels.shape) < 0.1] = -1
    return StreamData(
        rows(initial),
        initial,
        features,
        labels,
        rows(initial),
        initial,
        K,
        tuple("abc"),
    )


@pytest.fixture(scope="module")
def own_file(data, tmp_path_factory):
    """Its rows, all with a label, as a file of one's own."""
    path = tmp_path_factory.mktemp("rows") / "rows.npz"
    known = data.labels.ravel() >= 0
    features = data.features.reshape(-1, 5)[known]
    np.savez(path, features=features, labels=data.labels.ravel()[known])
    return str(path)


@pytest.fixture(scope="module")
def matrix_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("matrix") / "matrix.csv"
    path.write_text("0.5,0.5,0\n0,0.8,0.2\n0.1,0.3,0.6\n")
    return str(path)


# --- noise alone ----------------------------------------------------------------------


def case(kind, rate, schedule=None, matrix=None):
    config = dataclasses.replace(SMALL, noise_matrix=matrix)
    return noise_cases.case(config, kind, rate, schedule)


KINDS = {
    "symmetric": (0.4, 0.4 * (1 - np.eye(K)) / 2),
    "independent": (0.4, 0.4 * (1 - np.eye(K)) / 2),
    "independent_any_class": (0.6, 0.6 * (1 - np.eye(K)) / 3),
    "pair_flip": (0.3, 0.3 * np.roll(np.eye(K), 1, 1)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_noise_comes_out_as_asked(data, kind):
    rate, off_diagonal = KINDS[kind]
    asked = off_diagonal + np.diag(1 - off_diagonal.sum(1))
    keys = noise_cases.noise_keys(0, SEEDS)
    got = noise_cases.realise(case(kind, rate), data, keys)
    np.testing.assert_allclose(got.asked, [asked] * SEEDS, atol=1e-6)
    np.testing.assert_allclose(got.asked_rate, 1 - asked[0, 0], atol=1e-6)
    # Counts over all seeds, against the standard error of as many independent rows.
    known = data.labels >= 0
    counts = np.zeros((K, K))
    for given in got.given:
        np.add.at(counts, (data.labels[known], given[known]), 1)
    size = counts.sum(1, keepdims=True)
    error = np.sqrt(asked * (1 - asked) / size)
    off = np.abs(counts / size - asked)
    assert np.all(off <= 4 * error)
    some = error > 0
    assert got.deviation() == pytest.approx(np.max(off[some] / error[some]), rel=1e-3)
    assert np.all(got.given[:, ~known] == -1)
    wrong = [[(g != y)[y >= 0].mean() for g, y in zip(s, data.labels, strict=True)]
             for s in got.given]  # fmt: skip
    np.testing.assert_allclose(got.rate, wrong)


def test_a_matrix_under_a_schedule_is_what_its_classes_met(data, matrix_file):
    """A class that comes late meets the rates of the late arrivals."""
    curve = [0.2, 0.2, 0.2, 0.9]
    text = "1-4:constant(0.2);4-:constant(0.9)"
    wanted = case("asymmetric", 1.0, text, matrix_file)
    got = noise_cases.realise(wanted, data, noise_cases.noise_keys(1, SEEDS))
    matrix = np.loadtxt(matrix_file, delimiter=",")
    rates = np.zeros(T)
    for k in range(K):
        n = (data.labels == k).sum(1)
        mine = (1 - np.dot(n, curve) / n.sum()) * np.eye(K)[k]
        mine = mine + np.dot(n, curve) / n.sum() * matrix[k]
        np.testing.assert_allclose(got.asked[:, k], [mine] * SEEDS, atol=1e-6)
        rates += n * curve * (1 - matrix[k, k])
    rates /= (data.labels >= 0).sum(1)
    np.testing.assert_allclose(got.asked_rate, [rates] * SEEDS, atol=1e-6)
    assert got.deviation() <= 4
    assert np.all(got.counts[:, 0, 2] == 0)  # never asked for


def test_a_random_schedule_is_followed_seed_by_seed(data):
    wanted = case("symmetric", 0.8, "uniform(0.2,0.9)")
    got = noise_cases.realise(wanted, data, noise_cases.noise_keys(2, 3))
    assert np.ptp(got.asked_rate) > 0.1
    rows = (data.labels >= 0).sum(1)
    np.testing.assert_array_less(got.rate, got.asked_rate + 1e-5)
    np.testing.assert_array_less(got.asked_rate - 1 / rows - 1e-5, got.rate)


def test_noise_that_depends_on_features_has_no_matrix(data):
    wanted = case("feature_dependent", 0.3)
    got = noise_cases.realise(wanted, data, noise_cases.noise_keys(0, 2))
    assert np.isnan(got.asked).all()
    assert np.isnan(got.deviation())
    np.testing.assert_allclose(got.asked_rate, 0.3)
    assert abs(got.rate.mean() - 0.3) < 4 * np.sqrt(0.21 / (data.labels >= 0).sum() / 2)


def test_seeds_have_the_noise_that_a_sweep_gives_them(data):
    wanted = case("symmetric", 0.4)
    few, more = (
        noise_cases.realise(wanted, data, noise_cases.noise_keys(0, n))
        for n in (1, SEEDS)
    )
    np.testing.assert_array_equal(few.given[0], more.given[0])
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), 2), 1)  # seed 1
    alone = jax.jit(noise.corrupt, static_argnums=0, static_argnames="num_classes")(
        noise.symmetric(0.0)._replace(params=None),
        {"rate": 0.4},
        data.labels[2],
        np.ones(N, bool),
        num_classes=K,
        key=jax.random.fold_in(key, 3),
    )
    np.testing.assert_array_equal(more.given[1, 2], alone)


def test_other_noise_than_asked_stands_out(data):
    keys = noise_cases.noise_keys(0, SEEDS)
    pairs = noise_cases.realise(case("pair_flip", 0.4), data, keys)
    even = noise_cases.realise(case("symmetric", 0.4), data, keys)
    assert pairs._replace(asked=even.asked).deviation() > 10
    assert even._replace(asked=pairs.asked).deviation() == np.inf  # never asked for


@pytest.mark.parametrize("num_batches", [1, 2, 3, 24])
def test_examples_cover_a_stream_of_any_length(num_batches):
    cases = noise_cases.examples(SMALL, num_batches)
    kinds = ["constant", "uniform", "gaussian", "sin", "linear"]
    assert [x.name.split()[2].partition("(")[0] for x in cases[:5]] == kinds
    assert len(cases) == (6 if num_batches >= 3 else 5)
    for one in cases:
        assert one.rate == 1
        schedule = noises.parse_schedule(one.config.noise_schedule)
        schedules.check_covers(schedule, num_batches)


# --- methods --------------------------------------------------------------------------


def joint_by_loop(probs, given):
    """Northcutt et al. 2021, row by row; one row of each class is taken for granted."""
    k = probs.shape[1]
    threshold = [
        np.mean([p[j] for p, y in zip(probs, given, strict=True) if y == j] or [np.inf])
        for j in range(k)
    ]
    counts = np.zeros((k, k))
    for p, y in zip(probs, given, strict=True):
        confident = [j for j in range(k) if p[j] >= threshold[j] - 1e-6]
        if y >= 0 and confident:
            counts[max(confident, key=lambda j: p[j]), y] += 1
    for j in range(k):
        counts[j, j] = max(counts[j, j], 1)
    for j in range(k):
        counts[:, j] *= sum(y == j for y in given) / counts[:, j].sum()
    return counts


def rows_of(rng, size, k=4, votes=None):
    true = rng.integers(0, k, size)
    logits = 2 * np.eye(k)[true] + rng.normal(size=(size, k))
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    if votes:  # as of a KNN: many rows at the same few values
        probs = np.stack([rng.multinomial(votes, p) / votes for p in probs])
    given = np.where(rng.random(size) < 0.3, rng.integers(0, k, size), true)
    given[::7] = -1
    return probs.astype(np.float32), given


@pytest.mark.parametrize("votes", [None, 5])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_confident_joint_equals_the_loop(votes, seed):
    probs, given = rows_of(np.random.default_rng(seed), 150, votes=votes)
    got = noise_estimates.confident_joint(jnp.asarray(probs), jnp.asarray(given))
    counts = joint_by_loop(probs, given)
    np.testing.assert_allclose(
        got.matrix, counts / counts.sum(1, keepdims=True), atol=1e-5
    )
    assert got.rate == pytest.approx(1 - np.trace(counts) / counts.sum(), abs=1e-5)


@pytest.mark.parametrize("votes", [None, 5])
def test_counting_equals_the_loop(votes):
    probs, given = rows_of(np.random.default_rng(2), 150, votes=votes)
    got = noise_estimates.counting(jnp.asarray(probs), jnp.asarray(given))
    counts = np.zeros((4, 4))
    for p, y in zip(probs, given, strict=True):
        if y >= 0:
            counts[np.argmax(p), y] += 1
    np.testing.assert_allclose(
        got.matrix, counts / counts.sum(1, keepdims=True), atol=1e-6
    )
    assert got.rate == pytest.approx(1 - np.trace(counts) / counts.sum(), abs=1e-6)


@pytest.mark.parametrize("method", noise_estimates.METHODS)
def test_classes_that_nobody_is_taken_for_leave_no_nan(method):
    """Class 3 is neither given nor likely."""
    probs, given = rows_of(np.random.default_rng(3), 60)
    probs[:, 3] = 0
    given = np.where(given == 3, 0, given)
    nobody = noise_estimates.Clean(jnp.zeros((0, 4)), jnp.zeros(0, int), jnp.zeros(0))
    found = noise_estimates.METHODS[method](
        jnp.asarray(probs), jnp.asarray(given), nobody
    )
    np.testing.assert_allclose(found.matrix.sum(1), 1, rtol=1e-5)
    assert found.matrix.min() >= 0
    assert 0 < found.rate < 1


def test_the_estimate_is_the_library_s():
    rng = np.random.default_rng(4)
    probs, given = rows_of(rng, 80)
    clean_probs, clean_label = rows_of(rng, 20)
    clean_label = np.maximum(clean_label, 0)
    valid = np.arange(20) < 15
    judged = noise_estimates.Judged(
        probs.reshape(1, 4, 20, 4), clean_probs[None], clean_label, valid, 0.0, 0.0
    )
    got = noise_estimates.compare(judged, given.reshape(1, 4, 20), slice(0, 1))
    assert list(got) == list(noise_estimates.METHODS)
    own = noise.estimate_transition_matrix(
        jnp.asarray(probs),
        jnp.asarray(given),
        jnp.ones(80, bool),
        clean_probs=jnp.asarray(clean_probs[:15]),
        clean_label=jnp.asarray(clean_label[:15]),
    )
    np.testing.assert_allclose(got["estimate"].matrix[0], own.matrix, atol=1e-5)
    np.testing.assert_allclose(got["estimate"].rate[0], own.error_rate, atol=1e-5)


def centroid_probs(train, label, rows):
    """softmax(-d^2 / (2 s^2)), s^2 the mean squared distance to a row's own mean."""
    means = np.stack([train[label == k].mean(0) for k in range(K)])
    spread = np.mean(np.sum((train - means[label]) ** 2, axis=1))
    logits = -np.sum((rows[:, None] - means) ** 2, axis=2) / (2 * spread)
    probs = np.exp(logits - logits.max(1, keepdims=True))
    return probs / probs.sum(1, keepdims=True)


def _ignorant(spec, params, state, memory, queries):
    del params, state, memory
    return jnp.full((queries.features.shape[0], spec.num_classes), 1 / K)


def test_rows_are_judged_by_what_came_before_them(data):
    """The mean of L, which knows nothing, and of C, trained on all earlier rows."""
    algo = rad_jax.rad(
        label_model=rad_jax.nearest_centroid()._replace(predict_proba=_ignorant),
        classifier=rad_jax.nearest_centroid(),
        selection=selection.no_selection(),
        num_classes=K,
        memory_capacity=24 + T * N,
    )
    keys = noise_cases.noise_keys(0, SEEDS)
    given = noise_cases.realise(case("symmetric", 0.4), data, keys).given[:2]
    done = []
    judged = noise_estimates.judge_stream(algo, data, given, 0, done.append)
    assert done == [1, 2, 3, 4]
    order = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), 1), 2**31 - 1)
    held_out, _ = stratified_split(
        order, jnp.asarray(data.initial_labels), jnp.ones(30, bool), 0.2
    )
    held_out = np.asarray(held_out)
    assert len(held_out) == judged.clean_valid.sum() == 6
    np.testing.assert_array_equal(judged.clean_label, data.initial_labels[held_out])
    trains = ~np.isin(np.arange(30), held_out)
    for r in range(2):
        rows, label = data.initial_features[trains], data.initial_labels[trains]
        for i in range(T):
            expected = (centroid_probs(rows, label, data.features[i]) + 1 / K) / 2
            np.testing.assert_allclose(judged.probs[r, i], expected, atol=1e-4)
            known = given[r, i] >= 0
            rows = np.concatenate([rows, data.features[i][known]])
            label = np.concatenate([label, given[r, i][known]])
        clean = centroid_probs(rows, label, data.initial_features[held_out])
        np.testing.assert_allclose(
            judged.clean_probs[r], (clean + 1 / K) / 2, atol=1e-4
        )


# --- the study ------------------------------------------------------------------------


def table(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def is_picture(path):
    return path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 10_000


@pytest.fixture(scope="module")
def studied(own_file, tmp_path_factory):
    path = tmp_path_factory.mktemp("study")
    printed = io.StringIO()
    config = dataclasses.replace(SMALL, dataset=own_file, output_dir=str(path))
    outcome = noise_study.run(config, Console(file=printed, width=80))
    return outcome, printed.getvalue(), path


def test_without_a_noise_flag_there_are_four_cases(studied):
    outcome, printed, path = studied
    names = ["symmetric 0.2", "symmetric 0.4", "symmetric 0.6", "pair_flip 0.3"]
    assert [one.name for one in outcome.cases] == names
    assert json.loads((path / "config.json").read_text())["cases"] == names
    assert "4 cases x 2 seeds = 8 runs" in printed
    for one, rate in zip(outcome.realised, (0.2, 0.4, 0.6, 0.3), strict=True):
        np.testing.assert_allclose(one.rate, rate)
    assert len(outcome.examples) == 6


def test_errors_are_those_of_the_matrices(studied):
    outcome, printed, path = studied
    rows = table(path / "estimates.csv")
    assert len(rows) == 4 * 2 * 3
    for row in rows:
        i = [one.name for one in outcome.cases].index(row["case"])
        seed, method = int(row["seed"]), row["method"]
        matrix = outcome.found[i][method].matrix[seed]
        one = outcome.realised[i]
        off = np.abs(matrix - one.asked[seed]).mean()
        assert float(row["error_asked"]) == pytest.approx(off)
        known = ~np.isnan(one.matrix[seed])
        off = np.abs(matrix - one.matrix[seed])[known].mean()
        assert float(row["error_realised"]) == pytest.approx(off)
        assert float(row["rate"]) == pytest.approx(outcome.found[i][method].rate[seed])
        assert float(row["realised_rate"]) == pytest.approx(one.rate[seed].mean())
    mean, _, half = spread.mean_std_ci95(outcome.error(3, "counting", "asked"))
    (line,) = [x for x in printed.split("pair_flip 0.3")[-2].splitlines()
               if x.split()[:1] == ["counting"]]  # fmt: skip
    assert f"{mean:.4f}±{half:.4f}" in line
    assert line.split()[-1] == "0.300"


def test_files_hold_matrices_and_rates(studied):
    outcome, _, path = studied
    rows = table(path / "transition.csv")
    assert len(rows) == 4 * K**2
    mine = [row for row in rows if row["case"] == "pair_flip 0.3"]
    for name, values in (
        ("asked", 0.7 * np.eye(K) + 0.3 * np.roll(np.eye(K), 1, 1)),
        ("realised", outcome.realised[3].matrix.mean(0)),
        ("estimate", outcome.found[3]["estimate"].matrix.mean(0)),
    ):
        got = np.array([float(row[name] or "nan") for row in mine]).reshape(K, K)
        np.testing.assert_allclose(got, values, atol=1e-6)
    assert [(row["true"], row["given"]) for row in mine[:2]] == [("0", "0"), ("0", "1")]
    rows = table(path / "rates.csv")
    assert len(rows) == (4 + 6) * 4
    (name,) = (x.name for x in outcome.examples if "uniform" in x.name)
    mine = [row for row in rows if row["case"] == name]
    assert [row["arrival"] for row in mine] == ["1", "2", "3", "4"]
    realised = outcome.realised_examples[1].rate
    for t, row in enumerate(mine):
        assert float(row["realised_mean"]) == pytest.approx(realised[:, t].mean())
        assert float(row["realised_min"]) == pytest.approx(realised[:, t].min())
        assert float(row["asked_max"]) == pytest.approx(
            outcome.realised_examples[1].asked_rate[:, t].max()
        )


def test_pictures_are_drawn(studied):
    _, _, path = studied
    assert is_picture(path / "transition.png")
    assert is_picture(path / "rates.png")


def test_rows_of_classes_that_never_come_do_not_count():
    asked = np.stack([np.eye(2), np.eye(2)])
    never = np.stack([np.full((2, 2), np.nan), [[1.0, 0.0], [np.nan, np.nan]]])
    found = noise_estimates.Found(np.full((2, 2, 2), 0.5), np.zeros(2))
    one = noise_cases.Realised(None, None, None, asked, never, None)
    outcome = Outcome([], [one], [{"counting": found}], [], [])
    np.testing.assert_allclose(outcome.error(0, "counting", "asked"), 0.5)
    np.testing.assert_allclose(outcome.error(0, "counting", "matrix"), [np.nan, 0.5])


# --- pictures -------------------------------------------------------------------------


@pytest.fixture
def figures(monkeypatch):
    from matplotlib.figure import Figure

    drawn = []
    save = Figure.savefig

    def keep(self, *args, **options):
        drawn.append(self)
        save(self, *args, **options | {"dpi": 40})

    monkeypatch.setattr(Figure, "savefig", keep)
    return drawn


def matrices(k, asked=True):
    rng = np.random.default_rng(k)
    three = rng.dirichlet(np.ones(k), (3, k))
    if not asked:
        three[0] = np.nan
    return dict(zip(("asked", "realised", "estimate"), three, strict=True))


def test_entries_are_written_in_percent(figures, tmp_path):
    both = [matrices(3), matrices(3, asked=False)]
    noise_figures.plot_transition(
        ["one", "two"], both, "abc", tmp_path / "x.png", title="t"
    )
    panels = figures[0].axes[:8]
    for row, one in enumerate(both):
        target = ("asked", "realised")[row]
        assert panels[4 * row + 3].get_title() == f"estimate - {target}"
        shown = [one[name] for name in ("asked", "realised", "estimate")]
        for axes, values in zip(panels[4 * row : 4 * row + 3], shown, strict=True):
            texts = [text.get_text() for text in axes.texts]
            known = 100 * values[~np.isnan(values)]
            assert texts == [f"{x:.0f}" for x in known.ravel()]
        off = 100 * (one["estimate"] - one[target])
        np.testing.assert_allclose(panels[4 * row + 3].images[0].get_array(), off)


def test_many_classes_have_no_numbers(figures, tmp_path):
    noise_figures.plot_transition(
        ["one"], [matrices(12)], [str(i) for i in range(12)], tmp_path / "x.png",
        title="t",
    )  # fmt: skip
    assert not any(axes.texts for axes in figures[0].axes)


def test_rates_are_lines_points_and_a_band(figures, tmp_path):
    rng = np.random.default_rng(0)
    pairs = [(rng.random((3, 5)), rng.random((3, 5))) for _ in range(4)]
    names = ["a", "b", "c", "d x 1-3:constant(0.2);3-:uniform(0,1)"]
    noise_figures.plot_rates(names, pairs, tmp_path / "x.png", title="t")
    panels = [axes for axes in figures[0].axes if axes.get_visible()]
    assert len(panels) == 4
    for axes, (asked, realised) in zip(panels, pairs, strict=True):
        line, points = axes.get_lines()
        np.testing.assert_array_equal(line.get_ydata(), asked[0])
        np.testing.assert_array_equal(points.get_ydata(), realised[0])
        heights = axes.collections[0].get_paths()[0].vertices[:, 1]
        assert heights.min() == pytest.approx(realised.min())
        assert heights.max() == pytest.approx(realised.max())
    assert panels[3].get_title() == "d\n1-3:constant(0.2)\n3-:uniform(0,1)"


# --- from the command line ------------------------------------------------------------


def call(*arguments):
    env = {k: v for k, v in os.environ.items() if k != "COLUMNS"}
    command = [sys.executable, "-W", "error", "-m", "experiments.noise_study"]
    return subprocess.run(
        [*command, *arguments],
        cwd=ROOT,
        env=env | {"PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.slow
def test_one_noise_from_the_command_line(own_file, tmp_path):
    done = call(
        f"--dataset={own_file}",
        "--noise=pair_flip",
        "--noise_rates=0.5,0.8",
        "--noise_schedule=linear(0.2,0.6,1,5)",
        "--schemes=basic",
        "--label_model=nearest_centroid",
        "--classifier=nearest_centroid",
        "--initial_size=100",
        "--batch_size=20",
        "--num_batches=4",
        "--num_seeds=1",
        f"--output_dir={tmp_path}",
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    rows = table(tmp_path / "rates.csv")
    schedule = "linear(0.2,0.6,1,5)"
    names = [f"pair_flip 0.5 x {schedule}", f"pair_flip 0.8 x {schedule}"]
    assert list(dict.fromkeys(row["case"] for row in rows)) == names
    last = [row for row in rows if row["arrival"] == "4"]
    asked = [float(row["asked_mean"]) for row in last]
    np.testing.assert_allclose(asked, [0.3, 0.48], rtol=1e-6)
    assert [float(row["realised_mean"]) for row in last] == [0.3, 0.45]  # 6, 9 of 20
    assert is_picture(tmp_path / "transition.png")
    assert "C = nearest_centroid, basic" in done.stdout


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schemes": ("basic", "voting")}, ["--schemes", "voting, basic", "one of"]),
        ({"schemes": ("active",)}, ["--schemes", "active"]),
        ({"schemes": ()}, ["--schemes", "none"]),
        ({"label_delay": 2}, ["--label_delay", "no meaning"]),
        ({"seeds_per_chunk": 2}, ["--seeds_per_chunk", "no meaning"]),
        ({"resume": True}, ["--resume", "no meaning"]),
        ({"sweep_budget": (0.1,)}, ["--sweep_budget", "no meaning"]),
        ({"noise_rates": (1.2,)}, ["--noise_rates", "1.2"]),
        ({"num_seeds": 0}, ["--num_seeds", "0"]),
        ({"noise": "asymmetric"}, ["--noise_matrix"]),
        ({"noise_schedule": "constant(0.2"}, ["--noise_schedule", "constant(0.2"]),
    ],
)
def test_bad_settings_are_refused(changes, words):
    with pytest.raises(ValueError, match=words[0]) as refused:
        noise_study.check(dataclasses.replace(SMALL, **changes))
    for word in words:
        assert word in str(refused.value)


def test_the_memory_announced_is_that_of_all_runs(data, monkeypatch):
    config = dataclasses.replace(
        SMALL, schemes=("voting",), noise_rates=(0.2, 0.4), steps_per_batch=1
    )

    def announced(num_seeds):
        several = dataclasses.replace(config, num_seeds=num_seeds)
        return noise_study._plan(several, data).estimated_bytes

    monkeypatch.setattr(devices, "CPU_BYTES", 1)  # a sweep would be cut into chunks
    one, two, three = map(announced, (1, 2, 3))
    assert three - two == two - one > 0


def test_sizes_beyond_the_data_are_refused(tmp_path):
    config = dataclasses.replace(SMALL, num_batches=500, output_dir=str(tmp_path))
    with pytest.raises(ValueError, match="num_batches"):
        noise_study.run(config)
    assert not list(tmp_path.iterdir())


def test_a_kind_of_noise_alone_is_at_the_usual_rate():
    """--noise alone means that noise, not the four cases."""
    program = """
from absl import flags
from experiments import noise_study
noise_study.define_flags()
for text in ("", "--noise=symmetric", "--noise=pair_flip", "--alpha=validation"):
    for name in list(flags.FLAGS):
        flags.FLAGS[name].unparse()
    flags.FLAGS(["x", *text.split()])
    try:
        config, standard = noise_study.check(noise_study.read_flags())
        print(standard, config.noise, *config.noise_rates, *config.schemes)
    except ValueError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.splitlines() == [
        "True symmetric 0.4 voting",
        "False symmetric 0.4 voting",
        "False pair_flip 0.4 voting",
        "--alpha has no meaning for experiments.noise_study",
    ], done.stderr
