"""What the commands share: options made from the tables of settings, checks, and the cache of compilations."""

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer

from workbench.errors import ConfigError
from workbench.files.cache import cache_folder
from workbench.settings import Setting, settings_of
from workbench.training import native

__all__ = [
    "given_settings",
    "one_of",
    "option",
    "parse_settings",
    "prepare_output",
    "prepare_run",
    "seed_list",
    "setting_options",
]


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
    typed: dict[type, Any] = {tuple: tuple[float, float], list: str}
    kind = kind or typed.get(known.kind, known.kind)
    names = (known.flag, *known.aliases)
    if known.kind is bool and default is None:
        names = (f"{known.flag}/--no-{known.flag[2:]}",)
    if known.is_negated and default is not None:
        default = not default
    text = f"{known.label}: {known.help} {one_of(known.offered) if known.offered else ''}".strip()
    kind = kind | None if default is None else kind
    return option(known.key, kind, default, heading, text, *names, metavar=known.metavar)


def given_settings(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a dataclass among the values of a command's options, by field name; unset ones are left out."""
    given = {name: (known, values.get(known.key)) for name, known in settings_of(kind).items()}
    return {
        name: not value if known.is_negated else value for name, (known, value) in given.items() if value is not None
    }


def parse_settings(assignments: Sequence[str]) -> dict[str, Any]:
    """Read texts of the form NAME=VALUE; a value that is not JSON is taken as text.

    >>> parse_settings(["update_weight=[1, 2]", "combine=median"])
    {'update_weight': [1, 2], 'combine': 'median'}
    """
    settings: dict[str, Any] = {}
    for assignment in assignments:
        name, is_there, value = assignment.partition("=")
        if not is_there or not name:
            raise ConfigError(f"--set {assignment!r} must be NAME=VALUE, such as tv_weight=0.002.")
        try:
            settings[name] = json.loads(value)
        except ValueError:
            settings[name] = value
    return settings


def seed_list(text: str) -> list[int]:
    """Seeds from a text such as ``0,1,2``."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"seeds = {text!r} must be whole numbers such as 0,1,2.") from None


def prepare_run(*outputs: Path | None, is_advised: bool = True) -> None:
    """What a command does before hours of work: checks that its files can be written, and caches compilations.

    Args:
        outputs: the files that it will write.
        is_advised: whether to print how attacks on this machine could be faster.
    """
    for path in filter(None, outputs):
        prepare_output(path)
    _keep_compilations()
    advice = native.advice() if is_advised else ""
    if advice:
        typer.echo(advice, err=True)


def prepare_output(path: Path) -> None:
    """Check that a file can be written."""
    if path.is_dir():
        raise ConfigError(f"{str(path)!r} is a folder; name the file to write.")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ConfigError(f"{str(path)!r} cannot be written: {str(folder)!r} is not a writable directory.")


def _keep_compilations() -> None:
    """Cache JAX's compilations on disk for the next start; a cache that the user has configured takes precedence."""
    import jax

    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    # A cache that cannot be read or written only costs time.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry", UserWarning)
    for name, value in {
        "jax_compilation_cache_dir": str(cache_folder() / "compiled"),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }.items():
        jax.config.update(name, value)  # type: ignore[no-untyped-call]
        # For processes that this one starts.
        os.environ[name.upper()] = str(value)
