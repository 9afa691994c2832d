"""The loss that the attack minimises, term by term (the paper's Algorithm 2, with its Appendix B)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from workbench.attack.priors import Summary, epoch_prior, pixel_range, total_variation
from workbench.attack.simulate import ServerKnowledge, Simulation, simulate
from workbench.attack.span import SpanArrays, span_term
from workbench.weights import Weights

__all__ = ["Objective", "Problem", "Steering", "Terms", "loss_and_terms", "update_distance", "update_size"]


@dataclass(frozen=True)
class Objective:
    """What the loss is made of: everything that decides the shape of the computation.

    Attributes:
        simulation: how images become an update.
        distance: between the observed and the simulated update.
        prior: g, by name or as a custom function.
        prior_distance: D.
        regularizer: a custom term: normalised images [A, V, N, H, W, C] to a number.
    """

    simulation: Simulation
    distance: str
    prior: str | Summary
    prior_distance: str
    regularizer: Callable[[Array], Array] | None = None

    @property
    def has_prior(self) -> bool:
        return self.simulation.method.has_prior and self.simulation.schedule.epochs > 1


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Problem:
    """The arrays of one attack that do not change from step to step: a JAX pytree.

    Attributes:
        known: what the server knows.
        gradient_sum: the observed one, which the simulated one should match.
        mean: [C] of the normalisation, for terms in pixel space.
        std: [C].
        filters: [3, 3, C, 96] of the ``conv+`` summaries.
        update_weight: [2] at the first step, and from ``update_weight_steps`` on.
        update_weight_steps: scalar.
        step_decay: scalar, the factor on the step size with every step.
        first_step: scalar, where the schedules of this phase begin.
        scale: scalar, the factor on the weights of prior, tv, clip, consensus and the custom term.
        span_schedule: [4]: the size of the observed update, which the weight of the span is relative to, the share of
            that weight at the first step, and the steps in which it rises to all of it, for images of the start and
            for restarted ones.
        span: of a dense layer's update; None leaves the term out.
    """

    known: ServerKnowledge
    gradient_sum: Weights
    mean: Array
    std: Array
    filters: Array | None
    update_weight: Array
    update_weight_steps: Array
    step_decay: Array
    first_step: Array
    scale: Array
    span_schedule: Array
    span: SpanArrays | None


class Steering(NamedTuple):
    """What can be changed between two steps without a new compilation.

    Attributes:
        update: a factor on the scheduled weight of the update distance.
        prior, tv, clip, consensus, custom: the weights of the other terms.
        step_size: before its decay.
        span: the weight of the span term, relative to the size of the observed update, once it has risen.
    """

    update: Array | float = 1.0
    prior: Array | float = 0.0
    tv: Array | float = 0.0
    clip: Array | float = 0.0
    consensus: Array | float = 0.0
    custom: Array | float = 0.0
    step_size: Array | float = 0.1
    span: Array | float = 0.0


class Terms(NamedTuple):
    """Every term's weighted part in the loss: numbers on the device, or NumPy arrays over several steps.

    Files store the terms by position, so new ones go at the end.
    """

    update: Any
    prior: Any
    tv: Any
    clip: Any
    consensus: Any
    custom: Any
    span: Any


def update_distance(objective: Objective, observed: Weights, simulated: Weights) -> Array:
    """The paper's L_sim: the distance between the observed and the simulated sum of gradients.

    With G_l the observed and G~_l the simulated sum in layer l, counted from the input:

    - ``layer_weighted_l2``: sum over l of exp(-l) * |G_l - G~_l|^2, divided by the batches that the variables make;
    - ``l2``: the same without exp(-l);
    - ``cosine``: 1 - <G, G~> / (|G| |G~|), over all layers together.
    """
    if objective.distance == "cosine":
        pairs = list(zip(jax.tree.leaves(observed), jax.tree.leaves(simulated), strict=True))
        product = sum(jnp.vdot(a, b) for a, b in pairs)
        sizes = sum(jnp.vdot(a, a) for a, _ in pairs) * sum(jnp.vdot(b, b) for _, b in pairs)
        return 1 - product / jnp.sqrt(sizes)
    total = jnp.float32(0)
    for index, layer in enumerate(objective.simulation.model.layer_names):
        differences = jax.tree.map(lambda a, b: jnp.vdot(a - b, a - b), observed[layer], simulated[layer])
        weight = jnp.exp(-float(index)) if objective.distance == "layer_weighted_l2" else 1.0
        total = total + weight * sum(jax.tree.leaves(differences))
    return total / objective.simulation.num_variable_batches


def update_size(objective: Objective, observed: Weights) -> Array:
    """The distance of the observed update to none at all: a unit for weights that should fit every client."""
    if objective.distance == "cosine":
        return jnp.float32(1)
    return update_distance(objective, observed, jax.tree.map(jnp.zeros_like, observed))


def loss_and_terms(
    objective: Objective,
    problem: Problem,
    steering: Steering,
    step: Array,
    images: Array,
    consensus: Array,
    started: Array,
) -> tuple[Array, Terms]:
    """The loss of normalised images [A, V, N, H, W, C] at a step, and its terms (line 9 of Algorithm 2).

    Args:
        consensus: [A, V, N, H, W, C] what the consensus term pulls the images towards.
        started: [A, V, N] the step from which the span weight of every image rises.
    """
    zero = jnp.float32(0)
    simulated = simulate(objective.simulation, problem.known, images)
    first, later = problem.update_weight
    steps = (step - problem.first_step).astype(problem.update_weight_steps.dtype)
    progress = jnp.minimum(steps / problem.update_weight_steps, 1.0)
    update_weight = steering.update * first * (later / first) ** progress
    prior = custom = span = zero
    if objective.has_prior:
        per_client = lax.map(
            lambda epochs: epoch_prior(epochs, objective.prior, objective.prior_distance, problem.filters), images
        )
        prior = steering.prior * problem.scale * per_client.mean()
    if objective.regularizer is not None:
        custom = steering.custom * problem.scale * objective.regularizer(images)
    if problem.span is not None:
        size, first, rise, rise_again = problem.span_schedule
        rises = jnp.where(started == problem.first_step, rise, rise_again)
        shares = first ** (1 - jnp.minimum((step - started).astype(rise.dtype) / rises, 1.0))
        span_weight = steering.span * problem.span.share * size
        span = span_weight * span_term(objective.simulation.model, problem.span, images, shares)
    shape = (1,) * (images.ndim - 1) + problem.mean.shape
    pixels = images * problem.std.reshape(shape) + problem.mean.reshape(shape)
    terms = Terms(
        update=update_weight * update_distance(objective, problem.gradient_sum, simulated),
        prior=prior,
        tv=steering.tv * problem.scale * total_variation(images),
        clip=steering.clip * problem.scale * pixel_range(pixels),
        consensus=steering.consensus * problem.scale * ((images - consensus) ** 2).mean(),
        custom=custom,
        span=span,
    )
    return sum(terms, zero), terms
