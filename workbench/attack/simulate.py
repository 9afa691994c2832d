"""The client's training, simulated on dummy images: five methods and the surrogate (the paper's Sections 4.3 and 5.1).

Each method turns images into what the sum of the client's gradients would be if those were the client's images. They
differ in which images are variables and in what is simulated:

| method | variables | simulation |
|---|---|---|
| ours_prior, ours_no_prior | E x N images | E epochs of B batches |
| shared | N, the same in every epoch | E epochs of B batches |
| fedsgd_epoch | N | E steps on all N images, each gradient times B |
| fedsgd | N | one gradient at the server's weights, times U |
| surrogate | N | gradients at points between the server's and the client's weights, times U |

`planned_phases` says what an attack simulates, and `estimate_cost` what that costs.

Letters in shapes: A clients, E epochs, V epochs with separate variables (E or 1), N images, H, W, C.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from workbench.attack.methods import METHODS, Method, Simulated
from workbench.config import AttackConfig
from workbench.training.local import PLAIN, LocalTraining, StepSizes
from workbench.training.model import Model
from workbench.training.schedule import Schedule
from workbench.training.sgd import Batches, batch_share, in_batches, kept_bytes, sgd, train
from workbench.weights import Weights

__all__ = [
    "Cost",
    "ServerKnowledge",
    "Simulation",
    "believed_schedule",
    "estimate_cost",
    "image_labels",
    "planned_phases",
    "simulate",
]


@dataclass(frozen=True)
class Simulation:
    """What is simulated: everything that decides the shape of the computation.

    Attributes:
        model: the network.
        method: how it simulates.
        schedule: N, E and m of each client, E and m as the attacker believes them.
        points: of the surrogate, on the segment between the weights.
        segments: parts of the simulation that the backward pass computes a second time (`training.sgd`).
        training: the client's optimiser and what belongs to it.
    """

    model: Model
    method: Method
    schedule: Schedule
    points: int = 2
    segments: int = 1
    training: LocalTraining = PLAIN

    @property
    def num_variable_epochs(self) -> int:
        """V: how many sets of images are optimised."""
        return self.schedule.epochs if self.method.is_separate else 1

    @property
    def is_batched(self) -> bool:
        """Whether the client's batches are simulated one by one."""
        return self.method.simulated is Simulated.BATCHES

    @property
    def num_simulated_steps(self) -> tuple[int, int]:
        """How many local steps the simulation of one client makes, and the images of each."""
        if self.is_batched:
            return self.schedule.local_steps, self.schedule.batch_size
        steps = {Simulated.EPOCHS: self.schedule.epochs, Simulated.ONE_STEP: 1, Simulated.POINTS: self.points}
        return steps[self.method.simulated], self.schedule.num_images

    @property
    def num_variable_batches(self) -> int:
        """The batches that the variables make: what the update distance is divided by."""
        return self.num_variable_epochs * self.schedule.batches_per_epoch

    def memory(self, num_clients: int, device: jax.Device | None = None) -> int:
        """About the bytes that a step of an attack needs at its peak: what the backward pass keeps, and the state."""
        num_images = num_clients * self.num_variable_epochs * self.schedule.num_images
        # The images, Adam's two moments, the consensus, the gradient and the next state, as float32.
        state = 8 * 4 * num_images * math.prod(self.model.image_shape)
        training = self.training if self.is_batched else self.training.of_gradient
        platform = device.platform if device else None
        kept = kept_bytes(self.model, *self.num_simulated_steps, self.segments, training, platform)
        return state + num_clients * kept


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class ServerKnowledge:
    """What the server knows of a client and assumes about it, as arrays: a JAX pytree.

    Attributes:
        server_weights: where the simulation starts.
        client_weights: where the client ended.
        rate: the client's learning rate.
        sizes: [U] of every local step.
        coefficients: [U] what the update holds of every gradient, in units of the rate.
        kept: what the update keeps of the server's weights.
        labels: [A, E, N] assigned to the positions of every epoch.
        order: [A, E, N] which image stands at which position, for methods with one set of images; None for the same
            order in every epoch.
    """

    server_weights: Weights
    client_weights: Weights
    rate: Array
    sizes: StepSizes
    coefficients: Array
    kept: Array
    labels: Array
    order: Array | None


class Cost(NamedTuple):
    """The memory of the largest step, and the work of all steps.

    Attributes:
        memory: bytes.
        phases: for every phase its steps, and the images that each of them sends through the network; time grows about
            in proportion to their product.
    """

    memory: int
    phases: tuple[tuple[int, int], ...]

    @property
    def steps(self) -> int:
        """Of all phases."""
        return sum(steps for steps, _ in self.phases)


def believed_schedule(config: AttackConfig, schedule: Schedule) -> Schedule:
    """The client's schedule with E and m as the attacker believes them."""
    believed = (config.epochs or schedule.epochs, config.batch_size or schedule.batch_size)
    return Schedule(schedule.num_images, *believed, schedule.drop_last)


def planned_phases(
    model: Model, config: AttackConfig, schedule: Schedule, training: LocalTraining
) -> list[tuple[Simulation, int]]:
    """What every phase simulates, and its steps: the method, and before it the warm start if there is one."""
    schedule = believed_schedule(config, schedule)
    methods = [(config.method, config.steps)]
    if config.warm_start_steps and config.noisy_method is None:
        methods.insert(0, ("surrogate", config.warm_start_steps))
    return [
        (Simulation(model, METHODS[name], schedule, config.surrogate_points, training=training), steps)
        for name, steps in methods
    ]


