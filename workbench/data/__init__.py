"""Data sets: bundled (``glyphs``, ``photos``), real (``femnist``, ``cifar100``) or custom (arrays, a folder)."""

import os

from workbench.data.cifar100 import load_cifar100
from workbench.data.custom import dataset_from_arrays, dataset_from_folder
from workbench.data.dataset import ClientData, Dataset, Normalization, Truth
from workbench.data.femnist import femnist_from_rows, load_femnist
from workbench.data.glyphs import load_glyphs
from workbench.data.photos import load_photos
from workbench.errors import ConfigError, check_choice

__all__ = [
    "ClientData",
    "Dataset",
    "Normalization",
    "Truth",
    "dataset_from_arrays",
    "dataset_from_folder",
    "femnist_from_rows",
    "load_dataset",
]


def load_dataset(name: str = "glyphs", path: str | os.PathLike[str] | None = None, *, seed: int = 0) -> Dataset:
    """A data set by its name.

    Args:
        name: ``"glyphs"`` (hand-drawn characters) or ``"photos"`` (crops of photographs), which are bundled, or
            ``"femnist"`` or ``"cifar100"``, which are read from ``path`` or downloaded.
        path: for ``"femnist"`` LEAF's output folder or an ``.npz``; for ``"cifar100"`` the official binary archive,
            the folder or ``train.bin`` in it, or an ``.npz``. None downloads.
        seed: of the writers of ``"glyphs"``, the crops of ``"photos"`` and the clients of ``"cifar100"``; unused by
            ``"femnist"``, whose clients are real writers.

    >>> load_dataset("glyphs").client(0)
    ClientData(glyphs, client 0: 50 images of 28x28x1, 24 classes present)
    >>> load_dataset("glyph")
    Traceback (most recent call last):
    ...
    workbench.errors.ConfigError: dataset = 'glyph' is unknown; did you mean 'glyphs'? \
Choose one of: glyphs, photos, femnist, cifar100.
    """
    name = check_choice("dataset", name, ["glyphs", "photos", "femnist", "cifar100"])
    if name == "femnist":
        return load_femnist(path)
    if name == "cifar100":
        return load_cifar100(path, seed)
    if path is not None:
        raise ConfigError(f"path = {str(path)!r} must be None for {name!r}, which is bundled.")
    return load_glyphs(seed) if name == "glyphs" else load_photos(seed)
