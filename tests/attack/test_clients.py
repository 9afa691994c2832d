"""Clients other than the paper's: what the attack simulates is what they did, and what it cannot read is refused."""

import runpy
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import workbench as wb
from workbench.attack.labels import _clip_factor, _corrected, estimate_labels, network_statistics
from workbench.attack.objective import update_distance
from workbench.attack.prepare import prepare
from workbench.attack.simulate import simulate
from workbench.attack.span import SpanArrays, find_span, half_way, span_residuals
from workbench.config import LABEL_FORMULAS
from workbench.federated import client_update_with_secrets

TESTS = Path(__file__).parents[1]
MADE = runpy.run_path(str(TESTS / "files" / "make_torch.py"))
NETWORKS = runpy.run_path(str(TESTS / "training" / "networks.py"))
network = NETWORKS["network"]
KINDS = {name: settings for name, settings in MADE["CLIENTS"].items() if name != "rates"}


@pytest.fixture(scope="module")
def glyphs():
    return wb.load_dataset("glyphs").client(0, num_images=7)


@pytest.fixture(scope="module")
def mlp():
    return wb.models.mlp(widths=(16,))


def observed(model, client, **settings):
    config = wb.ClientConfig(**{"epochs": 2, "batch_size": 3, "learning_rate": 0.02, **settings})
    return client_update_with_secrets(model, model.init(), client, config)


def distance_of_the_truth(model, observation, secrets, client):
    """The update distance of the client's own images in their own order, relative to that of no update."""
    known = {"batch_labels": client.labels[secrets.order], "image_order": secrets.order}
    attack = prepare(model, observation, wb.AttackConfig(method="shared"), **known)
    (phase,) = attack.phases
    images = jnp.asarray(client.inputs)[None, None]
    simulated = jax.jit(partial(simulate, phase.objective.simulation))(phase.problem.known, images)
    distances = [
        update_distance(phase.objective, phase.problem.gradient_sum, found)
        for found in (simulated, jax.tree.map(jnp.zeros_like, simulated))
    ]
    return float(distances[0] / distances[1])


@pytest.mark.parametrize("name", ["plain", "nesterov", "adamw", "warmup", "clip", "smoothing", "drop_last", "fedprox"])
def test_the_clients_own_images_explain_its_update(glyphs, mlp, name):
    observation, secrets = observed(mlp, glyphs, **KINDS[name])
    assert distance_of_the_truth(mlp, observation, secrets, glyphs) < 1e-6
    if name != "plain":
        wrong = replace(observation, training=wb.ClientConfig(drop_last=name == "drop_last"))
        assert distance_of_the_truth(mlp, wrong, secrets, glyphs) > 1e-3, "plain SGD explains it as well"


def small_client(num_images=7):
    images, labels, _ = MADE["make_data"]()
    low, high = images.min(), images.max()
    normalization = wb.data.Normalization((0.5, 0.5), (0.5, 0.5))
    names = tuple("abc")
    return wb.data.ClientData((images - low) / (high - low), labels, names, normalization, 20.0, "small")


@pytest.mark.parametrize("name", ["batch_norm", "residual"])
def test_the_images_explain_the_update_of_other_networks(name):
    model, client = network(name), small_client()
    observation, secrets = observed(model, client, momentum=0.5)
    assert distance_of_the_truth(model, observation, secrets, client) < 1e-6


def test_running_statistics_are_part_of_the_update_and_not_compared():
    model, client = network("batch_norm"), small_client()
    assert model.mixes_images
    assert model.statistics == (("norm", "mean"), ("norm", "variance"))
    observation, _ = observed(model, client, optimizer="adamw", weight_decay=0.5)
    before, after = (weights["norm"]["mean"] for weights in (observation.server_weights, observation.client_weights))
    assert not np.allclose(before, after)
    session = wb.AttackSession(model, observation, wb.AttackConfig(method="shared"), label_counts=client.label_counts)
    session.step(2)
    assert np.isfinite(session.loss)
    assert session.attacker_view()["assumed"]["running statistics"] == "simulated, not compared"
    assert "mean" not in session._attack.phases[0].problem.gradient_sum["norm"]


