"""What a study is made of: units of work, the plan that shows them in lines, and the clients they are measured on.

A line holds the numbers of its units: means over clients with their standard errors.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain, zip_longest
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from workbench import models
from workbench.config import AttackConfig, ClientConfig, DefenceConfig, real_twin
from workbench.data import ClientData, Dataset, load_dataset
from workbench.errors import ConfigError, DataError, WorkbenchError, check_choice, check_count, shown
from workbench.settings import settings_of
from workbench.study.plan.paper import Published
from workbench.training.model import Model
from workbench.weights import Weights

__all__ = [
    "DATASETS",
    "Cohort",
    "Entry",
    "Estimate",
    "Line",
    "Place",
    "Plan",
    "Row",
    "Unit",
    "digest_of_pictures",
    "digest_of_weights",
    "network",
    "parse_clients",
]

DATASETS = ("femnist", "cifar100", "glyphs", "photos")

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
        check_choice("task", self.task, ("attack", "labels", "accuracy"))
        check_choice("labels", self.labels, ("known", "recovered", "known_per_batch"))
        if self.attack is not None and self.task == "attack" and self.labels != "recovered":
            # Where labels are known, the method to recover them does not affect the result.
            object.__setattr__(self, "attack", replace(self.attack, label_method=AttackConfig().label_method))

    @cached_property
    def settings(self) -> dict[str, Any]:
        """All fields as plain JSON values; without settings of later versions at their defaults, so that keys stay."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        for field, kind in (("client", ClientConfig), ("attack", AttackConfig)):
            for name, known in settings_of(kind).items():
                if known.since and plain[field] is not None and plain[field][name] == known.default:
                    del plain[field][name]
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
    content = b"".join(array.tobytes() for client in clients for array in (client.images, client.labels))
    return hashlib.sha256(content).hexdigest()[:16]


def digest_of_weights(weights: Weights) -> str:
    """A digest of all arrays and their names."""
    content = b"".join(
        f"{layer}/{name}".encode() + np.asarray(array).tobytes()
        for layer, arrays in sorted(weights.items())
        for name, array in sorted(arrays.items())
    )
    return hashlib.sha256(content).hexdigest()[:16]


@dataclass(frozen=True)
class Place:
    """Where a unit finds its files on the machine that measures it; not part of the unit's settings.

    Attributes:
        data: the files of the data set; None for a bundled one.
        weights: files with trained weights.
        device: as for `AttackSession`.
        pictures: the folder for the pictures that attacks reconstruct; None stores none.
    """

    data: str | None = None
    weights: tuple[str, ...] = ()
    device: str = "auto"
    pictures: str | None = None

    def dataset(self, name: str) -> Dataset:
        return _load_dataset(name, path=self.data)


_load_dataset = lru_cache(maxsize=4)(load_dataset)


@lru_cache(maxsize=2**14)
def _digest_of_clients(place: Place, dataset: str, clients: tuple[int, ...], num_images: int) -> str:
    return digest_of_pictures(place.dataset(dataset).client(index, num_images) for index in clients)


@lru_cache(maxsize=16)
def network(name: str, num_classes: int, image_shape: tuple[int, int, int]) -> Model:
    """A built-in network for a data set."""
    options = {"image_shape": image_shape} if name == "mlp" else {}
    return models.build(name, num_classes=num_classes, **options)


@dataclass(frozen=True)
class Entry:
    """One line of a table: a method in a setting, measured on several clients.

    Attributes:
        setting: its name, e.g. ``10x5x50``.
        method: its name, e.g. ``ours_prior``.
        units: one for each client and seed.
        published: what the paper reports for this line.
        is_wanted: whether to measure missing units; otherwise only stored results are shown.
    """

    setting: str
    method: str
    units: tuple[Unit, ...]
    published: Published
    is_wanted: bool = True


@dataclass(frozen=True)
class Plan:
    """A table to measure.

    Attributes:
        title: the table's heading.
        measure: ``images``, ``labels`` or ``seconds``: which numbers are shown.
        entries: in the order in which they are shown.
        place: where the units find their files.
        notes: sentences below the table.
    """

    title: str
    measure: str
    entries: tuple[Entry, ...]
    place: Place
    notes: tuple[str, ...] = ()

    @property
    def units(self) -> list[Unit]:
        """The units to measure, each once; client by client, to compare methods early."""
        turns = zip_longest(*(entry.units for entry in self.entries if entry.is_wanted))
        return list({unit.key: unit for unit in chain(*turns) if unit is not None}.values())

    @property
    def shown_units(self) -> dict[str, Unit]:
        """Every unit that the table shows, by key and in the table's order."""
        return {unit.key: unit for entry in self.entries for unit in entry.units}

    def measured(self, keys: Container[str]) -> Plan:
        """The part of the plan whose units are among the keys."""
        done = [replace(e, units=tuple(unit for unit in e.units if unit.key in keys)) for e in self.entries]
        return replace(self, entries=tuple(entry for entry in done if entry.units))


@dataclass(frozen=True)
class Estimate:
    """A mean over clients, and its standard error where there are several."""

    mean: float
    error: float | None = None

    def text(self, digits: int) -> str:
        """E.g. ``21.50 ± 0.65``; a whole number is shown without its error."""
        return f"{self.mean:.{digits}f}" + (f" ± {self.error:.{digits}f}" if self.error is not None and digits else "")


