"""The test of the last layer's bias, which needs no images: did it move as far as the described training moves it?

The gradient of a class that the client does not have is the probability that the network gives it. So for most classes
the bias moves by rate * (sum of the coefficients of all steps) * (mean probability), and the ratio of the two is 1. The
probability is estimated, on random inputs or on a probe's images, at the weights before, halfway and after. How much
the ratio varies between the classes says how good the estimate is.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from workbench.attack.labels import dummy_inputs, network_statistics
from workbench.errors import ConfigError
from workbench.federated.observation import Observation
from workbench.training.local import PLAIN, LocalTraining
from workbench.training.model import Model
from workbench.weights import Weights

__all__ = ["Movement", "bias_movement", "likeliest_causes", "looks_like_adam"]

# Above this spread of the logarithm of the ratios between classes, their median is not used.
_LARGEST_SPREAD = 1.0
# Of all weights that moved, the median against the largest: SGD 0.003 to 0.015, Adam 0.06 to 1 (networks of the tests).
_ALIKE = 0.03


@dataclass(frozen=True)
class Movement:
    """How far the bias moved, relative to what the training explains.

    Attributes:
        ratio: negative if it moved the other way.
        low: what a client that fits has at least; measured, see docs/audit_checks.md.
        high: and at most.
    """

    ratio: float
    low: float
    high: float


def bias_movement(model: Model, observation: Observation, images: Any = None) -> Movement | str:
    """The movement of the bias, or why this test gives no answer.

    Args:
        images: [n, H, W, C] normalised images like the client's; None takes random ones.
    """
    bias = observation.gradient_sum[model.last_layer].get("bias")
    if bias is None or not np.asarray(bias).any():
        return "the last layer has no bias that moves"
    measured = np.asarray(bias, np.float64) / observation.response.coefficients.sum()
    inputs = dummy_inputs(model)[:400] if images is None else images
    before, after = observation.server_weights, observation.client_weights
    # A trained network may give a class a probability of 0.
    first, middle, last = (
        np.maximum(network_statistics(model, weights, inputs).probabilities, 1e-12)
        for weights in (before, jax.tree.map(lambda a, b: (a + b) / 2, before, after), after)
    )
    # Simpson's rule, and what label smoothing takes off.
    expected = (first + 4 * middle + last) / 6 - observation.training.label_smoothing / model.num_classes
    ratios = np.where(expected > 0, measured / np.maximum(expected, 1e-12), np.nan)
    # Classes that the client has moved the other way, and by more: most classes show the sign.
    sign = 1.0 if np.nanmedian(np.sign(ratios)) >= 0 else -1.0
    absent = sign * ratios > 0
    if absent.sum() < 4:
        return f"only {absent.sum()} classes seem to be absent from the client's images"
    logs = np.log(sign * ratios[absent])
    spread = float(np.subtract(*np.quantile(logs, [0.75, 0.25])))
    if spread > _LARGEST_SPREAD:
        return (
            "the classes disagree, as they do where few are absent from the client's images or the network is trained"
        )
    drift = max(0.0, float(np.median(np.log(first[absent] / last[absent]))))
    ratio = sign * float(np.exp(np.median(logs)))
    # Random inputs show little of how the network's expectations drift on images that it is trained on.
    below = 0.1 + (1.9 * spread + 7.5 * drift if images is None else 1.25 * spread + 1.25 * drift)
    # Clipping only makes the movement smaller.
    low = 0.0 if observation.training.gradient_clip else float(np.exp(-below))
    high = float(np.exp(0.15 + 0.4 * spread + 0.5 * drift))
    # No class moves further than an absent one, so a ratio above the bound is wrong whichever classes are present.
    if (number := observation.num_images * observation.num_clients) >= model.num_classes and ratio <= high:
        return f"{number} images may well have all {model.num_classes} classes, and it needs some that are absent"
    return Movement(ratio, low, high)


def looks_like_adam(observation: Observation, update: Weights) -> bool:
    """Whether all weights moved by similar amounts, of about the rate in every step."""
    moved: NDArray[np.float64] = np.abs(np.concatenate([array.ravel() for array in jax.tree.leaves(update)]))
    largest, rates = moved.max(), observation.learning_rate * observation.response.coefficients.sum()
    alike = np.median(moved[moved > 0]) / largest if largest else 0.0
    return bool(alike > _ALIKE and 0.2 < largest / rates < 5)


def likeliest_causes(observation: Observation, moved: Movement, is_adam: bool) -> list[str]:
    """What would give this ratio, nearest first."""
    ratio = moved.ratio
    if ratio < 0:
        return ["the weights before and after are swapped, or differences have the other sign"]
    if is_adam:
        return ["the client uses Adam (optimizer='adam'), for all weights moved by similar amounts"]
    steps = observation.response.coefficients.sum()
    factors = {"a rate ten times smaller": 0.1, "a rate ten times larger": 10.0}
    for changes in alternatives(observation.training):
        with suppress(ConfigError):
            other = replace(observation, training=replace(observation.training, **changes))
            factors[described(changes)] = other.response.coefficients.sum() / steps
    near = sorted(factors, key=lambda name: abs(np.log(ratio / factors[name])))
    # Long training moves the bias less than the factor says.
    fitting = [name for name in near if 0.6 < ratio / factors[name] < 1.5 and abs(factors[name] - 1) > 0.05]
    return [
        *(f"{name} (would give {factors[name]:.2f})" for name in fitting[:2]),
        *["clipping of the gradient (gradient_clip)"] * (ratio < moved.low),
        f"another number of images or epochs, or an update that was multiplied ({ratio:.2g} times as much)",
    ]


def alternatives(given: LocalTraining) -> list[dict[str, Any]]:
    """The settings of other common clients, as changes of those given."""
    tried: list[dict[str, Any]] = [
        {"momentum": 0.9},
        {"momentum": 0.9, "nesterov": True},
        {"rate_schedule": "cosine"},
        {"rate_schedule": "cosine", "rate_unit": "epoch"},
        {"rate_schedule": "step", "rate_unit": "epoch"},
        {name: getattr(PLAIN, name) for name in ("momentum", "nesterov")},
        {name: getattr(PLAIN, name) for name in ("rate_schedule", "warmup_steps", "rates")},
        {"label_smoothing": 0.1},
        {"label_smoothing": 0.0},
        {"drop_last": not given.drop_last},
    ]
    return [changes for changes in tried if any(getattr(given, name) != value for name, value in changes.items())]


def described(changes: dict[str, Any]) -> str:
    """As arguments of a `ClientConfig`."""
    return ", ".join(f"{name}={value!r}" for name, value in changes.items())