@pytest.mark.parametrize("name", ["pruning", "dp_sgd"])
def test_defences_of_single_examples_are_refused_where_images_mix(name):
    defence = wb.DefenceConfig(name, 0.1, clip_norm=1.0 if name == "dp_sgd" else None)
    with pytest.raises(wb.ConfigError, match=f"defence = '{name}' needs the gradient of every image"):
        observed(network("batch_norm"), small_client(), defence=defence)


def test_noise_protects_where_images_mix():
    observation, _ = observed(network("batch_norm"), small_client(), defence=wb.DefenceConfig("gaussian", 0.1))
    assert np.isfinite(observation.client_weights["norm"]["mean"]).all()


def test_models_are_checked_with_numbers():
    model = network("dense")
    with pytest.raises(wb.ConfigError, match="features @ kernel \\+ bias of the layer last must be what apply returns"):
        replace(model, apply=lambda weights, images: 2 * model.apply(weights, images))

    def centred(weights, images):
        return model.apply(weights, images - images.mean(0, keepdims=True))

    def centred_features(weights, images):
        return model.features(weights, images - images.mean(0, keepdims=True))

    with pytest.raises(wb.ConfigError, match="apply gives an image other logits beside other images"):
        replace(model, apply=centred, features=centred_features)
    with pytest.raises(wb.ConfigError, match="dense, on batches of 1 to 3 images, fails with TypeError"):
        replace(model, apply=lambda weights, images: model.apply(weights, images.reshape(2, 4, 4, 2)))
    with pytest.raises(wb.ConfigError, match="train lets an image with mask = False change the logits"):
        replace(model, train=lambda weights, images, mask: (centred(weights, images), {}))
    with pytest.raises(wb.ConfigError, match="it must return logits and"):
        replace(model, train=lambda weights, images, mask: (model.apply(weights, images), {"last": {"mean": 0}}))


SUMS = ["momentum", "nesterov", "weight_decay", "cosine", "warmup", "clip", "smoothing", "drop_last", "fedprox"]


@pytest.mark.parametrize("name", SUMS)
def test_labels_are_recovered_from_every_client_whose_update_is_a_sum(mlp, name):
    client = wb.load_dataset("glyphs").client(0, num_images=12)
    observation, _ = observed(mlp, client, batch_size=5, learning_rate=0.001, **KINDS[name])
    for method in LABEL_FORMULAS:
        found = estimate_labels(mlp, observation, method).whole
        errors = wb.label_errors(client.label_counts, found)
        assert errors <= (2 if method == "bias" else 5), f"{method}: {errors} of 12 labels wrong"


@pytest.mark.parametrize("name", ["plain", *SUMS])
def test_refined_counts_are_corrected_to_those_of_the_client(name):
    """The hidden layer is never active, so nothing depends on the reconstruction: only the counts can be wrong."""
    images, _, _ = MADE["make_data"]()
    labels, names = np.array([0, 1, 2, 3, 0, 1, 0]), tuple("abcdefghijkl")
    client = wb.data.ClientData(np.clip(images, 0, 1), labels, names, wb.data.Normalization((0.5,) * 2, (0.5,) * 2))
    model = wb.models.mlp(client.image_shape, (4,), len(names))
    dead = model.init()
    dead["Dense_0"]["bias"] = dead["Dense_0"]["bias"] - 100
    # With all images in a batch, or nearly so in many epochs, it hardly matters which images are in it.
    schedule = {"epochs": 14, "batch_size": 6 if name == "drop_last" else 7, "learning_rate": 0.01}
    observation = wb.client_update(model, dead, client, wb.ClientConfig(**{**schedule, **KINDS[name]}))
    last = observation.gradient_sum["last_layer"]["bias"] / observation.response.coefficients.sum()
    expected = network_statistics(model, observation.client_weights, client.inputs).probabilities
    factor = _clip_factor(expected, np.asarray(last), observation.training)
    assert (factor < 0.5) == (name == "clip")
    wrong = client.label_counts + np.array([-1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0])
    found = _corrected(model, observation, wb.AttackConfig(method="shared"), wrong, factor, seed=0)
    np.testing.assert_array_equal(np.rint(found), client.label_counts)


