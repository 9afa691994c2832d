"""Pictures must show what is there: every pixel, every caption, at the size that was asked for."""

import io
import time

import numpy as np
import pytest
from PIL import Image

from workbench.attack.spectrum import Spectrum
from workbench.errors import ConfigError, DataError
from workbench.session.history import SessionHistory, SteeringEvent
from workbench.views import render

RNG = np.random.default_rng(0)


def decoded(png: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(png)) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB"))


def images(count: int, channels: int = 1, size: tuple[int, int] = (28, 28)) -> np.ndarray:
    return RNG.uniform(size=(count, *size, channels)).astype(np.float32)


def contains(sheet: np.ndarray, patch: np.ndarray) -> bool:
    windows = np.lib.stride_tricks.sliding_window_view(sheet, patch.shape)
    return bool((windows == patch).all(axis=(-3, -2, -1)).any())


def history(steps: int, events: tuple[SteeringEvent, ...] = ()) -> SessionHistory:
    loss = np.geomspace(100, 1, steps).astype(np.float32) if steps else np.zeros(0, np.float32)
    terms = {"update": loss * 0.5, "prior": loss * 0.5, "consensus": np.zeros_like(loss)}
    return SessionHistory(loss, terms, loss, loss, events, (0,))


# Sheets


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("scale", [1, 3])
def test_every_image_is_on_the_sheet_enlarged_by_repetition(channels, scale):
    shown = images(5, channels, (6, 4))
    sheet = decoded(render.contact_sheet(shown, scale=scale))
    for image in shown:
        pixels = np.round(np.broadcast_to(image, (6, 4, 3)) * 255).astype(np.uint8)
        assert contains(sheet, pixels.repeat(scale, 0).repeat(scale, 1))


def test_only_what_is_shown_is_clipped():
    outside = np.full((1, 4, 4, 1), 7.0, np.float32)
    outside[0, 0] = -3
    sheet = decoded(render.contact_sheet(outside, scale=1, theme="dark"))
    assert contains(sheet, np.array([[[0] * 3] * 4] + [[[255] * 3] * 4] * 3, np.uint8))
    assert outside.max() == 7


@pytest.mark.parametrize(("count", "columns", "rows"), [(1, 1, 1), (3, 3, 1), (16, 8, 2), (50, 13, 4)])
def test_columns_are_chosen_so_that_rows_are_few_and_even(count, columns, rows):
    height, width, _ = decoded(render.contact_sheet(images(count))).shape
    asked = decoded(render.contact_sheet(images(count), columns=columns)).shape
    assert (height, width) == asked[:2]
    assert width <= 900
    one = decoded(render.contact_sheet(images(1))).shape
    two = decoded(render.contact_sheet(images(2), columns=1)).shape
    assert height == one[0] + (rows - 1) * (two[0] - one[0])


