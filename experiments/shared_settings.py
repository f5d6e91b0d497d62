"""Settings that several scripts have: a value for each flag, and its default."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class TableSettings:
    """How a file of one's own is read, and every data set scaled."""

    label_column: str | None = None
    drop_columns: tuple[str, ...] = ()
    time_column: str | None = None
    cache_dir: str | None = None
    scaling: str | None = None


@dataclasses.dataclass(frozen=True)
class DataSettings(TableSettings):
    """Which data set, and how it is read."""

    dataset: str = "digits"
    data_dir: str | None = None
    device: str = "all"
    image_size: int = 32
    num_people: int | None = None
    skip_bad_images: bool = False


@dataclasses.dataclass(frozen=True)
class SyntheticSettings:
    """A stream that is made up."""

    num_classes: int = 10
    width: int = 20
    separation: float = 4.0
    drift: str = "none"
    drift_period: float = 20.0
    imbalance: float = 1.0
    late_from: int = 0


@dataclasses.dataclass(frozen=True)
class LearnerSettings:
    """Options of the learners."""

    learning_rate: float | None = None
    hidden: tuple[int, ...] = (28, 28)
    svm_c: float = 1.0
    num_landmarks: int = 512
    num_trees: int = 100
    max_depth: int = 5
    max_features: int = 10
    vgg_width: float = 1.0
    vgg_blocks: int = 3
    augment: bool = False


@dataclasses.dataclass(frozen=True)
class OnlineSettings(LearnerSettings):
    """The two models, and how they are trained as labels arrive."""

    calibrate: bool = False
    label_model: str = "mlp"
    classifier: str = "knn"
    training: str = "continue"
    steps_per_batch: int = 100
    initial_steps: int = 500
    minibatch_size: int | None = None
    neighbours: int = 5


def defaults(*settings: type) -> dict[str, object]:
    """What each flag is unless it is given."""
    return {
        field.name: field.default
        for one in settings
        for field in dataclasses.fields(one)
    }
