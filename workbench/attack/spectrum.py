"""What the span of a dense layer's update is worth, in numbers: no JAX, so that recordings can keep it.

`workbench.attack.span` has the derivation.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

__all__ = ["ROUNDING", "ImageCount", "Membership", "Spectrum", "confidence_of", "judge_membership"]

# Singular values below this share of the largest one are rounding.
ROUNDING = 1e-6
# Where the weight of the term is halved: a clean update of 100 local steps leaves 0.004 unexplained, one of 500 local
# steps 0.02, and the weakest noise of the paper's Table 6 leaves 0.1.
_HALF_WORTH = 0.03
# With Gaussian noise of 0.03 (0.35 unexplained), a thousandth of its weight helped and a hundredth harmed.
_DECLINE = 3
# Below this share of its weight the term no longer moves the images.
_LEAST_SHARE = 1e-4
# Two images nearer than this, relative to how much the images differ, may be two reconstructions of one image: true
# images of FEMNIST and CIFAR100 are further apart, but for exact copies.
_REPEATED = 0.5
# The singular values after the last image are drift: after one epoch about a thousand times smaller.
_CLEAR_DROP = 20.0


@dataclass(frozen=True)
class ImageCount:
    """How many distinct images an update comes from, by the largest drop between two neighbouring singular values.

    Attributes:
        count: distinct images, if the drop is clear.
        drop: the ratio of the singular values before and after it.
        is_clear: whether the count can be relied on; after several epochs it cannot.
    """

    count: int
    drop: float
    is_clear: bool

    def __str__(self) -> str:
        if self.is_clear:
            return f"{self.count} distinct images: the singular values drop {self.drop:,.0f}-fold after that many."
        return (
            f"The number of images is unclear: the largest drop of the singular values is only {self.drop:.1f}-fold "
            f"(after {self.count}). It is clear after one epoch and for fewer images than outputs of the layer."
        )


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The singular values of a dense layer's update, and what they say about its span.

    Attributes:
        layer: the name of the layer.
        singular_values: of the stacked update without outputs that were never active, the largest first.
        rank: its numerical rank: how many distinct images its span can tell apart.
        unexplained: how much of an average column of the update the other columns do not explain, from 0 to 1: what
            noise, or too many images, have left of the span.
        num_images: A * N, how many images should lie in the span.
    """

    layer: str
    singular_values: NDArray[np.float64]
    rank: int
    unexplained: float
    num_images: int

    @property
    def share(self) -> float:
        """The share of its configured weight that the term gets, from 1 for a clean update to 0 for a useless one."""
        share = 1 / (1 + (self.unexplained / _HALF_WORTH) ** _DECLINE)
        return share if share >= _LEAST_SHARE and self.num_images <= 2 * self.rank else 0.0

    @property
    def is_clear(self) -> bool:
        """Whether an image outside the span is certainly wrong, and not only hidden by noise."""
        return self.share >= 0.5

    @cached_property
    def image_count(self) -> ImageCount:
        """How many distinct images the client has, where the singular values show it."""
        # What is below the rank is rounding: one value of it marks where the images end. After several epochs there can
        # be such a drop after epochs times images, which is no count.
        values = self.singular_values[: min(self.rank, self.num_images) + 1]
        values = np.maximum(values, ROUNDING * values[0])
        drops = values[:-1] / values[1:]
        if not drops.size:
            return ImageCount(self.rank, 1.0, is_clear=False)
        last = int(drops.argmax())
        # A layer with no more outputs than images has no singular value after the last image.
        is_clear = len(self.singular_values) > self.num_images and drops[last] >= _CLEAR_DROP
        return ImageCount(last + 1, float(drops[last]), bool(is_clear))

    def __str__(self) -> str:
        known = f"The update of {self.layer} has rank {self.rank} for {self.num_images} images"
        if self.num_images > 2 * self.rank:
            return f"{known}: too many images for its span to help, so the attack goes on without it."
        noise = f"{self.unexplained:.1%} of a column is not explained by the others"
        if not self.share:
            return f"{known}, but {noise}: noise hides its span, and the attack goes on without it."
        return f"{known}; {noise}, so a span term has {self.share:.1%} of its weight."


def confidence_of(residuals: NDArray[np.float32] | None, images: NDArray[np.float32]) -> NDArray[np.float32] | None:
    """[N] from 0 to 1: whether each of the images [N, H, W, C] shows an image of the client that no other one shows.

    1 minus the span residual, and less for an image that nearly repeats one with a smaller residual: in proportion to
    the distance of the two, relative to how much the images differ, below one half. None where the update has no span
    to judge images by.

    >>> confidence_of(np.array([0.25, 0.5, 3.0]), np.array([0.0, 0.0, 1.0]).reshape(3, 1, 1, 1))
    array([0.75, 0.  , 0.  ])
    """
    if residuals is None:
        return None
    # The images of a diverging attack may overflow.
    with np.errstate(over="ignore", invalid="ignore"):
        pixels = images.reshape(len(images), -1)
        spread = np.sqrt(((pixels - pixels.mean(0)) ** 2).sum(1).mean())
        is_better = residuals[None] < residuals[:, None]
        nearest = np.where(is_better, cdist(pixels, pixels), np.inf).min(1)
        is_repeated = nearest < _REPEATED * spread
        repeats = np.divide(nearest, _REPEATED * spread, out=np.ones_like(residuals), where=is_repeated)
        return np.asarray(np.clip(1 - residuals, 0, 1) * repeats, residuals.dtype)


@dataclass(frozen=True, eq=False)
class Membership:
    """Whether pictures were the client's, by their span residuals.

    Attributes:
        residuals: [n] of the pictures.
        controls: [k] of pictures that were certainly not the client's; empty where none were given.
        threshold: pictures with a smaller residual count as the client's; None without controls.
        false_positive_rate: the share of the controls below the threshold; None without controls.
    """

    residuals: NDArray[np.float32]
    controls: NDArray[np.float32]
    threshold: float | None
    false_positive_rate: float | None

    @property
    def is_member(self) -> NDArray[np.bool_] | None:
        """[n] which pictures count as the client's; None without controls."""
        return None if self.threshold is None else self.residuals < self.threshold


def judge_membership(
    residuals: NDArray[np.float32], controls: NDArray[np.float32], false_positive_rate: float
) -> Membership:
    """The membership at the largest threshold that at most this share of the controls is below.

    >>> judge_membership(np.array([0.1, 0.9]), np.linspace(0.5, 1, 100), false_positive_rate=0.01).is_member
    array([ True, False])
    """
    if not len(controls):
        return Membership(residuals, controls, None, None)
    allowed = min(int(false_positive_rate * len(controls)), len(controls) - 1)
    threshold = float(np.sort(controls)[allowed])
    return Membership(residuals, controls, threshold, float((controls < threshold).mean()))
