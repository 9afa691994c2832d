"""Two attacks beside each other, without a browser: one client, one set of buttons, one place for each picture."""

import numpy as np
import pytest

import workbench as wb
from workbench.data.dataset import eight_bits
from workbench.target import is_same_update
from workbench.views.figures import THEMES, lines_figure
from workbench.views.panel import ComparePanel


@pytest.fixture
def sessions(model, observation, client):
    def make(method):
        config = wb.AttackConfig(method=method, steps=6)
        return wb.AttackSession(model, observation, config, label_counts=client.label_counts, snapshot_every=2)

    return [make(method) for method in ("ours_prior", "fedsgd")]


@pytest.fixture
def make_compare():
    panels = []

    def make(*arguments, **options):
        panels.append(wb.AttackPanel.compare(*arguments, **options))
        return panels[-1]

    yield make
    for panel in panels:
        panel.close()
        assert panel.wait(60), "a run did not end after its panel was closed"


@pytest.fixture
def compare(make_compare, sessions, client):
    return make_compare(*sessions, truth=client, names=("one", "other"))


def steps_of(compare):
    return [session.num_steps for session in compare.sessions]


def test_one_set_of_buttons_drives_both(compare):
    assert isinstance(compare, ComparePanel)
    assert compare.wait(60)
    assert compare.pause_button.disabled
    compare.step_button.click()
    assert compare.wait(60)
    assert steps_of(compare) == [1, 1]
    compare.run_button.click()
    assert compare.wait(60)
    assert steps_of(compare) == [6, 6]
    assert [attack.status_text for attack in compare.attacks] == ["Finished: 6 of 6 steps."] * 2
    assert [attack.progress.value for attack in compare.attacks] == [6, 6]
    compare.reset_button.click()
    assert compare.wait(60)
    assert steps_of(compare) == [0, 0]


def test_a_pause_holds_both_and_run_goes_on(make_compare, model, observation, client, until):
    both = [wb.AttackSession(model, observation, wb.AttackConfig(steps=100_000)) for _ in range(2)]
    compare = make_compare(*both, truth=client)
    compare.run_button.click()
    until(lambda: min(steps_of(compare)) > 2, "steps of both")
    compare.pause_button.click()
    for attack in compare.attacks:
        assert attack.controller.workspace.runner.wait_until_paused(60)
    held = steps_of(compare)
    until(lambda: compare.run_button.description == "Resume both", "the button says what it does")
    compare.run_button.click()
    until(lambda: all(now > before for now, before in zip(steps_of(compare), held, strict=True)), "both go on")
    compare.stop_button.click()
    assert compare.wait(60)
    assert compare.comparison.names == ["ours_prior (1)", "ours_prior (2)"]


def test_a_command_that_one_refuses_is_for_the_other(compare):
    compare.sessions[0].step(6)
    compare.run_button.click()
    assert compare.wait(60)
    assert steps_of(compare) == [6, 6]


def test_a_page_gets_the_same_truth_and_the_frames_of_each(compare, sessions, client, open_page, until):
    compare.run_button.click()
    assert compare.wait(60)
    pages = [open_page(compare, grid) for grid in compare.comparison.grids]
    for page, session in zip(pages, sessions, strict=True):
        until(lambda page=page: sorted(page.frames()) == [0, 2, 4, 6], "all kept moments")
        (source,) = page.of_kind("source")
        assert source["truth"] == eight_bits(client.images).tobytes()
        assert source["source"]["totalSteps"] == 6
        for step, frame in page.frames().items():
            found = session.reconstruction_at(step)
            assert frame["pixels"] == eight_bits(found.images).tobytes()
            assert frame["frame"]["order"] == wb.score(found, client).order.tolist()


def test_both_go_on_from_the_moment_that_is_looked_at(compare, open_page):
    compare.run_button.click()
    assert compare.wait(60)
    assert compare.rewind_button.disabled
    for grid, step in zip(compare.comparison.grids, (4, 2), strict=True):
        open_page(compare, grid).report("look", step=step)
    assert not compare.rewind_button.disabled
    compare.rewind_button.click()
    assert compare.wait(60)
    assert steps_of(compare) == [4, 2]
    assert [grid.step for grid in compare.comparison.grids] == [None, None]
    compare.attacks[1].controls.fields["tv_weight"].value = 1.0
    assert [session.steering["tv_weight"] for session in compare.sessions] == [0.001, 1.0]


