"""The quality of each reconstruction, predicted from the reconstruction alone.

A failed reconstruction is washed out: grey where ink or paper should be, and with weak edges. The agreement of an
image's epochs predicts less: epochs with a consensus agree about wrong images too.
"""

import numpy as np
from numpy.typing import NDArray

__all__ = ["predict_psnr"]

# Fitted to `best` on FEMNIST writers 20 to 23 (10 epochs, batches of 5, 50 images each).
_INTERCEPT, _PER_EDGE_DECADE, _PER_GREY = 35.9, 4.33, -172.0
_WEAKEST_EDGES = 1e-4


def predict_psnr(images: NDArray[np.float32]) -> NDArray[np.float64]:
    """[N, H, W, C] reconstructed pixels to [N]: the predicted PSNR of each in dB.

    Calibrated on handwriting; for other images only the order is meaningful.

    >>> import numpy as np
    >>> stroke = np.ones((1, 28, 28, 1)); stroke[:, 5:23, 13:16] = 0
    >>> washed_out = 1 - 0.5 * (1 - stroke)
    >>> bool(predict_psnr(stroke)[0] > predict_psnr(washed_out)[0])
    True
    """
    pixels = np.clip(np.asarray(images, np.float64), 0, 1)
    edges = sum((np.diff(pixels, axis=axis) ** 2).mean((1, 2, 3)) for axis in (1, 2))
    grey = (pixels * (1 - pixels)).mean((1, 2, 3))
    strength = np.log10(np.maximum(edges, _WEAKEST_EDGES))
    return np.asarray(_INTERCEPT + _PER_EDGE_DECADE * strength + _PER_GREY * grey)
