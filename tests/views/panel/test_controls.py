"""Controls: every one of them reaches the session; what makes no sense together is switched off, with the reason."""

from dataclasses import replace
from html import unescape

import numpy as np
import pytest

import workbench as wb
from workbench.config import LARGEST_STRENGTHS, PRESETS, USUAL_STRENGTHS, AttackConfig, DefenceConfig
from workbench.settings import settings_of
from workbench.target import LESSON
from workbench.training import native
from workbench.training.local import LocalTraining
from workbench.views.panel.controls import CLIENT, STEERED, Controls
from workbench.views.panel.scenarios import FIRST, SCENARIOS
from workbench.views.scene import scene_at


@pytest.fixture
def controls():
    return Controls(lambda name: None, lambda name, value: None)


def test_without_changes_the_controls_say_the_lesson(controls):
    assert controls.settings() == SCENARIOS[0].settings
    assert SCENARIOS[0].preset == "lesson"
    assert SCENARIOS[0].target == LESSON


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.label)
def test_the_controls_say_the_scenario_that_they_show(controls, scenario):
    for other in SCENARIOS:
        controls.show_scenario(other)
    controls.show_scenario(scenario)
    assert controls.settings() == scenario.settings
    assert controls["preset"] == scenario.preset
    assert controls.fields["strength"].disabled == (scenario.target.client.defence.name == "none")


def test_a_defence_that_is_chosen_has_a_strength(controls):
    for name, strength in USUAL_STRENGTHS.items():
        controls.fields["defence"].value = name
        assert controls.settings().target.client.defence.strength == strength > 0


def test_a_strength_stays_in_the_range_of_its_defence(controls):
    field = controls.fields["strength"]
    for name, largest in LARGEST_STRENGTHS.items():
        controls.fields["defence"].value = name
        field.value = -1
        assert field.value == 0
        field.value = 2 * largest + 1
        assert field.value == largest
    # Whatever was chosen before, a scenario shows its own strength.
    target = FIRST.target
    client = replace(target.client, defence=DefenceConfig("gaussian", 5.0))
    controls.fields["defence"].value = "pruning"
    controls.show_scenario(replace(FIRST, target=replace(target, client=client)))
    assert controls.settings().target.client.defence == client.defence


def test_a_question_mark_opens_what_the_table_of_settings_says(controls):
    for name, known in {**CLIENT, **{known.key: known for known in settings_of(AttackConfig).values()}}.items():
        text = unescape(controls.helps[name].value)
        assert f"aria-label='About {known.label}'" in text, name
        assert known.help in text, name
        assert known.section in text, name
        assert not known.symbol or f"symbol {known.symbol}" in text, name
        assert controls.rows[name].children == (controls.fields[name], controls.helps[name]), name


def test_the_question_mark_also_says_why_a_control_is_off(controls):
    assert "Off now: There is no defence." in controls.helps["strength"].value
    controls.fields["defence"].value = "gaussian"
    assert "Off now" not in controls.helps["strength"].value


def another_value(known, value):
    """A value that a setting may have and does not have now."""
    if known.choices:
        return next(choice for choice in known.choices if choice != value)
    if known.kind is bool:
        return not value
    if known.kind is float and known.maximum is not None:
        return (value or known.maximum) / 2
    return 2 * (value or 1) if known.kind is float else (value or 0) + 3


# Some make sense only together with another; those have tests of their own below.
TOGETHER = ("data", "strength", "clip_norm", "nesterov", "rates")
CLIENT_SETTINGS = [known.key for known in CLIENT.values() if known.key not in TOGETHER]
ATTACK_SETTINGS = [name for name in settings_of(AttackConfig) if name not in ("update_weight", "label_method")]


def client_values(target):
    records = (target, target.client, target.client.defence)
    return {known.key: getattr(record, name) for record in records for name, known in settings_of(type(record)).items()}


@pytest.mark.parametrize("name", CLIENT_SETTINGS)
def test_every_control_of_the_client_reaches_the_target(controls, name):
    value = another_value(CLIENT[name], client_values(controls.settings().target)[name])
    controls.fields[name].value = value
    assert client_values(controls.settings().target)[name] == value


def test_the_optimizer_of_the_client_reaches_the_target(controls):
    controls.show_values({"momentum": 0.9, "nesterov": True, "rates": "0.1, 0.05"})
    trained = controls.settings().target.client
    assert (trained.momentum, trained.nesterov, trained.rates) == (0.9, True, (0.1, 0.05))
    controls.show_values({"optimizer": "adam"})
    controls.update_abilities()
    assert controls.fields["momentum"].disabled
    assert controls.settings().target.client.momentum == 0, "a momentum that was set before belongs to SGD"