def test_label_statistics_of_a_network_that_mixes_images_are_those_of_training():
    model = network("batch_norm")
    weights, inputs = model.init(), np.random.default_rng(0).normal(size=(25, *model.image_shape)).astype(np.float32)
    found = network_statistics(model, weights, inputs)
    features, _ = NETWORKS["features"]("batch_norm", weights, jnp.asarray(inputs), jnp.ones(25, bool))
    logits = features @ weights["last"]["kernel"] + weights["last"]["bias"][None]
    np.testing.assert_allclose(found.feature_sum, features.sum(1).mean(), rtol=1e-5)
    np.testing.assert_allclose(found.probabilities, jax.nn.softmax(logits).mean(0), rtol=1e-5)
    assert abs(model.features(weights, inputs).sum(1).mean() / found.feature_sum - 1) > 0.1, "both modes agree"


def test_adam_has_no_sum_of_gradients(glyphs, mlp):
    observation, _ = observed(mlp, glyphs, optimizer="adam", learning_rate=0.001)
    with pytest.raises(wb.ConfigError, match="label method = 'bias' reads the update as a sum of gradients"):
        estimate_labels(mlp, observation, "bias")
    counts = {"label_counts": glyphs.label_counts}
    with pytest.raises(wb.ConfigError, match="method = 'surrogate' reads the update as a sum of gradients"):
        prepare(mlp, observation, wb.AttackConfig(method="surrogate"), **counts)
    with pytest.raises(wb.ConfigError, match="warm_start_steps = 5 reads the update as a sum of gradients"):
        prepare(mlp, observation, wb.AttackConfig(warm_start_steps=5), **counts)
    session = wb.AttackSession(mlp, observation, wb.AttackConfig(method="shared", span_weight=1.0), **counts)
    session.step(2)
    assert session.labels == {}
    assert "trains with adam" in session.spectrum
    assert session.reconstruction().confidence is None


def test_the_span_of_a_client_with_weight_decay_is_corrected(glyphs):
    model = wb.models.mlp(widths=(40,))
    plain, decayed = (
        prepare(model, observed(model, glyphs, weight_decay=decay)[0], label_counts=glyphs.label_counts).spectrum
        for decay in (0.0, 0.5)
    )
    assert plain.share > 0.9
    assert decayed.share > 0.9
    observation, _ = observed(model, glyphs, weight_decay=0.5)
    unaware = replace(observation, training=wb.ClientConfig())
    assert prepare(model, unaware, label_counts=glyphs.label_counts).spectrum.share < 0.1


def test_a_believed_schedule_leaves_the_correction_of_weight_decay_to_the_clients(glyphs, mlp):
    """What is compared is where the believed and the true training end."""
    settings = {"weight_decay": 0.5, "batch_size": 7}
    (seen, _), (longer, secrets) = (observed(mlp, glyphs, **{**settings, "epochs": epochs}) for epochs in (2, 3))
    config = wb.AttackConfig(method="shared", epochs=3)
    attack = prepare(mlp, seen, config, batch_labels=glyphs.labels[secrets.order], image_order=secrets.order)
    (phase,) = attack.phases
    images = jnp.asarray(glyphs.inputs)[None, None]
    simulated = jax.jit(partial(simulate, phase.objective.simulation))(phase.problem.known, images)
    for layer, arrays in simulated.items():
        for name, found in arrays.items():
            ends = [observation.client_weights[layer][name] for observation in (seen, longer)]
            expected = (ends[0] - ends[1]) / seen.learning_rate
            np.testing.assert_allclose(found - phase.problem.gradient_sum[layer][name], expected, atol=1e-4)


