"""The presets against the numbers of the paper's experiments."""

import json
from dataclasses import FrozenInstanceError, asdict

import pytest

import workbench as wb
from workbench.config import PRESETS
from workbench.errors import ConfigError


def test_paper_presets_hold_the_published_numbers():
    femnist = wb.AttackConfig.preset("paper")
    assert (femnist.method, femnist.steps, femnist.distance) == ("ours_prior", 400, "layer_weighted_l2")
    assert (femnist.prior, femnist.prior_distance, femnist.prior_weight) == ("mean", "l2", 1000.0)
    assert (femnist.tv_weight, femnist.clip_weight) == (0.001, 2.0)
    assert (femnist.step_size, femnist.step_decay, femnist.step_decay_every) == (0.4, 0.995, 10)
    assert (femnist.update_weight, femnist.update_weight_steps) == ((1.0, 2.0), 200)
    assert (femnist.combine, femnist.label_method, femnist.warm_start_steps) == ("mean", "interpolated", 0)
    cifar = wb.AttackConfig.preset("paper", dataset="cifar100")
    assert (cifar.prior, cifar.prior_distance, cifar.prior_weight) == ("conv+max", "l2", 6.075)
    assert (cifar.tv_weight, cifar.clip_weight) == (0.0002, 10.0)
    assert (cifar.step_size, cifar.step_decay, cifar.step_decay_every) == (0.1, 0.997, 20)
    assert cifar.update_weight == (4.0, 2.0)


@pytest.mark.parametrize(
    ("prior", "distance", "femnist", "cifar100"),
    [
        ("max", "l1", 77.298, 4.848),
        ("conv+max", "l1", 81.365, 5.0),
        ("mean", "l1", 250.846, 15.708),
        ("conv+mean", "l1", 263.623, 16.206),
        ("max", "l2", 92.378, 5.814),
        ("conv+max", "l2", 97.776, 6.075),
        ("mean", "l2", 1000.0, 62.675),
        ("conv+mean", "l2", 1054.413, 65.573),
    ],
)
def test_the_priors_weight_follows_the_choice_of_prior(prior, distance, femnist, cifar100):
    weights = {"femnist": femnist, "glyphs": femnist, "cifar100": cifar100, "photos": cifar100}
    for dataset, weight in weights.items():
        config = wb.AttackConfig.preset("paper", dataset, prior=prior, prior_distance=distance)
        assert config.prior_weight == weight, f"{prior}/{distance} on {dataset}"
        own = wb.AttackConfig.preset("paper", dataset, prior=prior, prior_distance=distance, prior_weight=3.0)
        assert own.prior_weight == 3.0, "a weight that is given counts"


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("dataset", ["femnist", "cifar100", "glyphs", "photos"])
def test_every_preset_exists_and_survives_json(name, dataset):
    config = wb.AttackConfig.preset(name, dataset)
    assert wb.AttackConfig(**json.loads(json.dumps(asdict(config)))) == config


def test_presets_refuse_what_they_do_not_know():
    with pytest.raises(ConfigError, match="did you mean 'paper'"):
        wb.AttackConfig.preset("papre")
    with pytest.raises(ConfigError, match="dataset = 'mnist' is unknown"):
        wb.AttackConfig.preset("paper", dataset="mnist")
    with pytest.raises(ConfigError, match="did you mean 'steps'"):
        wb.AttackConfig.preset("paper", step=3)
    with pytest.raises(FrozenInstanceError):
        wb.AttackConfig().steps = 3
