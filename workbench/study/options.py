"""The options of a study: what to measure and how to run it, each declared once as a setting.

Keyword arguments in Python and options of the command line are made from them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter
from pathlib import Path
from typing import Any, TypeVar

from workbench.attack.methods import METHODS
from workbench.config import LABEL_METHODS, PRESETS
from workbench.errors import ConfigError, check_choice, check_flag
from workbench.settings import Function, check_settings, setting, settings_of, with_parameters

__all__ = [
    "ALL_METHODS",
    "RunOptions",
    "TableOptions",
    "make_options",
    "split_options",
    "takes",
]

Kind = TypeVar("Kind")

# The paper's five methods, one more, and the project's best settings.
ALL_METHODS = (*METHODS, "best")


def split_options(options: Mapping[str, Any], *kinds: Any) -> list[dict[str, Any]]:
    """The options that each kind has a field for; a name that none of them has is an error."""
    known = [name for kind in kinds for name in settings_of(kind)]
    for name in options:
        check_choice("option", name, known)
    return [{name: value for name, value in options.items() if name in settings_of(kind)} for kind in kinds]


def takes(*kinds: Any) -> Callable[[Function], Function]:
    """Decorate a function with ``**options``: its signature and documentation list the fields of these kinds."""
    options = [known for kind in kinds for known in settings_of(kind).values()]

    def decorate(function: Function) -> Function:
        lines = [f"        {one.name}: {one.help}" for one in options]
        function.__doc__ = "\n".join([function.__doc__ or "", "    Options:", *lines, ""])
        parameters = [Parameter(one.name, Parameter.KEYWORD_ONLY, default=one.default) for one in options]
        return with_parameters(function, parameters)

    return decorate


def make_options(kind: type[Kind], options: Mapping[str, Any]) -> Kind:
    """A record of options from keyword arguments."""
    return kind(**split_options(options, kind)[0])


@dataclass(frozen=True)
class TableOptions:
    """What a table measures; each field's ``help`` describes it."""

    data: Path | None = setting(None, "Data", "Files of the data set.")
    clients: int | str | Sequence[int] = setting(
        10, "Clients", "Number of clients, counted from the first, or their indices, such as 3-5,9."
    )
    methods: Sequence[str] | None = setting(
        None, "Methods", f"Some of: {', '.join(ALL_METHODS)}; for Table 2: {', '.join(LABEL_METHODS)}."
    )
    settings: Sequence[str] | None = setting(
        None,
        "Settings",
        "Some of the table's settings, e.g. 10x5x50; repeat the option or separate them by ';'.",
        option="setting",
        aliases=("--settings",),
    )
    preset: str = setting(
        "paper", "Preset", "paper: as published; best: our best settings, same clients; demo: small clients, few steps."
    )
    seeds: Sequence[int] = setting((0,), "Seeds", "Seeds of the network, the batches and the attack, e.g. 0,1,2.")
    changes: Mapping[str, Any] | None = setting(
        None,
        "Changed settings",
        "Set a field of every attack's AttackConfig; repeatable.",
        option="set",
        metavar="NAME=VALUE",
    )
    weights: Path | None = setting(
        None, "Trained weights", "Folder with trained weights for Table 7; default: the folder of the data."
    )
    model: str | None = setting(None, "Network", "A built-in network; default: the data set's.")
    repeated_draws: bool = setting(
        False, "Repeated draws", "Table 6: repeat the defences' noise in every epoch, as the paper's experiments did."
    )
    accuracies: bool = setting(False, "Accuracies", "Table 6: also train 250 rounds and report test accuracies.")
    rounds: int | None = setting(None, "Rounds", "Number of rounds of that training; default: 250.")

    def __post_init__(self) -> None:
        check_choice("preset", self.preset, PRESETS)
        check_flag("repeated_draws", self.repeated_draws)
        check_flag("accuracies", self.accuracies)


@dataclass(frozen=True)
class RunOptions:
    """Where a study runs and what it writes; no option changes a result. Each field's ``help`` describes it."""

    store: Path = setting(
        Path("study.sqlite"),
        "Store",
        "SQLite file that stores every finished unit; a second run measures only what is missing.",
    )
    out: Path | None = setting(
        None, "Export of rows", "File of JSON lines to export the rows to; rows already in it are imported first."
    )
    figures: Path | None = setting(
        None,
        "Figures",
        "Draw each setting's first client into this folder: all methods, epochs, all images.",
        metavar="FOLDER",
    )
    jobs: int | None = setting(None, "Processes", "Number of processes on this machine; default: only this one.")
    scheduler: str | None = setting(
        None, "Dask scheduler", "Run on a Dask cluster, e.g. tcp://host:8786.", metavar="ADDRESS"
    )
    only_measured: bool = setting(
        False, "Only measured results", "Measure nothing; show and export the stored results."
    )
    device: str = setting("auto", "Device", "auto, or a JAX device such as cpu or gpu:1.")
    progress: str = setting(
        "auto",
        "Progress",
        "How progress is shown; auto is a widget in a notebook and text elsewhere.",
        choices=("auto", "text", "widget", "none"),
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if self.jobs is not None and self.scheduler is not None:
            raise ConfigError(f"jobs = {self.jobs} and scheduler = {self.scheduler!r}: give only one of them.")
