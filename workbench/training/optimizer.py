"""A step of a client's optimiser, and what all steps together make of the gradients.

Optimisers are written out here, because the attack differentiates through them: Optax's Adam, for one, has no finite
derivative where a gradient is zero, and a ReLU that is never active makes many zeros.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from workbench.training.local import LocalTraining, StepSizes
from workbench.training.schedule import Schedule
from workbench.weights import Weights

__all__ = ["Moments", "Response", "descend", "first_moments", "response"]


class Response(NamedTuple):
    """What an update is made of: ``client = kept * server - rate * sum_j coefficients[j] * gradient_j``.

    Attributes:
        coefficients: [U] of every gradient, in units of the learning rate; all 1 for plain SGD.
        kept: what weight decay leaves of the server's weights.
    """

    coefficients: NDArray[np.float64]
    kept: float


def response(training: LocalTraining, learning_rate: float, schedule: Schedule) -> Response:
    """What the update holds of every gradient, found by sending impulses through the optimiser itself.

    Clipping is not part of it: its factors depend on the gradients. Those of Adam depend on them altogether, so
    only what AdamW keeps of the server's weights is known then.
    """
    sizes = training.step_sizes(learning_rate, schedule)
    steps = schedule.local_steps
    if training.is_adam:
        decay = training.weight_decay if training.optimizer == "adamw" else 0.0
        return Response(sizes.rate / learning_rate, float(np.prod(1 - sizes.rate * decay)))
    if not (training.momentum or training.weight_decay or training.proximal_weight):
        return Response(sizes.rate / learning_rate, 1.0)
    linear = LocalTraining(
        momentum=training.momentum,
        nesterov=training.nesterov,
        weight_decay=training.weight_decay,
        proximal_weight=training.proximal_weight,
    )
    # Entry j meets a gradient of 1 in step j and starts at 0; the last one meets none and starts at 1.
    server: Weights = {"": {"": np.append(np.zeros(steps), 1.0)}}
    weights, moments = server, first_moments(linear, server)
    for number in range(steps):
        impulse: Weights = {"": {"": np.eye(1, steps + 1, number)[0]}}
        now = StepSizes(*(size[number] for size in sizes))
        weights, moments = descend(linear, weights, impulse, moments, server, now)
    final = weights[""][""]
    return Response(-final[:-1] / learning_rate, float(final[-1]))


Moments = tuple[Weights, ...]
"""What an optimiser carries from step to step: nothing, the momentum, or Adam's two means."""


def first_moments(training: LocalTraining, weights: Weights) -> Moments:
    """Before the first step."""
    number = 2 if training.is_adam else 1 if training.momentum else 0
    return tuple(jax.tree.map(lambda w: 0 * w, weights) for _ in range(number))


def descend(
    training: LocalTraining, weights: Weights, gradient: Weights, moments: Moments, server: Weights, size: StepSizes
) -> tuple[Weights, Moments]:
    """The weights and the moments after one step, from the gradient of the batch loss.

    Args:
        server: the weights before the first step, for the proximal term.
        size: of this step.
    """
    if training.proximal_weight:
        gradient = _plus(gradient, training.proximal_weight, jax.tree.map(lambda w, s: w - s, weights, server))
    if training.gradient_clip:
        gradient = _clipped(gradient, training.gradient_clip)
    if training.weight_decay and training.optimizer != "adamw":
        gradient = _plus(gradient, training.weight_decay, weights)
    if training.is_adam:
        return _adam(training, weights, gradient, moments, size)
    if training.momentum:
        (before,) = moments
        momentum = _plus(gradient, training.momentum, before)
        gradient = _plus(gradient, training.momentum, momentum) if training.nesterov else momentum
        moments = (momentum,)
    return jax.tree.map(lambda w, g: w - size.rate * g, weights, gradient), moments


def _plus(tree: Weights, factor: float, other: Weights) -> Weights:
    return jax.tree.map(lambda a, b: a + factor * b, tree, other)


def _clipped(gradient: Weights, bound: float) -> Weights:
    squares = sum((jnp.vdot(g, g) for g in jax.tree.leaves(gradient)), start=jnp.float32(0))
    # As PyTorch does it, which adds 1e-6 to the norm.
    factor = jnp.minimum(bound / (_root(squares) + 1e-6), 1.0)
    return jax.tree.map(lambda g: factor * g, gradient)


def _adam(
    training: LocalTraining, weights: Weights, gradient: Weights, moments: Moments, size: StepSizes
) -> tuple[Weights, Moments]:
    beta1, beta2 = training.beta1, training.beta2
    mean = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, moments[0], gradient)
    square = jax.tree.map(lambda v, g: beta2 * v + (1 - beta2) * g * g, moments[1], gradient)
    left = 1 - size.rate * training.weight_decay if training.optimizer == "adamw" else 1.0

    def step(w: Array, m: Array, v: Array) -> Array:
        return left * w - size.rate / size.first * m / (_root(v) / size.second + training.epsilon)

    return jax.tree.map(step, weights, mean, square), (mean, square)


def _root(square: Array) -> Array:
    """The square root, with a derivative of 0 at 0 in place of an infinite one."""
    is_zero = square == 0
    return jnp.where(is_zero, jnp.zeros_like(square), jnp.sqrt(jnp.where(is_zero, jnp.ones_like(square), square)))
