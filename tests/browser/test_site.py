"""The site of `make docs`, opened from disk: pages, links and recordings need neither a server nor a network."""

import subprocess
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import expect

ROOT = Path(__file__).parents[2]
EXTRA = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["docs"]
SECONDS = 1000
PHONE = 400  # pixels

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def python(environment_with):
    return environment_with(*EXTRA)


def build(python: Path, source: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """As `make docs` does."""
    sphinx = [python, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", ROOT / "docs/site", "-d", folder / "doctrees"]
    return subprocess.run([*sphinx, source, folder / "site"], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(python, tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs")
    answer = build(python, ROOT, folder)
    assert answer.returncode == 0, answer.stderr
    return folder / "site"


def pages(site: Path) -> Iterator[Path]:
    """The pages that a reader meets, without listings of source; the theme leaves templates in _static."""
    found = sorted(site.rglob("*.html"))
    return (path for path in found if path.relative_to(site).parts[0] not in ("_static", "_downloads", "_modules"))


class Addresses(HTMLParser):
    """The addresses that a page links to or loads, and the places in it that can be linked to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                (self.links if tag == "a" else self.loaded).add(value)
            elif name == "id" and value:
                self.places.add(value)


def test_every_link_within_leads_somewhere_and_nothing_is_loaded_from_elsewhere(site):
    known = {path: Addresses(path.read_text()) for path in pages(site)}
    assert len(known) > 40
    wrong = []
    for path, found in known.items():
        for address in found.links | found.loaded:
            parts = urlsplit(address)
            if parts.scheme in ("data", "mailto") or (parts.scheme == "https" and address in found.links):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            places = known[target].places if target in known else {parts.fragment}
            if parts.scheme or not target.exists() or (parts.fragment and unquote(parts.fragment) not in places):
                wrong.append(f"{path.relative_to(site)}: {address}")
    assert not wrong, "\n".join(wrong)


def test_no_page_is_wider_than_a_phone_and_none_needs_a_network(page, site):
    """The page fixture fails on a console error, a failed request and a request to another host."""
    page.set_viewport_size({"width": PHONE, "height": 900})
    wide = []
    for path in pages(site):
        # The first page leads at once to another, which is visited by itself.
        if path.relative_to(site).parts[0] not in ("recordings", "genindex.html", "index.html"):
            page.goto(path.as_uri())
            if (width := page.evaluate("document.documentElement.scrollWidth")) > PHONE:
                wide.append(f"{path.relative_to(site)}: {width} pixels")
    assert wide == []


def test_a_reader_finds_the_course_the_api_and_the_results(page, site):
    page.goto((site / "index.html").as_uri())
    expect(page.get_by_role("heading", level=1)).to_contain_text("FedAvg leakage workbench")
    sidebar = page.get_by_role("navigation", name="Main")
    for name, title in (
        ("The course", "The course"),
        ("2 · Labels from weights", "2 · Labels from weights"),
        ("From the paper to the code", "From the paper to the code"),
        ("Attacks", "Attacks"),
        ("Results", "Measured results"),
    ):
        if name == "Attacks":
            sidebar.get_by_role("link", name="API").click()
        sidebar.get_by_role("link", name=name, exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_contain_text(title)
        if name.startswith("2 "):
            expect(page.locator("math").first).to_be_visible()
            expect(page.locator(".cell_output img").first).to_be_visible()
            answers = page.locator("details.hide")
            expect(answers).to_have_count(2)
            expect(answers.locator("pre").first).to_be_hidden()
            expect(page.locator("pre", has_text="off = abs")).to_have_count(1)
            expect(page.locator("pre", has_text="assert off")).to_have_count(0)
        if name == "Attacks":
            expect(page.locator(r"#workbench\.AttackSession")).to_be_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_two_recordings_play(page, site, theme):
    page.emulate_media(color_scheme=theme, reduced_motion="reduce")
    page.goto((site / "docs/site/recordings.html").as_uri())
    expect(page.locator("iframe")).to_have_count(2)
    for number, last in ((0, 180), (1, 350)):
        recording = page.frame_locator("iframe").nth(number)
        expect(recording.locator("[data-ready]")).to_be_visible(timeout=60 * SECONDS)
        recording.get_by_role("button", name="Play").click()
        expect(recording.locator(".wbg-step")).to_contain_text(f"of {last}")
        expect(recording.locator(".wbg-step")).to_have_text(f"step {last}, the end", timeout=60 * SECONDS)


def test_a_broken_link_and_an_unknown_formula_end_the_build(python, tmp_path):
    start = tmp_path / "source/docs/site/index.md"
    start.parent.mkdir(parents=True)
    start.write_text("# Start\n\n[a page](missing.md), $\\unheard{x}$ and $\\bar p_k$\n")
    answer = build(python, tmp_path / "source", tmp_path)
    assert answer.returncode == 1
    assert "missing.md" in answer.stderr
    assert r"the formula \unheard{x} is not understood" in answer.stderr
    assert "p_k" not in answer.stderr
