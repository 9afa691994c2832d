"""What Save, Load and Export read and write."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

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
# The formats of Export, for people, and the suffix of each.
EXPORTS = {"picture (PNG)": ".png", "animation (GIF)": ".gif", "report (HTML)": ".html", "recording": ".recording"}


def path_of(name: str, suffix: str = "") -> Path:
    """The file of that name, with the suffix where the name lacks it; a relative one is below the notebook's folder.

    >>> path_of("attack", ".png").name, path_of("attack.png", ".png").name
    ('attack.png', 'attack.png')
    """
    if not name.strip():
        raise ConfigError("file = '' must be a name, such as attack.")
    path = Path(name.strip()).expanduser()
    if not path.is_absolute() and not path.resolve().is_relative_to(Path.cwd().resolve()):
        raise ConfigError(f"file = {name.strip()!r} is outside the notebook's folder; give an absolute path for that.")
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
        write_atomically(path, render.animation(_sheets(source, truth)))
    elif path.suffix == ".recording":
        (source if isinstance(source, Recording) else Recording.of(source, truth)).save(path)
    elif isinstance(source, Recording):
        raise ConfigError("a report needs a session, and this panel plays a recording.")
    else:
        with DRAWING:
            write_report(path, source.fork(), truth.clients)


def _sheets(source: AttackSession | Recording, truth: Truth) -> list[bytes]:
    """One PNG for each snapshot."""
    if isinstance(source, AttackSession):
        source = source.fork()  # the session itself may go on in another thread
    found = [source.reconstruction_at(step) for step in sorted({*source.history.snapshot_steps, source.num_steps})]
    if not truth:
        return [render.contact_sheet(one.images) for one in found]
    # Every frame uses the order of the last one, so that images keep their places.
    last = score(found[-1], truth)
    ordered = [one.images[last.order] for one in found]
    psnr = [np.diagonal(psnr_matrix(truth.images, images)) for images in ordered]
    return [
        render.comparison_sheet(truth.images, images, values, last.threshold)
        for images, values in zip(ordered, psnr, strict=True)
    ]
