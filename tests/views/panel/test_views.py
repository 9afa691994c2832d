"""Tabs, timeline, files, recordings and comparison, without a browser."""

import io

import numpy as np
import pytest
from PIL import Image

import workbench as wb
from workbench.views.panel import ComparePanel
from workbench.views.scene import scene_at

TITLES = ["Reconstruction", "Epochs", "Matching", "Averaging", "Labels", "Loss", "Attacker's view"]


@pytest.fixture(scope="module")
def finished(make_session):
    session = make_session()
    for _ in range(session.total_steps):
        session.step()
    return session


@pytest.fixture(scope="module")
def recording(finished, client):
    return wb.Recording.of(finished, client)


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
    assert "predicted without the truth" in texts(tab)


def test_without_the_truth_images_are_sorted_by_their_predicted_quality(shown, finished):
    tab = choose(shown, "Reconstruction")
    tab.truth.value = False
    assert shown.wait(60)
    confidence = finished.reconstruction().confidence
    best_first = tab.png
    tab.sort.value = "in order"
    assert shown.wait(60)
    is_sorted = (np.diff(confidence) <= 0).all()
    assert (tab.png == best_first) == is_sorted, f"the order does not follow the confidence {confidence}"


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
