"""The types shared by all data sets: `Normalization`, `ClientData`, `Truth`, `Dataset`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.errors import ConfigError, DataError, check_count, check_kind, check_number, shown

__all__ = ["CIFAR100_NORMALIZATION", "FEMNIST_NORMALIZATION", "ClientData", "Dataset", "Normalization", "Truth"]


@dataclass(frozen=True)
class Normalization:
    """Pixel values in [0, 1] to network inputs and back: ``(pixels - mean) / std`` per channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        for field, above in (("mean", -math.inf), ("std", 0.0)):
            values = getattr(self, field)
            if not isinstance(values, Iterable) or isinstance(values, str):
                raise ConfigError(f"normalization.{field} = {values!r} must be one number per channel, such as (0.5,).")
            checked = tuple(check_number(f"normalization.{field}", value, above=above) for value in values)
            object.__setattr__(self, field, checked)
        if not self.mean:
            raise ConfigError("normalization.mean = () must hold one number per channel, such as (0.5,).")
        if len(self.mean) != len(self.std):
            raise ConfigError(
                f"normalization.std has {len(self.std)} channels but normalization.mean has {len(self.mean)}; "
                "give one value per channel in both."
            )

    def normalize(self, pixels: NDArray[np.float32]) -> NDArray[np.float32]:
        """[..., C] pixels in [0, 1] to normalised inputs."""
        mean, std = np.asarray(self.mean, np.float32), np.asarray(self.std, np.float32)
        return np.divide(pixels - mean, std)

    def denormalize(self, inputs: NDArray[np.float32]) -> NDArray[np.float32]:
        """[..., C] normalised inputs to pixels; values outside [0, 1] are kept."""
        return inputs * np.asarray(self.std, np.float32) + np.asarray(self.mean, np.float32)


FEMNIST_NORMALIZATION = Normalization(mean=(0.9642384386141873,), std=(0.15767843198426892,))
CIFAR100_NORMALIZATION = Normalization(mean=(0.5071, 0.4867, 0.4408), std=(0.2675, 0.2565, 0.2761))


