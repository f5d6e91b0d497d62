"""Handwritten digits, embedded in scikit-learn: nothing to download."""

import numpy as np

from rad_jax.datasets.base import Dataset


def load() -> Dataset:
    """Loads the digits: 1,797 images of 8×8 pixels, flattened, ten classes.

    Returns:
      A data set with features ``[1797, 64]`` float64, whole numbers in 0..16 (ink in
      a 4×4 block of the original), row by row from the top left pixel, and labels
      ``[1797]`` int32, the digit. Rows are in scikit-learn's order, in which digits
      of one writer stand together.

    Raises:
      ImportError: scikit-learn is not installed.

    References:
      E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998
      (https://doi.org/10.24432/C50P49), the test set, as `sklearn.datasets` has it.
    """
    try:
        from sklearn import datasets
    except ImportError as error:
        raise ImportError(
            "the digits data set comes with scikit-learn, which cannot be imported "
            f"({error}); pip install 'rad-jax[experiments]'"
        ) from error
    bunch = datasets.load_digits()
    return Dataset(
        name="digits",
        features=np.asarray(bunch.data, np.float64),
        labels=np.asarray(bunch.target, np.int32),
        class_names=tuple(str(name) for name in bunch.target_names),
        feature_names=tuple(bunch.feature_names),
    )
