"""Each table asks for what the paper's has, reuses what another table measured, and says what is missing."""

import numpy as np
import pytest

import workbench as wb
from workbench.config import PRIOR_WEIGHTS, AttackConfig
from workbench.errors import ConfigError, DataError
from workbench.study.plan.plan import parse_clients
from workbench.study.plan.tables import NUMBERS, plan_table


@pytest.fixture(scope="module")
def femnist(tmp_path_factory):
    """A file like FEMNIST's with five writers of 50 images."""
    path = tmp_path_factory.mktemp("femnist") / "femnist.npz"
    rng = np.random.default_rng(0)
    np.savez(
        path,
        images=rng.integers(256, size=(250, 28, 28)).astype(np.uint8),
        labels=rng.integers(62, size=250),
        writer=np.repeat(np.arange(5), 50),
    )
    return path


@pytest.fixture(scope="module")
def trained(femnist):
    """Weights after 5 and 10 rounds, beside the data."""
    model = wb.models.femnist_cnn()
    for after in (5, 10):
        wb.save_weights(femnist.parent / f"femnist_weights_after_round_{after}.safetensors", model.init(after))
    return femnist


@pytest.fixture(scope="module")
def tables(trained):
    """Every table as published, on two clients."""
    return {number: plan_table(number, "femnist", data=trained, clients=2) for number in NUMBERS}


def entry(plan, setting, method):
    (found,) = [one for one in plan.entries if (one.setting, one.method) == (setting, method)]
    return found


def test_every_table_has_the_settings_of_the_paper(tables):
    shapes = ["1x5x50", "5x5x50", "10x10x50", "10x5x50", "10x1x50"]
    settings = {number: list(dict.fromkeys(e.setting for e in plan.entries)) for number, plan in tables.items()}
    assert [settings[number] for number in (1, 2, 3, 11)] == [shapes] * 4
    assert {number: len(settings[number]) for number in (4, 6, 7, 8, 9, 10)} == {4: 8, 6: 7, 7: 3, 8: 4, 9: 4, 10: 3}


def test_every_method_of_the_paper_has_its_numbers_and_ours_have_none(tables):
    for number, plan in tables.items():
        for one in plan.entries:
            is_papers = one.method not in ("surrogate", "warm", "best", "bias", "refined")
            assert bool(one.published) == is_papers, f"Table {number}, {one.setting}, {one.method}: {one.published}"
    assert entry(tables[9], "5x5 as 25x25", "shared").published == {"recovered": 40.5, "psnr": 19.0}
    assert entry(tables[4], "max, l1", "ours_prior").published == {"recovered": 36.8, "psnr": 19.2}
    assert entry(tables[2], "10x1x50", "geng_client").published == {"errors": 13.3, "deviation": 6.35}


def test_the_usual_setting_is_measured_once_for_all_tables(tables):
    """10x5x50 with known labels stands in eight tables."""
    usual = entry(tables[1], "10x5x50", "ours_prior").units
    same = {4: "mean, l2", 6: "none", 7: "round 1", 8: "per client, random", 10: "1 client", 11: "10x5x50"}
    for number, setting in same.items():
        assert entry(tables[number], setting, "ours_prior").units == usual, f"Table {number} measures it again"
    assert entry(tables[9], "5x5 as 5x5", "shared").units == entry(tables[1], "5x5x50", "shared").units


def test_units_are_the_published_recipe(tables):
    unit = entry(tables[1], "10x5x50", "ours_prior").units[0]
    assert unit.attack == AttackConfig.preset("paper", "femnist")
    assert (unit.client.epochs, unit.client.batch_size, unit.num_images, unit.client.learning_rate) == (
        10,
        5,
        50,
        0.004,
    )
    assert (unit.labels, unit.network, unit.weights, unit.seed) == ("known", "femnist_cnn", None, 0)


def test_each_table_changes_what_it_is_about(tables):
    def unit(number, setting, method="ours_prior"):
        return entry(tables[number], setting, method).units[0]

    assert unit(3, "10x5x50").labels == "recovered"
    assert unit(3, "10x5x50").attack.label_order == "sorted"
    assert unit(4, "conv+max, l1").attack.prior_weight == PRIOR_WEIGHTS["femnist"]["conv+max", "l1"]
    assert unit(6, "pruning 0.5").client.defence == wb.DefenceConfig("pruning", 0.5)
    assert unit(7, "round 6").weights not in (None, unit(7, "round 11").weights)
    assert unit(8, "per batch, same").labels == "known_per_batch"
    assert unit(8, "per batch, same").client.same_batches
    assert not unit(8, "per client, random").client.same_batches
    believed = unit(9, "5x5 as 25x25")
    assert (believed.attack.epochs, believed.attack.batch_size, believed.client.epochs) == (25, 25, 5)
    assert unit(10, "4 clients").clients == (0, 1, 2, 3)


def test_an_aggregate_of_the_last_clients_begins_again_with_the_first(trained):
    plan = plan_table(10, "femnist", data=trained, clients="4,2")
    assert [unit.clients for unit in entry(plan, "2 clients", "shared").units] == [(4, 0), (2, 3)]


