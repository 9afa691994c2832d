"""What a lecturer meets, in a real browser: the lesson, scenarios, help, widths, Present, keys and a lost kernel."""

import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from lab_page import SECONDS, LabPage, write_notebook
from playwright.sync_api import expect

CELLS = ("import workbench as wb", "wb.AttackPanel()")
TABS = ["Reconstruction", "Epochs", "Matching", "Averaging", "Labels", "Span", "Loss", "Attacker's view"]
LOST = "The kernel of this panel is gone"


@pytest.fixture(scope="module")
def server(start_lab, tmp_path_factory):
    root = tmp_path_factory.mktemp("root")
    # The notebook that JupyterLab opens.
    write_notebook(root / "notebooks/00_start_here.ipynb", *CELLS)
    return start_lab(f"--ServerApp.root_dir={root}")


def settled(locator):
    """Its size once that has not changed for a few frames."""
    return locator.evaluate(
        """(one) => new Promise((resolve) => {
            let last = "", same = 0;
            const look = () => {
                const { width, height } = one.getBoundingClientRect();
                same = `${width} ${height}` === last ? same + 1 : 0;
                last = `${width} ${height}`;
                if (same < 8) requestAnimationFrame(look); else resolve({ width, height });
            };
            look();
        })"""
    )


def walk(page):
    """The controls of the panel that can be used, and those that the Tab key reaches, by numbers given to them."""
    count = page.evaluate(
        """() => {
            const panel = document.querySelector(".wb-panel");
            const all = [...panel.querySelectorAll("button, select, input, summary, [tabindex]")];
            const isSeen = (one) => one.checkVisibility({ visibilityProperty: true });
            const used = all.filter((one) => one.tabIndex >= 0 && !one.disabled && isSeen(one));
            used.forEach((one, index) => { one.dataset.number = index; });
            used[0].focus();
            return used.length;
        }"""
    )
    reached = set()
    for _ in range(2 * count):
        reached.add(page.evaluate("() => document.activeElement.dataset.number ?? null"))
        page.keyboard.press("Tab")
        if not page.evaluate("() => document.activeElement.closest('.wb-panel') !== null"):
            break
    return {str(number) for number in range(count)}, reached


def width_of(locator):
    return settled(locator)["width"]


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
    page.keyboard.press("Enter")
    for name in ("Data set", "Seed", "Update", "Span", "File", "Export as"):
        mark = lab.panel.get_by_label(f"About {name}", exact=True).first
        # Beside its control, and not below it beside the next one. Both at one moment: pictures may still arrive.
        row, box = mark.evaluate(
            """(mark) => [mark.closest(".wb-row").firstElementChild, mark].map((one) => {
                const { x, y, width, height } = one.getBoundingClientRect();
                return { x, y, width, height };
            })"""
        )
        apart = box["y"] + box["height"] / 2 - row["y"] - row["height"] / 2
        assert abs(apart) < 8, f"the question mark of {name} is {apart:.0f} pixels below it"
        assert box["x"] >= row["x"] + row["width"] - 2, f"the question mark of {name} covers it"
    num_cells = page.locator(".jp-Cell").count()
    for key in "bax":
        page.keyboard.press(key)
    page.wait_for_timeout(SECONDS / 10)
    assert page.locator(".jp-Cell").count() == num_cells, "a shortcut of JupyterLab was executed"
    handle = lab.slider("Smoothness")
    expect(handle).to_have_attribute("aria-label", "Smoothness (tv)")
    expect(handle).to_have_attribute("aria-valuetext", "1e-05")
    handle.focus()
    page.keyboard.press("ArrowRight")
    expect(handle).to_have_attribute("aria-valuetext", "2e-05")

    lab.button("Run").click()
    lab.wait_status("Finished: 180 of 180 steps", 240)
    for theme in ("dark", "light"):
        lab.set_theme(theme)
        faults = Axe().run(page, context=".wb-panel").response["violations"]
        serious = [fault["nodes"][0]["html"] for fault in faults if fault["impact"] in ("serious", "critical")]
        assert serious == [], f"in the {theme} theme"
    title = lab.panel.get_by_role("button", name="Attack, details")
    expect(title).to_have_attribute("aria-expanded", "false")
    title.focus()
    page.keyboard.press("Enter")
    expect(title).to_have_attribute("aria-expanded", "true")
    expect(lab.panel.get_by_label("Span start", exact=True)).to_be_visible()
    expected, reached = walk(page)
    assert len(expected) > 40
    assert expected - reached == set(), "the Tab key does not reach every control"

    # Every term of the loss stands beside its slider and its help.
    lab.choose_tab("Loss")
    term = lab.panel.locator(".wb-term", has_text="Smoothness (tv)")
    expect(term.locator("b")).to_have_text(re.compile(r"^[\d.e-]+$"))
    expect(term.locator(".noUi-handle")).to_be_visible()
    expect(term.get_by_label("About Smoothness (tv)")).to_be_visible()
    for tab in ("Averaging", "Matching", "Epochs", "Reconstruction"):
        lab.choose_tab(tab)
        picture = lab.panel.locator(".widget-tab-contents canvas:visible").first
        usual = width_of(picture)
        lab.button("Present").click()
        expect(settings).to_be_hidden()
        assert width_of(picture) >= 2 * usual, f"{tab}: pictures are not twice as large"
        lab.button("Present").click()
        expect(settings).to_be_visible()

    # All tabs are as high as the highest, which was seen in the first round.
    contents = lab.panel.locator(".widget-tab-contents")
    heights = []
    for tab in [*TABS, *TABS]:
        lab.choose_tab(tab)
        expect(lab.caption).not_to_contain_text("being estimated", timeout=60 * SECONDS)
        heights.append(settled(contents)["height"])
    assert len(set(heights[len(TABS) :])) == 1, f"tabs jump: {heights}"

    # A wide page is used, and nothing is wider than its place.
    lab.choose_tab("Reconstruction")
    widths = []
    for width in (1280, 1440, 1920):
        page.set_viewport_size({"width": width, "height": 900})
        widths.append(width_of(lab.pictures.first))
        assert lab.panel.evaluate("(one) => one.scrollWidth <= one.clientWidth"), f"too wide at {width} pixels"
    assert widths == sorted(widths), widths
    assert widths[-1] > widths[0], "a wide page shows no larger pictures"

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
    expect(lab.status).to_contain_text(re.compile("Building|Ready"), timeout=120 * SECONDS)
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