@pytest.mark.parametrize("name", ["momentum", "nesterov", "clip"])
def test_the_span_of_other_sums_of_gradients_holds_the_images(glyphs, name):
    model = wb.models.mlp(widths=(40,))
    observation, _ = observed(model, glyphs, **{**KINDS[name], "learning_rate": 0.002})
    span = find_span(model, observation)
    assert span.spectrum.share > 0.9
    arrays = SpanArrays.of(span, half_way(observation))
    others = wb.load_dataset("glyphs").client(1, num_images=7)
    inside, outside = (span_residuals(model, arrays, client.inputs, glyphs.inputs) for client in (glyphs, others))
    assert inside.max() < 0.1 * outside.min()


def test_there_is_no_span_where_images_mix():
    model, client = network("batch_norm"), small_client()
    attack = prepare(model, observed(model, client)[0], label_counts=client.label_counts)
    assert "batch_norm mixes the images of a batch, so the input of a layer does not depend on one" in attack.spectrum


def test_dropout_is_said_to_be_off_and_leaves_no_span(glyphs, mlp):
    # Only the author of a network knows which of its dense layers have dropout before them.
    model = replace(mlp, has_dropout=True, dense_inputs=None)
    attack = prepare(model, observed(model, glyphs)[0], label_counts=glyphs.label_counts)
    assert attack.server_view()["assumed"]["dropout"] == "simulated as off"
    assert "dropout" in attack.spectrum


@pytest.mark.parametrize("method", ["shared", "ours_prior"])
def test_every_image_is_simulated_though_epochs_drop_some(glyphs, mlp, method):
    observation, _ = observed(mlp, glyphs, drop_last=True)
    assert observation.local_steps == 4
    attack = prepare(mlp, observation, wb.AttackConfig(method=method), label_counts=glyphs.label_counts)
    known = attack.phases[0].problem.known
    assert len(set(np.asarray(known.order[0, :, :6]).ravel())) == 7
    for labels in np.asarray(known.labels[0]):
        np.testing.assert_array_equal(np.bincount(labels, minlength=62), glyphs.label_counts)
    state, _ = attack.advance(attack.start(), attack.steering, 2)
    assert np.isfinite(attack.reconstruct(state).images).all()


@pytest.mark.parametrize("method", ["fedsgd", "fedsgd_epoch", "surrogate"])
def test_methods_that_simulate_no_batches_follow_the_clients_coefficients(glyphs, mlp, method):
    """With a small rate all gradients are alike: momentum multiplies the update as much as the simulated one."""
    sizes = []
    for momentum in (0.0, 0.9):
        observation, _ = observed(mlp, glyphs, momentum=momentum, learning_rate=1e-4)
        attack = prepare(mlp, observation, wb.AttackConfig(method=method), label_counts=glyphs.label_counts)
        (phase,) = attack.phases
        images = jnp.asarray(glyphs.inputs)[None, None]
        found = simulate(phase.objective.simulation, phase.problem.known, images)
        sizes.append([np.linalg.norm(tree["last_layer"]["bias"]) for tree in (found, phase.problem.gradient_sum)])
    grown = np.array(sizes[1]) / np.array(sizes[0])
    assert grown[0] > 2
    np.testing.assert_allclose(grown[0], grown[1], rtol=0.2)


def test_checkpoints_and_recordings_keep_the_training(glyphs, mlp, tmp_path):
    observation, _ = observed(mlp, glyphs, momentum=0.9, rates=(0.02, 0.01, 0.01, 0.01, 0.005, 0.02))
    session = wb.AttackSession(mlp, observation, wb.AttackConfig(method="shared"), label_counts=glyphs.label_counts)
    session.step(2)
    session.save(tmp_path / "run")
    loaded = wb.AttackSession.load(tmp_path / "run")
    assert loaded.observation.training == observation.training
    session.step()
    loaded.step()
    assert loaded.loss == session.loss
    session.record(tmp_path / "run.recording", truth=glyphs)
    recording = wb.replay(tmp_path / "run.recording")
    assert recording.client["training"] == observation.training.changes
    assert "momentum 0.9" in recording.attacker_view()["received"]["local training"]
