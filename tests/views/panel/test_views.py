"""Tabs, timeline, files and recordings, without a browser."""

import html
import io
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import workbench as wb
from workbench.data import Truth
from workbench.data.dataset import eight_bits
from workbench.metrics import Score
from workbench.views import render
from workbench.views.panel.tabs import SpanTab
from workbench.views.scene import scene_at

TITLES = ["Reconstruction", "Epochs", "Matching", "Averaging", "Labels", "Span", "Loss", "Attacker's view"]


@pytest.fixture(scope="module")
def finished(make_session):
    session = make_session()
    for _ in range(session.total_steps):
        session.step()
    return session


@pytest.fixture(scope="module")
def recording(finished, client):
    return wb.Recording.of(finished, client)


@pytest.fixture(scope="module")
def old_recording():
    return wb.replay(Path(__file__).parents[2] / "files" / "attack.recording")


@pytest.fixture
def shown(make_panel, finished, client):
    panel = make_panel(finished, truth=client)
    assert panel.wait(60)
    return panel


def choose(panel, title):
    panel.views.selected_index = TITLES.index(title)
    assert panel.wait(60)
    return panel.tabs[TITLES.index(title)]


def texts(tab):
    return tab.caption.value


@pytest.fixture
def page(shown, open_page):
    return open_page(shown)


@pytest.mark.parametrize(
    ("title", "words"),
    [("Labels", "Wrong labels of 5"), ("Span", "Step 30: median span residual")],
)
def test_every_figure_has_a_text_alternative(shown, title, words):
    tab = choose(shown, title)
    assert words in texts(tab)
    assert Image.open(io.BytesIO(tab.image.value)).width > 100
    assert words in tab.image.tooltip
    assert "wb-figure" in tab.image._dom_classes, "the style does not turn it for dark pages"


@pytest.mark.parametrize("title", ["Reconstruction", "Epochs", "Matching", "Averaging", "Labels", "Span", "Loss"])
def test_every_tab_can_be_exported_as_a_picture(shown, title, finished, client):
    tab = choose(shown, title)
    png = tab.picture(replace(scene_at(finished, 30, Truth.of(client)), labels=shown.controller.workspace.labels))
    assert Image.open(io.BytesIO(png)).width > 100


def test_the_exported_curve_of_averaging_has_the_threshold_and_what_shows_nothing(shown, finished, client, monkeypatch):
    figures = []
    monkeypatch.setattr(render, "figure_png", lambda figure: figures.append(figure) or b"")
    choose(shown, "Averaging").picture(scene_at(finished, 30, Truth.of(client)))
    names = [text.get_text() for text in figures[0].legends[0].get_texts()]
    noise = wb.score(finished.reconstruction_at(0), client).psnr.mean()
    assert f"noise at the start {noise:.1f}" in names
    assert "recovered above 20.0" in names
    assert {name.rsplit(" ", 1)[0] for name in names} >= {"mean image", "blank image"}


def test_nothing_is_sent_before_a_page_has_asked(shown, monkeypatch):
    sent = []
    monkeypatch.setattr(shown.grid, "send", lambda *message: sent.append(message))
    choose(shown, "Epochs")
    assert sent == []


def test_a_page_gets_the_truth_and_every_kept_moment_of_the_visible_tab(page, until, finished, client):
    steps = [*finished.history.snapshot_steps]
    until(lambda: sorted(page.frames()) == steps, f"all of {steps}")
    (source,) = page.of_kind("source")
    assert source["source"]["shape"] == [28, 28, 1]
    assert source["truth"] == eight_bits(client.images).tobytes()
    assert page.grid.moments[1:] == [steps, 30]
    for step, frame in page.frames().items():
        found = finished.reconstruction_at(step)
        assert frame["pixels"] == eight_bits(found.images).tobytes()
        assert "epochs" not in frame, "the visible tab does not show epochs"
        quality = wb.score(found, client)
        assert frame["frame"]["order"] == quality.order.tolist()
        np.testing.assert_allclose(frame["frame"]["psnr"], quality.psnr, rtol=1e-4)
        assert frame["frame"]["permutations"] == found.permutations.tolist()


