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

__all__ = ["HANDLERS", "CannotCompileError", "build", "find_compiler", "library_path", "open_library"]

HANDLERS = ("workbench_forward", "workbench_backward")
_SOURCE = Path(__file__).with_name("simulation.cc")
_ALL_SOURCES = (*sorted(_SOURCE.parent.glob("*.h")), _SOURCE)
_FLAGS = ("-std=c++20", "-O3", "-ffp-contract=fast", "-fvisibility=hidden", "-shared", "-fPIC", "-pthread")
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_MOST_WORDS = 2000  # of a compiler, in characters
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
    # Without links on the way, because a link can be changed between a check and its use.
    return cache_folder().resolve() / "native" / f"simulation-{fingerprint}.so"


def find_compiler() -> list[str]:
    """The command of the C++ compiler; empty if there is none."""
    found = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    return shlex.split(os.environ.get("CXX", "")) or ([found] if found else [])


class CannotCompileError(WorkbenchError):
    """This machine has no C++ compiler that can compile the library; XLA is used instead."""


def build() -> Path:
    """Compile the library unless it exists, and return its path."""
    try:
        path = library_path()
        if not isinstance(open_library(), str):
            return path
        if not (compiler := find_compiler()):
            raise CannotCompileError("there is no C++ compiler.")
        _make_private(path.parent)
        _compile(compiler, path)
    except OSError as error:
        raise CannotCompileError(f"{error}.") from None
    if isinstance(problem := open_library(), str):
        raise CannotCompileError(problem or f"{path} was removed.")
    return path


def _make_private(folder: Path) -> None:
    """Make a folder, or prevent other users from writing it; refuse one in which they could replace the library."""
    for place in (*reversed(folder.parents), folder):
        place.mkdir(mode=0o755, exist_ok=True)  # also where this process lets a group write what it creates
    status = folder.lstat()
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid():
        folder.chmod(stat.S_IMODE(status.st_mode) & ~_OTHERS_WRITE)
    if problem := _distrust(folder):
        raise CannotCompileError(problem)


def _compile(compiler: list[str], path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / "simulation.so"
        # JAX's headers as system headers: warnings in them are not ours.
        rest = ["-isystem", jax.ffi.include_dir(), "-o", str(made), str(_SOURCE)]
        for flags in _PROCESSOR_FLAGS:
            command = [*compiler, *_FLAGS, *flags, *rest]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
            if done.returncode == 0:
                break
        name, words = shlex.join(compiler), done.stderr.strip()
        if done.returncode:
            # The first error is the cause of those that follow.
            short = words if len(words) <= _MOST_WORDS else words[:_MOST_WORDS] + " ..."
            raise CannotCompileError(f"{name} fails: {short or 'no error message'}")
        if not made.exists():
            raise CannotCompileError(f"{name} wrote no library.")
        made.chmod(0o755)
        made.replace(path)


def open_library() -> ctypes.CDLL | str:
    """The compiled library, or a sentence about why the file cannot be used; an empty one if there is no file."""
    path = library_path()
    try:
        if problem := _distrust(path):
            return problem
        library = ctypes.CDLL(str(path))
        for name in ("workbench_slot", *HANDLERS):
            getattr(library, name)
    except FileNotFoundError:
        return ""
    except (AttributeError, OSError) as error:
        return f"{path} cannot be loaded: {error}."
    return library


def _distrust(path: Path) -> str:
    """Why code in a place may be another user's; empty if only this user or root can have put it there."""
    for place in (path, *path.parents):
        status = place.lstat()
        mode = status.st_mode
        # Everybody can write a folder such as /tmp, but nobody can replace there what is another user's.
        is_shared = stat.S_ISDIR(mode) and mode & stat.S_ISVTX
        if stat.S_ISLNK(mode):
            reason = "is a link"
        elif status.st_uid not in (os.getuid(), 0):
            reason = "belongs to another user"
        elif mode & _OTHERS_WRITE and not is_shared:
            reason = "can be written by other users"
        else:
            continue
        return f"{place} {reason}; set WORKBENCH_CACHE to a private folder."
    return ""
