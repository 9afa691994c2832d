"""One table of settings: what it says of a setting stands in the command line, in the panel and in the glossary."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import typer
from glossary import glossary

import workbench as wb
from workbench.attack.methods import METHODS, PAPER_METHODS, Simulated
from workbench.attack.objective import Terms
from workbench.cli.app import app
from workbench.config import label_of
from workbench.errors import ConfigError
from workbench.session.history import STEERABLE, SessionHistory, SteeringEvent
from workbench.settings import settings_of
from workbench.target import Target
from workbench.views.figures import loss_figure
from workbench.views.panel.controls import Controls

ROOT = Path(__file__).parents[1]
KINDS = (Target, wb.ClientConfig, wb.DefenceConfig, wb.AttackConfig)
FIELDS = [(kind, field.name) for kind in KINDS for field in dataclasses.fields(kind)]
RECORDS = [(wb.ClientConfig, "defence"), (Target, "client")]


@pytest.fixture(scope="module")
def options():
    """The options of ``workbench attack`` by name."""
    command = typer.main.get_command(app).commands["attack"]
    return {name: option for option in command.params for name in option.opts}


@pytest.fixture(scope="module")
def controls():
    """All controls, enabled: the tooltip of a disabled one is the reason."""
    made = Controls(lambda name: None, lambda name, value: None)
    made.reasons = dict
    made.update_abilities()
    return made


@pytest.mark.parametrize(("kind", "name"), FIELDS, ids=lambda part: getattr(part, "__name__", part))
def test_every_field_stands_everywhere_with_one_label_and_one_help(kind, name, options, controls):
    if (kind, name) in RECORDS:
        return  # a record with settings of its own
    known = settings_of(kind)[name]
    assert known.label, f"{name} has no label"
    assert known.help[0].isupper(), f"the help of {name} is no sentence: {known.help}"
    assert known.help.endswith("."), f"the help of {name} is no sentence: {known.help}"
    option = options[known.flag]
    assert option.help.startswith(f"{known.label}: {known.help}"), f"{known.flag} has another label or help"
    control = controls.fields[known.key]
    assert control.description == known.label
    assert control.tooltip == known.help
    assert f"| {known.label}" in glossary()
    assert known.help in glossary()


def test_the_glossary_is_the_one_that_is_committed():
    committed = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    assert committed == glossary(), "the table of settings has changed: run python tools/glossary.py"


def test_what_can_be_steered_is_what_has_a_slider():
    sliders = {name for name, known in settings_of(wb.AttackConfig).items() if known.slider}
    assert set(STEERABLE) == {*sliders, "custom_weight"}


def test_the_loss_plot_uses_the_labels_of_the_sliders():
    values = np.ones(12, np.float32)
    terms = dict.fromkeys(Terms._fields, values)
    history = SessionHistory(values, terms, values, values, (SteeringEvent(3, "tv_weight", 0.5),), (0,))
    figure = loss_figure(history)
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["Loss", *(label_of(f"{term}_weight") for term in Terms._fields)]
    assert "Smoothness (tv) = 0.5" in [text.get_text() for text in figure.axes[0].texts]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_names_of_options_and_controls_are_unique(kind):
    every = [known for other in KINDS for known in settings_of(other).values()]
    for attribute in ("key", "flag", "label"):
        names = [getattr(known, attribute) for known in every]
        repeated = {name for name in names if names.count(name) > 1}
        assert not repeated, f"two settings have the same {attribute}: {repeated}"


def test_a_choice_that_is_not_in_the_table_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="match = 'label' is unknown; did you mean 'labels'"):
        wb.AttackConfig(match="label")


def test_every_method_of_the_paper_has_its_name_there():
    assert PAPER_METHODS == ("ours_prior", "ours_no_prior", "shared", "fedsgd_epoch", "fedsgd")
    assert [METHODS[name].paper_name for name in PAPER_METHODS][-1] == "FedSGD"
    for method in METHODS.values():
        assert not (method.is_separate and method.simulated is not Simulated.BATCHES), f"{method.name} has no batches"
        assert not (method.has_prior and not method.is_separate), f"{method.name} has one set of images and a prior"
