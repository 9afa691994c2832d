"""The panel as a person meets it: the first notebook in a real browser, on a real JupyterLab, with a real kernel.

Measured times are printed, and asserted only where their limit is far away: other tests may keep the machine busy.
"""

import re
import shutil
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from lab_page import SECONDS, LabPage, write_notebook
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
PAIR = (
    SMALL.split("attack =", maxsplit=1)[0]
    + """
sessions = [
    wb.AttackSession(model, observation, wb.AttackConfig(method=method, steps=60, step_size=0.2), snapshot_every=5)
    for method in ("ours_prior", "fedsgd")
]
wb.AttackPanel.compare(*sessions, truth=client, names=("all steps", "one gradient"))
"""
)
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
    write_notebook(root / "notebooks/compare.ipynb", FIRST_CELL, "wb.AttackPanel.compare()")
    write_notebook(root / "notebooks/again.ipynb", FIRST_CELL, SMALL.replace("steps=60", "steps=100_000"))
    write_notebook(root / "notebooks/full.ipynb", FIRST_CELL, FULL_SIZE)
    write_notebook(root / "notebooks/grid.ipynb", FIRST_CELL, SMALL, BUSY)
    write_notebook(root / "notebooks/pair.ipynb", FIRST_CELL, PAIR)
    return root


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


def canvases(lab, kind):
    """The pictures of a kind by their places: where each is, and its pixels."""
    return lab.panel.locator(f"canvas.{kind}").evaluate_all(
        "(all) => all.map((one) => [Number(one.dataset.place), one.style.transform.match(/-?[0-9.]+/g).map(Number),"
        " one.toDataURL()])"
    )


def test_two_attacks_are_compared_on_one_timeline_and_scrubbing_needs_no_kernel(page, server):
    page.set_viewport_size({"width": 1440, "height": 1000})
    frames = []  # the attack and the step of each

    def count(payload):
        if isinstance(payload, bytes) and b'"frame"' in payload:
            frames.append(tuple(re.search(rb'"%s": ?"?(\w+)' % name, payload)[1] for name in (b"key", b"step")))

    page.on("websocket", lambda socket: socket.on("framereceived", count))
    with opened(page, server, "pair", FIRST_CELL, "compare(") as lab:
        states = lab.panel.locator(".wb-status")
        expect(states).to_have_text([re.compile("Ready")] * 2, timeout=120 * SECONDS)
        lab.button("Run both").click()
        expect(states).to_have_text(["Finished: 60 of 60 steps."] * 2, timeout=200 * SECONDS)
        caption = lab.panel.locator(".wbg-caption:visible").first
        expect(caption).to_contain_text("all steps at step 60: mean", timeout=30 * SECONDS)
        expect(caption).to_contain_text("one gradient at step 60: mean")
        expect(caption).to_contain_text("one gradient minus all steps")
        kept, deadline = {str(step).encode() for step in range(0, 61, 5)}, time.monotonic() + 60
        while sum(step in kept for _, step in set(frames)) < 2 * len(kept):
            assert time.monotonic() < deadline, f"the page did not get every kept moment of both attacks: {set(frames)}"
            page.wait_for_timeout(SECONDS / 10)
        # Truth, both attacks and the difference stand below each other.
        columns = {place: at[0] for place, at, _ in canvases(lab, "wbg-truth")}
        found = canvases(lab, "wbg-found")
        assert len(found) == 12
        assert sorted(place for place, *_ in found) == sorted([*range(6)] * 2)
        for kind in ("wbg-found", "wbg-difference"):
            assert {(place, at[0]) for place, at, _ in canvases(lab, kind)} == set(columns.items()), kind
        assert len({at[1] for _, at, _ in found}) == 2, "a row for each attack"
        assert lab.panel.locator(".wbg-chart path.wbg-line").count() == 2, "curves of both on the same axes"

        received = len(frames)
        lab.timeline.focus()
        page.keyboard.press("Home")
        expect(caption).to_contain_text("all steps at step 0: mean", timeout=5 * SECONDS)
        expect(caption).to_contain_text("one gradient at step 0: mean")
        noise = canvases(lab, "wbg-found")
        assert not {pixels for *_, pixels in noise} & {pixels for *_, pixels in found}, (
            "the noise looks like the result"
        )
        lab.button("▶ Play").click()
        expect(lab.moment).to_have_text("step 60, the newest", timeout=20 * SECONDS)
        assert len(frames) == received, "the page asked for pictures that it had"
        expect(caption).to_contain_text("all steps at step 60")
        assert canvases(lab, "wbg-found") == found, "pictures changed places"
        lab.panel.locator(".wbg-place").nth(1).hover()
        expect(lab.panel.locator("canvas.wbg-marked:visible")).to_have_count(4)
        lab.panel.locator(".wbg-place").nth(1).click()
        large = lab.panel.locator(".wbg-enlarged:visible")
        expect(large).to_have_count(2)
        expect(large.first).to_contain_text("all steps. Image")
        expect(large.last).to_contain_text("one gradient. Image")
        large.last.get_by_role("button", name="Close").click()
        expect(large).to_have_count(0)
        for theme in ("light", "dark"):
            lab.set_theme(theme)
            faults = Axe().run(page, context=".wb-panel").response["violations"]
            serious = [one["nodes"][0]["html"][:200] for one in faults if one["impact"] in ("serious", "critical")]
            assert serious == [], f"in the {theme} theme: {serious}"
        lab.set_theme("light")
        for width in (960, 1280, 1920):
            page.set_viewport_size({"width": width, "height": 1000})
            page.wait_for_timeout(SECONDS / 3)
            assert lab.panel.evaluate("(one) => one.scrollWidth <= one.clientWidth"), f"too wide at {width} pixels"


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
        states = other.panel.locator(".wb-status")
        expect(states).to_have_text([re.compile("Ready")] * 2, timeout=120 * SECONDS)
        before = lab.wait_picture()
        lab.button("Run").click()
        other.button("Run both").click()
        lab.wait_picture(other_than=before, step_at_least=1)
        pace = other.panel.get_by_text(re.compile(r"^([2-9]|\d\d+) of \d+ steps"))
        expect(pace).to_have_count(2, timeout=120 * SECONDS)
        other.button("Pause both").click()
        expect(states).to_have_text([re.compile("Paused at step|Finished")] * 2, timeout=60 * SECONDS)
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
