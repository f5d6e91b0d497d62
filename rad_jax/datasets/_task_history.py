"""What happened to tasks: how submissions ended, and what had happened before them."""

from collections.abc import Iterable

import numpy as np

from rad_jax.datasets._task_events import Events

#: Event types: the one that submits, those that end a submission, those counted.
SUBMIT = 0
FINAL = (2, 3, 4, 5)
COUNTED = (0, 1, 2, 3, 4, 5)


def endings(pieces: Iterable[Events]) -> tuple[np.ndarray, int]:
    """Finds how each submission ended.

    A final event ends the latest submission of its task before it, unless that one
    has ended already.

    Args:
      pieces: the events, in the order of time.

    Returns:
      For each submission, in order, ``[s]`` int8, the place in `FINAL` of the event
      that ended it, -1 if none did; and the number of events.
    """
    # The submissions that have not ended so far: the last one of each task.
    task, number = np.empty(0, np.int64), np.empty(0, np.int64)
    ended: list[tuple[np.ndarray, np.ndarray]] = []
    submissions = events = 0
    for piece in pieces:
        events += len(piece.event)
        used = np.isin(piece.event, (SUBMIT, *FINAL))
        kind = np.concatenate([np.full(len(task), SUBMIT), piece.event[used]])
        task = np.concatenate([task, piece.task[used]])
        number = np.concatenate([number, np.full(int(used.sum()), -1)])
        new = np.flatnonzero((kind == SUBMIT) & (number < 0))
        number[new] = submissions + np.arange(len(new))
        submissions += len(new)

        rows, final, latest = _match(ids(task), kind)
        ended.append((number[rows], np.searchsorted(FINAL, final).astype(np.int8)))
        still_open = np.setdiff1d(latest, rows)
        task, number = task[still_open], number[still_open]
    labels = np.full(submissions, -1, np.int8)
    for numbers, label in ended:
        labels[numbers] = label
    return labels, events


def _match(
    task: np.ndarray, event: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Finds the submissions that came to an end, and how they ended.

    Args:
      task: ``[E]`` int64 in 0..E-1, whose event it is, in the order of time.
      event: ``[E]`` int64, its type.

    Returns:
      The places of those submissions ``[n]``, ascending; the types of the final events
      that ended them ``[n]``; the places of the last submission of each task.
    """
    key = task * len(task) + np.arange(len(task))  # sorts by task, then by time
    submission = np.flatnonzero(event == SUBMIT)
    submission = submission[np.argsort(key[submission])]
    final = np.flatnonzero(np.isin(event, FINAL))
    # The last submission with a smaller key is the latest one, if of the same task.
    before = np.searchsorted(key[submission], key[final]) - 1
    final, before = final[before >= 0], submission[before[before >= 0]]
    same = task[final] == task[before]
    rows, first = np.unique(before[same], return_index=True)
    is_last = np.append(np.diff(task[submission]) > 0, True)[: len(submission)]
    return rows, event[final[same][first]], submission[is_last]


class Counts:
    """How many events of each counted type there were of each job, user or task.

    Attributes:
      keys: ``[g]`` int64, ascending, the groups seen so far.
      counts: ``[g, len(COUNTED)]`` int32.
    """

    def __init__(self) -> None:
        self.keys = np.empty(0, np.int64)
        self.counts = np.empty((0, len(COUNTED)), np.int32)

    def count(self, group: np.ndarray, events: Events, rows: np.ndarray) -> np.ndarray:
        """Counts events of a row's group at strictly earlier times; adds all events.

        Args:
          group: ``[E]`` int64, any numbers, equal for events of one group.
          events: E events, later than those counted so far.
          rows: ``[n]`` int64, the events for which to count.

        Returns:
          ``[n, len(COUNTED)]`` int64.
        """
        rank = ids(events.time)
        within = [_earlier(group, rank, events.event == k, rows) for k in COUNTED]
        result = self._so_far(group[rows]) + np.stack(within, axis=1)
        counted = np.isin(events.event, COUNTED)
        self._add(group[counted], np.searchsorted(COUNTED, events.event[counted]))
        return result

    def _so_far(self, keys: np.ndarray) -> np.ndarray:
        """The counts of groups ``[n]``, 0 where not seen yet."""
        result = np.zeros((len(keys), len(COUNTED)), np.int64)
        place = np.searchsorted(self.keys, keys)
        seen = place < len(self.keys)
        seen[seen] = self.keys[place[seen]] == keys[seen]
        result[seen] = self.counts[place[seen]]
        return result

    def _add(self, keys: np.ndarray, kinds: np.ndarray) -> None:
        """Counts events of these groups ``[e]`` and types ``[e]``, as in `COUNTED`."""
        keys, place = np.unique(keys, return_inverse=True)
        merged = np.union1d(self.keys, keys)
        counts = np.zeros((len(merged), len(COUNTED)), np.int32)
        counts[np.searchsorted(merged, self.keys)] = self.counts
        np.add.at(counts, (np.searchsorted(merged, keys)[place], kinds), 1)
        self.keys, self.counts = merged, counts


def ids(values: np.ndarray) -> np.ndarray:
    """Replaces ``[E]`` values by their ranks ``[E]`` int64 in 0..E-1.

    Products of two ranks fit into 64 bits where those of the values need not: job IDs
    exceed 2^32, and times reach 2^63-1.
    """
    return np.unique(values, return_inverse=True)[1]


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
    start = ids(group) * len(group)
    keys = np.sort((start + rank)[counted])  # by group, then by time
    until = np.searchsorted(keys, (start + rank)[rows])
    return until - np.searchsorted(keys, start[rows])
