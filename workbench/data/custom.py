"""Custom data sets: from arrays, or from a folder with one sub-folder per class."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.data.dataset import (
    Dataset,
    Normalization,
    check_images_and_labels,
    groups_by_key,
    groups_of_pictures,
    shuffled_groups,
)
from workbench.errors import DataError, check_choice, check_count, check_number
from workbench.files.reading import existing_path, reading

__all__ = ["dataset_from_arrays", "dataset_from_folder"]


# Larger labels without class names are probably a mistake.
MAX_UNNAMED_CLASSES = 10_000


def dataset_from_arrays(
    images: ArrayLike,
    labels: ArrayLike,
    clients: ArrayLike | None = None,
    *,
    class_names: Sequence[str] | None = None,
    normalization: Normalization | None = None,
    psnr_threshold: float = 20.0,
    name: str = "custom data",
) -> Dataset:
    """A data set from arrays.

    Args:
        images: [n, H, W, C], uint8 in 0..255 or float in [0, 1].
        labels: [n] classes from 0.
        clients: [n] the client of each image, a number or a name; None gives all images to one client.
        class_names: one for each class; None numbers them.
        normalization: None measures mean and standard deviation of each channel.
        psnr_threshold: the PSNR in dB above which an image counts as recovered.
        name: shown to people.

    >>> dataset_from_arrays(np.eye(4).reshape(2, 2, 4, 1), [0, 1], clients=["ann", "bob"]).client(1, num_images=1)
    ClientData(custom data, client 1: 1 images of 2x4x1, 1 classes present)
    """
    num_classes = MAX_UNNAMED_CLASSES if class_names is None else len(class_names)
    pixels, classes = check_images_and_labels(images, labels, num_classes)
    if class_names is None:
        class_names = [str(index) for index in range(classes.max() + 1)]
    if normalization is None:
        normalization = _measured_normalization(pixels)
    groups = [np.arange(len(pixels))] if clients is None else groups_by_key(_check_clients(clients, len(pixels)))
    height, width, channels = pixels.shape[1:]
    return Dataset(
        name=name,
        image_shape=(height, width, channels),
        class_names=tuple(class_names),
        normalization=normalization,
        psnr_threshold=check_number("psnr_threshold", psnr_threshold),
        num_clients=len(groups),
        pictures=groups_of_pictures(pixels, classes, groups),
    )


def dataset_from_folder(
    path: str | os.PathLike[str],
    *,
    size: int = 32,
    color: str = "rgb",
    images_per_client: int | None = None,
    normalization: Normalization | None = None,
    psnr_threshold: float = 20.0,
    seed: int = 0,
) -> Dataset:
    """A data set from a folder of images with one sub-folder per class, named after the class.

    Args:
        path: the folder.
        size: every image is cropped to its central square and resized to this many pixels a side.
        color: ``"rgb"`` or ``"grey"``.
        images_per_client: how many of the shuffled images each client gets; None gives all to one client.
        normalization: None measures mean and standard deviation of each channel.
        psnr_threshold: the PSNR in dB above which an image counts as recovered.
        seed: of the shuffling.
    """
    size = check_count("size", size)
    mode = {"rgb": "RGB", "grey": "L"}[check_choice("color", color, ["rgb", "grey"])]
    expected = "a folder with one sub-folder of images for each class"
    folder = existing_path(path, expected)
    classes = (
        sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")) if folder.is_dir() else []
    )
    if not classes:
        raise DataError(f"path = '{folder}' has no sub-folders; expected {expected}.")
    files = [(file, label) for label, sub in enumerate(classes) for file in _picture_files(sub)]
    images = np.stack([_read_picture(file, size, mode) for file, _ in files])
    labels = np.array([label for _, label in files], np.int32)

    per_client = len(files) if images_per_client is None else images_per_client
    groups = shuffled_groups(len(files), check_count("images_per_client", per_client, maximum=len(files)), seed)
    order = np.concatenate(groups)
    return dataset_from_arrays(
        images[order],
        labels[order],
        np.repeat(np.arange(len(groups)), per_client),
        class_names=[sub.name for sub in classes],
        normalization=normalization,
        psnr_threshold=psnr_threshold,
        name=folder.name,
    )


def _check_clients(clients: ArrayLike, num_images: int) -> NDArray[Any]:
    expected = f"expected one number or name for each of the {num_images} images"
    try:
        owners = np.asarray(clients)
    except ValueError:
        raise DataError(f"clients are lists of different lengths; {expected}.") from None
    if owners.shape != (num_images,) or owners.dtype.kind not in "iuU":
        raise DataError(f"clients are {owners.dtype} {list(owners.shape)}; {expected}.")
    return owners


def _measured_normalization(pixels: NDArray[np.float32]) -> Normalization:
    mean = pixels.mean(axis=(0, 1, 2), dtype=np.float64)
    std = pixels.std(axis=(0, 1, 2), dtype=np.float64)
    if not std.all():
        raise DataError("images have a channel with one value everywhere; give a normalization, or other images.")
    return Normalization(mean=tuple(mean.tolist()), std=tuple(std.tolist()))


def _picture_files(folder: Path) -> list[Path]:
    from PIL import Image

    known = Image.registered_extensions()
    files = sorted(file for file in folder.iterdir() if file.is_file() and file.suffix.lower() in known)
    if not files:
        raise DataError(f"class folder '{folder}' has no images; expected at least one, such as a PNG or JPEG file.")
    return files


def _read_picture(file: Path, size: int, mode: str) -> NDArray[Any]:
    """One image [size, size, C] uint8: its central square, with the EXIF orientation applied."""
    from PIL import Image, ImageOps

    with reading(file, "an image that Pillow can open"), Image.open(file) as picture:
        upright = ImageOps.exif_transpose(picture).convert(mode)
        return np.atleast_3d(np.asarray(ImageOps.fit(upright, (size, size), Image.Resampling.LANCZOS)))
