"""Noise, budgets, cleaning and synthetic data as the command line takes them."""

import dataclasses
import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from experiments import flags, names, noises, settings, stream
from experiments.settings import Config
from rad_jax import noise, schedules
from rad_jax.schedules import Schedule
from rad_jax.types import as_arrays

KEY = jax.random.key(3)


def curve(schedule: Schedule, num_batches: int) -> np.ndarray:
    return np.asarray(schedules.rates(schedule, KEY, num_batches))


# --- schedules ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("constant(0.3)", schedules.constant(0.3)),
        (" uniform( 0.1 , 0.5 ) ", schedules.uniform(0.1, 0.5)),
        ("gaussian(0.4,1e-1)", schedules.gaussian(0.4, 0.1)),
        ("sin(0.4,0.2,20)", schedules.sin(0.4, 0.2, 20)),
        ("linear(0,0.8,1,30)", schedules.linear(0.0, 0.8, 1, 30)),
        (
            "0-10:constant(0.2);10-40:sin(0.4,0.2,20);",
            schedules.piecewise(
                [
                    (0, 10, schedules.constant(0.2)),
                    (10, 40, schedules.sin(0.4, 0.2, 20)),
                ]
            ),
        ),
        (
            "1 - 5 : linear(0.5,0,1,5); 5-: uniform(0,1)",
            schedules.piecewise(
                [
                    (1, 5, schedules.linear(0.5, 0.0, 1, 5)),
                    (5, None, schedules.uniform(0.0, 1.0)),
                ]
            ),
        ),
    ],
)
def test_a_schedule_is_read_as_it_is_written(text, same):
    read = noises.parse_schedule(text)
    assert (read.start, read.stop) == (same.start, same.stop)
    np.testing.assert_array_equal(curve(read, 30), curve(same, 30))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it is empty; known: constant(rate), uniform(lo,hi), gaussian(mean,sd)"),
        ("0.4", "'0.4' is no schedule; known: constant(rate)"),
        ("step(0.4)", "'step(0.4)' is no schedule"),
        ("sin(0.4,0.2", "is no schedule"),
        ("constant()", "has 0 numbers, constant(rate) takes 1"),
        ("sin(0.4,0.2)", "has 2 numbers, sin(mid,half_range,period) takes 3"),
        ("constant(much)", "rate of 'constant(much)' must be a number, got 'much'"),
        ("linear(0,1,1.5,9)", "start of 'linear(0,1,1.5,9)' must be a whole number"),
        ("constant(1.2)", "rate must lie in [0, 1], got 1.2"),
        ("constant(nan)", "rate must lie in [0, 1], got nan"),
        ("sin(0.4,0.7,20)", "mid ± half_range must lie in [0, 1]"),
        ("linear(0,1,9,9)", "0 <= start < stop"),
        ("0-5:constant(0.1);7-9:constant(0.1)", "makes a gap"),
        ("0-5:constant(0.1);3-9:constant(0.1)", "makes an overlap"),
        ("0-:constant(0.1);3-9:constant(0.1)", "pieces[0]"),
        ("0-5:constant(0.1);constant(0.2)", "must be START-STOP:SCHEDULE"),
        ("5-0:constant(0.1)", "0 <= start < stop"),
    ],
)
def test_a_bad_schedule_is_named(text, says):
    with pytest.raises(ValueError, match="--noise_schedule=") as caught:
        settings.complete(Config(noise_schedule=text))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


# --- matrices -------------------------------------------------------------------------

PAIR = np.array([[0.7, 0.3, 0.0], [0.0, 1.0, 0.0], [0.25, 0.25, 0.5]])


def write(path, matrix):
    if path.suffix == ".npy":
        np.save(path, np.asarray(matrix))
    else:
        path.write_text("\n".join(",".join(map(str, row)) for row in matrix) + "\n")
    return str(path)


@pytest.mark.parametrize("name", ["t.csv", "t.npy"])
def test_a_matrix_is_read_from_its_file(name, tmp_path):
    read = noises.read_matrix(write(tmp_path / name, PAIR))
    np.testing.assert_allclose(read, PAIR, rtol=1e-6)


