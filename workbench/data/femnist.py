"""FEMNIST, one client per writer: from LEAF's output, an ``.npz`` file, or Hugging Face's ``datasets``."""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.data.dataset import (
    FEMNIST_NORMALIZATION,
    Dataset,
    check_labels,
    groups_by_key,
    groups_of_pictures,
)
from workbench.data.glyphs import CHARACTERS
from workbench.errors import DataError
from workbench.files.reading import existing_path, read_npz, reading

__all__ = ["femnist_from_rows", "load_femnist"]

IMAGE_SHAPE = (28, 28, 1)
HUGGING_FACE_NAME = "flwrlabs/femnist"

EXPECTED_LEAF = (
    "LEAF's output: JSON with users, num_samples and user_data, which has for each user x (784 pixels in [0, 1] per "
    "image) and y (classes 0 to 61)"
)
EXPECTED_NPZ = "an .npz file with images uint8 [n, 28, 28], labels [n] and writer [n]"
EXPECTED = f"a folder of {EXPECTED_LEAF}, or {EXPECTED_NPZ}"

Pictures = tuple[NDArray[Any], NDArray[np.int32]]


def load_femnist(path: str | os.PathLike[str] | None = None) -> Dataset:
    """FEMNIST, 28x28x1, ink (0) on white (1); the clients are its writers, in file order.

    Args:
        path: LEAF's output folder (clients have its ``train`` part; give the ``test`` folder itself for the other
            part), or an ``.npz`` file with ``images`` uint8 [n, 28, 28], ``labels`` [n] and ``writer`` [n]; None loads
            ``flwrlabs/femnist`` through Hugging Face's ``datasets``, which downloads it once (200 MB).
    """
    if path is None:
        return _load_from_hugging_face()
    source = existing_path(path, EXPECTED)
    return _load_leaf(source) if source.is_dir() or source.suffix == ".json" else _load_npz(source)


def _dataset(num_writers: int, pictures: Callable[[int], Pictures]) -> Dataset:
    return Dataset(
        name="femnist",
        image_shape=IMAGE_SHAPE,
        class_names=tuple(CHARACTERS),
        normalization=FEMNIST_NORMALIZATION,
        psnr_threshold=20.0,
        num_clients=num_writers,
        pictures=pictures,
    )


def _load_npz(path: Path) -> Dataset:
    images, labels, writer = read_npz(path, EXPECTED_NPZ, "images", "labels", "writer").values()
    with reading(path, EXPECTED_NPZ):
        if images.dtype != np.uint8 or images.shape[1:] not in (IMAGE_SHAPE, IMAGE_SHAPE[:2]) or len(images) == 0:
            raise DataError(f"images are {images.dtype} {list(images.shape)}; expected uint8 [n, 28, 28].")
        if writer.shape != (len(images),) or writer.dtype.kind not in "iuU":
            raise DataError(f"writer is {writer.dtype} {list(writer.shape)}; expected one number for each image.")
        labels = check_labels(labels, len(images), len(CHARACTERS))
    groups = groups_by_key(writer)
    return _dataset(len(groups), groups_of_pictures(images.reshape(-1, *IMAGE_SHAPE), labels, groups))


def _load_leaf(path: Path) -> Dataset:
    train = path / "train"
    files = sorted((train if train.is_dir() else path).glob("*.json")) if path.is_dir() else [path]
    writers = [pictures for file in files for pictures in _read_leaf_file(file)]
    if not writers:
        raise DataError(f"path = '{path}' holds no images in .json files; expected {EXPECTED}.")
    return _dataset(len(writers), writers.__getitem__)


def _read_leaf_file(path: Path) -> list[Pictures]:
    """Images [n, 28, 28, 1] and labels [n] of each writer in one LEAF file, skipping writers without images."""
    with reading(path, EXPECTED_LEAF):
        match json.loads(path.read_bytes()):
            case {"users": list(users), "num_samples": list(counts), "user_data": dict(data)} if len(users) == len(
                counts
            ) and all(isinstance(data.get(user), dict) and {"x", "y"} <= data[user].keys() for user in users):
                return [
                    _leaf_pictures(user, count, data[user])
                    for user, count in zip(users, counts, strict=True)
                    if count != 0 or data[user]["x"]
                ]
        raise DataError(f"is JSON but not LEAF's; expected {EXPECTED_LEAF}.")