@pytest.mark.parametrize("name", ATTACK_SETTINGS)
def test_every_control_of_the_attack_reaches_the_config(controls, name):
    known = settings_of(AttackConfig)[name]
    value = another_value(known, getattr(controls.settings().config, name))
    if known.slider:
        value = next(stop for _, stop in reversed(controls.fields[name].options) if stop != controls[name])
    controls.fields[known.key].value = value
    assert getattr(controls.settings().config, name) == value


def test_every_menu_shows_an_entry(controls):
    menus = {name: field for name, field in controls.fields.items() if hasattr(field, "options")}
    empty = [name for name, field in menus.items() if not field.label]
    assert not empty, f"the menus {empty} show nothing"


def test_the_source_of_labels_is_an_estimator_or_the_truth(controls):
    controls.fields["label_source"].value = "geng_server"
    assert controls.settings().config.label_method == "geng_server"
    controls.fields["label_source"].value = "known"
    assert controls.settings().label_source == "known"


def test_the_strength_and_the_clip_norm_belong_to_a_defence(controls):
    controls.fields["defence"].value = "dp_sgd"
    controls.fields["strength"].value = 0.5
    controls.fields["clip_norm"].value = 2.0
    defence = controls.settings().target.client.defence
    assert (defence.name, defence.strength, defence.clip_norm) == ("dp_sgd", 0.5, 2.0)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("dataset", ["glyphs", "photos"])
def test_presets_set_all_controls_of_the_attack(controls, preset, dataset):
    controls.fields["dataset"].value = dataset
    controls.fields["preset"].value = preset
    assert controls.settings().config == AttackConfig.preset(preset, dataset=dataset)


def test_another_prior_gets_the_weight_that_belongs_to_it(controls):
    controls.fields["prior"].value = "max"
    assert controls["prior_weight"] == AttackConfig.preset("lesson", dataset="glyphs", prior="max").prior_weight


REASONS = [
    ({"method": "fedsgd"}, "prior_weight", "fedsgd has no epoch prior."),
    ({"method": "shared"}, "consensus_weight", "shared has one set of images for all epochs."),
    ({"method": "fedsgd_epoch"}, "warm_start_steps", "fedsgd_epoch is a baseline"),
    ({"epochs": 1}, "prior", "The prior compares epochs, and there is one."),
    ({"believed_epochs": 1}, "combine", "There is only one epoch."),
    ({}, "strength", "There is no defence."),
    ({"defence": "gaussian"}, "clip_norm", "Only dp_sgd clips."),
    ({}, "data", "glyphs is bundled: it needs no files."),
]


@pytest.mark.parametrize(("changes", "name", "reason"), REASONS)
def test_what_makes_no_sense_is_switched_off_with_the_reason(controls, changes, name, reason):
    for changed, value in changes.items():
        controls.fields[changed].value = value
    assert controls.fields[name].disabled
    assert controls.fields[name].tooltip.startswith(reason)


def test_what_makes_sense_again_is_switched_on_again(controls):
    tip = controls.fields["prior"].tooltip
    controls.fields["method"].value = "fedsgd"
    controls.fields["method"].value = "ours_prior"
    assert not controls.fields["prior"].disabled
    assert controls.fields["prior"].tooltip == tip


def test_every_control_has_a_label_and_says_what_it_is(controls):
    for name, field in controls.fields.items():
        assert field.description, name
        assert field.tooltip, name
        assert field.tabbable is not False, f"{name} cannot be reached with the keyboard"


