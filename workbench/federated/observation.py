"""What the server sees of a client's training, and nothing more."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import numpy as np

from workbench.chain import Weights
from workbench.data.dataset import Normalization
from workbench.errors import ConfigError, DataError, check_count, check_number

__all__ = ["Observation"]


@dataclass(frozen=True, eq=False)
class Observation:
    """The weights that went to a client, those that came back, and what the server knows of the training.

    Of an aggregate of several clients, ``client_weights`` is the mean of their weights.

    Attributes:
        server_weights: before the client's local training.
        client_weights: after it.
        image_shape: (H, W, C) of the client's pictures.
        num_classes: K.
        normalization: how pixels become network inputs.
        num_images: N, of each client.
        epochs: E.
        batch_size: m.
        learning_rate: of the client's SGD.
        num_clients: A, how many clients the update is the mean of.
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
        for name in ("num_images", "epochs", "batch_size", "num_clients"):
            object.__setattr__(self, name, check_count(name, getattr(self, name)))
        check_count("num_classes", self.num_classes, minimum=2)
        object.__setattr__(self, "learning_rate", check_number("learning_rate", self.learning_rate, above=0))
        if self.batch_size > self.num_images:
            raise ConfigError(f"batch_size = {self.batch_size} must be at most num_images = {self.num_images}.")
        if not isinstance(self.normalization, Normalization) or len(self.image_shape) != 3:
            raise ConfigError("an Observation needs an image_shape (H, W, C) and a Normalization.")
        if self.image_shape[-1] != len(self.normalization.mean):
            raise ConfigError(
                f"image_shape = {self.image_shape} has {self.image_shape[-1]} channels but the normalization has "
                f"{len(self.normalization.mean)}; they must agree."
            )
        check_same_weights(self.server_weights, self.client_weights)

    @property
    def batches_per_epoch(self) -> int:
        """B, counting a ragged last batch."""
        return -(-self.num_images // self.batch_size)

    @property
    def local_steps(self) -> int:
        """U = E * B."""
        return self.epochs * self.batches_per_epoch

    @property
    def gradient_sum(self) -> Weights:
        """(server - client) / learning rate: the sum of the gradients of all local steps."""
        return jax.tree.map(lambda s, c: (s - c) / self.learning_rate, self.server_weights, self.client_weights)


def check_same_weights(server: Weights, client: Weights) -> None:
    """Both trees must be of one network, with finite numbers only."""
    shapes = []
    for name, tree in (("server_weights", server), ("client_weights", client)):
        try:
            flat = jax.tree_util.tree_flatten_with_path(tree)[0]
            named = {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in flat}
        except (TypeError, ValueError):
            raise DataError(f"{name} must be {{layer: {{name: array}}}} with arrays of numbers.") from None
        if not named:
            raise DataError(f"{name} is empty; it must hold the arrays of a network.")
        for path, leaf in named.items():
            if not np.issubdtype(leaf.dtype, np.floating):
                raise DataError(f"{name}{path} has dtype {leaf.dtype}; weights must be floating-point numbers.")
            if not np.isfinite(leaf).all():
                raise DataError(f"{name}{path} contains NaN or infinite values; all weights must be finite.")
        shapes.append({path: leaf.shape for path, leaf in named.items()})
    for path in shapes[0].keys() | shapes[1].keys():
        here, there = shapes[0].get(path, "missing"), shapes[1].get(path, "missing")
        if here != there:
            raise DataError(
                f"server_weights{path} is {here} but client_weights{path} is {there}; both must be of one network."
            )
