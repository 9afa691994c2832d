"""What a page sees of a run: the first picture, Pause, and updates and bytes a second.

    python -m benchmarks page

In a real JupyterLab and a real Chromium. Times are from a click until the text on the page has changed; messages are
counted on the page's connection. Run it on an idle machine.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import expect, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from browser import find
from lab_page import SECONDS, LabPage, running_lab, write_notebook

IMPORT = "import workbench as wb"
FULL_SIZE = """
client = wb.load_dataset("glyphs").client(0, num_images=50)
model = wb.models.femnist_cnn()
observation = wb.client_update(model, model.init(), client, wb.ClientConfig(epochs=10, batch_size=5))
config = wb.AttackConfig.preset("paper", "glyphs", steps=100_000)
wb.AttackPanel(wb.AttackSession(model, observation, config), truth=client)
"""
# Longer, so that there are several seconds to watch.
LESSON = """
panel = wb.AttackPanel()
panel.controls.fields["steps"].value = 2500
panel.build_button.click()
panel.wait()
panel
"""
NOTEBOOKS = {"lesson": (IMPORT, LESSON), "10x5x50": (IMPORT, FULL_SIZE)}
WATCHED_SECONDS = 20


class Traffic:
    """Everything that a page receives, with its time."""

    def __init__(self, page: Any) -> None:
        self.received: list[tuple[float, bytes]] = []
        page.on("websocket", lambda socket: socket.on("framereceived", self._keep))

    def _keep(self, payload: str | bytes) -> None:
        self.received.append((time.perf_counter(), payload if isinstance(payload, bytes) else payload.encode()))

    def between(self, begin: float, end: float) -> tuple[float, float]:
        """Updates and megabytes a second. An update has images of a later step than all before; others fill gaps."""
        found = [payload for at, payload in self.received if begin <= at <= end]
        newest, updates = -1, 0
        for payload in found:
            step = re.search(rb'"frame": ?{"step": ?(\d+)', payload) if b'"pixels"' in payload else None
            if step and int(step[1]) > newest:
                newest, updates = int(step[1]), updates + 1
        return updates / (end - begin), sum(map(len, found)) / 1e6 / (end - begin)


def seconds_until(click: Callable[[], None], seen: Callable[[], object]) -> float:
    began = time.perf_counter()
    click()
    seen()
    return time.perf_counter() - began


def pause_seconds(lab: LabPage) -> float:
    """From the click on Pause until the status line says so, measured by the page: polling from here is too coarse."""
    return 1e-3 * lab.panel.evaluate(
        """(panel, pause) => new Promise((resolve) => {
          const status = panel.querySelector(".wb-status");
          const began = performance.now();
          new MutationObserver(() => {
            if (status.textContent.includes("Paus")) resolve(performance.now() - began);
          }).observe(status, { childList: true, subtree: true, characterData: true });
          pause.click();
        })""",
        lab.button("Pause").element_handle(),
    )


def steps_made(lab: LabPage) -> int:
    return int(lab.progress.inner_text().split(" of ")[0])


def lesson(lab: LabPage, traffic: Traffic) -> None:
    lab.wait_status("Ready", 120)
    noise = lab.wait_picture()
    run = lab.button("Run").click
    first = seconds_until(run, lambda: lab.wait_picture(other_than=noise, step_at_least=1))
    began = time.perf_counter()
    lab.wait_status("Finished", 300)
    updates, megabytes = traffic.between(began, time.perf_counter())
    lab.button("Reset").click()
    lab.wait_status("Back at step 0")
    again = seconds_until(run, lambda: lab.wait_picture(step_at_least=1))
    paused = pause_seconds(lab)
    print(
        f"lesson: first picture {first:.1f} s after Run with what is compiled first, {again:.2f} s after it; "
        f"{updates:.1f} updates a second (aim 8), {megabytes:.2f} MB/s; Pause acknowledged after "
        f"{1e3 * paused:.0f} ms (aim 300 ms)",
        flush=True,
    )


def full_size(lab: LabPage, traffic: Traffic) -> None:
    lab.wait_status("Ready", 120)
    lab.button("Run").click()
    expect(lab.progress).to_have_text(re.compile(r"^([3-9]|\d\d+) of "), timeout=300 * SECONDS)
    for tab in ("Reconstruction", "Epochs"):
        lab.choose_tab(tab)
        lab.page.wait_for_timeout(5 * SECONDS)  # earlier moments that the tab lacks come first
        began, before = time.perf_counter(), steps_made(lab)
        lab.page.wait_for_timeout(WATCHED_SECONDS * SECONDS)
        ended, made = time.perf_counter(), steps_made(lab) - before
        updates, megabytes = traffic.between(began, ended)
        print(
            f"10x5x50, {tab}: {made / (ended - began):.1f} steps and {updates:.1f} updates a second (aim: every step "
            f"or 2), {megabytes:.2f} MB/s (aim 1)",
            flush=True,
        )
    paused = pause_seconds(lab)
    print(f"10x5x50: Pause acknowledged after {1e3 * paused:.0f} ms (aim 300 ms)", flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        for name, cells in NOTEBOOKS.items():
            write_notebook(home / f"root/notebooks/{name}.ipynb", *cells)
        with running_lab(home, f"--ServerApp.root_dir={home / 'root'}") as server, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=find(), args=["--no-sandbox", "--disable-gpu"])
            for name, measure in {"lesson": lesson, "10x5x50": full_size}.items():
                page = browser.new_context(viewport={"width": 1600, "height": 1000}).new_page()
                traffic = Traffic(page)
                lab = LabPage(page, urlsplit(server.url)._replace(path=f"/doc/tree/notebooks/{name}.ipynb").geturl())
                lab.run_cells(*NOTEBOOKS[name])
                measure(lab, traffic)
                lab.shut_down()
                page.close()
            browser.close()


if __name__ == "__main__":
    main()
