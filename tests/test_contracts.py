"""Who may know whom: the curious server never sees client data, and importing the package imports no widgets."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import workbench

PACKAGE = Path(workbench.__file__).parent


def imports(file):
    """Every module and name that a file imports."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


FORBIDDEN = {
    "attack": (
        "workbench.data",
        "workbench.federated.client",
        "workbench.metrics",
        "workbench.session.session",
        "workbench.views",
    ),
    "federated": ("workbench.attack", "workbench.session.session", "workbench.views"),
    "data": ("workbench.attack", "workbench.federated", "workbench.models", "jax"),
}


@pytest.mark.parametrize(("folder", "forbidden"), FORBIDDEN.items(), ids=list(FORBIDDEN))
def test_dependencies_point_one_way(folder, forbidden):
    files = sorted((PACKAGE / folder).glob("*.py"))
    assert files, f"workbench/{folder} is empty"
    wrong = [f"{file.name}: {name}" for file in files for name in imports(file) if name.startswith(forbidden)]
    assert not wrong, f"workbench/{folder} must not import {wrong}"


def test_the_attack_never_names_client_data():
    wrong = [
        f"{file.name}: {name}"
        for file in (PACKAGE / "attack").glob("*.py")
        for name in imports(file)
        if name.split(".")[-1] in ("ClientData", "ClientSecrets", "Dataset", "load_dataset", "client")
    ]
    assert not wrong, f"workbench/attack must not know client data, and imports {wrong}"


@pytest.mark.parametrize(
    "file", ["session/session.py", "session/runner.py", "session/checkpoint.py", "training/sgd.py", "models.py"]
)
def test_no_views_below_the_views(file):
    wrong = [
        name for name in imports(PACKAGE / file) if name.startswith(("workbench.views", "ipywidgets", "matplotlib"))
    ]
    assert not wrong, f"workbench/{file} must not import {wrong}"


def test_importing_the_package_imports_no_widget_code():
    heavy = ("ipywidgets", "IPython", "matplotlib", "jupyterlab", "torch")
    code = f"import sys, workbench; print([m for m in {heavy} if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert shown.stdout.strip() == "[]", f"importing workbench brought {shown.stdout.strip()}"


def test_the_package_is_thin():
    assert len(workbench.__all__) <= 30
    for name in workbench.__all__:
        assert getattr(workbench, name) is not None
