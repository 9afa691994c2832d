"""Compiling `simulation.cc` for this processor, and loading the result if it can be trusted."""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
from importlib.metadata import version
from pathlib import Path

import jax

from workbench.errors import WorkbenchError
from workbench.files.cache import cache_folder

__all__ = ["CannotCompileError", "build", "find_compiler", "library_path", "open_library"]

_SOURCE = Path(__file__).with_name("simulation.cc")
_ALL_SOURCES = (*sorted(_SOURCE.parent.glob("*.h")), _SOURCE)
_FLAGS = ("-std=c++20", "-O3", "-ffp-contract=fast", "-fvisibility=hidden", "-shared", "-fPIC", "-pthread")
# Optimise for this processor: the flag of most compilers, the flag of some on ARM, and no flag at all.
_PROCESSOR_FLAGS = (("-march=native",), ("-mcpu=native",), ())


def library_path() -> Path:
    """The path of the compiled library, which depends on the sources, the processor and the version of JAX."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        # Several machines may share a home folder, so each has its library.
        processor = platform.node()
    sources = (path.read_text() for path in _ALL_SOURCES)
    content = (*sources, *_FLAGS, platform.machine(), processor, jax.__version__, version("jaxlib"))
    fingerprint = hashlib.sha256(chr(0).join(content).encode()).hexdigest()[:16]
    return cache_folder() / "native" / f"simulation-{fingerprint}.so"


def find_compiler() -> list[str]:
    """The command of the C++ compiler; empty if there is none."""
    found = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    return shlex.split(os.environ.get("CXX", "")) or ([found] if found else [])


class CannotCompileError(WorkbenchError):
    """This machine has no C++ compiler that can compile the library; XLA is used instead."""


def build() -> Path:
    """Compile the library unless it exists, and return its path."""
    compiler = find_compiler()
    try:
        path = library_path()
        if not isinstance(open_library(), str):
            return path
        if not compiler:
            raise CannotCompileError("there is no C++ compiler.")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(0o755)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / "simulation.so"
            # JAX's headers as system headers: warnings in them are not ours.
            rest = ["-isystem", jax.ffi.include_dir(), "-o", str(made), str(_SOURCE)]
            for flags in _PROCESSOR_FLAGS:
                command = [*compiler, *_FLAGS, *flags, *rest]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode == 0:
                    made.chmod(0o755)
                    made.replace(path)
                    break
    except OSError as error:
        raise CannotCompileError(f"{error}.") from None
    if done.returncode:
        raise CannotCompileError(f"{shlex.join(compiler)} fails: {done.stderr.strip() or 'no error message'}")
    if isinstance(problem := open_library(), str):
        raise CannotCompileError(problem or f"{shlex.join(compiler)} wrote no library.")
    return path


def open_library() -> ctypes.CDLL | str:
    """The compiled library, or a sentence about why the file cannot be used; an empty one if there is no file."""
    path = library_path()
    try:
        return _distrust(path) or ctypes.CDLL(str(path))
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{path} cannot be loaded: {error}."


def _distrust(path: Path) -> str:
    """Why the code in a file may be another user's; empty if only this user or root can have put it there."""
    path = path.resolve()
    for place in (path, *path.parents):
        status = place.stat()
        # Further up, a group may write, and in a folder such as /tmp nobody can replace what is another user's.
        is_near = place in (path, path.parent)
        forbidden = 0o022 if is_near else 0 if status.st_mode & stat.S_ISVTX else 0o002
        if status.st_uid not in (os.getuid(), 0) or status.st_mode & forbidden:
            return f"{place} is another user's or others can write it; set WORKBENCH_CACHE to a private folder."
    return ""
