"""Mistakes of docs/audit_checks.md are found by the checks that its table names, by no others; right clients pass."""

import runpy
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import workbench as wb
from workbench.auditing import Checks, Finding
from workbench.data.dataset import Normalization
from workbench.training.sgd import batch_loss

TESTS = Path(__file__).parents[1]
network = runpy.run_path(str(TESTS / "training" / "networks.py"))["network"]
PLAIN = wb.ClientConfig()
HALF = Normalization((0.5,), (0.5,))


def documented():
    """{mistake: (alone, with a probe, with a rehearsal)} of docs/audit_checks.md."""
    lines = (TESTS.parent / "docs" / "audit_checks.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return {name: tuple(cells) for name, *cells in rows[2:]}


def swapped(seen):
    return replace(seen, server_weights=seen.client_weights, client_weights=seen.server_weights)


def combined(seen, function):
    return replace(seen, client_weights=jax.tree.map(function, seen.server_weights, seen.client_weights))


def frozen(seen):
    first = next(iter(seen.server_weights))
    return replace(seen, client_weights={**seen.client_weights, first: seen.server_weights[first]})


def reordered(seen):
    """The rows of the first dense layer as torch has them, for a network that has them otherwise."""

    def by_channel(weights):
        kernel, channels = weights["Dense_0"]["kernel"], weights["Conv_1"]["kernel"].shape[-1]
        rows = kernel.reshape(-1, channels, kernel.shape[1]).swapaxes(0, 1).reshape(kernel.shape)
        return {**weights, "Dense_0": {**weights["Dense_0"], "kernel": rows}}

    weights = (by_channel(each) for each in (seen.server_weights, seen.client_weights))
    return replace(seen, **dict(zip(("server_weights", "client_weights"), weights, strict=True)))


def with_dropout(case):
    """Training with half of the last layer's inputs dropped, which nothing in the workbench does."""
    model, client = case.model, case.client
    seen, secrets = case.update()
    rng = np.random.default_rng(0)

    def loss(weights, images, labels, kept):
        last = weights[model.last_layer]
        # Dropping an input of the last layer is dropping a row of its kernel, for a mask that the batch shares.
        masked = {**weights, model.last_layer: {**last, "kernel": last["kernel"] * kept[:, None]}}
        return batch_loss(model, masked, images, labels, jnp.full(len(images), 1 / len(images)))[0]

    weights, step = case.weights, jax.jit(jax.grad(loss))
    for start in range(0, 12, 5):
        chosen = secrets.order[0, start : start + 5]
        kept = jnp.asarray(2.0 * (rng.random(weights[model.last_layer]["kernel"].shape[0]) < 0.5), jnp.float32)
        gradient = step(weights, jnp.asarray(client.inputs[chosen]), jnp.asarray(client.labels[chosen]), kept)
        weights = jax.tree.map(lambda w, g: w - 0.004 * g, weights, gradient)
    return replace(seen, client_weights=weights)


def not_given(**settings):
    return lambda case: replace(case.update(**settings)[0], training=PLAIN)


MISTAKES = {
    "momentum not given": not_given(momentum=0.9),
    "Nesterov momentum not given": not_given(momentum=0.9, nesterov=True),
    "Adam not given": not_given(optimizer="adam", learning_rate=0.001),
    "gradient clipping not given": not_given(gradient_clip=1.0),
    "rate ten times too large": lambda case: replace(case.update()[0], learning_rate=0.04),
    "before and after swapped": lambda case: swapped(case.update()[0]),
    "differences sent as weights": lambda case: combined(case.update()[0], lambda a, b: b - a),
    "weights sent as differences": lambda case: combined(case.update()[0], lambda a, b: a + b),
    "weights multiplied by N": lambda case: combined(case.update()[0], lambda a, b: 12 * b),
    "update multiplied by N": lambda case: combined(case.update()[0], lambda a, b: a + 12 * (b - a)),
    "cosine schedule not given": not_given(rate_schedule="cosine"),
    "drop_last not given": not_given(drop_last=True),
    "wrong N": lambda case: replace(case.update()[0], num_images=18),
    "label smoothing not given": not_given(label_smoothing=0.1),
    "wrong normalisation": lambda case: replace(case.update()[0], normalization=HALF),
    "wrong flatten order": lambda case: reordered(case.update()[0]),
    "dropout of the client": with_dropout,
    "a layer that was not trained": lambda case: frozen(case.update()[0]),
}
# What a rehearsal names, where it is not the name of the mistake.
NAMED = {
    "momentum not given": "momentum=0.9 (0.0 %)",
    "Nesterov momentum not given": "momentum=0.9, nesterov=True (0.0 %)",
    "Adam not given": "optimizer='adam' (0.0 %)",
    "gradient clipping not given": "gradient_clip=1.0 (0.0 %)",
    "rate ten times too large": "learning_rate=0.004 (0.0 %)",
    "before and after swapped": "before and after swapped (0.0 %)",
    "differences sent as weights": "sends='delta' (0.0 %)",
    "cosine schedule not given": "rate_schedule='cosine' (0.0 %)",
    "drop_last not given": "drop_last=True (0.0 %)",
    "wrong N": "num_images = 18 in place of 12",
    "label smoothing not given": "label_smoothing=0.1 (0.0 %)",
    "wrong normalisation": "FEMNIST's normalisation (0.0 %)",
    "wrong flatten order": "the rows of Dense_0 taken as channel, row, column (0.0 %)",
    "update multiplied by N": "an update multiplied by 12 (0.0 %)",
}


def found(checks):
    """The first check that found something, or 'no'."""
    return next((finding.name for finding in checks.findings if not finding.is_ok), "no")


def test_the_table_of_the_documentation_has_every_mistake():
    assert set(documented()) == set(MISTAKES)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found_as_documented(cnn, mistake):
    alone, with_a_probe, _ = documented()[mistake]
    seen = MISTAKES[mistake](cnn)
    for expected, options in ((alone, {}), (with_a_probe, {"probe": cnn.probe})):
        checks = wb.check(cnn.model, seen, **options)
        assert found(checks) == expected, f"{mistake}, {list(options)}: {checks}"
        assert all(finding.advice for finding in checks.findings if not finding.is_ok), str(checks)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_rehearsal_names_the_mistake(cnn, dense, mistake):
    # Trying alternatives compiles each of them: the dense network is quicker, but has no flattened feature map.
    case = cnn if mistake == "wrong flatten order" else dense
    checks = wb.check(case.model, MISTAKES[mistake](case), rehearsal=case.rehearsal)
    finding = checks.findings[-1]
    assert (finding.name, finding.is_ok) == ("rehearsal", False), str(checks)
    expected = "None of" if documented()[mistake][2] == "unexplained" else NAMED[mistake]
    assert expected in finding.advice, str(checks)


@pytest.mark.parametrize("settings", [
    {},
    {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    {"optimizer": "adam", "learning_rate": 0.001},
    {"rate_schedule": "cosine", "proximal_weight": 0.5},
    {"label_smoothing": 0.3},
    {"gradient_clip": 0.5},
    {"drop_last": True},
])  # fmt: skip
def test_a_client_that_is_described_rightly_passes(dense, settings):
    seen, secrets = dense.update(**settings)
    rehearsal = (dense.client.images, dense.client.labels, secrets.order)
    for probe in (None, dense.probe):
        checks = wb.check(dense.model, seen, probe=probe, rehearsal=rehearsal)
        assert checks.is_ok, str(checks)


def test_no_false_alarm_on_other_networks_clients_and_seeds():
    glyphs = wb.load_dataset("glyphs")
    for model in (wb.models.mlp(widths=(32,)), wb.models.mlp(widths=(64, 32))):
        for seed in range(8):
            config = wb.ClientConfig(epochs=2, batch_size=5, learning_rate=(0.002, 0.01, 0.03)[seed % 3])
            seen = wb.client_update(model, model.init(seed), glyphs.client(seed, num_images=20), config, seed)
            checks = wb.check(model, seen)
            assert checks.is_ok, f"{model.name}, seed {seed}: {checks}"


def test_an_aggregate_passes(dense):
    glyphs = wb.load_dataset("glyphs")
    clients = [glyphs.client(index, num_images=10) for index in range(2)]
    config = wb.ClientConfig(epochs=2, batch_size=5)
    seen = wb.aggregate([wb.client_update(dense.model, dense.weights, client, config) for client in clients])
    checks = wb.check(dense.model, seen)
    assert checks.is_ok, str(checks)


def test_a_rehearsal_is_of_one_client(dense):
    checks = wb.check(dense.model, replace(dense.update()[0], num_clients=2), rehearsal=dense.rehearsal)
    assert checks.findings[-1].advice == "The observation has num_clients = 2 in place of 1.", str(checks)


@pytest.mark.parametrize("name", ["lenet", "resnet_batch_norm"])
def test_an_imported_network_passes(name):
    model = wb.models.from_torch_export(TESTS / "files" / "torch" / f"{name}.pt2")
    images = np.random.default_rng(0).uniform(size=(6, *model.image_shape)).astype(np.float32)
    half = (0.5,) * model.image_shape[-1]
    client = wb.ClientData(images, np.array([0, 1] * 3, np.int32), tuple("abcde"), Normalization(half, half))
    config = wb.ClientConfig(epochs=1, batch_size=3, learning_rate=0.01)
    seen, secrets = wb.client_update_with_secrets(model, model.init(), client, config)
    logits = np.asarray(model.apply(seen.server_weights, jnp.asarray(client.inputs)))
    rehearsal = (images, client.labels, secrets.order)
    checks = wb.check(model, seen, probe=(images, logits), rehearsal=rehearsal)
    assert checks.is_ok, str(checks)
    assert [finding.name for finding in checks.findings] == ["weights", "layers", "probe", "bias", "rehearsal"]


def test_the_flatten_order_of_an_exported_network_is_found():
    """A convolution of a torch export has its weight in torch's layout."""
    model = wb.models.from_torch_export(TESTS / "files" / "torch" / "lenet.pt2")
    rows = {name: shapes["kernel"] for name, shapes in model.shapes.items() if "kernel" in shapes}
    layer = next(iter(rows))
    channels = [shapes["weight"][0] for shapes in model.shapes.values() if len(shapes.get("weight", ())) == 4][-1]
    images = np.random.default_rng(0).uniform(size=(30, *model.image_shape)).astype(np.float32)
    half = Normalization(*((0.5,) * model.image_shape[-1],) * 2)
    client = wb.ClientData(images[:6], np.array([0, 1] * 3, np.int32), tuple("abcde"), half)
    seen = wb.client_update(model, model.init(), client, wb.ClientConfig(epochs=1, batch_size=3))
    logits = np.asarray(model.apply(seen.server_weights, jnp.asarray(half.normalize(images))))

    def by_place(weights):
        kernel = weights[layer]["kernel"]
        rows = kernel.reshape(channels, -1, kernel.shape[1]).swapaxes(0, 1).reshape(kernel.shape)
        return {**weights, layer: {"kernel": rows, **{n: a for n, a in weights[layer].items() if n != "kernel"}}}

    wrong = replace(seen, server_weights=by_place(seen.server_weights), client_weights=by_place(seen.client_weights))
    checks = wb.check(model, wrong, probe=(images, logits))
    # It has as many channels as places, so both orders are the same exchange.
    assert f"It fits with the rows of {layer} taken as channel, row, column (0.0 %)" in str(checks), str(checks)


def test_a_test_without_an_answer_is_no_alarm(dense):
    """All ten classes are present, in equal numbers."""
    model, glyphs = wb.models.mlp(widths=(32,), num_classes=10), wb.load_dataset("glyphs")
    pool = glyphs.client(0, num_images=200)
    chosen = np.concatenate([np.flatnonzero(pool.labels == label)[:2] for label in range(10)])
    client = replace(pool, images=pool.images[chosen], labels=pool.labels[chosen], class_names=pool.class_names[:10])
    assert len(set(client.labels.tolist())) == 10
    checks = wb.check(model, wb.client_update(model, model.init(0), client, wb.ClientConfig(epochs=1, batch_size=5)))
    assert checks.is_ok, str(checks)
    assert "gives no answer" in checks.findings[-1].sentence, str(checks)


def test_sgd_that_is_given_as_adam_is_found(dense):
    seen = replace(dense.update()[0], training=wb.ClientConfig(optimizer="adam"))
    assert found(wb.check(dense.model, seen)) == "optimizer"


def test_running_statistics_that_stand_still_are_found():
    model = network("batch_norm")
    images = np.random.default_rng(0).uniform(size=(6, *model.image_shape)).astype(np.float32)
    names, normalization = tuple("abc"), Normalization((0.5, 0.5), (0.5, 0.5))
    client = wb.ClientData(images, np.array([0, 1, 2, 0, 1, 2], np.int32), names, normalization)
    seen = wb.client_update(model, model.init(), client, wb.ClientConfig(epochs=1, batch_size=3))
    assert wb.check(model, seen).is_ok
    norm = {**seen.client_weights["norm"], **{name: seen.server_weights["norm"][name] for name in ("mean", "variance")}}
    checks = wb.check(model, replace(seen, client_weights={**seen.client_weights, "norm": norm}))
    assert found(checks) == "layers"
    assert "running statistics did not move" in str(checks)


def test_an_empty_update_is_found(dense):
    seen, _ = dense.update()
    checks = wb.check(dense.model, replace(seen, client_weights=seen.server_weights))
    assert found(checks) == "layers"
    assert "2 of 2 layers have no update at all" in str(checks)


def test_a_probe_fits_an_unusual_normalisation(dense):
    odd = Normalization((0.31,), (0.72,))
    inputs = jnp.asarray(odd.normalize(dense.stand_ins))
    probe = (dense.stand_ins, np.asarray(dense.model.apply(dense.weights, inputs)))
    checks = wb.check(dense.model, dense.update()[0], probe=probe)
    assert "It fits with normalisation mean (0.31), std (0.72) (0.0 %)" in str(checks), str(checks)


def test_a_probe_that_nothing_explains_says_so(dense):
    images, logits = dense.probe
    checks = wb.check(dense.model, dense.update()[0], probe=(images, logits[::-1]))
    assert "alternatives explains it; nearest is" in str(checks)


def test_findings_are_read_at_a_glance():
    checks = Checks((Finding("bias", True, "It moved."), Finding("probe", False, "Logits differ by 3 %.", "Do this.")))
    assert not checks.is_ok
    assert str(checks) == "ok    bias: It moved.\nWRONG probe: Logits differ by 3 %. Do this."


@pytest.mark.parametrize(("options", "sentence"), [
    ({"probe": (np.zeros((2, 8, 8, 1), np.float32), np.zeros((2, 62), np.float32))}, "probe images are \\(8, 8, 1\\)"),
    ({"probe": (np.full((2, 28, 28, 1), 255.0), np.zeros((2, 62)))}, "float pixels must lie in \\[0, 1\\]"),
    ({"probe": (np.zeros((2, 28, 28, 1)), np.zeros((2, 10)))}, "probe logits have shape \\(2, 10\\); 2 images have"),
    ({"rehearsal": (np.zeros((2, 28, 28, 1)), np.zeros(3, int), np.zeros((1, 2), int))}, "labels have shape \\(3,\\)"),
    ({"rehearsal": (np.zeros((2, 28, 28, 1)), np.zeros(2, int), np.array([[0, 2]]))}, "places of images from 0 to 1"),
    ({"rehearsal": (np.zeros((2, 28, 28, 1)), np.zeros(2, int), np.array([0, 1]))}, "rehearsal order with shape"),
])  # fmt: skip
def test_bad_input_gets_one_sentence(dense, options, sentence):
    with pytest.raises(wb.DataError, match=sentence):
        wb.check(dense.model, dense.update()[0], **options)
