"""The pictures behind a study's numbers, stored as files."""

import io
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from workbench.attack.attack import Reconstruction
from workbench.data import Truth
from workbench.data.dataset import eight_bits
from workbench.files.reading import read_npz
from workbench.files.writing import write_atomically
from workbench.metrics import Score

__all__ = ["Pictures", "load_pictures", "pictures_folder", "save_pictures"]


@dataclass(frozen=True)
class Pictures:
    """What one attack reconstructed and the truth, in the order of the true images; 8-bit pixels.

    Attributes:
        truth: [N, H, W, C] of all clients.
        images: [N, H, W, C] the reconstruction.
        epochs: [V, N, H, W, C] the reconstruction of every epoch, matched to each other.
        psnr: [N] in dB.
    """

    truth: NDArray[np.uint8]
    images: NDArray[np.uint8]
    epochs: NDArray[np.uint8]
    psnr: NDArray[np.float32]


def pictures_folder(figures: Path) -> str:
    """The folder of the pictures from which the figures in a folder are drawn."""
    return str(Path(figures, "pictures").absolute())


def save_pictures(folder: str, key: str, found: Reconstruction, quality: Score, truth: Truth) -> None:
    """Write what the unit with this key reconstructed."""
    matched = np.stack([epoch[order] for epoch, order in zip(found.epochs, found.permutations, strict=True)])
    pictures = Pictures(
        truth=eight_bits(truth.images),
        images=eight_bits(found.images[quality.order]),
        epochs=eight_bits(matched[:, quality.order]),
        psnr=np.asarray(quality.psnr, np.float32),
    )
    content = io.BytesIO()
    np.savez_compressed(content, **asdict(pictures))
    write_atomically(_path(folder, key), content.getvalue())


def load_pictures(folder: str, key: str) -> Pictures | None:
    """What a unit reconstructed; None where it was measured without storing pictures."""
    path = _path(folder, key)
    if not path.exists():
        return None
    return Pictures(**read_npz(path, "a study's pictures", *(field.name for field in fields(Pictures))))


def _path(folder: str, key: str) -> Path:
    return Path(folder) / f"{key}.npz"
