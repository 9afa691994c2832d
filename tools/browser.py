"""Print the path of a Chromium or Chrome for the browser tests; with --install, install one if there is none."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

COMMANDS = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"]
MAC_APPLICATIONS = [
    Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"),
    Path("/Applications/Chromium.app/Contents/MacOS/Chromium"),
]
HOW_TO = "There is no browser for the browser tests: install chromium, or run `.venv/bin/playwright install chromium`."


def find() -> Path | None:
    """The system's browser, else the one that Playwright has downloaded, else None."""
    on_path = (shutil.which(command) for command in COMMANDS)
    candidates = [Path(command) for command in on_path if command] + MAC_APPLICATIONS
    installed = next((path for path in candidates if path.exists()), None)
    return installed or find_downloaded()


def find_downloaded() -> Path | None:
    with sync_playwright() as playwright:
        path = Path(playwright.chromium.executable_path)
    return path if path.exists() else None


def install() -> None:
    """Install Debian's package if permitted, otherwise Playwright's download; `find` shows whether it worked."""
    if os.geteuid() == 0 and shutil.which("apt-get"):
        commands = [["apt-get", "update"], ["apt-get", "install", "--yes", "--no-install-recommends", "chromium"]]
    else:
        commands = [[sys.executable, "-m", "playwright", "install", "chromium"]]
    for command in commands:
        print("Installing a browser:", *command, file=sys.stderr)
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False)


def main() -> int:
    path = find()
    if path is None and "--install" in sys.argv[1:]:
        install()
        path = find()
    if path is None:
        print(HOW_TO, file=sys.stderr)
        return 1
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