@pytest.mark.parametrize(
    ("matrix", "says"),
    [
        ([[0.5, 0.5]], "must be square"),
        ([[0.5, 0.5], [0.5, 0.4]], "rows (true classes) that sum to 1, row 1"),
        ([[1.5, -0.5], [0.0, 1.0]], "entries of at least 0, got -0.5"),
        ([["a", "b"], [0.0, 1.0]], "line 1 must be numbers between commas (the file"),
        ([["0.5;0.5"], ["0.5;0.5"]], "line 1 must be numbers between commas"),
        ([[0.5, 0.5], [1.0]], "line 2 has 1 numbers, those before it have 2"),
        ([], "must hold numbers"),
    ],
)
def test_a_bad_matrix_is_named(matrix, says, tmp_path):
    path = write(tmp_path / "t.csv", matrix)
    with pytest.raises(ValueError, match=r"--noise_matrix=.*t\.csv") as caught:
        settings.complete(Config(noise="asymmetric", noise_matrix=path))
    assert says in str(caught.value)


def test_a_file_that_is_no_matrix_is_named(tmp_path):
    (tmp_path / "t.npy").write_bytes(b"\x93NUMPY")
    np.savez(tmp_path / "zip.npz", np.eye(2))
    (tmp_path / "zip.npz").rename(tmp_path / "zip.npy")
    for name, says in [
        ("t.npy", "cannot be read"),
        ("zip.npy", "cannot be read"),
        ("absent.csv", "No such file"),
        ("t.txt", ".csv or .npy"),
    ]:
        with pytest.raises(ValueError, match=f"--noise_matrix=.*{name}") as caught:
            noises.read_matrix(str(tmp_path / name))
        assert says in str(caught.value)


def test_a_matrix_with_the_mark_of_a_spreadsheet(tmp_path):
    (tmp_path / "t.csv").write_text("0.75,0.25\n0,1\n", encoding="utf-8-sig")
    read = noises.read_matrix(str(tmp_path / "t.csv"))
    np.testing.assert_array_equal(read, [[0.75, 0.25], [0, 1]])


# --- from flags to a noise ------------------------------------------------------------


def small(**changes) -> Config:
    sizes = {"initial_size": 60, "batch_size": 30, "num_batches": 3, "test_size": 50}
    return settings.complete(
        Config(dataset="synthetic", num_classes=3, width=4, **(sizes | changes))
    )


def given(config: Config, rate: float, arrival: int = 1):
    """Given and true labels of many rows of the stream, under the flags' noise."""
    data = stream.load(config)
    made = noises.make(config, data)
    rng = np.random.default_rng(0)
    rows = rng.integers(0, data.labels.size, 4000)
    features = data.features.reshape(-1, data.features.shape[-1])[rows]
    true = data.labels.ravel()[rows]
    out = noise.corrupt(
        made,
        as_arrays(made.params) | {"rate": jnp.float32(rate)},
        jnp.asarray(true),
        jnp.ones(len(true), bool),
        num_classes=data.num_classes,
        key=KEY,
        features=jnp.asarray(features),
        arrival=jnp.int32(arrival),
    )
    return np.asarray(out), true


@pytest.mark.parametrize("kind", names.STREAM_NOISES)
def test_every_kind_goes_wrong_as_often_as_asked(kind, tmp_path):
    matrix = np.full((3, 3), 0.5) - 0.5 * np.eye(3)
    path = write(tmp_path / "t.npy", matrix) if kind == "asymmetric" else None
    wrong = {}
    for rate in (0.0, 0.3):
        label, true = given(small(noise=kind, noise_matrix=path), rate)
        wrong[rate] = np.mean(label != true)
        if kind == "pair_flip":
            flipped = label != true
            np.testing.assert_array_equal(label[flipped], (true[flipped] + 1) % 3)
    expected = 0.2 if kind == "independent_any_class" else 0.3
    assert wrong[0.0] == 0
    assert wrong[0.3] == pytest.approx(expected, abs=4 * np.sqrt(0.25 / 4000))


