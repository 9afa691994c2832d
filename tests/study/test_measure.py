"""One unit measured: every task and every kind of labels, with what a row must hold."""

import json
from dataclasses import replace

import numpy as np
import pytest

import workbench as wb
from workbench.attack.labels import estimate_labels
from workbench.config import AttackConfig, ClientConfig
from workbench.errors import DataError
from workbench.study.plan.plan import Place, digest_of_pictures
from workbench.study.plan.tables import plan_table
from workbench.study.run.measure import measure


def glyphs(*indices, num_images=4):
    dataset = wb.load_dataset("glyphs")
    return [dataset.client(index, num_images) for index in indices]


def test_a_row_holds_quality_cost_and_circumstances(make_unit):
    row = measure(make_unit())
    assert json.loads(json.dumps(row)) == row, "a row is plain JSON"
    assert (row["outcome"], row["steps"], row["label_errors"]) == ("finished", 2, 0)
    assert len(row["psnr"]) == len(row["ssim"]) == len(row["residuals"]) == len(row["confidence_by_span"]) == 4
    assert row["recovered_percent"] == 100 * np.mean(np.array(row["psnr"]) > 20)
    assert row["curve"][-1][0] == 2
    assert row["curve"][-1][2] == pytest.approx(np.mean(row["psnr"]), abs=1e-3)
    assert row["seconds"] > 0
    assert 10**7 < row["peak_memory"] < 10**11
    assert row["versions"]["jax"]
    assert row["device"].startswith("cpu")


def test_a_row_is_what_a_session_finds(make_unit):
    unit = make_unit(seed=3, client=ClientConfig(epochs=2, batch_size=2))
    (client,) = glyphs(0)
    model = wb.models.build("mlp", num_classes=62, image_shape=(28, 28, 1))
    seen = wb.client_update(model, model.init(3), client, unit.client, seed=3)
    session = wb.AttackSession(model, seen, unit.attack, label_counts=client.label_counts, seed=3)
    session.step(2)
    found = wb.score(session.reconstruction(), client)
    assert measure(unit)["psnr"] == pytest.approx(found.psnr, abs=1e-3)


def test_a_diverging_attack_is_a_row_that_says_so(make_unit):
    row = measure(make_unit(attack=AttackConfig(method="fedsgd", steps=30, step_size=1e30)))
    assert row["outcome"] == "diverged"
    assert row["steps"] < 30


def test_labels_are_those_of_the_label_formulas(make_unit):
    methods = ("interpolated", "geng_server", "geng_client", "bias")
    (client,) = glyphs(0, num_images=32)
    unit = make_unit(
        task="labels",
        attack=None,
        label_methods=methods,
        num_images=32,
        pictures=digest_of_pictures([client]),
        client=ClientConfig(epochs=4, batch_size=2, learning_rate=0.02),
    )
    model = wb.models.build("mlp", num_classes=62, image_shape=(28, 28, 1))
    seen = wb.client_update(model, model.init(0), client, unit.client)
    expected = {
        method: wb.label_errors(client.label_counts, estimate_labels(model, seen, method).whole) for method in methods
    }
    assert measure(unit)["label_errors"] == expected
    assert len(set(expected.values())) > 1, "the methods agree, so this proves little"


@pytest.mark.parametrize("method", ["ours_prior", "shared", "fedsgd"])
def test_labels_known_per_batch(make_unit, method):
    attack = AttackConfig(method=method, steps=2)
    unit = make_unit(labels="known_per_batch", attack=attack, client=ClientConfig(epochs=2, batch_size=2))
    assert measure(unit)["label_errors"] == 0


@pytest.mark.slow
def test_shared_images_with_their_order_known_fit_better(make_unit):
    """With the order of the images known, one set of images can explain the update; with counts alone it cannot."""
    attack = AttackConfig(method="shared", steps=60)
    unit = make_unit(labels="known_per_batch", attack=attack, client=ClientConfig(epochs=3, batch_size=1))
    known, guessed = (measure(replace(unit, labels=labels)) for labels in ("known_per_batch", "known"))
    assert known["curve"][-1][-1] < guessed["curve"][-1][-1]


def test_an_aggregate_is_scored_on_all_its_clients(make_unit):
    row = measure(make_unit(clients=(0, 1), pictures=digest_of_pictures(glyphs(0, 1))))
    assert len(row["psnr"]) == 8


def test_recovered_labels_count_their_errors(make_unit):
    row = measure(make_unit(labels="recovered", attack=AttackConfig(method="fedsgd", steps=1, label_method="bias")))
    assert 0 <= row["label_errors"] <= 4


def test_accuracy_is_measured_on_what_was_not_trained_on(make_unit):
    clients = glyphs(*range(3), num_images=30)
    unit = make_unit(
        task="accuracy", attack=None, clients=(0, 1, 2), num_images=30, pictures=digest_of_pictures(clients), rounds=1
    )
    row = measure(unit)
    left = sum(wb.load_dataset("glyphs").client(index, None).num_images - 30 for index in range(3))
    assert (row["tested_images"], row["tested_clients"]) == (left, 3)
    model = wb.models.build("mlp", num_classes=62, image_shape=(28, 28, 1))
    weights, _ = wb.server_rounds(
        model, model.init(0), clients, unit.client, rounds=1, clients_per_round=3, progress=False
    )
    everything = [wb.load_dataset("glyphs").client(index, None) for index in range(3)]
    by_client = [wb.accuracy(model, weights, client.inputs[30:], client.labels[30:]) for client in everything]
    assert row["accuracy_percent"] == pytest.approx(100 * np.mean(by_client), abs=1e-3)


def test_other_pictures_on_this_machine_are_refused(make_unit):
    with pytest.raises(DataError, match="hold other pictures of client 0"):
        measure(make_unit(pictures="0" * 16))


def test_trained_weights_are_found_by_what_they_are(make_unit, tmp_path):
    model = wb.models.build("mlp", num_classes=62, image_shape=(28, 28, 1))
    for after in (5, 10):
        wb.save_weights(tmp_path / f"weights_after_round_{after}.safetensors", model.init(after))
    plan = plan_table(
        7, "glyphs", clients=1, preset="demo", methods=["fedsgd"], model="mlp", weights=tmp_path, changes={"steps": 1}
    )
    rows = [measure(unit, plan.place) for unit in plan.units]
    assert len({row["psnr"][0] for row in rows}) == 3, "three rounds, three different attacks"
    with pytest.raises(DataError, match="in none of the files given"):
        measure(plan.units[1], Place())
