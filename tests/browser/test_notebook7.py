"""The panel in Jupyter Notebook 7, which is another application than JupyterLab."""

from urllib.parse import urlsplit

import pytest
from lab_page import SECONDS, LabPage, running_lab, write_notebook
from playwright.sync_api import expect

CELLS = ("import workbench as wb", "wb.AttackPanel()")


class NotebookPage(LabPage):
    main = "#main-panel"


@pytest.fixture
def page(browser):
    """A page without the checks of other tests: Notebook 7.6 itself raises an error, also without a panel."""
    errors = []
    page = browser.new_page(viewport={"width": 1600, "height": 1000})
    page.on("pageerror", lambda error: errors.append(str(error.stack)))
    yield page
    page.close()
    assert [error for error in errors if "/static/notebook/" not in error] == []


@pytest.mark.slow
def test_the_panel_runs_in_notebook_7(page, tmp_path):
    write_notebook(tmp_path / "root/panel.ipynb", *CELLS)
    server = ("-m", "notebook", "--ip=127.0.0.1", "--allow-root")
    with running_lab(tmp_path, f"--ServerApp.root_dir={tmp_path / 'root'}", server=server) as notebook:
        lab = NotebookPage(page, urlsplit(notebook.url)._replace(path="/notebooks/panel.ipynb").geturl())
        lab.run_cells(*CELLS)
        lab.wait_status("Ready", 120)
        before = lab.wait_picture()
        lab.button("Run").click()
        lab.wait_picture(other_than=before, step_at_least=1)
        lab.wait_status("Finished: 180 of 180 steps", 240)
        expect(lab.caption).to_contain_text("Step 180.", timeout=30 * SECONDS)
        lab.timeline.focus()
        page.keyboard.press("Home")
        expect(lab.caption).to_contain_text("Step 0.", timeout=30 * SECONDS)
        lab.choose_tab("Matching")
        expect(lab.caption).to_contain_text("Epoch 1 above, epoch 2 below", timeout=30 * SECONDS)
        lab.shut_down()
        log = notebook.log.read_text()
    assert "Traceback" not in log, log[log.index("Traceback") :][:3000]
