"""What a lecturer meets, in a real browser: the lesson, scenarios, help, widths, Present, keys and a lost kernel."""

import re

import nbformat
import pytest
from lab_page import SECONDS, LabPage
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import expect

CELLS = ("import workbench as wb", "wb.AttackPanel()")
LOST = "The kernel of this panel is gone"


@pytest.fixture(scope="module")
def server(start_lab, tmp_path_factory):
    root = tmp_path_factory.mktemp("root")
    kernel = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
    notebook = new_notebook(cells=[new_code_cell(cell) for cell in CELLS], metadata={"kernelspec": kernel})
    (root / "notebooks").mkdir()
    # The notebook that JupyterLab opens.
    nbformat.write(notebook, root / "notebooks/00_start_here.ipynb")
    return start_lab(f"--ServerApp.root_dir={root}")


def width_of(locator):
    return locator.bounding_box()["width"]


def test_the_lesson_is_ready_to_be_shown(page, server):
    lab = LabPage(page, server.url)
    lab.run_cells(*CELLS)
    lab.wait_status("Ready", 120)
    lab.command("application:toggle-left-area")
    settings = lab.panel.locator(".wb-settings")

    # Help opens with the keyboard, and keys that JupyterLab knows do nothing outside their control.
    question = lab.panel.get_by_label("About Epochs E")
    question.focus()
    page.keyboard.press("Enter")
    expect(lab.panel.get_by_text("symbol E · Section 3.1").first).to_be_visible()
    num_cells = page.locator(".jp-Cell").count()
    for key in "bax":
        page.keyboard.press(key)
    page.wait_for_timeout(SECONDS / 2)
    assert page.locator(".jp-Cell").count() == num_cells, "a shortcut of JupyterLab was executed"
    handle = lab.slider("Smoothness")
    expect(handle).to_have_attribute("aria-label", "Smoothness (tv)")
    expect(handle).to_have_attribute("aria-valuetext", "1e-05")
    handle.focus()
    page.keyboard.press("ArrowRight")
    expect(handle).to_have_attribute("aria-valuetext", "2e-05")

    lab.button("Run").click()
    lab.wait_status("Finished: 180 of 180 steps", 240)
    picture = lab.pictures.first
    usual = width_of(picture)
    lab.button("Present").click()
    expect(settings).to_be_hidden()
    assert width_of(picture) > 1.3 * usual, "pictures are hardly larger"
    lab.button("Present").click()
    expect(settings).to_be_visible()

    # On a narrow page, pictures come first and settings are in a drawer.
    expect(lab.button("Settings")).to_be_hidden()
    page.set_viewport_size({"width": 960, "height": 900})
    expect(settings).to_be_hidden()
    lab.button("Settings").click()
    expect(settings).to_be_visible()
    assert lab.button("Run").bounding_box()["y"] < settings.bounding_box()["y"]
    lab.button("Settings").click()
    expect(settings).to_be_hidden()

    lab.restart_kernel()
    before = "getComputedStyle(document.querySelector('.wb-panel'), '::before').content"
    page.wait_for_function(f"text => {before}.includes(text)", arg=LOST)
    lab.run_cells(*CELLS)
    lab.wait_status("Ready", 120)
    assert LOST not in page.evaluate(before)
    lab.shut_down()


@pytest.mark.slow
def test_a_scenario_is_one_click(page, server):
    lab = LabPage(page, server.url)
    lab.run_cells(*CELLS)
    lab.wait_status("Ready", 120)
    lab.button("Two clients").click()
    expect(lab.status).to_contain_text(re.compile("Building"), timeout=20 * SECONDS)
    lab.wait_status("Ready", 240)
    expect(lab.panel.get_by_label("Clients", exact=True)).to_have_value("2")
    lab.shut_down()
