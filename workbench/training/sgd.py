"""Local training: the gradient of a batch, and a sequence of SGD steps.

The client runs these steps and the attacker simulates them; both call the same function, so they cannot differ. The
steps are a `lax.scan`, so compile time does not grow with their number, and the result is differentiable with respect
to the images.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from workbench.training import chain, native
from workbench.training.delayed import DelayedKernel, append, delay, rows_before, settle
from workbench.training.model import Model
from workbench.training.weights import Weights

__all__ = ["Batches", "batch_gradient", "batch_loss", "batch_share", "in_batches", "kept_bytes", "sgd"]

Layers = tuple[chain.Layer, ...]

# The number of steps in a block, within which the updates of dense layers are delayed. On the FEMNIST network, 5 steps
# are 6 % faster than 10 at batch size 5, and equally fast at batch size 1. Updates are delayed only for layers with a
# large kernel that has many more rows than a block stores: at batch size 10, the FEMNIST network is faster without.
_BLOCK_STEPS = 5
_MIN_DELAYED = 2**16
_MAX_ROWS_SHARE = 1 / 4


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
    elif _is_native(model.chain, weights, batches.images, len(batches.images)):
        steps = partial(_native_sgd, model.chain)
    else:
        steps = partial(_chain_sgd, model.chain)
    if segments == 1:
        return steps(weights, batches, rate)
    segmented = jax.tree.map(lambda a: a.reshape(segments, a.shape[0] // segments, *a.shape[1:]), batches)
    segment = jax.checkpoint(steps)
    return lax.scan(lambda w, part: (segment(w, part, rate), None), weights, segmented)[0]


def _descend(weights: Weights, gradient: Weights, rate: Array, position: Array | int = 0) -> Weights:
    """One SGD step; the rows of a delayed update are stored at the given position."""

    def descend(weight: Any, gradient: Any) -> Any:
        if isinstance(weight, DelayedKernel):
            return append(weight, gradient, rate, jnp.asarray(position))
        return weight - rate * gradient

    return jax.tree.map(descend, weights, gradient, is_leaf=lambda w: isinstance(w, DelayedKernel))


def _plain_sgd(model: Model, weights: Weights, batches: Batches, rate: Array) -> Weights:
    """For any network: reverse mode by JAX, which recomputes each step's gradient in the backward pass."""

    @jax.checkpoint
    def step(weights: Weights, batch: Batches) -> tuple[Weights, None]:
        return _descend(weights, batch_gradient(model, weights, *batch), lax.stop_gradient(rate)), None

    return lax.scan(step, weights, batches)[0]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _chain_sgd(layers: Layers, weights: Weights, batches: Batches, rate: Array) -> Weights:
    return _forward(layers, weights, batches, rate)[0]


def _forward(layers: Layers, weights: Weights, batches: Batches, rate: Array) -> tuple[Weights, Any]:
    """The final weights, and the residuals of each block for the backward pass: an inner scan over a block's steps."""
    blocks, delayed = _in_blocks(layers, batches)
    size = blocks.labels.shape[2]

    def step(weights: Weights, xs: tuple[Array, Batches]) -> tuple[Weights, tuple[Weights, chain.Residuals]]:
        position, batch = xs
        gradient, kept = chain.loss_gradient(layers, weights, *batch)
        return _descend(weights, gradient, rate, position), (_without(weights, delayed), kept)

    def block(weights: Weights, steps: Batches) -> tuple[Weights, Any]:
        positions = size * jnp.arange(len(steps.labels))
        started = _with_delayed(weights, delayed, size * len(steps.labels))
        final, kept = lax.scan(step, started, (positions, steps))
        return settle(final), (_only(final, delayed), kept)

    final, trajectory = lax.scan(block, weights, blocks)
    return final, (batches, rate, trajectory)


def _backward(layers: Layers, saved: Any, adjoint: Weights) -> tuple[Weights, Batches, Array]:
    """The adjoints of the weights and of the images.

    If v is the adjoint of the weights after a step w' = w - rate * g(w, x), the adjoint of the weights before it is
    v - rate * d<v, g>/dw and that of the images is -rate * d<v, g>/dx.
    """
    batches, rate, trajectory = saved
    blocks, delayed = _in_blocks(layers, batches)
    size = blocks.labels.shape[2]

    def block(adjoint: Weights, xs: Any) -> tuple[Weights, Array]:
        steps, (kernels, kept) = xs
        num_steps = len(steps.labels)

        def step(adjoint: Weights, xs: Any) -> tuple[Weights, Array]:
            index, batch, (weights, kept) = xs
            weights = _merge(
                weights, {n: {"kernel": rows_before(k["kernel"], size * index)} for n, k in kernels.items()}
            )
            in_weights, in_images = chain.gradient_derivative(layers, weights, batch.images, batch.share, kept, adjoint)
            return _descend(adjoint, in_weights, rate, 2 * size * index), -rate * in_images

        started = _with_delayed(adjoint, delayed, 2 * size * num_steps)
        adjoint, in_images = lax.scan(step, started, (jnp.arange(num_steps), steps, kept), reverse=True)
        return settle(adjoint), in_images

    adjoint, in_images = lax.scan(block, adjoint, (blocks, trajectory), reverse=True)
    in_images = in_images.reshape(-1, *batches.images.shape[1:])[: len(batches.images)]
    return _adjoints(batches, rate, adjoint, in_images)


