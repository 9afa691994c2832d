"""Whose update is attacked, as the command line and the panel name it: a data set, a client and its training."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from workbench import models
from workbench.config import USUAL_STRENGTHS, AttackConfig, ClientConfig
from workbench.data import ClientData, dataset_from_folder, load_dataset
from workbench.errors import ConfigError
from workbench.federated import Observation, aggregate, client_update
from workbench.settings import setting, settings_of
from workbench.training.local import PLAIN

__all__ = ["DATASETS", "LESSON", "NETWORKS", "Target", "is_same_update"]

DATASETS = ("glyphs", "photos", "femnist", "cifar100", "folder")
NETWORKS = ("femnist_cnn", "cifar100_cnn", "femnist_cnn_printed", "cifar100_cnn_printed", "mlp")


@dataclass(frozen=True)
class Target:
    """The client whose update is attacked, or the clients whose mean is."""

    dataset: str = setting(
        "glyphs",
        "Data set",
        "Where the client's images come from; glyphs and photos are bundled.",
        choices=DATASETS,
    )
    data: Path | None = setting(
        None,
        "Files",
        "Files of a data set that is not bundled; for 'folder', a folder with one sub-folder of images per class.",
    )
    index: int = setting(0, "Client", "Which client, counted from 0.", minimum=0, option="client", aliases=("-c",))
    num_clients: int = setting(
        1,
        "Clients",
        "How many clients the server averages, from the chosen one on; it sees only the mean of their weights.",
        section="Appendix C.5",
        minimum=1,
    )
    num_images: int = setting(
        16, "Images N", "Images of each client.", symbol="N", section="Section 3.1", minimum=1, aliases=("-n",)
    )
    num_classes: int | None = setting(
        None,
        "Classes",
        "Take only so many classes, the client's most frequent ones, with equally many images of each; unset takes "
        "images of any class.",
        minimum=1,
        option="classes",
    )
    network: str | None = setting(
        None,
        "Network",
        "Network that is trained, if not the one for the data set.",
        section="Appendix B.1",
        choices=NETWORKS,
        option="model",
    )
    seed: int = setting(0, "Seed", "Seed of the network, the client's batches and the attack.", minimum=0)
    client: ClientConfig = ClientConfig()

    def __post_init__(self) -> None:
        for name, known in settings_of(Target).items():
            object.__setattr__(self, name, known.check(getattr(self, name), known.key))
        defence = self.client.defence
        if defence.name != "none" and not defence.strength:
            usual = USUAL_STRENGTHS[defence.name]
            raise ConfigError(f"strength = 0 makes {defence.name!r} no defence; choose one above 0, such as {usual:g}.")

    def config(self, preset: str, changes: dict[str, Any]) -> AttackConfig:
        """A preset for this kind of pictures, with changes."""
        like = {"cifar100": "cifar100", "photos": "cifar100", "folder": "cifar100"}.get(self.dataset, "femnist")
        return AttackConfig.preset(preset, dataset=like, **changes)

    def load(self) -> tuple[models.Model, list[ClientData]]:
        """The network and the clients."""
        if self.dataset != "folder":
            dataset = load_dataset(self.dataset, path=self.data)
        elif self.data is None:
            raise ConfigError("dataset = 'folder' needs --data PATH, a folder with one sub-folder of pictures a class.")
        else:
            dataset = dataset_from_folder(self.data, images_per_client=self.num_images)
        name = self.network or ("femnist_cnn" if dataset.image_shape == (28, 28, 1) else "cifar100_cnn")
        options = {"image_shape": dataset.image_shape} if name == "mlp" else {}
        model = models.build(name, num_classes=dataset.num_classes, **options)
        indices = range(self.index, self.index + self.num_clients)
        return model, [dataset.client(index, self.num_images, num_classes=self.num_classes) for index in indices]

    def observe(self, model: models.Model, clients: Sequence[ClientData]) -> Observation:
        """What the server sees: of several clients, their aggregate."""
        weights = model.init(self.seed)
        updates = [
            client_update(model, weights, client, self.client, seed=self.seed + number)
            for number, client in enumerate(clients)
        ]
        return updates[0] if len(updates) == 1 else aggregate(updates)

    @property
    def description(self) -> str:
        """In words."""
        clients = f"client {self.index} of {self.dataset}"
        if self.num_clients > 1:
            clients = f"the mean of clients {self.index} to {self.index + self.num_clients - 1} of {self.dataset}"
        defence = "" if self.client.defence.name == "none" else f", {self.client.defence}"
        classes = "" if self.num_classes is None else f" of {self.num_classes} classes"
        training = "" if self.client.local == PLAIN else f", {self.client.description}"
        return (
            f"{clients}: {self.num_images} images{classes}, {self.client.epochs} epochs, batches of "
            f"{self.client.batch_size}, rate {self.client.learning_rate:g}{training}{defence}"
        )


# A client for the preset lesson: three images each of 1, 4, 7 and S, which change places between epochs. Chosen
# to demonstrate this: of the first twelve writers, this one's images of a class differ most from each other.
LESSON = Target(index=4, num_images=12, num_classes=4, network="mlp", client=ClientConfig(epochs=8, batch_size=6))


def is_same_update(first: Observation, second: Observation) -> bool:
    """Equal but for rounding, which differs between machines."""
    ours, theirs = (
        [np.asarray(leaf) for leaf in jax.tree.leaves(observation.gradient_sum)] for observation in (first, second)
    )
    if [leaf.shape for leaf in ours] != [leaf.shape for leaf in theirs]:
        return False
    apart = sum(float(((a - b) ** 2).sum()) for a, b in zip(ours, theirs, strict=True))
    return apart < 1e-4 * sum(float((a**2).sum()) for a in ours)
