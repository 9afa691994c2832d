"""Local training: the gradient of a batch, and a sequence of steps by plain SGD or any other optimiser.

The client runs these steps and the attacker simulates them; both call the same function, so they cannot differ. The
steps are a `lax.scan`, so compile time does not grow with their number, and the result is differentiable with respect
to the images.
"""

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from workbench.training import chain, native
from workbench.training.by_platform import default_platform
from workbench.training.local import PLAIN, LocalTraining, StepSizes
from workbench.training.model import Model
from workbench.training.optimizer import Moments, descend, first_moments
from workbench.weights import Weights

__all__ = [
    "Batches",
    "LocalState",
    "batch_gradient",
    "batch_loss",
    "batch_share",
    "in_batches",
    "kept_bytes",
    "local_steps",
    "sgd",
    "train",
]

Layers = tuple[chain.Layer, ...]

# The bytes of a step that the backward pass of a custom network keeps at most; it computes a larger step again, because
# moving so much to memory and back takes longer. Measured with batches of 5, keeping is 1.25 times as fast for LeNet
# (1.3 MB a step), 1.1 times for the paper's FEMNIST network (4.2 MB) and 0.9 times for a ResNet with GroupNorm (13 MB).
_MOST_KEPT = 8_000_000


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


def batch_loss(
    model: Model, weights: Weights, images: Array, labels: Array, share: Array, smoothing: float = 0.0
) -> tuple[Array, Weights]:
    """``sum_i share[i] * cross_entropy_i``, and the new running statistics of the network.

    With ``share = 1 / M`` the loss is the mean over the batch.
    """
    logits, statistics = model.train_logits(weights, images, share > 0)
    log_probabilities = jax.nn.log_softmax(logits)
    of_labels = jnp.take_along_axis(log_probabilities, labels[:, None], axis=1)[:, 0]
    if smoothing:
        of_labels = (1 - smoothing) * of_labels + smoothing * log_probabilities.mean(1)
    return -(share * of_labels).sum(), statistics


def batch_gradient(
    model: Model, weights: Weights, images: Array, labels: Array, share: Array, smoothing: float = 0.0
) -> tuple[Weights, Weights]:
    """The gradient of `batch_loss` with respect to the weights, and the new running statistics."""
    if model.chain is not None:
        return _chain_gradient(model.chain, smoothing, weights, Batches(images, labels, share)), {}
    gradient = jax.grad(partial(batch_loss, model, smoothing=smoothing), has_aux=True)
    found: tuple[Weights, Weights] = gradient(weights, images, labels, share)
    return found


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _chain_gradient(layers: Layers, smoothing: float, weights: Weights, batch: Batches) -> Weights:
    """The gradient of a chain of layers on one batch, with a hand-written derivative."""
    return chain.loss_gradient(layers, weights, *batch, smoothing)[0]


def _gradient_forward(layers: Layers, smoothing: float, weights: Weights, batch: Batches) -> tuple[Weights, Any]:
    gradient, kept = chain.loss_gradient(layers, weights, *batch, smoothing)
    return gradient, (weights, batch, kept)


def _gradient_backward(layers: Layers, _: float, saved: Any, adjoint: Weights) -> tuple[Weights, Batches]:
    weights, batch, kept = saved
    in_weights, in_images = chain.gradient_derivative(layers, weights, batch.images, batch.share, kept, adjoint)
    return in_weights, _adjoint_of(batch, in_images)


_chain_gradient.defvjp(_gradient_forward, _gradient_backward)


def _adjoint_of(batches: Batches, in_images: Array) -> Batches:
    """None for the labels, which are integers; zero for the share."""
    no_derivative: Any = None
    return Batches(in_images, no_derivative, jnp.zeros_like(batches.share))


class LocalState(NamedTuple):
    """What local training carries from step to step."""

    weights: Weights
    moments: Moments

    @staticmethod
    def first(model: Model, training: LocalTraining, weights: Weights) -> "LocalState":
        """Before the first step."""
        return LocalState(weights, first_moments(training, model.trained(weights)))


def local_steps(
    model: Model,
    training: LocalTraining,
    state: LocalState,
    server: Weights,
    batches: Batches,
    sizes: StepSizes,
    gradient_of: Callable[..., tuple[Weights, Weights]],
    keys: Array | None = None,
) -> LocalState:
    """One step of the optimiser on each of the S batches in turn.

    Args:
        model: the network.
        training: the optimiser and what belongs to it.
        state: where to begin.
        server: the weights that the server sent.
        batches: of every step.
        sizes: [S] of every step.
        gradient_of: (weights, batch, random key) to the gradient and the new running statistics.
        keys: [S] random keys, if it needs some.
    """
    update: Callable[..., tuple[Weights, Moments]] = partial(descend, training)
    if not training.is_linear:
        # The backward pass would keep many arrays of the size of the weights.
        update = jax.checkpoint(update)

    server = model.trained(server)

    def step(state: LocalState, xs: Any) -> tuple[LocalState, None]:
        batch, size, key = xs
        gradient, new = gradient_of(state.weights, batch, key)
        # No optimiser moves or sees the running statistics.
        old, slope = model.trained(state.weights), model.trained(gradient)
        moved, moments = update(old, slope, state.moments, server, lax.stop_gradient(size))
        weights = {name: {**arrays, **moved[name], **new.get(name, {})} for name, arrays in state.weights.items()}
        return LocalState(weights, moments), None

    return lax.scan(step, state, (batches, sizes, keys))[0]


