"""The panel as a person meets it: the first notebook in a real browser, on a real JupyterLab, with a real kernel.

Measured times are printed, and asserted only where their limit is far away: other tests may keep the machine busy.
"""

import re
import shutil
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import nbformat
import pytest
from axe_playwright_python.sync_playwright import Axe
from lab_page import SECONDS, LabPage
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import expect

import workbench as wb

ROOT = Path(__file__).parents[2]
TABS = ["Reconstruction", "Epochs", "Matching", "Averaging", "Labels", "Span", "Loss", "Attacker's view"]
FIRST_CELL, PANEL_CELL = "import workbench as wb", "wb.AttackPanel()"
FULL_SIZE = """
client = wb.load_dataset("glyphs").client(0, num_images=50)
model = wb.models.femnist_cnn()
observation = wb.client_update(model, model.init(), client, wb.ClientConfig(epochs=10, batch_size=5))
wb.AttackPanel(wb.AttackSession(model, observation, wb.AttackConfig.preset("paper", "glyphs")), truth=client)
"""
SMALL = """
client = wb.load_dataset("glyphs").client(0, num_images=6)
model = wb.models.mlp(widths=(16,))
observation = wb.client_update(model, model.init(), client, wb.ClientConfig(epochs=3, batch_size=2))
attack = wb.AttackSession(model, observation, wb.AttackConfig(steps=60, step_size=0.2), snapshot_every=5)
wb.AttackPanel(attack, truth=client)
"""
BUSY = "import time; time.sleep(100)"


@pytest.fixture(scope="module")
def notebooks(tmp_path_factory):
    """A folder with the first notebook, which may be run and saved there, and with a recording beside it."""
    root = tmp_path_factory.mktemp("root")
    shutil.copytree(ROOT / "notebooks", root / "notebooks", ignore=shutil.ignore_patterns(".*"))
    client = wb.load_dataset("glyphs").client(0, num_images=4)
    model = wb.models.mlp(widths=(16,))
    observation = wb.client_update(model, model.init(), client, wb.ClientConfig(epochs=2, batch_size=2))
    session = wb.AttackSession(model, observation, wb.AttackConfig(steps=9), snapshot_every=2)
    for _ in range(9):
        session.step()
    session.record(root / "notebooks/small.recording", client)
    write_notebook(root / "notebooks/compare.ipynb", "wb.AttackPanel.compare()")
    write_notebook(root / "notebooks/again.ipynb", SMALL.replace("steps=60", "steps=100_000"))
    write_notebook(root / "notebooks/full.ipynb", FULL_SIZE)
    write_notebook(root / "notebooks/grid.ipynb", SMALL, BUSY)
    return root


def write_notebook(path, *sources):
    cells = [new_code_cell(source) for source in (FIRST_CELL, *sources)]
    kernel = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)


@pytest.fixture(scope="module")
def server(start_lab, notebooks):
    return start_lab(f"--ServerApp.root_dir={notebooks}")


@pytest.fixture
def lab(page, server):
    """The first notebook, with the panel shown and ready; the kernel ends with the test."""
    # On a narrower page, beside JupyterLab's files, the settings are in a drawer.
    page.set_viewport_size({"width": 1600, "height": 1000})
    lab = LabPage(page, server.url)
    lab.run_cells(FIRST_CELL, PANEL_CELL)
    choose_longer_run(lab)
    yield lab
    lab.shut_down()
    log = server.log.read_text()
    assert "Traceback" not in log, log[log.index("Traceback") :][:3000]


def choose_longer_run(lab):
    """The lesson is over before a test can pause it."""
    lab.wait_status("Ready", 120)
    lab.button("Characters").click()
    expect(lab.panel.get_by_label("Images N", exact=True)).to_have_value("16", timeout=60 * SECONDS)
    lab.wait_status("Ready", 120)


def timed(what, action):
    started = time.perf_counter()
    action()
    taken = time.perf_counter() - started
    print(f"{what}: {taken:.2f} s")
    return taken


