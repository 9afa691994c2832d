"""Whose update is attacked, as a person names it: a data set, a client, its training; made ready for an attack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.config import LABEL_METHODS, AttackConfig, ClientConfig
from workbench.errors import ConfigError, check_choice, check_count

if TYPE_CHECKING:
    from workbench.data import ClientData, Dataset
    from workbench.federated import Observation
    from workbench.models import Model

__all__ = ["DATASETS", "LABEL_SOURCES", "NETWORKS", "Target", "is_same_update"]

DATASETS = ("glyphs", "photos", "femnist", "cifar100", "folder")
NETWORKS = ("femnist_cnn", "cifar100_cnn", "femnist_cnn_printed", "cifar100_cnn_printed", "mlp")
LABEL_SOURCES = ("known", *LABEL_METHODS)


@dataclass(frozen=True)
class Target:
    """The client whose update is attacked, or the clients whose mean is.

    Attributes:
        dataset: where the pictures come from; ``folder`` has one sub-folder of pictures a class.
        data: the files of a data set that is not bundled.
        index: which client, from 0.
        num_clients: how many, from ``index`` on; of several the mean is attacked.
        num_images: of each client.
        client: how it trains.
        network: None takes the one for the size of the pictures.
        seed: of the weights and the batches.
    """

    dataset: str = "glyphs"
    data: Path | None = None
    index: int = 0
    num_clients: int = 1
    num_images: int = 16
    client: ClientConfig = field(default_factory=ClientConfig)
    network: str | None = None
    seed: int = 0

    def config(self, preset: str, changes: dict[str, Any]) -> AttackConfig:
        """A preset for this kind of pictures, with changes."""
        like = {"cifar100": "cifar100", "photos": "cifar100", "folder": "cifar100"}.get(self.dataset, "femnist")
        return AttackConfig.preset(preset, dataset=like, **changes)

    def load(self) -> tuple[Model, list[ClientData]]:
        """The network and the clients."""
        from workbench import models

        check_count("num_clients", self.num_clients)
        dataset = self._dataset()
        default = "femnist_cnn" if dataset.image_shape == (28, 28, 1) else "cifar100_cnn"
        name = check_choice("model", self.network or default, NETWORKS)
        options = {"image_shape": dataset.image_shape} if name == "mlp" else {}
        model = models.build(name, num_classes=dataset.num_classes, **options)
        indices = range(self.index, self.index + self.num_clients)
        return model, [dataset.client(index, self.num_images) for index in indices]

    def _dataset(self) -> Dataset:
        from workbench.data import dataset_from_folder, load_dataset

        check_choice("dataset", self.dataset, DATASETS)
        if self.dataset != "folder":
            return load_dataset(self.dataset, path=self.data)
        if self.data is None:
            raise ConfigError("dataset = 'folder' needs --data PATH, a folder with one sub-folder of pictures a class.")
        return dataset_from_folder(self.data, images_per_client=self.num_images)

    def observe(self, model: Model, clients: Sequence[ClientData]) -> Observation:
        """What the server sees: of several clients, their aggregate."""
        from workbench.federated import aggregate, client_update

        weights = model.init(self.seed)
        updates = [
            client_update(model, weights, client, self.client, seed=self.seed + number)
            for number, client in enumerate(clients)
        ]
        return updates[0] if len(updates) == 1 else aggregate(updates)

    @property
    def told(self) -> str:
        """In words."""
        whose = f"client {self.index} of {self.dataset}"
        if self.num_clients > 1:
            whose = f"the mean of clients {self.index} to {self.index + self.num_clients - 1} of {self.dataset}"
        defence = "" if self.client.defence.name == "none" else f", {self.defence_told}"
        return (
            f"{whose}: {self.num_images} images, {self.client.epochs} epochs, batches of {self.client.batch_size}, "
            f"rate {self.client.learning_rate:g}{defence}"
        )

    @property
    def defence_told(self) -> str:
        """The defence, in words."""
        defence = self.client.defence
        if defence.name == "none":
            return "none"
        clip = "" if defence.clip_norm is None else f", clipped at {defence.clip_norm:g}"
        return f"{defence.name} of strength {defence.strength:g}{clip}"


def is_same_update(first: Observation, second: Observation) -> bool:
    """Equal but for rounding, which differs between machines."""
    import jax
    import numpy as np

    ours, theirs = (
        [np.asarray(leaf) for leaf in jax.tree.leaves(observation.gradient_sum)] for observation in (first, second)
    )
    if [leaf.shape for leaf in ours] != [leaf.shape for leaf in theirs]:
        return False
    apart = sum(float(((a - b) ** 2).sum()) for a, b in zip(ours, theirs, strict=True))
    return apart < 1e-4 * sum(float((a**2).sum()) for a in ours)
