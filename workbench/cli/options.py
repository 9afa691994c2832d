"""Command-line options made from the tables of settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import Parameter
from typing import Annotated, Any

import typer

from workbench.settings import Setting, settings_of

__all__ = ["given_settings", "one_of", "option", "setting_options"]


def one_of(choices: Sequence[str]) -> str:
    """The choices of an option as a sentence."""
    return f"One of: {', '.join(choices)}."


def option(name: str, kind: Any, default: Any, heading: str, text: str, *names: str, metavar: str = "") -> Parameter:
    """One option as a parameter of a command's function, listed by ``--help`` under the heading."""
    names = names or (f"--{name.replace('_', '-')}",)
    declared = typer.Option(*names, help=text, rich_help_panel=heading, metavar=metavar or None)
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[(kind, declared)])


def setting_options(
    kind: type,
    heading: str,
    *,
    only: Sequence[str] = (),
    defaults: Mapping[str, Any] | None = None,
    kinds: Mapping[str, Any] | None = None,
) -> list[Parameter]:
    """An option for every setting of a dataclass.

    Args:
        kind: the dataclass.
        heading: the one under which ``--help`` lists them; details have a separate heading.
        only: the fields to take; empty takes all.
        defaults: by field name, where they differ from the dataclass's. None leaves every option unset.
        kinds: by field name, the types of options that the command line takes in another form.
    """
    return [
        _setting_option(known, f"{heading}, details" if known.is_detail else heading, defaults, (kinds or {}).get(name))
        for name, known in settings_of(kind).items()
        if not only or name in only
    ]


def _setting_option(known: Setting, heading: str, defaults: Mapping[str, Any] | None, kind: Any) -> Parameter:
    default = None if defaults is None else defaults.get(known.name, known.default)
    if kind is None:
        kind = tuple[float, float] if known.kind is tuple else known.kind
    names = (known.flag, *known.aliases)
    if known.kind is bool and default is None:
        names = (f"{known.flag}/--no-{known.flag[2:]}",)
    if known.is_negated and default is not None:
        default = not default
    choices = (*known.extra_choices, *known.choices)
    text = f"{known.label}: {known.help} {one_of(choices) if choices else ''}".strip()
    kind = kind | None if default is None else kind
    return option(known.key, kind, default, heading, text, *names, metavar=known.metavar)


def given_settings(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a dataclass among the values of a command's options, by field name; unset ones are left out."""
    given = {name: (known, values.get(known.key)) for name, known in settings_of(kind).items()}
    return {
        name: not value if known.is_negated else value for name, (known, value) in given.items() if value is not None
    }
