"""Pictures for notebooks: PNG with the right size, and refusals that say what is wrong."""

import io

import numpy as np
import pytest
from PIL import Image

import workbench as wb
from workbench.errors import ConfigError, DataError
from workbench.views import charts
from workbench.views.figures import lines_figure


def pixels(picture):
    return np.asarray(Image.open(io.BytesIO(picture.data)).convert("RGB"))


WORDS = {"title": "a title", "x": "step", "y": "PSNR (dB)"}


def test_a_chart_is_shown_in_fine_pixels():
    picture = charts.lines({"one": [1, 2, 3]}, **WORDS)
    assert abs(pixels(picture).shape[1] - 1.5 * picture.width) <= 1
    assert picture.alt == "a title"


def test_every_curve_and_bar_leaves_ink():
    one, two = ({name: [1.0, 2.0, 1.5] for name in names} for names in ("a", "ab"))
    two["b"] = [2.0, 1.0, 0.5]
    assert (pixels(charts.lines(two, **WORDS)) != pixels(charts.lines({**one, "b": [2.0, 1.0, 0.6]}, **WORDS))).any()
    other, groups = {**two, "b": [2, 1, 0]}, ["x", "y", "z"]
    assert (pixels(charts.bars(two, groups, **WORDS)) != pixels(charts.bars(other, groups, **WORDS))).any()


def test_positions_scales_and_levels_change_the_picture():
    curves = {"a": [1.0, 10.0, 100.0]}
    plain = pixels(charts.lines(curves, **WORDS))
    placed = {"a": ([0.5, 2.0, 7.0], [1.0, 10.0, 100.0])}
    for other in (
        charts.lines(curves, is_log=True, **WORDS),
        charts.lines(curves, level=("limit", 50.0), **WORDS),
        charts.lines(placed, **WORDS),
        charts.lines(curves, is_map=True, **WORDS),
        charts.lines(curves, is_scatter=True, **WORDS),
    ):
        drawn = pixels(other)
        assert drawn.shape != plain.shape or (drawn != plain).any()


def test_a_scatter_has_only_markers_however_many_points():
    (drawn,) = lines_figure({"a": np.arange(50)}, is_scatter=True, **WORDS).axes[0].lines
    assert (drawn.get_linestyle(), drawn.get_marker(), drawn.get_markersize() > 0) == ("None", "o", True)


@pytest.mark.parametrize(
    ("draw", "error", "words"),
    [
        (lambda: charts.lines({}, **WORDS), ConfigError, "curves is empty"),
        (lambda: charts.bars({}, ["a"], **WORDS), ConfigError, "series is empty"),
        (lambda: charts.lines({"a": ([1], [1, 2])}, **WORDS), DataError, r"curve 'a' has the shapes \(1,\) and \(2,\)"),
        (
            lambda: charts.bars({"a": [1]}, ["x", "y"], **WORDS),
            DataError,
            r"has shape \(1,\); expected \(2,\)",
        ),
    ],
    ids=["no curves", "no series", "other lengths", "other groups"],
)
def test_what_does_not_fit_is_refused(draw, error, words):
    with pytest.raises(error, match=words):
        draw()


def test_images_stand_under_the_truth_that_they_show():
    client = wb.load_dataset("glyphs").client(0, num_images=3)
    straight, turned = charts.compare(client.images, client), charts.compare(client.images[::-1], client)
    assert (pixels(straight) == pixels(turned)).all()
    assert "100.0 % recovered" in straight.alt
    assert pixels(charts.sheet(client.images)).shape[0] < pixels(straight).shape[0]
