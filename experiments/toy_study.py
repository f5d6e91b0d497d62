"""Figure 2: a KNN on three classes in the plane, clean and wrongly labelled."""

from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from rich.console import Console

from experiments import progress, study
from experiments.study import Config
from rad_jax import knn, offline, study_figures

_POINTS, _FRESH, _GRID = 10, 1_000, 240
_CENTRES = np.array([[0.0, 1.0], [-1.0, -0.7], [1.0, -0.7]])
_DEVIATION = 0.38
_EXTENT = (-2.2, 2.2, -1.9, 2.1)  # left, right, bottom, top


class Toy(NamedTuple):
    """Figure 2.

    Attributes:
      clean: accuracy of the KNN trained on clean labels on (its 30 points, fresh ones).
      noisy: ``[R, 2]`` likewise, for each draw of the noise.
    """

    clean: tuple[float, float]
    noisy: np.ndarray


def run(config: Config, output_dir: Path, console: Console) -> Toy:
    """A KNN on three classes of ten points in the plane, clean and wrongly labelled.

    Args:
      config: completed.
      output_dir: takes config.json, points.csv, toy.csv and toy.png.
      console: where to print.
    """
    assert config.noise_rates is not None
    generator = np.random.default_rng(config.seed)

    def draw(size: int) -> tuple[np.ndarray, np.ndarray]:
        label = np.repeat(np.arange(3), size)
        offset = _DEVIATION * generator.standard_normal((3 * size, 2))
        return (_CENTRES[label] + offset).astype(np.float32), label.astype(np.int32)

    points, label = draw(_POINTS)
    fresh, fresh_label = draw(_FRESH)
    left, right, bottom, top = _EXTENT
    ticks = (np.arange(_GRID) + 0.5) / _GRID
    grid = np.stack(
        np.meshgrid(left + ticks * (right - left), bottom + ticks * (top - bottom)), -1
    ).reshape(-1, 2)
    rows = study.Rows(points, label, np.concatenate([points, fresh, grid]), label, 3)
    k = config.neighbours or 1
    if k > len(points):
        raise ValueError(f"--neighbours={k} exceeds the {len(points)} points")
    init_key, order_key, noise_key = study.base_keys(config)
    noise_keys = jax.random.split(noise_key, config.runs)
    noisy = study.given_labels(config, rows, noise_keys)[0]
    given = np.concatenate([label[None].astype(noisy.dtype), noisy])
    found = offline.study(
        knn(k),
        points,
        given,
        rows.test,
        num_classes=3,
        init_key=init_key,
        order_key=order_key,
    ).predictions
    own, new, regions = np.split(found, np.cumsum([len(points), len(fresh)]), axis=1)
    accuracy = np.stack(
        [(own == label).mean(axis=1), (new == fresh_label).mean(axis=1)], axis=1
    )
    result = Toy(tuple(accuracy[0].tolist()), accuracy[1:])
    study.write_config(config, output_dir)
    rate = config.noise_rates[0]
    titles = ("clean labels", f"{100 * rate:g}% wrong labels")
    study_figures.plot_toy(
        points,
        label,
        [
            study_figures.ToyPanel(
                f"{title}: {100 * accuracy[i, 0]:.0f}% of the points right",
                given[i],
                own[i] != label,
                regions[i].reshape(_GRID, _GRID),
            )
            for i, title in enumerate(titles)
        ],
        _EXTENT,
        output_dir / "toy.png",
    )
    study.write_csv(
        output_dir / "points.csv",
        ["x", "y", "true_class", "given_label", "predicted_clean", "predicted_noisy"],
        zip(*points.T, label, given[1], own[0], own[1], strict=True),
    )
    study.write_csv(
        output_dir / "toy.csv",
        ["noise_rate", "run", "accuracy_on_points", "accuracy_on_fresh_points"],
        [
            (0.0 if i == 0 else rate, max(i - 1, 0), *accuracy[i])
            for i in range(len(accuracy))
        ],
    )
    means = result.noisy.mean(axis=0)
    progress.say(
        console,
        f"KNN({k}) on {len(points)} points, accuracy on them / on {len(fresh):,} fresh "
        f"ones: clean labels {result.clean[0]:.3f} / {result.clean[1]:.3f}; "
        f"{100 * rate:g}% wrong labels {means[0]:.3f} / {means[1]:.3f} (mean of "
        f"{config.runs} draws); guessing 0.333",
    )
    return result
