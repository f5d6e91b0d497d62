"""The benchmark: what it computes from times, what it writes and refuses."""

import io
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from rich.console import Console

from experiments import (
    bench_gemm,
    bench_latency,
    bench_online,
    bench_picture,
    bench_report,
    bench_scaling,
    bench_settings,
    bench_sklearn,
    bench_timing,
    bench_training,
    benchmark,
    stream,
)
from experiments.bench_presets import AIMS, FULL, PARTS, PRESETS, QUICK, TINY
from experiments.bench_timing import Figure, Part, figure
from rad_jax import Training, mlp

ROOT = Path(__file__).parent.parent
CONFIG = stream.Config(
    dataset="synthetic",
    num_classes=3,
    width=4,
    label_model="knn",
    classifier="mlp",
    schemes=("basic",),
)
#: As few and as small programs as can be.
SMALL = TINY._replace(initial_size=60, batch_size=20, test_size=30, online_seeds=3)
QUIET = Console(quiet=True)


def positive(part):
    assert part.rows
    assert part.figures
    for name, value in part.figures.items():
        assert 0 < value.min <= value.median <= value.max < np.inf, name


# --- figures --------------------------------------------------------------------------


def test_ratios_are_formed_within_repetitions():
    assert figure([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0, 3)
    found = bench_timing.ratio([10.0, 40.0, 90.0], [10.0, 20.0, 30.0])
    assert found == (2.0, 1.0, 3.0, 3)
    with pytest.raises(ValueError, match="argument"):
        bench_timing.ratio([1.0, 2.0], [1.0])


def test_what_is_compared_is_timed_in_turns():
    calls = []

    def timed(name):
        return lambda: calls.append(name) or float(len(calls))

    found = bench_timing.interleave({name: timed(name) for name in "ab"}, 3)
    assert calls == list("ababab")
    assert found == {"a": [1.0, 3.0, 5.0], "b": [2.0, 4.0, 6.0]}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Figure(1234.5, 0.01234, 2e6, 3), "1,234 (0.0123-2,000,000)"),
        (Figure(12.345, 12.345, 12.345, 1), "12.3"),
        (0.000123456, "0.00012"),
        (None, ""),
        (7, "7"),
    ],
)
def test_cells(value, text):
    assert bench_timing.text(value) == text


def test_aims():
    assert bench_report.aim_of("gemm_fraction.32_seeds", 0.45) == (
        "at least 0.45",
        True,
    )
    assert bench_report.aim_of("gemm_fraction.8_seeds", 0.45) is None
    words, met = bench_report.aim_of("memory_estimated_over_peak.mlp_knn", 1.26)
    assert (words, met) == ("at least 0.75 and at most 1.25", False)
    assert not bench_report.aim_of("compile_seconds.cached", 3.1)[1]


def test_presets_cover_every_part_and_quick_is_quick():
    for sizes in PRESETS.values():
        assert set(sizes.minutes) == set(PARTS)
    assert sum(QUICK.minutes.values()) < 10 < sum(FULL.minutes.values())
    assert {32, 128} <= set(QUICK.gemm_seeds)
    assert 64 in QUICK.seeds
    assert max(FULL.rows) == 1_000_000
    assert any(name.startswith("memory") for name in AIMS)


# --- the on-line protocol -------------------------------------------------------------


@pytest.fixture(scope="module")
def online():
    return bench_online.measure(CONFIG, SMALL, QUIET)


@pytest.mark.slow
def test_online_figures(online):
    positive(online)
    assert set(online.figures) == {
        "speedup_vs_sklearn.equal_epochs",
        "speedup_vs_sklearn.equal_accuracy",
    }
    sides = [row["side"] for row in online.rows]
    assert sides == ["equal_epochs", "equal_accuracy", "scikit_learn"]
    lost = online.settings["largest_accuracy_loss"]
    assert online.settings["equal_accuracy_holds"] == (lost <= 0.005)
    assert online.settings["void"] == (
        [] if lost <= 0.005 else ["speedup_vs_sklearn.equal_accuracy"]
    )


