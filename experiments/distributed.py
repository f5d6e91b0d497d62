"""Several processes, on one host or many, that share the seeds of one run.

Each process computes a block of seeds on its own devices; nothing is exchanged while
they compute. JAX's distributed runtime brings them together: it finds the coordinator
(process 0), compares what they were started with, collects what they measured, and
notices when one of them dies.
"""

import contextlib
import dataclasses
import faulthandler
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from absl import flags
from jax._src import distributed as runtime  # its key-value store has no public name

from rad_jax.chunks import differences

FLAGS = flags.FLAGS
#: Of flags; see `experiments.flags`.
GROUP = "many hosts"
#: Seconds after which a process that no longer answers is given up.
_HEARTBEAT_SECONDS = 10
_FOREVER_MS = 2**31 - 1
_PIECE = 1 << 24  # bytes of a value
_END = "rad_jax/end"  # the key that ends it: holds an error, or nothing
_READING_SECONDS = 1.0  # for other processes to read it
_giving_up = threading.Event()  # this process has failed, and says so itself


def define_flags() -> None:
    """Defines the flags that bring processes together; a second call does nothing."""
    if "coordinator_address" in FLAGS:
        return
    flags.DEFINE_bool(
        "distributed",
        False,
        "Share the seeds with the other processes of this job, which SLURM, Open MPI, "
        "Kubernetes or Cloud TPU started.",
        module_name=GROUP,
    )
    flags.DEFINE_string(
        "coordinator_address",
        None,
        "host:port of process 0, where no such cluster is found.",
        module_name=GROUP,
    )
    flags.DEFINE_integer(
        "num_processes", None, "How many there are.", module_name=GROUP
    )
    flags.DEFINE_integer(
        "process_id", None, "Which this is, from 0.", module_name=GROUP
    )
    flags.DEFINE_integer(
        "connect_timeout",
        60,
        "Seconds within which all processes must have started.",
        module_name=GROUP,
    )


