"""Google cluster-usage trace 2011: how will the task that was just submitted end?

One row is one submission of a task, its class the way in which it ended, its features
what was known when it was submitted. Of the trace only `task_events` is read, all parts
that are there: part 0 of 500 is the first 83 minutes of 29 days.

`machine_events` is not joined. On which machine a task runs is not known when it is
submitted, and it would not help: with capacity and platform of the machine on which it
ended, and whether there was one, the accuracy of a KNN(5) on 6,000 shuffled rows of
part 0 is .902 instead of .908, that of an MLP .911 instead of .913.

References:
  C. Reiss, J. Wilkes, J. Hellerstein, Google cluster-usage traces: format + schema,
  version 2, 2011 (https://github.com/google/cluster-data); data under CC-BY.
"""

import os
import pathlib
from collections.abc import Iterable, Iterator

import numpy as np

from rad_jax.datasets import _task_events, _task_history
from rad_jax.datasets.base import DataError, Dataset

#: Of the parser: a prepared copy of its rows is out of date when it changes.
VERSION = 1
#: The first of the files that are read, the pattern of all their names, and the folder
#: above them that may be left out.
PART = pathlib.PurePath("task_events", "part-00000-of-00500.csv.gz")
PATTERN = "part-?????-of-?????.csv.gz"
FOLDER = "google_cluster_2011"

_COUNTED = _task_history.COUNTED
_DAY = 86_400_000_000  # microseconds

CLASS_NAMES = tuple(_task_events.EVENT_TYPES[kind] for kind in _task_history.FINAL)
FEATURE_NAMES = (
    "scheduling_class",
    "priority",
    "cpu_request",
    "memory_request",
    "disk_request",
    "different_machines",
    "log_task_index",
    "time_of_day",
    *(
        f"log_{of}_{_task_events.EVENT_TYPES[kind]}"
        for of in ("job", "user", "task")
        for kind in _COUNTED
    ),
)


def load(data_dir: str | os.PathLike[str], num_parts: int | None = None) -> Dataset:
    """Loads the submissions that reached a final state in the parts that are there.

    A final event (evict, fail, finish, kill) belongs to the latest submission of the
    same task (job ID and task index) that precedes it in time, or stands before it in
    the file at the same time. Of several that belong to one submission the first
    counts. One that belongs to none makes no row: what was known at its submission is
    not in the files. Neither occurs in the published part 0.

    The features of a row stem from the line of its submission, and from events at
    strictly earlier times; what is simultaneous or later has no part in them.

    - scheduling class; priority; requests for CPU, memory and disk space, as fractions
      of what the largest machine has; 1 if the job's tasks must run on different
      machines. 0 where the trace has nothing: on 4 rows of part 0, which lack all of
      these but scheduling class and priority.
    - log(1 + task index).
    - Time of day, in 0..1: the fraction of a day since the trace's time zero, modulo
      one day. 0 as well for a submission before the trace began (9,536 rows of part 0)
      or after it ended, whose time is not known.
    - log(1 + how many) events so far of type submit, schedule, evict, fail, finish,
      kill, of the same job, then of the same user, then of the same task. A missing
      user is nobody: its counts are 0. Parts that are not there are as if nothing had
      happened in them.

    Several parts are read twice, one at a time, first for the ends, then for the
    features; beside the result that takes the memory of two parts, 32 bytes for each
    task and 9 for each row. The result takes 208 bytes a row: of the whole trace load
    only some parts, or use the builder in `datasets.tfds`.

    Args:
      data_dir: the folder that holds `task_events/part-00000-of-00500.csv.gz` and
        further parts, or one in whose `google_cluster_2011` they lie.
      num_parts: how many parts to read, >= 1, the first by name. None: all.

    Returns:
      A data set with features ``[n, 26]`` float64 and labels ``[n]`` int32 (0 evict,
      1 fail, 2 finish, 3 kill), rows in the order of submission: by time, and as in
      the files where that is the same. n is 58,661 for the published part 0.

    Raises:
      ValueError: `num_parts` is less than 1, or there are not so many.
      DataError: There is no part, a part begins before the one before it ends, cannot
        be read to its end, is empty, has a line that is not as the schema says, or
        they hold no submission that came to an end.
    """
    features, labels = zip(*rows(files(data_dir, num_parts)), strict=True)
    return Dataset(
        name="google_cluster",
        features=np.concatenate(features),
        labels=np.concatenate(labels),
        class_names=CLASS_NAMES,
        feature_names=FEATURE_NAMES,
    )


