"""Comparisons with what a federation's own network and a client's own training gave, and what explains a difference."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray
from scipy.optimize import least_squares

from workbench.auditing.bias import alternatives, described
from workbench.data.dataset import Normalization, check_labels, usual_normalizations
from workbench.errors import ConfigError, DataError
from workbench.federated.observation import Observation
from workbench.training.model import Model
from workbench.training.sgd import Batches, batch_share, in_batches, train
from workbench.weights import Weights

__all__ = ["Comparison", "compare_logits", "compare_update", "fits"]

_train = jax.jit(train, static_argnums=(0, 1))

# What is tried, and the mismatch that it leaves, relative.
Alternative = tuple[str, float]


class Comparison(NamedTuple):
    """How far the simulation is from what was seen, and which alternative comes nearest.

    Attributes:
        mismatch: of the simulation as described, relative.
        best: the alternative that fits best, with its mismatch.
        num_tried: how many were tried.
        wrong: what else the observation has wrong, in words.
    """

    mismatch: float
    best: Alternative
    num_tried: int
    wrong: str = ""


def fits(mismatch: float) -> bool:
    """Frameworks differ by 1e-6 to 1e-5; half precision by less than this."""
    return mismatch < 0.01


def _compare(mismatch: float, alternatives: Iterable[Alternative], wrong: str = "") -> Comparison:
    """Try alternatives until one fits, unless the simulation fits as it is."""
    tried = [("no change", mismatch)]
    for alternative in () if fits(mismatch) else alternatives:
        tried.append(alternative)
        if fits(alternative[1]):
            break
    return Comparison(mismatch, min(tried, key=lambda one: one[1]), len(tried) - 1, wrong)


def _reorderings(model: Model, *weights: Weights) -> Iterator[tuple[str, tuple[Weights, ...]]]:
    """The weights with other orders of the features that the first dense layer after a convolution gets."""
    arrays = [
        (layer, name, shape)
        for layer in model.layer_names
        for name, shape in model.shapes[layer].items()
        if name in ("kernel", "weight") and len(shape) in (2, 4)
    ]
    for (_, name, before), (layer, _, shape) in pairwise(arrays):
        # A network that torch exported has a convolution's weight [F, C, k, k].
        channels = before[-1] if name == "kernel" else before[0]
        places = shape[0] // channels
        orders = {"channel, row, column": (channels, places), "row, column, channel": (places, channels)}
        is_flattened = (len(before), len(shape)) == (4, 2) and places > 1 and places * channels == shape[0]
        for order, sizes in orders.items() if is_flattened else ():
            # Rows that were taken for one order are put into the other.
            kernels = (one[layer]["kernel"].reshape(*sizes, -1).swapaxes(0, 1).reshape(shape) for one in weights)
            changed = (
                {**one, layer: {**one[layer], "kernel": kernel}} for one, kernel in zip(weights, kernels, strict=True)
            )
            yield f"the rows of {layer} taken as {order}", tuple(changed)


def compare_logits(
    model: Model, observation: Observation, pixels: NDArray[np.float32], logits: NDArray[np.float32]
) -> Comparison:
    """Compare with the logits [n, K] of the federation's own network for some images [n, H, W, C]."""
    if logits.shape != (len(pixels), model.num_classes):
        raise DataError(
            f"probe logits have shape {logits.shape}; {len(pixels)} images have ({len(pixels)}, {model.num_classes})."
        )
    apply, given = jax.jit(model.apply), observation.normalization
    scale = np.linalg.norm(logits - logits.mean()) or 1.0

    def residual(weights: Weights, inputs: Any) -> NDArray[np.float64]:
        return np.asarray(apply(weights, jnp.asarray(inputs, jnp.float32)) - logits, np.float64).ravel() / scale

    def mismatch(weights: Weights, normalization: Normalization) -> float:
        return float(np.linalg.norm(residual(weights, normalization.normalize(pixels))))

    def others() -> Iterator[Alternative]:
        usual = [("", given), *usual_normalizations(model.image_shape[-1])]
        swapped = ("the client's weights (before and after are swapped)", (observation.client_weights,))
        orders = [("", (observation.server_weights,)), *_reorderings(model, observation.server_weights), swapped]
        for (order, (weights,)), (name, normalization) in product(orders, usual):
            yield " and ".join(filter(None, (order, name))), mismatch(weights, normalization)
        for order, (weights,) in orders:
            # As scales and shifts of the pixels; the differences are wide enough for single precision.
            start = np.stack([1 / np.array(given.std), -np.array(given.mean) / np.array(given.std)])
            found = least_squares(
                lambda x, w=weights: residual(w, pixels * x[: x.size // 2] + x[x.size // 2 :]),
                start.ravel(),
                diff_step=1e-3,
                max_nfev=50,
            )
            factors, shifts = found.x.reshape(2, -1)
            mean, std = (", ".join(f"{value:.4g}" for value in part) for part in (-shifts / factors, 1 / factors))
            name = f"normalisation mean ({mean}), std ({std})"
            yield " and ".join(filter(None, (order, name))), float(np.linalg.norm(found.fun))

    return _compare(mismatch(observation.server_weights, given), others())


def compare_update(
    model: Model, observation: Observation, pixels: NDArray[np.float32], labels: Any, order: Any
) -> Comparison:
    """Train on the images in this order, and try alternatives until one explains the update."""
    classes = check_labels(labels, len(pixels), model.num_classes)
    visits = np.asarray(order)
    if visits.ndim != 2 or visits.dtype.kind not in "iu" or visits.min() < 0 or visits.max() >= len(pixels):
        raise DataError(
            f"rehearsal order with shape {visits.shape} and type {visits.dtype} must be [E, N] places of images from 0 "
            f"to {len(pixels) - 1}."
        )
    counts = {"num_images": visits.shape[1], "epochs": len(visits), "num_clients": 1}
    wrong = " ".join(
        f"The observation has {name} = {getattr(observation, name)} in place of {count}."
        for name, count in counts.items()
        if getattr(observation, name) != count
    )
    number = visits.shape[1]
    seen = replace(observation, num_images=number, epochs=len(visits), batch_size=min(observation.batch_size, number))
    updates = partial(_updates, model, pixels=pixels, labels=classes, order=visits)

    def others() -> Iterator[Alternative]:
        for name, other in _other_clients(model, seen):
            yield name, _mismatch(*updates(other))
        simulated, observed = updates(seen)
        multiple = float(np.vdot(simulated, observed) / (np.vdot(simulated, simulated) or 1.0))
        yield f"an update multiplied by {multiple:.4g}", _mismatch(multiple * simulated, observed)

    return _compare(_mismatch(*updates(seen)), others(), wrong)


def _mismatch(simulated: NDArray[np.float64], observed: NDArray[np.float64]) -> float:
    """The distance relative to the observed update; infinite if the training diverges."""
    apart, moved = np.linalg.norm(simulated - observed), np.linalg.norm(observed)
    return float(apart / moved) if np.isfinite(apart) and moved else float("inf")


def _updates(
    model: Model,
    seen: Observation,
    pixels: NDArray[np.float32],
    labels: NDArray[np.int32],
    order: NDArray[np.integer[Any]],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The simulated and the observed change of all weights."""
    schedule, size = seen.schedule, seen.batch_size
    chosen = in_batches(jnp.asarray(order[:, : schedule.num_used]), size)
    inputs = jnp.asarray(seen.normalization.normalize(pixels))
    batches = Batches(
        inputs[chosen], jnp.asarray(labels)[chosen], batch_share(schedule.epochs, schedule.num_used, size)
    )
    sizes = jax.tree.map(jnp.float32, seen.training.step_sizes(seen.learning_rate, schedule))
    found = _train(model, seen.training, seen.server_weights, batches, sizes)
    simulated, before, after = (
        np.asarray(ravel_pytree(model.trained(one))[0], np.float64)
        for one in (found, seen.server_weights, seen.client_weights)
    )
    return simulated - before, after - before


def _other_clients(model: Model, seen: Observation) -> Iterator[tuple[str, Observation]]:
    """Those that need no compilation first."""
    before, after = seen.server_weights, seen.client_weights
    yield "before and after swapped", replace(seen, server_weights=after, client_weights=before)
    yield "sends='delta'", replace(seen, client_weights=jax.tree.map(lambda a, b: a + b, before, after))
    for rate in (0.1 * seen.learning_rate, 10 * seen.learning_rate):
        yield f"learning_rate={rate:g}", replace(seen, learning_rate=rate)
    for name, normalization in usual_normalizations(model.image_shape[-1]):
        yield name, replace(seen, normalization=normalization)
    for name, (first, last) in _reorderings(model, before, after):
        yield name, replace(seen, server_weights=first, client_weights=last)
    others: list[dict[str, Any]] = [
        {"optimizer": "adam"},
        *({"gradient_clip": bound} for bound in (1.0, 0.5, 5.0)),
        {"weight_decay": 0.01},
    ]
    for changes in (*alternatives(seen.training), *others):
        # Some settings exclude each other: Adam has no momentum, and rates fit one number of steps.
        with suppress(ConfigError):
            yield described(changes), replace(seen, training=replace(seen.training, **changes))