def test_epochs_are_sent_when_a_tab_shows_them(page, until, finished):
    choose(page.panel, "Matching")
    until(lambda: "epochs" in page.frames()[30], "the epochs of the newest moment")
    assert page.frames()[30]["epochs"] == eight_bits(finished.reconstruction().epochs).tobytes()
    until(lambda: "epochs" in page.frames().get(20, ()), "the epochs of earlier moments")
    until(lambda: 5 in page.frames(), "a moment of the warm start")
    assert "epochs" not in page.frames()[5], "there is one set of images during the warm start"
    assert page.frames()[5]["frame"]["hasEpochs"] is False


def test_the_loss_sends_numbers_and_no_pixels(page, shown, until, finished):
    choose(shown, "Loss")
    page.received.clear()
    page.report("hello")
    (history,) = page.of_kind("history")
    assert history["history"]["numSteps"] == 30
    np.testing.assert_allclose(history["history"]["loss"], finished.history.loss, rtol=1e-4)
    assert "Smoothness (tv)" in [term["label"] for term in history["history"]["terms"]]
    until(page.frames, "the moments' numbers")
    assert not any("pixels" in frame for frame in page.frames().values())


def test_numbers_alone_are_not_read_by_the_network(shown, page, finished, monkeypatch, until):
    choose(shown, "Loss")
    monkeypatch.setattr(wb.AttackSession, "read", lambda *_: pytest.fail("the network read images that nobody sees"))
    page.received.clear()
    page.report("hello")
    until(lambda: sorted(page.frames()) == [*finished.history.snapshot_steps], "all moments")
    assert all(frame["frame"]["reads"] is None for frame in page.frames().values())
    assert "cannot be drawn" not in shown.status_text, shown.status_text


def test_after_a_rewind_and_other_steering_the_loss_is_sent_anew(make_panel, make_session, client, open_page):
    panel = make_panel(make_session(), truth=client)

    def steered(value):
        panel.session.step(5)
        panel.session.steer(tv_weight=value)
        panel.session.step(5)

    steered(0.5)
    page = open_page(panel)
    choose(panel, "Loss")
    before = page.of_kind("history")[-1]["history"]
    choose(panel, "Labels")
    panel.session.rewind(0)
    steered(5.0)
    choose(panel, "Loss")
    after = page.of_kind("history")[-1]["history"]
    assert (after["numSteps"], after["numSteered"]) == (before["numSteps"], before["numSteered"])
    assert after["steering"] != before["steering"], "the curve of a run that did not happen stays"


def test_frames_of_a_run_that_did_not_happen_are_replaced(make_panel, make_session, client, open_page, until):
    panel = make_panel(make_session(), truth=client)
    page = open_page(panel)
    session = panel.session
    moments = []
    panel.grid.observe(lambda change: moments.append(change["new"][1:]), "moments")
    session.step(10)
    page.report("look", step=None)
    until(lambda: 10 in page.frames(), "the newest moment")
    # In one cell of the notebook: nothing is drawn in between.
    session.rewind(5)
    session.steer(tv_weight=1.0)
    session.step(5)
    page.report("look", step=None)
    expected = eight_bits(session.reconstruction().images).tobytes()
    until(lambda: page.frames()[10]["pixels"] == expected, "the same step of the other run")
    assert moments[-2:] == [[[0], 5], [[0, 10], 10]], "the page keeps what came after step 5"