def count_changes(lab, seconds):
    """How many different pictures were seen a second."""
    lab.page.evaluate(
        """() => {
            window.seen = 0;
            const caption = [...document.querySelectorAll(".wb-panel .wbg-caption")].find((one) => one.offsetParent);
            new MutationObserver(() => { window.seen += 1; }).observe(caption, { childList: true });
        }"""
    )
    lab.page.wait_for_timeout(seconds * SECONDS)
    return lab.page.evaluate("window.seen") / seconds


def test_run_watch_steer_pause_scrub_and_restart(lab):
    before = lab.wait_picture()
    lab.button("Run").click()
    first = timed("first optimised picture after Run", lambda: lab.wait_picture(other_than=before, step_at_least=1))
    assert first < 60
    expect(lab.progress).to_contain_text("steps/s", timeout=60 * SECONDS)
    print(f"pictures a second: {count_changes(lab, 2):.1f}")

    slider = lab.slider("Smoothness")
    slider.focus()
    lab.page.keyboard.press("ArrowRight")
    lab.wait_status("Smoothness (tv) =")

    lab.button("Pause").click()
    acknowledged = timed("Pause acknowledged", lambda: lab.wait_status("Paus"))
    assert acknowledged < 10
    lab.wait_status("Paused at step", 60)
    held = lab.progress.inner_text()
    lab.choose_tab("Loss")
    expect(lab.caption).to_contain_text("1 steering event,", timeout=20 * SECONDS)
    lab.choose_tab("Reconstruction")

    scrub_to_the_start(lab, "the newest")
    assert lab.progress.inner_text() == held

    lab.page.keyboard.press("End")
    expect(lab.moment).to_contain_text("the newest", timeout=20 * SECONDS)
    lab.page.wait_for_timeout(SECONDS)
    before = lab.wait_picture()
    lab.button("Resume").click()
    timed("first picture after Run when compiled", lambda: lab.wait_picture(other_than=before))
    lab.button("Stop").click()
    timed("Stop acknowledged", lambda: lab.wait_status("Stop"))

    lab.restart_kernel()
    lab.run_cells(FIRST_CELL, PANEL_CELL)
    choose_longer_run(lab)
    before = lab.wait_picture()
    lab.button("Run").click()
    lab.wait_picture(other_than=before, step_at_least=1)
    lab.button("Pause").click()
    lab.wait_status("Paus")


def test_every_tab_in_both_themes_with_text_alternatives_and_a_recording(lab):
    lab.button("Run").click()
    lab.wait_status("Running", 120)
    lab.button("Pause").click()
    lab.wait_status("Paused", 60)
    for theme in ("light", "dark"):
        lab.set_theme(theme)
        for tab in TABS:
            lab.choose_tab(tab)
            expect(lab.caption).not_to_be_empty(timeout=60 * SECONDS)
            expect(lab.caption).not_to_contain_text("being estimated", timeout=60 * SECONDS)
            for image in lab.panel.locator("img:visible").all():
                assert image.get_attribute("title"), f"a picture of {tab} has no text alternative"
            faults = Axe().run(lab.page, context=".wb-panel .widget-tab-contents").response["violations"]
            serious = [
                fault["nodes"][0]["html"][:200] for fault in faults if fault["impact"] in ("serious", "critical")
            ]
            assert serious == [], f"{tab} in the {theme} theme: {serious}"
    lab.set_theme("light")
    lab.choose_tab("Reconstruction")
    load_a_recording_and_scrub(lab)


def scrub_to_the_start(lab, from_where):
    expect(lab.moment).to_contain_text(from_where, timeout=20 * SECONDS)
    last = lab.wait_picture()
    lab.timeline.focus()
    lab.page.keyboard.press("Home")
    timed("an earlier moment shown", lambda: lab.wait_picture(other_than=last))
    expect(lab.moment).to_contain_text("step 0 of", timeout=20 * SECONDS)


