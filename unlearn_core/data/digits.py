"""The embedded data set: scikit-learn's 8x8 digits, so that everything runs with no download."""

import numpy as np

from unlearn_core.data.feature_set import FeatureSet

N_TEST = 360
SPLIT_SEED = 0


def load_digits() -> FeatureSet:
    """1,437 training and 360 test images as 64 pixel features in [0, 1]; superclasses 0-4 and 5-9."""
    # scikit-learn takes a second to load, which users of other data need not wait for
    from sklearn.datasets import load_digits as sklearn_digits
    from sklearn.model_selection import train_test_split

    images, labels = sklearn_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(
        (images / 16.0).astype(np.float32),
        labels.astype(np.int64),
        test_size=N_TEST,
        stratify=labels,
        random_state=SPLIT_SEED,
    )
    return FeatureSet(
        name="digits",
        train_x=np.asarray(train_x),
        train_y=np.asarray(train_y),
        test_x=np.asarray(test_x),
        test_y=np.asarray(test_y),
        class_names=tuple(str(digit) for digit in range(10)),
        superclass=np.repeat(np.arange(2), 5),
        backbone="pixels",
    )
