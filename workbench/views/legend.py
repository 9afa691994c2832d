"""What the numbers on a panel mean, with what they would be for images that show nothing."""

from workbench.data import Truth
from workbench.metrics import reference_levels

__all__ = ["legend"]

_PSNR = (
    "PSNR is the likeness of an image and the true one, in decibels (dB): 10 dB more is a tenth of the squared error. "
    "SSIM, from 0 to 1, compares their structure and is low for an image that is nearly blank."
)


def legend(truth: Truth) -> str:
    """Sentences about PSNR, SSIM and "recovered" for these clients; the truth may be unknown.

    >>> legend(Truth()).startswith("Without the truth")
    True
    """
    if not truth:
        return "Without the truth there is no PSNR, and no image counts as recovered."
    levels = reference_levels(truth)
    return (
        f"{_PSNR} An image above {truth.psnr_threshold:g} dB counts as recovered. On these images, a blank image "
        f"would have {levels['blank'].mean():.1f} dB in the mean and the mean of all true images "
        f"{levels['mean'].mean():.1f} dB: an image little above these shows little. Beside the SSIM stands the class "
        "that the client's network predicts for the image."
    )