@pytest.mark.parametrize("count", [1, 50])
def test_captions_add_a_line_of_text_under_every_row(count):
    blank = np.ones((count, 28, 28, 1))
    plain = decoded(render.contact_sheet(blank, columns=10))
    with_text = decoded(render.contact_sheet(blank, ["20.1 dB"] * count, columns=10))
    assert with_text.shape[0] > plain.shape[0]
    assert (plain == 255).all()
    dark = (with_text < 128).any(-1)
    band = dark.sum(1) > 0
    num_lines = int((np.diff(band.astype(int)) == 1).sum())
    assert num_lines == -(-count // 10)


def test_a_long_caption_is_never_cut():
    blank, text = np.ones((4, 8, 8, 1)), "a caption wider than its image"
    narrow, wide = (decoded(render.contact_sheet(blank, [text] * 4, scale=1, columns=n)) for n in (1, 4))
    assert (wide < 128).any(-1).sum() == (narrow < 128).any(-1).sum() > 0, "the same text, four times in both"
    assert (wide[:, :2] == 255).all()
    assert (wide[:, -2:] == 255).all()


def test_names_stand_before_rows_and_frames_around_the_last():
    rows = np.ones((2, 3, 20, 20, 1))
    plain = decoded(render.contact_sheet(rows, scale=1))
    named = decoded(render.contact_sheet(rows, names=["truth", "attack"], scale=1))
    assert named.shape[1] > plain.shape[1]
    framed = decoded(render.contact_sheet(rows, framed=[True, False, True], scale=1))
    middle = framed.shape[0] // 2
    coloured = (framed != 255).any(-1)
    assert coloured[middle:].any(), "the second row has frames"
    assert not coloured[: middle - 4].any(), "the first has none"


def test_a_comparison_has_truth_above_and_the_value_below():
    truth, found = images(4), images(4)
    bare = decoded(render.comparison_sheet(truth, found, scale=1))
    with_psnr = decoded(render.comparison_sheet(truth, found, [30.0, 20.0, 10.0, 5.0], 15.0, scale=1))
    assert with_psnr.shape[0] > bare.shape[0]
    for image in (truth[0], found[0]):
        assert contains(bare, np.round(image.repeat(3, -1) * 255).astype(np.uint8))


def test_epochs_are_aligned_by_the_matching():
    epoch = images(3)
    order = np.array([2, 0, 1])
    epochs = np.stack([epoch, epoch[np.argsort(order)]])
    matched = render.epochs_sheet(epochs, epoch, np.stack([np.arange(3), order]), scale=1)
    straight = render.epochs_sheet(np.stack([epoch, epoch]), epoch, scale=1)
    assert matched == straight
    assert render.epochs_sheet(epochs, epoch, scale=1) != straight
    best = render.epochs_sheet(epochs[:, :1], epoch[:1], truth=epoch[:1], scale=1)
    assert decoded(best).shape[0] > decoded(straight).shape[0], "the truth is a row more"


@pytest.mark.parametrize("channels", [1, 3])
def test_a_picture_is_the_image_and_nothing_else(channels):
    image = images(1, channels, (5, 7))[0]
    expected = np.round(np.broadcast_to(image, (5, 7, 3)) * 255).astype(np.uint8)
    np.testing.assert_array_equal(decoded(render.picture(image)), expected)
    assert decoded(render.picture(image, scale=4)).shape == (20, 28, 3)


def test_density_makes_everything_finer():
    few = images(6)
    height, width, _ = decoded(render.contact_sheet(few, ["x"] * 6)).shape
    assert decoded(render.contact_sheet(few, ["x"] * 6, density=2)).shape[:2] == (2 * height, 2 * width)


def test_a_whole_batch_is_drawn_in_less_than_a_tenth_of_a_second():
    many, captions = images(50), ["20.0 dB"] * 50
    render.contact_sheet(many, captions)
    started = time.process_time()
    for _ in range(5):
        render.contact_sheet(many, captions)
    assert (time.process_time() - started) / 5 < 0.1


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (np.full((2, 4, 4, 1), np.nan), "NaN"),
        (np.full((2, 4, 4, 1), np.inf), "NaN or infinite"),
        (np.zeros((2, 4, 4, 2)), "1 or 3 channels"),
        (np.zeros((4, 4)), r"\[n, H, W, C\]"),
        (np.zeros((0, 4, 4, 1)), r"\(0, 4, 4, 1\)"),
        ([["a"]], "array of numbers"),
    ],
)
def test_what_is_not_images_is_refused(wrong, says):
    for draw in (render.contact_sheet, lambda x: render.epochs_sheet(x, x), lambda x: render.comparison_sheet(x, x)):
        with pytest.raises(DataError, match=says):
            draw(wrong)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"captions": ["a"]}, "one for each of 3"),
        ({"names": ["a", "b"]}, "one for each of 1"),
        ({"framed": [True]}, "one for each image"),
        ({"scale": 0}, "scale = 0"),
        ({"columns": 1.5}, "columns = 1.5"),
        ({"theme": "drak"}, "did you mean 'dark'"),
    ],
)
def test_a_wrong_option_is_named(options, says):
    with pytest.raises((ConfigError, DataError), match=says):
        render.contact_sheet(images(3), **options)


def test_truth_and_reconstruction_must_have_one_shape():
    with pytest.raises(DataError, match="truth has shape"):
        render.comparison_sheet(images(3), images(4))
    with pytest.raises(DataError, match="shapes"):
        render.epochs_sheet(images(3)[None], images(4))


# Figures


