"""The unit of work: one method on one client (or aggregate) in one setting, described completely by its settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from workbench.config import AttackConfig, ClientConfig, DefenceConfig
from workbench.data.dataset import ClientData
from workbench.errors import DataError, WorkbenchError, check_choice, shown
from workbench.weights import Weights

__all__ = ["LABELS", "TASKS", "Row", "Unit", "digest_of_pictures", "digest_of_weights"]

TASKS = ("attack", "labels", "accuracy")
LABELS = ("known", "recovered", "known_per_batch")

# One finished unit: its key, its settings and what was measured, as plain JSON values.
Row = dict[str, Any]


@dataclass(frozen=True)
class Unit:
    """Everything that decides a result, and nothing else: not where files are, nor how units are run.

    Attributes:
        task: ``attack`` an update, recover ``labels`` by formulas alone, or train for an ``accuracy``.
        dataset: its name.
        pictures: a digest of the clients' pictures; a file of the same name with other pictures is another unit.
        clients: one client, or all of an aggregate.
        num_images: N, the number of images of each client.
        network: the name of a built-in network.
        weights: a digest of trained weights; None for fresh ones from the seed.
        client: how each client trains.
        labels: ``known`` counts, ``recovered`` ones, or counts ``known_per_batch``.
        attack: how the update is attacked.
        label_methods: for the task ``labels``; the methods of one unit share the expensive computations.
        rounds: number of training rounds for the task ``accuracy``.
        seed: for the network, the clients' batches, and the attack.
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
            # Where labels are known, the method to recover them does not affect the result.
            object.__setattr__(self, "attack", replace(self.attack, label_method=AttackConfig().label_method))

    @cached_property
    def settings(self) -> dict[str, Any]:
        """All fields as plain JSON values."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    @cached_property
    def key(self) -> str:
        """A digest of the settings, independent of their order and of the machine."""
        text = json.dumps(self.settings, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @staticmethod
    def from_settings(settings: dict[str, Any]) -> Unit:
        """The unit with these settings; missing ones take their defaults."""
        try:
            client, attack = settings["client"], settings.get("attack")
            values = {
                **settings,
                "clients": tuple(settings["clients"]),
                "client": ClientConfig(**{**client, "defence": DefenceConfig(**client.get("defence", {}))}),
                "attack": attack and AttackConfig(**attack),
                "label_methods": tuple(settings.get("label_methods", ())),
            }
            return Unit(**values)
        except (TypeError, KeyError, ValueError, AttributeError, WorkbenchError) as error:
            raise DataError(f"settings = {shown(settings)} are not those of a unit: {error}.") from None


def digest_of_pictures(clients: Iterable[ClientData]) -> str:
    """A digest of the images and labels that the clients train on."""
    digest = hashlib.sha256()
    for client in clients:
        digest.update(client.images.tobytes())
        digest.update(client.labels.tobytes())
    return digest.hexdigest()[:16]


def digest_of_weights(weights: Weights) -> str:
    """A digest of all arrays and their names."""
    digest = hashlib.sha256()
    for layer, arrays in sorted(weights.items()):
        for name, array in sorted(arrays.items()):
            digest.update(f"{layer}/{name}".encode())
            digest.update(np.asarray(array).tobytes())
    return digest.hexdigest()[:16]
