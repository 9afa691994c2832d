"""Files that are validated before use: safetensors with settings as JSON, never unpickled.

The metadata holds the kind of file, a format version, the settings, and a SHA-256 of settings and tensors, which
detects any change to either.
"""

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

from workbench.errors import CheckpointError, WorkbenchError, check_path, shown
from workbench.files.writing import write_atomically

__all__ = ["Tensors", "check_keys", "digest_of", "fitting_together", "kind_of", "read", "write"]

Tensors = dict[str, NDArray[Any]]

# Far above what the workbench writes, and small enough that parsing cannot exhaust memory.
_LARGEST_HEADER = 8 * 2**20
_LARGEST_SETTINGS = 2**20

# What our constructors, NumPy and JSON's types raise on invalid settings and tensors.
_INVALID_CONTENT = (
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
    """Write a file atomically: a reader sees either the old file or the new one."""
    text = json.dumps(settings, sort_keys=True, allow_nan=False)
    metadata = {"kind": kind, "format": str(version), "settings": text}
    write_atomically(path, save(tensors, {**metadata, "sha256": _digest(metadata, tensors)}))


def read(path: str | os.PathLike[str], kind: str, version: int) -> tuple[dict[str, Any], Tensors]:
    """The settings and tensors of a complete file of this kind, in this format version or an older one."""
    with _opened(path, kind) as (file, opened):
        metadata = opened.metadata() or {}
        found, form = metadata.get("kind"), metadata.get("format", "")
        if found != kind:
            raise CheckpointError(f"{file} is not a saved {kind} but {shown(found) if found else 'something else'}.")
        if not (form.isascii() and form.isdigit() and len(form) < 9 and int(form) > 0):
            raise CheckpointError(f"{file} is damaged: its format version is {shown(form)}.")
        if int(form) > version:
            raise CheckpointError(
                f"{file} has format {form} and was written by a newer workbench; this one reads up to format {version}."
            )
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - not a dict
        if _digest(metadata, tensors) != metadata["sha256"]:
            raise CheckpointError(f"{file} is damaged: its content does not match its checksum.")
        text = metadata["settings"]
        settings = json.loads(text) if len(text) <= _LARGEST_SETTINGS else None
    if not isinstance(settings, dict):
        raise CheckpointError(f"{file} is not a saved {kind}: its settings are not a JSON object, or are too large.")
    return settings, tensors


def kind_of(path: str | os.PathLike[str]) -> str:
    """The kind of file according to its metadata, without validating the rest; empty if the metadata has none."""
    with _opened(path, "file of the workbench") as (_, opened):
        return (opened.metadata() or {}).get("kind", "")


@contextmanager
def fitting_together(path: str | os.PathLike[str], kind: str) -> Iterator[None]:
    """A context for using what was read: invalid content becomes a `CheckpointError` with one sentence."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None
    except _INVALID_CONTENT as error:
        reason = str(error) or type(error).__name__
        raise CheckpointError(f"{path} does not hold a consistent {kind}: {reason}") from None


def check_keys(found: dict[str, Any], expected: Iterable[str]) -> None:
    """Check that the settings have exactly the expected keys."""
    if wrong := sorted(set(found) ^ set(expected)):
        raise CheckpointError(f"its settings differ from the expected ones in {shown(wrong[0])}.")


@contextmanager
def _opened(path: str | os.PathLike[str], kind: str) -> Iterator[tuple[Path, Any]]:
    """A context with the path and its opened safetensors file; damage becomes a `CheckpointError` with one sentence."""
    file = check_path("path", path, f"the path of a saved {kind}", CheckpointError)
    if not file.is_file():
        raise CheckpointError(f"{file} does not exist; expected a saved {kind}.")
    try:
        _check_header(file, kind)
        with safe_open(file, framework="numpy") as opened:
            yield file, opened
    except CheckpointError:
        raise
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, RecursionError, MemoryError) as error:
        raise CheckpointError(f"{file} is not a complete {kind}: {shown(str(error))}.") from None


def _check_header(file: Path, kind: str) -> None:
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        header = opened.read(length) if length <= _LARGEST_HEADER else b""
    # JSON allows tabs and line breaks between tokens, which the checksum does not cover; the workbench writes none.
    if not header or min(header) < 0x20:
        raise CheckpointError(f"{file} is not a complete {kind}: its header is missing, too long or damaged.")


def _digest(metadata: dict[str, str], tensors: Tensors) -> str:
    texts = "".join(f"{name} {metadata[name]}\n" for name in ("kind", "format", "settings"))
    return digest_of(tensors, texts)


def digest_of(tensors: Tensors, texts: str = "") -> str:
    """SHA-256 of some texts and of the names, types, shapes and contents of tensors."""
    digest = hashlib.sha256(texts.encode())
    for name, array in sorted(tensors.items()):
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
