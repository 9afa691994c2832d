"""Reading files of unknown content: every failure becomes a `DataError` that names the file."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.errors import DataError

__all__ = ["existing_path", "read_npz", "reading"]


def existing_path(path: str | os.PathLike[str], expected: str) -> Path:
    """``path`` as a Path if it exists; ``expected`` describes what should be there."""
    try:
        found = Path(path).expanduser()
        exists = found.exists()
    except (TypeError, ValueError, RuntimeError, OSError):
        # Not a path, the home folder of an unknown user, or a name too long for the file system.
        raise DataError(f"path = {path!r:.200} is not a path; expected {expected}.") from None
    if not exists:
        raise DataError(f"path = '{found}' does not exist; expected {expected}.")
    return found


@contextmanager
def reading(path: Path, expected: str) -> Iterator[None]:
    """A context that turns any failure to read ``path`` into one sentence with the file and what is ``expected``.

    >>> with reading(Path("pictures.npz"), "an .npz file"):
    ...     raise EOFError("no more bytes")
    Traceback (most recent call last):
    ...
    workbench.errors.DataError: pictures.npz cannot be read (no more bytes); expected an .npz file.
    """
    try:
        yield
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    # Readers of zip, gzip, tar, JSON and images raise a dozen different types on invalid bytes.
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise DataError(f"{path} cannot be read ({reason}); expected {expected}.") from None


def read_npz(path: Path, expected: str, *names: str) -> dict[str, NDArray[Any]]:
    """The named arrays of an ``.npz`` file, or all of them if none is named; nothing in it is ever unpickled."""
    # Opened here because NumPy does not close a file that looks like a zip archive but cannot be read.
    with reading(path, expected), path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        missing = [name for name in names if name not in archive.files]
        if missing:
            raise DataError(
                f"has no array {missing[0]!r}, only {', '.join(archive.files) or 'none'}; expected {expected}."
            )
        return {name: archive[name] for name in names or archive.files}
