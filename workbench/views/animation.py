"""A reconstruction emerging, as one moving picture: GIF or WebP."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from workbench.attack.matching import psnr_matrix
from workbench.data.dataset import ClientData
from workbench.errors import ConfigError, check_count
from workbench.files.writing import write_atomically
from workbench.metrics import score
from workbench.session.recording import Recording
from workbench.session.session import AttackSession
from workbench.views import render

__all__ = ["write_animation"]

_FORMATS = {".gif": "GIF", ".webp": "WEBP"}
_HOLD = 12  # the last moment stands so many times as long as the others


def write_animation(
    path: str | os.PathLike[str],
    source: AttackSession | Recording,
    truth: ClientData | Sequence[ClientData] | None = None,
    *,
    milliseconds: int = 120,
    **look: Any,
) -> None:
    """Write the kept moments of a session or a recording as a moving picture.

    Args:
        path: ends in ``.gif`` or ``.webp``.
        source: what to show.
        truth: the client, or all clients of an aggregate, above what was found; None shows this alone. A recording
            has its own.
        milliseconds: for every moment.
        look: as in `render.contact_sheet`.
    """
    kind = _FORMATS.get(Path(path).suffix.lower())
    if kind is None:
        raise ConfigError(f"path = {str(path)!r} must end in .gif or .webp.")
    milliseconds = check_count("milliseconds", milliseconds)
    clients = source.truth if isinstance(source, Recording) and truth is None else truth
    sheets = [Image.open(io.BytesIO(png)) for png in _sheets(source, clients, look)]
    # One palette for all moments, or colours would flicker.
    frames = sheets if kind == "WEBP" else _in_one_palette(sheets)
    buffer = io.BytesIO()
    times = [milliseconds] * (len(frames) - 1) + [milliseconds * _HOLD]
    more: dict[str, Any] = {"quality": 80, "method": 4} if kind == "WEBP" else {"optimize": True, "disposal": 1}
    frames[0].save(buffer, kind, save_all=True, append_images=frames[1:], duration=times, loop=0, **more)
    write_atomically(path, buffer.getvalue())


def _sheets(source: AttackSession | Recording, truth: Any, look: dict[str, Any]) -> list[bytes]:
    clients = [truth] if isinstance(truth, ClientData) else list(truth or [])
    if isinstance(source, AttackSession):
        source = source.fork()  # which stands still while this one may be driven on
        steps = sorted({*source.history.snapshot_steps, source.num_steps})
    else:
        steps = list(source.history.snapshot_steps)
    found = [source.reconstruction_at(step) for step in steps]
    if not clients:
        return [render.contact_sheet(one.images, **look) for one in found]
    true_images = np.concatenate([client.images for client in clients])
    # In the order of the last moment, or images would jump about.
    last = score(found[-1], clients)
    sheets = []
    for one in found:
        images = one.images[last.order]
        psnr = np.diagonal(psnr_matrix(true_images, images))
        sheets.append(render.comparison_sheet(true_images, images, psnr, last.threshold, **look))
    return sheets


def _in_one_palette(sheets: Sequence[Image.Image]) -> list[Image.Image]:
    widest = max(sheet.width for sheet in sheets)
    full = [sheet if sheet.width == widest else sheet.resize((widest, sheet.height)) for sheet in sheets]
    palette = full[-1].quantize(128, method=Image.Quantize.MEDIANCUT)
    return [sheet.quantize(palette=palette, dither=Image.Dither.NONE) for sheet in full]
