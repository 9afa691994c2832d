"""A client so small that hundreds of updates take a moment."""

import numpy as np
import pytest

# The workbench is imported in the fixtures: the settings that all tests share must come before JAX.


@pytest.fixture(scope="session")
def tiny_model():
    from workbench.models import mlp

    return mlp(image_shape=(4, 3, 2), widths=(8,), num_classes=5)


@pytest.fixture(scope="session")
def tiny_client():
    from workbench.data import ClientData, Normalization

    rng = np.random.default_rng(0)
    return ClientData(
        images=rng.random((7, 4, 3, 2), np.float32),
        labels=rng.integers(5, size=7),
        class_names=tuple("abcde"),
        normalization=Normalization(mean=(0.5, 0.5), std=(0.3, 0.3)),
    )
