"""A grid of one's own: a TOML file in which every list is a choice, and every combination is measured."""

from __future__ import annotations

import itertools
import os
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from workbench.config import PRESETS, AttackConfig, ClientConfig, DefenceConfig, real_twin
from workbench.errors import ConfigError, DataError, check_choice, check_count, shown
from workbench.study.plan.tables import DATASETS, Entry, Plan, parse_clients
from workbench.study.plan.units import LABELS, Unit, digest_of_pictures
from workbench.study.run.measure import Place, network

__all__ = ["plan_sweep"]

_TOP = ("title", "dataset", "data", "clients", "num_images", "seeds", "labels", "preset", "model")
_SECTIONS = {
    "client": [field.name for field in fields(ClientConfig) if field.name != "defence"],
    "defence": [field.name for field in fields(DefenceConfig)],
    "attack": [field.name for field in fields(AttackConfig)],
}


def plan_sweep(path: str | os.PathLike[str], *, device: str = "auto") -> Plan:
    """The units of a grid.

    The file says what is common, and lists what varies::

        dataset = "glyphs"      # data = "PATH" where it is not bundled
        clients = 2             # or "3-5,9"
        num_images = 16
        labels = "known"        # or "recovered"
        preset = "paper"        # what [attack] changes
        seeds = [0]

        [client]
        epochs = [1, 4]
        batch_size = 4

        [defence]
        name = "gaussian"
        strength = [0.0, 0.01]

        [attack]
        method = ["ours_prior", "shared"]
        steps = 50

    Args:
        path: of the file; ``data`` in it is relative to it.
        device: as for `AttackSession`.
    """
    file, grid = Path(path), _read(Path(path))
    top = {name: value for name, value in grid.items() if name not in _SECTIONS}
    for name in top:
        check_choice(f"{file.name}: setting", name, (*_TOP, *_SECTIONS))
    dataset = check_choice("dataset", top.get("dataset", "glyphs"), DATASETS)
    data = top.get("data")
    place = Place(data=None if data is None else str(file.parent / str(data)), device=device)
    source = place.dataset(dataset)
    like = real_twin(dataset)
    name = str(top.get("model") or f"{like}_cnn")
    network(name, source.num_classes, source.image_shape)
    indices = parse_clients(top.get("clients", 1), source.num_clients)
    seeds = _choices(top.get("seeds", [0]))
    preset = check_choice("preset", top.get("preset", "paper"), PRESETS)

    axes: dict[tuple[str, str], list[Any]] = {
        ("", "num_images"): _choices(top.get("num_images", 50)),
        ("", "labels"): [check_choice("labels", labels, LABELS) for labels in _choices(top.get("labels", "known"))],
    }
    for section, known in _SECTIONS.items():
        for setting, value in _section(file, grid, section).items():
            check_choice(f"{file.name}: [{section}]", setting, known)
            axes[section, setting] = _pairs(value) if setting == "update_weight" else _choices(value)
    varied = [axis for axis, values in axes.items() if len(values) > 1 and axis != ("attack", "method")]

    entries = []
    for chosen in _combinations(axes):
        by_section: dict[str, dict[str, Any]] = {section: {} for section in ("", *_SECTIONS)}
        for (section, setting), value in chosen.items():
            by_section[section][setting] = value
        attack = AttackConfig.preset(preset, like, **by_section["attack"])
        client = ClientConfig(**by_section["client"], defence=DefenceConfig(**by_section["defence"]))
        num_images = check_count("num_images", chosen["", "num_images"])
        units = tuple(
            Unit(
                task="attack",
                dataset=dataset,
                pictures=digest_of_pictures([source.client(index, num_images)]),
                clients=(index,),
                num_images=num_images,
                network=name,
                client=client,
                labels=chosen["", "labels"],
                attack=attack,
                seed=check_count("seed", seed, minimum=0),
            )
            for seed in seeds
            for index in indices
        )
        told = ", ".join(f"{setting} {_told(chosen[section, setting])}" for section, setting in varied)
        entries.append(Entry(told or "all", attack.method, units, {}))
    return Plan(str(top.get("title", f"{file.stem}: {dataset}")), "images", tuple(entries), place)


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{file} is not TOML: {error}.") from None


def _section(file: Path, grid: dict[str, Any], section: str) -> dict[str, Any]:
    values = grid.get(section, {})
    if not isinstance(values, dict):
        raise ConfigError(f"{file.name}: {section} = {shown(values)} must be a section, [{section}].")
    return values


def _choices(value: Any) -> list[Any]:
    if isinstance(value, list):
        if not value:
            raise ConfigError("a list in a sweep must hold at least one value.")
        return value
    return [value]


def _pairs(value: Any) -> list[Any]:
    """A setting that is a list itself varies as a list of lists."""
    return value if isinstance(value, list) and value and isinstance(value[0], list) else [value]


def _combinations(axes: dict[tuple[str, str], list[Any]]) -> Iterator[dict[tuple[str, str], Any]]:
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def _told(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
