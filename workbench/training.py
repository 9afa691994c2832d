"""Local training: the gradient of a batch, and a number of SGD steps in a row.

The client runs these steps and the attacker simulates them: with one function the two cannot differ. The steps are a
`lax.scan`, so that compile time does not grow with their number, and the result is differentiable in the images.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from workbench import chain
from workbench.chain import Weights
from workbench.models import Model

__all__ = ["Batches", "batch_gradient", "batch_loss", "sgd"]


class Batches(NamedTuple):
    """Training batches, one for each local step.

    Attributes:
        images: [S, M, H, W, C] normalised.
        labels: [S, M] classes.
        share: [S, M] each image's part in its batch: 1 / size for images, 0 for padding.
    """

    images: Array
    labels: Array
    share: Array


def batch_loss(model: Model, weights: Weights, images: Array, labels: Array, share: Array) -> Array:
    """``sum_i share[i] * cross_entropy_i``: with ``share = 1 / M`` the mean over the batch."""
    log_probabilities = jax.nn.log_softmax(model.apply(weights, images))
    return -(share * jnp.take_along_axis(log_probabilities, labels[:, None], axis=1)[:, 0]).sum()


def batch_gradient(model: Model, weights: Weights, images: Array, labels: Array, share: Array) -> Weights:
    """The gradient of `batch_loss` in the weights."""
    if model.chain is not None:
        return chain.loss_gradient(model.chain, weights, images, labels, share)[0]
    return jax.grad(partial(batch_loss, model))(weights, images, labels, share)


def sgd(model: Model, weights: Weights, batches: Batches, rate: Array, segments: int = 1) -> Weights:
    """The weights after one SGD step on each of the S batches in turn (the paper's Algorithm 1).

    Differentiable in the weights and the images; the rate is taken as a constant.

    Args:
        rate: the step size.
        segments: a divisor of S. Differentiating keeps the weights of all S steps; with several segments it keeps those
            at the segments' starts and computes each segment again when its turn comes: more time, less memory.
    """
    steps = partial(_plain_sgd, model) if model.chain is None else partial(_chain_sgd, model.chain)
    if segments == 1:
        return steps(weights, batches, rate)
    segmented = jax.tree.map(lambda a: a.reshape(segments, a.shape[0] // segments, *a.shape[1:]), batches)
    segment = jax.checkpoint(steps)
    return lax.scan(lambda w, part: (segment(w, part, rate), None), weights, segmented)[0]


def _descend(weights: Weights, gradient: Weights, rate: Array) -> Weights:
    return jax.tree.map(lambda w, g: w - rate * g, weights, gradient)


def _plain_sgd(model: Model, weights: Weights, batches: Batches, rate: Array) -> Weights:
    """For any network: reverse mode by JAX, with each step's gradient computed again on the way back."""

    @jax.checkpoint
    def step(weights: Weights, batch: Batches) -> tuple[Weights, None]:
        return _descend(weights, batch_gradient(model, weights, *batch), lax.stop_gradient(rate)), None

    return lax.scan(step, weights, batches)[0]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _chain_sgd(layers: tuple[chain.Layer, ...], weights: Weights, batches: Batches, rate: Array) -> Weights:
    def step(weights: Weights, batch: Batches) -> tuple[Weights, None]:
        gradient, _ = chain.loss_gradient(layers, weights, *batch)
        return _descend(weights, gradient, rate), None

    return lax.scan(step, weights, batches)[0]


def _chain_sgd_forward(
    layers: tuple[chain.Layer, ...], weights: Weights, batches: Batches, rate: Array
) -> tuple[Weights, Any]:
    def step(weights: Weights, batch: Batches) -> tuple[Weights, tuple[Weights, chain.Residuals]]:
        gradient, kept = chain.loss_gradient(layers, weights, *batch)
        return _descend(weights, gradient, rate), (weights, kept)

    final, trajectory = lax.scan(step, weights, batches)
    return final, (batches, rate, trajectory)


def _chain_sgd_backward(
    layers: tuple[chain.Layer, ...], saved: Any, adjoint: Weights
) -> tuple[Weights, Batches, Array]:
    """With v the adjoint of the weights after a step w' = w - rate * g(w, x), the adjoint of the weights before it is
    v - rate * d<v, g>/dw and that of the images is -rate * d<v, g>/dx.
    """
    batches, rate, trajectory = saved

    def step(adjoint: Weights, step: tuple[Batches, tuple[Weights, chain.Residuals]]) -> tuple[Weights, Array]:
        batch, (weights, kept) = step
        in_weights, in_images = chain.gradient_derivative(layers, weights, batch.images, batch.share, kept, adjoint)
        return _descend(adjoint, in_weights, rate), -rate * in_images

    adjoint, in_images = lax.scan(step, adjoint, (batches, trajectory), reverse=True)
    # Labels are whole numbers and have no derivative, which JAX calls None here; share and rate are constants.
    return adjoint, Batches(in_images, None, jnp.zeros_like(batches.share)), jnp.zeros_like(rate)  # type: ignore[arg-type]


_chain_sgd.defvjp(_chain_sgd_forward, _chain_sgd_backward)