def test_a_schedule_multiplies_the_rate():
    config = small(noise_schedule="linear(0.2,0.6,1,4)")
    assert config.noise_rates == (1.0,)
    for arrival, rate in ((1, 0.2), (2, 0.4), (3, 0.6)):
        for factor in (1.0, 0.5):
            label, true = given(config, factor, arrival)
            assert np.mean(label != true) == pytest.approx(rate * factor, abs=1e-3)


def test_the_rate_is_by_default_what_fits_the_noise(tmp_path):
    path = write(tmp_path / "t.csv", np.eye(3))
    assert small().noise_rates == (0.4,)
    assert small(noise="asymmetric", noise_matrix=path).noise_rates == (1.0,)
    assert small(noise_schedule="constant(0.1)", noise_rates=(0.5,)).noise_rates == (
        0.5,
    )


def test_feature_dependent_noise_knows_the_rows_as_they_are_scaled():
    config = small(noise="feature_dependent", scaling="standard", separation=9.0)
    data = stream.load(config)
    rows = np.concatenate([data.initial_features, *data.features])
    labels = np.concatenate([data.initial_labels, *data.labels])
    centroids = noises.make(config, data).params["centroids"]
    for k in range(3):
        np.testing.assert_allclose(centroids[k], rows[labels == k].mean(0), atol=1e-5)


def test_noise_that_does_not_fit_the_data_is_refused(tmp_path):
    path = write(tmp_path / "t.csv", np.eye(4))
    for changes, says in [
        ({"noise": "asymmetric", "noise_matrix": path}, "--noise_matrix=.*3 classes"),
        ({"noise_schedule": "0-3:constant(0.1)"}, r"--noise_schedule=.*batch 1\.\.3"),
        (
            {"noise": "feature_dependent", "late_from": 9},
            "feature_dependent needs rows",
        ),
    ]:
        config = small(**changes)
        with pytest.raises(ValueError, match=says):
            stream.prepare(config, stream.load(config))


# --- schemes and budgets --------------------------------------------------------------


def test_budgets_reach_the_limited_schemes_and_minima_the_others():
    config = small(
        total_budget=7,
        min_per_class=2,
        dynamic_budget=True,
        budget_cap=9,
        query_budget=4,
    )
    planned = stream.prepare(config, stream.load(config))
    params = {arm.name: arm.scheme.params for arm in planned.arms}
    for name in names.LIMITED:
        assert params[name] == {
            "query_budget": 4,
            "total_budget": 7,
            "min_per_class": 2,
            "cap": 9,
        }
    for name in ("basic", "voting", "slim"):
        assert params[name]["min_per_class"] == 2
    for name in (*names.BASELINES, "active"):
        assert params[name] == ()


def test_a_sweep_of_budgets_has_an_arm_for_each():
    config = small(
        schemes=("slim_limited", "basic", "active_limited"),
        sweep_budget=(0.1, 0.0, 0.1),
        batch_size=30,
    )
    arms = stream.prepare(config, stream.load(config)).arms
    assert [(arm.name, arm.one_model) for arm in arms] == [
        ("no_selection", False),
        ("oracle_selection", False),
        ("slim_limited@0", True),
        ("slim_limited@0.1", True),
        ("active_limited@0", False),
        ("active_limited@0.1", False),
    ]
    assert [arm.scheme.params["query_budget"] for arm in arms[2:]] == [0, 3, 0, 3]


