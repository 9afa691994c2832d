"""The differential privacy of a client that trains with the defence ``dp_sgd``.

**Mechanism.** Every local step releases the sum of the gradients of a batch, each clipped to norm at most C, plus
Gaussian noise of standard deviation z * C. Everything after that is post-processing: division by the batch size,
momentum, Adam, the mean over clients.

**Adjacency.** Two sets of images are neighbours if one of them lacks one image of the other: the gradient of that image
counts as zero in every batch, and the number of images and the batches stay as they are, because the server knows
them. The sum then changes by at most C, and the Gaussian mechanism has the noise multiplier z. If neighbours differ in
the content of one image (``replace``), the sum changes by at most 2 C, and the multiplier is z / 2.

**Composition.** An image is used once in every epoch, so in rounds * E steps. Gaussian mechanisms compose exactly, also
adaptively, to one with multiplier z / sqrt(rounds * E). No amplification by sampling is counted: batches are shuffled,
not drawn by Poisson sampling.

Epsilon at delta is that of the analytic Gaussian mechanism (Balle and Wang, 2018, Theorem 8), which is exact.
"""

import math

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr

from workbench.config import DefenceConfig
from workbench.errors import check_count, check_number

__all__ = ["ADJACENCIES", "dp_sgd_epsilon", "gaussian_epsilon"]

# The sensitivity of the sum in clip norms, by how neighbouring sets of images differ.
ADJACENCIES = {"remove": 1.0, "replace": 2.0}


def gaussian_epsilon(multiplier: float, delta: float) -> float:
    """The epsilon at delta of a Gaussian mechanism whose noise is ``multiplier`` times its sensitivity.

    >>> round(gaussian_epsilon(3.730632, 1e-5), 4)
    1.0
    """
    mu = 1 / check_number("multiplier", multiplier, above=0)
    delta = check_number("delta", delta, above=0, maximum=1)

    def log_delta(epsilon: float) -> float:
        # Phi(mu / 2 - epsilon / mu) - exp(epsilon) Phi(-mu / 2 - epsilon / mu), from logarithms: the numbers themselves
        # underflow and overflow.
        first, second = (log_ndtr(sign * mu / 2 - epsilon / mu) for sign in (1, -1))
        share = -np.expm1(min(epsilon + second - first, 0.0))
        return float(first + np.log(share)) if share else -math.inf

    wanted = math.log(delta)
    if log_delta(0.0) <= wanted:
        return 0.0
    # The bound of zero-concentrated differential privacy is always above.
    largest = mu**2 / 2 + mu * math.sqrt(-2 * wanted)
    return float(brentq(lambda epsilon: max(log_delta(epsilon), -1e9) - wanted, 0.0, largest, xtol=1e-12, rtol=1e-12))


def dp_sgd_epsilon(
    defence: DefenceConfig, epochs: int, *, rounds: int = 1, delta: float = 1e-5, adjacency: str = "remove"
) -> float | None:
    """The epsilon at delta of one client's training with ``dp_sgd``; None where there is no guarantee.

    Args:
        defence: any other defence has no guarantee, and neither has noise of strength 0 or noise that repeats in every
            epoch.
        epochs: E.
        rounds: in how many rounds the client takes part.
        delta: the probability with which the guarantee may fail.
        adjacency: how neighbouring sets of images differ: ``remove`` or ``replace`` (see the module).

    >>> from workbench.config import DefenceConfig
    >>> round(dp_sgd_epsilon(DefenceConfig("dp_sgd", 3.730632, clip_norm=1.0), epochs=1), 3)
    1.0
    >>> dp_sgd_epsilon(DefenceConfig("gaussian", 0.1), epochs=1) is None
    True
    """
    uses = check_count("epochs", epochs) * check_count("rounds", rounds)
    if defence.name != "dp_sgd" or not defence.strength or (epochs > 1 and not defence.independent):
        return None
    return gaussian_epsilon(defence.strength / math.sqrt(uses) / ADJACENCIES[adjacency], delta)
