"""A custom grid: a TOML file in which every list is a set of values, and every combination is measured."""

from __future__ import annotations

import itertools
import os
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

from workbench.config import PRESETS, AttackConfig, ClientConfig, DefenceConfig
from workbench.errors import ConfigError, check_choice, check_count, shown
from workbench.files.reading import reading
from workbench.study.plan.cohort import Cohort
from workbench.study.plan.plan import Entry, Plan
from workbench.study.plan.units import LABELS

__all__ = ["plan_sweep"]

_TOP = ("title", "dataset", "data", "clients", "num_images", "seeds", "labels", "preset", "model")
_SECTIONS = {
    "client": [field.name for field in fields(ClientConfig) if field.name != "defence"],
    "defence": [field.name for field in fields(DefenceConfig)],
    "attack": [field.name for field in fields(AttackConfig)],
}


def plan_sweep(path: str | os.PathLike[str]) -> Plan:
    """The units of a grid.

    A single value applies to all units, a list is varied::

        dataset = "glyphs"      # data = "PATH" where it is not bundled
        clients = 2             # or "3-5,9"
        num_images = 16
        labels = "known"        # or "recovered"
        preset = "paper"        # the settings that [attack] changes
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
        path: of the file; a relative ``data`` in it starts from the file's folder.
    """
    file = Path(path)
    with reading(file, "a sweep in TOML"):
        grid = tomllib.loads(file.read_text(encoding="utf-8"))
    top = {name: value for name, value in grid.items() if name not in _SECTIONS}
    for name in top:
        check_choice(f"{file.name}: setting", name, (*_TOP, *_SECTIONS))
    data = None if top.get("data") is None else file.parent / str(top["data"])
    seeds = _choices(top.get("seeds", [0]))
    cohort = Cohort(top.get("dataset", "glyphs"), data, top.get("model"), top.get("clients", 1), seeds)
    preset = check_choice("preset", top.get("preset", "paper"), PRESETS)
    axes = _axes(file, grid)
    varied = [axis for axis, values in axes.items() if len(values) > 1 and axis != ("attack", "method")]
    entries = []
    for values in itertools.product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        client, defence, attack = (
            {name: value for (of, name), value in chosen.items() if of == section} for section in _SECTIONS
        )
        config = AttackConfig.preset(preset, cohort.twin, **attack)
        units = cohort.units(
            cohort.groups(),
            check_count("num_images", chosen["", "num_images"]),
            task="attack",
            client=ClientConfig(**client, defence=DefenceConfig(**defence)),
            labels=chosen["", "labels"],
            attack=config,
        )
        setting = ", ".join(f"{axis[1]} {_text(chosen[axis])}" for axis in varied)
        entries.append(Entry(setting or "all", config.method, units, {}))
    return Plan(str(top.get("title", f"{file.stem}: {cohort.dataset}")), "images", tuple(entries), cohort.place)


def _axes(file: Path, grid: dict[str, Any]) -> dict[tuple[str, str], list[Any]]:
    """(Section, setting) to the values to combine; the section of settings at the top is empty."""
    axes: dict[tuple[str, str], list[Any]] = {
        ("", "num_images"): _choices(grid.get("num_images", 50)),
        ("", "labels"): [check_choice("labels", labels, LABELS) for labels in _choices(grid.get("labels", "known"))],
    }
    for section, known in _SECTIONS.items():
        settings = grid.get(section, {})
        if not isinstance(settings, dict):
            raise ConfigError(f"{file.name}: {section} = {shown(settings)} must be a section, [{section}].")
        for setting, value in settings.items():
            check_choice(f"{file.name}: [{section}]", setting, known)
            axes[section, setting] = _pairs(value) if setting == "update_weight" else _choices(value)
    return axes


def _choices(value: Any) -> list[Any]:
    if isinstance(value, list):
        if not value:
            raise ConfigError("a list in a sweep must hold at least one value.")
        return value
    return [value]


def _pairs(value: Any) -> list[Any]:
    """A setting that is a list itself varies as a list of lists."""
    return value if isinstance(value, list) and value and isinstance(value[0], list) else [value]


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