def files(
    data_dir: str | os.PathLike[str], num_parts: int | None = None
) -> list[pathlib.Path]:
    """The files that `load` reads, in its order; it says what is raised."""
    if num_parts is not None and num_parts < 1:
        raise ValueError(f"num_parts={num_parts} must be at least 1")
    root = pathlib.Path(data_dir)
    places = [root, root / FOLDER]
    for place in places:
        found = sorted((place / PART.parent).glob(PATTERN))
        if num_parts and 0 < len(found) < num_parts:
            raise ValueError(
                f"num_parts={num_parts}, but {place / PART.parent} holds {len(found)}"
            )
        if found:
            return found[:num_parts]
    raise DataError(
        "no task_events of the Google cluster trace 2011: neither "
        f"{' nor '.join(str(place / PART) for place in places)} is a file, nor is any "
        "other part there"
    )


def rows(paths: list[pathlib.Path]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Reads parts into rows, a block at a time.

    Args:
      paths: at least one, as of `files`.

    Yields:
      Features ``[m, 26]`` float64 and labels ``[m]`` int32 of the next m >= 1 rows.

    Raises:
      DataError: As `load`.
    """
    first: Iterable[_task_events.Events] = _task_events.in_order(paths)
    again: Iterable[_task_events.Events] = _task_events.in_order(paths)
    if len(paths) == 1:
        first = again = list(first)
    labels, events = _task_history.endings(first)
    if not (labels >= 0).any():
        where = " to ".join(dict.fromkeys([str(paths[0]), str(paths[-1])]))
        final = _task_history.FINAL
        raise DataError(
            f"{where}: none of the {events} events is the final one (types {final[0]}.."
            f"{final[-1]}) of a task submitted (type {_task_history.SUBMIT}) before"
        )
    groups = [_task_history.Counts() for _ in range(3)]  # of jobs, users, tasks
    done = 0
    for piece in again:
        submitted = np.flatnonzero(piece.event == _task_history.SUBMIT)
        label = labels[done : done + len(submitted)]
        done += len(submitted)
        features = _features(piece, submitted[label >= 0], groups)
        if len(features):
            yield features, label[label >= 0].astype(np.int32)


def _features(
    events: _task_events.Events, rows: np.ndarray, groups: list[_task_history.Counts]
) -> np.ndarray:
    """Computes what was known at the submissions, and counts the events.

    Args:
      events: a piece of the trace, E events.
      rows: ``[n]`` int64, the places of the submissions among the events.
      groups: what was counted of jobs, users and tasks in the pieces before; these
        events are added.

    Returns:
      ``[n, 26]`` float64, in the order of `FEATURE_NAMES`.
    """
    time = events.time[rows]
    known = (time != _task_events.BEFORE_START) & (time != _task_events.AFTER_END)
    keys = (events.job, events.user, events.task)
    counts = [
        group.count(key, events, rows) for group, key in zip(groups, keys, strict=True)
    ]
    counts[1][events.user[rows] < 0] = 0
    return np.column_stack(
        [
            events.request[rows],
            np.log1p(events.task_index[rows]),
            np.where(known, time % _DAY / _DAY, 0.0),
            np.log1p(np.concatenate(counts, axis=1)),
        ]
    )
