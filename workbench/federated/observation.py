"""What the server observes of a client's training."""

from dataclasses import dataclass, field
from typing import Any

import jax

from workbench.data.dataset import Normalization
from workbench.errors import ConfigError, check_count, check_kind, check_number
from workbench.training.model import check_image_shape
from workbench.training.schedule import Schedule
from workbench.weights import Weights, check_shapes, check_weights, shapes_of

__all__ = ["Observation"]


@dataclass(frozen=True, eq=False)
class Observation:
    """The weights sent to a client, the weights it returned, and what the server knows about its training.

    For an aggregate of several clients, ``client_weights`` is the mean of their weights.

    Attributes:
        server_weights: before the client's local training.
        client_weights: after it.
        image_shape: (H, W, C) of the client's images.
        num_classes: K.
        normalization: how pixels become network inputs.
        num_images: N, per client.
        epochs: E.
        batch_size: m.
        learning_rate: of the client's SGD.
        num_clients: A, the number of clients in the aggregate.
    """

    server_weights: Weights = field(repr=False)
    client_weights: Weights = field(repr=False)
    image_shape: tuple[int, int, int]
    num_classes: int
    normalization: Normalization
    num_images: int
    epochs: int
    batch_size: int
    learning_rate: float
    num_clients: int = 1

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {
            **{name: check_count(name, getattr(self, name)) for name in ("num_images", "epochs", "num_clients")},
            "image_shape": check_image_shape(self.image_shape),
            "num_classes": check_count("num_classes", self.num_classes, minimum=2),
            "normalization": check_kind("normalization", self.normalization, Normalization),
            "batch_size": check_count("batch_size", self.batch_size, maximum=self.num_images),
            "learning_rate": check_number("learning_rate", self.learning_rate, above=0),
            "server_weights": check_weights(self.server_weights, "server_weights"),
            "client_weights": check_weights(self.client_weights, "client_weights"),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if self.image_shape[-1] != len(self.normalization.mean):
            raise ConfigError(
                f"image_shape = {self.image_shape} has {self.image_shape[-1]} channels but the normalization has "
                f"{len(self.normalization.mean)}; they must agree."
            )
        check_shapes(self.client_weights, "client_weights", shapes_of(self.server_weights), "server_weights")

    @property
    def schedule(self) -> Schedule:
        """N, E and m, and what follows from them."""
        return Schedule(self.num_images, self.epochs, self.batch_size)

    @property
    def batches_per_epoch(self) -> int:
        """B, including a smaller last batch."""
        return self.schedule.batches_per_epoch

    @property
    def local_steps(self) -> int:
        """U = E * B."""
        return self.schedule.local_steps

    @property
    def gradient_sum(self) -> Weights:
        """(server - client) / learning rate: the sum of the gradients of all local steps."""
        return jax.tree.map(lambda s, c: (s - c) / self.learning_rate, self.server_weights, self.client_weights)