def load_a_recording_and_scrub(lab):
    name = lab.panel.get_by_label("File", exact=True)
    name.fill("small")
    name.press("Enter")
    lab.button("Load").click()
    lab.wait_status("Loaded small.recording")
    expect(lab.button("Run")).to_be_disabled()
    scrub_to_the_start(lab, "the end")
    lab.page.keyboard.press("ArrowRight")
    expect(lab.moment).to_have_text("step 2 of 9", timeout=20 * SECONDS)


@pytest.mark.slow
def test_a_pause_is_acknowledged_while_compiling_and_the_page_stays_alive(lab):
    field = lab.panel.get_by_label("Images N", exact=True)
    field.fill("6")
    field.press("Tab")
    lab.wait_status("settings have changed")
    lab.button("Build and run").click()
    # What another run of the tests has compiled is only read again, and may be over at once.
    expect(lab.status).to_contain_text(re.compile("Compiling|Running"), timeout=120 * SECONDS)
    print("pausing while it says:", lab.status.inner_text())
    lab.button("Pause").click()
    assert timed("Pause acknowledged while compiling", lambda: lab.wait_status("Paus")) < 10
    lab.wait_status("Paused at step", 120)


@pytest.mark.slow
def test_all_cells_of_the_first_notebook_run_and_its_panel_works(page, server):
    lab = LabPage(page, server.url)
    lab.run_all()
    lab.wait_status("Ready", 200)
    before = lab.wait_picture()
    lab.button("Run").click()
    lab.wait_picture(other_than=before, step_at_least=1)
    lab.wait_status("Finished", 200)
    assert page.locator(".jp-RenderedText[data-mime-type='application/vnd.jupyter.error']").count() == 0
    lab.shut_down()


@contextmanager
def opened(page, server, name, *cells):
    """Another notebook alone on a page, with these cells run; with the block the page is left and the kernel ends."""
    address = urlsplit(server.url)
    lab = LabPage(page, address._replace(path=f"/doc/tree/notebooks/{name}.ipynb").geturl())
    lab.run_cells(*cells)
    yield lab
    kernel = lab.kernel_id
    page.goto("about:blank")
    page.context.request.delete(address._replace(path=f"/api/kernels/{kernel}").geturl())


def places_of_images(lab):
    """Where every reconstruction is, by its number."""
    return lab.pictures.evaluate_all(
        "(all) => Object.fromEntries(all.map((one) => [one.dataset.image, one.dataset.place]))"
    )


def test_pictures_keep_their_places_and_scrubbing_needs_no_kernel(page, server):
    with opened(page, server, "grid", FIRST_CELL, "snapshot_every") as lab:
        lab.wait_status("Ready", 120)
        lab.wait_picture()
        lab.button("Run").click()
        lab.wait_status("Finished", 200)
        expect(lab.caption).to_contain_text("Step 60.", timeout=30 * SECONDS)
        expect(lab.timeline).not_to_have_attribute("max", re.compile("^[0-9]$"), timeout=30 * SECONDS)
        page.wait_for_timeout(3 * SECONDS)  # until the page has every kept moment
        places, last = places_of_images(lab), lab.pixels()
        lab._choose_cell(BUSY)
        lab.command("notebook:run-cell")
        busy = "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status"
        page.wait_for_function(f"({busy})() === 'busy'")
        lab.timeline.focus()
        page.keyboard.press("Home")
        expect(lab.caption).to_contain_text("Step 0.", timeout=5 * SECONDS)
        assert page.evaluate(busy) == "busy", "the kernel answered, so this shows nothing"
        assert lab.pixels() != last, "the first noise looks like the result"
        for _ in range(12):
            page.keyboard.press("ArrowRight")
            page.wait_for_timeout(30)
            assert places_of_images(lab) == places, "pictures changed places"
        page.keyboard.press("End")
        expect(lab.moment).to_contain_text("the newest")
        lab.panel.locator(".wbg-place").nth(1).hover()
        expect(lab.panel.locator("canvas.wbg-marked:visible")).to_have_count(2)
        # A kernel that ends while it runs a cell writes an error into the server's log.
        lab.command("notebook:interrupt-kernel")
        expect(page.locator(".jp-InputPrompt", has_text="[*]")).to_have_count(0, timeout=30 * SECONDS)


