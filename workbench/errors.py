"""The workbench's errors: each message names the field, the value and what is expected."""

import difflib
import math
import operator
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataError",
    "WorkbenchError",
    "check_choice",
    "check_count",
    "check_flag",
    "check_kind",
    "check_number",
    "check_path",
    "shown",
]


Kind = TypeVar("Kind")

# Everything is computed in single precision: outside this range a number would silently become 0 or infinite.
SMALLEST, LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)


class WorkbenchError(Exception):
    """Base of every error that the workbench raises on purpose."""


class ConfigError(WorkbenchError, ValueError):
    """An invalid setting; the message says which, and what is valid."""


class DataError(WorkbenchError, ValueError):
    """Invalid images, labels, weights or files."""


class CheckpointError(WorkbenchError, ValueError):
    """A saved file that is damaged or cannot be read."""


def shown(value: object) -> str:
    """A value as shown in an error message: on one line and shortened.

    >>> shown(list(range(1000)))
    '[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, ...'
    """
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:76]} ..."


def check_kind(field: str, value: object, kind: type[Kind], right: str = "") -> Kind:
    """Return ``value`` if it is a ``kind``; ``right`` describes it where the name of the class does not.

    >>> check_kind("config", 5, dict)
    Traceback (most recent call last):
    ...
    workbench.errors.ConfigError: config = 5 must be a dict.
    """
    if not isinstance(value, kind):
        raise ConfigError(f"{field} = {shown(value)} must be {right or f'a {kind.__name__}'}.")
    return value


def check_flag(field: str, value: object) -> bool:
    """Return ``value`` if it is True or False; 1 and "yes" are probably a mistake."""
    return check_kind(field, value, bool, "True or False")


def check_choice(field: str, value: object, choices: Iterable[str]) -> str:
    """Return ``value`` if it is one of ``choices``; otherwise name the nearest one.

    >>> check_choice("defence", "gausian", ["gaussian", "laplacian"])
    Traceback (most recent call last):
    ...
    workbench.errors.ConfigError: defence = 'gausian' is unknown; did you mean 'gaussian'? \
Choose one of: gaussian, laplacian.
    """
    known = list(choices)
    if isinstance(value, str) and value in known:
        return value
    lower = {choice.lower(): choice for choice in known}
    near = difflib.get_close_matches(str(value).lower(), lower, n=1, cutoff=0.5)
    hint = f"; did you mean {lower[near[0]]!r}?" if near else "."
    raise ConfigError(f"{field} = {shown(value)} is unknown{hint} Choose one of: {', '.join(known)}.")


def check_count(field: str, value: object, *, minimum: int = 1, maximum: int | None = None) -> int:
    """Return ``value`` as an int if it is a whole number within the bounds.

    >>> check_count("epochs", 0)
    Traceback (most recent call last):
    ...
    workbench.errors.ConfigError: epochs = 0 must be a whole number of at least 1.
    """
    bounds = f"of at least {minimum}" if maximum is None else f"between {minimum} and {maximum}"
    count = None
    with suppress(TypeError):
        count = operator.index(value)  # type: ignore[arg-type]
    if count is None or isinstance(value, bool) or count < minimum or (maximum is not None and count > maximum):
        raise ConfigError(f"{field} = {shown(value)} must be a whole number {bounds}.")
    return count


def check_number(
    field: str,
    value: object,
    *,
    minimum: float = -math.inf,
    maximum: float = math.inf,
    above: float = -math.inf,
) -> float:
    """Return ``value`` as a float if it is finite, within [minimum, maximum] and greater than ``above``.

    >>> check_number("learning_rate", -1.0, above=0)
    Traceback (most recent call last):
    ...
    workbench.errors.ConfigError: learning_rate = -1.0 must be a finite number greater than 0.
    """
    limits = {"greater than": above, "at least": minimum, "at most": maximum}
    bounds = [f"{words} {limit:g}" for words, limit in limits.items() if math.isfinite(limit)]
    number = math.nan
    # A boolean, a string or an array with one entry would convert, but is probably a mistake.
    if not isinstance(value, bool | np.bool | str | bytes) and getattr(value, "shape", ()) == ():
        with suppress(TypeError, ValueError, OverflowError):
            number = float(value)  # type: ignore[arg-type]
    if not math.isfinite(number) or number < minimum or number > maximum or number <= above:
        raise ConfigError(
            f"{field} = {shown(value)} must be a finite number{' ' * bool(bounds)}{' and '.join(bounds)}."
        )
    if number and not SMALLEST <= abs(number) <= LARGEST:
        raise ConfigError(f"{field} = {shown(value)} is too {'small' if abs(number) < 1 else 'large'} for float32.")
    return number


def check_path(field: str, value: Any, right: str, kind: type[WorkbenchError] = DataError) -> Path:
    """Return ``value`` as a Path; ``right`` describes it, and ``kind`` is the error if it is none.

    >>> check_path("store", 3, "the path of a file")
    Traceback (most recent call last):
    ...
    workbench.errors.DataError: store = 3 must be the path of a file.
    """
    try:
        return Path(value)
    except TypeError:
        raise kind(f"{field} = {shown(value)} must be {right}.") from None
