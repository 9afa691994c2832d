"""The client's batches and seeds, the shape of its computation, and the mean of several clients."""

from dataclasses import fields, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import workbench as wb
from workbench.federated import batch_order
from workbench.federated.client import _train, step_keys
from workbench.randomness import named_key
from workbench.training.local import LocalTraining, StepSizes
from workbench.training.sgd import batch_share
from workbench.weights import shapes_of

SEEDS = st.integers(0, 2**64)


def assert_same_weights(one, other, message):
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b, err_msg=message), one, other)


@given(num_images=st.integers(1, 60), epochs=st.integers(1, 12), seed=SEEDS, same_batches=st.booleans())
def test_every_image_exactly_once_an_epoch(num_images, epochs, seed, same_batches):
    order = batch_order(num_images, epochs, seed, same_batches=same_batches)
    expected = np.tile(np.arange(num_images), (epochs, 1))
    np.testing.assert_array_equal(np.sort(order, axis=1), expected, err_msg="an epoch misses or repeats an image")


@given(num_images=st.integers(1, 60), epochs=st.integers(1, 12), seed=SEEDS)
def test_same_batches_keep_the_first_epochs_order(num_images, epochs, seed):
    same = batch_order(num_images, epochs, seed, same_batches=True)
    assert (same == same[0]).all(), "an epoch has another order than the first"
    fresh = batch_order(num_images, epochs, seed)
    np.testing.assert_array_equal(fresh[0], same[0], err_msg="the first epoch depends on what the others do")


@given(seed=SEEDS)
def test_fresh_batches_and_other_seeds_have_other_orders(seed):
    order = batch_order(60, 5, seed)
    assert len(np.unique(order, axis=0)) == 5, "two epochs of 60 images have the same order"
    np.testing.assert_array_equal(order, batch_order(60, 5, seed), err_msg="the same seed gave another order")
    assert (order != batch_order(60, 5, seed + 1)).any(), "another seed gave the same order"


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize(("num_images", "batch_size"), [(1, 1), (50, 5), (7, 3), (9, 4), (10, 9), (10, 10), (10, 1)])
def test_shares_of_a_batch_sum_to_1_also_where_it_is_ragged(num_images, batch_size, epochs):
    share = np.asarray(batch_share(epochs, num_images, batch_size))
    np.testing.assert_allclose(share.sum(1), 1, rtol=1e-6, err_msg="a batch's shares do not sum to 1")
    assert (share > 0).sum() == epochs * num_images, "an image has no share, or padding has one"
    assert all(len(set(row[row > 0])) == 1 for row in share), "images of one batch have different shares"


@pytest.mark.parametrize("name", wb.config.DEFENCES)
def test_the_same_seed_gives_the_same_bits_and_another_seed_other_weights(tiny_model, tiny_client, name):
    strength = 0.0 if name == "none" else 0.1
    defence = wb.DefenceConfig(name, strength, clip_norm=1.0 if name == "dp_sgd" else None)
    config = wb.ClientConfig(epochs=2, batch_size=3, defence=defence)
    weights = tiny_model.init(0)
    first, again, other = (
        wb.client_update(tiny_model, weights, tiny_client, config, seed).client_weights for seed in (5, 5, 6)
    )
    assert_same_weights(first, again, "the same seed gave another result")
    different = jax.tree.leaves(jax.tree.map(lambda a, b: not np.array_equal(a, b), first, other))
    assert all(different), "another seed gave the same weights"


def test_asking_for_the_secrets_changes_nothing(tiny_model, tiny_client):
    config = wb.ClientConfig(epochs=2, batch_size=3)
    weights = tiny_model.init(0)
    observation, secrets = wb.client_update_with_secrets(tiny_model, weights, tiny_client, config, seed=1)
    assert secrets.order.tolist() == batch_order(7, 2, seed=1).tolist()
    alone = wb.client_update(tiny_model, weights, tiny_client, config, seed=1)
    assert_same_weights(observation.client_weights, alone.client_weights, "asking for the secrets changed the training")


