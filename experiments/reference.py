"""Published curves, read from a file: accuracy over label noise.

The file is JSON: an object with the list "curves", each of them an object with
"dataset" and "model" (texts), "noise" (percent) and "accuracy" (fractions), lists of
equal length; optionally "id" (a text that ends in the learner's name, as in
"tasks/knn"), "std" and "superseded" (true: to be left out).
"""

import json
import math
from typing import Any, NamedTuple

import numpy as np

from rad_jax.study_figures import Curve

#: By our data set, what published curves call it.
DATASETS = {"google_cluster": "tasks", "nbaiot": "thermostat", "facescrub": "face20"}


class Reference(NamedTuple):
    """A published curve."""

    dataset: str
    learner: str
    curve: Curve


def _plain(text: str) -> str:
    return "".join(c for c in text.lower() if c.isalnum())


def _numbers(entry: dict, name: str, where: str, high: float) -> np.ndarray:
    values = entry.get(name)
    if not isinstance(values, list) or not values:
        raise ValueError(f"{where}: {name!r} must be a list of numbers, got {values!r}")
    for value in values:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not (math.isfinite(value) and 0 <= value <= high):
            raise ValueError(
                f"{where}: {name!r} must hold numbers in 0..{high:g}, got {value!r}"
            )
    return np.asarray(values, np.float64)


def _reference(entry: Any, where: str) -> Reference:
    if not isinstance(entry, dict):
        raise ValueError(f"{where} must be an object, got {entry!r}")
    for name in ("dataset", "model"):
        if not isinstance(entry.get(name), str):
            raise ValueError(
                f"{where}: {name!r} must be a text, got {entry.get(name)!r}"
            )
    noise = _numbers(entry, "noise", where, 100)
    accuracy = _numbers(entry, "accuracy", where, 1)
    if len(noise) != len(accuracy):
        raise ValueError(
            f"{where}: 'noise' has {len(noise)} entries, 'accuracy' {len(accuracy)}"
        )
    spread = np.full(len(noise), np.nan)
    if "std" in entry:
        spread = _numbers(entry, "std", where, 1)
        if len(spread) != len(noise):
            raise ValueError(
                f"{where}: 'noise' has {len(noise)} entries, 'std' {len(spread)}"
            )
    name = str(entry.get("id", entry["model"])).rsplit("/", 1)[-1]
    return Reference(
        entry["dataset"], _plain(name), Curve(noise / 100, accuracy, spread)
    )


def load(path: str, dataset: str, learners: tuple[str, ...]) -> dict[str, Curve]:
    """The curves of a data set, by our learners' names.

    Args:
      path: value of ``--reference_curves``.
      dataset: as the file calls it; texts are compared without case and punctuation.
      learners: whose curves are wanted; those that the file lacks are left out.

    Returns:
      Curves by learner.

    Raises:
      ValueError: for a file that cannot be read, or has another form, or holds
        nothing on the data set.
    """
    flag = f"--reference_curves={path}"
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(f"{flag} cannot be read ({reason})") from error
    except ValueError as error:
        raise ValueError(f"{flag} is not JSON ({error})") from error
    entries = content.get("curves") if isinstance(content, dict) else None
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"{flag} must hold an object with a list 'curves'")
    known = [
        _reference(entry, f"{flag}, curve {i}")
        for i, entry in enumerate(entries)
        if not (isinstance(entry, dict) and entry.get("superseded") is True)
    ]
    ours = [each for each in known if _plain(each.dataset) == _plain(dataset)]
    if not ours:
        names = ", ".join(dict.fromkeys(each.dataset for each in known))
        raise ValueError(
            f"{flag} has no curves of the data set {dataset!r}; it has: {names} "
            "(choose with --reference_dataset)"
        )
    wanted = {_plain(name): name for name in learners}
    return {wanted[r.learner]: r.curve for r in ours if r.learner in wanted}
