"""Run notebooks and keep their outputs: python tools/run_notebooks.py [NOTEBOOK ...]

As the tests want them: run from top to bottom in a fresh kernel, without widget state and without views of widgets,
which are broken where their kernel is gone.
"""

import copy
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "notebooks"
VIEW = "application/vnd.jupyter.widget-view+json"


def run(path: Path) -> None:
    """Run one notebook in place."""
    notebook: Any = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    metadata = copy.deepcopy(notebook.metadata)
    where = {"metadata": {"path": str(path.parent)}}
    # A busy machine splits what a cell prints.
    NotebookClient(notebook, timeout=600, resources=where, coalesce_streams=True).execute()
    notebook.metadata = metadata
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", []):
            output.get("data", {}).pop(VIEW, None)
    nbformat.write(notebook, path)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]) if sys.argv[1:] else sorted(FOLDER.glob("*.ipynb")):
        print(path.name, flush=True)
        run(path)