_chain_sgd.defvjp(_forward, _backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _native_sgd(layers: Layers, weights: Weights, batches: Batches, rate: Array) -> Weights:
    return native.forward(layers, weights, batches, rate, keep=False)[0]


def _native_forward(layers: Layers, weights: Weights, batches: Batches, rate: Array) -> tuple[Weights, Any]:
    final, trajectory = native.forward(layers, weights, batches, rate, keep=True)
    return final, (batches, rate, final, trajectory)


def _native_backward(layers: Layers, saved: Any, adjoint: Weights) -> tuple[Weights, Batches, Array]:
    batches, rate, final, trajectory = saved
    return _adjoints(batches, rate, *native.backward(layers, final, batches, rate, trajectory, adjoint))


_native_sgd.defvjp(_native_forward, _native_backward)


def _adjoints(batches: Batches, rate: Array, weights: Weights, images: Array) -> tuple[Weights, Batches, Array]:
    """The adjoints of all arguments: None for the labels, which are integers; zero for share and rate."""
    no_derivative: Any = None
    return weights, Batches(images, no_derivative, jnp.zeros_like(batches.share)), jnp.zeros_like(rate)


def _in_blocks(layers: Layers, batches: Batches) -> tuple[Batches, frozenset[str]]:
    """The batches [S, M, ...] as blocks [S / T, T, M, ...], and the layers whose updates are delayed within a block.

    If T does not divide S, the last block is padded with empty steps (share 0).
    """
    num_steps, size = batches.labels.shape
    delayed = _delayed_layers(layers, size)
    wanted = min(num_steps, _BLOCK_STEPS) if delayed else num_steps
    length = min(range(max(1, wanted * 2 // 3), wanted + 1), key=lambda t: (-num_steps % t, -t))
    fill = -num_steps % length

    def arrange(a: Array) -> Array:
        padded = jnp.pad(a, [(0, fill)] + [(0, 0)] * (a.ndim - 1)) if fill else a
        return padded.reshape(-1, length, *a.shape[1:])

    return jax.tree.map(arrange, batches), delayed if length > 1 else frozenset()


def _delayed_layers(layers: Layers, batch_size: int) -> frozenset[str]:
    return frozenset(
        layer.name
        for layer in layers
        if layer.is_dense
        and math.prod(layer.kernel_shape) >= _MIN_DELAYED
        and _BLOCK_STEPS * batch_size <= _MAX_ROWS_SHARE * min(layer.kernel_shape)
    )


def _is_native(layers: Layers, weights: Weights, images: Array, num_steps: int) -> bool:
    """Whether the compiled library runs these steps."""
    # XLA runs a single step as fast: no step waits for another, and its memory is already allocated.
    return num_steps > 1 and native.can_train(layers, weights, images)


def kept_bytes(model: Model, num_steps: int, batch_size: int, segments: int = 1) -> int:
    """An estimate of the memory that differentiating through `sgd` needs, from the shapes of the stored arrays."""
    weights = jax.eval_shape(lambda: model.init(0))
    images, labels, share = jax.eval_shape(
        lambda: (
            jnp.zeros((batch_size, *model.image_shape), jnp.float32),
            jnp.zeros(batch_size, jnp.int32),
            jnp.zeros(batch_size, jnp.float32),
        )
    )
    every_step = _num_bytes(weights)
    if model.chain is not None and _is_native(model.chain, weights, images, num_steps):
        every_step = images.dtype.itemsize * native.kept_floats(model.chain, model.image_shape, batch_size)
    elif model.chain is not None:
        delayed = _delayed_layers(model.chain, batch_size)
        kept = jax.eval_shape(partial(chain.loss_gradient, model.chain), weights, images, labels, share)[1]
        every_block = _num_bytes(_only(weights, delayed))
        every_step = _num_bytes(_without(weights, delayed)) + _num_bytes(kept) + every_block // _BLOCK_STEPS
    return every_step * -(-num_steps // segments) + _num_bytes(weights) * segments


def _num_bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _with_delayed(weights: Weights, names: frozenset[str], num_rows: int) -> Weights:
    return {n: {**w, "kernel": delay(w["kernel"], num_rows)} if n in names else w for n, w in weights.items()}


def _without(weights: Weights, names: frozenset[str]) -> Weights:
    return {n: {"bias": w["bias"]} if n in names else w for n, w in weights.items()}


def _only(weights: Weights, names: frozenset[str]) -> Weights:
    return {n: {"kernel": weights[n]["kernel"]} for n in sorted(names)}


def _merge(weights: Weights, kernels: Weights) -> Weights:
    return {n: {**w, **kernels.get(n, {})} for n, w in weights.items()}
