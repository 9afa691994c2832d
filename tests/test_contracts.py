"""Who may import whom: the contracts of `make lint` hold and can be broken; importing brings no widgets."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import workbench

PACKAGE = Path(workbench.__file__).parent
ROOT = Path(__file__).parents[1]

# A lazy import each, which only a linter that reads functions finds: where, of what, and the contract that it breaks.
VIOLATIONS = [
    ("attack/priors.py", "workbench.data.dataset", "The curious server sees an Observation and never a client"),
    ("session/runner.py", "workbench.views.report", "Rooms import only rooms below them"),
    ("session/session.py", "ipywidgets", "No widgets and no drawing below the views"),
    ("data/glyphs.py", "jax", "Data sets need no JAX"),
    ("session/history.py", "workbench.session.session", "No cycles between modules, lazy imports included"),
    ("study/plan/tables.py", "workbench.study.show.results", "A study: plan, run, show"),
    ("attack/matching.py", "workbench.attack.prepare", "The attack: from the records of methods up"),
]


def broken_contracts(folder):
    """The contracts that the package in a folder breaks, as import-linter prints them."""
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-logo", "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    broken = [line for line in done.stdout.splitlines() if " BROKEN" in line]
    assert (done.returncode != 0) == bool(broken), done.stdout + done.stderr
    return broken


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the package, with every violation in it."""
    folder = tmp_path_factory.mktemp("package")
    shutil.copy(ROOT / "pyproject.toml", folder)
    shutil.copytree(PACKAGE, folder / "workbench", ignore=shutil.ignore_patterns("__pycache__"))
    for file, module, _ in VIOLATIONS:
        path = folder / "workbench" / file
        path.write_text(f"{path.read_text()}\n\ndef _wrong():\n    import {module}\n")
    return folder


def test_the_contracts_are_kept():
    assert broken_contracts(ROOT) == []


def test_every_contract_finds_what_breaks_it(copy):
    broken = broken_contracts(copy)
    missed = [contract for _, _, contract in VIOLATIONS if not any(line.startswith(contract) for line in broken)]
    assert not missed, f"these contracts were broken, and only these were reported: {missed}, {broken}"


# Inside a kernel, where tqdm would bring ipywidgets: tests/session/test_kernel.py.
def test_importing_the_package_imports_no_widget_code():
    heavy = ("ipywidgets", "IPython", "matplotlib", "jupyterlab", "torch")
    code = f"import sys, workbench; print([m for m in {heavy} if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert shown.stdout.strip() == "[]", f"importing workbench brought {shown.stdout.strip()}"


def test_the_package_is_thin():
    assert len(workbench.__all__) <= 30
    for name in workbench.__all__:
        assert getattr(workbench, name) is not None
