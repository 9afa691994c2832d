"""The panel's scenarios, its lesson, and the looks that a lecturer switches, without a browser."""

import numpy as np
import pytest

import workbench as wb
from workbench.views.panel.scenarios import SCENARIOS
from workbench.views.panel.status import GIVEN

LABELS = ["Lesson", "Characters", "Photos", "With noise", "Two clients", "Full attack"]


def test_the_scenarios_are_these():
    assert [scenario.label for scenario in SCENARIOS] == LABELS
    settings = {scenario.label: scenario.settings for scenario in SCENARIOS}
    assert settings["Photos"].target.dataset == "photos"
    assert settings["With noise"].target.client.defence.strength == 0.1
    assert settings["Two clients"].target.num_clients == 2
    assert settings["Full attack"].config.method == "shared"
    assert settings["Full attack"].config.span_weight > 0


def test_the_panel_opens_on_the_lesson_and_a_click_comes_back_to_it(make_panel):
    panel = make_panel()
    lesson = SCENARIOS[0].settings
    assert panel.wait(120)
    assert panel.session.config == lesson.config
    assert panel.session.observation.num_images == lesson.target.num_images
    first = panel.session
    panel.controls.fields["epochs"].value = 2
    panel.controls.fields["steps"].value = 3
    panel.scenario_buttons["Lesson"].click()
    assert panel.wait(120)
    assert panel.session is not first
    assert panel.session.config == lesson.config
    assert panel.controls.settings() == lesson
    assert not panel.controller.has_changed
    assert "Ready" in panel.status_text


def test_a_given_session_has_no_scenarios(panel):
    for button in panel.scenario_buttons.values():
        assert button.disabled
        assert button.tooltip == GIVEN


def test_what_the_numbers_mean_is_said_with_what_blank_paper_would_score(panel, client, make_panel, make_session):
    blank = wb.score(np.full_like(client.images, np.median(client.images)), client).psnr.mean()
    assert f"a blank image would have {blank:.1f} dB" in panel.legend.value
    assert "An image above 20 dB counts as recovered." in panel.legend.value
    without_truth = make_panel(make_session())
    assert without_truth.wait(60)
    assert "no image counts as recovered" in without_truth.legend.value


@pytest.mark.parametrize(("button", "name"), [("present_button", "wb-present"), ("drawer_button", "wb-open")])
def test_a_lecturer_switches_the_look(panel, button, name):
    assert name not in panel._dom_classes
    getattr(panel, button).value = True
    assert name in panel._dom_classes
    getattr(panel, button).value = False
    assert name not in panel._dom_classes


def test_while_a_new_attack_is_built_the_old_one_is_dimmed(make_panel, monkeypatch, until):
    panel = make_panel()
    assert panel.wait(120)
    assert "wb-stale" not in panel.views._dom_classes
    seen = []
    monkeypatch.setattr(
        type(panel.controller.workspace), "_prepare", lambda *_: seen.append("wb-stale" in panel.views._dom_classes)
    )
    panel.controls.fields["seed"].value = 3
    panel.build_button.click()
    assert panel.wait(120)
    assert seen == [True]
    until(lambda: "wb-stale" not in panel.views._dom_classes, "the views are no longer dimmed")
