"""A real Chromium and a real JupyterLab server, and pages that notice everything that goes wrong in them."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from lab_page import LabServer, running_lab
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, Response, sync_playwright

ROOT = Path(__file__).parents[2]
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    # A browser that looks things up by itself would hide a page that does.
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def browser_path() -> str:
    answer = subprocess.run([sys.executable, ROOT / "tools/browser.py"], capture_output=True, text=True, check=False)
    if answer.returncode:
        unavailable = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        unavailable(answer.stderr.strip())
    return answer.stdout.strip()


# Playwright keeps an event loop running in this thread for as long as it is open; other tests must not find it there.
@pytest.fixture(scope="module")
def browser(browser_path: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def lab_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    with running_lab(tmp_path_factory.mktemp("jupyter")) as server:
        yield server


@pytest.fixture(scope="module")
def start_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., LabServer]]:
    """Start a server with further arguments; it ends with the module."""
    with ExitStack() as servers:
        yield lambda *arguments: servers.enter_context(running_lab(tmp_path_factory.mktemp("jupyter"), *arguments))


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that fails its test on a console error, a failed request, or a request to any host but loopback.

    The same goes for every further page of its context.
    """
    troubles: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 900})

    def on_console(message: ConsoleMessage) -> None:
        if message.type == "error":
            troubles.append(f"console: {message.text}")

    def on_response(reply: Response) -> None:
        if reply.status >= 400:
            troubles.append(f"{reply.status}: {reply.url}")

    context.on("console", on_console)
    context.on("weberror", lambda error: troubles.append(f"uncaught: {error.error}"))
    context.on("request", lambda request: troubles.extend(foreign(request.url)))
    context.on("requestfailed", lambda request: troubles.extend(failed(request)))
    context.on("response", on_response)
    context.on("page", lambda page: page.on("websocket", lambda socket: troubles.extend(foreign(socket.url))))
    yield context.new_page()
    found = list(troubles)  # closing the page aborts what is under way, which is no trouble
    context.close()
    assert found == []


def failed(request: Request) -> list[str]:
    """The trouble with a request, unless the page gave it up itself: for a newer one, or because it was left."""
    return [] if request.failure == "net::ERR_ABORTED" else [f"failed: {request.url} {request.failure}"]


def foreign(url: str) -> list[str]:
    """The trouble with an address that is neither on loopback nor inside the page (blob:, data:)."""
    parts = urlsplit(url)
    is_network = parts.scheme in {"http", "https", "ws", "wss"}
    return [f"not loopback: {url}"] if is_network and parts.hostname not in {"127.0.0.1", "localhost"} else []
