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

Letters in shapes: A clients, E epochs, V epochs with variables of their own (E or 1), N images, H, W, C.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from workbench.training.model import Model
from workbench.training.sgd import Batches, batch_share, in_batches, sgd
from workbench.training.weights import Weights

__all__ = ["Client", "Simulation", "image_labels", "simulate"]

_SEPARATE = ("ours_prior", "ours_no_prior")


@dataclass(frozen=True)
class Simulation:
    """What is simulated: everything that decides the shape of the computation.

    Attributes:
        method: which of the six.
        epochs: E, as the attacker believes it.
        batch_size: m, as the attacker believes it.
        num_images: N of each client.
        points: of the surrogate, on the segment between the weights.
        segments: parts of the simulation whose inside is computed again on the way back (`training.sgd`).
    """

    model: Model
    method: str
    epochs: int
    batch_size: int
    num_images: int
    points: int = 2
    segments: int = 1

    @property
    def is_separate(self) -> bool:
        """Whether every epoch has images of its own, in the order of its batches."""
        return self.method in _SEPARATE

    @property
    def num_variable_epochs(self) -> int:
        """V: how many sets of images are optimised."""
        return self.epochs if self.is_separate else 1

    @property
    def batches_per_epoch(self) -> int:
        """B."""
        return -(-self.num_images // self.batch_size)

    @property
    def local_steps(self) -> int:
        """U."""
        return self.epochs * self.batches_per_epoch

    @property
    def is_batched(self) -> bool:
        """Whether the client's batches are simulated one by one."""
        return self.is_separate or self.method == "shared"

    @property
    def num_simulated_steps(self) -> tuple[int, int]:
        """How many local steps one client's simulation makes, and the images of each."""
        if self.is_batched:
            return self.local_steps, self.batch_size
        return {"fedsgd_epoch": self.epochs, "fedsgd": 1, "surrogate": self.points}[self.method], self.num_images

    @property
    def num_variable_batches(self) -> int:
        """The batches that the variables make: what the update distance is divided by."""
        return self.num_variable_epochs * self.batches_per_epoch


@dataclass(frozen=True, eq=False)
class Client:
    """What the server knows, as arrays: a JAX pytree.

    Attributes:
        server_weights: where the simulation starts.
        client_weights: where the client ended.
        rate: the client's learning rate.
        labels: [A, E, N] assigned to the positions of every epoch.
        order: [A, E, N] which image stands at which position, for methods with one set of images; None for the same
            order in every epoch.
    """

    server_weights: Weights
    client_weights: Weights
    rate: Array
    labels: Array
    order: Array | None


jax.tree_util.register_dataclass(Client)


def simulate(simulation: Simulation, client: Client, images: Array) -> Weights:
    """The sum of the gradients of training on normalised images [A, V, N, H, W, C], its mean over the clients."""
    if len(images) == 1:
        order = None if client.order is None else client.order[0]
        return _simulate_one(simulation, client, images[0], client.labels[0], order)
    # One client after another: side by side they would need a convolution kernel each.
    sums = lax.map(lambda xs: _simulate_one(simulation, client, *xs), (images, client.labels, client.order))
    return jax.tree.map(lambda g: g.mean(0), sums)


def image_labels(labels: Array, order: Array | None) -> Array:
    """[E, N] labels by position to [N] labels by image, for methods with one set of images."""
    return labels[0] if order is None else labels[0][jnp.argsort(order[0])]


def _simulate_one(simulation: Simulation, client: Client, images: Array, labels: Array, order: Array | None) -> Weights:
    start, rate = client.server_weights, client.rate
    if not simulation.is_batched:
        labels = image_labels(labels, order)[None]
    if simulation.method == "surrogate":
        return _surrogate(simulation, client, images, labels)
    if simulation.method == "fedsgd":
        return _gradient_sum(simulation.model, start, _whole_epochs(images, labels), rate, simulation.local_steps)
    if simulation.method == "fedsgd_epoch":
        same = (jnp.broadcast_to(a, (simulation.epochs, *a.shape[1:])) for a in (images, labels))
        return _gradient_sum(simulation.model, start, _whole_epochs(*same), rate, simulation.batches_per_epoch)
    if simulation.method == "shared":
        images = jnp.broadcast_to(images, (simulation.epochs, *images.shape[1:])) if order is None else images[0][order]
    batches = Batches(
        in_batches(images, simulation.batch_size),
        in_batches(labels, simulation.batch_size),
        batch_share(simulation.epochs, simulation.num_images, simulation.batch_size),
    )
    return _gradient_sum(simulation.model, start, batches, rate, 1, simulation.segments)


def _whole_epochs(images: Array, labels: Array) -> Batches:
    return Batches(images, labels, jnp.full(labels.shape, 1 / labels.shape[1]))


def _gradient_sum(
    model: Model, start: Weights, batches: Batches, rate: Array, scale: int, segments: int = 1
) -> Weights:
    """(start - end) / rate after steps whose gradients are multiplied by the scale."""
    end = sgd(model, start, batches, rate * scale, segments)
    return jax.tree.map(lambda s, e: (s - e) / rate, start, end)


def _surrogate(simulation: Simulation, client: Client, images: Array, labels: Array) -> Weights:
    """A few gradients of all N images on the way from the server's to the client's weights (after Zhu et al. 2023)."""
    nodes, shares = np.polynomial.legendre.leggauss(simulation.points)
    total = jax.tree.map(jnp.zeros_like, client.server_weights)
    for position, share in zip((nodes + 1) / 2, shares / 2, strict=True):
        between = jax.tree.map(
            lambda s, c, t=float(position): s + t * (c - s), client.server_weights, client.client_weights
        )
        part = _gradient_sum(
            simulation.model, between, _whole_epochs(images, labels), client.rate, simulation.local_steps
        )
        total = jax.tree.map(lambda a, b, w=float(share): a + w * b, total, part)
    return total
