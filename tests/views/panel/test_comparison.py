"""Several attacks beside each other, without a widget: one timeline, one place for each picture, shared axes."""

import numpy as np
import pytest

import workbench as wb
from workbench.views.panel.comparison import Attacks

METHODS = ("ours_prior", "fedsgd")


@pytest.fixture
def sessions(model, observation, client):
    def make(method):
        config = wb.AttackConfig(method=method, steps=6)
        return wb.AttackSession(model, observation, config, label_counts=client.label_counts, snapshot_every=2)

    return {method: make(method) for method in METHODS}


def test_all_run_together_to_their_end_and_back(sessions, client):
    attacks = Attacks(sessions, client)
    attacks.step()
    assert attacks.wait(60)
    assert [session.num_steps for session in sessions.values()] == [1, 1]
    attacks.run()
    assert attacks.wait(60)
    assert [session.num_steps for session in sessions.values()] == [6, 6]
    attacks.reset()
    assert [session.num_steps for session in sessions.values()] == [0, 0]
    assert attacks.steps == [0]


def test_a_pause_holds_all(model, observation, client):
    sessions = {name: wb.AttackSession(model, observation, wb.AttackConfig(steps=100_000)) for name in "ab"}
    attacks = Attacks(sessions, client)
    attacks.run()
    attacks.pause()
    for runner in attacks.runners.values():
        assert runner.wait_until_paused(60)
    held = [session.num_steps for session in sessions.values()]
    attacks.run()
    attacks.stop()
    assert attacks.wait(60)
    assert all(now >= before for now, before in zip((one.num_steps for one in sessions.values()), held, strict=True))


def test_every_picture_stands_where_its_truth_does(sessions, client):
    attacks = Attacks(sessions, client)
    attacks.run()
    assert attacks.wait(60)
    assert attacks.steps == [0, 2, 4, 6]
    compared = attacks.at(6)
    assert np.array_equal(compared.truth, client.images)
    for row, session in zip(compared.rows, sessions.values(), strict=True):
        quality = wb.score(session.reconstruction(), client)
        assert (row.name, row.step) == (session.config.method, 6)
        assert np.array_equal(row.images, session.reconstruction().images[quality.order])
        assert np.array_equal(row.psnr, quality.psnr)
        assert np.array_equal(row.ssim, quality.ssim)
    first, second = compared.rows
    assert np.array_equal(compared.gains()["fedsgd"], second.psnr - first.psnr)
    assert np.array_equal(compared.differences()["fedsgd"], np.abs(second.images - first.images))


def test_a_moment_that_one_has_not_kept_is_the_nearest_that_it_has(sessions, client):
    attacks = Attacks(sessions, client)
    sessions["ours_prior"].step(5)
    sessions["fedsgd"].step(2)
    assert [row.step for row in attacks.at(5).rows] == [5, 2]
    assert [row.step for row in attacks.at(0).rows] == [0, 0]


def test_what_was_steered_after_a_rewind_is_shown_anew(sessions, client):
    attacks = Attacks(sessions, client)
    attacks.run()
    assert attacks.wait(60)
    before = attacks.at(6).rows[0].images
    sessions["ours_prior"].rewind(2)
    sessions["ours_prior"].steer(step_size=1.0)
    sessions["ours_prior"].step(4)
    assert attacks.at(6).rows[0].step == 6
    assert not np.array_equal(attacks.at(6).rows[0].images, before)


def test_axes_hold_the_curves_of_all(sessions, client):
    attacks = Attacks(sessions, client)
    attacks.run()
    assert attacks.wait(60)
    (low_step, high_step), (low, high) = attacks.limits()
    assert (low_step, high_step) == (0, 6)
    for steps, values in attacks.curves().values():
        assert steps == [0, 2, 4, 6]
        assert low < min(values) <= max(values) < high


def test_without_the_truth_the_first_decides_who_stands_where(sessions):
    attacks = Attacks(sessions)
    attacks.run()
    assert attacks.wait(60)
    compared = attacks.at(6)
    assert compared.truth is None
    assert compared.gains() == attacks.curves() == {}
    assert np.array_equal(compared.rows[0].images, sessions["ours_prior"].reconstruction().images)
    found = sessions["fedsgd"].reconstruction().images
    assert sorted(image.tobytes() for image in compared.rows[1].images) == sorted(image.tobytes() for image in found)


def test_recordings_are_looked_at_and_not_run(sessions, client):
    sessions["fedsgd"].step(4)
    attacks = Attacks({"live": sessions["ours_prior"], "recorded": wb.Recording.of(sessions["fedsgd"], client)}, client)
    attacks.run()
    assert attacks.wait(60)
    assert [row.step for row in attacks.at(6).rows] == [6, 4]


def test_what_cannot_be_compared_is_refused(sessions, model, client):
    with pytest.raises(wb.ConfigError, match="must be at least two attacks to compare"):
        Attacks({"alone": sessions["fedsgd"]}, client)
    other = wb.load_dataset("glyphs").client(1, num_images=4)
    update = wb.client_update(model, model.init(), other, wb.ClientConfig(epochs=2, batch_size=2))
    with pytest.raises(wb.ConfigError, match="compare attacks on the same images"):
        Attacks({**sessions, "other": wb.AttackSession(model, update, wb.AttackConfig(steps=2))}, client)


@pytest.fixture
def compare(model, client, sessions):
    """A panel of one client, attacked with a defence and without."""
    training = wb.ClientConfig(epochs=2, batch_size=2, defence=wb.DefenceConfig("gaussian", 0.5))
    update = wb.client_update(model, model.init(), client, training)
    on = wb.AttackSession(model, update, wb.AttackConfig(steps=6), label_counts=client.label_counts, snapshot_every=2)
    panel = wb.AttackPanel.compare(sessions["ours_prior"], on, truth=client, names=("defence off", "defence on"))
    yield panel
    panel.close()


def test_a_panel_shows_both_on_one_timeline(compare):
    compare.run_button.click()
    assert compare.wait(120)
    together = compare.together
    assert list(together.attacks.sources) == ["defence off", "defence on"]
    assert together.caption.value.startswith("defence off ")
    assert "at step 6" in together.caption.value
    assert "Compared with defence off: defence on " in together.caption.value
    assert together.timeline.max == 3
    last = together.sheet.value
    assert last[1:4] == together.curves.value[1:4] == b"PNG"
    together.timeline.value = 1
    assert together.wait(60)
    assert together.step == 2
    assert "at step 2" in together.caption.value
    assert together.sheet.value != last
    together.timeline.value = 3
    assert together.wait(60)
    assert together.step is None
    headings = [side.children[0].value for side in compare.sides.children]
    assert headings == ["<h3>defence off</h3>", "<h3>defence on</h3>"]


def test_names_are_two(sessions, client):
    with pytest.raises(wb.ConfigError, match="must be two, one for each attack"):
        wb.AttackPanel.compare(*sessions.values(), truth=client, names=["one"])
