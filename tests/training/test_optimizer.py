"""Every kind of client and layer against PyTorch's numbers (tests/files/make_torch.py), and their derivatives."""

import runpy
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import workbench as wb
from workbench.errors import ConfigError
from workbench.training.local import PLAIN, LocalTraining, StepSizes
from workbench.training.optimizer import response
from workbench.training.schedule import Schedule
from workbench.training.sgd import Batches, batch_share, in_batches, kept_bytes, sgd, train

NETWORKS = runpy.run_path(str(Path(__file__).with_name("networks.py")))
MADE, network = NETWORKS["MADE"], NETWORKS["network"]
RATE = MADE["RATE"]
CLIENTS = {name: LocalTraining(**settings) for name, settings in MADE["CLIENTS"].items()}


@pytest.fixture(scope="module")
def torchs():
    with np.load(MADE["FILE"]) as file:
        return dict(file)


def schedule_of(training):
    return Schedule(MADE["NUM_IMAGES"], MADE["EPOCHS"], MADE["BATCH_SIZE"], training.drop_last)


def batches_of(training):
    images, labels, order = MADE["make_data"]()
    used = order[:, : schedule_of(training).num_used]
    size = MADE["BATCH_SIZE"]
    share = batch_share(*used.shape, size)
    return Batches(in_batches(jnp.asarray(images[used]), size), in_batches(jnp.asarray(labels[used]), size), share)


def sizes_of(training):
    return jax.tree.map(jnp.float32, training.step_sizes(RATE, schedule_of(training)))


def flat(weights, like):
    """The arrays in the order of make_torch.py."""
    return np.concatenate([np.ravel(weights[layer][name]) for layer, arrays in like.items() for name in arrays])


def chain_network():
    """The network "dense" as a chain of layers, and the names of its layers."""
    return wb.models.mlp(MADE["IMAGE_SHAPE"], (4,), 3), {"hidden": "Dense_0", "last": "last_layer"}


def assert_equal_updates(ours, theirs, name):
    server = flat(MADE["make_weights"](name), MADE["NETWORKS"][name])
    update = np.abs(theirs - server).max()
    assert update > 1e-3, "nothing was trained"
    assert np.abs(ours - theirs).max() < 1e-5 * max(update, 1), (
        f"off by {np.abs(ours - theirs).max():.1e} of {update:.1e}"
    )


@pytest.mark.parametrize("has_chain", [True, False], ids=["chain", "custom"])
@pytest.mark.parametrize("name", CLIENTS)
def test_every_client_trains_as_in_torch(torchs, name, has_chain):
    training, weights = CLIENTS[name], jax.tree.map(jnp.asarray, MADE["make_weights"]("dense"))
    model, names = chain_network() if has_chain else (network("dense"), {"hidden": "hidden", "last": "last"})
    renamed = {names[layer]: arrays for layer, arrays in weights.items()}
    final = jax.jit(partial(train, model, training))(renamed, batches_of(training), sizes_of(training))
    back = {layer: final[names[layer]] for layer in names}
    assert_equal_updates(flat(back, MADE["NETWORKS"]["dense"]), torchs[f"client/{name}"], "dense")


@pytest.mark.parametrize("name", MADE["NETWORKS"])
def test_every_layer_trains_as_in_torch(torchs, name):
    model = network(name)
    final = jax.jit(partial(sgd, model))(model.init(), batches_of(PLAIN), jnp.float32(RATE))
    assert_equal_updates(flat(final, MADE["NETWORKS"][name]), torchs[f"network/{name}"], name)


@pytest.mark.parametrize(("name", "client"), MADE["PAIRS"])
def test_other_clients_train_other_networks_as_in_torch(torchs, name, client):
    model, training = network(name), CLIENTS[client]
    final = jax.jit(partial(train, model, training))(model.init(), batches_of(training), sizes_of(training))
    assert_equal_updates(flat(final, MADE["NETWORKS"][name]), torchs[f"both/{name}/{client}"], name)


@pytest.mark.parametrize("name", ["momentum", "nesterov", "weight_decay", "cosine", "warmup", "rates", "fedprox"])
def test_the_response_is_what_the_update_holds_of_every_gradient(name):
    """Gradients that do not depend on the weights: a linear loss would give them; here the optimiser gets them."""
    from workbench.training.optimizer import descend, first_moments

    training = replace(CLIENTS[name], gradient_clip=0.0)
    schedule = schedule_of(training)
    known = response(training, RATE, schedule)
    rng = np.random.default_rng(0)
    server = {"a": {"b": rng.normal(size=5)}}
    gradients = rng.normal(size=(schedule.local_steps, 5))
    weights, moments = server, first_moments(training, server)
    for gradient, *size in zip(gradients, *training.step_sizes(RATE, schedule), strict=True):
        weights, moments = descend(training, weights, {"a": {"b": gradient}}, moments, server, StepSizes(*size))
    expected = known.kept * server["a"]["b"] - RATE * (known.coefficients[:, None] * gradients).sum(0)
    np.testing.assert_allclose(weights["a"]["b"], expected, rtol=1e-9)


@pytest.mark.parametrize("settings", [{"drop_last": True}, {"rate_schedule": "cosine"}, {"gradient_clip": 1.0}])
def test_the_response_of_sgd_without_memory_is_its_rates(settings):
    """For as many steps as no impulses could be sent through."""
    training = LocalTraining(**settings)
    schedule = Schedule(10**6 + 1, 2, 2, training.drop_last)
    assert schedule.local_steps == 10**6 + (0 if training.drop_last else 2)
    known = response(training, RATE, schedule)
    np.testing.assert_allclose(known.coefficients * RATE, training.step_sizes(RATE, schedule).rate)
    assert known.kept == 1.0