@dataclass(frozen=True)
class Line:
    """One line of a table with the rows measured so far."""

    entry: Entry
    rows: tuple[Row, ...]

    def estimate(self, measure: str) -> Estimate | None:
        """The mean over clients of one measure; several seeds of a client count as one value, their mean.

        The measure ``deviation`` is the standard deviation of label errors over all units, as the paper reports it.
        What the paper reports for a measure is a measure too, ``paper_psnr`` for ``psnr``.
        """
        if measure.startswith("paper_"):
            number = self.entry.published.get(measure.removeprefix("paper_"))
            return None if number is None else Estimate(number)
        by_client: dict[tuple[int, ...], list[float]] = {}
        for (*clients, _), value in self.values(measure).items():
            by_client.setdefault(tuple(clients), []).append(value)
        if measure == "deviation":
            values = list(chain(*by_client.values()))
            return Estimate(stdev(values)) if len(values) > 1 else None
        means = [mean(values) for values in by_client.values()]
        if not means:
            return None
        return Estimate(mean(means), stdev(means) / math.sqrt(len(means)) if len(means) > 1 else None)

    def values(self, measure: str) -> dict[tuple[int, ...], float]:
        """One value for each row, by its clients and seed; a row without the measure is left out."""
        found = {
            (*row["settings"]["clients"], row["settings"]["seed"]): _value(row, measure, self.entry.method)
            for row in self.rows
        }
        return {place: value for place, value in found.items() if value is not None}

    @property
    def units_text(self) -> str:
        """How many units are measured, e.g. ``3/4 (1 diverged)``."""
        diverged = sum(row["outcome"] != "finished" for row in self.rows)
        return f"{len(self.rows)}/{len(self.entry.units)}" + (f" ({diverged} diverged)" if diverged else "")


# Measures whose name in a row differs.
_ROW_NAMES = {
    "recovered": "recovered_percent",
    "accuracy": "accuracy_percent",
    "errors": "label_errors",
    "deviation": "label_errors",
}


def _value(row: Row, measure: str, method: str) -> float | None:
    value = row.get(_ROW_NAMES.get(measure, measure))
    if isinstance(value, dict):
        # The label errors of several methods.
        value = value.get(method)
    if isinstance(value, list):
        # One value for each image, None where it is not finite.
        finite = [one for one in value if one is not None]
        value = mean(finite) if finite else None
    return value


class Cohort:
    """The clients of a study with the network that they train and the seeds to repeat everything with.

    Attributes:
        dataset: its name.
        twin: the real data set whose settings are used: ``femnist`` for ``glyphs``, ``cifar100`` for ``photos``.
        place: where units find their files.
        num_clients: of the whole data set.
        indices: the clients to measure.
        model: the network.
    """

    def __init__(
        self,
        dataset: str,
        data: Path | None,
        model: str | None,
        clients: int | str | Sequence[int],
        seeds: Sequence[int],
    ) -> None:
        self.dataset = check_choice("dataset", dataset, DATASETS)
        if not isinstance(seeds, Sequence) or isinstance(seeds, str) or not seeds:
            raise ConfigError(f"seeds = {shown(seeds)} must be a list of whole numbers, such as [0, 1, 2].")
        self._seeds = [check_count("seed", seed, minimum=0) for seed in seeds]
        self.twin = real_twin(dataset)
        self.place = Place(data=None if data is None else str(Path(data)))
        source = self.place.dataset(dataset)
        self.num_clients = source.num_clients
        self.indices = parse_clients(clients, self.num_clients)
        self.model = network(model or f"{self.twin}_cnn", source.num_classes, source.image_shape)

    def groups(self, size: int = 1) -> list[tuple[int, ...]]:
        """Every client with the next ones, ``size`` in all; the first client follows the last."""
        if size > self.num_clients:
            raise ConfigError(f"an aggregate of {size} needs as many clients; the data set has {self.num_clients}.")
        return [tuple((index + step) % self.num_clients for step in range(size)) for index in self.indices]

    def units(self, groups: Sequence[tuple[int, ...]], num_images: int, **settings: Any) -> tuple[Unit, ...]:
        """One unit for each seed and group of clients; ``settings`` are further fields of `Unit`."""
        return tuple(
            Unit(
                dataset=self.dataset,
                pictures=_digest_of_clients(self.place, self.dataset, group, num_images),
                clients=group,
                num_images=num_images,
                network=self.model.name,
                seed=seed,
                **settings,
            )
            for seed in self._seeds
            for group in groups
        )


def parse_clients(clients: int | str | Sequence[int], most: int) -> list[int]:
    """Client indices from a count, a text such as ``3-5,9``, or a list.

    >>> parse_clients(3, most=100), parse_clients("3-5,9", most=100)
    ([0, 1, 2], [3, 4, 5, 9])
    """
    if isinstance(clients, str) and clients.strip().isdecimal():
        return parse_clients(int(clients), most)
    if isinstance(clients, str):
        parts = [re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part) for part in clients.split(",")]
        ranges = [range(int(part[1]), int(part[2] or part[1]) + 1) for part in parts if part]
        chosen = list(chain(*ranges)) if all(parts) else []
    elif isinstance(clients, Sequence):
        chosen = [check_count("client", client, minimum=0) for client in clients]
    else:
        chosen = list(range(check_count("clients", clients)))
    if not chosen or max(chosen) >= most or len(set(chosen)) < len(chosen):
        raise ConfigError(
            f"clients = {shown(clients)} must be a number of clients up to {most}, or some of 0 to {most - 1} such as "
            "3-5,9, each once."
        )
    return chosen
