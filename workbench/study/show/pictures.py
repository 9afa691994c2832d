"""The pictures behind a study's numbers, kept as files, and figures drawn from them like those of the paper."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from workbench.data.dataset import eight_bits
from workbench.errors import DataError
from workbench.files.writing import write_atomically

if TYPE_CHECKING:
    from workbench.attack.attack import Reconstruction
    from workbench.data import ClientData
    from workbench.metrics import Score
    from workbench.study.show.results import Results

__all__ = ["Pictures", "keep_pictures", "load_pictures", "pictures_folder", "write_figures"]

# Of all images, by how well the first method of a figure recovered them: from nearly the best to nearly the worst.
_SHOWN_RANKS = (0.1, 0.37, 0.63, 0.9)
_EPOCH_COLUMNS = 8


@dataclass(frozen=True)
class Pictures:
    """What one attack found, beside the truth and in its order; 8-bit pixels.

    Attributes:
        truth: [N, H, W, C] of all clients.
        images: [N, H, W, C] combined.
        epochs: [V, N, H, W, C] of every epoch, matched.
        psnr: [N] in dB.
    """

    truth: NDArray[np.uint8]
    images: NDArray[np.uint8]
    epochs: NDArray[np.uint8]
    psnr: NDArray[np.float32]


def pictures_folder(figures: str | os.PathLike[str]) -> str:
    """Where the pictures are kept that the figures in a folder are made of."""
    return str(Path(figures, "pictures").absolute())


def keep_pictures(folder: str, key: str, found: Reconstruction, quality: Score, clients: Sequence[ClientData]) -> None:
    """Write what a unit found to the file of its key."""
    matched = np.stack([epoch[order] for epoch, order in zip(found.epochs, found.permutations, strict=True)])
    content = io.BytesIO()
    np.savez_compressed(
        content,
        truth=eight_bits(np.concatenate([client.images for client in clients])),
        images=eight_bits(found.images[quality.order]),
        epochs=eight_bits(matched[:, quality.order]),
        psnr=np.asarray(quality.psnr, np.float32),
    )
    write_atomically(_path(folder, key), content.getvalue())


def load_pictures(folder: str, key: str) -> Pictures | None:
    """What a unit found; None where it was measured without keeping pictures."""
    path = _path(folder, key)
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return Pictures(**{name: arrays[name] for name in Pictures.__dataclass_fields__})
    except (ValueError, KeyError, OSError, EOFError) as error:
        raise DataError(f"{path} does not hold a study's pictures: {error}") from None


def write_figures(results: Results, folder: Path) -> list[Path]:
    """For every setting and its first client: some images by all methods, and each method's epochs and all images.

    Returns the files; methods that were measured without keeping pictures are left out.
    """
    from workbench.views.render import comparison_sheet, epochs_sheet

    written: list[Path] = []

    def write(name: str, png: bytes) -> None:
        path = folder / f"{name}.png"
        write_atomically(path, png)
        written.append(path)

    for setting in dict.fromkeys(line.entry.setting for line in results.lines):
        kept: dict[str, Pictures] = {}
        for line in results.lines:
            if line.entry.setting == setting and line.entry.units[0].task == "attack":
                pictures = load_pictures(pictures_folder(folder), line.entry.units[0].key)
                if pictures is not None:
                    kept[line.entry.method] = pictures
        stem = "_".join(setting.replace(",", " ").split())
        if len(kept) > 1:
            write(f"{stem}_methods", _by_methods(kept))
        for method, found in kept.items():
            order = np.argsort(-found.psnr, kind="stable")
            if len(found.epochs) > 1:
                some = order[np.linspace(0, len(order) - 1, min(_EPOCH_COLUMNS, len(order))).round().astype(int)]
                sheet = epochs_sheet(
                    found.epochs / 255,
                    found.images / 255,
                    order=some,
                    truth=found.truth / 255,
                    captions=[f"{value:.1f} dB" for value in found.psnr[some]],
                    columns=len(some),
                )
                write(f"{stem}_{method}_epochs", sheet)
            sheet = comparison_sheet(found.truth[order] / 255, found.images[order] / 255, found.psnr[order], columns=10)
            write(f"{stem}_{method}_all", sheet)
    return written


def _by_methods(kept: dict[str, Pictures]) -> bytes:
    """Some images in columns, the truth and every method in rows."""
    from workbench.views.render import contact_sheet

    first = next(iter(kept.values()))
    ranks = [round(rank * (len(first.psnr) - 1)) for rank in _SHOWN_RANKS]
    shown = np.argsort(-first.psnr, kind="stable")[sorted(set(ranks))]
    rows = [first.truth, *(found.images for found in kept.values())]
    names = ["truth", *(f"{method}, mean {found.psnr.mean():.1f} dB" for method, found in kept.items())]
    return contact_sheet(np.stack([row[shown] for row in rows]) / 255, names=names, columns=len(shown), scale=3)


def _path(folder: str, key: str) -> Path:
    return Path(folder) / f"{key}.npz"
