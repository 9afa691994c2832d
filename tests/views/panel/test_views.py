"""Tabs, timeline, files, recordings and comparison, without a browser."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import workbench as wb
from workbench.data import Truth
from workbench.metrics import Score
from workbench.views.panel import ComparePanel
from workbench.views.panel.tabs import ReconstructionTab, SpanTab
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


@pytest.mark.parametrize(
    ("title", "words"),
    [
        ("Reconstruction", "Step 30. Truth above, reconstruction below"),
        ("Epochs", "2 epochs, matched"),
        ("Matching", "the assignment of epoch 2"),
        ("Averaging", "all 2 combined"),
        ("Labels", "Wrong labels of 5"),
        ("Span", "Step 30: median span residual"),
        ("Loss", "at step 30. Nothing was steered"),
    ],
)
def test_every_tab_shows_a_picture_with_a_text_alternative(shown, title, words):
    tab = choose(shown, title)
    assert words in texts(tab)
    assert Image.open(io.BytesIO(tab.png)).width > 100
    assert tab.light.tooltip
    assert words in tab.light.tooltip


def test_the_attackers_view_names_the_three_sides(shown):
    tab = choose(shown, "Attacker's view")
    for words in ("Received", "Assumed", "Never seen", "batch order"):
        assert words in tab.columns.value


def test_sheets_are_drawn_for_both_themes_and_figures_are_turned_by_the_style(shown):
    picture = choose(shown, "Reconstruction")
    assert picture.light.value != picture.dark.value
    assert "wb-light" in picture.light._dom_classes
    assert "wb-dark" in picture.dark._dom_classes
    assert "wb-figure" in choose(shown, "Loss").light._dom_classes


def test_the_truth_can_be_hidden(shown):
    tab = choose(shown, "Reconstruction")
    with_truth = tab.png
    tab.truth.value = False
    assert shown.wait(60)
    assert tab.png != with_truth
    assert "as the attacker sees them" in texts(tab)
    assert "dB" not in texts(tab) + tab.large.caption.value
    assert "the confidence, which needs no truth" in texts(tab)


@pytest.fixture
def sheets(monkeypatch):
    """The images and captions of every sheet that is drawn, which draws a plain picture instead."""
    drawn = []
    png = io.BytesIO()
    Image.new("RGB", (120, 10)).save(png, "PNG")

    def sheet(images, captions=(), **_):
        drawn.append((images, list(captions)))
        return png.getvalue()

    monkeypatch.setattr("workbench.views.render.contact_sheet", sheet)
    return drawn


@pytest.mark.parametrize("is_recorded", [False, True])
@pytest.mark.parametrize("is_known", [False, True])
def test_without_the_truth_images_are_sorted_by_their_confidence(
    finished, recording, client, sheets, is_recorded, is_known
):
    truth = Truth.of(client if is_known else None)
    scene = replace(scene_at(recording if is_recorded else finished, 30, truth), truth=truth)
    if not is_known:
        scene = replace(scene, score=None)
    tab, confidence = ReconstructionTab(lambda: None), finished.reconstruction().confidence
    tab.truth.value = False
    best = np.argsort(-confidence, kind="stable")
    assert (best != np.arange(5)).any(), "the images are in the order of their confidence: this test cannot fail"
    for sort, order in (("best first", best), ("in order", np.arange(5))):
        tab.sort.value = sort
        sheets.clear()
        tab.draw(scene, 1)
        images, captions = sheets[0]
        classes = [client.class_names[label] if is_known else f"class {label}" for label in scene.found.labels[order]]
        expected = [f"{name}: {value:.2f}" for name, value in zip(classes, confidence[order], strict=True)]
        assert captions == expected, f"{sort}: other classes or confidences, or another order"
        assert np.array_equal(images, scene.found.images[order]), f"{sort}: the images are not those of the captions"


def test_where_there_is_no_confidence_only_the_class_is_shown_and_why(old_recording, sheets):
    tab, scene = ReconstructionTab(lambda: None), scene_at(old_recording, 8, Truth.of(old_recording.truth))
    tab.truth.value = False
    tab.draw(scene, 1)
    expected = [scene.truth.class_names[label] for label in scene.found.labels]
    assert sheets[0][1] == expected, "without a confidence, images have their class, in their own order"
    assert old_recording.spectrum in texts(tab), f"the caption does not say why: {texts(tab)}"


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
    assert f"Step {scene.step}: median span residual {np.median(scene.found.residuals):.2f}" in text
    tab = SpanTab(lambda: None)
    tab.draw(scene, 1)
    assert Image.open(io.BytesIO(tab.png)).height > 800, "the residuals over the steps are not in the picture"


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
    assert Image.open(io.BytesIO(tab.png)).height > 800, "the residuals over the steps are not in the picture"


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
    assert tab.png is None, "a picture without a spectrum"


def test_an_image_can_be_seen_large_and_the_order_be_chosen(shown):
    tab = choose(shown, "Reconstruction")
    first, large = tab.png, tab.large.png
    tab.image.value = 3
    assert shown.wait(60)
    assert tab.image.max == 5
    assert tab.large.png != large
    assert "Image 3 large" in tab.large.caption.value
    assert "epoch 2" in tab.large.caption.value
    tab.sort.value = "in order"
    assert shown.wait(60)
    assert tab.png != first


def test_epochs_can_be_seen_as_optimised(shown, finished):
    tab = choose(shown, "Epochs")
    matched = tab.png
    tab.matched.value = "as optimised"
    assert shown.wait(60)
    assert "each in its own order" in texts(tab)
    moved = (finished.reconstruction().permutations[1] != np.arange(5)).any()
    assert (tab.png != matched) == moved


def test_matching_tells_how_much_changed_since_an_earlier_moment(shown, finished):
    tab = choose(shown, "Matching")
    shown.timeline.slider.value = finished.history.snapshot_steps.index(20)
    assert shown.wait(60)
    assert "Nothing earlier" in texts(tab)
    shown.timeline.slider.value = shown.timeline.slider.max
    assert shown.wait(60)
    before, now = finished.reconstruction_at(20).permutations, finished.reconstruction().permutations
    assert f"Since step 20, {(before != now).sum()} of 5 assignments" in texts(tab)


def test_without_the_truth_nothing_is_compared(make_panel, make_session):
    panel = make_panel(make_session())
    assert panel.wait(60)
    assert "as the attacker sees them" in texts(choose(panel, "Reconstruction"))
    assert "Without the truth" in texts(choose(panel, "Averaging"))
    assert "recovered from the weights alone" in texts(choose(panel, "Labels"))
    assert panel.tabs[0].truth.disabled


def test_the_loss_marks_what_was_steered(make_panel, make_session, client):
    session = make_session()
    session.step(3)
    session.steer(tv_weight=0.25)
    session.step(2)
    panel = make_panel(session, truth=client)
    assert "1 steering events, the last at step 3: Smoothness (tv) = 0.25" in texts(choose(panel, "Loss"))


def test_the_page_is_told_where_the_slider_stands_when_a_move_has_settled(shown, until, monkeypatch):
    # What the attack sent before the move may arrive on the page after it, and would leave the handle elsewhere.
    sent = []
    monkeypatch.setattr(shown.timeline.slider, "send_state", lambda key=None: sent.append(key))
    shown.timeline.slider.value = 0
    assert shown.timeline.is_settling
    until(lambda: not shown.timeline.is_settling, "the settled slider")
    assert sent[-1] == "value"


def test_the_timeline_shows_kept_moments_and_follows_at_its_end(shown, finished):
    steps = finished.history.snapshot_steps
    timeline = shown.timeline
    assert timeline.slider.max == len(steps) - 1
    assert timeline.step is None
    newest = shown.tabs[0].png
    for place in (2, 0):
        timeline.slider.value = place
        assert shown.wait(60)
        assert f"Step {steps[place]}." in texts(shown.tabs[0])
        assert timeline.text.value == f"step {steps[place]} of 30"
    scene = scene_at(finished, 0, shown.controller.workspace.truth)
    assert f"mean {scene.score.psnr.mean():.1f} dB" in texts(shown.tabs[0])
    timeline.slider.value = timeline.slider.max
    assert shown.wait(60)
    assert timeline.step is None
    assert shown.tabs[0].png == newest


def test_scrubbing_while_the_attack_runs_stays_where_it_is(make_panel, make_session, client, until):
    panel = make_panel(make_session(wb.AttackConfig(steps=100_000)), truth=client)
    panel.run_button.click()
    until(lambda: panel.timeline.slider.max >= 3, "some kept moments")
    panel.timeline.slider.value = 1
    at = panel.session.num_steps
    until(lambda: panel.session.num_steps > at + 5, "the run goes on")
    until(lambda: "Step 5." in texts(panel.tabs[0]), "the earlier moment is shown")
    assert panel.timeline.step == 5
    panel.stop_button.click()
    assert panel.wait(60)


def test_going_on_from_an_earlier_moment_with_another_weight(make_panel, make_session, client):
    panel = make_panel(make_session(), truth=client)
    panel.run_button.click()
    assert panel.wait(60)
    straight = panel.session.reconstruction().images
    panel.timeline.slider.value = panel.session.history.snapshot_steps.index(20)
    assert panel.wait(60)
    assert not panel.timeline.rewind_button.disabled
    panel.timeline.rewind_button.click()
    assert panel.wait(60)
    assert panel.session.num_steps == 20
    assert panel.timeline.step is None
    panel.controls.fields["tv_weight"].value = 1.0
    panel.run_button.click()
    assert panel.wait(60)
    assert panel.session.num_steps == 30
    assert not np.array_equal(panel.session.reconstruction().images, straight)


def test_a_recording_plays_without_computing(make_panel, recording, monkeypatch):
    monkeypatch.setattr(wb.AttackSession, "step", lambda *_: pytest.fail("a step was computed"))
    monkeypatch.setattr(wb.AttackSession, "__init__", lambda *_, **__: pytest.fail("a session was built"))
    panel = make_panel(recording)
    assert panel.wait(60)
    assert panel.recording is recording
    assert panel.run_button.disabled
    assert panel.controls.fields["steps"].disabled
    seen = set()
    for place in range(panel.timeline.slider.max + 1):
        panel.timeline.slider.value = place
        assert panel.wait(60)
        seen.add(panel.tabs[0].png)
    assert len(seen) == len(recording.frames)
    for title in TITLES:
        assert texts(choose(panel, title))
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


@pytest.fixture
def compare(make_session, client):
    panel = wb.AttackPanel.compare(make_session(), truth=client)
    yield panel
    panel.close()


def test_two_attacks_on_one_update_are_started_together(compare):
    assert isinstance(compare, ComparePanel)
    compare.run_button.click()
    assert compare.wait(120)
    left, right = (panel.session for panel in compare.panels)
    assert (left.config.method, right.config.method) == ("ours_prior", "ours_no_prior")
    assert left.observation.client_weights is not None
    assert np.array_equal(left.label_counts, right.label_counts)
    assert left.num_steps == right.num_steps == 30
    headings = [side.children[0].value for side in compare.children[1].children]
    assert headings == ["<h3>ours_prior</h3>", "<h3>ours_no_prior</h3>"]
    compare.panels[0].views.selected_index = 5
    assert compare.panels[1].views.selected_index == 5
    compare.reset_button.click()
    assert compare.wait(60)
    assert left.num_steps == right.num_steps == 0
    compare.step_button.click()
    assert compare.wait(60)
    assert left.num_steps == right.num_steps == 1


def test_comparing_shares_the_client_that_the_left_controls_name(start_small):
    start_small(steps=3)
    compare = wb.AttackPanel.compare()
    try:
        left, right = compare.panels
        left.controls.fields["num_images"].value = 5
        assert right.controls["num_images"] == 5
        assert right.controls.fields["num_images"].disabled
        compare.run_button.click()
        assert compare.wait(120)
        updates = [panel.session.observation.client_weights for panel in compare.panels]
        for layer in updates[0]:
            assert np.array_equal(updates[0][layer]["kernel"], updates[1][layer]["kernel"])
        assert [panel.session.config.method for panel in compare.panels] == ["ours_prior", "ours_no_prior"]
        assert [panel.session.num_steps for panel in compare.panels] == [6, 6]
    finally:
        compare.close()
