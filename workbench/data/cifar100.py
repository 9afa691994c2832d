"""CIFAR-100 from its official binary archive or from an ``.npz``; the pickled version is never read."""

import gzip
import os
import tarfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from workbench.data.dataset import CIFAR100_NORMALIZATION, Dataset, check_labels, groups_of_pictures, shuffled_groups
from workbench.errors import DataError
from workbench.files.cache import cache_folder, fetch
from workbench.files.reading import existing_path, read_npz, reading

__all__ = ["CLASS_NAMES", "load_cifar100"]

URL = "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz"
MD5 = "03b5dce01913d631647c71ecec9e9cb8"
IMAGES_PER_CLIENT = 50
IMAGE_SHAPE = (32, 32, 3)
# One image in the binary version: coarse class, fine class, then the red, green and blue planes.
RECORD_BYTES = 2 + 3 * 32 * 32

# The 100 fine classes, in label order.
_NAMES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
wardrobe whale willow_tree wolf woman worm
"""
CLASS_NAMES = tuple(_NAMES.split())

EXPECTED = (
    "CIFAR-100's binary archive cifar-100-binary.tar.gz, the folder or the train.bin in it, or an .npz file with "
    "images uint8 [n, 32, 32, 3] and labels [n]"
)


def load_cifar100(path: str | os.PathLike[str] | None = None, seed: int = 0) -> Dataset:
    """CIFAR-100, 32x32x3, split at random into clients of 50 images each.

    Args:
        path: the official binary archive, the folder or the ``train.bin`` in it, or an ``.npz`` file with ``images``
            uint8 [n, 32, 32, 3] and ``labels`` [n]; None downloads the archive (161 MB) once into a cache.
        seed: of the split into clients.
    """
    source = fetch(URL, MD5, cache_folder()) if path is None else existing_path(path, EXPECTED)
    images, labels = _read_npz(source) if source.suffix == ".npz" else _read_binary(source)
    groups = shuffled_groups(len(images), IMAGES_PER_CLIENT, seed)
    if not groups:
        raise DataError(f"{source} has {len(images)} images; a client needs {IMAGES_PER_CLIENT}.")
    return Dataset(
        name="cifar100",
        image_shape=IMAGE_SHAPE,
        class_names=CLASS_NAMES,
        normalization=CIFAR100_NORMALIZATION,
        psnr_threshold=19.0,
        num_clients=len(groups),
        pictures=groups_of_pictures(images, labels, groups),
    )


def _read_npz(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    images, labels = read_npz(path, EXPECTED, "images", "labels").values()
    with reading(path, EXPECTED):
        if images.dtype != np.uint8 or images.shape[1:] != IMAGE_SHAPE:
            raise DataError(f"images are {images.dtype} {list(images.shape)}; expected uint8 [n, 32, 32, 3].")
        return images, check_labels(labels, len(images), len(CLASS_NAMES))


def _read_binary(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """The training part of the binary version: images [n, 32, 32, 3] and labels [n]."""
    with reading(path, EXPECTED):
        content = np.frombuffer(_training_bytes(path), np.uint8)
        if len(content) == 0 or len(content) % RECORD_BYTES:
            raise DataError(f"train.bin has {len(content)} bytes; expected {RECORD_BYTES} for each image.")
        records = content.reshape(-1, RECORD_BYTES)
        labels = check_labels(records[:, 1], len(records), len(CLASS_NAMES))
        return np.moveaxis(records[:, 2:].reshape(-1, 3, 32, 32), 1, -1), labels


def _training_bytes(path: Path) -> bytes:
    """The content of ``train.bin``, which is ``path`` itself, in this folder or in this archive."""
    if path.is_dir():
        candidates = (path / "train.bin", path / "cifar-100-binary" / "train.bin")
        found = [file.read_bytes() for file in candidates if file.is_file()]
    elif path.suffix == ".bin":
        found = [path.read_bytes()]
    else:
        with gzip.open(path) as unzipped:
            with tarfile.open(fileobj=unzipped, mode="r|") as archive:
                members = (archive.extractfile(one) for one in archive if Path(one.name).name == "train.bin")
                found = [content.read() for content in members if content]
            # gzip verifies its checksum only when the end of the file is read.
            unzipped.read()
    if not found:
        raise DataError(f"has no train.bin; expected {EXPECTED}.")
    return found[0]
