"""What the server observes of a client's training."""

import os
import warnings
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax

from workbench.config import ClientConfig
from workbench.data.dataset import Normalization
from workbench.errors import ConfigError, DataError, check_count, check_kind, check_number, shown
from workbench.federated.updates import weights_of_update
from workbench.files.audit import read_audit_file
from workbench.settings import settings_of
from workbench.training.local import PLAIN, LocalTraining
from workbench.training.model import Model, check_image_shape
from workbench.training.optimizer import Response, response
from workbench.training.schedule import Schedule
from workbench.weights import Weights, check_shapes, check_weights, shapes_of

__all__ = ["Observation"]

# Usual names of settings in the configuration that a federation sends.
_ALIASES = {"lr": "learning_rate", "local_epochs": "epochs"}


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
        learning_rate: of the client's optimiser.
        num_clients: A, the number of clients in the aggregate.
        training: the optimiser and what belongs to it; plain SGD unless given. A `ClientConfig` is reduced to that.
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
    training: LocalTraining = PLAIN

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
            "training": check_kind("training", self.training, LocalTraining).local,
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if self.image_shape[-1] != len(self.normalization.mean):
            raise ConfigError(
                f"image_shape = {self.image_shape} has {self.image_shape[-1]} channels but the normalization has "
                f"{len(self.normalization.mean)}; they must agree."
            )
        check_shapes(self.client_weights, "client_weights", shapes_of(self.server_weights), "server_weights")
        self.training.step_sizes(self.learning_rate, self.schedule)

    @staticmethod
    def from_updates(
        model: Model,
        before: Any,
        after: Any,
        training: ClientConfig,
        *,
        num_images: int,
        normalization: Normalization | tuple[tuple[float, ...], tuple[float, ...]],
        sends: str = "weights",
        num_clients: int = 1,
    ) -> "Observation":
        """An observation from the arrays that another framework sent.

        Args:
            model: the network.
            before: what the server sent: the path of a ``.safetensors`` or ``.npz`` file, ``{name: array}``, a list of
                arrays in the order of the state dict, or an ``ArrayRecord`` or ``Parameters`` of Flower. Names and
                layouts are the network's or torch's.
            after: what the client sent back, likewise.
            training: how the client trained.
            num_images: N, per client.
            normalization: how pixels became network inputs, or its (mean, std), each with one number per channel.
            sends: ``"weights"``, or ``"delta"`` for a client that sends what it adds to the server's weights.
            num_clients: A, the number of clients in an aggregate.
        """
        check_kind("model", model, Model)
        check_kind("training", training, ClientConfig)
        if not isinstance(normalization, Normalization):
            if not isinstance(normalization, tuple | list) or len(normalization) != 2:
                raise ConfigError(
                    f"normalization = {shown(normalization)} must be (mean, std), one number per channel."
                )
            normalization = Normalization(*normalization)
        server_weights, client_weights = weights_of_update(model, before, after, sends)
        return Observation(
            server_weights=server_weights,
            client_weights=client_weights,
            image_shape=model.image_shape,
            num_classes=model.num_classes,
            normalization=normalization,
            num_images=num_images,
            epochs=training.epochs,
            batch_size=training.batch_size,
            learning_rate=training.learning_rate,
            num_clients=num_clients,
            training=training.local,
        )

    @staticmethod
    def from_audit_file(
        model: Model,
        path: str | os.PathLike[str],
        training: ClientConfig,
        *,
        normalization: Normalization | tuple[tuple[float, ...], tuple[float, ...]],
        client: str | int = 0,
        num_images: int | None = None,
        sends: str = "weights",
    ) -> "Observation":
        """An observation from a round that `workbench.auditing.flower` recorded; see `from_updates`.

        Args:
            path: the file.
            client: the federation's id of the client, or its place in the file.
            num_images: N, if the client did not say it or it is not right.

        A setting that the server sent to the client and that ``training`` contradicts is a warning.
        """
        check_kind("training", training, ClientConfig)
        one = read_audit_file(path).client(client)
        num_images = one.num_images if num_images is None else num_images
        if num_images is None:
            raise DataError(f"client {shown(one.id)} did not say on how many images it trained; give num_images.")
        for name, value in one.config.items():
            known = _ALIASES.get(name, name)
            if known in settings_of(ClientConfig) and getattr(training, known) != value:
                warnings.warn(
                    f"the server sent {shown(one.id)} {name} = {shown(value)}; training has {known} = "
                    f"{getattr(training, known)}.",
                    stacklevel=2,
                )
        return Observation.from_updates(
            model, one.sent, one.received, training, num_images=num_images, normalization=normalization, sends=sends
        )

    @property
    def schedule(self) -> Schedule:
        """N, E and m, and what follows from them."""
        return Schedule(self.num_images, self.epochs, self.batch_size, self.training.drop_last)

    @property
    def batches_per_epoch(self) -> int:
        """B, including a smaller last batch."""
        return self.schedule.batches_per_epoch

    @property
    def local_steps(self) -> int:
        """U = E * B."""
        return self.schedule.local_steps

    @cached_property
    def response(self) -> Response:
        """What the update holds of every gradient, and what it keeps of the server's weights."""
        return response(self.training, self.learning_rate, self.schedule)

    @property
    def gradient_sum(self) -> Weights:
        """(kept * server - client) / learning rate: the sum of the gradients of all local steps.

        Plain SGD keeps all of the server's weights, and weight decay a known share of them. Every gradient counts as
        `response` says. Only Adam's update is no such sum; this is then the sum of its steps.
        """
        kept = self.response.kept
        return jax.tree.map(lambda s, c: (kept * s - c) / self.learning_rate, self.server_weights, self.client_weights)
