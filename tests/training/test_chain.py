"""The hand-written derivatives of a chain of layers against JAX's own in float64, and kernels written down at first."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from workbench.training import chain, layers
from workbench.training.chain import Layer

# Beyond the paper's networks: no hidden layer, no ReLU, no pooling, other paddings.
CHAINS = {
    "one linear layer": ((3, 2, 1), (Layer("a", (6, 4), relu=False),)),
    "dense": ((3, 2, 1), (Layer("a", (6, 5)), Layer("b", (5, 3)), Layer("c", (3, 4), relu=False))),
    "convolutions": (
        (6, 6, 2),
        (
            Layer("a", (3, 3, 2, 3), padding=0, pool=True),
            Layer("b", (1, 1, 3, 2), padding=1, relu=False, pool=True),
            Layer("c", (2, 2, 2, 3), padding=1),
            Layer("d", (27, 4), relu=False),
        ),
    ),
}


@pytest.fixture(autouse=True)
def in_float64():
    with jax.enable_x64(True):
        yield


def normal(rng, *shape):
    return jnp.asarray(rng.normal(size=shape))


def random_weights(rng, layers):
    return {
        layer.name: {"kernel": normal(rng, *layer.kernel_shape), "bias": normal(rng, layer.kernel_shape[-1])}
        for layer in layers
    }


def random_case(name):
    (image_shape, layers), rng = CHAINS[name], np.random.default_rng(0)
    weights, direction = random_weights(rng, layers), random_weights(rng, layers)
    images, labels = normal(rng, 5, *image_shape), jnp.asarray(rng.integers(4, size=5))
    share = rng.random(5)
    share[3] = 0.0  # one image is padding
    return layers, weights, direction, images, labels, jnp.asarray(share)


def assert_close(found, right, what):
    for path, one in jax.tree_util.tree_leaves_with_path(right):
        other = dict(jax.tree_util.tree_leaves_with_path(found))[path]
        where = f"{what}{jax.tree_util.keystr(path)}"
        np.testing.assert_allclose(other, one, rtol=1e-10, atol=1e-12 * np.abs(one).max(), err_msg=where)


def loss(layers, weights, images, labels, share):
    log_probabilities = jax.nn.log_softmax(chain.logits(layers, weights, images))
    return -(share * log_probabilities[jnp.arange(len(labels)), labels]).sum()


@pytest.mark.parametrize("name", CHAINS)
def test_gradient_is_that_of_the_loss(name):
    layers, weights, _, images, labels, share = random_case(name)
    found, _ = jax.jit(partial(chain.loss_gradient, layers))(weights, images, labels, share)
    right = jax.jit(jax.grad(partial(loss, layers)))(weights, images, labels, share)
    assert_close(found, right, "the gradient in ")


@pytest.mark.parametrize("name", CHAINS)
def test_derivative_of_the_gradient_in_weights_and_images(name):
    layers, weights, direction, images, labels, share = random_case(name)

    def along(weights, images):
        gradient = jax.grad(partial(loss, layers))(weights, images, labels, share)
        return sum(jax.tree.leaves(jax.tree.map(jnp.vdot, gradient, direction)))

    right = jax.jit(jax.grad(along, argnums=(0, 1)))(weights, images)

    @jax.jit
    def by_hand(weights, images):
        _, kept = chain.loss_gradient(layers, weights, images, labels, share)
        return chain.gradient_derivative(layers, weights, images, share, kept, direction)

    found = by_hand(weights, images)
    assert_close(found, right, "the derivative of the gradient in ")
    assert not np.asarray(found[1][3]).any(), "padding has a derivative"


def test_features_are_what_enters_the_last_layer():
    layers, weights, _, images, *_ = random_case("convolutions")
    features = chain.features(layers, weights, images)
    assert features.shape == (5, 27)
    last = weights["d"]
    assert_close(chain.logits(layers, weights, images), features @ last["kernel"] + last["bias"][None], "the logits")


def test_pooling_is_the_mean_of_squares_and_has_its_transpose():
    rng = np.random.default_rng(0)
    images, pooled = normal(rng, 2, 6, 4, 3), normal(rng, 2, 3, 2, 3)
    right = np.array(images).reshape(2, 3, 2, 2, 2, 3).mean(axis=(2, 4))
    assert_close(layers.average_pool(images), jnp.asarray(right), "the pooled image")
    there, back = layers.average_pool(images), layers.average_pool_transpose(pooled)
    assert float(jnp.vdot(there, pooled)) == pytest.approx(float(jnp.vdot(images, back)), rel=1e-12)