def estimate_cost(
    model: Model,
    config: AttackConfig,
    schedule: Schedule,
    num_clients: int = 1,
    training: LocalTraining = PLAIN,
) -> Cost:
    """What an attack on such a client costs; nothing is compiled or computed.

    >>> from workbench import models
    >>> estimate_cost(models.mlp(), AttackConfig(steps=10), Schedule(num_images=8, epochs=2, batch_size=4)).phases
    ((10, 16),)
    """
    phases = planned_phases(model, config, schedule, training)
    work = [(steps, num_clients * math.prod(simulation.num_simulated_steps)) for simulation, steps in phases]
    return Cost(max(simulation.memory(num_clients) for simulation, _ in phases), tuple(work))


def simulate(simulation: Simulation, known: ServerKnowledge, images: Array) -> Weights:
    """SimUpdate of the paper's Algorithm 2, as the sum of the gradients rather than the final weights.

    Args:
        simulation: how to simulate.
        known: the weights, the learning rate, and the labels of every position.
        images: [A, V, N, H, W, C] normalised.

    Returns:
        The sum of the gradients of training on the images, averaged over the clients.
    """
    if len(images) == 1:
        order = None if known.order is None else known.order[0]
        return _simulate_one(simulation, known, images[0], known.labels[0], order)
    # One client after another: side by side, each would need its own copy of every convolution kernel.
    sums = lax.map(lambda xs: _simulate_one(simulation, known, *xs), (images, known.labels, known.order))
    return jax.tree.map(lambda g: g.mean(0), sums)


def image_labels(labels: Array, order: Array | None) -> Array:
    """[E, N] labels by position to [N] labels by image, for methods with one set of images."""
    return labels[0] if order is None else labels[0][jnp.argsort(order[0])]


def _simulate_one(
    simulation: Simulation, known: ServerKnowledge, images: Array, labels: Array, order: Array | None
) -> Weights:
    schedule, start = simulation.schedule, known.server_weights
    epochs, batch_size, per_epoch = schedule.epochs, schedule.batch_size, schedule.batches_per_epoch
    if not simulation.is_batched:
        labels = image_labels(labels, order)[None]
    match simulation.method.simulated:
        case Simulated.POINTS:
            return _surrogate(simulation, known, images, labels)
        case Simulated.ONE_STEP:
            return _gradient_sum(simulation, known, start, _whole_epochs(images, labels), schedule.local_steps)
        case Simulated.EPOCHS:
            same = (jnp.broadcast_to(a, (epochs, *a.shape[1:])) for a in (images, labels))
            return _gradient_sum(simulation, known, start, _whole_epochs(*same), per_epoch)
    if not simulation.method.is_separate:
        images = jnp.broadcast_to(images, (epochs, *images.shape[1:])) if order is None else images[0][order]
    used = schedule.num_used
    batches = Batches(
        in_batches(images[:, :used], batch_size),
        in_batches(labels[:, :used], batch_size),
        batch_share(epochs, used, batch_size),
    )
    if simulation.training.is_plain:
        return _gradient_sum(simulation, known, start, batches, 1)
    end = train(simulation.model, simulation.training, start, batches, known.sizes, simulation.segments)
    return _difference(simulation, known, jax.tree.map(lambda s: known.kept * s, start), end)


def _whole_epochs(images: Array, labels: Array) -> Batches:
    return Batches(images, labels, jnp.full(labels.shape, 1 / labels.shape[1]))


def _gradient_sum(
    simulation: Simulation, known: ServerKnowledge, start: Weights, batches: Batches, per_step: int
) -> Weights:
    """(start - end) / rate after steps that stand for ``per_step`` of the client's each."""
    model, training = simulation.model, simulation.training
    if training.is_plain:
        end = sgd(model, start, batches, known.rate * per_step, simulation.segments)
    else:
        rates = known.rate * known.coefficients.reshape(-1, per_step).sum(1)
        end = train(model, training.of_gradient, start, batches, StepSizes(rates, rates, rates))
    return _difference(simulation, known, start, end)


def _difference(simulation: Simulation, known: ServerKnowledge, start: Weights, end: Weights) -> Weights:
    """(start - end) / rate of all that an optimiser moves."""
    return simulation.model.trained(jax.tree.map(lambda s, e: (s - e) / known.rate, start, end))


def _surrogate(simulation: Simulation, known: ServerKnowledge, images: Array, labels: Array) -> Weights:
    """Gradients of all N images at points between the server's and the client's weights (after Zhu et al. 2023)."""
    nodes, shares = np.polynomial.legendre.leggauss(simulation.points)
    total = simulation.model.trained(jax.tree.map(jnp.zeros_like, known.server_weights))
    batches, local_steps = _whole_epochs(images, labels), simulation.schedule.local_steps
    for position, share in zip((nodes + 1) / 2, shares / 2, strict=True):
        between = jax.tree.map(
            lambda s, c, t=float(position): s + t * (c - s), known.server_weights, known.client_weights
        )
        part = _gradient_sum(simulation, known, between, batches, local_steps)
        total = jax.tree.map(lambda a, b, w=float(share): a + w * b, total, part)
    return total