def test_a_page_that_was_loaded_again_gets_everything_again(page, until, finished):
    steps = [*finished.history.snapshot_steps]
    until(lambda: sorted(page.frames()) == steps, "all moments")
    page.report("look", step=10)
    assert page.grid.step == 10
    page.received.clear()
    page.report("hello")
    assert page.grid.step is None, "a page that was loaded again follows the newest"
    until(lambda: sorted(page.frames()) == steps, "all moments again")
    assert len(page.of_kind("source")) == 1


def test_what_a_page_asks_for_comes_whole(page, until):
    until(lambda: len(page.frames()) == 7, "all moments")
    page.received.clear()
    page.report("want", step=20, epochs=True)
    until(lambda: 20 in page.frames(), "the wanted moment")
    frame = page.frames()[20]
    assert "epochs" in frame
    assert len(frame["frame"]["residuals"]) == 5
    assert frame["frame"]["isWhole"]


@pytest.mark.parametrize("content", [None, "hello", {}, {"kind": "want"}, {"kind": "look", "step": "x"}, {"kind": 5}])
def test_what_no_page_of_ours_would_send_is_ignored(page, content):
    page.grid._handle_custom_msg(content, [])
    assert page.panel.wait(60)
    assert page.grid.step is None
    assert not page.panel.status_text.startswith("Something")


def test_a_page_is_sent_at_most_a_megabyte_a_second(make_panel, make_session, client, monkeypatch, until, open_page):
    monkeypatch.setattr("workbench.views.grid.widget.BYTES_PER_SECOND", 20_000)
    panel = make_panel(make_session(wb.AttackConfig(steps=100_000)), truth=client)
    panel.views.selected_index = TITLES.index("Epochs")
    page = open_page(panel)
    began = time.monotonic()
    panel.run_button.click()
    until(lambda: len(page.frames()) >= 4, "some frames")
    panel.stop_button.click()
    taken = time.monotonic() - began
    size = sum(len(buffer) for _, buffers in list(page.received) for buffer in buffers)
    # One frame and the truth may be ahead of the limit.
    assert size <= 20_000 * taken + 2 * 3 * 5 * 784, f"{size} bytes in {taken:.1f} s"


def test_the_attackers_view_names_the_three_sides(shown):
    tab = choose(shown, "Attacker's view")
    for words in ("Received", "Assumed", "Never seen", "batch order"):
        assert words in tab.columns.value


def legends(figure):
    return [[text.get_text() for text in axes.get_legend().get_texts()] for axes in figure.axes]


def test_the_span_of_a_session_is_shown_without_computing_earlier_moments(finished, client, monkeypatch):
    scene = scene_at(finished, 30, Truth.of(client))
    monkeypatch.setattr(wb.AttackSession, "reconstruction_at", lambda *_: pytest.fail("an earlier moment was computed"))
    draw, text = scene.span_chart(is_live=True)
    spectrum = finished.spectrum
    for words in (str(spectrum), str(spectrum.image_count), "small span residual", "Step 30"):
        assert words in text, f"the text does not say {words!r}: {text}"
    assert len(draw().axes) == 2, "a session in a panel shows its singular values and residuals"


def test_the_span_of_a_recording_is_shown_with_its_residuals_over_the_steps(recording):
    scene = scene_at(recording, recording.frames[2].step, Truth.of(recording.truth))
    draw, text = scene.span_chart(is_live=True)
    assert legends(draw())[2] == ["all images", "half of the images", "median", f"step {scene.step}, shown above"]
    curve = draw().axes[2].lines[0]
    assert list(curve.get_xdata()) == [frame.step for frame in recording.frames], "a recorded moment is missing"
    np.testing.assert_allclose(curve.get_ydata(), [np.median(frame.residuals) for frame in recording.frames])
    assert f"Step {scene.step}: median span residual {np.median(scene.found.residuals):.2g}" in text
    tab = SpanTab()
    tab.draw(scene)
    assert Image.open(io.BytesIO(tab.image.value)).height > 800, "the residuals over the steps are not in the picture"


