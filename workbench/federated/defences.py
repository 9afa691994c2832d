"""Defences on the client's side: noise, pruning and clipping of each example's gradient (the paper's Appendix C.1)."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from workbench.config import DefenceConfig
from workbench.randomness import laplacian, normal, signed_uniform
from workbench.training.model import Model
from workbench.training.sgd import batch_gradient
from workbench.weights import Weights

__all__ = ["clipped", "defended_gradient", "draw_like", "is_kept", "step_keys"]


def step_keys(key: Array, epochs: int, num_batches: int, *, independent: bool) -> Array:
    """[E, B] the random key of each local step; if not independent, every epoch uses those of the first epoch."""
    keys = jax.random.split(key, (epochs if independent else 1, num_batches))
    return jnp.broadcast_to(keys, (epochs, num_batches))


def draw_like(weights: Weights, key: Array, draw: Callable[[Array, tuple[int, ...]], Array]) -> Weights:
    """Random arrays with the shapes of the weights, each from ``draw(key, shape)`` with a different key."""
    leaves, structure = jax.tree.flatten(weights)
    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(structure, [draw(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)])


def is_kept(probability: float, key: Array, shape: tuple[int, ...]) -> Array:
    """Which entries pruning keeps: each is dropped with the given probability."""
    return signed_uniform(key, shape) > np.float32(2 * probability - 1)


def clipped(gradient: Weights, clip_norm: float) -> Weights:
    """One example's gradient, scaled down if its norm over all layers is above ``clip_norm``."""
    norm = jnp.sqrt(sum((jnp.vdot(g, g) for g in jax.tree.leaves(gradient)), start=jnp.float32(0)))
    scale = clip_norm / jnp.maximum(norm, clip_norm)
    return jax.tree.map(lambda g: g * scale, gradient)


def defended_gradient(
    model: Model, defence: DefenceConfig, weights: Weights, images: Array, labels: Array, share: Array, key: Array
) -> Weights:
    """The gradient of a batch with the defence applied, before the local SGD step.

    Args:
        images: [M, H, W, C] normalised.
        labels: [M].
        share: [M] each image's weight in the batch mean: 1 / size for images, 0 for padding.
        key: the random key of this step.
    """

    def gradient_of(image: Array, label: Array) -> Weights:
        return batch_gradient(model, weights, image[None], label[None], jnp.ones(1))

    def with_noise(gradient: Weights, noise: Weights, scale: float | Array) -> Weights:
        return jax.tree.map(lambda g, n: g + scale * n, gradient, noise)

    if defence.name == "pruning":

        def pruned(image: Array, label: Array, key: Array) -> Weights:
            kept = draw_like(weights, key, partial(is_kept, defence.strength))
            return jax.tree.map(lambda g, k: jnp.where(k, g, jnp.zeros_like(g)), gradient_of(image, label), kept)

        return _batch_mean(weights, pruned, share, images, labels, jax.random.split(key, len(share)))

    if defence.name == "dp_sgd":
        assert defence.clip_norm is not None
        bound = defence.clip_norm
        gradient = _batch_mean(weights, lambda x, y: clipped(gradient_of(x, y), bound), share, images, labels)
        # DP-SGD adds the noise to the sum over the batch; here the gradient is the mean, so the noise is scaled too.
        return with_noise(gradient, draw_like(weights, key, normal), defence.strength * bound * share.max())

    gradient = batch_gradient(model, weights, images, labels, share)
    if defence.name == "gaussian":
        # Without clipping, the mean of one draw per example is a single draw of a smaller standard deviation.
        return with_noise(gradient, draw_like(weights, key, normal), defence.strength * jnp.sqrt((share**2).sum()))
    if defence.name == "laplacian":
        keys = jax.random.split(key, len(share))
        noise = _batch_mean(weights, lambda k: draw_like(weights, k, laplacian), share, keys)
        return with_noise(gradient, noise, defence.strength)
    return gradient


def _batch_mean(like: Weights, of_example: Callable[..., Weights], share: Array, *examples: Array) -> Weights:
    """The mean of ``of_example`` over the batch, one example at a time to avoid storing M gradients."""

    def add_example(total: Weights, example: tuple[Array, ...]) -> tuple[Weights, None]:
        part, *arrays = example
        return jax.tree.map(lambda t, g: t + part * g, total, of_example(*arrays)), None

    return lax.scan(add_example, jax.tree.map(jnp.zeros_like, like), (share, *examples))[0]
