"""What a run leaves on disk and on the screen."""

import csv
import dataclasses
import importlib
import io
import json
import math
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rad_jax import figures, files, report, spread, statistics
from rad_jax.statistics import SweepResult

SCHEMES = (
    "no_selection",
    "oracle_selection",
    "basic",
    "voting",
    "active",
    "active_limited",
    "slim",
    "slim_limited",
)


def make_result(
    schemes=SCHEMES, noise_rates=(0.2, 0.4), num_seeds=3, num_arrivals=6, **changes
):
    """Random figures that rise over arrivals; selection is undefined on ``D_0``."""
    random = np.random.default_rng(0)
    grid = (len(schemes), len(noise_rates), num_seeds)
    shape = (*grid, num_arrivals + 1)
    rise = np.linspace(0.6, 0.9, num_arrivals + 1)
    level = np.linspace(0, 0.05, len(schemes)).reshape(-1, 1, 1, 1)
    if len(schemes) > 1:
        level[1] = 0.07
    history = {}
    for name in statistics.HISTORY_METRICS:
        values = rise + level + random.normal(0, 0.005, shape)
        if "accuracy" not in name:
            values[..., 0] = math.nan
        history[name] = values.astype(np.float32)
    confusion = random.integers(1, 50, (*grid, 3, 3))
    fields = {
        "schemes": schemes,
        "noise_rates": noise_rates,
        "seeds": tuple(range(100, 100 + num_seeds)),
        "class_names": ("finish", "kill, at once", 'the "rest"'),
        "history": history,
        "confusion": confusion,
        "classifier_confusion": confusion,
        "majority_accuracy": 0.737,
        "compile_seconds": 1.5,
        "run_seconds": 2.5,
        "config": {"dataset": "digits"},
    }
    return SweepResult(**(fields | changes))


@pytest.fixture(scope="module")
def result():
    return make_result()


