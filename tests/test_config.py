"""How a client trains and defends itself: checked when made, unchangeable afterwards."""

from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import workbench as wb


def test_the_defaults_are_the_papers():
    config = wb.ClientConfig()
    assert (config.epochs, config.batch_size, config.learning_rate) == (10, 5, 0.004)
    assert not config.same_batches
    assert config.defence == wb.DefenceConfig("none", 0.0)
    assert config.defence.independent, "repeated draws are no real defence and must be asked for"


@given(num_images=st.integers(1, 500), batch_size=st.integers(1, 500), epochs=st.integers(1, 50))
def test_a_ragged_last_batch_counts_as_a_step(num_images, batch_size, epochs):
    config = wb.ClientConfig(epochs=epochs, batch_size=min(batch_size, num_images))
    batches = [
        range(num_images)[start : start + config.batch_size] for start in range(0, num_images, config.batch_size)
    ]
    assert config.schedule(num_images).batches_per_epoch == len(batches)
    assert config.schedule(num_images).local_steps == epochs * len(batches)


def test_a_batch_larger_than_the_client_is_refused():
    with pytest.raises(wb.ConfigError, match="batch_size = 5 must be at most the number of images, 4"):
        wb.ClientConfig(batch_size=5).schedule(4)
    with pytest.raises(wb.ConfigError, match="num_images = 0 must be a whole number of at least 1"):
        wb.ClientConfig().schedule(0)


def test_numbers_of_numpy_become_pythons():
    config = wb.ClientConfig(
        epochs=np.int64(3),
        batch_size=np.uint8(2),
        learning_rate=np.float32(0.5),
        defence=wb.DefenceConfig("dp_sgd", np.float64(1), clip_norm=np.int32(2)),
    )
    values = (config.epochs, config.batch_size, config.learning_rate, config.defence.strength, config.defence.clip_norm)
    assert [type(value) for value in values] == [int, int, float, float, float]
    assert values == (3, 2, 0.5, 1.0, 2.0)


def test_equal_settings_are_one_key():
    """The compiler looks settings up by them."""
    one, other = (wb.ClientConfig(defence=wb.DefenceConfig("gaussian", 0.1)) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert one != wb.ClientConfig(defence=wb.DefenceConfig("gaussian", 0.2))


@pytest.mark.parametrize(("config", "name"), [(wb.ClientConfig(), "epochs"), (wb.DefenceConfig(), "strength")])
def test_settings_cannot_be_changed_behind_a_runs_back(config, name):
    with pytest.raises(FrozenInstanceError):
        setattr(config, name, 5)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"name": "pruning", "strength": 1.5},
            r"defence\.strength = 1\.5 must be a finite number at least 0 and at most 1",
        ),
        ({"name": "gaussian", "strength": 1e4}, r"defence\.strength = 10000\.0 must be .* at most 1000"),
        ({"name": "gaussian", "strength": -1}, r"defence\.strength = -1 must be a finite number at least 0"),
        ({"name": "none", "strength": 0.1}, r"defence\.strength = 0\.1 needs a defence; name one of: gaussian"),
        ({"name": "dp_sgd", "strength": 1.0}, r"defence\.clip_norm = None must be a finite number greater than 0"),
        ({"name": "dp_sgd", "clip_norm": 0}, r"defence\.clip_norm = 0 must be a finite number greater than 0"),
        ({"name": "gaussian", "clip_norm": 1.0}, r"defence\.clip_norm = 1\.0 belongs to 'dp_sgd'; leave it out"),
        ({"name": "gaussian", "independent": 1}, r"defence\.independent = 1 must be True or False"),
    ],
)
def test_a_defence_that_cannot_be_gets_one_clear_sentence(settings, says):
    with pytest.raises(wb.ConfigError, match=says):
        wb.DefenceConfig(**settings)