@pytest.mark.slow
def test_a_pause_is_acknowledged_during_a_run_of_full_size(page, server):
    with opened(page, server, "full", FIRST_CELL, "paper") as lab:
        lab.wait_status("Ready", 120)
        lab.button("Run").click()
        expect(lab.progress).to_have_text(re.compile(r"^([2-9]|\d\d+) of "), timeout=200 * SECONDS)
        lab.button("Pause").click()
        assert timed("Pause acknowledged at 10x5x50", lambda: lab.wait_status("Paus")) < 10
        timed("and in effect after it", lambda: lab.wait_status("Paused at step", 60))
        lab.button("Resume").click()
        lab.wait_status("Running", 60)
        lab.button("Stop").click()
        assert timed("Stop acknowledged at 10x5x50", lambda: lab.wait_status("Stop")) < 10
        lab.wait_status("Stopped at step", 60)


@pytest.mark.slow
def test_two_notebooks_at_once_run_side_by_side(lab, page, server):
    other_page = page.context.new_page()
    with opened(other_page, server, "compare", FIRST_CELL, "compare") as other:
        expect(other.page.locator(".wb-panel")).to_have_count(2)
        for panel in other.page.locator(".wb-panel").all():
            expect(panel.get_by_role("status").first).to_contain_text("Ready", timeout=120 * SECONDS)
        before = lab.wait_picture()
        lab.button("Run").click()
        other.page.get_by_role("button", name="Run both").click()
        lab.wait_picture(other_than=before, step_at_least=1)
        for panel in other.page.locator(".wb-panel").all():
            expect(panel.get_by_text(re.compile(r"^([2-9]|\d\d+) of \d+ steps"))).to_be_visible(timeout=120 * SECONDS)
        # A tab that is chosen on one side is chosen on the other.
        other.choose_tab("Loss")
        expect(other.page.locator(".lm-TabBar-tab.lm-mod-current", has_text="Loss")).to_have_count(2)
        other.page.get_by_role("button", name="Pause both").click()
        over = re.compile("Paused at step|Finished")
        for panel in other.page.locator(".wb-panel").all():
            expect(panel.get_by_role("status").first).to_contain_text(over, timeout=60 * SECONDS)
        lab.button("Pause").click()
        lab.wait_status("Paus")
    other_page.close()


@pytest.mark.slow
def test_a_notebook_that_is_closed_and_opened_again_shows_the_running_attack(page, server):
    with opened(page, server, "again", FIRST_CELL, "snapshot_every") as lab:
        lab.wait_status("Ready", 120)
        lab.button("Run").click()
        lab.wait_status("Running", 120)
        lab.command("docmanager:save")
        page.wait_for_function("() => !window.jupyterapp.shell.currentWidget.context.model.dirty")
        url = page.url
        page.goto("about:blank")
        page.goto(url)
        lab.wait_ready()
        expect(lab.panel).to_be_visible(timeout=60 * SECONDS)
        lab.wait_picture(step_at_least=1, timeout=60)
        expect(lab.status).to_contain_text(re.compile("Running|Finished"), timeout=60 * SECONDS)
        # The timeline follows, and earlier moments are there again.
        expect(lab.moment).to_contain_text("the newest", timeout=30 * SECONDS)
        lab.timeline.focus()
        page.keyboard.press("Home")
        expect(lab.caption).to_contain_text("Step 0.", timeout=60 * SECONDS)
        page.keyboard.press("End")
        expect(lab.moment).to_contain_text("the newest", timeout=30 * SECONDS)
        lab.button("Reset").click()
        lab.wait_status("Back at step 0")


def test_the_log_of_the_server_has_no_error(server):
    log = server.log.read_text()
    assert "Traceback" not in log
    assert "[E " not in log
