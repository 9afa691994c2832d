"""The unit of work: one method on one client (or aggregate) in one setting, told completely by its settings."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from workbench.config import AttackConfig, ClientConfig, DefenceConfig
from workbench.data.dataset import ClientData
from workbench.errors import DataError, WorkbenchError, check_choice, shown
from workbench.training.weights import Weights

__all__ = ["TASKS", "Unit", "digest_of_pictures", "digest_of_weights"]

TASKS = ("attack", "labels", "accuracy")
LABELS = ("known", "recovered", "known_per_batch")


@dataclass(frozen=True)
class Unit:
    """Everything that decides a result, and nothing else: where files are and how units are run is not part of it.

    Attributes:
        task: ``attack`` an update, recover ``labels`` by formulas alone, or train for an ``accuracy``.
        dataset: its name.
        pictures: a digest of the clients' pictures: another file of the same name is another unit.
        clients: one client, or all of an aggregate.
        num_images: N of each.
        network: the name of a built-in one.
        weights: a digest of trained weights; None for fresh ones from the seed.
        client: how each client trains.
        labels: ``known`` counts, ``recovered`` ones, or counts ``known_per_batch``.
        attack: how the update is attacked.
        label_methods: of the task ``labels``; those of one unit share all that costs time.
        rounds: of the task ``accuracy``.
        seed: of the network, the clients' batches, and the attack.
    """

    task: str
    dataset: str
    pictures: str
    clients: tuple[int, ...]
    num_images: int
    network: str
    client: ClientConfig
    weights: str | None = None
    labels: str = "known"
    attack: AttackConfig | None = None
    label_methods: tuple[str, ...] = ()
    rounds: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("task", self.task, TASKS)
        check_choice("labels", self.labels, LABELS)
        if self.attack is not None and self.task == "attack" and self.labels != "recovered":
            # How labels would have been recovered decides nothing where they are known.
            object.__setattr__(self, "attack", replace(self.attack, label_method=AttackConfig().label_method))

    @cached_property
    def settings(self) -> dict[str, Any]:
        """As plain JSON values."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["client"] = asdict(self.client)
        values["attack"] = self.attack and asdict(self.attack)
        plain: dict[str, Any] = json.loads(json.dumps(values))
        return plain

    @cached_property
    def key(self) -> str:
        """A digest of the settings: the same settings, the same key, in any order and on any machine."""
        text = json.dumps(self.settings, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @staticmethod
    def from_settings(settings: dict[str, Any]) -> Unit:
        """The unit with these settings; what they do not name has its default."""
        try:
            values = dict(settings)
            client = dict(values.pop("client"))
            values["client"] = ClientConfig(**{**client, "defence": DefenceConfig(**client.get("defence", {}))})
            attack = values.pop("attack", None)
            values["attack"] = attack and AttackConfig(**attack)
            values["clients"] = tuple(values["clients"])
            values["label_methods"] = tuple(values.get("label_methods", ()))
            return Unit(**values)
        except (TypeError, KeyError, ValueError, WorkbenchError) as error:
            raise DataError(f"settings = {shown(settings)} are not those of a unit: {error}.") from None


def digest_of_pictures(clients: list[ClientData]) -> str:
    """Of images and labels, as the clients train on them."""
    digest = hashlib.sha256()
    for client in clients:
        digest.update(client.images.tobytes())
        digest.update(client.labels.tobytes())
    return digest.hexdigest()[:16]


def digest_of_weights(weights: Weights) -> str:
    """Of all arrays and their names."""
    digest = hashlib.sha256()
    for layer, arrays in sorted(weights.items()):
        for name, array in sorted(arrays.items()):
            digest.update(f"{layer}/{name}".encode())
            digest.update(np.asarray(array).tobytes())
    return digest.hexdigest()[:16]