def test_best_is_measured_on_the_same_clients(trained):
    plan = plan_table(1, "femnist", data=trained, clients=2, preset="best", settings=["10x5x50"])
    best, ours = (entry(plan, "10x5x50", method) for method in ("best", "ours_prior"))
    assert [unit.clients for unit in best.units] == [unit.clients for unit in ours.units]
    assert plan.units == list(best.units), "the paper's methods are shown, and not asked for"
    assert best.units[0].attack.span_weight > 0


def test_label_formulas_share_their_units_and_refined_has_its_own(trained):
    plan = plan_table(2, "femnist", data=trained, clients=3, settings=["1x5x50"], seeds=[0, 1, 2], preset="best")
    assert entry(plan, "1x5x50", "bias").units == entry(plan, "1x5x50", "geng_server").units
    assert len(plan.units) == 2 * 3 * 3
    assert {unit.seed for unit in plan.units} == {0, 1, 2}


def test_a_quick_look_calls_no_two_attacks_by_one_name():
    plan = plan_table(1, "glyphs", clients=1, preset="demo", settings=["4x4x16"])
    attacks = {one.method: one.units[0].attack for one in plan.entries}
    # Where the counts are known, no estimator is part of a unit.
    assert attacks["demo"] == AttackConfig.preset("demo", "glyphs", label_method=attacks["demo"].label_method)
    assert not {"best", "warm"} & attacks.keys()
    assert attacks["ours_prior"].warm_start_steps == attacks["ours_prior"].consensus_weight == 0
    assert any("demo is the attack of workbench demo" in note for note in plan.notes)


def test_clients_take_turns(trained):
    plan = plan_table(1, "femnist", data=trained, clients=2, methods=["fedsgd", "shared"], settings=["1x5x50"])
    assert [unit.clients[0] for unit in plan.units] == [0, 0, 1, 1]


def test_other_pictures_are_another_unit(trained, tmp_path):
    with np.load(trained) as arrays:
        other = dict(arrays)
    other["images"] = other["images"] ^ np.uint8(1)
    np.savez(tmp_path / "other.npz", **other)
    first, second = (
        plan_table(1, "femnist", data=path, clients=1, methods=["fedsgd"]).units[0]
        for path in (trained, tmp_path / "other.npz")
    )
    assert first.pictures != second.pictures


def test_missing_weights_are_reported_with_how_to_make_them(femnist, tmp_path):
    with pytest.raises(ConfigError, match=r"after 5 rounds.*weights_after_round_5\.safetensors.*server_rounds"):
        plan_table(7, "femnist", data=femnist, clients=1, weights=tmp_path)
    with pytest.raises(ConfigError, match="there is no file"):
        plan_table(7, "glyphs", clients=1)
    assert plan_table(7, "glyphs", clients=1, settings=["round 1"]).units


def test_weights_of_another_network_are_refused(trained):
    with pytest.raises(DataError, match="weights_after_round_5"):
        plan_table(7, "femnist", data=trained, clients=1, model="mlp")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"number": 5}, "table = 5 must be one of: 1, 2, 3, 4, 6, 7, 8, 9, 10, 11"),
        ({"dataset": "emnist"}, "did you mean 'femnist'"),
        ({"preset": "papr"}, "did you mean 'paper'"),
        ({"methods": ["ours"]}, "method = 'ours' is unknown; did you mean 'ours_prior'.*best"),
        ({"methods": "ours_prior"}, "methods = 'ours_prior' must be a list of some of: ours_prior"),
        ({"methods": []}, "must be a list of some of"),
        ({"number": 2, "methods": ["ours_prior"]}, "Choose one of: interpolated, geng_server"),
        ({"settings": ["10x5"]}, "setting = '10x5' is unknown; did you mean '10x5x50'"),
        ({"clients": 0}, "clients = 0 must be a whole number of at least 1"),
        ({"clients": "3-"}, r"clients = '3-' must be a number of clients up to 400, or some of 0 to 399 such as 3-5,9"),
        ({"clients": [1, 1]}, "each once"),
        ({"clients": 401}, "up to 400"),
        ({"seeds": []}, r"seeds = \[\] must be a list of whole numbers"),
        ({"seeds": [-1]}, "seed = -1 must be a whole number of at least 0"),
        ({"changes": {"step": 3}}, "setting = 'step' is unknown; did you mean"),
        ({"model": "cnn"}, "model = 'cnn' is unknown"),
        ({"accuracies": True}, "belongs to Table 6"),
        ({"number": 4, "preset": "best"}, "Table 4 compares priors"),
    ],
)
def test_wrong_options_name_the_right_ones(options, message):
    with pytest.raises(ConfigError, match=message):
        plan_table(**{"number": 1, "dataset": "glyphs", "clients": 1, **options})


def test_clients_are_named_in_three_ways():
    assert parse_clients(3, 10) == parse_clients("3", 10) == parse_clients("0-2", 10) == parse_clients([0, 1, 2], 10)
    assert parse_clients("7-7,2", 10) == [7, 2]