def test_what_changes_is_announced(tmp_path):
    path = write(tmp_path / "t.csv", np.eye(3))
    out = io.StringIO()
    for changes in (
        {"cleaning_window": 2, "expert_error": 0.25, "noise_schedule": "constant(0.1)"},
        {"cleaning_window": 9, "noise": "asymmetric", "noise_matrix": path},
        {"cleaning_window": -1},
    ):
        config = small(num_batches=4, **changes)
        data = stream.load(config)
        planned = stream.prepare(config, data)
        stream.announce(config, data, planned, Console(file=out, width=200))
    text = out.getvalue()
    assert "symmetric noise, at arrival i of the noise rate x constant(0.1)" in text
    assert f"asymmetric noise, the noise rate x {path}" in text
    assert "an expert who errs on about 25% of the rows" in text
    bounds = [line for line in text.splitlines() if line.startswith("cleaning")]
    assert [line.split("up to ")[1].split(" ")[0] for line in bounds] == [
        "60",  # two batches of 30
        "90",  # all there ever are before the last one
        "90",
    ]


# --- synthetic data -------------------------------------------------------------------


def test_a_synthetic_stream_arrives_in_its_own_order():
    config = small(late_from=2, num_batches=5, batch_size=200, scaling="none")
    data = stream.load(config)
    assert config.order == "time"
    assert [2 in labels for labels in data.labels] == [False, True, True, True, True]
    assert 2 not in data.initial_labels
    assert data.labels.shape + data.test_labels.shape == (5, 200, 50)
    shuffled = stream.load(small(late_from=2, num_batches=5, order="shuffle"))
    assert 2 in shuffled.initial_labels


def test_drift_and_seed_decide_the_rows():
    def means(**changes):
        options = {"num_batches": 4, "batch_size": 300, "scaling": "none"} | changes
        data = stream.load(small(**options))
        return np.stack(
            [x[y == 0].mean(0) for x, y in zip(data.features, data.labels, strict=True)]
        )

    still, jumps = means(), means(drift="abrupt", drift_period=2.0)
    assert np.abs(still - still[0]).max() < 0.6  # 100 rows of unit variance a class
    assert np.abs(jumps[1] - jumps[0]).max() > 1.5  # concept 1 from arrival 2 on
    assert np.abs(jumps[2] - jumps[1]).max() < 0.6
    assert np.abs(means(seed=1) - still).max() > 0.6


# --- all of it at once ----------------------------------------------------------------


def test_a_run_obeys_its_flags(tmp_path):
    config = small(
        noise="feature_dependent",
        noise_schedule="1-3:constant(0.0);3-:constant(0.8)",
        noise_rates=(0.5, 1.0),
        num_batches=5,
        sweep_budget=(0.0, 0.1, 0.2),
        schemes=("active_limited",),
        total_budget=8,
        cleaning_window=1,
        expert_error=1.0,
        label_model="nearest_centroid",
        classifier="nearest_centroid",
        num_seeds=40,
        output_dir=str(tmp_path),
    )
    result = stream.run(config)
    assert {"budget.csv", "budget.png"} <= {path.name for path in tmp_path.iterdir()}
    realised = result.history["realised_noise"][..., 1:]
    assert (realised[..., :2] == 0).all()
    for r, rate in enumerate((0.4, 0.8)):
        tolerance = 4 * np.sqrt(0.25 / (40 * 30))
        np.testing.assert_allclose(
            realised[0, r, :, 2:].mean(axis=0), rate, atol=tolerance
        )
    assert result.schemes[2:] == tuple(
        f"active_limited@{x}" for x in ("0", "0.1", "0.2")
    )
    queries = result.history["queries"][2:]
    assert (queries[0] == 0).all()
    for i, rows in ((1, 3), (2, 6)):
        assert (np.diff(queries[i]) <= rows).all()
        assert queries[i].max() == 8
    # While labels are right, exactly what the expert has answered is wrong.
    kept, asked = (result.history[x][2:, ..., 2] for x in ("kept", "queries"))
    assert asked.max() > 0
    np.testing.assert_allclose(
        result.history["purity"][2:, ..., 2], (kept - asked) / kept, rtol=1e-6
    )


