"""MatchEpoch: matching the reconstructions of the epochs, and averaging them (the paper's Appendix A)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from workbench.errors import check_choice

__all__ = ["assign", "combine_epochs", "match_epochs", "psnr_matrix"]

PSNR_CAP = 100.0
"""In dB. Identical images have infinite PSNR, which assignment solvers reject."""


def psnr_matrix(first: NDArray[np.float32], second: NDArray[np.float32]) -> NDArray[np.float64]:
    """[n, ...] and [k, ...] pixels to [n, k] PSNR in dB, data range 1, at most 100."""
    a = first.reshape(len(first), -1).astype(np.float64)
    b = second.reshape(len(second), -1).astype(np.float64)
    squared = (a**2).mean(1)[:, None] + (b**2).mean(1)[None, :] - 2 * (a @ b.T) / a.shape[1]
    # For equal images the expanded square can be slightly below or above 0 by rounding.
    return -10 * np.log10(np.maximum(squared, 10 ** (-PSNR_CAP / 10)))


def assign(similarity: NDArray[np.float64]) -> NDArray[np.int64]:
    """[n, n] to [n]: the column for every row, one to one, with the largest total; ties go to the diagonal."""
    favour_diagonal = 1e-9 * np.eye(*similarity.shape)
    return linear_sum_assignment(similarity + favour_diagonal, maximize=True)[1]


def match_epochs(epochs: NDArray[np.float32], labels: NDArray[Any] | None = None) -> NDArray[np.int64]:
    """[E, N, H, W, C] pixels to [E, N]: ``epochs[e][permutations[e]]`` shows the images of epoch 0 in their order.

    With [E, N] labels, an image is matched to one with the same label as long as there are any.
    """
    similarity = np.stack([psnr_matrix(epochs[0], epoch) for epoch in epochs])
    if labels is not None:
        # Larger than any gain in similarity: all N images together differ by less than this.
        too_much = len(epochs[0]) * 4 * PSNR_CAP
        similarity -= np.where(labels[0][None, :, None] == labels[:, None, :], 0.0, too_much)
    return np.stack([assign(of_epoch) for of_epoch in similarity])


def combine_epochs(
    epochs: NDArray[np.float32], permutations: NDArray[np.int64], how: str = "mean"
) -> NDArray[np.float32]:
    """[E, N, H, W, C] to [N, H, W, C]: the mean (the paper's) or median of every image's matched reconstructions."""
    check_choice("combine", how, ("mean", "median"))
    matched = np.stack([epoch[order] for epoch, order in zip(epochs, permutations, strict=True)])
    return matched.mean(0) if how == "mean" else np.median(matched, axis=0)
