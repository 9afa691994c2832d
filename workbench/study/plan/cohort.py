"""The clients of a study, and the units that measure a setting on each of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from workbench.config import real_twin
from workbench.errors import ConfigError, check_choice, check_count, shown
from workbench.study.plan.plan import Place, network
from workbench.study.plan.units import Unit, digest_of_pictures

__all__ = ["DATASETS", "Cohort", "parse_clients"]

DATASETS = ("femnist", "cifar100", "glyphs", "photos")


class Cohort:
    """The clients of a study with the network that they train and the seeds to repeat everything with.

    Attributes:
        dataset: its name.
        twin: the real data set whose settings are used: ``femnist`` for ``glyphs``, ``cifar100`` for ``photos``.
        place: where units find their files.
        num_clients: of the whole data set.
        indices: the clients to measure.
        network: the name of the network; ``model`` is the network itself.
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
        self.network = model or f"{self.twin}_cnn"
        self.model = network(self.network, source.num_classes, source.image_shape)

        @cache
        def digest(group: tuple[int, ...], num_images: int) -> str:
            return digest_of_pictures([source.client(index, num_images) for index in group])

        self._digest = digest

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
                pictures=self._digest(group, num_images),
                clients=group,
                num_images=num_images,
                network=self.network,
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
    right = f"a number of clients up to {most}, or some of 0 to {most - 1} such as 3-5,9"
    if isinstance(clients, str):
        if clients.strip().isdecimal():
            return parse_clients(int(clients), most)
        parts = [re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part) for part in clients.split(",")]
        chosen = [i for part in parts if part for i in range(int(part[1]), int(part[2] or part[1]) + 1)]
        if not all(parts):
            raise ConfigError(f"clients = {shown(clients)} must be {right}.")
    elif isinstance(clients, Sequence):
        chosen = [check_count("client", client, minimum=0) for client in clients]
    else:
        chosen = list(range(check_count("clients", clients)))
    if not chosen or max(chosen) >= most or len(set(chosen)) < len(chosen):
        raise ConfigError(f"clients = {shown(clients)} must be {right}, each once.")
    return chosen
