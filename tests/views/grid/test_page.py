"""The page that plays a recording: complete, small, and nothing from the file can become markup or script."""

import base64
import json
import re
import zlib
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

import workbench as wb
from workbench.data import Truth
from workbench.errors import DataError
from workbench.session.history import SessionHistory, SteeringEvent
from workbench.views.grid import packets
from workbench.views.grid.page import page_html, player, player_script, write_page


@pytest.fixture(scope="module")
def recording():
    return wb.replay(Path(__file__).parents[2] / "files" / "attack.recording")


def data_of(html):
    (text,) = re.findall(r"<script type='application/json' id='recording'>(.*?)</script>", html, re.DOTALL)
    return json.loads(text)


def unpacked(text):
    return zlib.decompress(base64.b64decode(text))


def test_a_page_holds_every_moment_and_the_truth(recording):
    data = data_of(page_html(recording))
    assert [frame["step"] for frame in data["frames"]] == [frame.step for frame in recording.frames]
    for there, frame in zip(data["frames"], recording.frames, strict=True):
        assert unpacked(there["pixels"]) == frame.pixels.tobytes()
        assert (there["epochs"] is None) == (frame.epoch_pixels is None)
        if frame.epoch_pixels is not None:
            assert unpacked(there["epochs"]) == frame.epoch_pixels.tobytes()
        assert there["order"] == frame.score.order.tolist()
    truth = np.frombuffer(unpacked(data["truth"]), np.uint8).reshape(recording.truth[0].images.shape)
    np.testing.assert_array_equal(truth, np.round(recording.truth[0].images * 255))
    assert data["history"]["numSteps"] == recording.num_steps


def test_a_recording_without_truth_has_a_page_too(recording):
    frames = tuple(replace(frame, score=None) for frame in recording.frames)
    html = page_html(replace(recording, truth=(), frames=frames))
    data = data_of(html)
    assert data["truth"] is None
    assert data["source"]["names"] is None
    assert all(frame["psnr"] is None for frame in data["frames"])
    assert "recovered above" not in html.split("<main>")[0]


def test_no_text_of_a_file_becomes_markup(recording):
    nasty = "</script><script>alert(1)</script><!--\u2028&lt;"
    truth = (replace(recording.truth[0], name=nasty, class_names=tuple(nasty for _ in recording.truth[0].class_names)),)
    html = page_html(replace(recording, truth=truth, spectrum=nasty), title=nasty)
    assert "<script>alert" not in html
    assert html.count("<script") == html.count("</script>") == 2
    assert data_of(html)["source"]["names"][0] == nasty
    assert data_of(html)["source"]["spanText"] == nasty


def test_only_the_script_of_the_page_is_allowed_and_nothing_is_fetched(recording):
    html = page_html(recording)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    assert "default-src 'none'" in policy
    (script,) = re.findall(r"<script type='module'>(.*?)</script>", html, re.DOTALL)
    assert f"script-src 'sha256-{base64.b64encode(sha256(script.encode()).digest()).decode()}'" in policy
    assert not re.search(r"url\(|@import|https?://", html.replace("http://www.w3.org/2000/svg", ""))
    assert "innerHTML" not in packets.SCRIPT.read_text()


def test_a_page_with_two_players_has_one_script(recording):
    html = player(recording, "left") + player(recording, "right") + player_script(["left", "right"])
    assert html.count("class FrameStore") == 1
    assert 'playPage("left");' in html
    assert 'playPage("right");' in html


def test_where_a_page_cannot_be_written_an_error_says_so(recording, tmp_path):
    with pytest.raises(DataError, match="cannot be written"):
        write_page(tmp_path, recording)


def test_numbers_that_are_not_finite_are_left_out(recording):
    frame = recording.reconstruction()
    residuals = np.array([np.inf, *np.zeros(len(frame.labels) - 1)], np.float32)
    described = packets.describe_frame(replace(frame, residuals=residuals), Truth.of(recording.truth))
    assert described["residuals"][:2] == [None, 0.0]
    json.dumps(described, allow_nan=False)


def test_a_long_history_is_thinned_and_keeps_its_ends():
    loss = np.geomspace(100, 1, 50_000).astype(np.float32)
    history = SessionHistory(loss, {"tv": loss / 2}, loss, loss, (SteeringEvent(7, "tv_weight", 0.5),), (0,))
    described = packets.describe_history(history, warm_start_steps=3)
    assert len(described["steps"]) == len(described["loss"]) == 1000
    assert (described["steps"][0], described["steps"][-1]) == (0, 49_999)
    assert described["terms"][0]["label"] == "Smoothness (tv)"
    assert described["steering"] == [{"step": 7, "text": "Smoothness (tv) = 0.5"}]
    assert described["numSteps"] == 50_000
    assert len(json.dumps(described)) < 60_000


def test_both_themes_have_every_colour():
    sheet = packets.style(".light", ["@media dark { .dark", ".other"])
    assert sheet.count("{") == sheet.count("}")
    used = set(re.findall(r"var\((--wbg-[\w-]+)\)", sheet))
    for rule in (".light", ".dark", ".other"):
        defined = set(re.findall(r"(--wbg-[\w-]+):", sheet.split(f"{rule} {{")[1].split("}")[0]))
        assert used <= defined, f"{rule} lacks {used - defined}"
