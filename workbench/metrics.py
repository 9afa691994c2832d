"""The quality of a reconstruction: the only module that compares it with the truth."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.attack.matching import PSNR_CAP, assign, combine_epochs, psnr_matrix
from workbench.config import COMBINATIONS
from workbench.data import ClientData, Truth
from workbench.errors import DataError

__all__ = ["Score", "averaging_curves", "label_errors", "reference_levels", "score"]


@dataclass(frozen=True, eq=False)
class Score:
    """The quality of a reconstruction after one-to-one matching to the true images.

    Attributes:
        psnr: [N] in dB, in the order of the true images.
        ssim: [N].
        order: [N] the index of the reconstruction assigned to each true image, one to one.
        threshold: the PSNR above which an image counts as recovered.
    """

    psnr: NDArray[np.float64]
    ssim: NDArray[np.float64]
    order: NDArray[np.int64]
    threshold: float

    @property
    def recovered_percent(self) -> float:
        return 100 * float((self.psnr > self.threshold).mean())

    def __repr__(self) -> str:
        return (
            f"Score({self.recovered_percent:.1f} % recovered above {self.threshold:g} dB, "
            f"PSNR {self.psnr.mean():.2f} dB, SSIM {self.ssim.mean():.3f}, {len(self.psnr)} images)"
        )


def score(reconstruction: Any, truth: ClientData | Iterable[ClientData]) -> Score:
    """Compare reconstructed images with the true ones.

    Args:
        reconstruction: [N, H, W, C] pixels, or anything with such ``.images``.
        truth: the client; for an aggregate, all its clients.
    """
    known = Truth.of(truth)
    if not known:
        raise DataError(f"truth = {truth!r} holds no client; there is nothing to compare with.")
    images = np.asarray(getattr(reconstruction, "images", reconstruction), np.float32)
    true_images = known.images
    if images.shape != true_images.shape:
        raise DataError(f"the reconstruction has shape {images.shape} but the true images have {true_images.shape}.")
    if not np.isfinite(images).all():
        raise DataError("the reconstruction contains NaN or infinite pixels.")
    similarity = psnr_matrix(true_images, images)
    order = assign(similarity)
    return Score(
        psnr=similarity[np.arange(len(order)), order],
        ssim=np.array([ssim(a, b) for a, b in zip(true_images, images[order], strict=True)]),
        order=order,
        threshold=known.psnr_threshold,
    )


def averaging_curves(reconstruction: Any, truth: ClientData | Iterable[ClientData]) -> dict[str, NDArray[np.float64]]:
    """The effect of combining more epochs: "mean" and "median" to [V] mean PSNR in dB of the first 1 to V epochs.

    Args:
        reconstruction: anything with ``.epochs`` [V, N, H, W, C] and ``.permutations`` [V, N].
        truth: the client; for an aggregate, all its clients.
    """
    epochs, permutations = reconstruction.epochs, reconstruction.permutations
    return {
        how: np.array(
            [
                score(combine_epochs(epochs[:count], permutations[:count], how), truth).psnr.mean()
                for count in range(1, len(epochs) + 1)
            ]
        )
        for how in COMBINATIONS
    }


def reference_levels(truth: ClientData | Iterable[ClientData]) -> dict[str, NDArray[np.float64]]:
    """[N] what images that show nothing of the client reach, as PSNR in dB with each of its images.

    "blank" is one colour (the median of all pixels: paper, for characters), and "mean" is the mean of all true images.
    """
    images = Truth.of(truth).images.astype(np.float64)
    errors = {
        "blank": (images - np.median(images, axis=(0, 1, 2))) ** 2,
        "mean": (images - images.mean(0)) ** 2,
    }
    smallest = 10 ** (-PSNR_CAP / 10)
    return {name: -10 * np.log10(np.maximum(error.mean((1, 2, 3)), smallest)) for name, error in errors.items()}


def ssim(first: NDArray[np.float32], second: NDArray[np.float32]) -> float:
    """The mean structural similarity of two images [H, W, C] with data range 1."""
    from skimage.metrics import structural_similarity

    window = min(7, *(side - (side + 1) % 2 for side in first.shape[:2]))
    return float(
        structural_similarity(  # type: ignore[no-untyped-call]
            first,
            second,
            data_range=1.0,
            channel_axis=-1,
            win_size=window,
            # A window of one pixel has no sample covariance.
            use_sample_covariance=window > 1,
        )
    )


def label_errors(true_counts: ArrayLike, recovered_counts: ArrayLike) -> float:
    """Half the L1 distance between two sets of counts: how many labels are wrong.

    >>> label_errors([2, 1, 0], [1, 1, 1])
    1.0
    """
    true, recovered = np.asarray(true_counts, np.float64), np.asarray(recovered_counts, np.float64)
    if true.shape != recovered.shape:
        raise DataError(f"label counts have the shapes {true.shape} and {recovered.shape}; they must agree.")
    return float(np.abs(true - recovered).sum() / 2)
