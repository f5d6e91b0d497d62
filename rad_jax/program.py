"""The compiled parts of a sweep (begin, advance), and how they are run.

Runs with two models and runs with one (RAD Slim) are two vmapped groups of the same
program; they share features, neighbour lists and true labels. Each device of a mesh
holds what is shared and its own part of the runs; devices do not talk to each other.
"""

import functools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from rad_jax import runs as layout
from rad_jax import stream
from rad_jax.compiled import Compiled, unalias
from rad_jax.devices import RUNS, SHARED, over_runs, put
from rad_jax.engine import Engine
from rad_jax.runs import Runs
from rad_jax.state import Params, PerSeed, Shared
from rad_jax.types import Array, Keys, Noise, PyTree


class StreamArrays(NamedTuple):
    """A stream cut into arrivals; every label is the true one.

    Attributes:
      initial_features: ``[N0, *S]`` float32.
      initial_labels: ``[N0]`` int32.
      features: ``[T, N, *S]`` float32.
      labels: ``[T, N]`` int32.
      test_features: ``[Q, *S]`` float32.
      test_labels: ``[Q]`` int32.
    """

    initial_features: Array
    initial_labels: Array
    features: Array
    labels: Array
    test_features: Array
    test_labels: Array


class Ends(NamedTuple):
    """What a stream begins with, and what it is tested on; see `StreamArrays`."""

    initial_features: Array
    initial_labels: Array
    test_features: Array
    test_labels: Array


class Block(NamedTuple):
    """Some arrivals; with late labels, those before them whose labels come now.

    Attributes:
      features: ``[label_delay + segment, N, *S]`` float32; arrival i of the segment
        is ``features[label_delay + i]``.
      labels: ``[label_delay + segment, N]`` int32, true ones.
      row_id: likewise, int32.
    """

    features: Array
    labels: Array
    row_id: Array


class Carry(NamedTuple):
    """What goes from one arrival to the next; what is of a group has R runs.

    Attributes:
      shared: by all runs.
      world: likewise.
      groups: the state of each group's runs.
      confusions: of each group's predictions after the latest arrival.
    """

    shared: Shared
    world: stream.World
    groups: tuple[PerSeed, ...]
    confusions: tuple[stream.Confusions, ...]


_HISTORY = P(None, "runs")  # [arrivals, R]


class Program(NamedTuple):
    """The compiled parts; see `make_program`."""

    begin: Compiled
    advance: Compiled


@functools.cache
def make_program(
    engines: tuple[Engine, ...],
    noise: Noise,
    alpha: str,
    random_model: bool,
    label_delay: int,
    mesh: Mesh,
) -> Program:
    """The compiled parts of a sweep; the same arguments give the same object."""
    widest = max(engines, key=lambda engine: len(engine.learners))
    axes = layout.axes(random_model)

    def vmapped(function):
        """Vmaps ``function(run, per_seed)`` over the runs of a group."""
        return jax.vmap(function, in_axes=(axes, 0))

    def begin(keys: Keys, data: Ends, params, runs: tuple[Runs, ...]):
        """Stores and learns the clean batch."""
        size = data.initial_labels.shape[0]
        shared, arrival = widest.start(
            keys,
            data.initial_features,
            jnp.ones(size, bool),
            jnp.arange(size, dtype=jnp.int32),
            data.initial_labels,
        )
        world = stream.open_world(
            widest,
            shared,
            arrival,
            data.initial_labels,
            data.test_features,
            data.test_labels,
        )

        def one_run(engine, run: Runs, params: Params):
            mine = shared._replace(order_key=run.order_key)
            per_seed = engine.init_seed(
                mine,
                arrival,
                data.initial_labels,
                run.init_key,
                params._replace(selection=run.selection),
            )
            per_seed, figures, confusions = stream.evaluate(
                engine, mine, per_seed, world, alpha
            )
            return per_seed, figures | stream.NO_ARRIVAL, confusions

        found = [
            jax.vmap(functools.partial(one_run, engine), in_axes=(axes, None))(
                group_runs, group_params
            )
            for engine, group_params, group_runs in zip(
                engines, params, runs, strict=True
            )
        ]
        groups, figures, confusions = zip(*found, strict=True)
        return Carry(shared, world, groups, confusions), figures

    def arrival_step(i, first, carry: Carry, block: Block, runs):
        features, labels, row_id = (x[label_delay + i] for x in block)
        valid = jnp.ones(labels.shape[0], bool)
        shared, arrival = widest.observe(carry.shared, features, valid, row_id)
        world = stream.extend_world(widest, carry.world, shared, arrival, labels)
        late = None
        if label_delay:
            late = stream.recall(
                widest,
                shared,
                arrival,
                block.features[i],
                block.row_id[i],
                block.labels[i],
                first + i - label_delay + 1,
            )
        found = []
        for engine, group_runs, per_seed in zip(
            engines, runs, carry.groups, strict=True
        ):

            def one_run(run: Runs, per_seed: PerSeed, engine=engine):
                mine = shared._replace(order_key=run.order_key)
                return stream.arrive(
                    engine,
                    noise,
                    mine,
                    per_seed,
                    arrival,
                    world,
                    labels,
                    run.noise,
                    run.noise_key,
                    alpha=alpha,
                    late=late,
                )

            found.append(vmapped(one_run)(group_runs, per_seed))
        groups, figures, confusions = zip(*found, strict=True)
        return Carry(shared, world, groups, confusions), figures

    def advance(carry: Carry, history, block: Block, runs, first, count):
        """`count` arrivals from `first` on; their figures in rows 0.. of history."""

        def body(i, carry_and_history):
            carry, history = carry_and_history
            carry, figures = arrival_step(i, first, carry, block, runs)
            history = jax.tree.map(
                lambda rows, row: rows.at[i].set(row.astype(rows.dtype)),
                history,
                figures,
            )
            return carry, history

        return jax.lax.fori_loop(0, count, body, (carry, history))

    carry_specs: Any = Carry(SHARED, SHARED, RUNS, RUNS)  # type: ignore[arg-type]
    runs_specs = (layout.specs(random_model),) * len(engines)

    def compiled(function, in_specs, out_specs, **options) -> Compiled:
        function, placed = over_runs(function, mesh, in_specs, out_specs)
        return Compiled(function, **options, **placed)

    return Program(
        compiled(begin, (SHARED, SHARED, SHARED, runs_specs), (carry_specs, RUNS)),
        compiled(
            advance,
            (carry_specs, _HISTORY, SHARED, runs_specs, SHARED, SHARED),
            (carry_specs, _HISTORY),
            donate_argnums=(0, 1),
        ),
    )