def sgd(model: Model, weights: Weights, batches: Batches, rate: Array, segments: int = 1) -> Weights:
    """The weights after one plain SGD step on each of the S batches in turn (the paper's Algorithm 1).

    Differentiable with respect to the weights and the images; the rate is a constant.

    Args:
        rate: the step size.
        segments: a divisor of S. Differentiation stores the weights of all S steps; with several segments it stores
            only those at the start of each segment and recomputes the others, which saves memory and costs time.
    """
    if model.chain is None:
        sizes = StepSizes(*3 * (jnp.broadcast_to(rate, len(batches.images)),))
        return train(model, PLAIN, weights, batches, sizes, segments)
    passes = _passes(model.chain, weights, batches.images, len(batches.images))
    steps = partial(_chain_sgd, passes, model.chain)
    if segments == 1:
        return steps(weights, batches, rate)
    segment = jax.checkpoint(steps)
    return lax.scan(lambda w, part: (segment(w, part, rate), None), weights, _divided(batches, segments))[0]


def train(
    model: Model, training: LocalTraining, weights: Weights, batches: Batches, sizes: StepSizes, segments: int = 1
) -> Weights:
    """As `sgd`, for any optimiser; its own derivative is JAX's reverse mode.

    Args:
        training: the optimiser and what belongs to it.
        sizes: [S] of every step.
    """

    def gradient_of(weights: Weights, batch: Batches, _: None) -> tuple[Weights, Weights]:
        return batch_gradient(model, weights, *batch, training.label_smoothing)

    if model.chain is None and not _is_kept(_residuals(model, training, weights, batches)):
        gradient_of = jax.checkpoint(gradient_of)

    def steps(state: LocalState, part: tuple[Batches, StepSizes]) -> LocalState:
        return local_steps(model, training, state, weights, *part, gradient_of)

    state = LocalState.first(model, training, weights)
    if segments == 1:
        return steps(state, (batches, sizes)).weights
    segment = jax.checkpoint(steps)
    parts = _divided((batches, sizes), segments)
    return lax.scan(lambda state, part: (segment(state, part), None), state, parts)[0].weights


def _residuals(model: Model, training: LocalTraining, weights: Weights, batches: Batches) -> Any:
    """The shapes of what the backward pass needs of the gradient of one step, the weights included."""

    def residuals(weights: Weights, batches: Batches) -> Any:
        images, labels, share = (array[0] for array in batches)
        gradient_of = partial(batch_gradient, model, labels=labels, share=share, smoothing=training.label_smoothing)
        return jax.vjp(lambda w, x: gradient_of(w, x)[0], weights, images)[1]

    return jax.eval_shape(residuals, weights, batches)


def _is_kept(residuals: Any) -> bool:
    """Whether they are kept from the forward pass."""
    return _num_bytes(residuals) <= _MOST_KEPT


def _divided(steps: Any, segments: int) -> Any:
    """Arrays [S, ...] as [segments, S / segments, ...]."""
    return jax.tree.map(lambda a: a.reshape(segments, a.shape[0] // segments, *a.shape[1:]), steps)


def _passes(layers: Layers, weights: Weights, images: Array, num_steps: int) -> ModuleType:
    """The module whose `forward` and `backward` run these steps: the compiled library's, for CPUs, if it can."""
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
    """The adjoints of all arguments; zero for the rate."""
    final, batches, rate, trajectory = saved
    in_weights, in_images = passes.backward(layers, final, batches, rate, trajectory, adjoint)
    return in_weights, _adjoint_of(batches, in_images), jnp.zeros_like(rate)


_chain_sgd.defvjp(_forward, _backward)


def kept_bytes(
    model: Model,
    num_steps: int,
    batch_size: int,
    segments: int = 1,
    training: LocalTraining = PLAIN,
    platform: str | None = None,
) -> int:
    """An estimate of the memory that differentiating through `sgd` or `train` needs, from the arrays that are kept.

    Args:
        platform: of the device, as JAX names it; None for JAX's default.
    """
    weights = jax.eval_shape(lambda: model.init(0))
    batch = jax.eval_shape(
        lambda: Batches(
            jnp.zeros((1, batch_size, *model.image_shape), jnp.float32),
            jnp.zeros((1, batch_size), jnp.int32),
            jnp.zeros((1, batch_size), jnp.float32),
        )
    )
    state = jax.eval_shape(partial(LocalState.first, model, training), weights)
    once: Any = ()
    if model.chain is None:
        residuals = _residuals(model, training, weights, batch)
        every_step, once = (residuals, ()) if _is_kept(residuals) else (weights, residuals)
    else:
        passes = _passes(model.chain, weights, batch.images, num_steps) if training.is_plain else chain
        is_compiled = passes is native and (platform or default_platform()) == "cpu"
        forward = partial(passes.forward, model.chain, keep=True)
        _, every_step = jax.eval_shape(forward, weights, batch, jnp.float32(0))
        if passes is native:
            every_step = every_step.compiled if is_compiled else every_step.in_jax
    if not training.is_linear:
        # Of a linear step the backward pass needs neither the gradient nor the moments.
        every_step = (every_step, weights, state.moments)
    return _num_bytes(every_step) * -(-num_steps // segments) + _num_bytes(state) * segments + _num_bytes(once)


def _num_bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