def test_two_grids_share_the_limit_of_bytes(compare, open_page, monkeypatch):
    pages = [open_page(compare, grid) for grid in compare.comparison.grids]
    for page in pages:
        monkeypatch.setattr("time.monotonic", lambda: 1000.0)
        page.grid._free_at = 0.0
        page.grid._post({"kind": "frame"}, {"pixels": bytes(100_000)})
        assert page.grid._free_at == pytest.approx(1000.2), "two grids at full speed are two megabytes a second"
        monkeypatch.undo()


def test_without_a_second_session_the_same_update_is_attacked_without_the_prior(make_compare, make_session, client):
    compare = make_compare(make_session(), truth=client)
    compare.step_button.click()
    assert compare.wait(120)
    first, second = compare.sessions
    assert (first.config.method, second.config.method) == ("ours_prior", "ours_no_prior")
    assert is_same_update(first.observation, second.observation)
    assert np.array_equal(first.label_counts, second.label_counts)
    assert compare.comparison.names == ["ours_prior", "ours_no_prior"]
    colours = dict(zip(compare.comparison.names, compare.comparison.colours, strict=True))
    axes = lines_figure({name: [1.0, 2.0] for name in colours}, title="t", x="x", y="y").axes[0]
    for line in axes.get_lines():
        assert line.get_color() == THEMES["light"].lines[colours[line.get_label()]], "another colour in a figure"


def test_one_form_chooses_the_client_of_both(start_small, make_compare):
    start_small(steps=3)
    compare = make_compare()
    first, second = (attack.controls for attack in compare.attacks)
    titles = list(compare.settings.titles)
    assert titles[:3] == ["Client", "Client, details", "ours_prior"]
    assert "ours_no_prior, steering: acts at once" in titles
    shown = compare.settings.children
    assert first.rows["num_images"] in shown[0].children
    assert not any(second.rows["num_images"] in box.children for box in shown), "the client has a second form"
    first.fields["num_images"].value = 5
    assert second["num_images"] == 5
    compare.run_button.click()
    assert compare.wait(120)
    updates = [session.observation.client_weights for session in compare.sessions]
    for layer in updates[0]:
        assert np.array_equal(updates[0][layer]["kernel"], updates[1][layer]["kernel"])
    assert [session.config.method for session in compare.sessions] == ["ours_prior", "ours_no_prior"]
    assert steps_of(compare) == [6, 6]
    first.fields["dataset"].value = "photos"
    assert (second["dataset"], second["method"]) == ("photos", "ours_no_prior")
    assert second["clip_weight"] == first["clip_weight"], "settings of another data set"


def test_a_new_method_is_a_new_name_and_the_old_pictures_are_dimmed(start_small, make_compare, until):
    start_small(steps=3)
    compare = make_compare()
    assert compare.wait(120)
    compare.attacks[1].controls.fields["method"].value = "fedsgd"
    seen = []
    compare.view.observe(lambda change: seen.append("wb-stale" in change["new"]), "_dom_classes")
    compare.build_button.click()
    assert compare.wait(120)
    assert compare.comparison.names == ["ours_prior", "fedsgd"]
    assert True in seen
    assert "wb-stale" not in compare.view._dom_classes


def test_what_cannot_be_compared_is_refused(sessions, model, client):
    with pytest.raises(wb.ConfigError, match="must be two, one for each attack"):
        wb.AttackPanel.compare(*sessions, truth=client, names=["one"])
    other = wb.load_dataset("glyphs").client(1, num_images=4)
    update = wb.client_update(model, model.init(), other, wb.ClientConfig(epochs=2, batch_size=2))
    with pytest.raises(wb.ConfigError, match="compare the same images"):
        wb.AttackPanel.compare(sessions[0], wb.AttackSession(model, update, wb.AttackConfig(steps=2)), truth=client)
    with pytest.raises(wb.ConfigError, match="compare the same images"):
        wb.AttackPanel.compare(*sessions, truth=other)
