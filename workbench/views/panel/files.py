"""What Save, Load and Export read and write, the course of an attack as an animated GIF among it."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from workbench.attack.matching import psnr_matrix
from workbench.data import Truth
from workbench.errors import CheckpointError, ConfigError
from workbench.files import container
from workbench.files.writing import write_atomically
from workbench.metrics import score
from workbench.session import AttackSession, Recording, replay
from workbench.session.checkpoint import KIND as CHECKPOINT
from workbench.views import render
from workbench.views.panel.worker import DRAWING
from workbench.views.report import write_report

__all__ = ["CHECKPOINT_SUFFIX", "EXPORTS", "export", "path_of", "read"]

CHECKPOINT_SUFFIX = ".safetensors"
EXPORTS = {"picture (PNG)": ".png", "animation (GIF)": ".gif", "report (HTML)": ".html", "recording": ".recording"}
"""The formats of Export, for people, and the suffix of each."""

_MILLISECONDS = 120  # for which each frame of an animation is shown
_HOLD = 12  # how many times longer the last frame is shown than the others


def path_of(name: str, suffix: str = "") -> Path:
    """The file of that name, with the suffix where the name lacks it.

    >>> path_of("attack", ".png").name, path_of("attack.png", ".png").name
    ('attack.png', 'attack.png')
    """
    if not name.strip():
        raise ConfigError("file = '' must be a name, such as attack.")
    path = Path(name.strip()).expanduser()
    return path if path.suffix == suffix else path.with_name(path.name + suffix)


def read(name: str) -> tuple[Path, AttackSession | Recording]:
    """The checkpoint or recording of that name, whose suffix may be left out, and its path."""
    suffixes = ("", CHECKPOINT_SUFFIX, EXPORTS["recording"])
    path = next((path for path in (path_of(name, suffix) for suffix in suffixes) if path.is_file()), None)
    if path is None:
        raise CheckpointError(f"file = {name!r} does not exist; name a checkpoint or a recording.")
    return path, AttackSession.load(path) if container.kind_of(path) == CHECKPOINT else replay(path)


def export(path: Path, source: AttackSession | Recording, truth: Truth, picture: Callable[[], bytes]) -> None:
    """Write what the path's suffix names.

    Args:
        path: ends in one of the suffixes of `EXPORTS`.
        source: what to export.
        truth: to compare with; empty where it is not known.
        picture: returns the PNG that is on the screen.
    """
    if path.suffix == ".png":
        write_atomically(path, picture())
    elif path.suffix == ".gif":
        write_atomically(path, _animation(source, truth))
    elif path.suffix == ".recording":
        (source if isinstance(source, Recording) else Recording.of(source, truth)).save(path)
    elif isinstance(source, Recording):
        raise ConfigError("a report needs a session, and this panel plays a recording.")
    else:
        with DRAWING:
            write_report(path, source.fork(), truth.clients)


def _animation(source: AttackSession | Recording, truth: Truth) -> bytes:
    """The snapshots of a session or a recording as an animated GIF, the truth above where it is known."""
    frames = _in_one_palette([Image.open(io.BytesIO(png)) for png in _sheets(source, truth)])
    times = [_MILLISECONDS] * (len(frames) - 1) + [_MILLISECONDS * _HOLD]
    buffer = io.BytesIO()
    frames[0].save(
        buffer, "GIF", save_all=True, append_images=frames[1:], duration=times, loop=0, optimize=True, disposal=1
    )
    return buffer.getvalue()


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
