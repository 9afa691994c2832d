"""Atomic writing of files."""

import os
import tempfile
from pathlib import Path

from workbench.errors import DataError, check_path

__all__ = ["make_folder", "write_atomically"]


def make_folder(path: str | os.PathLike[str], field: str = "path") -> Path:
    """The folder, created if it does not exist."""
    folder = check_path(field, path, "the path of a folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise DataError(f"{field} = '{path}' is not a writable directory: {_reason(error)}.") from None
    return folder


def write_atomically(path: str | os.PathLike[str], content: bytes) -> None:
    """Write to a temporary folder beside the file, sync, then rename: a reader never sees a partial file."""
    target = check_path("path", path, "a path to write to")
    make_folder(target.parent)
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
            temporary = Path(folder, target.name)
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)  # noqa: PTH105 - os.replace is the documented atomic call
    except (OSError, ValueError) as error:
        raise DataError(f"{target} cannot be written: {_reason(error)}.") from None


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