def _leaf_pictures(user: str, num_samples: int, samples: Mapping[str, Any]) -> Pictures:
    pixels, classes = np.asarray(samples["x"]), np.asarray(samples["y"])
    # Strings that contain numbers would be converted silently.
    if pixels.shape != (num_samples, 784) or pixels.dtype.kind not in "fiu":
        raise DataError(
            f"x of user {user!r} is {pixels.dtype} {list(pixels.shape)}; expected {num_samples} lists of 784 numbers."
        )
    if not ((pixels >= 0) & (pixels <= 1)).all():
        raise DataError(f"x of user {user!r} has a pixel that is not a number in [0, 1]; white is 1, ink is 0.")
    labels = check_labels(classes, num_samples, len(CHARACTERS))
    return pixels.astype(np.float32).reshape(-1, *IMAGE_SHAPE), labels


def _load_from_hugging_face() -> Dataset:
    try:
        import datasets
    except ImportError:
        raise DataError(
            f"femnist needs path = {EXPECTED}; without a path it is downloaded with Hugging Face's datasets, "
            "which is not installed: pip install datasets."
        ) from None
    try:
        rows = datasets.load_dataset(HUGGING_FACE_NAME, split="train")
    # Connection, cache, format and version errors of the library have no common type.
    except Exception as error:
        raise DataError(
            f"{HUGGING_FACE_NAME} could not be downloaded ({type(error).__name__}); try again, "
            f"or give path = {EXPECTED}."
        ) from None
    return femnist_from_rows(rows, writer_ids=rows["writer_id"])


def femnist_from_rows(rows: Sequence[Mapping[str, Any]] | Any, writer_ids: Iterable[str] | None = None) -> Dataset:
    """A data set from rows in the format of ``flwrlabs/femnist``; a writer's images are decoded on first use.

    Args:
        rows: indexed by number, each with ``image`` (a 28x28 Pillow image), ``writer_id`` and ``character`` (the
            class as a number, or the character itself).
        writer_ids: the column ``writer_id``, if reading it row by row would decode every image.
    """
    expected = f"expected the format of {HUGGING_FACE_NAME}: image, writer_id and character in each row"
    if len(rows) == 0:
        raise DataError(f"the table has no rows; {expected}.")
    missing = [column for column in ("image", "writer_id", "character") if column not in rows[0]]
    if missing:
        raise DataError(f"the table has no column {missing[0]!r}; {expected}.")
    ids = [row["writer_id"] for row in rows] if writer_ids is None else list(writer_ids)
    groups = groups_by_key(np.array(ids, dtype=np.str_))

    @lru_cache(maxsize=128)
    def pictures(writer: int) -> Pictures:
        written = [rows[int(index)] for index in groups[writer]]
        images = np.stack([_row_image(row) for row in written])
        labels = np.array([_row_label(row) for row in written], np.int32)
        # Most pixels are background, which is black in copies in MNIST's style.
        return images if np.median(images) > 127 else 255 - images, labels

    return _dataset(len(groups), pictures)


def _row_image(row: Mapping[str, Any]) -> NDArray[np.uint8]:
    from PIL import Image

    image = row["image"]
    if not isinstance(image, Image.Image) or image.size != IMAGE_SHAPE[:2]:
        raise DataError(f"an image of writer {row['writer_id']} is {image!r}; expected a Pillow image of 28x28.")
    return np.asarray(image.convert("L"))[..., None]


def _row_label(row: Mapping[str, Any]) -> int:
    character = row["character"]
    label = CHARACTERS.find(character) if isinstance(character, str) and len(character) == 1 else character
    if not isinstance(label, int) or not 0 <= label < len(CHARACTERS):
        raise DataError(f"character = {character!r} is unknown; expected one of {CHARACTERS}, or its number 0 to 61.")
    return label
