"""JupyterLab and a page with a notebook, operated like a user does, for browser tests, screenshots and benchmarks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, Page, expect

SERVER_STARTS_WITHIN = 60  # seconds
KERNEL = "window.jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel"
SECONDS = 1000  # Playwright uses milliseconds


@dataclass(frozen=True)
class LabServer:
    """A running JupyterLab: the address that it printed, its process and everything it logs."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path


LAB = (str(Path(__file__).with_name("lab.py")),)


@contextmanager
def running_lab(home: Path, *arguments: str, server: Sequence[str] = LAB) -> Iterator[LabServer]:
    """A server whose settings and log are in the empty folder ``home``.

    Args:
        home: the folder.
        arguments: of the server.
        server: what Python runs, ``tools/lab.py`` by default.
    """
    log = home / "log"
    # The settings of whoever runs this must not matter, nor be changed.
    of_its_own = {name: str(home / name) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR")}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *server, "--no-browser", "--expose-app-in-browser", *arguments],
            env=os.environ | of_its_own | {"IPYTHONDIR": str(home / "ipython")},
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        yield LabServer(_printed_url(process, log), process, log)
    finally:
        process.terminate()
        process.wait(timeout=30)


def _printed_url(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + SERVER_STARTS_WITHIN
    while time.monotonic() < deadline and process.poll() is None:
        if found := re.search(r"http://127\.0\.0\.1:\d+/\S*token=\w+", log.read_text()):
            return found.group()
        time.sleep(0.1)
    raise TimeoutError(f"JupyterLab printed no address within {SERVER_STARTS_WITHIN} s:\n{log.read_text()}")


def write_notebook(path: Path, *sources: str) -> None:
    """Write a notebook with these cells."""
    kernel = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
    empty: dict[str, Any] = {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": []}
    cells = [{**empty, "id": f"cell{number}", "source": source} for number, source in enumerate(sources)]
    notebook = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(notebook))


class LabPage:
    """The notebook that JupyterLab opened, and the panel in it."""

    main = "#jp-main-dock-panel"

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        page.goto(url)
        self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until the notebook is shown and its kernel is idle."""
        page = self.page
        expect(page.locator(self.main)).to_be_visible(timeout=60 * SECONDS)
        page.wait_for_function("window.jupyterapp !== undefined")
        # Do not await the promise itself, which a busy page may resolve late.
        page.evaluate("() => { window.jupyterapp.restored.then(() => { window.isRestored = true; }); }")
        page.wait_for_function("window.isRestored === true", timeout=60 * SECONDS)
        self.wait_idle()

    def wait_idle(self, timeout: float = 120) -> None:
        """Wait until the kernel is idle."""
        self.page.wait_for_function(f"() => {KERNEL}?.status === 'idle'", timeout=timeout * SECONDS)

    @property
    def kernel_id(self) -> str:
        return str(self.page.evaluate(f"{KERNEL}.id"))

    def command(self, name: str, **arguments: Any) -> None:
        """Execute a JupyterLab command without waiting for it to finish."""
        self.page.evaluate("([name, args]) => { window.jupyterapp.commands.execute(name, args); }", [name, arguments])

    def run_all(self) -> None:
        """Run all cells and wait for the panel."""
        self.wait_idle()
        self.command("notebook:run-all-cells")
        expect(self.panel).to_be_visible(timeout=280 * SECONDS)

    def run_cells(self, *texts: str) -> None:
        """Run the cells that contain these texts, one after the other, and wait for the panel."""
        self.wait_idle()
        for text in texts:
            self._choose_cell(text)
            self.command("notebook:run-cell")
        expect(self.panel).to_be_visible(timeout=120 * SECONDS)

    def _choose_cell(self, text: str) -> None:
        found = self.page.evaluate(
            """(text) => {
                const notebook = window.jupyterapp.shell.currentWidget.content;
                const sources = notebook.widgets.map((cell) => cell.model.sharedModel.getSource());
                const index = sources.findIndex((source) => source.includes(text));
                if (index >= 0) notebook.activeCellIndex = index;
                return index >= 0;
            }""",
            text,
        )
        if not found:
            raise LookupError(f"no cell contains {text!r}")

    def restart_kernel(self) -> None:
        """Restart the kernel and confirm the dialog."""
        self.command("notebook:restart-kernel")
        self.page.get_by_role("button", name="Confirm Kernel Restart").or_(
            self.page.locator(".jp-Dialog .jp-mod-accept")
        ).first.click()
        self.wait_idle()

    def set_theme(self, theme: str) -> None:
        """Choose the theme ``light`` or ``dark``."""
        self.command("apputils:change-theme", theme=f"JupyterLab {theme.capitalize()}")
        is_light = "true" if theme == "light" else "false"
        expect(self.page.locator(f"body[data-jp-theme-light='{is_light}']")).to_have_count(1)

    @property
    def panel(self) -> Locator:
        return self.page.locator(".wb-panel").first

    @property
    def status(self) -> Locator:
        return self.panel.get_by_role("status").first

    @property
    def progress(self) -> Locator:
        return self.panel.get_by_text(re.compile(r"\d+ of \d+ steps")).first

    def button(self, name: str) -> Locator:
        # By its text: its accessible name begins with the icon, which is a letter of an icon font.
        return self.panel.locator("button").filter(has_text=re.compile(rf"^\s*{re.escape(name)}$"))

    def choose_tab(self, title: str) -> None:
        """Click on a tab of the panel."""
        self.panel.locator(".lm-TabBar-tab, .p-TabBar-tab").filter(has_text=title).first.click()

    def slider(self, label: str) -> Locator:
        """The handle of a slider, which accepts keyboard input."""
        return self.panel.locator(".widget-hslider", has_text=label).first.locator(".noUi-handle").first

    @property
    def caption(self) -> Locator:
        """The text below what the selected tab shows."""
        return self.panel.locator(".widget-tab .wb-note:visible, .widget-tab .wbg-caption:visible").first

    @property
    def timeline(self) -> Locator:
        return self.panel.get_by_role("slider", name="Timeline")

    @property
    def moment(self) -> Locator:
        """Which moment the timeline stands at."""
        return self.panel.locator(".wbg-step")

    @property
    def pictures(self) -> Locator:
        """The reconstructions in the tab Reconstruction."""
        return self.panel.locator("canvas.wbg-found")

    def pixels(self) -> str:
        """What the first reconstruction looks like."""
        return str(self.pictures.first.evaluate("(one) => one.toDataURL()"))

    def wait_picture(self, other_than: str = "", step_at_least: int = 0, timeout: float = 120) -> str:
        """Wait for a reconstruction, different from the given one, of at least the given step; returns its pixels."""
        self.page.wait_for_function(
            """([before, least]) => {
                const captions = [...document.querySelectorAll(".wb-panel .wbg-caption")];
                const caption = captions.find((one) => one.offsetParent);
                const step = /Step ([0-9]+)[.]/.exec(caption?.textContent ?? "");
                const image = document.querySelector(".wb-panel canvas.wbg-found");
                return image?.offsetParent && step && Number(step[1]) >= least && image.toDataURL() !== before;
            }""",
            arg=[other_than, step_at_least],
            timeout=timeout * SECONDS,
        )
        return self.pixels()

    def wait_status(self, text: str, timeout: float = 60) -> None:
        """Wait until the status line contains the text."""
        expect(self.status).to_contain_text(text, timeout=timeout * SECONDS)

    def shut_down(self) -> None:
        """Shut down the kernel and everything that it computes."""
        self.page.evaluate("() => { window.jupyterapp.shell.currentWidget.sessionContext.shutdown(); }")
        self.page.wait_for_function(f"() => !({KERNEL})", timeout=60 * SECONDS)
