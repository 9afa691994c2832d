"""The course of an attack as an animated GIF."""

import io
import os
from collections.abc import Sequence

import numpy as np
from PIL import Image

from workbench.attack.matching import psnr_matrix
from workbench.data import ClientData, Truth
from workbench.files.writing import write_atomically
from workbench.metrics import score
from workbench.session import AttackSession, Recording
from workbench.views import render

__all__ = ["write_animation"]

_MILLISECONDS = 120  # for which each frame is shown
_HOLD = 12  # how many times longer the last frame is shown than the others


def write_animation(
    path: str | os.PathLike[str],
    source: AttackSession | Recording,
    truth: ClientData | Sequence[ClientData] | None = None,
) -> None:
    """Write the snapshots of a session or a recording as an animated GIF.

    Args:
        path: the file to write; an existing file is replaced.
        source: what to show.
        truth: the client, or all clients of an aggregate, shown above the reconstruction; None uses the truth that a
            recording contains, or shows only the reconstruction.
    """
    known = Truth.of(source.truth if isinstance(source, Recording) and truth is None else truth)
    frames = _in_one_palette([Image.open(io.BytesIO(png)) for png in _sheets(source, known)])
    times = [_MILLISECONDS] * (len(frames) - 1) + [_MILLISECONDS * _HOLD]
    buffer = io.BytesIO()
    frames[0].save(
        buffer, "GIF", save_all=True, append_images=frames[1:], duration=times, loop=0, optimize=True, disposal=1
    )
    write_atomically(path, buffer.getvalue())


def _sheets(source: AttackSession | Recording, truth: Truth) -> list[bytes]:
    """One PNG for each snapshot."""
    if isinstance(source, AttackSession):
        source = source.fork()  # the session itself may go on in another thread
    found = [source.reconstruction_at(step) for step in sorted({*source.history.snapshot_steps, source.num_steps})]
    if not truth:
        return [render.contact_sheet(one.images) for one in found]
    # Every frame uses the order of the last one, so that images keep their places.
    last = score(found[-1], truth)
    sheets = []
    for one in found:
        images = one.images[last.order]
        psnr = np.diagonal(psnr_matrix(truth.images, images))
        sheets.append(render.comparison_sheet(truth.images, images, psnr, last.threshold))
    return sheets


def _in_one_palette(sheets: Sequence[Image.Image]) -> list[Image.Image]:
    """The sheets in one width and in the colours of the last one, because a palette for each would flicker."""
    widest = max(sheet.width for sheet in sheets)
    full = [sheet if sheet.width == widest else sheet.resize((widest, sheet.height)) for sheet in sheets]
    palette = full[-1].quantize(128, method=Image.Quantize.MEDIANCUT)
    return [sheet.quantize(palette=palette, dither=Image.Dither.NONE) for sheet in full]