def usual_normalizations(channels: int) -> Iterator[tuple[str, Normalization]]:
    """Those in common use, with their names, for images with so many channels."""
    usual = {
        "no normalisation": ((0.0,), (1.0,)),
        "pixels from -1 to 1": ((0.5,), (0.5,)),
        "pixels from 0 to 255": ((0.0,), (1 / 255,)),
        "MNIST's normalisation": ((0.1307,), (0.3081,)),
        "ImageNet's normalisation": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        "FEMNIST's normalisation": (FEMNIST_NORMALIZATION.mean, FEMNIST_NORMALIZATION.std),
        "CIFAR100's normalisation": (CIFAR100_NORMALIZATION.mean, CIFAR100_NORMALIZATION.std),
    }
    for name, (mean, std) in usual.items():
        if len(mean) in (1, channels):
            yield name, Normalization(*(part * (channels // len(part)) for part in (mean, std)))


@dataclass(frozen=True, eq=False)
class ClientData:
    """One client's private images and labels, which an attack never sees.

    Attributes:
        images: [N, H, W, C] float32 pixels in [0, 1].
        labels: [N] int32 classes in [0, K).
        class_names: the K names.
        normalization: how pixels become network inputs.
        psnr_threshold: the PSNR in dB above which an image counts as recovered.
        name: shown to people, e.g. ``"glyphs, client 0"``.
    """

    images: NDArray[np.float32]
    labels: NDArray[np.int32]
    class_names: tuple[str, ...]
    normalization: Normalization
    psnr_threshold: float = 20.0
    name: str = "custom data"

    def __post_init__(self) -> None:
        names = self.class_names
        if isinstance(names, str) or not isinstance(names, Iterable):
            raise DataError(f"class_names = {shown(names)} must be a sequence with one name for every class.")
        object.__setattr__(self, "class_names", tuple(str(name) for name in names))
        check_kind("normalization", self.normalization, Normalization)
        object.__setattr__(self, "psnr_threshold", check_number("psnr_threshold", self.psnr_threshold))
        images, labels = check_images_and_labels(self.images, self.labels, len(self.class_names))
        if images.shape[-1] != len(self.normalization.mean):
            raise DataError(
                f"images have {images.shape[-1]} channels but the normalization has {len(self.normalization.mean)}; "
                "they must agree."
            )
        object.__setattr__(self, "images", images)
        object.__setattr__(self, "labels", labels)

    def __repr__(self) -> str:
        n, h, w, c = self.images.shape
        return f"ClientData({self.name}: {n} images of {h}x{w}x{c}, {len(set(self.labels.tolist()))} classes present)"

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def num_images(self) -> int:
        return len(self.images)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        h, w, c = self.images.shape[1:]
        return h, w, c

    @property
    def inputs(self) -> NDArray[np.float32]:
        """[N, H, W, C] normalised images, as the network sees them."""
        return self.normalization.normalize(self.images)

    @property
    def label_counts(self) -> NDArray[np.int64]:
        """[K] how many images each class has."""
        return np.bincount(self.labels, minlength=self.num_classes)


class Truth(tuple[ClientData, ...]):
    """The clients behind one update, as one set of images; empty if the truth is not known.

    >>> from workbench.data import load_dataset
    >>> clients = [load_dataset("glyphs").client(index, num_images=4) for index in (0, 1)]
    >>> Truth.of(clients).images.shape
    (8, 28, 28, 1)
    >>> bool(Truth.of(None))
    False
    """

    @staticmethod
    def of(truth: ClientData | Iterable[ClientData] | None) -> Truth:
        """The truth from one client, several clients, or None if it is not known."""
        if truth is None:
            return Truth()
        clients = tuple(truth) if isinstance(truth, Iterable) else (truth,)
        if not all(isinstance(client, ClientData) for client in clients):
            raise DataError(f"truth = {shown(truth)} must be a ClientData, or a sequence of them for an aggregate.")
        return Truth(clients)

    @property
    def clients(self) -> tuple[ClientData, ...]:
        return tuple(self)

    @property
    def images(self) -> NDArray[np.float32]:
        """[A * N, H, W, C] pixels of all clients."""
        return np.concatenate([client.images for client in self])

    @property
    def labels(self) -> NDArray[np.int32]:
        """[A * N] of all clients."""
        return np.concatenate([client.labels for client in self])

    @property
    def label_counts(self) -> NDArray[np.int64]:
        """[A, K] the number of images of each class that each client has."""
        return np.stack([client.label_counts for client in self])

    @property
    def class_names(self) -> tuple[str, ...]:
        return self[0].class_names

    @property
    def psnr_threshold(self) -> float:
        """The PSNR in dB above which an image counts as recovered."""
        return self[0].psnr_threshold

    @property
    def name(self) -> str:
        return "; ".join(client.name for client in self)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images grouped by client.

    ``pictures(index)`` returns all of one client's data in stored order: images [n, H, W, C], uint8 or float pixels
    in [0, 1], and labels [n].
    """

    name: str
    image_shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    normalization: Normalization
    psnr_threshold: float
    num_clients: int
    pictures: Callable[[int], tuple[NDArray[Any], NDArray[Any]]]

    def __repr__(self) -> str:
        h, w, c = self.image_shape
        return f"Dataset({self.name}: {self.num_clients} clients, {self.num_classes} classes, images of {h}x{w}x{c})"

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def client(
        self, index: int, num_images: int | None = 50, seed: int | None = None, num_classes: int | None = None
    ) -> ClientData:
        """The data of one client.

        Args:
            index: which client, from 0.
            num_images: how many images; None takes all that the client has.
            seed: None takes the first images in stored order; a number samples them without replacement.
            num_classes: take only so many classes, the most frequent ones of the client, with equally many images of
                each; None takes images of any class.
        """
        index = check_count("client index", index, minimum=0, maximum=self.num_clients - 1)
        images, labels = self.pictures(index)
        num_images = check_count("num_images", len(images) if num_images is None else num_images)
        if num_images > len(images):
            raise DataError(
                f"num_images = {num_images} is more than the {len(images)} images of client {index} of {self.name}; "
                f"choose at most {len(images)}."
            )
        chosen = np.arange(len(images))
        if seed is not None:
            rng = np.random.default_rng([check_count("seed", seed, minimum=0), index])
            size = num_images if num_classes is None else len(images)
            chosen = rng.choice(len(images), size, replace=False)
        if num_classes is not None:
            num_classes = check_count("num_classes", num_classes, maximum=min(num_images, len(set(labels.tolist()))))
            chosen = self._of_few_classes(chosen, labels, num_images, num_classes)
        chosen = chosen[:num_images]
        return ClientData(
            images=images[chosen],
            labels=labels[chosen],
            class_names=self.class_names,
            normalization=self.normalization,
            psnr_threshold=self.psnr_threshold,
            name=f"{self.name}, client {index}",
        )

    def _of_few_classes(
        self, order: NDArray[np.intp], labels: NDArray[Any], num_images: int, num_classes: int
    ) -> NDArray[np.intp]:
        """The first images in this order of the most frequent classes, equally many of each, in the same order."""
        counts = np.bincount(labels, minlength=self.num_classes)
        shares = [len(part) for part in np.array_split(np.arange(num_images), num_classes)]
        chosen = []
        for label, share in zip(np.argsort(-counts, kind="stable"), shares, strict=False):
            if counts[label] < share:
                raise DataError(
                    f"num_images = {num_images} of num_classes = {num_classes} needs {share} images of class "
                    f"{self.class_names[label]!r}, and the client has {counts[label]}; choose fewer images."
                )
            chosen.append(np.flatnonzero(labels[order] == label)[:share])
        return order[np.sort(np.concatenate(chosen))]


def check_images_and_labels(
    images: ArrayLike, labels: ArrayLike, num_classes: int
) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Images as by `check_images`, and labels as int32 [N] in [0, num_classes)."""
    try:
        pixels, classes = np.asarray(images), np.asarray(labels)
    except ValueError:
        raise DataError("images and labels must be arrays, and all images must have the same shape.") from None
    checked = check_images(pixels)
    return checked, check_labels(classes, len(checked), num_classes)


def check_images(pixels: NDArray[Any]) -> NDArray[np.float32]:
    """Images as float32 [N, H, W, C] in [0, 1]; uint8 is scaled."""
    if pixels.ndim != 4:
        raise DataError(f"images have shape {pixels.shape}; expected [N, H, W, C], with C = 1 for grey images.")
    if 0 in pixels.shape:
        raise DataError(f"images have shape {pixels.shape}; expected at least one image of at least one pixel.")
    if pixels.dtype == np.uint8:
        pixels = pixels.astype(np.float32) / np.float32(255)
    elif np.issubdtype(pixels.dtype, np.floating):
        with np.errstate(over="ignore"):
            pixels = pixels.astype(np.float32)
    else:
        raise DataError(f"images have dtype {pixels.dtype}; expected uint8 in 0..255 or float in [0, 1].")
    if not np.isfinite(pixels).all():
        raise DataError("images contain NaN or infinite pixels; every pixel must be a number in [0, 1].")
    low, high = float(pixels.min()), float(pixels.max())
    if low < 0 or high > 1:
        raise DataError(f"images have pixels from {low:g} to {high:g}; float pixels must lie in [0, 1].")
    return pixels


def check_images_of(field: str, images: ArrayLike, shape: tuple[int, int, int]) -> NDArray[np.float32]:
    """Images as by `check_images`, if each has this shape (H, W, C)."""
    pixels = check_images(np.asarray(images))
    if pixels.shape[1:] != shape:
        raise DataError(f"{field} are {pixels.shape[1:]}; those of the client are {shape}.")
    return pixels


def check_labels(labels: ArrayLike, num_images: int, num_classes: int) -> NDArray[np.int32]:
    """Labels as int32 [num_images] in [0, num_classes)."""
    classes = np.asarray(labels)
    if classes.shape != (num_images,):
        raise DataError(f"labels have shape {classes.shape}; expected ({num_images},), one label per image.")
    if not np.issubdtype(classes.dtype, np.integer):
        raise DataError(f"labels have dtype {classes.dtype}; expected whole numbers from 0 to {num_classes - 1}.")
    wrong = classes[(classes < 0) | (classes >= num_classes)]
    if len(wrong):
        raise DataError(
            f"labels contain {wrong[0]}; with {num_classes} classes they must lie between 0 and {num_classes - 1}."
        )
    return classes.astype(np.int32)


def resized(images: NDArray[np.float32], shape: tuple[int, int, int]) -> NDArray[np.float32]:
    """Images [n, h, w, c] scaled to this shape; another number of channels makes them grey."""
    from skimage.transform import resize

    if images.shape[-1] != shape[-1]:
        images = images.mean(-1, keepdims=True).repeat(shape[-1], -1)
    scaled = [resize(image, shape, anti_aliasing=True) for image in images]  # type: ignore[no-untyped-call]
    return np.clip(np.array(scaled, np.float32), 0, 1)


def eight_bits(pixels: NDArray[np.floating[Any]]) -> NDArray[np.uint8]:
    """Pixels as bytes: clipped to [0, 1], NaN as 0."""
    return np.round(np.clip(np.nan_to_num(pixels), 0, 1) * 255).astype(np.uint8)


def groups_by_key(keys: NDArray[Any]) -> list[NDArray[np.intp]]:
    """The indices of equal keys [n], in order; groups are sorted by where their key first appears.

    >>> [group.tolist() for group in groups_by_key(np.array([7, 3, 7, 7, 3]))]
    [[0, 2, 3], [1, 4]]
    """
    _, first, key = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(key, kind="stable")
    groups = np.split(order, np.cumsum(np.bincount(key))[:-1])
    return [groups[index] for index in np.argsort(first)]


def shuffled_groups(num_images: int, size: int, seed: int) -> list[NDArray[np.intp]]:
    """Indices of shuffled images in groups of ``size``; the remainder is dropped."""
    order = np.random.default_rng(check_count("seed", seed, minimum=0)).permutation(num_images)
    return list(order[: num_images // size * size].reshape(-1, size))


def groups_of_pictures(
    images: NDArray[Any], labels: NDArray[np.int32], groups: Sequence[NDArray[np.intp]]
) -> Callable[[int], tuple[NDArray[Any], NDArray[np.int32]]]:
    """``Dataset.pictures`` for images [n, H, W, C] and labels [n], given each client's indices into them."""
    return lambda client: (images[groups[client]], labels[groups[client]])
