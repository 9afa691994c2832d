"""Typer options generated from the fields of a dataclass."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from workbench.study.options import AnyPath

__all__ = ["Reader", "study_options"]

# For an option whose value is not a single word or number: its type on the command line, and how to read that.
Reader = tuple[Any, Callable[[Any], Any]]

_PATHS: dict[Any, Any] = {AnyPath: Path, AnyPath | None: Path | None}


def study_options(kind: Any, panel: str, readers: Mapping[str, Reader]) -> list[inspect.Parameter]:
    """A parameter for every field of a dataclass, with the field's help and default.

    Args:
        kind: the dataclass, with metadata as in `workbench.study.options`.
        panel: the heading under which the help lists the options.
        readers: by field name, for fields that the command line takes in another form.
    """
    hints = get_type_hints(kind)
    parameters = []
    for field in fields(kind):
        about = field.metadata
        if not about.get("is_command_line", True):
            continue
        names = about.get("names", (f"--{field.name.replace('_', '-')}",))
        option = typer.Option(*names, help=about["help"], metavar=about.get("metavar"), rich_help_panel=panel)
        hint = _PATHS.get(hints[field.name], hints[field.name])
        default = field.default
        if field.name in readers:
            hint = readers[field.name][0]
            default = ",".join(map(str, default)) if isinstance(default, Sequence) else default
        parameters.append(
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[(hint, option)]
            )
        )
    return parameters
