"""Small charts for notebooks: lines, bars and sheets of images, as PNG so that no running kernel is needed."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from IPython.display import Image
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from workbench.data import ClientData, Truth
from workbench.metrics import score
from workbench.views import render
from workbench.views.figures import bars_figure, lines_figure

__all__ = ["bars", "compare", "lines", "sheet", "shown"]


def shown(picture: bytes | Figure, alt: str | None = None) -> Image:
    """A PNG, or a figure as a high-resolution PNG of the figure's size in inches, as the output of a cell."""
    if isinstance(picture, Figure):
        width = round(96 * picture.get_size_inches()[0])
        return Image(render.figure_png(picture), width=width, alt=alt)  # type: ignore[no-untyped-call]
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
    curves: Mapping[str, ArrayLike | tuple[ArrayLike, ArrayLike]], *, title: str, x: str, y: str, **options: Any
) -> Image:
    """Curves as lines with a marker at every point; the arguments are those of `figures.lines_figure`."""
    return shown(lines_figure(curves, title=title, x=x, y=y, **options), title)


def bars(series: Mapping[str, ArrayLike], names: Sequence[str], *, title: str, x: str, y: str, **options: Any) -> Image:
    """Grouped bars, labelled with their heights; the arguments are those of `figures.bars_figure`."""
    return shown(bars_figure(series, names, title=title, x=x, y=y, **options), title)
