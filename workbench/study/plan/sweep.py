"""A custom grid: a TOML file in which every list is a set of values, and every combination is measured."""

import itertools
import os
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

from workbench.config import AttackConfig, ClientConfig, DefenceConfig
from workbench.errors import ConfigError, check_choice, check_count, shown
from workbench.files.reading import reading
from workbench.study.plan.plan import Cohort, Entry, Plan

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
    for name in grid:
        check_choice(f"{file.name}: setting", name, (*_TOP, *_SECTIONS))
    data = None if grid.get("data") is None else file.parent / str(grid["data"])
    seeds = _choices("seeds", grid.get("seeds", 0))
    cohort = Cohort(grid.get("dataset", "glyphs"), data, grid.get("model"), grid.get("clients", 1), seeds)
    axes = _axes(file, grid)
    varied = [axis for axis, values in axes.items() if len(values) > 1 and axis != ("attack", "method")]
    entries = []
    for values in itertools.product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        client, defence, attack = (
            {name: value for (of, name), value in chosen.items() if of == section} for section in _SECTIONS
        )
        config = AttackConfig.preset(grid.get("preset", "paper"), cohort.twin, **attack)
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
    return Plan(str(grid.get("title", f"{file.stem}: {cohort.dataset}")), "images", tuple(entries), cohort.place)


def _axes(file: Path, grid: dict[str, Any]) -> dict[tuple[str, str], list[Any]]:
    """(Section, setting) to the values to combine; the section of settings at the top is empty."""
    axes: dict[tuple[str, str], list[Any]] = {
        ("", "num_images"): _choices("num_images", grid.get("num_images", 50)),
        ("", "labels"): _choices("labels", grid.get("labels", "known")),
    }
    for section, known in _SECTIONS.items():
        settings = grid.get(section, {})
        if not isinstance(settings, dict):
            raise ConfigError(f"{file.name}: {section} = {shown(settings)} must be a section, [{section}].")
        for setting, value in settings.items():
            check_choice(f"{file.name}: [{section}]", setting, known)
            axes[section, setting] = _choices(setting, value)
    return axes


def _choices(setting: str, value: Any) -> list[Any]:
    """The values of a setting: those of a list, or of a list of lists for ``update_weight``, which is a list itself."""
    if value == []:
        raise ConfigError(f"{setting} = [] in a sweep must hold at least one value.")
    is_single = not isinstance(value, list) or (setting == "update_weight" and not isinstance(value[0], list))
    return [value] if is_single else value


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
