"""Small charts for notebooks: lines, bars and sheets of images, as PNG so that no running kernel is needed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from IPython.display import Image
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from workbench.data.dataset import ClientData, Truth
from workbench.errors import ConfigError, DataError
from workbench.metrics import score
from workbench.views import render
from workbench.views.figures import themed_axes

__all__ = ["bars", "compare", "lines", "sheet", "shown"]

_DPI = 144


def shown(picture: bytes | Figure, alt: str | None = None) -> Image:
    """A PNG, or a figure as a high-resolution PNG of the figure's size in inches, as the output of a cell."""
    if isinstance(picture, Figure):
        width = round(96 * picture.get_size_inches()[0])
        return Image(render.figure_png(picture, _DPI), width=width, alt=alt)  # type: ignore[no-untyped-call]
    return Image(picture, alt=alt)  # type: ignore[no-untyped-call]


def sheet(images: ArrayLike, captions: Sequence[str] = (), **look: Any) -> Image:
    """Images [n, H, W, C], or [R, n, H, W, C] in R rows, as in `render.contact_sheet`."""
    return shown(render.contact_sheet(images, captions, **look), f"{len(np.asarray(images))} images")


def compare(reconstruction: Any, truth: ClientData | Iterable[ClientData], **look: Any) -> Image:
    """Every true image above its reconstruction, with its PSNR; recovered images are framed."""
    images = np.asarray(getattr(reconstruction, "images", reconstruction), np.float32)
    known = Truth.of(truth)
    quality = score(images, known)
    png = render.comparison_sheet(known.images, images[quality.order], quality.psnr, quality.threshold, **look)
    return shown(png, repr(quality))


def lines(
    curves: Mapping[str, ArrayLike | tuple[ArrayLike, ArrayLike]],
    *,
    title: str,
    x: str,
    y: str,
    is_log: bool = False,
    is_map: bool = False,
    level: tuple[str, float] | None = None,
) -> Image:
    """Curves as lines with a marker at every point.

    Args:
        curves: name to values, or to positions and values.
        title: of the chart.
        x: label with unit.
        y: label with unit.
        is_log: whether the y axis is logarithmic.
        is_map: whether both axes have the same scale, for paths in a plane.
        level: the name and height of a horizontal reference line.
    """
    if not curves:
        raise ConfigError("curves is empty; give at least one.")
    colours = render.THEMES["light"]
    figure, axes = themed_axes(colours, (6.4, 5.0) if is_map else (6.8, 3.5), title, x, y, grid="both")
    # Seven colours and five markers: 35 curves look different from each other.
    looks = zip(
        itertools.cycle((*colours.lines[1:], colours.ink)), itertools.cycle("os^Dv"), itertools.cycle(("-", "--", "-."))
    )
    points = {name: _points(name, values) for name, values in curves.items()}
    for (name, (at, heights)), (colour, mark, style) in zip(points.items(), looks, strict=False):
        line, size = style if len(at) > 1 else "none", 5 if len(at) <= 40 else 0
        axes.plot(at, heights, linestyle=line, marker=mark, markersize=size, color=colour, label=name)
    if is_log:
        axes.set_yscale("log")
    if is_map:
        axes.set_aspect("equal", adjustable="datalim")
    elif all((at == np.round(at)).all() for at, _ in points.values()):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return _with_legend(figure, axes, title, len(curves), level)


def bars(
    series: Mapping[str, ArrayLike],
    names: Sequence[str],
    *,
    title: str,
    x: str,
    y: str,
    level: tuple[str, float] | None = None,
) -> Image:
    """Grouped bars, labelled with their heights.

    Args:
        series: name to one height for each group.
        names: of the groups.
        title: of the chart.
        x: label.
        y: label with unit.
        level: the name and height of a horizontal reference line.
    """
    if not series:
        raise ConfigError("series is empty; give at least one.")
    colours = render.THEMES["light"]
    text = max((len(line) for name in names for line in name.split("\n")), default=1)
    width = 1.6 + len(names) * max(0.55 * len(series), 0.3 + 0.085 * text)
    figure, axes = themed_axes(colours, (min(9.0, max(6.0, width)), 3.4), title, x, y, grid="both")
    places, width = np.arange(len(names)), 0.8 / len(series)
    for index, ((name, heights), colour) in enumerate(zip(series.items(), colours.lines[1:], strict=False)):
        values = np.asarray(heights, np.float64)
        if values.shape != (len(names),):
            raise DataError(f"series {name!r} has shape {values.shape}; expected ({len(names)},), one for each group.")
        drawn = axes.bar(places + (index - (len(series) - 1) / 2) * width, values, 0.92 * width, color=colour)
        drawn.set_label(name)
        axes.bar_label(drawn, fmt="%.3g", fontsize=8, padding=2)
    axes.set_xticks(places, names)
    axes.margins(y=0.12)
    return _with_legend(figure, axes, title, len(series), level)


def _with_legend(figure: Figure, axes: Axes, title: str, num_series: int, level: tuple[str, float] | None) -> Image:
    """The figure with its reference line, and with a legend if there is more than one thing to name."""
    if level is not None:
        axes.axhline(level[1], color=render.THEMES["light"].ink, linewidth=1, linestyle=":", label=level[0])
    if num_series > 1 or level is not None:
        figure.legend(loc="outside right upper", frameon=False)
    return shown(figure, title)


def _points(name: str, values: Any) -> tuple[Any, Any]:
    at, heights = values if isinstance(values, tuple) else (np.arange(len(values)), values)
    if np.ndim(heights) != 1 or np.shape(at) != np.shape(heights):
        raise DataError(f"curve {name!r} has the shapes {np.shape(at)} and {np.shape(heights)}; expected [n] and [n].")
    return np.asarray(at), np.asarray(heights)
