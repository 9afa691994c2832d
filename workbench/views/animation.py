"""The course of an attack as an animation: GIF or WebP."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from workbench.attack.matching import psnr_matrix
from workbench.data.dataset import ClientData, Truth
from workbench.errors import ConfigError, check_count
from workbench.files.writing import write_atomically
from workbench.metrics import score
from workbench.session.recording import Recording
from workbench.session.session import AttackSession
from workbench.views import render

__all__ = ["write_animation"]

_FORMATS = {".gif": "GIF", ".webp": "WEBP"}
_HOLD = 12  # how many times longer the last frame is shown than the others


def write_animation(
    path: str | os.PathLike[str],
    source: AttackSession | Recording,
    truth: ClientData | Sequence[ClientData] | None = None,
    *,
    milliseconds: int = 120,
    **look: Any,
) -> None:
    """Write the snapshots of a session or a recording as an animation.

    Args:
        path: ends in ``.gif`` or ``.webp``.
        source: what to show.
        truth: the client, or all clients of an aggregate, shown above the reconstruction; None uses the truth that a
            recording contains, or shows only the reconstruction.
        milliseconds: the duration of each frame.
        look: options of `render.contact_sheet`.
    """
    kind = _FORMATS.get(Path(path).suffix.lower())
    if kind is None:
        raise ConfigError(f"path = {str(path)!r} must end in .gif or .webp.")
    milliseconds = check_count("milliseconds", milliseconds)
    known = Truth.of(source.truth if isinstance(source, Recording) and truth is None else truth)
    sheets = [Image.open(io.BytesIO(png)) for png in _sheets(source, known, look)]
    # One palette for all frames, or colours would flicker.
    frames = sheets if kind == "WEBP" else _in_one_palette(sheets)
    buffer = io.BytesIO()
    times = [milliseconds] * (len(frames) - 1) + [milliseconds * _HOLD]
    more: dict[str, Any] = {"quality": 80, "method": 4} if kind == "WEBP" else {"optimize": True, "disposal": 1}
    frames[0].save(buffer, kind, save_all=True, append_images=frames[1:], duration=times, loop=0, **more)
    write_atomically(path, buffer.getvalue())


def _sheets(source: AttackSession | Recording, truth: Truth, look: dict[str, Any]) -> list[bytes]:
    """One PNG for each snapshot."""
    if isinstance(source, AttackSession):
        source = source.fork()  # the session itself may go on in another thread
        steps = sorted({*source.history.snapshot_steps, source.num_steps})
    else:
        steps = list(source.history.snapshot_steps)
    found = [source.reconstruction_at(step) for step in steps]
    if not truth:
        return [render.contact_sheet(one.images, **look) for one in found]
    # Every frame uses the order of the last one, so that images keep their places.
    last = score(found[-1], truth)
    sheets = []
    for one in found:
        images = one.images[last.order]
        psnr = np.diagonal(psnr_matrix(truth.images, images))
        sheets.append(render.comparison_sheet(truth.images, images, psnr, last.threshold, **look))
    return sheets


def _in_one_palette(sheets: Sequence[Image.Image]) -> list[Image.Image]:
    widest = max(sheet.width for sheet in sheets)
    full = [sheet if sheet.width == widest else sheet.resize((widest, sheet.height)) for sheet in sheets]
    palette = full[-1].quantize(128, method=Image.Quantize.MEDIANCUT)
    return [sheet.quantize(palette=palette, dither=Image.Dither.NONE) for sheet in full]
