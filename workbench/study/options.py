"""The options of a study: what to measure and how to run it, each declared once as fields of a dataclass.

Keyword arguments in Python and options of the command line are made from them. Metadata of a field: ``label``, ``help``
(one sentence); for the command line ``names`` and ``metavar`` where they do not follow from the field's name, and
``is_command_line`` False for an option of Python alone.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from inspect import Parameter
from itertools import chain
from typing import Any, TypeVar

from workbench.config import LABEL_METHODS, METHODS
from workbench.errors import ConfigError, check_choice, check_flag

__all__ = [
    "ALL_METHODS",
    "PRESETS",
    "AnyPath",
    "RunOptions",
    "TableOptions",
    "make_options",
    "split_options",
    "takes",
    "with_parameters",
]

AnyPath = str | os.PathLike[str]
Kind = TypeVar("Kind")
Function = TypeVar("Function", bound=Callable[..., Any])

PRESETS = ("paper", "best", "demo")
# The paper's five methods, one more, and the project's best settings.
ALL_METHODS = (*METHODS, "best")


def split_options(options: Mapping[str, Any], *kinds: Any) -> list[dict[str, Any]]:
    """The options that each kind has a field for; a name that none of them has is an error."""
    names = [[one.name for one in fields(kind)] for kind in kinds]
    known_names = list(chain.from_iterable(names))
    for name in options:
        check_choice("option", name, known_names)
    return [{name: value for name, value in options.items() if name in known} for known in names]


def with_parameters(function: Function, parameters: Iterable[Parameter]) -> Function:
    """Replace ``**options`` in a function's signature by these parameters."""
    signature = inspect.signature(function, eval_str=True)
    written = [one for one in signature.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
    function.__signature__ = signature.replace(parameters=[*written, *parameters])  # type: ignore[attr-defined]
    return function


def takes(*kinds: Any) -> Callable[[Function], Function]:
    """Decorate a function with ``**options``: its signature and documentation list the fields of these kinds."""
    options = [one for kind in kinds for one in fields(kind)]

    def decorate(function: Function) -> Function:
        lines = [f"        {one.name}: {one.metadata['help']}" for one in options]
        function.__doc__ = "\n".join([function.__doc__ or "", "    Options:", *lines, ""])
        parameters = [Parameter(one.name, Parameter.KEYWORD_ONLY, default=one.default) for one in options]
        return with_parameters(function, parameters)

    return decorate


def make_options(kind: type[Kind], options: Mapping[str, Any]) -> Kind:
    """A record of options from keyword arguments."""
    (known,) = split_options(options, kind)
    return kind(**known)


@dataclass(frozen=True)
class TableOptions:
    """What a table measures; each field's ``help`` describes it."""

    data: AnyPath | None = field(default=None, metadata={"label": "Data", "help": "Files of the data set."})
    clients: int | str | Sequence[int] = field(
        default=10,
        metadata={
            "label": "Clients",
            "help": "Number of clients, counted from the first, or their indices, such as 3-5,9.",
        },
    )
    methods: Sequence[str] | None = field(
        default=None,
        metadata={
            "label": "Methods",
            "help": f"Some of: {', '.join(ALL_METHODS)}; for Table 2: {', '.join(LABEL_METHODS)}.",
        },
    )
    settings: Sequence[str] | None = field(
        default=None,
        metadata={
            "label": "Settings",
            "help": "Some of the table's settings, e.g. 10x5x50; repeat the option or separate them by ';'.",
            "names": ("--setting", "--settings"),
        },
    )
    preset: str = field(
        default="paper",
        metadata={
            "label": "Preset",
            "help": "paper: as published; best: our best settings, same clients; demo: small clients, few steps.",
        },
    )
    seeds: Sequence[int] = field(
        default=(0,),
        metadata={"label": "Seeds", "help": "Seeds of the network, the batches and the attack, e.g. 0,1,2."},
    )
    changes: Mapping[str, Any] | None = field(
        default=None,
        metadata={
            "label": "Changed settings",
            "help": "Set a field of every attack's AttackConfig; repeatable.",
            "names": ("--set",),
            "metavar": "NAME=VALUE",
        },
    )
    weights: AnyPath | None = field(
        default=None,
        metadata={
            "label": "Trained weights",
            "help": "Folder with trained weights for Table 7; default: the folder of the data.",
        },
    )
    model: str | None = field(
        default=None, metadata={"label": "Network", "help": "A built-in network; default: the data set's."}
    )
    repeated_draws: bool = field(
        default=False,
        metadata={
            "label": "Repeated draws",
            "help": "Table 6: repeat the defences' noise in every epoch, as the paper's experiments did.",
        },
    )
    accuracies: bool = field(
        default=False,
        metadata={"label": "Accuracies", "help": "Table 6: also train 250 rounds and report test accuracies."},
    )
    rounds: int | None = field(
        default=None, metadata={"label": "Rounds", "help": "Number of rounds of that training; default: 250."}
    )

    def __post_init__(self) -> None:
        check_choice("preset", self.preset, PRESETS)
        check_flag("repeated_draws", self.repeated_draws)
        check_flag("accuracies", self.accuracies)


@dataclass(frozen=True)
class RunOptions:
    """Where a study runs and what it writes; no option changes a result. Each field's ``help`` describes it."""

    store: AnyPath = field(
        default="study.sqlite",
        metadata={
            "label": "Store",
            "help": "SQLite file that stores every finished unit; a second run measures only what is missing.",
        },
    )
    out: AnyPath | None = field(
        default=None,
        metadata={
            "label": "Export of rows",
            "help": "File of JSON lines to export the rows to; rows already in it are imported first.",
        },
    )
    figures: AnyPath | None = field(
        default=None,
        metadata={
            "label": "Figures",
            "help": "Draw each setting's first client into this folder: all methods, epochs, all images.",
            "metavar": "FOLDER",
        },
    )
    jobs: int | None = field(
        default=None,
        metadata={"label": "Processes", "help": "Number of processes on this machine; default: only this one."},
    )
    scheduler: str | None = field(
        default=None,
        metadata={
            "label": "Dask scheduler",
            "help": "Run on a Dask cluster, e.g. tcp://host:8786.",
            "metavar": "ADDRESS",
        },
    )
    only_measured: bool = field(
        default=False,
        metadata={"label": "Only measured results", "help": "Measure nothing; show and export the stored results."},
    )
    device: str = field(
        default="auto", metadata={"label": "Device", "help": "auto, or a JAX device such as cpu or gpu:1."}
    )
    progress: str = field(
        default="auto",
        metadata={
            "label": "Progress",
            "help": "text, widget, none, or auto, which is a widget in a notebook and text elsewhere.",
            "is_command_line": False,
        },
    )

    def __post_init__(self) -> None:
        check_choice("progress", self.progress, ("auto", "text", "widget", "none"))
        check_flag("only_measured", self.only_measured)
        if self.jobs is not None and self.scheduler is not None:
            raise ConfigError(f"jobs = {self.jobs} and scheduler = {self.scheduler!r}: give only one of them.")
