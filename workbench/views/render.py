"""All images and figures in one place: pure functions from arrays to PNG bytes (here) or figures (`figures`).

Images are enlarged by an integer factor and pasted: nothing is smoothed, and dozens of sheets can be made in a second.
"""

import io
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageDraw, ImageFont

from workbench.data.dataset import eight_bits
from workbench.errors import ConfigError, DataError, check_count
from workbench.views.figures import (
    THEMES,
    Theme,
    averaging_figure,
    figure_png,
    label_figure,
    loss_figure,
    matching_figure,
    span_figure,
    theme_named,
)

__all__ = [
    "THEMES",
    "Theme",
    "animation",
    "averaging_figure",
    "comparison_sheet",
    "contact_sheet",
    "epochs_sheet",
    "figure_png",
    "label_figure",
    "loss_figure",
    "matching_figure",
    "picture",
    "span_figure",
]

_MILLISECONDS = 120  # for which each frame of an animation is shown
_HOLD = 12  # how many times longer the last frame is shown than the others


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
        images: [n, H, W, C] pixels, or [R, n, H, W, C] for R images in every column. Values are clipped to [0, 1].
        captions: n texts, one below each column.
        names: R texts, one before each row.
        framed: [n] which images of the last row get a frame.
        scale: the integer factor by which images are enlarged; None makes them about 60 pixels high.
        columns: how many images are side by side; None chooses so that the sheet is at most about 900 pixels wide.
        density: pixels of the sheet for each CSS pixel, 2 for high-resolution screens.
        theme: ``light`` or ``dark``.

    >>> contact_sheet(np.zeros((3, 8, 8, 1)), ["a", "b", "c"])[1:4]
    b'PNG'
    """
    pixels = _check_images(images)
    rows, count, height, width, _ = pixels.shape
    density = check_count("density", density)
    factor = density * (max(1, round(60 / max(height, width))) if scale is None else check_count("scale", scale))
    for field, texts, expected in (("captions", captions, count), ("names", names, rows)):
        if len(texts) not in (0, expected):
            raise ConfigError(f"{field} has {len(texts)} texts; expected one for each of {expected}.")
    marked = np.zeros(count, bool) if framed is None else np.asarray(framed, bool)
    if marked.shape != (count,):
        raise DataError(f"framed has shape {marked.shape}; expected ({count},), one for each image.")
    colours, font, gap = theme_named(theme), _font(12 * density), 4 * density
    line = 16 * density

    margin = gap + max((int(font.getlength(name)) + 2 * gap for name in names), default=0)
    cell = max([width * factor, *(int(font.getlength(caption)) + 1 for caption in captions)]) + 2 * gap
    if columns is None:
        columns = _balanced(count, max(1, (900 * density - margin) // cell))
    columns = min(check_count("columns", columns), count)
    step = height * factor + gap
    group = rows * step + (line if captions else 0) + gap
    groups = -(-count // columns)

    corners = [
        (2 * gap + index // columns * group, margin + index % columns * cell + (cell - width * factor) // 2)
        for index in range(count)
    ]
    enlarged = _coloured(pixels).repeat(factor, 2).repeat(factor, 3)
    sheet = Image.new("RGB", (margin + columns * cell, 2 * gap + groups * group), colours.paper)
    draw = ImageDraw.Draw(sheet)
    for index, (top, left) in enumerate(corners):
        for row in range(rows):
            sheet.paste(Image.fromarray(enlarged[row, index]), (left, top + row * step))
        if captions:
            middle = (left + width * factor // 2, top + rows * step)
            draw.text(middle, captions[index], fill=colours.ink, font=font, anchor="ma")
        if marked[index]:
            last = top + (rows - 1) * step - gap // 2
            box = (left - gap // 2, last, left + width * factor + gap // 2 - 1, last + step - 1)
            draw.rectangle(box, outline=colours.accent, width=2 * density)
    for start in range(0, count, columns):
        for row, name in enumerate(names):
            middle = (2 * gap, corners[start][0] + row * step + height * factor // 2)
            draw.text(middle, name, fill=colours.ink, font=font, anchor="lm")
    return _encode(sheet)


def comparison_sheet(
    truth: ArrayLike, reconstruction: ArrayLike, psnr: ArrayLike | None = None, threshold: float = np.inf, **look: Any
) -> bytes:
    """A PNG with every true image above its reconstruction.

    Args:
        truth: [n, H, W, C] pixels.
        reconstruction: [n, H, W, C], in the order of ``truth``.
        psnr: [n] in dB, written below each.
        threshold: reconstructions above it are framed.
        look: options of `contact_sheet`.
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
    """A PNG with one row for each epoch's reconstructions and one for the combined images.

    Args:
        epochs: [V, N, H, W, C] as optimised.
        images: [N, H, W, C] combined.
        permutations: [V, N] as in `Reconstruction`, which aligns the columns; None leaves the epochs unaligned.
        order: [n] which columns to show, in this order; None shows all.
        truth: [N, H, W, C] in the order of ``images``, shown as the last row.
        captions: n texts below the columns.
        look: options of `contact_sheet`.
    """
    aligned = list(_check_images(epochs))
    if permutations is not None:
        aligned = [row[of_epoch] for row, of_epoch in zip(aligned, np.asarray(permutations), strict=True)]
    rows = {f"epoch {number}": row for number, row in enumerate(aligned, 1)}
    others = {"combined": images, "truth": truth}
    rows |= {name: _check_images(row)[0] for name, row in others.items() if row is not None}
    try:
        stacked = np.stack(list(rows.values()))
    except ValueError:
        shapes = [row.shape for row in rows.values()]
        raise DataError(f"epochs, images and truth have the shapes {shapes}.") from None
    chosen = np.arange(stacked.shape[1]) if order is None else np.asarray(order)
    return contact_sheet(stacked[:, chosen], captions, names=list(rows), **look)


