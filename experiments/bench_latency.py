"""One arrival that Python feeds, without a sweep: what a user of `OnlineRad` waits."""

import time
from typing import Any

import jax
import numpy as np

from experiments import names, stream
from experiments.bench_timing import Figure, Part, figure, ratio
from rad_jax import rad
from rad_jax.online import OnlineRad
from rad_jax.types import UNLABELLED

#: The first arrivals compile; they are not timed.
COMPILING = 3


def _online(config: stream.Config, data: Any) -> OnlineRad:
    label_model, classifier = (
        stream.learner(config, name) for name in (config.label_model, config.classifier)
    )
    arm = names.arm(
        "active_limited",
        query_budget=config.query_budget or 1,
        score=config.uncertainty,
        source=config.uncertainty_source,
    )
    return OnlineRad(
        rad(
            label_model=label_model,
            classifier=classifier,
            selection=arm.scheme,
            num_classes=data.num_classes,
            memory_capacity=len(data.initial_labels) + data.labels.size,
        ),
        max_batch_size=data.labels.shape[1],
    )


def measure(config: stream.Config, repeats: int) -> Part:
    """Times the arrivals of one stream, batches of changing length.

    Args:
      config: learners, data, steps; as `stream.complete` returns it.
      repeats: ten times as many arrivals are timed, or as many as there are.

    Returns:
      Figures ``latency_ms`` and its parts; a repetition is an arrival.

    Raises:
      ValueError: for a stream of too few arrivals.
    """
    dataset = stream.read(config)
    config = stream.suit(config, dataset)
    data = stream.cut(config, dataset)
    if len(data.labels) <= COMPILING:
        raise ValueError(
            f"--num_batches must be more than {COMPILING} to time arrivals, got "
            f"{len(data.labels)}"
        )
    online = _online(config, data)
    online.start(data.initial_features, data.initial_labels)
    rng = np.random.default_rng(0)
    times: dict[str, list[float]] = {"judge": [], "answer": [], "learn": [], "all": []}
    most = data.labels.shape[1]
    for i in range(min(len(data.labels), COMPILING + 10 * repeats)):
        n = int(rng.integers(max(1, most // 2), most + 1))
        x, y = data.features[i][:n], data.labels[i][:n]
        marks = [time.perf_counter()]
        verdict = online.judge(x, y)
        marks.append(time.perf_counter())
        asked = verdict.queried & (y != UNLABELLED)
        online.answer(verdict.row_id[asked], y[asked])
        jax.block_until_ready(online.state)
        marks.append(time.perf_counter())
        online.learn()
        jax.block_until_ready(online.state)
        marks.append(time.perf_counter())
        if i >= COMPILING:
            for name, seconds in zip(times, np.diff(marks), strict=False):
                times[name].append(1e3 * float(seconds))
            times["all"].append(1e3 * (marks[-1] - marks[0]))
    figures: dict[str, Figure] = {
        f"latency_ms.{k}": figure(v) for k, v in times.items()
    }
    return Part(
        title=f"one arrival from Python, {config.dataset}: L = {config.label_model}, "
        f"C = {config.classifier}, {config.steps_per_batch} gradient steps",
        rows=[
            {
                "call": name,
                "ms": figure(took),
                "share": ratio(took, times["all"]),
            }
            for name, took in times.items()
        ],
        figures=figures,
        settings={
            "arrivals": len(times["all"]),
            "rows_of_an_arrival": [most // 2, most],
            "steps_per_batch": config.steps_per_batch,
        },
    )
