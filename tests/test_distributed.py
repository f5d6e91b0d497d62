"""Several processes on one host: they agree, share seeds, and notice deaths."""

import csv
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from absl import flags as absl_flags

from experiments import distributed, flags
from experiments.distributed import Processes

ROOT = Path(__file__).parent.parent
COMMAND = [sys.executable, "-u", "-W", "error", "-m", "experiments.stream"]
SMALL = [
    "--label_model=nearest_centroid",
    "--classifier=nearest_centroid",
    "--schemes=basic,slim",
    "--num_seeds=6",
    "--initial_size=60",
    "--batch_size=20",
    "--num_batches=4",
    "--test_size=80",
]
TABLES = ("summary.csv", "history.csv", "per_class.csv", "confusion.csv")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(*arguments, devices, **changes):
    env = os.environ | {"JAX_NUM_CPU_DEVICES": str(devices)} | changes
    env["XLA_FLAGS"] = " ".join(
        flag for flag in env["XLA_FLAGS"].split() if "device_count" not in flag
    )
    return subprocess.Popen(
        [*COMMAND, *SMALL, *arguments],
        cwd=ROOT,
        env=env | {"PYTHONIOENCODING": "utf-8"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def by_hand(port, i):
    return [
        f"--coordinator_address=127.0.0.1:{port}",
        "--num_processes=2",
        f"--process_id={i}",
    ], {}


def slurm(port, i):
    return ["--distributed"], {
        "SLURM_JOB_ID": "1",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NTASKS": "2",
        "SLURM_PROCID": str(i),
        "SLURM_LOCALID": str(i),
        "JAX_COORDINATOR_PORT": str(port),
    }


def open_mpi(port, i):
    return ["--distributed"], {
        "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://127.0.0.1:34911",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_RANK": str(i),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(i),
        "JAX_COORDINATOR_PORT": str(port),
    }


def start_two(folder, *arguments, own=((), ()), cluster=by_hand):
    port = free_port()
    processes = []
    for i in range(2):
        where, variables = cluster(port, i)
        given = (*where, f"--output_dir={folder}", *arguments, *own[i])
        processes.append(start(*given, devices=2, **variables))
    return processes


def table(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow  # four processes compile
def test_one_device_four_and_two_processes_write_the_same(tmp_path):
    one = start(f"--output_dir={tmp_path / 'one'}", devices=1)
    four = start(f"--output_dir={tmp_path / 'four'}", devices=4)
    two = start_two(tmp_path / "two")
    outputs = [p.communicate(timeout=560) for p in (one, four, *two)]
    assert [errors for _, errors in outputs] == ["", "", "", ""]
    assert "devices: 4" in outputs[1][0]
    assert "2 processes share the 6 seeds" in outputs[2][0]
    assert outputs[3][0] == ""  # process 1 prints nothing
    for other in ("four", "two"):
        files = [{f.name for f in (tmp_path / x).iterdir()} for x in ("one", other)]
        assert files[0] == files[1]
        for name in TABLES:
            rows = [table(tmp_path / x / name) for x in ("one", other)]
            for a, b in zip(*rows, strict=True):
                for column in a:
                    if a[column] != b[column]:
                        np.testing.assert_allclose(
                            float(a[column]),
                            float(b[column]),
                            atol=1e-6,
                            err_msg=column,
                        )


@pytest.mark.slow  # they compile, and one is given up after 10 s
@pytest.mark.parametrize(
    ("victim", "by"), [(0, signal.SIGKILL), (1, signal.SIGKILL), (1, signal.SIGTERM)]
)
def test_killing_one_ends_the_other_and_its_chunks_stay(victim, by, tmp_path):
    folder = tmp_path / "out"
    long = ["--num_batches=600", "--batch_size=2", "--seeds_per_chunk=1"]
    two = start_two(folder, *long)
    deadline = time.monotonic() + 300
    mine = folder / f"chunks_{victim}_of_2"
    while not list(mine.glob("seeds_*.npz")):
        assert time.monotonic() < deadline, "no chunk was finished"
        assert two[victim].poll() is None, two[victim].communicate()
        time.sleep(0.2)
    two[victim].send_signal(by)
    begin = time.monotonic()
    _, errors = two[1 - victim].communicate(timeout=100)
    assert time.monotonic() - begin < 60
    assert two[1 - victim].returncode != 0
    assert "died" in errors
    assert "Traceback" not in errors
    two[victim].communicate()
    assert two[victim].returncode == -by
    assert list(mine.glob("seeds_*.npz"))  # to go on from


@pytest.mark.parametrize("cluster", [by_hand, slurm, open_mpi])
def test_different_flags_are_named(cluster, tmp_path):
    own = ((), ("--noise_rates=0.2", "--seed=7"))
    two = start_two(tmp_path, own=own, cluster=cluster)
    outputs = [p.communicate(timeout=200) for p in two]
    assert [p.returncode for p in two] == [1, 1], outputs
    for out, errors in outputs:
        assert out == ""
        for text in ("--noise_rates", "0.2", "0.4", "--seed", "process 1"):
            assert text in errors
        assert "--num_batches" not in errors
        assert len(errors.strip().splitlines()) == 1, errors
    assert list(tmp_path.iterdir()) == []


def test_no_cluster(tmp_path):
    process = start("--distributed", f"--output_dir={tmp_path}", devices=1)
    out, errors = process.communicate(timeout=100)
    assert (process.returncode, out) == (1, "")
    assert "--distributed: no cluster was found" in errors
    assert len(errors.strip().splitlines()) == 1, errors


@pytest.mark.parametrize("process_id", [0, 1])
def test_who_does_not_come_is_named_by_address(process_id, tmp_path):
    address = f"127.0.0.1:{free_port()}"
    process = start(
        f"--coordinator_address={address}",
        "--num_processes=2",
        f"--process_id={process_id}",
        "--connect_timeout=2",
        f"--output_dir={tmp_path}",
        devices=1,
    )
    out, errors = process.communicate(timeout=100)
    assert (process.returncode, out) == (1, "")
    lines = [line for line in errors.splitlines() if line.startswith("error:")]
    assert len(lines) == 1, errors
    assert address in lines[0]
    assert "--connect_timeout=2" in lines[0]
    assert "Traceback" not in errors


# --- without processes ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_seeds", "count", "blocks"),
    [
        (6, 2, [(0, 3), (3, 3)]),
        (7, 3, [(0, 3), (3, 2), (5, 2)]),
        (4, 4, [(0, 1), (1, 1), (2, 1), (3, 1)]),
        (5, 1, [(0, 5)]),
    ],
)
def test_blocks_are_all_seeds(num_seeds, count, blocks):
    assert [Processes(i, count).block(num_seeds) for i in range(count)] == blocks


def test_more_processes_than_seeds():
    with pytest.raises(ValueError, match=r"--num_seeds=3 .* processes, 4"):
        Processes(0, 4).block(3)


class Board:
    """A key-value store in memory."""

    def __init__(self):
        self.values = {}

    def key_value_set(self, key, value):
        self.values[key] = value

    def blocking_key_value_get(self, key, timeout_ms):
        return self.values[key]

    key_value_set_bytes = key_value_set
    blocking_key_value_get_bytes = blocking_key_value_get


def test_values_of_any_length_are_gathered(monkeypatch):
    board = Board()
    monkeypatch.setattr(distributed, "_client", lambda: board)
    monkeypatch.setattr(distributed, "_PIECE", 4)
    values = [b"", b"abcd", b"abcdefghi"]
    for i in (1, 2):
        assert Processes(i, 3).gather(values[i]) == []
    assert Processes(0, 3).gather(values[0]) == values
    assert distributed.SINGLE.gather(b"x") == [b"x"]


def test_settings_are_compared_with_process_0(monkeypatch):
    board = Board()
    monkeypatch.setattr(distributed, "_client", lambda: board)
    for i in (0, 1):  # tuples are lists once sent
        distributed._put(f"rad_jax/settings/{i}", b'{"--hidden": [28, 28]}')
    Processes(0, 2).agree("settings", {"--hidden": (28, 28)})
    Processes(1, 2).agree("settings", {"--hidden": (28, 28)})
    with pytest.raises(ValueError, match=r"process 1 .* --hidden \(\[28, 28\]; pro"):
        Processes(0, 2).agree("settings", {"--hidden": (28,)})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"coordinator_address": "host:1"}, "--num_processes and --process_id"),
        ({"num_processes": 2, "process_id": 0}, "--coordinator_address must be given"),
        ({"coordinator_address": "host"}, "host:port, got 'host'"),
        ({"coordinator_address": "host:99999"}, "host:port"),
        ({"coordinator_address": "host:\u00b2"}, "host:port"),
        ({"num_processes": 0}, "--num_processes must be at least 1, got 0"),
        ({"num_processes": 2, "process_id": 2}, r"--process_id .*got 2 of 2"),
        ({"process_id": -1}, "--process_id .*got -1"),
        ({"connect_timeout": 0}, "--connect_timeout must be at least 1, got 0"),
    ],
    ids=str,
)
def test_flags_that_do_not_fit(given, says, monkeypatch):
    flags.define()
    distributed.define_flags()
    distributed.define_flags()  # a second call changes nothing
    absl_flags.FLAGS.mark_as_parsed()
    for name, value in given.items():
        monkeypatch.setattr(absl_flags.FLAGS[name], "value", value)
    with pytest.raises(ValueError, match=says), distributed.join():
        pytest.fail("joined")


def test_without_flags_there_is_one_process(monkeypatch):
    distributed.define_flags()
    absl_flags.FLAGS.mark_as_parsed()
    with distributed.join() as processes:
        assert processes == distributed.SINGLE
        processes.agree("settings", {"a": 1})
        processes.written()