@dataclasses.dataclass(frozen=True)
class Processes:
    """The processes of a run.

    Attributes:
      index: of this process.
      count: how many there are.
    """

    index: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the process that prints and writes."""
        return self.index == 0

    def block(self, num_seeds: int) -> tuple[int, int]:
        """The first seed of this process, and how many it has.

        Raises:
          ValueError: a process would have none.
        """
        if num_seeds < self.count:
            raise ValueError(
                f"--num_seeds={num_seeds} must be at least the number of processes, "
                f"{self.count}"
            )
        least, more = divmod(num_seeds, self.count)
        first = self.index * least + min(self.index, more)
        return first, least + (self.index < more)

    def agree(self, what: str, settings: Mapping[str, Any]) -> None:
        """Compares what results depend on with process 0.

        Args:
          what: is compared; once only.
          settings: anything that JSON can hold, by name.

        Raises:
          ValueError: naming what differs.
        """
        if self.count == 1:
            return
        mine = json.loads(json.dumps(settings))
        _put(f"rad_jax/{what}/{self.index}", json.dumps(mine).encode())
        for other in range(1, self.count) if self.first else [0]:
            theirs = json.loads(_get(f"rad_jax/{what}/{other}"))
            differ = differences(theirs, mine)
            if differ:
                raise ValueError(
                    f"process {other} has other {what}: "
                    + "; ".join(
                        f"{name} ({there}; process {self.index}: {here})"
                        for name, (there, here) in differ.items()
                    )
                )

    def gather(self, data: bytes) -> list[bytes]:
        """Brings one value of each process to process 0; an empty list elsewhere."""
        if self.count == 1:
            return [data]
        if not self.first:
            _put(f"rad_jax/part/{self.index}", data)
            return []
        parts = [_get(f"rad_jax/part/{other}") for other in range(1, self.count)]
        return [data, *parts]

    def written(self) -> None:
        """Process 0 has written the report: the others wait for it."""
        if self.count > 1 and self.first:
            _put("rad_jax/written", b"")
        elif self.count > 1:
            _get("rad_jax/written")


SINGLE = Processes()


def _client() -> Any:
    return runtime.global_state.client


def _put(key: str, value: bytes) -> None:
    pieces = [value[i : i + _PIECE] for i in range(0, len(value), _PIECE)] or [b""]
    for i, piece in enumerate(pieces):
        _client().key_value_set_bytes(f"{key}/{i}", piece)
    _client().key_value_set(f"{key}/pieces", str(len(pieces)))


def _get(key: str) -> bytes:
    """Waits until some process has put it."""
    count = int(_client().blocking_key_value_get(f"{key}/pieces", _FOREVER_MS))
    return b"".join(
        _client().blocking_key_value_get_bytes(f"{key}/{i}", _FOREVER_MS)
        for i in range(count)
    )


@contextlib.contextmanager
def join() -> Iterator[Processes]:
    """Joins the other processes, if flags say that there are any.

    To be entered before JAX computes anything. A process that fails or dies ends the
    others.

    Yields:
      The processes.

    Raises:
      ValueError: flags that do not fit together, or no cluster is found.
      OSError: process 0 cannot be reached, or others do not come.
    """
    if not _wanted():
        yield SINGLE
        return
    processes = _connect()
    if processes.count > 1:
        threading.Thread(target=_watch, args=(processes,), daemon=True).start()
    try:
        yield processes
    except BaseException as error:
        if not isinstance(error, (ValueError, OSError, ImportError, KeyboardInterrupt)):
            traceback.print_exc()
        _give_up(processes, str(error) or type(error).__name__)
    if processes.first:
        _client().key_value_set(_END, "")
    else:  # process 0 is still writing
        _client().blocking_key_value_get(_END, _FOREVER_MS)
    jax.distributed.shutdown()


def _wanted() -> bool:
    """Whether there are several processes.

    Raises:
      ValueError: flags that do not fit together.
    """
    address, count, index = (
        FLAGS[name].value
        for name in ("coordinator_address", "num_processes", "process_id")
    )
    given = {
        "coordinator_address": address,
        "num_processes": count,
        "process_id": index,
    }
    if FLAGS.connect_timeout < 1:
        raise ValueError(
            f"--connect_timeout must be at least 1, got {FLAGS.connect_timeout}"
        )
    if count is not None and count < 1:
        raise ValueError(f"--num_processes must be at least 1, got {count}")
    if index is not None and not 0 <= index < (count or 2**31):
        raise ValueError(
            f"--process_id must lie in 0..num_processes-1, got {index} of {count}"
        )
    if address is not None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise ValueError(
                f"--coordinator_address must be host:port, got {address!r}"
            )
    if FLAGS.distributed:
        return True
    missing = [f"--{name}" for name, value in given.items() if value is None]
    if len(missing) == len(given):
        return False
    if missing:
        raise ValueError(
            f"{' and '.join(missing)} must be given too (or --distributed, where "
            "a cluster is found by itself)"
        )
    return True


def _connect() -> Processes:
    timeout = FLAGS.connect_timeout
    faulthandler.disable()  # JAX aborts a process whose peer died: no stacks after that
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # It would take a SIGTERM (kill, scancel, docker stop) for a notice, and go on.
    jax.config.update("jax_enable_preemption_service", False)
    late = threading.Timer(timeout, _too_late, [timeout])
    late.daemon = True
    late.start()
    try:
        jax.distributed.initialize(
            FLAGS.coordinator_address,
            FLAGS.num_processes,
            FLAGS.process_id,
            initialization_timeout=timeout + 30,  # the timer's message is clearer
            heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=60,
        )
    except ValueError as error:
        raise ValueError(
            "--distributed: no cluster was found (SLURM, Open MPI, Kubernetes, Cloud "
            "TPU); give --coordinator_address, --num_processes and --process_id "
            f"({error})"
        ) from error
    except RuntimeError as error:
        raise OSError(f"--coordinator_address={_address()}: {error}") from error
    finally:
        late.cancel()
    return Processes(jax.process_index(), jax.process_count())


def _address() -> str:
    return runtime.global_state.coordinator_address or FLAGS.coordinator_address


def _too_late(timeout: int) -> None:
    state = runtime.global_state
    if state.process_id == 0:
        text = f"not all {state.num_processes} processes have come to {_address()}"
    else:
        text = f"the coordinator {_address()} cannot be reached"
    _end(f"{text} within --connect_timeout={timeout} s")


def _watch(processes: Processes) -> None:
    """Ends this process when another one has failed or died."""
    try:
        reason = _client().blocking_key_value_get(_END, _FOREVER_MS)
    except Exception as error:  # the coordinator's end of the line is dead
        reason = f"another process of this run died ({str(error).splitlines()[0]})"
    if not reason or _giving_up.is_set():
        return
    if processes.first:
        time.sleep(2 * _READING_SECONDS)  # the coordinator ends last
    _end(f"process {processes.index} of {processes.count} ends: {reason}")


def _give_up(processes: Processes, reason: str) -> None:
    """Tells the other processes why this one ends, and ends it."""
    _giving_up.set()
    _say(reason)
    with contextlib.suppress(Exception):
        _client().key_value_set(
            _END, f"process {processes.index} failed: {reason}", allow_overwrite=True
        )
        time.sleep(_READING_SECONDS)  # until they have read it
    os._exit(1)


def _say(reason: str) -> None:
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        print(f"error: {reason}", file=sys.stderr, flush=True)


def _end(reason: str) -> None:
    """Ends the process at once: no clean-up of JAX's that would wait for the dead."""
    _say(reason)
    os._exit(1)
