"""Every walkthrough in a real JupyterLab: all its cells are run, and none ends in an error."""

import shutil
from pathlib import Path

import pytest
from playwright.sync_api import expect

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
RUN_WITHIN = 500_000  # milliseconds; a busy machine compiles slowly

# The counts and outputs of all cells are cleared first, so that what is found afterwards is new.
RUN_ALL = """async (path) => {
    const app = window.jupyterapp;
    const panel = await app.commands.execute("docmanager:open", { path, factory: "Notebook" });
    await panel.context.ready;
    await panel.sessionContext.ready;
    await app.commands.execute("notebook:clear-all-cell-outputs");
    app.commands.execute("notebook:run-all-cells").then(() => { window.isOver = true; });
}"""
RESULT = """() => {
    const cells = window.jupyterapp.shell.currentWidget.content.model.sharedModel.cells;
    const code = cells.filter((cell) => cell.cell_type === "code");
    const outputs = code.flatMap((cell) => cell.getOutputs());
    return {
        counts: code.map((cell) => cell.execution_count),
        errors: outputs.filter((o) => o.output_type === "error").map((o) => `${o.ename}: ${o.evalue}`),
        pictures: outputs.filter((o) => o.data && "image/png" in o.data).length,
    };
}"""


@pytest.fixture(scope="module")
def server(start_lab, tmp_path_factory):
    """JupyterLab on a copy: it saves what was run."""
    root = tmp_path_factory.mktemp("root")
    for folder in ("notebooks", "assets"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns(".*"))
    return start_lab(f"--ServerApp.root_dir={root}", "--LabApp.default_url=/lab")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_all_cells_run_without_error(page, server, notebook):
    # Without the notebooks of earlier tests, whose kernels are gone.
    page.goto(f"{server.url}&reset")
    expect(page.locator("#jp-main-dock-panel")).to_be_visible(timeout=60_000)
    page.wait_for_function("window.jupyterapp !== undefined")
    page.evaluate(RUN_ALL, f"notebooks/{notebook.name}")
    page.wait_for_function("window.isOver === true", timeout=RUN_WITHIN)
    result = page.evaluate(RESULT)
    page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    assert result["errors"] == []
    assert result["counts"] == list(range(1, len(result["counts"]) + 1)), "not all cells were run"
    assert result["pictures"] > 0, "no picture was shown"