def distance(model, training, weights, images, segments=1):
    """How far training on other images ends from weights that are a little larger everywhere."""
    batches = batches_of(training)._replace(images=images)
    final = train(model, training, weights, batches, sizes_of(training), segments)
    pairs = zip(jax.tree.leaves(final), jax.tree.leaves(weights), strict=True)
    return sum(((after - before - 0.1) ** 2).sum() for after, before in pairs)


DERIVATIVES = {
    "momentum": ("dense", CLIENTS["nesterov"]),
    # With the usual epsilon, Adam's first step is nearly the sign of the gradient, whose differences say nothing.
    "adam": ("dense", replace(CLIENTS["adamw"], epsilon=1e-2)),
    "clip": ("dense", CLIENTS["fedprox"]),
    "batch_norm": ("batch_norm", PLAIN),
    "residual": ("residual", CLIENTS["momentum"]),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_the_derivative_is_that_of_finite_differences(name):
    network_name, training = DERIVATIVES[name]
    model = network(network_name)
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        weights = jax.tree.map(lambda w: w.astype(jnp.float64), model.init())
        images = batches_of(training).images.astype(jnp.float64)
        direction = jnp.asarray(np.random.default_rng(3).normal(size=images.shape))
        far = jax.jit(partial(distance, model, training, weights))
        slope = jax.jit(jax.grad(far))(images)
        found = float((slope * direction).sum())
        ahead, behind = (float(far(images + nudge * direction)) for nudge in (1e-6, -1e-6))
    assert abs(found) > 1e-3, "the images do not matter: nothing was tested"
    np.testing.assert_allclose(found, (ahead - behind) / 2e-6, rtol=2e-6)


@pytest.mark.parametrize("name", ["nesterov", "adam", "clip", "smoothing", "drop_last"])
def test_chains_and_custom_networks_have_the_same_derivative(name):
    # With the usual epsilon, Adam makes much of rounding.
    training = replace(CLIENTS[name], epsilon=1e-3)
    chain = chain_network()[0]
    images = batches_of(training).images
    slopes = [
        jax.jit(jax.grad(partial(distance, model, training, chain.init(), segments=segments)))(images)
        for model, segments in ((chain, 1), (chain, 2), (replace(chain, chain=None, options=None), 2))
    ]
    size = np.abs(slopes[0]).max()
    assert np.isfinite(size)
    assert size > 0
    for other in slopes[1:]:
        np.testing.assert_allclose(slopes[0], other, atol=2e-5 * size)


def test_a_gradient_of_zero_has_a_finite_derivative():
    """A ReLU that is never active has no gradient: Adam divides by the root of zero, and clipping by a norm of zero."""
    model = chain_network()[0]
    dead = jax.tree.map(lambda w: w, model.init())
    dead["Dense_0"]["bias"] = dead["Dense_0"]["bias"] - 100
    model = replace(model, chain=None, init=lambda seed=0: dead)
    for training in (CLIENTS["adam"], CLIENTS["clip"]):
        images = batches_of(training).images
        slope = jax.grad(partial(distance, model, training, dead))(images)
        assert np.isfinite(slope).all()


def bytes_kept(model, training, num_steps, segments=1):
    """What the forward pass leaves for the backward pass."""
    shape = jax.eval_shape(
        lambda: (
            Batches(
                jnp.zeros((num_steps, 5, 28, 28, 1)), jnp.zeros((num_steps, 5), jnp.int32), jnp.zeros((num_steps, 5))
            ),
            StepSizes(*3 * (jnp.zeros(num_steps),)),
        )
    )

    def backward_pass(weights, batches, sizes):
        return jax.vjp(
            lambda images: train(model, training, weights, batches._replace(images=images), sizes, segments),
            batches.images,
        )[1]

    kept = jax.eval_shape(backward_pass, jax.eval_shape(model.init), *shape)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(kept))


@pytest.mark.parametrize(
    ("name", "segments", "is_custom"),
    [
        ("momentum", 1, False),
        ("clip", 1, False),
        ("adam", 1, False),
        ("adam", 5, False),
        ("adam", 1, True),
        ("adam", 5, True),
    ],
)
def test_the_estimate_of_what_is_kept_covers_the_optimizers_state(name, segments, is_custom):
    training, model = CLIENTS[name], wb.models.femnist_cnn()
    if is_custom:
        model = replace(model, chain=None, options=None)
    found = bytes_kept(model, training, 20, segments)
    if segments > 1:
        # The backward pass computes one segment after another again.
        found += bytes_kept(model, training, 20 // segments)
    estimate = kept_bytes(model, 20, 5, segments, training)
    assert 0.75 < estimate / found < 1.25, f"{estimate / 2**20:.0f} MB estimated, {found / 2**20:.0f} MB kept"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"nesterov": True}, "nesterov = True needs a momentum"),
        ({"optimizer": "adam", "momentum": 0.5}, "momentum = 0.5 belongs to optimizer = 'sgd'"),
        ({"optimizer": "lion"}, "optimizer = 'lion' is unknown. Choose one of: sgd, adam, adamw"),
        ({"rates": "fast"}, "rates = 'fast' must be a list of numbers"),
        ({"rates": (0.1,), "warmup_steps": 2}, "leave those out"),
        ({"momentum": 1.0}, "momentum = 1.0 must be"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words.replace("(", r"\(")):
        LocalTraining(**settings)


def test_rates_must_be_as_many_as_steps(client, model):
    with pytest.raises(ConfigError, match=r"rates has 2 numbers; it must have one for each of 6 steps"):
        wb.client_update(model, model.init(), client, wb.ClientConfig(epochs=2, batch_size=2, rates=(0.1, 0.2)))
