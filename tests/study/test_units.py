import json
from dataclasses import replace

import pytest

from workbench.config import AttackConfig, ClientConfig, DefenceConfig
from workbench.errors import DataError
from workbench.study.plan.plan import Unit

OTHER = {
    "task": "labels",
    "dataset": "femnist",
    "pictures": "0" * 16,
    "clients": (1,),
    "num_images": 5,
    "network": "femnist_cnn",
    "client": ClientConfig(epochs=2, batch_size=4),
    "weights": "1" * 16,
    "labels": "recovered",
    "attack": AttackConfig(method="fedsgd", steps=3),
    "label_methods": ("bias",),
    "rounds": 5,
    "seed": 1,
}


@pytest.mark.parametrize("field", OTHER)
def test_another_setting_is_another_unit(make_unit, field):
    assert make_unit(**{field: OTHER[field]}).key != make_unit().key


def test_the_same_settings_are_the_same_unit_in_any_order(make_unit):
    unit = make_unit(client=ClientConfig(1, 4, defence=DefenceConfig("gaussian", 0.1)))
    shuffled = dict(reversed(json.loads(json.dumps(unit.settings)).items()))
    assert Unit.from_settings(shuffled) == unit
    assert Unit.from_settings(shuffled).key == unit.key


def test_settings_of_an_older_version_get_the_defaults_of_what_came_later(make_unit):
    unit = make_unit()
    settings = json.loads(json.dumps(unit.settings))
    del settings["attack"]["low_memory"], settings["rounds"], settings["client"]["defence"]["independent"]
    assert Unit.from_settings(settings).key == unit.key


@pytest.mark.parametrize(
    "settings", [{}, {"task": "attack"}, {"client": 3}, {"client": {"epoch": 3}, "clients": [0], "task": "attack"}]
)
def test_other_settings_are_refused(settings):
    with pytest.raises(DataError, match="are not those of a unit"):
        Unit.from_settings(settings)


def test_how_labels_would_be_recovered_matters_only_where_they_are(make_unit):
    bias = AttackConfig(method="fedsgd", steps=2, label_method="bias")
    assert make_unit(attack=bias).key == make_unit().key
    recovered = make_unit(labels="recovered")
    assert replace(recovered, attack=bias).key != recovered.key
