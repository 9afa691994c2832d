"""Take screenshots of the panel in a real run, every tab in both themes, and export an animation of the attack.

    .venv/bin/python tools/screenshots.py [FOLDER]

The files go to FOLDER, by default ``screenshots``. With ``--assets``, those that the README shows are also compressed
into ``assets``.
"""

from __future__ import annotations

import io
import re
import shutil
import sys
import tempfile
from pathlib import Path

from browser import find
from lab_page import SECONDS, LabPage, running_lab
from PIL import Image
from playwright.sync_api import expect, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
TABS = ("Reconstruction", "Epochs", "Matching", "Averaging", "Labels", "Span", "Loss", "Attacker's view")
# High enough for a panel as the README shows it: JupyterLab's status bar would cover the end of a higher one.
WIDTH, HEIGHT = 1440, 1300
FOR_README = {"panel_light.png": "reconstruction_light.png", "panel_dark.png": "epochs_dark.png"}


def main() -> int:
    arguments = [argument for argument in sys.argv[1:] if argument != "--assets"]
    folder = Path(arguments[0] if arguments else "screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        shutil.copytree(ROOT / "notebooks", Path(home, "notebooks"), ignore=shutil.ignore_patterns(".*"))
        with running_lab(Path(home), f"--ServerApp.root_dir={home}") as server:
            take(server.url, folder, Path(home, "notebooks"))
    if "--assets" in sys.argv:
        for name, taken in FOR_README.items():
            shrink(folder / taken, ROOT / "assets" / name)
        shutil.copy(folder / "emerging.gif", ROOT / "assets" / "emerging.gif")
    return 0


def take(url: str, folder: Path, notebooks: Path) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find(), args=["--no-sandbox", "--disable-gpu"])
        context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}, device_scale_factor=1.5)
        lab = LabPage(context.new_page(), url)
        lab.run_cells("import workbench as wb", "wb.AttackPanel()")
        lab.wait_status("Ready", 120)
        lab.command("application:toggle-left-area")
        lab.button("Run").click()
        lab.wait_status("Finished", 300)
        for theme in ("light", "dark"):
            lab.set_theme(theme)
            for number, tab in enumerate(TABS):
                lab.choose_tab(tab)
                # In another width, the tabs forget the height of the highest, which would leave this one half empty.
                lab.page.set_viewport_size({"width": WIDTH + number % 2, "height": HEIGHT})
                lab.page.mouse.move(0, 0)  # or the picture below it is marked
                lab.page.wait_for_timeout(SECONDS)
                expect(lab.caption).not_to_contain_text("being estimated", timeout=120 * SECONDS)
                lab.page.wait_for_timeout(SECONDS)
                name = re.sub(r"\W+", "_", tab.lower())
                lab.panel.screenshot(path=folder / f"{name}_{theme}.png")
        export = lab.panel.get_by_label("Export as", exact=True)
        export.select_option("animation (GIF)")
        lab.button("Export").click()
        lab.wait_status("Wrote attack.gif", 60)
        shutil.copy(notebooks / "attack.gif", folder / "emerging.gif")
        browser.close()


def shrink(source: Path, destination: Path) -> None:
    """Save with a palette, which is enough for a page with grey images and much smaller."""
    buffer = io.BytesIO()
    with Image.open(source) as picture:
        picture.convert("RGB").quantize(128).save(buffer, "PNG", optimize=True)
    destination.write_bytes(buffer.getvalue())


if __name__ == "__main__":
    sys.exit(main())
