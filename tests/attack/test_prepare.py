"""What an attack refuses, before anything is compiled."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import workbench as wb
from workbench.attack import step as engine
from workbench.attack.prepare import prepare
from workbench.errors import ConfigError, DataError

MODEL = wb.models.mlp(image_shape=(6, 6, 1), widths=(12,), num_classes=4)
OTHER = wb.models.mlp(image_shape=(6, 6, 1), widths=(13,), num_classes=4)


@pytest.fixture(scope="module")
def observation():
    rng = np.random.default_rng(0)
    normalization = wb.data.Normalization((0.5,), (0.25,))
    client = wb.ClientData(rng.random((6, 6, 6, 1)), rng.integers(0, 4, 6), tuple("abcd"), normalization)
    return wb.client_update(MODEL, MODEL.init(1), client, wb.ClientConfig(epochs=2, batch_size=3))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"model": OTHER}, DataError, "server_weights"),
        ({"model": "mlp"}, ConfigError, "model"),
        ({"config": {"steps": 3}}, ConfigError, "config"),
        ({"config": wb.AttackConfig(batch_size=7)}, ConfigError, "batch_size = 7"),
        ({"label_counts": [4, 4, 4, 4]}, DataError, "sums to 16"),
        ({"label_counts": [6, 0, 0]}, DataError, "label_counts has shape"),
        ({"label_counts": [7, -1, 0, 0]}, DataError, "at least 0"),
        ({"label_counts": [5.5, 0.5, 0, 0]}, DataError, "whole numbers"),
        ({"batch_labels": np.zeros((2, 5), int)}, DataError, "batch_labels has shape"),
        ({"batch_labels": np.full((2, 6), 4)}, DataError, "batch_labels"),
        ({"batch_labels": [[0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 1]]}, DataError, "same labels in every epoch"),
        ({"batch_labels": np.zeros((2, 6), int), "image_order": np.zeros((2, 6), int)}, DataError, "image_order"),
        (
            {"batch_labels": [[0, 1, 2, 3, 0, 1]] * 2, "image_order": [[0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0]]},
            DataError,
            "disagree",
        ),
        ({"image_order": [[0, 1, 2, 3, 4, 5]] * 2}, ConfigError, "give batch_labels too"),
        ({"seed": -1}, ConfigError, "seed"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else None,
)
def test_wrong_input_is_refused_before_anything_is_compiled(observation, options, error, message):
    compiled = engine.run._cache_size()
    arguments = {"model": MODEL, "observation": observation, "label_counts": None, **options}
    with pytest.raises(error, match=message):
        prepare(**arguments)
    assert engine.run._cache_size() == compiled


def test_an_update_of_zeros_is_refused(observation):
    with pytest.raises(DataError, match="all zeros"):
        prepare(MODEL, replace(observation, client_weights=observation.server_weights))


def test_nan_in_the_observation_is_refused(observation):
    broken = jax.tree.map(lambda a: a.at[(0,) * a.ndim].set(jnp.nan), observation.client_weights)
    with pytest.raises(DataError, match=r"client_weights.*NaN"):
        replace(observation, client_weights=broken)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "our_prior"}, "did you mean 'ours_prior'"),
        ({"prior": "maximum"}, "prior = 'maximum' is unknown"),
        ({"distance": "cosin"}, "did you mean 'cosine'"),
        ({"steps": 0}, "steps = 0"),
        ({"tv_weight": float("nan")}, "tv_weight"),
        ({"update_weight": 3.0}, "update_weight = 3.0 must be a pair"),
        ({"low_memory": "yes"}, "low_memory"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        wb.AttackConfig(**settings)
