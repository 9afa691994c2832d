"""A straightforward JAX implementation: unrolled steps, per-example gradients, the library's convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from benchmarks.work import Work


def make_step(work: Work) -> Callable[[], float]:
    weights = jax.tree.map(jnp.asarray, work.weights)
    target = jax.tree.map(jnp.asarray, work.gradient_sum)
    labels, mean, std = jnp.asarray(work.labels), jnp.asarray(work.mean), jnp.asarray(work.std)
    optimizer = optax.adam(0.4)

    def logits(weights: Any, image: Array) -> Array:
        x = image[None]
        for name in work.layer_names[:2]:
            x = lax.conv_general_dilated(
                x, weights[name]["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            x = jax.nn.relu(x + weights[name]["bias"])
            x = lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4
        x = jax.nn.relu(
            x.reshape(1, -1) @ weights[work.layer_names[2]]["kernel"] + weights[work.layer_names[2]]["bias"]
        )
        return (x @ weights[work.layer_names[3]]["kernel"] + weights[work.layer_names[3]]["bias"])[0]

    def example_loss(weights: Any, image: Array, label: Array) -> Array:
        return -jax.nn.log_softmax(logits(weights, image))[label]

    def loss(images: Array) -> Array:
        moved = weights
        for epoch in range(work.epochs):
            for start in range(0, work.num_images, work.batch_size):
                batch = slice(start, start + work.batch_size)
                gradients = jax.vmap(jax.grad(example_loss), (None, 0, 0))(moved, images[epoch, batch], labels[batch])
                moved = jax.tree.map(lambda w, g: w - work.rate * g.mean(0), moved, gradients)
        distance = 0.0
        for index, name in enumerate(work.layer_names):
            for leaf in ("kernel", "bias"):
                simulated = (weights[name][leaf] - moved[name][leaf]) / work.rate
                distance += jnp.exp(-float(index)) * ((target[name][leaf] - simulated) ** 2).sum()
        pixels = images * std + mean
        number = work.epochs * work.num_images
        smooth = ((images - jnp.roll(images, 1, -2)) ** 2).sum() + ((images - jnp.roll(images, 1, -3)) ** 2).sum()
        return (
            distance / (work.epochs * work.num_images / work.batch_size)
            + 1000 * 2 * images.mean(1).var(0).mean()
            + 0.001 * smooth / number
            + 2 * ((pixels - jnp.clip(pixels, 0, 1)) ** 2).sum() / number
        )

    @jax.jit
    def advance(images: Array, state: Any) -> tuple[Array, Any, Array]:
        value, gradient = jax.value_and_grad(loss)(images)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(images, updates), state, value

    images = jnp.asarray(work.images)
    carried = [images, optimizer.init(images)]

    def step() -> float:
        carried[0], carried[1], value = advance(*carried)
        return float(value)

    return step
