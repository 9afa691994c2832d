"""Local training: the gradient of a batch, and a sequence of SGD steps.

The client runs these steps and the attacker simulates them; both call the same function, so they cannot differ. The
steps are a `lax.scan`, so compile time does not grow with their number, and the result is differentiable with respect
to the images.
"""

from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from workbench.training import chain, native
from workbench.training.model import Model
from workbench.weights import Weights

__all__ = ["Batches", "batch_gradient", "batch_loss", "batch_share", "in_batches", "kept_bytes", "sgd"]

Layers = tuple[chain.Layer, ...]


class Batches(NamedTuple):
    """Training batches, one for each local step.

    Attributes:
        images: [S, M, H, W, C] normalised.
        labels: [S, M] classes.
        share: [S, M] each image's weight in its batch: 1 / size for images, 0 for padding.
    """

    images: Array
    labels: Array
    share: Array


def in_batches(values: Array, batch_size: int) -> Array:
    """[E, N, ...] to [E * B, M, ...]; the last batch of each epoch is padded with zeros if M does not divide N."""
    num_epochs, num_images = values.shape[:2]
    fill = -num_images % batch_size
    padded = jnp.pad(values, [(0, 0), (0, fill)] + [(0, 0)] * (values.ndim - 2)) if fill else values
    return padded.reshape(num_epochs * (num_images + fill) // batch_size, batch_size, *values.shape[2:])


def batch_share(num_epochs: int, num_images: int, batch_size: int) -> Array:
    """[E * B, M]: 1 / (size of the batch) for every image, 0 for padding."""
    present = in_batches(jnp.ones((num_epochs, num_images)), batch_size)
    return present / present.sum(1, keepdims=True)


def batch_loss(model: Model, weights: Weights, images: Array, labels: Array, share: Array) -> Array:
    """``sum_i share[i] * cross_entropy_i``; with ``share = 1 / M`` this is the mean over the batch."""
    log_probabilities = jax.nn.log_softmax(model.apply(weights, images))
    return -(share * jnp.take_along_axis(log_probabilities, labels[:, None], axis=1)[:, 0]).sum()


def batch_gradient(model: Model, weights: Weights, images: Array, labels: Array, share: Array) -> Weights:
    """The gradient of `batch_loss` with respect to the weights."""
    if model.chain is not None:
        return chain.loss_gradient(model.chain, weights, images, labels, share)[0]
    return jax.grad(partial(batch_loss, model))(weights, images, labels, share)


def sgd(model: Model, weights: Weights, batches: Batches, rate: Array, segments: int = 1) -> Weights:
    """The weights after one SGD step on each of the S batches in turn (the paper's Algorithm 1).

    Differentiable with respect to the weights and the images; the rate is a constant.

    Args:
        rate: the step size.
        segments: a divisor of S. Differentiation stores the weights of all S steps; with several segments it stores
            only those at the start of each segment and recomputes the others, which saves memory and costs time.
    """
    if model.chain is None:
        steps = partial(_plain_sgd, model)
    else:
        passes = _passes(model.chain, weights, batches.images, len(batches.images))
        steps = partial(_chain_sgd, passes, model.chain)
    if segments == 1:
        return steps(weights, batches, rate)
    segmented = jax.tree.map(lambda a: a.reshape(segments, a.shape[0] // segments, *a.shape[1:]), batches)
    segment = jax.checkpoint(steps)
    return lax.scan(lambda w, part: (segment(w, part, rate), None), weights, segmented)[0]


def _plain_sgd(model: Model, weights: Weights, batches: Batches, rate: Array) -> Weights:
    """For any network: reverse mode by JAX, which recomputes each step's gradient in the backward pass."""

    @jax.checkpoint
    def step(weights: Weights, batch: Batches) -> tuple[Weights, None]:
        return chain.descend(weights, batch_gradient(model, weights, *batch), lax.stop_gradient(rate)), None

    return lax.scan(step, weights, batches)[0]


def _passes(layers: Layers, weights: Weights, images: Array, num_steps: int) -> ModuleType:
    """The module whose `forward` and `backward` run these steps: the compiled library's if it can."""
    # XLA runs a single step as fast: no step waits for another, and its memory is already allocated.
    return native if num_steps > 1 and native.can_train(layers, weights, images) else chain


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _chain_sgd(passes: ModuleType, layers: Layers, weights: Weights, batches: Batches, rate: Array) -> Weights:
    """For a chain of layers: forward and backward pass of the given module."""
    return passes.forward(layers, weights, batches, rate, keep=False)[0]


def _forward(
    passes: ModuleType, layers: Layers, weights: Weights, batches: Batches, rate: Array
) -> tuple[Weights, Any]:
    final, trajectory = passes.forward(layers, weights, batches, rate, keep=True)
    return final, (final, batches, rate, trajectory)


def _backward(passes: ModuleType, layers: Layers, saved: Any, adjoint: Weights) -> tuple[Weights, Batches, Array]:
    """The adjoints of all arguments: None for the labels, which are integers; zero for share and rate."""
    final, batches, rate, trajectory = saved
    in_weights, in_images = passes.backward(layers, final, batches, rate, trajectory, adjoint)
    no_derivative: Any = None
    return in_weights, Batches(in_images, no_derivative, jnp.zeros_like(batches.share)), jnp.zeros_like(rate)


_chain_sgd.defvjp(_forward, _backward)


def kept_bytes(model: Model, num_steps: int, batch_size: int, segments: int = 1) -> int:
    """An estimate of the memory that differentiating through `sgd` needs, from the shapes of the stored arrays."""
    weights = jax.eval_shape(lambda: model.init(0))
    batch = jax.eval_shape(
        lambda: Batches(
            jnp.zeros((1, batch_size, *model.image_shape), jnp.float32),
            jnp.zeros((1, batch_size), jnp.int32),
            jnp.zeros((1, batch_size), jnp.float32),
        )
    )
    every_step: Any = weights
    if model.chain is not None:
        passes = _passes(model.chain, weights, batch.images, num_steps)
        forward = partial(passes.forward, model.chain, keep=True)
        _, every_step = jax.eval_shape(forward, weights, batch, jnp.float32(0))
    return _num_bytes(every_step) * -(-num_steps // segments) + _num_bytes(weights) * segments


def _num_bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