# --- bad values -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"noise": "asymmetric"}, "--noise=asymmetric needs --noise_matrix"),
        ({"noise_matrix": "t.csv"}, "is for --noise=asymmetric, got --noise=symmetric"),
        ({"cleaning_window": -2}, "--cleaning_window must be a number of arrivals"),
        ({"expert_error": 1.5}, r"--expert_error must lie in \[0, 1\], got 1.5"),
        ({"expert_error": float("nan")}, "--expert_error must lie in"),
        ({"total_budget": -1}, "--total_budget must be at least 0, got -1"),
        ({"min_per_class": -1}, "--min_per_class must be at least 0, got -1"),
        ({"budget_cap": 3}, "--budget_cap=3 needs --dynamic_budget"),
        (
            {"budget_cap": 0, "dynamic_budget": True},
            "--budget_cap must be at least 1, got 0",
        ),
        (
            {"dynamic_budget": True, "query_budget": 0},
            "--query_budget must not be 0 with --dynamic_budget",
        ),
        (
            {"dynamic_budget": True, "sweep_budget": (0.0, 0.1)},
            "--sweep_budget must not be 0",
        ),
        ({"sweep_budget": (0.1, 1.5)}, "--sweep_budget must be shares .* got 1.5"),
        (
            {"sweep_budget": (0.1,), "schemes": ("basic",)},
            "--sweep_budget needs one of active_limited, slim_limited among --schemes",
        ),
        (
            {"sweep_budget": (0.1,), "sweep_uncertainty": ("margin", "doubt")},
            "--sweep_uncertainty has the unknown 'doubt'; known: margin, cross_entropy",
        ),
        (
            {"sweep_budget": (0.1, 0.1 + 1e-9)},
            "--sweep_budget must be shares that differ in six digits, got 0.1,0.1000",
        ),
        (
            {"noise_schedule": "0-9:constant(0);9-99999999999:constant(0)"},
            "at most 2.31-1, got 99999999999",
        ),
        (
            {"sweep_uncertainty": ("margin", "cent")},
            "--sweep_uncertainty=margin,cent needs --sweep_budget",
        ),
        (
            {"new_classes": "expert", "schemes": ("basic", "slim")},
            "--new_classes=expert needs one of active, active_limited, slim_limited",
        ),
        ({"drift": "abrupt"}, "--drift=abrupt is not for --dataset=digits, but for"),
        ({"dataset": "synthetic", "num_classes": 1}, "--num_classes must be"),
        ({"dataset": "synthetic", "drift": "sideways"}, "--drift=sideways is unknown"),
        (
            {"dataset": "synthetic", "drift_period": 0.0},
            "--drift_period must be finite and above 0, got 0.0",
        ),
        (
            {"dataset": "synthetic", "imbalance": 0.5},
            "--imbalance must be finite and at least 1, got 0.5",
        ),
        (
            {"dataset": "synthetic", "late_from": -1},
            "--late_from must be finite and at least 0, got -1",
        ),
    ],
)
def test_bad_values_are_named(fields, says):
    with pytest.raises(ValueError, match=says):
        settings.complete(Config(**fields))


def test_every_flag_is_in_one_group_of_the_help():
    flags.define()
    shared = [flag.name for flag in flags.shared()]
    assert len(set(shared)) == len(shared)
    assert set(shared) == {field.name for field in dataclasses.fields(Config)}
    text = flags.help_text()
    places = [text.index(f"\n{group}:\n") for group in flags.GROUPS]
    assert places == sorted(places)
    assert places[2] < text.index("--noise_schedule") < places[3]
    assert text.count("10%%") == text.count("10%") >= 1, "absl formats the docstring"


def test_scaled_features_far_out_are_announced():
    parts = [np.zeros((5, 2)), np.array([[[3.0, -2.7e5]], [[999.0, 1.0]]])]
    config = Config(scaling="standard")
    (line,) = settings.scaling_note(config, iter(parts), ("a", "bytes"))
    assert "reach 2.7e+05 after scaling" in line
    assert "(column 'bytes')" in line
    assert settings.scaling_note(config, [part[..., :1] for part in parts]) == []
    assert settings.scaling_note(Config(scaling="none"), parts) == []