WRONG = [
    ({"batch_size": 17}, "batch_size = 17 must be at most the number of images, 12"),
    ({"believed_batch_size": 17}, "believed batch size = 17 must be at most the number of images, 12"),
    ({"learning_rate": -1.0}, "learning_rate = -1.0 must be a finite number greater than 0"),
    ({"dataset": "femnist"}, "data set = 'femnist' needs the path of its files"),
    ({"defence": "gaussian", "strength": 0.0}, "strength = 0 makes 'gaussian' no defence; choose one above 0, such as"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_what_cannot_be_is_said_while_one_types_and_again_at_build(make_panel, changes, message):
    panel = make_panel()
    for name, value in changes.items():
        panel.controls.fields[name].value = value
    panel.wait(60)
    assert message in panel.controls.derived.value.replace("&#x27;", "'")
    panel.build_button.click()
    assert message in panel.status_text
    assert "wb-error" in panel.status.value
    assert panel.wait(60)


def test_what_it_takes_follows_what_is_typed(make_small):
    panel = make_small()
    assert panel.wait(60)
    assert panel.controls.derived.value.startswith("2 batches an epoch · 4 local steps · 9 attack steps · about")
    panel.controls.fields["epochs"].value = 5
    assert panel.wait(60)
    assert panel.controls.derived.value.startswith("2 batches an epoch · 10 local steps · 9 attack steps · about")


def test_how_to_be_faster_stands_below(make_small, monkeypatch):
    monkeypatch.setattr(native, "advice", lambda: "Hurry <up>.")
    panel = make_small()
    assert panel.wait(60)
    assert panel.controls.derived.value.endswith("<br>Hurry &lt;up&gt;.")


def test_changed_settings_are_built_by_run_and_only_then(make_small):
    panel = make_small()
    panel.run_button.click()
    assert panel.wait(120)
    first = panel.session
    assert first.observation.epochs == 2
    assert first.config.steps == 6
    panel.controls.fields["steps"].value = 4
    panel.controls.fields["label_source"].value = "known"
    assert panel.session is first
    assert "settings have changed" in panel.status_text
    assert panel.run_button.description == "Build and run"
    panel.run_button.click()
    assert panel.wait(120)
    assert panel.session is not first
    assert panel.session.config.steps == 4
    assert np.array_equal(panel.session.label_counts, [panel.truth[0].label_counts])
    assert panel.session.num_steps == panel.session.total_steps == 7


@pytest.mark.slow
def test_an_aggregate_of_clients_is_attacked_and_compared_with_all(make_small):
    panel = make_small(num_clients=2)
    panel.run_button.click()
    assert panel.wait(120)
    assert panel.session.observation.num_clients == len(panel.truth) == 2
    assert panel.session.reconstruction().images.shape[0] == 8
    scene = scene_at(panel.session, panel.session.num_steps, panel.controller.workspace.truth)
    assert len(scene.score.psnr) == len(scene.matched_truth) == 8, "it is compared with the images of both clients"


def test_changing_controls_during_a_run_does_not_disturb_it(make_panel, make_session, client, until):
    panel = make_panel(make_session(wb.AttackConfig(steps=100_000)), truth=client)
    panel.run_button.click()
    until(lambda: panel.session.num_steps > 2, "some steps")
    session = panel.session
    for name in ("steps", "believed_epochs", "believed_batch_size"):
        panel.controls.fields[name].value = 2
    before = session.num_steps
    until(lambda: session.num_steps > before + 2, "the run goes on")
    panel.stop_button.click()
    assert panel.wait(60)
    assert panel.session is session


def test_of_a_given_session_only_what_is_true_of_it_is_shown(panel, make_panel, make_session):
    assert panel.controls.client_text.value == "Whose update it is: glyphs, client 0."
    visible = [name for name in CLIENT if panel.controls.rows[name].layout.display != "none"]
    observed = ["num_clients", "num_images", "seed", "epochs", "batch_size", "learning_rate"]
    training = [known.key for known in settings_of(LocalTraining).values()]
    assert sorted(visible) == sorted([*observed, *training]), "what the server knows of the client"
    without_truth = make_panel(make_session())
    assert without_truth.wait(60)
    assert without_truth.controls.client_text.value == "Whose update it is: not known."


def test_the_client_of_a_given_session_cannot_be_changed_but_its_attack_can(panel):
    assert panel.controls.fields["epochs"].disabled
    assert "given an update" in panel.controls.fields["epochs"].tooltip
    assert panel.controls["num_images"] == 5
    assert panel.controls["label_source"] == "known"
    assert {name: panel.controls[name] for name in STEERED} == {name: panel.session.steering[name] for name in STEERED}
    panel.controls.fields["method"].value = "ours_no_prior"
    panel.run_button.click()
    assert panel.wait(120)
    assert panel.session.config.method == "ours_no_prior"
    assert panel.session.num_steps == 30


def test_true_counts_need_the_truth(make_panel, make_session):
    panel = make_panel(make_session())
    panel.controls.fields["label_source"].value = "known"
    panel.build_button.click()
    assert "needs the truth" in panel.status_text
