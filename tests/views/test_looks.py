"""Colours by name: a method or a label estimator looks the same in every figure."""

import pytest

from workbench.attack.methods import METHODS
from workbench.config import LABEL_METHODS
from workbench.views.figures import THEMES, bars_figure, label_figure, lines_figure
from workbench.views.looks import looks_of

COLOURS = THEMES["light"].lines


@pytest.mark.parametrize("names", [[*METHODS, "best", "warm"], [*LABEL_METHODS, "used by the attack"]])
def test_each_has_its_look_whatever_else_is_shown(names):
    together = looks_of(names, COLOURS)
    assert len(set(together.values())) == len(names)
    for name in names:
        assert looks_of([name], COLOURS)[name] == looks_of(["other", name], COLOURS)[name] == together[name]


def test_other_names_take_what_is_left():
    looks = looks_of(["mine", "ours_prior", "yours"], COLOURS)
    assert len({look.colour for look in looks.values()}) == 3


def colour_of(axes, name):
    [handle] = [handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True) if label == name]
    return (handle[0].get_facecolor() if hasattr(handle, "patches") else handle.get_color(), name)


def test_lines_and_bars_use_them():
    text = {"title": "t", "x": "x", "y": "y"}
    for names in (["fedsgd"], ["ours_prior", "fedsgd"]):
        lines = lines_figure({name: [1.0, 2.0] for name in names}, **text).axes[0]
        assert colour_of(lines, "fedsgd")[0] == looks_of(["fedsgd"], COLOURS)["fedsgd"].colour
    few, many = (
        bars_figure({name: [1.0] for name in names}, ["a"], **text).axes[0] for names in (["bias"], LABEL_METHODS)
    )
    assert colour_of(few, "bias") == colour_of(many, "bias")
    [axes] = label_figure({"bias": [1, 2]}).axes
    assert axes.patches[0].get_facecolor() == few.patches[0].get_facecolor()
