"""`make lab`, as a person meets it."""

from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

import psutil
import pytest
from playwright.sync_api import expect


def test_jupyterlab_shows_up_without_news_or_update_check(page, lab_server):
    asked = []
    page.on("request", lambda request: asked.append(urlsplit(request.url).path))
    page.goto(lab_server.url)
    expect(page.locator("#jp-main-dock-panel")).to_be_visible(timeout=60_000)
    page.wait_for_function("window.jupyterapp !== undefined")
    page.evaluate("window.jupyterapp.restored")
    page.wait_for_load_state("networkidle")
    expect(page.locator(".jp-Dialog")).to_have_count(0)
    expect(page.locator(".Toastify__toast")).to_have_count(0)
    assert not {"/lab/api/news", "/lab/api/update"} & set(asked)


def test_only_loopback_is_served(lab_server):
    server = psutil.Process(lab_server.process.pid)
    listening = [socket.laddr.ip for socket in server.net_connections("inet") if socket.status == psutil.CONN_LISTEN]
    assert set(listening) == {"127.0.0.1"}


def test_a_visitor_without_the_token_is_turned_away(lab_server):
    address = urlsplit(lab_server.url)
    with pytest.raises(HTTPError, match="403") as refusal:
        urlopen(f"http://{address.netloc}/api/contents")
    refusal.value.close()


def test_the_log_has_no_error(lab_server):
    log = lab_server.log.read_text()
    assert "Traceback" not in log
    assert "[E " not in log