def texts(figure) -> str:
    return " | ".join(text.get_text() for text in figure.findobj(lambda a: hasattr(a, "get_text")) if text.get_text())


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("steps", [0, 1, 200])
def test_loss_curves_have_titles_and_every_term_that_is_there(theme, steps):
    figure = render.loss_figure(history(steps), warm_start_steps=steps // 2, theme=theme)
    said = texts(figure)
    for words in ("Loss before every step", "step", "logarithmic"):
        assert words in said
    assert ("no steps yet" in said) == (steps == 0)
    assert ("prior" in said) == (steps > 0)
    assert "consensus" not in said, "a term that was never there needs no curve"
    assert decoded(render.figure_png(figure, dpi=100)).shape == (360, 750, 3)


def test_steering_is_marked_where_it_happened():
    event = SteeringEvent(30, "prior_weight", 300.0)
    figure = render.loss_figure(history(100, (event,)))
    assert "Epoch prior = 300" in texts(figure)
    marks = [line for line in figure.axes[0].lines if list(line.get_xdata()) == [30, 30]]
    assert len(marks) == 1


def test_label_bars_show_true_and_estimated_counts_of_the_classes_that_matter():
    true, guess = np.array([2, 0, 1, 0]), np.array([2, 0, 0, 1])
    figure = render.label_figure({"bias": guess, "interpolated": true}, true, ["A", "B", "C", "D"])
    said = texts(figure)
    for words in ("bias: 1 of 3 labels wrong", "interpolated: 0 of 3 labels wrong", "true", "estimated", "images", "C"):
        assert words in said
    assert "B" not in [label.get_text() for label in figure.axes[-1].get_xticklabels()], "nobody has a B"
    assert "wrong" not in texts(render.label_figure({"bias": guess})), "without truth nothing is wrong"


def test_long_class_names_leave_room_for_the_bars():
    figure = render.label_figure({"bias": [2, 1]}, class_names=["a rather long name of a class"] * 2)
    render.figure_png(figure)
    assert figure.axes[0].get_window_extent().height > 0.3 * figure.get_window_extent().height


def test_matching_and_averaging_are_drawn():
    similarity = RNG.uniform(5, 30, (16, 16))
    matching = render.matching_figure(similarity, similarity.argmax(1), epoch=3)
    assert "image of epoch 3" in texts(matching)
    assert "PSNR (dB)" in texts(matching)
    averaging = render.averaging_figure({"mean": [18.0, 20.0], "median": [18.0, 21.0]})
    assert {"mean", "median", "epochs combined", "mean PSNR (dB)"} <= set(texts(averaging).split(" | "))
    for figure in (matching, averaging):
        assert decoded(render.figure_png(figure)).std() > 0


def test_pyplot_is_never_imported():
    import subprocess
    import sys

    check = "import sys, workbench.views.report; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("num_plots", [1, 2, 3])
def test_a_span_figure_marks_rank_and_images_and_cuts_nothing_off(theme, num_plots):
    values = np.array([4.0, 2.0, 1.0, 1e-3, 1e-12, 0.0])
    spectrum = Spectrum("a_layer_with_a_long_name", values, rank=4, unexplained=0.0, num_images=3)
    residuals = np.array([0.9, 12345.6, 0.1], np.float32)
    parts = {"residuals": residuals, "recovered": [False, False, True], "history": {0: residuals, 50: residuals / 2}}
    options = dict(list(parts.items())[: (num_plots > 1) * 2 + (num_plots > 2)])
    figure = render.span_figure(spectrum, theme=theme, step=50, **options)
    drawn, renderer = decoded(render.figure_png(figure)), figure.canvas.get_renderer()
    assert tuple(drawn[0, 0]) == tuple(bytes.fromhex(render.THEMES[theme].paper[1:])), f"not on {theme} paper"
    assert len(figure.axes) == num_plots
    first = figure.axes[0]
    assert first.get_yscale() == "log"
    assert first.lines[0].get_ydata().tolist() == [4.0, 2.0, 1.0, 1e-3], "zeros after rounding squeeze the values"
    marks = {line.get_label(): line.get_xdata()[0] for line in first.lines[1:]}
    assert marks == {"3 images": 3, "rank 4": 4}
    for axes in figure.axes:
        box, page = axes.get_tightbbox(renderer), figure.bbox
        inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= page.x1 + 1 and box.y1 <= page.y1 + 1
        assert inside, f"{axes.get_title(loc='left')!r} is cut off: {box} in {page}"