def test_residuals_are_coloured_by_what_was_recovered(recording):
    frame, order = recording.reconstruction(), np.array([3, 0, 4, 1, 2])
    psnr, residuals = np.array([30.0, 5.0, 31.0, 6.0, 7.0]), np.array([0.5, 0.4, 0.3, 0.1, 0.2], np.float32)
    quality = Score(psnr, np.ones(5), order, threshold=20.0)
    scene = scene_at(recording, frame.step, Truth.of(recording.truth))
    draw, _ = replace(scene, found=replace(frame, residuals=residuals), score=quality).span_chart()
    figure = draw()
    assert legends(figure)[1] == ["2 recovered", "3 not recovered"]
    good, bad = (line.get_ydata().tolist() for line in figure.axes[1].lines)
    assert good == residuals[[3, 4]].tolist(), "reconstructions 3 and 4 are matched to the recovered true images"
    assert bad == residuals[[2, 1, 0]].tolist()
    draw, _ = replace(scene, score=None).span_chart()
    assert legends(draw())[1] == ["5 images"], "without the truth nothing is recovered or not"


def test_a_recording_without_truth_shows_its_span(make_panel, finished):
    recording = wb.Recording.of(finished)
    tab = choose(make_panel(recording), "Span")
    for words in (str(recording.spectrum), str(recording.spectrum.image_count), "small span residual"):
        assert words in texts(tab), f"the caption does not say {words!r}: {texts(tab)}"
    assert Image.open(io.BytesIO(tab.image.value)).height > 800, "the residuals over the steps are not in the picture"


def test_residuals_that_are_not_finite_are_left_out(recording):
    # Those of a single image: it differs from no other.
    frame = replace(recording.reconstruction(), residuals=np.full(5, np.inf, np.float32))
    scene = replace(scene_at(recording, frame.step, Truth.of(recording.truth)), found=frame)
    draw, text = scene.span_chart()
    assert len(draw().axes) == 1, "residuals without a value were drawn"
    assert "inf" not in text


def test_where_there_is_no_span_a_sentence_says_so(make_panel, old_recording):
    panel = make_panel(old_recording)
    tab = choose(panel, "Span")
    assert texts(tab) == old_recording.spectrum
    assert tab.picture(scene_at(old_recording, 8, Truth())) is None, "a picture without a spectrum"


def test_without_the_truth_nothing_is_compared(make_panel, make_session, open_page):
    panel = make_panel(make_session())
    assert panel.wait(60)
    assert "recovered from the weights alone" in texts(choose(panel, "Labels"))
    scene = scene_at(panel.session, 0, Truth())
    assert panel.tabs[TITLES.index("Averaging")].picture(scene) is None
    page = open_page(panel)
    choose(panel, "Reconstruction")
    (source,) = page.of_kind("source")
    assert "truth" not in source
    assert source["source"]["levels"] is None
    frame = page.frames()[0]["frame"]
    assert frame["order"] is None
    assert frame["psnr"] is None
    assert len(frame["residuals"]) == 5, "without the truth, residuals are all that judges an image"
    assert all(name.startswith("class ") for name in frame["classes"])


def test_the_history_has_what_was_steered(make_panel, make_session, client, open_page):
    session = make_session()
    session.step(3)
    session.steer(tv_weight=0.25)
    session.step(2)
    panel = make_panel(session, truth=client)
    page = open_page(panel)
    choose(panel, "Loss")
    history = page.of_kind("history")[-1]["history"]
    assert history["steering"] == [{"step": 3, "text": "Smoothness (tv) = 0.25"}]
    assert history["numSteered"] == 1


def test_figures_follow_the_timeline(page, shown, finished):
    tab = choose(shown, "Span")
    assert "Step 30:" in texts(tab)
    page.report("look", step=20)
    assert "Step 20:" in texts(tab)
    assert not shown.rewind_button.disabled
    page.report("look", step=21)
    assert "Step 20:" in texts(tab), "a moment that only the page kept is shown by the nearest one"
    page.report("look", step=None)
    assert "Step 30:" in texts(tab)
    assert shown.rewind_button.disabled


