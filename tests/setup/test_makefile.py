"""`make`, as someone meets it who has just cloned the project."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TARGETS = [
    "setup",
    "lab",
    "demo",
    "test",
    "test-all",
    "bench",
    "docs",
    "lint",
    "types",
    "format",
    "native-check",
    "clean",
    "help",
]


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # A make above this one would pass its own options on.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        ["make", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    folder = tmp_path / "a clone with spaces"
    generated = shutil.ignore_patterns(".git", ".venv", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis")
    shutil.copytree(ROOT, folder, ignore=generated)
    return folder


def python_that_says(folder: Path, version: str) -> str:
    """A command like python3 that takes itself for another version."""
    command = folder / "python"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "import sys; sys.version_info = ({version}); $2"\n')
    command.chmod(0o755)
    return f"PYTHON={command}"


def test_help_names_every_target():
    listed = [line.split()[1] for line in make(ROOT, "help").stdout.splitlines()]
    assert sorted(listed) == sorted(TARGETS)


def test_a_python_that_is_too_old_gets_one_sentence(clone, tmp_path):
    answer = make(clone, "setup", python_that_says(tmp_path, "3, 10, 13"))
    sentence, end_of_make = answer.stderr.splitlines()
    assert sentence.startswith("The workbench needs Python 3.11 or newer, and ")
    assert "is 3.10: " in sentence
    assert end_of_make.startswith("make: ***")
    assert not (clone / ".venv").exists()


def test_a_python_that_is_not_there_gets_one_sentence(clone):
    answer = make(clone, "setup", "PYTHON=no-such-python")
    assert answer.stderr.splitlines()[0].startswith("There is no 'no-such-python': install Python 3.11 or newer")
    assert not (clone / ".venv").exists()


@pytest.mark.parametrize("changed", ["pyproject.toml", "constraints.txt"])
def test_setup_runs_again_only_when_what_it_installs_has_changed(clone, changed):
    ready = clone / ".venv/.ready"
    ready.parent.mkdir()
    ready.touch()
    assert make(clone, "--question", "setup").returncode == 0
    os.utime(clone / changed, (time.time() + 60,) * 2)
    assert make(clone, "--question", "setup").returncode == 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_fresh_clone_in_a_path_with_spaces_sets_itself_up(clone):
    first = make(clone, "setup", f"PYTHON={sys.executable}")
    assert first.returncode == 0, first.stderr
    started = time.monotonic()
    assert make(clone, "setup").returncode == 0
    assert time.monotonic() - started < 1
    help_text = subprocess.run(
        [clone / ".venv/bin/workbench", "--help"], cwd=clone.parent, capture_output=True, check=True
    )
    assert b"Usage" in help_text.stdout
    assert make(clone, "clean").returncode == 0
    assert not (clone / ".venv").exists()
