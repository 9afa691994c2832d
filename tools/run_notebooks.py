"""Run notebooks and keep their outputs: python tools/run_notebooks.py [NOTEBOOK ...]

As the tests want them: run from top to bottom in a fresh kernel, without widget state and without views of widgets,
which are broken where their kernel is gone. Of a progress bar nothing is kept: its text is that of its start. The
metadata of cells is kept.
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
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not is_progress_bar(output.get("data", {}))]
            for output in cell.outputs:
                output.get("data", {}).pop(VIEW, None)
    nbformat.write(notebook, path)  # type: ignore[no-untyped-call]


def is_progress_bar(data: dict[str, str]) -> bool:
    """Whether an output is the view of a progress bar."""
    return VIEW in data and "%|" in data["text/plain"]


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]) if sys.argv[1:] else sorted(FOLDER.glob("*.ipynb")):
        print(path.name, flush=True)
        run(path)
