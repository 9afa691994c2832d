"""What several commands share."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from workbench.errors import ConfigError
from workbench.files.cache import cache_folder
from workbench.training import native

__all__ = ["advise", "check_outputs", "keep_compilations", "parse_settings"]


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


def check_outputs(*paths: Path | None) -> None:
    """Check before hours of work, not after them, that the files can be written."""
    for path in paths:
        if path is None:
            continue
        if path.is_dir():
            raise ConfigError(f"{str(path)!r} is a folder; name the file to write.")
        folder = next(parent for parent in path.absolute().parents if parent.exists())
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            raise ConfigError(f"{str(path)!r} cannot be written: {str(folder)!r} is not a writable directory.")


def keep_compilations() -> None:
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


def advise() -> None:
    """Print how attacks on this machine could be faster."""
    if advice := native.advice():
        typer.echo(advice, err=True)
