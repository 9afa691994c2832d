"""Files that are checked before anything in them is believed: safetensors, with settings as JSON, never unpickled.

The metadata holds what kind of file it is, a format version, the settings, and a SHA-256 of settings and tensors
together, so that no bit of either can change unnoticed.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from workbench.errors import CheckpointError, WorkbenchError, shown
from workbench.files.writing import write_atomically

__all__ = ["Tensors", "check_keys", "fitting_together", "kind_of", "read", "write"]

Tensors = dict[str, NDArray[Any]]

# Far above what the workbench writes, far below what would hurt: a parser makes much of few bytes.
_LARGEST_HEADER = 8 * 2**20
_LARGEST_SETTINGS = 2**20

# What unbelievable settings and tensors make our own constructors, NumPy and JSON's types raise.
_MISFITS = (
    WorkbenchError,
    AttributeError,
    LookupError,
    MemoryError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
    zlib.error,
)


def write(path: str | os.PathLike[str], kind: str, version: int, settings: dict[str, Any], tensors: Tensors) -> None:
    """Write beside, sync, then put in place: a reader finds the old file or the new one."""
    text = json.dumps(settings, sort_keys=True, allow_nan=False)
    metadata = {"kind": kind, "format": str(version), "settings": text}
    write_atomically(path, save(tensors, {**metadata, "sha256": _digest(metadata, tensors)}))


def read(path: str | os.PathLike[str], kind: str, version: int) -> tuple[dict[str, Any], Tensors]:
    """The settings and tensors of a whole file of this kind, of this format version or an older one."""
    try:
        file = Path(path)
    except TypeError:
        raise CheckpointError(f"path = {shown(path)} must be the path of a saved {kind}.") from None
    if not file.is_file():
        raise CheckpointError(f"{file} does not exist: there is no saved {kind}.")
    try:
        settings, tensors = _read(file, kind, version)
    except CheckpointError:
        raise
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, RecursionError, MemoryError) as error:
        raise CheckpointError(f"{file} is not a whole {kind}: {shown(str(error))}.") from None
    return settings, tensors


def kind_of(path: str | os.PathLike[str]) -> str:
    """What kind of file it says it is, before anything in it is believed; empty where it says nothing."""
    file = Path(path)
    try:
        _check_header(file, "file of the workbench")
        with safe_open(file, framework="numpy") as opened:
            return (opened.metadata() or {}).get("kind", "")
    except (SafetensorError, OSError, ValueError, MemoryError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{file} is not a whole file of the workbench: {shown(str(error))}.") from None


@contextmanager
def fitting_together(path: str | os.PathLike[str], kind: str) -> Iterator[None]:
    """Around the use of what was read: whatever does not fit ends in one sentence."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None
    except _MISFITS as error:
        reason = str(error) or type(error).__name__
        raise CheckpointError(f"{path} does not hold a {kind} that fits together: {reason}") from None


def check_keys(found: dict[str, Any], right: Iterable[str]) -> None:
    """The settings must be those that were written: one more or one fewer is a mistake."""
    if wrong := sorted(set(found) ^ set(right)):
        raise CheckpointError(f"its settings differ from the right ones in {shown(wrong[0])}.")


def _read(file: Path, kind: str, version: int) -> tuple[dict[str, Any], Tensors]:
    _check_header(file, kind)
    with safe_open(file, framework="numpy") as opened:
        metadata = opened.metadata() or {}
        _check_kind(file, metadata, kind, version)
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - not a dict
    if _digest(metadata, tensors) != metadata["sha256"]:
        raise CheckpointError(f"{file} is damaged: its content does not match its checksum.")
    text = metadata["settings"]
    settings = json.loads(text) if len(text) <= _LARGEST_SETTINGS else None
    if not isinstance(settings, dict):
        raise CheckpointError(f"{file} is not a saved {kind}: its settings are no JSON object of a sensible size.")
    return settings, tensors


def _check_header(file: Path, kind: str) -> None:
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        header = opened.read(length) if length <= _LARGEST_HEADER else b""
    # JSON would allow tabs and line ends between its parts, where no checksum sees them; nothing of ours has any.
    if not header or min(header) < 0x20:
        raise CheckpointError(f"{file} is not a whole {kind}: its header is missing, too long or damaged.")


def _check_kind(file: Path, metadata: dict[str, str], kind: str, version: int) -> None:
    found, form = metadata.get("kind"), metadata.get("format", "")
    if found != kind:
        raise CheckpointError(f"{file} is not a saved {kind} but {shown(found) if found else 'something else'}.")
    if not (form.isascii() and form.isdigit() and len(form) < 9 and int(form) > 0):
        raise CheckpointError(f"{file} is damaged: its format version is {shown(form)}.")
    if int(form) > version:
        raise CheckpointError(
            f"{file} has format {form} and was written by a newer workbench; this one reads up to format {version}."
        )


def _digest(metadata: dict[str, str], tensors: Tensors) -> str:
    digest = hashlib.sha256()
    for name in ("kind", "format", "settings"):
        digest.update(f"{name} {metadata[name]}\n".encode())
    for name in sorted(tensors):
        array = tensors[name]
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