def read_csv(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def number(field):
    return math.nan if field == "" else float(field)


class TestCsv:
    def test_summary(self, result, tmp_path):
        path = tmp_path / "summary.csv"
        report.write_summary_csv(result, path)
        rows = read_csv(path)
        assert list(rows[0]) == [
            "scheme",
            "noise_rate",
            "metric",
            "mean",
            "std",
            "ci95",
        ]
        expected = statistics.summarize(result)
        assert len(rows) == len(expected)
        for row, want in zip(rows, expected, strict=True):
            assert (row["scheme"], row["metric"]) == (want.scheme, want.metric)
            assert float(row["noise_rate"]) == want.noise_rate
            figures = [number(row[name]) for name in ("mean", "std", "ci95")]
            np.testing.assert_allclose(figures, want[3:], rtol=1e-8)

    def test_history_round_trip(self, result, tmp_path):
        path = tmp_path / "history.csv"
        report.write_history_csv(result, path)
        rows = read_csv(path)
        keys = ["scheme", "noise_rate", "seed", "arrival"]
        assert list(rows[0]) == [*keys, *statistics.HISTORY_METRICS]
        assert len(rows) == 8 * 2 * 3 * 7
        assert [tuple(row[key] for key in keys) for row in rows[6:9]] == [
            ("no_selection", "0.2", "100", "6"),
            ("no_selection", "0.2", "101", "0"),
            ("no_selection", "0.2", "101", "1"),
        ]
        for name, values in result.history.items():
            column = np.array([number(row[name]) for row in rows], np.float32)
            np.testing.assert_array_equal(column, values.ravel())  # NaN included

    def test_nan_is_empty_and_nothing_else_is(self, result, tmp_path):
        for name in ("history.csv", "summary.csv"):
            report.WRITERS[name](result, tmp_path / name)
            text = (tmp_path / name).read_text()
            assert "nan" not in text.lower()
        rows = read_csv(tmp_path / "history.csv")
        for row in rows:
            empty = {name for name, field in row.items() if field == ""}
            undefined = {x for x in result.history if "accuracy" not in x}
            assert empty == (undefined if row["arrival"] == "0" else set())

    def test_names_that_need_quotes(self, tmp_path):
        result = make_result(schemes=("a,nan", "no\nline", '"q" %d', "basic"))
        report.write_history_csv(result, tmp_path / "history.csv")
        rows = read_csv(tmp_path / "history.csv")
        assert list(dict.fromkeys(row["scheme"] for row in rows)) == [*result.schemes]
        assert len(rows) == 4 * 2 * 3 * 7

    def test_large_counts_are_exact(self, tmp_path):
        result = make_result()
        result.history["kept"] = np.full((8, 2, 3, 7), 123_456_789.0)
        report.write_history_csv(result, tmp_path / "history.csv")
        assert read_csv(tmp_path / "history.csv")[0]["kept"] == "123456789"

    def test_per_class(self, result, tmp_path):
        report.write_per_class_csv(result, tmp_path / "per_class.csv")
        rows = read_csv(tmp_path / "per_class.csv")
        assert list(rows[0])[:5] == [
            "scheme",
            "noise_rate",
            "prediction",
            "class",
            "support",
        ]
        assert [row["class"] for row in rows[:3]] == list(result.class_names)
        expected = statistics.per_class(result)
        assert len(rows) == len(expected) == 8 * 2 * 2 * 3
        recall = [float(row["recall_mean"]) for row in rows]
        np.testing.assert_allclose(recall, [x.recall_mean for x in expected], rtol=1e-8)

    def test_confusion(self, result, tmp_path):
        report.write_confusion_csv(result, tmp_path / "confusion.csv")
        rows = read_csv(tmp_path / "confusion.csv")
        assert len(rows) == 2 * 8 * 2 * 3 * 3
        row = rows[1]
        assert row["true_class"] == "finish"
        assert row["predicted_class"] == "kill, at once"
        mean = result.confusion[0, 0, :, 0, 1].mean()
        assert float(row["mean_count"]) == pytest.approx(mean)


class TestConfig:
    def test_content(self, tmp_path):
        flags = {
            "output_dir": Path("/tmp/x"),
            "noise_rates": np.array([0.2, 0.4]),
            "rate": math.inf,
            "steps": np.int64(3),
            "slim": True,
            "reference": None,
        }
        result = make_result(config=flags)
        report.write_config_json(result, tmp_path / "config.json")
        config = json.loads((tmp_path / "config.json").read_text())
        assert config["flags"] == {
            "output_dir": "/tmp/x",
            "noise_rates": [0.2, 0.4],
            "rate": None,
            "steps": 3,
            "slim": True,
            "reference": None,
        }
        assert (config["compile_seconds"], config["run_seconds"]) == (1.5, 2.5)
        assert config["versions"]["numpy"] == np.__version__
        names = {"python", "jax", "jaxlib", "flax", "optax", "numpy", "rad_jax"}
        assert set(config["versions"]) == names
        assert config["device"]["count"] >= 1
        assert {"platform", "kind"} <= set(config["device"])


class TestAtomic:
    def test_failure_leaves_the_old_file_and_no_litter(self, tmp_path):
        path = tmp_path / "a.csv"
        path.write_text("old")

        def fail():
            with files.atomic_path(path) as temporary:
                temporary.write_text("half")
                raise RuntimeError

        with pytest.raises(RuntimeError):
            fail()
        assert path.read_text() == "old"
        assert os.listdir(tmp_path) == ["a.csv"]

    def test_success_replaces(self, tmp_path):
        path = tmp_path / "a.csv"
        path.write_text("old")
        with files.atomic_path(path) as temporary:
            assert temporary.suffix == ".csv"
            temporary.write_text("new")
            assert path.read_text() == "old"
        assert path.read_text() == "new"
        assert os.listdir(tmp_path) == ["a.csv"]


class TestOutputDir:
    def test_is_made_with_parents_and_left_empty(self, tmp_path):
        directory = files.check_output_dir(tmp_path / "a" / "b")
        assert directory == tmp_path / "a" / "b"
        assert os.listdir(directory) == []
        files.check_output_dir(str(directory))  # a second time

    @pytest.mark.parametrize("below", ["file", "file/out"])
    def test_a_file_in_the_way(self, tmp_path, below):
        (tmp_path / "file").write_text("")
        with pytest.raises(files.OutputError, match=r"--output_dir=.*file"):
            files.check_output_dir(tmp_path / below)

    @pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
    def test_a_file_system_that_takes_no_files(self):
        for path in ("/proc/rad_jax", "/proc/self"):  # not even root can
            with pytest.raises(files.OutputError, match="cannot be written"):
                files.check_output_dir(path)

    @pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind root")
    def test_no_permission(self, tmp_path):
        tmp_path.chmod(0o500)
        with pytest.raises(files.OutputError, match="Permission denied"):
            files.check_output_dir(tmp_path)

    @pytest.mark.parametrize("path", ["", "a\0b", "~no_such_user_here/x"])
    def test_nonsense(self, path):
        with pytest.raises(files.OutputError, match="--output_dir"):
            files.check_output_dir(path)


def png_size(path):
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", head[16:24])


PLOTS = (report.plot_accuracy, report.plot_selection, report.plot_prequential)


class TestPictures:
    @pytest.mark.parametrize("plot", [report.plot_accuracy, report.plot_selection])
    def test_size_grows_with_rates(self, plot, tmp_path):
        path = tmp_path / "x.png"
        plot(make_result(noise_rates=(0.4,)), path)
        width, height = png_size(path)
        assert 800 < width < 1200
        assert 900 < height < 1300
        plot(make_result(noise_rates=(0.1, 0.2, 0.3, 0.4, 0.5)), path)  # a second row
        wide, high = png_size(path)
        assert 2.5 * width < wide < 4 * width
        assert 1.7 * height < high < 2.2 * height

    @pytest.mark.parametrize("plot", PLOTS)
    @pytest.mark.parametrize(
        "changes",
        [
            {"num_seeds": 1, "num_arrivals": 1},
            {"schemes": ("basic", "posterior", "my own")},
            {"noise_rates": (0.0, 1.0)},
        ],
    )
    def test_corner_cases_draw_without_a_warning(self, plot, changes, tmp_path):
        plot(make_result(**changes), tmp_path / "x.png")
        assert (tmp_path / "x.png").stat().st_size > 10_000

    def test_nothing_ever_kept(self, tmp_path):
        result = make_result(schemes=("basic",))
        result.history["purity"][:] = math.nan
        report.plot_selection(result, tmp_path / "x.png")

    def test_a_rate_that_is_only_a_factor_is_not_called_the_noise(
        self, tmp_path, monkeypatch
    ):
        figure_class = importlib.import_module("matplotlib.figure").Figure
        drawn = []
        monkeypatch.setattr(
            figure_class, "savefig", lambda self, path, **_: drawn.append(self)
        )
        monkeypatch.setattr(files.os, "replace", lambda *_: None)
        made = make_result(config={"noise_schedule": "constant(0.5)"})
        made.history["realised_noise"][:, 0, :, 1:] = 0.25
        made.history["realised_noise"][:, 1, :, 1:] = 0.5
        report.plot_selection(made, tmp_path / "x.png")
        titles = [axes.get_title() for axes in drawn[0].axes]
        assert titles[:2] == ["noise rate 0.2: 25% wrong", "noise rate 0.4: 50% wrong"]
        texts = [text.get_text() for text in drawn[0].axes[1].texts]
        assert [text.split(" (")[0] for text in texts] == ["noise-free share 0.500"]

    def test_the_noise_is_drawn_once_and_as_it_came_out(self, tmp_path, monkeypatch):
        figure_class = importlib.import_module("matplotlib.figure").Figure
        drawn = []
        monkeypatch.setattr(
            figure_class, "savefig", lambda self, path, **_: drawn.append(self)
        )
        monkeypatch.setattr(files.os, "replace", lambda *_: None)
        made = make_result(noise_rates=(0.4,))
        report.plot_prequential(made, tmp_path / "x.png")
        user, alone, noise = drawn[0].axes
        for axes, metric in (
            (user, "prequential_accuracy"),
            (alone, "classifier_prequential_accuracy"),
        ):
            drawn_means = [line.get_ydata() for line in axes.get_lines()]
            np.testing.assert_allclose(
                drawn_means, spread.nan_mean(made.history[metric][:, 0], axis=1)
            )
        (line,) = noise.get_lines()
        np.testing.assert_allclose(
            line.get_ydata(),
            spread.nan_mean(made.history["realised_noise"][0, 0], axis=0),
        )

    def test_what_is_drawn(self, result, tmp_path, monkeypatch):
        """Every scheme in every panel, the means as its line, the majority dotted."""
        figure_class = importlib.import_module("matplotlib.figure").Figure
        drawn = []
        monkeypatch.setattr(
            figure_class, "savefig", lambda self, path, **_: drawn.append(self)
        )
        monkeypatch.setattr(files.os, "replace", lambda *_: None)
        report.plot_accuracy(result, tmp_path / "x.png")
        (figure,) = drawn
        assert [axes.get_title() for axes in figure.axes] == [
            "20% noise",
            "40% noise",
            "",
            "",
        ]
        for i, axes in enumerate(figure.axes):
            row, column = divmod(i, 2)
            metric = ("accuracy", "classifier_accuracy")[row]
            lines = {line.get_label(): line for line in axes.get_lines()}
            for s, scheme in enumerate(SCHEMES):
                line = lines[scheme.replace("_", " ")]
                mean = result.history[metric][s, column].mean(axis=0)
                np.testing.assert_allclose(line.get_ydata(), mean, rtol=1e-6)
                if scheme.endswith("_selection"):
                    assert line.is_dashed()
            dotted = [x for x in axes.get_lines() if x.get_linestyle() == ":"]
            assert [x.get_ydata()[0] for x in dotted] == [0.737]
        colours = {line.get_color() for line in lines.values()}
        assert len(colours) == 9  # schemes and the dotted line
        (legend,) = figure.legends
        assert len(legend.get_texts()) == 8

    def test_a_scheme_has_the_same_colour_in_any_company(self):
        assert set(SCHEMES) == set(figures._STYLES)

    def test_no_global_state(self, result, tmp_path):
        code = (
            "import sys; from rad_jax import report; "
            "assert 'matplotlib' not in sys.modules; "
            "from test_report import make_result; "
            f"report.plot_accuracy(make_result(), {str(tmp_path / 'x.png')!r}); "
            "assert 'matplotlib.pyplot' not in sys.modules"
        )
        root = Path(__file__).parents[1]
        path = os.pathsep.join([str(root), str(root / "tests")])
        environment = os.environ | {"PYTHONPATH": path}
        subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def printed(result, **console):
    rich_console = importlib.import_module("rich.console")
    file = console.pop("file", None) or io.StringIO()
    report.print_summary(result, rich_console.Console(file=file, **console))
    file.flush()
    return file.getvalue() if isinstance(file, io.StringIO) else file.buffer.getvalue()


class TestTable:
    @pytest.mark.parametrize(
        "console", [{}, {"width": 40}, {"width": 100, "force_terminal": True}]
    )
    def test_is_whole_whatever_the_output(self, result, console):
        text = printed(result, color_system=None, **console)
        lines = text.splitlines()
        assert max(map(len, lines)) <= 100
        assert "…" not in text
        assert sum("slim_limited" in line for line in lines) == 2
        assert "0.737" in lines[0]

    def test_figures(self, result):
        rows = {
            (row.scheme, row.noise_rate, row.metric): row
            for row in statistics.summarize(result)
        }
        lines = printed(result).splitlines()
        (fields,) = (
            line.split() for line in lines if line.split()[:2] == ["0.4", "basic"]
        )
        own = {
            metric: row
            for (s, r, metric), row in rows.items()
            if (s, r) == ("basic", 0.4)
        }
        final, classifier = own["final_accuracy"], own["classifier_accuracy"]
        assert fields[2:] == [
            f"{final.mean:.3f}±{final.ci95:.3f}",
            f"{classifier.mean:.3f}±{classifier.ci95:.3f}",
            f"{own['balanced_accuracy'].mean:.3f}",
            f"{own['purity'].mean:.3f}",
            f"{own['recall'].mean:.3f}",
            f"{own['queries'].mean:.0f}",
            f"{own['gap_closed'].mean:.2f}",
            f"{own['classifier_gap_closed'].mean:.2f}",
        ]

    def test_blank_is_a_dash(self):
        text = printed(make_result(schemes=("basic", "slim[red]"), num_seeds=1))
        assert "nan" not in text
        (line,) = (x for x in text.splitlines() if x.startswith(" 0.4    slim[red]"))
        assert line.split()[-2:] == ["-", "-"]
        assert "±" not in line

    def test_a_terminal_that_knows_only_ascii(self, result):
        file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        assert b"+-" in printed(result, file=file)

    def test_recall_of_each_class(self, result):
        text = printed(result)
        lines = text[text.index("Recall of each class (noise 0.4)") :].splitlines()
        assert "Opt-Sel" in "".join(lines[1:4])
        confusion = result.confusion[:, 1].astype(float)  # [S, n, K, K]
        recall = np.einsum("snkk->snk", confusion) / confusion.sum(axis=-1)
        for k, name in enumerate(result.class_names):
            (line,) = (x for x in lines if x.strip().startswith(name))
            figures = line.strip().removeprefix(name).split()
            assert figures[0] == f"{confusion[0, :, k].sum() / 3:.0f}"
            expected = [f"{x:.3f}" for x in recall[:, :, k].mean(axis=1)]
            assert figures[1:] == expected

    def test_names_of_classes_that_terminals_mind(self, result):
        names = ("[red]two\nlines", "é" * 30, "a")
        other = dataclasses.replace(result, class_names=names)
        file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        text = printed(other, file=file).decode()
        assert "[red]two lines" in text
        assert r"\xe9\xe9\xe9\xe9\..." in text
        assert "é" * 17 + "..." in printed(other)

    def test_many_classes_are_cut_to_the_largest(self):
        confusion = np.ones((len(SCHEMES), 2, 3, 30, 30), np.int64)
        confusion[..., 7, :] = confusion[..., 29, :] = 5
        names = tuple(f"class{k:02}" for k in range(30))
        result = make_result(
            class_names=names, confusion=confusion, classifier_confusion=confusion
        )
        text = printed(result)
        assert "the 20 largest of 30" in text
        assert text.count("class0") + text.count("class1") == 19
        assert text.count("class2") == 1
        assert text.index("class29") > text.index("class07")


def test_write_report_writes_every_file(result, tmp_path):
    paths = report.write_report(result, tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(path.name for path in paths)
    assert {path.name for path in paths} >= {
        "summary.csv",
        "history.csv",
        "per_class.csv",
        "config.json",
        "accuracy.png",
        "selection.png",
        "prequential.png",
    }


@pytest.mark.parametrize(
    ("module", "call"),
    [
        ("matplotlib.figure", lambda x, p: report.plot_accuracy(x, p / "x.png")),
        ("rich.table", lambda x, p: report.summary_table(x)),
    ],
)
def test_missing_extra_says_how_to_install_it(
    module, call, result, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=r"pip install 'rad-jax\[experiments\]'"):
        call(result, tmp_path)