class Job(NamedTuple):
    """A program, and those of its arguments that all runs share.

    The stream itself stays on the host; devices get a segment of it at a time.
    """

    program: Program
    mesh: Mesh
    keys: Keys
    ends: Ends
    params: tuple[Params, ...]
    arrays: StreamArrays
    label_delay: int

    @property
    def segment(self) -> int:
        """Arrivals between two reports of progress."""
        return segment_of(self.arrays.labels.shape[0])

    def placed(self) -> "Job":
        """The same, what all segments share on the devices, to be executed."""
        shared = (self.keys, Ends(*map(jnp.asarray, self.ends)), self.params)
        keys, ends, params = put(shared, self.mesh)
        return self._replace(keys=keys, ends=ends, params=params)

    def block(self, first: int) -> Block:
        """The segment that begins with arrival `first`, on the devices.

        Positions before the stream and after it hold some arrival or other.
        """
        arrays, size = self.arrays, self.arrays.labels.shape[1]
        number = np.arange(first - self.label_delay, first + self.segment)
        there = np.clip(number, 0, len(arrays.labels) - 1)
        before = len(arrays.initial_labels) + number[:, None] * size
        row_id = jnp.asarray(before + np.arange(size), jnp.int32)
        block = Block(arrays.features[there], arrays.labels[there], row_id)
        return put(block, self.mesh)


def segment_of(num_arrivals: int) -> int:
    """Arrivals that are on the devices at a time."""
    return max(1, num_arrivals // 50)


def _empty_history(first: PyTree, segment: int) -> PyTree:
    return jax.tree.map(lambda x: np.zeros((segment, *x.shape), np.float32), first)


def _place(runs: tuple[Runs, ...], mesh: Mesh) -> tuple[Runs, ...]:
    return tuple(layout.place(r, mesh, r.init_key.ndim > 0) for r in runs)


def execute(
    job: Job, runs: tuple[Runs, ...], progress: Callable[[int], None] | None = None
):
    """Runs all arrivals, some at a time.

    Args:
      job: as `Job.placed` returns it.
      runs: of each group; their number must be a multiple of the mesh's size.
      progress: called with the number of arrivals done.

    Returns:
      Figures ``[T + 1, R]`` by name and group; confusion matrices by group; seconds
      of compilation and of the rest.
    """
    program = job.program
    compiled_before = _compile_seconds(program)
    begin_time = time.perf_counter()
    num_arrivals = len(job.arrays.labels)
    runs = _place(runs, job.mesh)
    block = job.block(0)
    begin = (job.keys, job.ends, job.params, runs)
    pool = ThreadPoolExecutor(1)  # compiles the one while the other is traced
    try:
        program.begin.trace(pool, *begin)
        program.advance.trace(pool, *_of_advance(job, runs, begin, block))
    finally:
        pool.shutdown(wait=False)
    carry, first = program.begin(*begin)
    carry = unalias(carry)
    rows = [jax.tree.map(lambda x: np.asarray(x)[None], first)]
    done = 0
    while done < num_arrivals:
        count = min(job.segment, num_arrivals - done)
        history = put(_empty_history(first, job.segment), job.mesh, _HISTORY)
        carry, history = program.advance(carry, history, block, runs, done, count)
        if done + count < num_arrivals:
            block = job.block(done + count)  # while the devices work
        rows.append(jax.tree.map(lambda x, n=count: np.asarray(x)[:n], history))
        done += count
        if progress is not None:
            progress(done)
    confusions = jax.device_get(carry.confusions)
    elapsed = time.perf_counter() - begin_time
    compile_seconds = _compile_seconds(program) - compiled_before
    figures = jax.tree.map(lambda *parts: np.concatenate(parts), *rows)
    return figures, confusions, (compile_seconds, elapsed - compile_seconds)


def compiled_bytes(job: Job, runs: tuple[Runs, ...]) -> int:
    """Compiles, runs nothing, and asks the compiler what the programs take.

    Returns:
      Bytes on all devices together.
    """
    job, runs = job.placed(), _place(runs, job.mesh)
    begin = (job.keys, job.ends, job.params, runs)
    return job.mesh.size * max(
        job.program.begin.nbytes(*begin),
        job.program.advance.nbytes(*_of_advance(job, runs, begin, job.block(0))),
    )


def _of_advance(job: Job, runs: tuple[Runs, ...], begin: tuple, block: Block) -> tuple:
    """Arguments of `advance`, or their shapes, from those of `begin`."""
    carry, first = job.program.begin.eval_shape(*begin)
    history = jax.eval_shape(lambda x: _empty_history(x, job.segment), first)
    return carry, history, block, runs, 0, 1


def _compile_seconds(program: Program) -> float:
    return sum(part.seconds for part in program)