def picture(image: ArrayLike, scale: int = 1) -> bytes:
    """A PNG of one image [H, W, C], enlarged by an integer factor, without margins."""
    pixels = _coloured(_check_images(np.asarray(image)[None]))[0, 0]
    scale = check_count("scale", scale)
    return _encode(Image.fromarray(pixels.repeat(scale, 0).repeat(scale, 1)))


def animation(sheets: Sequence[bytes]) -> bytes:
    """An animated GIF of sheets that are PNG bytes."""
    frames = _in_one_palette([Image.open(io.BytesIO(png)) for png in sheets])
    times = [_MILLISECONDS] * (len(frames) - 1) + [_MILLISECONDS * _HOLD]
    return _encode(
        frames[0], "GIF", save_all=True, append_images=frames[1:], duration=times, loop=0, optimize=True, disposal=1
    )


def _in_one_palette(sheets: Sequence[Image.Image]) -> list[Image.Image]:
    """The sheets in one width and in the colours of the last one, because a palette for each would flicker."""
    widest = max(sheet.width for sheet in sheets)
    full = [sheet if sheet.width == widest else sheet.resize((widest, sheet.height)) for sheet in sheets]
    palette = full[-1].quantize(128, method=Image.Quantize.MEDIANCUT)
    return [sheet.quantize(palette=palette, dither=Image.Dither.NONE) for sheet in full]


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


def _balanced(count: int, most: int) -> int:
    """The number of columns that gives the fewest rows, filled as evenly as possible.

    >>> _balanced(16, 14), _balanced(50, 14), _balanced(3, 14)
    (8, 13, 3)
    """
    rows = -(-count // most)
    return -(-count // rows)


def _coloured(pixels: NDArray[np.float32]) -> NDArray[np.uint8]:
    """[..., C] pixels to [..., 3] bytes."""
    shown = eight_bits(pixels)
    return np.broadcast_to(shown, (*shown.shape[:-1], 3))


@lru_cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(Path(mpl.get_data_path()) / "fonts/ttf/DejaVuSans.ttf", size)


def _encode(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """An image as the bytes of a file; the options are those of Pillow."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()
