"""Bundled stand-in for CIFAR-100: 32x32 crops of the colour photographs that come with scikit-image.

A class is one region of one photograph; its images are crops of several sizes from that region. A crop is a window of
the photograph downscaled by an integer factor: each pixel is the mean of a block of pixels. This is integer arithmetic,
so the images are the same on every machine.
"""

from functools import lru_cache, partial
from importlib.resources import as_file, files
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from workbench.data.dataset import CIFAR100_NORMALIZATION, Dataset
from workbench.errors import DataError, check_count

__all__ = ["IMAGES_PER_CLIENT", "NUM_CLIENTS", "load_photos"]

SIDE = 32
NUM_CLIENTS = 100
IMAGES_PER_CLIENT = 50


class Photograph(NamedTuple):
    """A file that comes with scikit-image, and the grid of regions it is divided into."""

    file: str
    rows: int
    columns: int


# Only files inside scikit-image's wheel: its other images would be downloaded. A photograph with little content has few
# regions.
PHOTOGRAPHS = {
    "astronaut": Photograph("astronaut.png", 4, 6),
    "cat": Photograph("chelsea.png", 3, 4),
    "coffee": Photograph("coffee.png", 4, 5),
    "motorcycle": Photograph("motorcycle_left.png", 4, 6),
    "rocket": Photograph("rocket.jpg", 1, 2),
    "tissue": Photograph("ihc.png", 4, 4),
    "retina": Photograph("retina.jpg", 1, 2),
}

CLASS_NAMES = tuple(
    f"{name} {row + 1}.{column + 1}"
    for name, photograph in PHOTOGRAPHS.items()
    for row in range(photograph.rows)
    for column in range(photograph.columns)
)


def load_photos(seed: int = 0) -> Dataset:
    """The bundled colour images: 32x32x3, 100 classes by photograph and region.

    Args:
        seed: of the crops.

    >>> load_photos().client(0)
    ClientData(photos, client 0: 50 images of 32x32x3, 39 classes present)
    """
    return Dataset(
        name="photos",
        image_shape=(SIDE, SIDE, 3),
        class_names=CLASS_NAMES,
        normalization=CIFAR100_NORMALIZATION,
        psnr_threshold=19.0,
        num_clients=NUM_CLIENTS,
        pictures=partial(_client_pictures, check_count("seed", seed, minimum=0)),
    )


def _client_pictures(seed: int, client: int) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """One client's part of all crops: images [n, 32, 32, 3] and labels [n]."""
    images, labels = _all_crops(seed)
    share = slice(client * IMAGES_PER_CLIENT, (client + 1) * IMAGES_PER_CLIENT)
    return images[share], labels[share]


@lru_cache(maxsize=2)
def _all_crops(seed: int) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """The images and labels of all clients, client by client: equally many images of each class, all different."""
    rng = np.random.default_rng(seed)
    per_class = NUM_CLIENTS * IMAGES_PER_CLIENT // len(CLASS_NAMES)
    crops = np.concatenate([crops_by_region(photograph, per_class, rng) for photograph in PHOTOGRAPHS.values()])
    labels = np.repeat(np.arange(len(CLASS_NAMES), dtype=np.int32), per_class)
    order = rng.permutation(len(crops))
    return crops[order], labels[order]


def crops_by_region(photograph: Photograph, num_crops: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Crops [rows * columns * num_crops, 32, 32, 3] of a photograph, region by region, half of them mirrored."""
    pixels = read_photograph(photograph.file)
    # A crop spans a quarter to a half of the photograph's height: enough to show objects, not only textures.
    smallest, largest = (pixels.shape[0] // (SIDE * part) for part in (4, 2))
    parts = [candidates(reduced(pixels, factor), photograph) for factor in range(smallest, largest + 1)]
    crops = np.concatenate([crops for crops, _ in parts])
    region = np.concatenate([region for _, region in parts])
    # Every crop size is equally likely, although there are far fewer large crops.
    weight = np.concatenate([np.full(len(crops), 1 / len(crops)) for crops, _ in parts])
    # Green contributes most to brightness, and every second pixel is enough to estimate contrast.
    contrast = crops[:, ::2, ::2, 1].std(axis=(1, 2), dtype=np.float32)

    chosen = []
    for index in range(photograph.rows * photograph.columns):
        inside = np.flatnonzero(region == index)
        high_contrast = inside[contrast[inside] >= np.quantile(contrast[inside], 2 / 3)]
        share = weight[high_contrast] / weight[high_contrast].sum()
        chosen.append(rng.choice(high_contrast, num_crops, replace=False, p=share))
    chosen_crops: NDArray[np.uint8] = crops[np.concatenate(chosen)]
    is_mirrored = rng.random(len(chosen_crops)) < 0.5
    chosen_crops[is_mirrored] = chosen_crops[is_mirrored, :, ::-1]
    return chosen_crops


def candidates(pixels: NDArray[np.uint8], photograph: Photograph) -> tuple[NDArray[np.uint8], NDArray[np.intp]]:
    """All windows [n, 32, 32, 3] of an image, two pixels apart, and the region number [n] of each."""
    windows = np.moveaxis(sliding_window_view(pixels, (SIDE, SIDE), axis=(0, 1))[::2, ::2], 2, -1)
    num_rows, num_columns = windows.shape[:2]
    row = np.arange(num_rows) * photograph.rows // num_rows
    column = np.arange(num_columns) * photograph.columns // num_columns
    region = row[:, None] * photograph.columns + column
    return windows.reshape(-1, SIDE, SIDE, 3), region.ravel()


def read_photograph(file: str) -> NDArray[np.uint8]:
    """A photograph [H, W, 3] from the installed scikit-image."""
    from PIL import Image

    source = files("skimage") / "data" / file
    if not source.is_file():
        raise DataError(f"photos needs {file}, which the installed scikit-image lacks; expected version 0.20 or later.")
    with as_file(source) as path, Image.open(path) as picture:
        return np.asarray(picture.convert("RGB"))


def reduced(pixels: NDArray[np.uint8], factor: int) -> NDArray[np.uint8]:
    """An image [H, W, 3] downscaled: each pixel is the rounded mean of a block of factor x factor pixels."""
    height, width = (size // factor for size in pixels.shape[:2])
    blocks = pixels[: height * factor, : width * factor].reshape(height, factor, width, factor, 3)
    sums: NDArray[np.uint32] = blocks.sum(axis=1, dtype=np.uint32).sum(axis=2, dtype=np.uint32)
    return ((sums + factor**2 // 2) // factor**2).astype(np.uint8)
