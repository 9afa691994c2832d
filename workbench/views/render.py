"""Arrays to PNG bytes and figures: pure functions, shared by the report and by panels.

Sheets of images are put together pixel by pixel, whole factors larger, so that nothing is smoothed and dozens can be
made in a second. Curves and bars are drawn on matplotlib's `Figure`, never through `pyplot`, whose global state does
not survive a second thread.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageDraw, ImageFont

from workbench.data.dataset import eight_bits
from workbench.errors import ConfigError, DataError, check_choice, check_count
from workbench.metrics import label_errors
from workbench.session.history import SessionHistory

__all__ = [
    "THEMES",
    "Theme",
    "averaging_figure",
    "comparison_sheet",
    "contact_sheet",
    "epochs_sheet",
    "figure_png",
    "label_figure",
    "loss_figure",
    "matching_figure",
    "picture",
]


@dataclass(frozen=True)
class Theme:
    """Colours that can be told apart with any colour vision, on one background.

    Attributes:
        paper: the background.
        ink: text and axes.
        faint: what should stay behind.
        accent: what should stand out.
        lines: one for each term of the loss and each label method; line styles differ too.
    """

    paper: str
    ink: str
    faint: str
    accent: str
    lines: tuple[str, ...]


THEMES = {
    "light": Theme(
        paper="#ffffff",
        ink="#1f2328",
        faint="#b6bcc4",
        accent="#0072b2",
        lines=("#1f2328", "#0072b2", "#d55e00", "#009e73", "#b0568a", "#b07a00", "#3a8fc4"),
    ),
    "dark": Theme(
        paper="#15181c",
        ink="#e6e8eb",
        faint="#555c66",
        accent="#56b4e9",
        lines=("#e6e8eb", "#56b4e9", "#f08a3c", "#2fc79a", "#e29bc4", "#e6b43c", "#9ad4f5"),
    ),
}
_STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))


def _theme(name: str) -> Theme:
    return THEMES[check_choice("theme", name, THEMES)]


# Sheets of images


def contact_sheet(
    images: ArrayLike,
    captions: Sequence[str] = (),
    *,
    names: Sequence[str] = (),
    framed: ArrayLike | None = None,
    scale: int | None = None,
    columns: int | None = None,
    density: int = 1,
    theme: str = "light",
) -> bytes:
    """A PNG of many images.

    Args:
        images: [n, H, W, C] pixels, or [R, n, H, W, C] for R images under each other in every column. Values outside
            [0, 1] are shown as 0 or 1.
        captions: n texts, one under each column.
        names: R texts, one before each row.
        framed: [n] which images of the last row get a frame.
        scale: the whole factor by which images are enlarged; None makes them about 60 pixels high.
        columns: how many stand side by side; None chooses, so that the sheet is about 900 pixels wide at most.
        density: pixels of the sheet for each pixel of the screen, 2 for screens with fine pixels.
        theme: ``light`` or ``dark``.

    >>> contact_sheet(np.zeros((3, 8, 8, 1)), ["a", "b", "c"])[1:4]
    b'PNG'
    """
    pixels = _check_images(images)
    rows, count, height, width, _ = pixels.shape
    density = check_count("density", density)
    factor = density * (max(1, round(60 / max(height, width))) if scale is None else check_count("scale", scale))
    _check_texts("captions", captions, count)
    _check_texts("names", names, rows)
    colours, font, gap = _theme(theme), _font(12 * density), 4 * density
    line = 16 * density

    margin = gap + max((int(font.getlength(name)) + 2 * gap for name in names), default=0)
    cell = max([width * factor, *(int(font.getlength(caption)) + 1 for caption in captions)]) + 2 * gap
    if columns is None:
        columns = _balanced(count, max(1, (900 * density - margin) // cell))
    columns = min(check_count("columns", columns), count)
    step = height * factor + gap
    group = rows * step + (line if captions else 0) + gap
    groups = -(-count // columns)

    canvas = np.empty((2 * gap + groups * group, margin + columns * cell, 3), np.uint8)
    canvas[:] = _rgb(colours.paper)
    corners = [
        (2 * gap + index // columns * group, margin + index % columns * cell + (cell - width * factor) // 2)
        for index in range(count)
    ]
    enlarged = _coloured(pixels).repeat(factor, 2).repeat(factor, 3)
    for row, (index, (top, left)) in itertools.product(range(rows), enumerate(corners)):
        canvas[top + row * step :, left:][: height * factor, : width * factor] = enlarged[row, index]

    sheet = Image.fromarray(canvas)
    draw = ImageDraw.Draw(sheet)
    for caption, (top, left) in zip(captions, corners, strict=False):
        middle = (left + width * factor // 2, top + rows * step)
        draw.text(middle, caption, fill=colours.ink, font=font, anchor="ma")
    for start in range(0, count, columns):
        for row, name in enumerate(names):
            middle = (2 * gap, corners[start][0] + row * step + height * factor // 2)
            draw.text(middle, name, fill=colours.ink, font=font, anchor="lm")
    for index in np.flatnonzero(np.zeros(count) if framed is None else _check_flags(framed, count)):
        top, left = corners[index]
        top += (rows - 1) * step
        box = (left - gap // 2, top - gap // 2, left + width * factor + gap // 2 - 1, top + step - gap // 2 - 1)
        draw.rectangle(box, outline=colours.accent, width=2 * density)
    return _encode(sheet)


def comparison_sheet(
    truth: ArrayLike, reconstruction: ArrayLike, psnr: ArrayLike | None = None, threshold: float = np.inf, **look: Any
) -> bytes:
    """A PNG with every true image above its reconstruction.

    Args:
        truth: [n, H, W, C] pixels.
        reconstruction: [n, H, W, C], in the order of ``truth``.
        psnr: [n] in dB, written under each.
        threshold: reconstructions above it are framed.
        look: as in `contact_sheet`.
    """
    above, below = _check_images(truth), _check_images(reconstruction)
    if above.shape != below.shape:
        raise DataError(f"truth has shape {above.shape[1:]} but the reconstruction {below.shape[1:]}.")
    values = None if psnr is None else np.asarray(psnr)
    return contact_sheet(
        np.concatenate([above, below]),
        () if values is None else [f"{value:.1f} dB" for value in values],
        names=("truth", "attack"),
        framed=None if values is None else values > threshold,
        **look,
    )


def epochs_sheet(
    epochs: ArrayLike,
    images: ArrayLike,
    permutations: ArrayLike | None = None,
    *,
    order: ArrayLike | None = None,
    truth: ArrayLike | None = None,
    captions: Sequence[str] = (),
    **look: Any,
) -> bytes:
    """A PNG with one row for each epoch's reconstructions and the combined ones below.

    Args:
        epochs: [V, N, H, W, C] as optimised.
        images: [N, H, W, C] combined.
        permutations: [V, N] as in `Reconstruction`, so that a column shows one image; None shows every epoch in its
            own order.
        order: [n] which columns to show, in which order; None shows all.
        truth: [N, H, W, C] in the order of ``images``, as a last row.
        captions: n texts under the columns.
        look: as in `contact_sheet`.
    """
    rows = list(_check_images(epochs))
    if permutations is not None:
        rows = [row[of_epoch] for row, of_epoch in zip(rows, np.asarray(permutations), strict=True)]
    names = [f"epoch {number}" for number in range(1, len(rows) + 1)]
    for name, row in (("combined", images), ("truth", truth)):
        if row is not None:
            rows.append(_check_images(row)[0])
            names.append(name)
    try:
        stacked = np.stack(rows)
    except ValueError:
        raise DataError(f"epochs, images and truth have the shapes {[row.shape for row in rows]}.") from None
    chosen = np.arange(stacked.shape[1]) if order is None else np.asarray(order)
    return contact_sheet(stacked[:, chosen], captions, names=names, **look)


def picture(image: ArrayLike, scale: int = 1) -> bytes:
    """A PNG of one image [H, W, C], enlarged by a whole factor, with nothing around it."""
    pixels = _coloured(_check_images(np.asarray(image)[None]))[0, 0]
    scale = check_count("scale", scale)
    return _encode(Image.fromarray(pixels.repeat(scale, 0).repeat(scale, 1)))


def _check_images(images: ArrayLike) -> NDArray[np.float32]:
    """[n, H, W, C] or [R, n, H, W, C] to [R, n, H, W, C]."""
    try:
        pixels = np.asarray(images, np.float32)
    except (TypeError, ValueError):
        raise DataError("images must be an array of numbers [n, H, W, C].") from None
    if pixels.ndim == 4:
        pixels = pixels[None]
    if pixels.ndim != 5 or 0 in pixels.shape or pixels.shape[-1] not in (1, 3):
        raise DataError(f"images have shape {np.shape(images)}; expected [n, H, W, C] with 1 or 3 channels.")
    if not np.isfinite(pixels).all():
        raise DataError("images contain NaN or infinite pixels, which cannot be shown.")
    return pixels


def _check_texts(field: str, texts: Sequence[str], count: int) -> None:
    if texts and len(texts) != count:
        raise ConfigError(f"{field} has {len(texts)} texts; expected one for each of {count}.")


def _check_flags(flags: ArrayLike, count: int) -> NDArray[np.bool_]:
    marked = np.asarray(flags, bool)
    if marked.shape != (count,):
        raise DataError(f"framed has shape {marked.shape}; expected ({count},), one for each image.")
    return marked


def _balanced(count: int, most: int) -> int:
    """Columns for the fewest rows, and then as equal as possible.

    >>> _balanced(16, 14), _balanced(50, 14), _balanced(3, 14)
    (8, 13, 3)
    """
    rows = -(-count // most)
    return -(-count // rows)


def _coloured(pixels: NDArray[np.float32]) -> NDArray[np.uint8]:
    """[..., C] pixels to [..., 3] bytes."""
    shown = eight_bits(pixels)
    return np.broadcast_to(shown, (*shown.shape[:-1], 3))


def _rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour.removeprefix("#")))


@lru_cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(Path(mpl.get_data_path()) / "fonts/ttf/DejaVuSans.ttf", size)


def _encode(sheet: Image.Image) -> bytes:
    buffer = io.BytesIO()
    sheet.save(buffer, "PNG")
    return buffer.getvalue()


# Figures


def figure_png(figure: Figure, dpi: float = 144) -> bytes:
    """A figure as PNG bytes."""
    buffer = io.BytesIO()
    figure.set_dpi(dpi)
    # Unlike `savefig`, which draws everything twice.
    FigureCanvasAgg(figure).print_png(buffer)  # type: ignore[no-untyped-call]
    return buffer.getvalue()


def loss_figure(history: SessionHistory, *, warm_start_steps: int = 0, theme: str = "light") -> Figure:
    """The loss and its terms over the steps, with what was steered.

    Args:
        history: of a session.
        warm_start_steps: how many steps belong to the warm start, which is marked.
        theme: ``light`` or ``dark``.
    """
    colours = _theme(theme)
    figure, axes = _axes(colours, (7.5, 3.6))
    _titles(axes, colours, "Loss before every step", "step", "loss (logarithmic)")
    if not len(history.loss):
        axes.text(0.5, 0.5, "no step made yet", ha="center", va="center", transform=axes.transAxes, color=colours.ink)
        axes.set(xticks=[], yticks=[])
        return figure
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    few = len(history.loss) < 10
    curves = {"loss": history.loss, **history.terms}
    # Before those that are not there are left out, so that a term has one colour in every figure.
    looks = zip(curves.items(), itertools.cycle(colours.lines), itertools.cycle(_STYLES), strict=False)
    for (name, values), colour, style in looks:
        if not (values > 0).any():
            continue
        # A term that is switched off is 0, which a logarithm does not show.
        shown = np.where(values > 0, values, np.nan)
        width = 2.2 if name == "loss" else 1.4
        axes.plot(shown, label=name, color=colour, linestyle=style, linewidth=width, marker="o" if few else None)
    axes.set_xlim(0, max(1, len(history.loss) - 1))
    if warm_start_steps > 0:
        axes.axvspan(0, warm_start_steps, color=colours.faint, alpha=0.25, linewidth=0)
        corner = {"xy": (0, 1), "xycoords": "axes fraction", "xytext": (4, -4), "textcoords": "offset points"}
        axes.annotate("warm start", **corner, va="top", color=colours.ink, fontsize=8)
    _mark_steering(axes, history, colours)
    figure.legend(loc="outside right upper", frameon=False, labelcolor=colours.ink)
    return figure


def _mark_steering(axes: Axes, history: SessionHistory, colours: Theme) -> None:
    changes: dict[int, list[str]] = {}
    for event in history.steering:
        changes.setdefault(event.step, []).append(f"{event.name} = {event.value:g}")
    for step, texts in changes.items():
        axes.axvline(step, color=colours.accent, linewidth=1)
        # A slider makes many changes; their texts would only cover each other.
        if len(changes) <= 8:
            axes.annotate(
                ", ".join(texts),
                (step, 0.02),
                xycoords=("data", "axes fraction"),
                xytext=(3, 0),
                textcoords="offset points",
                rotation=90,
                fontsize=8,
                color=colours.ink,
            )


def label_figure(
    estimates: Mapping[str, ArrayLike],
    true_counts: ArrayLike | None = None,
    class_names: Sequence[str] | None = None,
    *,
    theme: str = "light",
) -> Figure:
    """Label counts as bars, one plot for each estimate, of the classes that are there or were believed to be.

    Args:
        estimates: method to [K] counts.
        true_counts: [K], as wider bars behind; None where they are not known.
        class_names: K names; None numbers the classes.
        theme: ``light`` or ``dark``.
    """
    if not estimates:
        raise ConfigError("estimates is empty; give at least one method's counts.")
    colours = _theme(theme)
    counts = {name: np.asarray(values) for name, values in estimates.items()}
    true = None if true_counts is None else np.asarray(true_counts)
    everything = np.stack([*counts.values(), *([] if true is None else [true])])
    present: list[int] = np.flatnonzero((everything > 0).any(0)).tolist()
    texts = [str(index) if class_names is None else _short(class_names[index]) for index in present]
    # As wide as a page at most; names then get smaller.
    size = (min(9.5, max(6.0, 1.2 + 0.24 * len(present))), 0.9 + 1.25 * len(counts))
    figure, *plots = _axes(colours, size, len(counts))
    x = np.arange(len(present))
    for axes, (name, values), colour in zip(plots, counts.items(), itertools.cycle(colours.lines[1:]), strict=False):
        if true is not None:
            axes.bar(x, true[present], width=0.8, color=colours.faint, label="true")
            wrong = label_errors(true, values)
            axes.set_title(f"{name}: {wrong:g} of {true.sum()} labels wrong", fontsize=9, loc="left", color=colours.ink)
        else:
            axes.set_title(name, fontsize=9, loc="left", color=colours.ink)
        axes.bar(x, values[present], width=0.35, color=colour, label="estimated")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
        axes.set_ylabel("images", color=colours.ink)
        axes.set_xlim(-0.7, len(present) - 0.3)
    is_long = max(map(len, texts), default=1) > 2
    size_of_text = min(10, 450 / max(1, len(texts)))
    plots[-1].set_xticks(x, texts, rotation=90 if is_long else 0, fontsize=size_of_text, parse_math=False)
    plots[-1].set_xlabel("class", color=colours.ink)
    if true is not None:
        handles, names = plots[0].get_legend_handles_labels()
        figure.legend(
            handles, names, loc="outside upper left", fontsize=8, ncols=2, frameon=False, labelcolor=colours.ink
        )
    return figure


def _short(name: str) -> str:
    return name if len(name) <= 20 else f"{name[:19]}…"


def matching_figure(similarity: ArrayLike, assignment: ArrayLike, *, epoch: int = 2, theme: str = "light") -> Figure:
    """How similar two epochs' reconstructions are, with the assignment drawn in.

    Args:
        similarity: [N, N] PSNR in dB, rows of epoch 1.
        assignment: [N] the column for every row.
        epoch: the number of the epoch in the columns.
        theme: ``light`` or ``dark``.
    """
    colours = _theme(theme)
    matrix, chosen = np.asarray(similarity), np.asarray(assignment)
    if matrix.ndim != 2 or chosen.shape != matrix.shape[:1]:
        raise DataError(f"similarity has shape {matrix.shape} and assignment {chosen.shape}; expected [N, N] and [N].")
    figure, axes = _axes(colours, (5.2, 4.4))
    _titles(
        axes,
        colours,
        f"Which image of epoch {epoch} is which of epoch 1",
        f"image of epoch {epoch}",
        "image of epoch 1",
    )
    shown = axes.imshow(matrix, cmap="cividis")
    size = max(2.0, 120 / len(matrix))
    axes.plot(chosen, np.arange(len(chosen)), "o", fillstyle="none", markersize=size, color="#ffffff", linestyle="none")
    axes.grid(visible=False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    bar = figure.colorbar(shown, ax=axes, label="PSNR (dB)")
    bar.ax.yaxis.label.set_color(colours.ink)
    bar.ax.tick_params(colors=colours.ink)
    return figure


def averaging_figure(curves: Mapping[str, ArrayLike], *, theme: str = "light") -> Figure:
    """Quality against the number of epochs combined.

    Args:
        curves: how they were combined (``mean``, ``median``) to [E] mean PSNR in dB, for 1 to E epochs.
        theme: ``light`` or ``dark``.
    """
    colours = _theme(theme)
    figure, axes = _axes(colours, (6.0, 3.4))
    _titles(axes, colours, "Quality by the number of epochs combined", "epochs combined", "mean PSNR (dB)")
    for (name, values), colour, style in zip(curves.items(), colours.lines[1:], _STYLES, strict=False):
        quality = np.asarray(values)
        axes.plot(np.arange(1, len(quality) + 1), quality, label=name, color=colour, linestyle=style, marker="o")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, labelcolor=colours.ink)
    return figure


def _axes(colours: Theme, size: tuple[float, float], rows: int = 1) -> tuple[Any, ...]:
    """A figure, and its plots under each other with the same axes, in the theme's colours."""
    figure = Figure(figsize=size, layout="constrained", facecolor=colours.paper)
    plots = figure.subplots(rows, 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axes in plots:
        axes.set_facecolor(colours.paper)
        axes.grid(visible=True, axis="y", color=colours.faint, linewidth=0.5, alpha=0.5)
        axes.set_axisbelow(True)
        axes.tick_params(which="both", colors=colours.ink)
        for name, spine in axes.spines.items():
            spine.set_visible(name in ("left", "bottom"))
            spine.set_color(colours.faint)
    return figure, *plots


def _titles(axes: Axes, colours: Theme, title: str, x: str, y: str) -> None:
    axes.set_title(title, color=colours.ink, loc="left", fontsize=11)
    axes.set_xlabel(x, color=colours.ink)
    axes.set_ylabel(y, color=colours.ink)