@pytest.mark.slow
def test_both_sides_see_the_same_rows_and_labels(online):
    """KNN is deterministic: it is right on the same test rows on both sides."""
    accuracy = online.settings["accuracy"]
    theirs = accuracy["scikit_learn"]["label_model"]
    assert len(theirs) == 3
    assert len(set(theirs)) > 1  # schemes differ, so selection is compared, too
    for side in ("equal_epochs", "equal_accuracy"):
        np.testing.assert_allclose(accuracy[side]["label_model"], theirs, atol=1e-6)


def test_noise_is_exact_and_prefix_stable():
    data = stream.load(bench_online.configure(CONFIG, SMALL))
    given = bench_online.given_labels(data, 0.3, 3)
    assert given.shape == (3, *data.labels.shape)
    wrong = (given != data.labels).sum(axis=2)
    np.testing.assert_array_equal(wrong, oracles.symmetric_count(0.3, 20))
    np.testing.assert_array_equal(bench_online.given_labels(data, 0.3, 2), given[:2])
    assert (given[0] != given[1]).any()


@pytest.mark.parametrize(
    "sizes", [QUICK, FULL, SMALL, QUICK._replace(batch_size=200), TINY]
)
def test_refit_takes_as_many_steps_as_scikit_learn_or_a_few_more(sizes):
    initial, steps = bench_online.refit_steps(sizes)
    training = Training(mode="refit", steps=steps, initial_steps=initial)
    ours = sum(training.steps_at(i) for i in range(1, sizes.num_batches + 1))
    rows = [
        sizes.initial_size + i * sizes.batch_size
        for i in range(1, sizes.num_batches + 1)
    ]
    theirs = sizes.epochs * sum(-(-n // 200) for n in rows)
    assert theirs <= ours <= theirs + sum(range(sizes.num_batches + 1))
    assert initial == sizes.epochs * -(-sizes.initial_size // 200)


def test_scikit_learns_loop_ensembles_as_algorithm_1():
    rng = np.random.default_rng(0)
    probs = [oracles.random_probs(rng, 200, 4) for _ in range(2)]
    for alpha in ((0.9, 0.5), (0.5, 0.9), (0.7, 0.7)):
        expected, _ = oracles.algorithm_1(*probs, *alpha)
        np.testing.assert_array_equal(bench_sklearn._ensemble(probs, alpha), expected)


def test_scikit_learns_loop_counts_steps_of_kept_rows():
    data = stream.load(bench_online.configure(CONFIG, SMALL))
    given = bench_online.given_labels(data, 0.5, 1)[0]
    settings = bench_sklearn.settings(
        neighbours=5, hidden=(4,), learning_rate=1e-3, epochs=2
    )._replace(minibatch_size=10)
    found, seconds, steps = bench_sklearn.one_seed(data, given, settings)
    assert found.shape == (3, 3, 2)
    assert seconds > 0
    # No-Sel keeps 20 rows an arrival, Opt-Sel exactly half of them, basic any number.
    none, perfect = 2 * (8 + 10), 2 * (7 + 8)
    least, most = 2 * (6 + 6), 2 * (8 + 10)
    assert none + perfect + least <= steps <= none + perfect + most
    assert ((found >= 0) & (found <= 1)).all()


# --- training against a matrix product ------------------------------------------------


def _products(jaxpr) -> int:
    """Floating point operations of every matrix product in it."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            ((contracted, _), _) = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            inner = np.prod([left[i] for i in contracted])
            total += 2 * int(inner * np.prod(equation.outvars[0].aval.shape))
    return total


def test_needed_flops_are_those_of_the_gradients_products():
    widths, minibatch = (7, 5, 6, 3), 11

    def loss(weights, x):
        for w in weights:
            x = jax.nn.relu(x @ w)
        return x.sum()

    shapes = itertools.pairwise(widths)
    weights = [jnp.ones(shape) for shape in shapes]
    jaxpr = jax.make_jaxpr(jax.grad(loss))(weights, jnp.ones((minibatch, widths[0])))
    assert bench_gemm.needed_flops(widths, minibatch) == _products(jaxpr.jaxpr)
    assert bench_gemm.needed_flops((115, 28, 28, 11), 200) == 3_886_400


def test_gemm_part():
    part = bench_gemm.measure(TINY._replace(gemm_seeds=(3,)), QUIET)
    positive(part)
    assert set(part.figures) == {
        "gemm_fraction.3_seeds",
        "mlp_step_vs_sklearn.3_seeds",
        "mlp_step_vs_sklearn_one_process.3_seeds",
    }


def test_training_is_each_seeds_own_whatever_the_devices():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((40, 5)).astype(np.float32)
    labels = rng.integers(0, 3, (3, 40))
    training = Training(steps=4, initial_steps=1, minibatch_size=10)
    learner = mlp((4,), training=training)

    def models(labels, **options):
        return jax.tree.leaves(
            bench_training.training(
                learner, features, labels, num_classes=3, **options
            )()
        )

    spread = models(labels, num_devices=2)  # the third seed fills up
    alone = models(labels[1:2])
    for several, one in zip(spread, alone, strict=True):
        assert several.shape[0] == 4
        np.testing.assert_allclose(several[1], one[0], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(several[2], several[3])
    assert any((x[0] != x[1]).any() for x in spread)


# --- whole runs -----------------------------------------------------------------------


class _Run(NamedTuple):
    """A sweep that takes 2 s, 1 s a seed and arrival, and 1 ms a gradient step."""

    num_seeds: int
    num_arrivals: int
    num_steps: int

    def run(self):
        per_arrival = self.num_seeds * self.num_arrivals
        return SimpleNamespace(
            run_seconds=2.0 + per_arrival + 1e-3 * self.num_steps, compile_seconds=5.0
        )


def test_scaling_figures(monkeypatch):
    def prepare(config, data):
        arrivals = len(data.labels)
        steps = config.num_seeds * arrivals * config.steps_per_batch
        return _Run(config.num_seeds, arrivals, steps)

    monkeypatch.setattr(stream, "prepare", prepare)
    sizes = SMALL._replace(
        seeds=(1, 4), share_seeds=(4,), arrivals=(4, 8), rows=(200, 400), steps=1000
    )
    config = bench_settings.run_config(CONFIG, sizes)
    part = bench_scaling.measure(config, sizes, QUIET)
    positive(part)
    rows = {row["run"]: row for row in part.rows}
    assert list(rows) == [
        "1 seeds",
        "4 seeds",
        "4 arrivals",
        "8 arrivals",
        "200 rows",
        "400 rows",
    ]

    # 2 arrivals: 2 + 2 + 2 s for one seed, 2 + 8 + 8 for four.
    assert part.figures["seconds_per_seed.1_seeds"].median == pytest.approx(6.0)
    assert part.figures["seconds_per_seed.4_seeds"].median == pytest.approx(4.5)
    assert part.figures["seconds_per_seed_gain.4_seeds"].median == pytest.approx(
        6 / 4.5
    )
    assert part.figures["seconds_per_seed_gain.1_seeds"].median == pytest.approx(1.0)
    assert rows["4 seeds"]["training's_share"].median == pytest.approx(8 / 18)
    assert rows["1 seeds"]["training's_share"] is None
    # 8 seeds, as many arrivals: 2 + 32 + 32 s, then 2 + 64 + 64.
    growth = part.figures["arrival_time_growth.8_arrivals"]
    assert growth.median == pytest.approx((130 / 8) / (66 / 4))
    assert part.figures["arrival_time_growth.400_rows"].median == pytest.approx(1.0)
    assert rows["4 arrivals"]["ms_per_seed_and_arrival"].median == pytest.approx(
        1e3 * 66 / 8 / 4
    )


@pytest.mark.slow
def test_scaling_part():
    sizes = SMALL._replace(seeds=(1, 2), share_seeds=(2,), arrivals=(4,), rows=(80,))
    part = bench_scaling.measure(bench_settings.run_config(CONFIG, sizes), sizes, QUIET)
    assert len(part.rows) == 4
    assert all(row["seconds"].min > 0 for row in part.rows)


def test_streams_that_grow_are_as_long_as_they_say():
    configs = bench_scaling.by_rows(CONFIG, (1_000_000, 600))
    assert list(configs) == ["600 rows", "1,000,000 rows"]
    for config, rows in zip(configs.values(), (600, 1_000_000), strict=True):
        assert config.initial_size + config.num_batches * config.batch_size == rows
        assert config.classifier == CONFIG.classifier
    assert bench_scaling.by_arrivals(CONFIG, (50,))["50 arrivals"].num_batches == 50


def test_training_share():
    """10 s of which 6 are 100 gradient steps; half of these saves 3 s."""
    share = bench_scaling.training_share([10.0], [7.0], 100, 50)
    assert share.median == pytest.approx(0.6)


@pytest.mark.slow  # compiles
def test_latency_part():
    sizes = SMALL._replace(num_batches=5)
    part = bench_latency.measure(bench_settings.run_config(CONFIG, sizes), 1)
    positive(part)
    assert part.settings["arrivals"] == 2
    assert part.rows[-1]["share"] == (1.0, 1.0, 1.0, 2)


# --- what is written ------------------------------------------------------------------


def _part(name: str, value: float) -> Part:
    seeds = {
        f"{name}.{n}_seeds": Figure(value / n, value / n, value, 2) for n in (1, 8)
    }
    return Part(name, [{"what": name, "figure": value}], seeds, {})


@pytest.fixture
def two_parts(monkeypatch):
    """Parts that take no time, the second of which fails."""

    def fail():
        raise MemoryError("too large")

    monkeypatch.setattr(
        benchmark,
        "measures",
        lambda *_: {"gemm": lambda: _part("gemm_fraction", 0.5), "vgg": fail},
    )


def test_a_part_that_fails_stops_no_other(two_parts, tmp_path):
    printed = io.StringIO()
    config = stream.Config(output_dir=str(tmp_path))
    console = Console(file=printed, width=100)
    result = benchmark.run(config, TINY, ["vgg", "gemm"], console, "tiny")
    written = json.loads((tmp_path / "benchmark.json").read_text())
    assert written == json.loads(json.dumps(result))
    assert written["finished"]
    assert written["format"] == benchmark.FORMAT
    assert written["preset"] == "tiny"
    assert list(written["parts"]) == ["gemm", "vgg"]
    assert written["parts"]["vgg"]["error"] == "MemoryError: too large"
    assert written["figures"] == {
        "gemm_fraction.1_seeds": {
            "median": 0.5,
            "min": 0.5,
            "max": 0.5,
            "repetitions": 2,
        },
        "gemm_fraction.8_seeds": {
            "median": 0.0625,
            "min": 0.0625,
            "max": 0.5,
            "repetitions": 2,
        },
    }
    assert {"device", "devices", "cores", "jax", "load_average"} <= set(
        written["machine"]
    )
    assert (tmp_path / "benchmark.png").read_bytes().startswith(b"\x89PNG")
    assert "part vgg failed: MemoryError: too large" in printed.getvalue()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_run_that_is_killed_keeps_what_it_had(monkeypatch, tmp_path):
    kept, at_first = {}, {}
    (tmp_path / "benchmark.json").write_text('{"finished": true}')  # an earlier run's

    def first():
        at_first.update(json.loads((tmp_path / "benchmark.json").read_text()))
        return _part("gemm_fraction", 0.5)

    def killed():
        kept.update(json.loads((tmp_path / "benchmark.json").read_text()))
        raise KeyboardInterrupt

    monkeypatch.setattr(
        benchmark, "measures", lambda *_: {"gemm": first, "vgg": killed}
    )
    config = stream.Config(output_dir=str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        benchmark.run(config, TINY, ["gemm", "vgg"], QUIET)
    assert not at_first["finished"]
    assert at_first["parts"] == {}
    assert not kept["finished"]
    assert set(kept["parts"]) == {"gemm"}


def test_picture(tmp_path):
    path = tmp_path / "figure.png"
    assert not bench_picture.plot({"vgg": _part("vgg", 1.0)}, path)
    assert not path.exists()
    parts = {
        "gemm": _part("gemm_fraction", 0.5),
        "scaling": _part("seconds_per_seed", 2.0),
    }
    assert bench_picture.plot(parts, path)
    assert path.stat().st_size > 10_000
    seeds, values = bench_picture.points(
        parts["gemm"].figures | {"gemm_fraction.other": figure([1.0])}, "gemm_fraction"
    )
    assert seeds == [1, 8]
    assert [value.median for value in values] == [0.5, 0.0625]


# --- the command line -----------------------------------------------------------------


def call(*flags):
    env = {k: v for k, v in os.environ.items() if k not in ("RAD_JAX_DATA", "COLUMNS")}
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "experiments.benchmark", *flags],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.slow
def test_the_command(tmp_path):
    done = call(
        "--preset=tiny",
        "--parts=gemm",
        "--seeds=2,1,2",
        "--repeats=3",
        f"--output_dir={tmp_path}",
    )
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "benchmark.json").read_text())
    assert written["sizes"]["gemm_seeds"] == [1, 2]
    assert written["sizes"]["repeats"] == 3
    assert (written["config"]["width"], written["config"]["num_classes"]) == (115, 11)
    assert all(f["repetitions"] == 3 for f in written["figures"].values())
    assert all(f["min"] > 0 for f in written["figures"].values())
    assert "gemm fraction" in done.stdout
    assert "minutes on two idle cores (gemm" in done.stdout
    assert (tmp_path / "benchmark.png").exists()


BAD_FLAGS = {
    "--parts=gemm,all": "--parts has the unknown all; known: online, gemm",
    "--parts=": "--parts is empty; known: online, gemm",
    "--seeds=1,x": "--seeds must be whole numbers, got 1,x",
    "--seeds=0": "--seeds must be whole numbers of at least 1, got 0",
    "--repeats=0": "--repeats must be at least 1, got 0",
    "--epochs=-1": "--epochs must be at least 1, got -1",
    "--noise=pair_flip": "symmetric noise of a constant rate, got --noise=pair_flip",
    "--dataset=google_cluster": "--dataset=google_cluster needs --data_dir",
    "--dataset=none.csv --label_column=y": "none.csv: there is no such file",
    "--num_devices=99": "num_devices=99 must lie in 1..",
    "--dataset=digits --width=30": "--width=30 is not for --dataset=digits",
    "--steps_per_batch=1": "--steps_per_batch must be at least 2 to time training",
    "--output_dir=": "--output_dir is empty",
}


def test_bad_flags(tmp_path):
    """All in one process, as `main` sees them."""
    script = """
import json, sys
from absl import flags
from absl.testing import flagsaver
from experiments import bench_settings, benchmark
bench_settings.define_flags()
found = {}
for case in json.loads(sys.argv[1]):
    with flagsaver.flagsaver():
        left = flags.FLAGS(["benchmark", f"--output_dir={sys.argv[2]}", *case.split()])
        try:
            benchmark.main(left)
        except SystemExit as error:
            found[case] = str(error)
print(json.dumps(found))
"""
    env = {k: v for k, v in os.environ.items() if k != "RAD_JAX_DATA"}
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(list(BAD_FLAGS)), str(tmp_path)],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for case, message in BAD_FLAGS.items():
        assert message in found[case]
