"""Defences on the client's side: noise, pruning and clipping of each example's gradient (the paper's Appendix C.1)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from workbench.chain import Weights
from workbench.config import DefenceConfig
from workbench.models import Model
from workbench.training import batch_gradient

__all__ = ["defended_gradient", "gaussian_noise", "kept_entries", "laplacian_noise"]


def defended_gradient(
    model: Model, defence: DefenceConfig, weights: Weights, images: Array, labels: Array, share: Array, key: Array
) -> Weights:
    """The gradient of a batch with the defence applied, before the local SGD step.

    Args:
        images: [M, H, W, C] normalised.
        labels: [M].
        share: [M] each image's part in the batch: 1 / size for images, 0 for padding.
        key: of this step's random draws.
    """
    if defence.name in ("none", "gaussian", "laplacian"):
        gradient = batch_gradient(model, weights, images, labels, share)
        if defence.name == "gaussian":
            noise = gaussian_noise(key, weights, share)
        elif defence.name == "laplacian":
            noise = laplacian_noise(key, weights, share)
        else:
            return gradient
        return jax.tree.map(lambda g, n: g + defence.strength * n, gradient, noise)

    def of_example(image: Array, label: Array, key: Array) -> Weights:
        gradient = batch_gradient(model, weights, image[None], label[None], jnp.ones(1))
        if defence.name == "pruning":
            kept = kept_entries(key, weights, defence.strength)
            return jax.tree.map(lambda g, k: jnp.where(k, g, jnp.zeros_like(g)), gradient, kept)
        norm = jnp.sqrt(sum(jnp.vdot(g, g) for g in jax.tree.leaves(gradient)))
        scale = jnp.minimum(1.0, (defence.clip_norm or jnp.inf) / norm)
        return jax.tree.map(lambda g: g * scale, gradient)

    keys = jax.random.split(key, len(images))

    def add_example(total: Weights, example: tuple[Array, Array, Array, Array]) -> tuple[Weights, None]:
        image, label, part, key = example
        return jax.tree.map(lambda t, g: t + part * g, total, of_example(image, label, key)), None

    zero = jax.tree.map(jnp.zeros_like, weights)
    gradient, _ = jax.lax.scan(add_example, zero, (images, labels, share, keys))
    if defence.name == "dp_sgd":
        # On the sum over the batch the noise is strength * clip_norm; the gradient is the mean.
        scale = defence.strength * (defence.clip_norm or 0.0) * share.max()
        gradient = jax.tree.map(lambda g, n: g + scale * n, gradient, _normal(jax.random.fold_in(key, 1), weights))
    return gradient


def _normal(key: Array, weights: Weights) -> Weights:
    leaves, tree = jax.tree.flatten(weights)
    keys = jax.random.split(key, len(leaves))
    return tree.unflatten(jax.random.normal(k, w.shape, w.dtype) for k, w in zip(keys, leaves, strict=True))


def gaussian_noise(key: Array, weights: Weights, share: Array) -> Weights:
    """The batch mean of one standard normal draw per example.

    The mean of m independent draws is one draw of standard deviation 1 / sqrt(m): far cheaper, the same distribution.
    """
    scale = jnp.sqrt((share**2).sum())
    return jax.tree.map(lambda n: scale * n, _normal(key, weights))


def laplacian_noise(key: Array, weights: Weights, share: Array) -> Weights:
    """The batch mean of one Laplacian draw of scale 1 per example."""
    leaves, tree = jax.tree.flatten(weights)

    def add_example(total: list[Array], example: tuple[Array, Array]) -> tuple[list[Array], None]:
        part, key = example
        keys = jax.random.split(key, len(leaves))
        draws = (jax.random.laplace(k, w.shape, w.dtype) for k, w in zip(keys, leaves, strict=True))
        return [t + part * n for t, n in zip(total, draws, strict=True)], None

    zero = [jnp.zeros_like(w) for w in leaves]
    total, _ = jax.lax.scan(add_example, zero, (share, jax.random.split(key, len(share))))
    return tree.unflatten(total)


def kept_entries(key: Array, weights: Weights, probability: float) -> Weights:
    """Which entries of one example's gradient survive pruning: each is dropped with the given probability."""
    leaves, tree = jax.tree.flatten(weights)
    keys = jax.random.split(key, len(leaves))
    return tree.unflatten(
        jax.random.bernoulli(k, 1.0 - probability, w.shape) for k, w in zip(keys, leaves, strict=True)
    )
