"""A plan: the units of a table, the lines in which their results are shown, and where the units find their files."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace
from functools import lru_cache

from workbench import models
from workbench.data import Dataset, load_dataset
from workbench.study.plan.paper import Published
from workbench.study.plan.units import Unit
from workbench.training.model import Model

__all__ = ["Entry", "Place", "Plan", "network"]


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
        return _dataset(name, self.data)


@lru_cache(maxsize=4)
def _dataset(name: str, path: str | None) -> Dataset:
    return load_dataset(name, path=path)


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
        wanted = [entry.units for entry in self.entries if entry.is_wanted]
        longest = max(map(len, wanted), default=0)
        turns = [units[turn] for turn in range(longest) for units in wanted if turn < len(units)]
        return list({unit.key: unit for unit in turns}.values())

    @property
    def shown_units(self) -> dict[str, Unit]:
        """Every unit that the table shows, by key and in the table's order."""
        return {unit.key: unit for entry in self.entries for unit in entry.units}

    def measured(self, keys: Container[str]) -> Plan:
        """The part of the plan whose units are among the keys."""
        done = [replace(e, units=tuple(unit for unit in e.units if unit.key in keys)) for e in self.entries]
        return replace(self, entries=tuple(entry for entry in done if entry.units))