def test_observation_holds_no_image_label_or_order(tiny_model, tiny_client):
    config = wb.ClientConfig(epochs=2, batch_size=3)
    observation = wb.client_update(tiny_model, tiny_model.init(0), tiny_client, config)
    assert {field.name for field in fields(observation)} == {
        "server_weights",
        "client_weights",
        "image_shape",
        "num_classes",
        "normalization",
        "num_images",
        "epochs",
        "batch_size",
        "learning_rate",
        "num_clients",
        "training",
    }
    assert type(observation.training) is LocalTraining, "it holds the client's batches or defence"
    assert tiny_model.shapes == shapes_of(observation.client_weights)
    assert (observation.batches_per_epoch, observation.local_steps) == (3, 6)
    moved = jax.tree.map(
        lambda s, g: s - config.learning_rate * g, observation.server_weights, observation.gradient_sum
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-7), moved, observation.client_weights)


def num_equations(model, client, config):
    """Of everything that is compiled for an update, inner computations included."""
    order = batch_order(client.num_images, config.epochs, seed=0)
    keys = step_keys(
        named_key(0, "any"), config.epochs, config.schedule(client.num_images).batches_per_epoch, independent=True
    )
    sizes = StepSizes(*3 * (jnp.full(keys.shape, 0.1),))
    arguments = (model.init(0), client.inputs, client.labels, order, sizes, keys)
    static = (model, config.local, config.defence, config.batch_size)
    traced = jax.make_jaxpr(_train, static_argnums=(0, 1, 2, 3))(*static, *arguments)
    return str(traced).count(" = ")


@pytest.mark.parametrize("defence", [wb.DefenceConfig(), wb.DefenceConfig("pruning", 0.5)], ids=lambda d: d.name)
def test_what_is_compiled_does_not_grow_with_the_steps(tiny_model, tiny_client, defence):
    few, many = (wb.ClientConfig(epochs=epochs, batch_size=3, defence=defence) for epochs in (2, 20))
    assert num_equations(tiny_model, tiny_client, few) == num_equations(tiny_model, tiny_client, many) > 10


def test_nothing_is_compiled_again_for_another_seed_rate_or_weights(tiny_model, tiny_client):
    calls = []

    def apply(weights, images):
        calls.append(images.shape)
        return tiny_model.apply(weights, images)

    counted = replace(tiny_model, apply=apply, chain=None)
    config = wb.ClientConfig(epochs=2, batch_size=3)
    wb.client_update(counted, tiny_model.init(0), tiny_client, config)
    traced = len(calls)
    assert traced > 0
    wb.client_update(counted, tiny_model.init(1), tiny_client, replace(config, learning_rate=0.1), seed=1)
    wb.client_update(counted, tiny_model.init(1), tiny_client, replace(config, same_batches=True), seed=2)
    assert len(calls) == traced, "another seed, rate or start was compiled anew"


def test_a_diverging_client_says_so(tiny_model, tiny_client):
    config = wb.ClientConfig(epochs=20, batch_size=1, learning_rate=1e30)
    with pytest.raises(wb.ConfigError, match=r"learning_rate = 1e\+30 .* made the local training diverge"):
        wb.client_update(tiny_model, tiny_model.init(0), tiny_client, config)


@pytest.mark.parametrize("num_clients", [1, 2, 5])
def test_aggregate_is_the_mean_and_of_one_client_that_one(tiny_model, tiny_client, num_clients):
    config = wb.ClientConfig(epochs=1, batch_size=3)
    weights = tiny_model.init(0)
    updates = [wb.client_update(tiny_model, weights, tiny_client, config, seed) for seed in range(num_clients)]
    together = wb.aggregate(updates)
    assert together.num_clients == num_clients
    for name in ("image_shape", "num_images", "epochs", "batch_size", "learning_rate", "normalization", "num_classes"):
        assert getattr(together, name) == getattr(updates[0], name), f"{name} was lost"
    assert_same_weights(together.server_weights, weights, "the server's weights changed")
    if num_clients == 1:
        assert_same_weights(together.client_weights, updates[0].client_weights, "the aggregate of one is another")
    for layer, arrays in together.client_weights.items():
        for name, array in arrays.items():
            mean = np.mean([np.float64(update.client_weights[layer][name]) for update in updates], axis=0)
            np.testing.assert_allclose(array, mean, atol=1e-6, err_msg=f"{layer}/{name} is not the mean")
