"""The plan of a table from rows that exist, without the data that they were measured on."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from workbench.config import LABEL_METHODS, AttackConfig, real_twin
from workbench.errors import ConfigError
from workbench.study.plan.paper import TRAINED, published
from workbench.study.plan.plan import Entry, Place, Plan, Unit
from workbench.study.plan.tables import (
    ALL_METHODS,
    TITLES,
    TableOptions,
    TableSetting,
    attack_task,
    check_table,
    measure_of,
    table_settings,
)

__all__ = ["plan_stored"]

# A setting of a table, its name, a method and the attack that they make.
_Place = tuple[TableSetting, str, str, AttackConfig]


def plan_stored(number: int, units: Sequence[Unit]) -> Plan:
    """The lines of a table that these units belong to; units with settings that the table does not have are left out.

    Args:
        number: of the table.
        units: of one data set.
    """
    check_table(number)
    datasets = sorted({unit.dataset for unit in units})
    if len(datasets) != 1:
        raise ConfigError(
            f"results are shown for one data set at a time; these rows are of: {', '.join(datasets) or 'none'}."
        )
    (dataset,) = datasets
    places = list(_places(number, real_twin(dataset)))
    lines: dict[tuple[str, str], tuple[str, list[Unit]]] = {}
    num_shown = 0
    for unit in units:
        found = list(_lines_of(unit, places, measures_labels=number == 2))
        num_shown += bool(found)
        for name, setting, method in found:
            lines.setdefault((name, method), (setting, []))[1].append(unit)
    names = list(dict.fromkeys(name for _, name, *_ in places))
    methods = (*ALL_METHODS, *LABEL_METHODS, "accuracy")
    ordered = sorted(lines, key=lambda line: (names.index(line[0]), methods.index(line[1])))
    return Plan(
        title=f"Table {number}, {TITLES[number]}: {dataset}",
        measure=measure_of(number),
        entries=tuple(
            Entry(name, method, tuple(members), published(number, dataset, setting, method), is_wanted=False)
            for name, method in ordered
            for setting, members in [lines[name, method]]
        ),
        place=Place(),
        notes=(f"{len(units) - num_shown} of {len(units)} rows have other settings.",) * (num_shown < len(units)),
    )


def _places(number: int, twin: str) -> Iterator[_Place]:
    """Every place that a row can have in a table: where noise is drawn once for all epochs, the name says so."""
    drawn_anew = table_settings(number)
    repeated = [one for one in table_settings(number, repeated_draws=True) if one not in drawn_anew]
    for setting in (*drawn_anew, *repeated):
        name = f"{setting.name}, repeated" if setting in repeated else setting.name
        for method in ALL_METHODS:
            yield setting, name, method, attack_task(method, setting, twin, TableOptions())["attack"]


def _lines_of(unit: Unit, places: Iterable[_Place], *, measures_labels: bool) -> Iterator[tuple[str, str, str]]:
    """The names, settings and methods of the lines that a unit belongs to, each once."""
    seen = set()
    # Weights that are not the paper's belong to none of its rounds.
    after_round = None if unit.weights is None else TRAINED.get(unit.weights, -1)
    for setting, name, method, attack in places:
        if (unit.client, unit.num_images, after_round) != (setting.client, setting.num_images, setting.after_round):
            continue
        methods: tuple[str, ...] = ()
        if unit.task == "accuracy":
            methods = ("accuracy",)
        elif len(unit.clients) != setting.num_clients:
            pass
        elif measures_labels:
            methods = unit.label_methods
        elif unit.labels == setting.labels and unit.attack == replace(unit, attack=attack).attack:
            methods = (method,)
        for one in methods:
            if (name, one) not in seen:
                seen.add((name, one))
                yield name, setting.name, one
