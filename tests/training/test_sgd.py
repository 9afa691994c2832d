"""How batches and blocks are laid out, what differentiating keeps, and what has no derivative.

That the steps and their derivatives are exact is shown in tests/attack/test_gradient.py.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import workbench as wb
from workbench.training import sgd as sgd_module
from workbench.training.native import can_train
from workbench.training.sgd import Batches, batch_share, in_batches, kept_bytes, sgd

CNN = wb.models.femnist_cnn()


def shapes_of_batches(num_steps, batch_size):
    return jax.eval_shape(
        lambda: Batches(
            jnp.zeros((num_steps, batch_size, *CNN.image_shape)),
            jnp.zeros((num_steps, batch_size), jnp.int32),
            jnp.zeros((num_steps, batch_size)),
        )
    )


def backward_pass(weights, batches, segments=1):
    """The derivative of `sgd` in the images, as a function that holds what it needs."""

    def end(images):
        return sgd(CNN, weights, batches._replace(images=images), jnp.float32(0.004), segments)

    return jax.vjp(end, batches.images)[1]


@settings(max_examples=15)
@given(epochs=st.integers(1, 3), num_images=st.integers(1, 12), batch_size=st.integers(1, 12))
def test_batches_hold_every_image_once_an_epoch_and_count_padding_for_nothing(epochs, num_images, batch_size):
    numbers = np.arange(1, epochs * num_images + 1).reshape(epochs, num_images)
    batches = np.asarray(in_batches(jnp.asarray(numbers), batch_size))
    share = np.asarray(batch_share(epochs, num_images, batch_size))
    num_batches = -(-num_images // batch_size)
    assert batches.shape == share.shape == (epochs * num_batches, batch_size)
    np.testing.assert_array_equal(batches[batches > 0], numbers.reshape(-1), "an image is missing or out of order")
    np.testing.assert_array_equal(share > 0, batches > 0, "padding counts, or an image does not")
    for batch, parts in zip(batches, share, strict=True):
        np.testing.assert_allclose(parts[batch > 0], 1 / (batch > 0).sum(), rtol=1e-6)


@pytest.mark.parametrize("batch_size", [1, 5])
def test_the_computation_of_the_papers_network_does_not_grow_with_the_local_steps(batch_size):
    def num_operations(num_steps):
        def derivative(weights, batches):
            return backward_pass(weights, batches)(weights)

        program = jax.make_jaxpr(derivative)(jax.eval_shape(CNN.init), shapes_of_batches(num_steps, batch_size))
        return str(program).count(" = ")

    assert num_operations(500) == num_operations(10), "the program grows with the number of local steps"


@pytest.mark.parametrize("batch_size", [1, 5])
@pytest.mark.parametrize("segments", [1, 10])
def test_the_estimate_of_what_is_kept_is_what_a_program_needs(batch_size, segments):
    num_steps, weights = 100, jax.eval_shape(CNN.init)

    def derivative(weights, batches, direction):
        return backward_pass(weights, batches, segments)(direction)

    program = jax.jit(derivative).lower(weights, shapes_of_batches(num_steps, batch_size), weights).compile()
    # The weights, their adjoint and the next adjoint are in memory as well.
    beside = 3 * sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(weights))
    found = program.memory_analysis().temp_size_in_bytes - beside
    estimate = kept_bytes(CNN, num_steps, batch_size, segments)
    assert 0.8 < estimate / found < 1.25, f"{estimate / 2**20:.0f} MB estimated, {found / 2**20:.0f} MB needed"


def test_the_estimate_is_of_the_platform_that_computes():
    on_cpu, on_gpu = (kept_bytes(CNN, 100, 5, platform=platform) for platform in ("cpu", "cuda"))
    assert kept_bytes(CNN, 100, 5) == on_cpu, "the tests run on a CPU"
    if can_train(CNN.chain, CNN.init(), jnp.zeros((5, *CNN.image_shape))):
        assert on_gpu > on_cpu, "JAX keeps the dense layers' weights of every step, and the library does not"
    else:
        assert on_gpu == on_cpu, "without the library, all devices compute the same"


@pytest.mark.parametrize("most", [0, 10**9], ids=["computed again", "kept"])
def test_what_a_custom_network_keeps_of_a_step_is_known_and_changes_nothing(most, monkeypatch):
    model = replace(wb.models.mlp((4, 4, 1), (30,), 3), chain=None)
    rng = np.random.default_rng(0)
    batches = Batches(
        jnp.asarray(rng.normal(size=(20, 2, 4, 4, 1)), jnp.float32),
        jnp.ones((20, 2), jnp.int32),
        jnp.full((20, 2), 0.5),
    )

    def end(images):
        return sgd(model, model.init(), batches._replace(images=images), jnp.float32(0.1))

    adjoint = jax.tree.map(jnp.ones_like, model.init())
    usual = jax.vjp(end, batches.images)[1](adjoint)
    monkeypatch.setattr(sgd_module, "_MOST_KEPT", most)
    kept = jax.vjp(end, batches.images)[1]
    np.testing.assert_allclose(kept(adjoint), usual, rtol=1e-5, atol=1e-7)
    found = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(kept))
    estimate = kept_bytes(model, 20, 2)
    assert 0.6 < estimate / found < 1.7, f"{estimate} bytes estimated, {found} kept"


def test_segments_need_less_memory():
    assert kept_bytes(CNN, 500, 1, 10) < 0.5 * kept_bytes(CNN, 500, 1)


@pytest.mark.parametrize("has_chain", [True, False], ids=["chain", "custom functions"])
def test_the_rate_is_a_constant(has_chain):
    model = wb.models.mlp((2, 2, 1), (8,), 2)
    model = model if has_chain else replace(model, chain=None)
    images = jnp.asarray(np.random.default_rng(0).normal(size=(3, 2, 2, 2, 1)), jnp.float32)
    batches = Batches(images, jnp.zeros((3, 2), jnp.int32), jnp.full((3, 2), 0.5))

    def end(rate, images):
        return sgd(model, model.init(), batches._replace(images=images), rate)["last_layer"]["bias"][0]

    in_rate, in_images = jax.jit(jax.grad(end, argnums=(0, 1)))(jnp.float32(0.1), images)
    assert float(in_rate) == 0, "the rate has a derivative"
    assert np.asarray(in_images).any(), "the images have none: nothing was tested"