def test_looking_back_while_the_attack_runs_stays_where_it_is(make_panel, make_session, client, until, open_page):
    panel = make_panel(make_session(wb.AttackConfig(steps=100_000)), truth=client)
    page = open_page(panel)
    panel.run_button.click()
    until(lambda: len(panel.grid.moments) and len(panel.grid.moments[1]) > 3, "some kept moments")
    panel.grid._handle_custom_msg({"kind": "look", "step": 5}, [])
    at = panel.session.num_steps
    until(lambda: max(page.frames(), default=0) > at + 5, "newer frames are sent")
    assert panel.grid.step == 5
    panel.stop_button.click()
    assert panel.wait(60)


def test_going_on_from_an_earlier_moment_with_another_weight(make_panel, make_session, client, open_page):
    panel = make_panel(make_session(), truth=client)
    panel.run_button.click()
    assert panel.wait(60)
    straight = panel.session.reconstruction().images
    page = open_page(panel)
    page.report("look", step=20)
    assert not panel.rewind_button.disabled
    panel.rewind_button.click()
    assert panel.wait(60)
    assert panel.session.num_steps == 20
    assert panel.grid.step is None
    assert panel.grid.followed == 1, "the page has to follow the newest step again"
    panel.controls.fields["tv_weight"].value = 1.0
    panel.run_button.click()
    assert panel.wait(60)
    assert panel.session.num_steps == 30
    assert not np.array_equal(panel.session.reconstruction().images, straight)


def test_a_recording_plays_without_computing(make_panel, recording, monkeypatch, until, open_page):
    monkeypatch.setattr(wb.AttackSession, "step", lambda *_: pytest.fail("a step was computed"))
    monkeypatch.setattr(wb.AttackSession, "__init__", lambda *_, **__: pytest.fail("a session was built"))
    panel = make_panel(recording)
    assert panel.wait(60)
    assert panel.recording is recording
    assert panel.run_button.disabled
    assert panel.controls.fields["steps"].disabled
    page = open_page(panel)
    until(lambda: len(page.frames()) == len(recording.frames), "all moments")
    for frame in recording.frames:
        assert page.frames()[frame.step]["pixels"] == frame.pixels.tobytes()
    for title in TITLES:
        choose(panel, title)
    for button in (panel.run_button, panel.step_button, panel.reset_button, panel.save_button, panel.fork_button):
        button.click()
        assert panel.wait(60)
        assert "recording" in panel.status_text
    with pytest.raises(wb.ConfigError, match="drives no session"):
        _ = panel.runner


