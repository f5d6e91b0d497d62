"""Google cluster-usage trace 2011: how will the task that was just submitted end?

One row is one submission of a task, its class the way in which it ended, its features
what was known when it was submitted. Only part 0 of 500 of `task_events` is read, the
first 83 minutes.

References:
  C. Reiss, J. Wilkes, J. Hellerstein, Google cluster-usage traces: format + schema,
  version 2, 2011 (https://github.com/google/cluster-data); data under CC-BY.
"""

import os
import pathlib

import numpy as np

from rad_jax.datasets import _task_events
from rad_jax.datasets.base import DataError, Dataset

#: The file that is read, and the folder above it that may be left out.
PART = pathlib.PurePath("task_events", "part-00000-of-00500.csv.gz")
FOLDER = "google_cluster_2011"

_SUBMIT = 0
_FINAL = (2, 3, 4, 5)  # the event types that end a submission: the classes
_COUNTED = (0, 1, 2, 3, 4, 5)
_DAY = 86_400_000_000  # microseconds

CLASS_NAMES = tuple(_task_events.EVENT_TYPES[kind] for kind in _FINAL)
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


def load(data_dir: str | os.PathLike[str]) -> Dataset:
    """Loads the submissions of part 0 that reached a final state in it.

    A final event (evict, fail, finish, kill) belongs to the latest submission of the
    same task (job ID and task index) that precedes it in time, or stands before it in
    the file at the same time. Of several that belong to one submission the first
    counts. One that belongs to none makes no row: what was known at its submission is
    not in the file. Neither occurs in the published file.

    The features of a row stem from the line of its submission, and from events at
    strictly earlier times; what is simultaneous or later has no part in them.

    - scheduling class; priority; requests for CPU, memory and disk space, as fractions
      of what the largest machine has; 1 if the job's tasks must run on different
      machines. 0 where the trace has nothing: on 4 rows of the published file, which
      lack all of these but scheduling class and priority.
    - log(1 + task index).
    - Time of day, in 0..1: the fraction of a day since the trace's time zero, modulo
      one day. 0 as well for a submission before the trace began (9,536 rows of the
      published file) or after it ended, whose time is not known.
    - log(1 + how many) events so far of type submit, schedule, evict, fail, finish,
      kill, of the same job, then of the same user, then of the same task. A missing
      user is nobody: its counts are 0.

    Args:
      data_dir: the folder that holds `task_events/part-00000-of-00500.csv.gz`, or one
        in whose `google_cluster_2011` it lies.

    Returns:
      A data set with features ``[n, 26]`` float64 and labels ``[n]`` int32 (0 evict,
      1 fail, 2 finish, 3 kill), rows in the order of submission: by time, and as in
      the file where that is the same. n is 58,661 for the published file.

    Raises:
      DataError: The file is not there, cannot be read to its end, is empty, has a line
        that is not as the schema says, or holds no submission that came to an end.
    """
    path = _find(pathlib.Path(data_dir))
    events = _task_events.read(path)
    task = _ids(_ids(events.job) * len(events.task_index) + _ids(events.task_index))
    rows, final = _endings(task, events.event)
    if not rows.size:
        raise DataError(
            f"{path}: none of the {len(task)} events is the final one (types "
            f"{_FINAL[0]}..{_FINAL[-1]}) of a task submitted (type 0) before"
        )
    return Dataset(
        name="google_cluster",
        features=_features(events, task, rows),
        labels=(final - _FINAL[0]).astype(np.int32),
        class_names=CLASS_NAMES,
        feature_names=FEATURE_NAMES,
    )


def _find(data_dir: pathlib.Path) -> pathlib.Path:
    """Returns the path of the file to read; DataError says where it was sought."""
    candidates = (data_dir / PART, data_dir / FOLDER / PART)
    for path in candidates:
        if path.is_file():
            return path
    raise DataError(
        f"data_dir={str(data_dir)!r} holds no Google cluster trace; looked for "
        + " and ".join(str(path) for path in candidates)
    )


def _ids(values: np.ndarray) -> np.ndarray:
    """Replaces ``[E]`` values by their ranks ``[E]`` int64 in 0..E-1.

    Products of two ranks fit into 64 bits where those of the values need not: job IDs
    exceed 2^32, and times reach 2^63-1.
    """
    return np.unique(values, return_inverse=True)[1]


def _endings(task: np.ndarray, event: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Finds the submissions that came to an end, and how they ended.

    Args:
      task: ``[E]`` int64 in 0..E-1, whose event it is, in the order of time.
      event: ``[E]`` int64, its type.

    Returns:
      The places of those submissions ``[n]``, ascending, and the types of the final
      events that ended them ``[n]``.
    """
    key = task * len(task) + np.arange(len(task))  # sorts by task, then by time
    submission = np.flatnonzero(event == _SUBMIT)
    submission = submission[np.argsort(key[submission])]
    final = np.flatnonzero(np.isin(event, _FINAL))
    # The last submission with a smaller key is the latest one, if of the same task.
    latest = np.searchsorted(key[submission], key[final]) - 1
    final, latest = final[latest >= 0], submission[latest[latest >= 0]]
    same = task[final] == task[latest]
    rows, first = np.unique(latest[same], return_index=True)
    return rows, event[final[same][first]]


def _features(
    events: _task_events.Events, task: np.ndarray, rows: np.ndarray
) -> np.ndarray:
    """Computes what was known at the submissions.

    Args:
      events: all E events.
      task: ``[E]`` int64, whose event it is.
      rows: ``[n]`` int64, the places of the submissions among the events.

    Returns:
      ``[n, 26]`` float64, in the order of `FEATURE_NAMES`.
    """
    time = events.time[rows]
    known = (time != _task_events.BEFORE_START) & (time != _task_events.AFTER_END)
    rank = _ids(events.time)
    counts = [
        _earlier(of, rank, events.event == kind, rows)
        for of in (events.job, events.user, task)
        for kind in _COUNTED
    ]
    for column in counts[len(_COUNTED) : 2 * len(_COUNTED)]:
        column[events.user[rows] < 0] = 0
    return np.column_stack(
        [
            events.request[rows],
            np.log1p(events.task_index[rows]),
            np.where(known, time % _DAY / _DAY, 0.0),
            np.log1p(np.stack(counts, axis=1)),
        ]
    )


def _earlier(
    group: np.ndarray, rank: np.ndarray, counted: np.ndarray, rows: np.ndarray
) -> np.ndarray:
    """Counts the events of a row's group at strictly earlier times than its own.

    Args:
      group: ``[E]`` int64, any numbers, equal for events of one group.
      rank: ``[E]`` int64 in 0..E-1, equal for events of one time, greater for later.
      counted: ``[E]`` bool, which events count.
      rows: ``[n]`` int64, the events for which to count.

    Returns:
      ``[n]`` int64.
    """
    start = _ids(group) * len(group)
    keys = np.sort((start + rank)[counted])  # by group, then by time
    until = np.searchsorted(keys, (start + rank)[rows])
    return until - np.searchsorted(keys, start[rows])
