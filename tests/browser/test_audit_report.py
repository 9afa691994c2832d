"""The report of an audit in a browser: it fits the screen and the paper."""

import re
from dataclasses import replace

import pytest
from axe_playwright_python.sync_playwright import Axe

import workbench as wb
from workbench.auditing.twin import Calibration, Try
from workbench.data import Truth

# A4 without the margins of 15 mm, in CSS pixels.
PAPER = {"width": 680, "height": 1009}
OVERFLOWING = """() => [...document.querySelectorAll('body *')].filter((one) =>
  one.getBoundingClientRect().right > document.body.getBoundingClientRect().right + 1
  || (one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).display !== 'inline'
      && getComputedStyle(one).overflowX === 'visible')
).map((one) => `${one.tagName} ${one.className}: ${one.textContent.slice(0, 60)}`)"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """With everything that a report can have, and long names."""
    data = wb.load_dataset("glyphs")
    names = tuple(f"the class with number {label} and a long name" for label in range(62))
    client = replace(data.client(0, num_images=24), class_names=names, name="a hospital's ward, " * 5)
    model, other = wb.models.mlp(widths=(16,)), data.client(5, num_images=12)
    seen = wb.client_update(model, model.init(), client, wb.ClientConfig(epochs=2, batch_size=8))
    changes = {"label_method": "bias", "noisy_method": None, "warm_start_steps": 0, "restart_every": 0}
    config = wb.AttackConfig.preset("best", steps=30, span_rise=10, **changes)
    found = wb.audit(
        model,
        seen,
        config,
        client,
        pictures=other,
        controls=data.client(3, num_images=40),
        defences=["gaussian 0.1", "dp_sgd 1.0"],
        schedules=[{"epochs": 1, "batch_size": 4}, {"learning_rate": 1e20}],
        test_set=other,
        seeds=[0],
    )
    tried = Try("best", config, found.found, wb.score(found.found, client))
    file = tmp_path_factory.mktemp("report") / "audit.html"
    replace(found, calibration=Calibration((tried,), Truth.of(client))).report(file)
    return file


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_a_report_fits_the_screen(page, path, scheme, width):
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(path.as_uri())
    # What is too wide for a small screen, such as a table, scrolls by itself.
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    problems = Axe().run(page).response["violations"]
    assert not problems, [(one["id"], one["nodes"][0]["html"][:200]) for one in problems]


def test_a_report_fits_the_paper(page, path, tmp_path):
    page.goto(path.as_uri())
    page.emulate_media(media="print")
    page.set_viewport_size(PAPER)
    assert page.evaluate(OVERFLOWING) == []
    content = page.pdf(path=tmp_path / "audit.pdf", format="A4", prefer_css_page_size=True)
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", content)) <= 8