def test_save_and_load_go_on_where_they_were(make_panel, make_session, client, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    panel = make_panel(make_session(), truth=client)
    panel.session.step(7)
    panel.file.value = "half"
    panel.save_button.click()
    assert panel.wait(60)
    assert panel.status_text.startswith("Wrote half.safetensors")
    panel.run_button.click()
    assert panel.wait(60)
    straight = panel.session.reconstruction().images
    panel.load_button.click()
    assert panel.wait(60)
    assert panel.session.num_steps == 7
    assert panel.truth == (client,)
    panel.run_button.click()
    assert panel.wait(60)
    assert np.array_equal(panel.session.reconstruction().images, straight)


def test_a_loaded_attack_on_another_update_has_no_truth(make_panel, make_session, tmp_path, panel):
    path = tmp_path / "other.safetensors"
    model = wb.models.mlp(widths=(16,))
    client = wb.load_dataset("glyphs").client(1, num_images=5)
    update = wb.client_update(model, model.init(), client, wb.ClientConfig(epochs=2, batch_size=2))
    wb.AttackSession(model, update, wb.AttackConfig(steps=3), label_counts=client.label_counts).save(path)
    panel.file.value = str(path)
    panel.load_button.click()
    assert panel.wait(60)
    assert panel.truth == ()
    assert "does not hold the truth" in panel.status_text


@pytest.mark.parametrize(
    ("kind", "name", "start"),
    [
        ("picture (PNG)", "attack.png", b"\x89PNG"),
        ("animation (GIF)", "attack.gif", b"GIF89a"),
        ("report (HTML)", "attack.html", b"<!DOCTYPE html>"),
    ],
)
def test_exports(shown, tmp_path, monkeypatch, kind, name, start):
    monkeypatch.chdir(tmp_path)
    shown.export.value = kind
    shown.export_button.click()
    assert shown.wait(120)
    assert shown.status_text.startswith(f"Wrote {name}"), shown.status_text
    assert (tmp_path / name).read_bytes().startswith(start)


def test_an_exported_animation_moves(shown, tmp_path, monkeypatch, finished):
    monkeypatch.chdir(tmp_path)
    shown.export.value = "animation (GIF)"
    shown.export_button.click()
    assert shown.wait(60)
    with Image.open(tmp_path / "attack.gif") as moving:
        assert moving.n_frames == len(finished.history.snapshot_steps)


def test_an_exported_recording_can_be_loaded_and_left_again(make_small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    panel = make_small()
    panel.run_button.click()
    assert panel.wait(120)
    panel.export.value = "recording"
    panel.export_button.click()
    assert panel.wait(60)
    panel.load_button.click()
    assert panel.wait(60)
    assert panel.recording is not None
    assert panel.session is None
    panel.build_button.click()
    assert panel.wait(120)
    assert panel.recording is None
    assert panel.session.num_steps == 0


def test_a_recording_is_dimmed_while_a_new_attack_is_built(make_small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    panel = make_small()
    panel.export.value = "recording"
    panel.export_button.click()
    assert panel.wait(120)
    panel.load_button.click()
    assert panel.wait(60)
    assert "wb-stale" not in panel.views._dom_classes
    seen = []
    panel.views.observe(lambda change: seen.append("wb-stale" in change["new"]), "_dom_classes")
    panel.build_button.click()
    assert panel.wait(120)
    assert seen == [True, False], "a recording that is about to be replaced looks as if it stayed"


def test_files_have_a_question_mark_too(panel):
    def texts_in(widget):
        children = getattr(widget, "children", ())
        return [str(getattr(widget, "value", ""))] + [text for child in children for text in texts_in(child)]

    shown = " ".join(texts_in(panel))
    for field in (panel.file, panel.export):
        assert f"aria-label='About {field.description}'" in shown
        assert field.tooltip in html.unescape(shown)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "must be a name"),
        ("nothing", "does not exist"),
        ("broken", "is not a complete file of the workbench"),
    ],
)
def test_what_cannot_be_loaded_is_said_in_words(panel, tmp_path, monkeypatch, name, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken").write_bytes(b"not a recording")
    panel.file.value = name
    panel.load_button.click()
    assert panel.wait(60)
    assert words in panel.status_text
    assert panel.session is not None


def test_what_cannot_be_written_is_said_in_words(panel, tmp_path):
    (tmp_path / "file").write_text("no folder")
    panel.file.value = str(tmp_path / "file" / "run")
    panel.save_button.click()
    assert panel.wait(60)
    assert "is not a writable directory" in panel.status_text
    assert "wb-error" in panel.status.value


def test_a_fork_goes_its_own_way(panel):
    panel.session.step(5)
    panel.fork_button.click()
    assert panel.wait(60)
    (fork,) = panel.forks
    assert fork.session.num_steps == 5
    assert fork.truth == panel.truth
    fork.controls.fields["tv_weight"].value = 1.0
    fork.run_button.click()
    assert fork.wait(60)
    assert (panel.session.num_steps, fork.session.num_steps) == (5, 30)
    assert panel.session.steering["tv_weight"] != 1.0
