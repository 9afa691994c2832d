"""Command-line options made from the tables of settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

from workbench.settings import Setting, settings_of

__all__ = ["given_settings", "one_of", "option", "setting_options", "with_options"]


def one_of(choices: Sequence[str]) -> str:
    """The choices of an option as a sentence."""
    return f"One of: {', '.join(choices)}."


def option(name: str, kind: Any, default: Any, panel: str, help: str, *names: str) -> inspect.Parameter:  # noqa: A002
    """One option as a parameter of a command's function."""
    declared = typer.Option(*(names or (f"--{name.replace('_', '-')}",)), help=help, rich_help_panel=panel)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, declared]
    )


def setting_options(
    kind: type, panel: str, *, only: Sequence[str] = (), defaults: Mapping[str, Any] | None = None
) -> list[inspect.Parameter]:
    """An option for every setting of a dataclass.

    Args:
        kind: the dataclass.
        panel: the heading under which ``--help`` lists them; details get a heading of their own.
        only: the fields to take; empty takes all.
        defaults: by field name, where they differ from the dataclass's. None leaves every option unset.
    """
    return [
        _setting_option(known, f"{panel}, details" if known.is_detail else panel, defaults)
        for name, known in settings_of(kind).items()
        if not only or name in only
    ]


def _setting_option(known: Setting, panel: str, defaults: Mapping[str, Any] | None) -> inspect.Parameter:
    default = None if defaults is None else defaults.get(known.name, known.default)
    kind: Any = tuple[float, float] if known.kind is tuple else known.kind
    names = [known.flag, *([f"-{known.short}"] if known.short else [])]
    if known.kind is bool and default is None:
        names = [f"{known.flag}/--no-{known.flag[2:]}"]
    if known.is_negated and default is not None:
        default = not default
    choices = (*known.extra_choices, *known.choices)
    text = f"{known.label}: {known.help} {one_of(choices) if choices else ''}".strip()
    return option(known.key, kind | None if default is None else kind, default, panel, text, *names)


def given_settings(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a dataclass among the values of a command's options, by field name; unset ones are left out."""
    given = {name: (known, values.get(known.key)) for name, known in settings_of(kind).items()}
    return {
        name: not value if known.is_negated else value for name, (known, value) in given.items() if value is not None
    }


def with_options(*options: inspect.Parameter) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command's function, which takes ``**values``, the signature that Typer makes its options from."""

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        named = [p for p in inspect.signature(command).parameters.values() if p.kind is not p.VAR_KEYWORD]
        command.__signature__ = inspect.Signature([*named, *options])  # type: ignore[attr-defined]
        return command

    return decorate
