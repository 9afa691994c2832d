"""Built-in networks: the paper's two networks, as used and as printed, and an MLP; and networks that torch exported.

The networks that produced the paper's numbers differ from the table in its appendix: `femnist_cnn` and `cifar100_cnn`
are those that were used, `femnist_cnn_printed` and `cifar100_cnn_printed` those of the table.
"""

import inspect
import math
import os
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.special import ndtr, ndtri

from workbench.errors import ConfigError, DataError, check_choice, check_count, shown
from workbench.files.reading import reading
from workbench.files.torch_export import EXPECTED, read_torch_export
from workbench.randomness import named_generator
from workbench.training import chain
from workbench.training.chain import Layer
from workbench.training.model import Model, check_image_shape
from workbench.training.torch_graph import TorchGraph
from workbench.weights import Weights

__all__ = [
    "Model",
    "Weights",
    "build",
    "cifar100_cnn",
    "cifar100_cnn_printed",
    "femnist_cnn",
    "femnist_cnn_printed",
    "from_torch_export",
    "mlp",
]

_LARGEST_IMAGE = 2**24  # numbers; a file may claim any size


def _initial_weights(layers: tuple[Layer, ...], seed: int = 0) -> Weights:
    """LeCun normal kernels and zero biases, drawn on the host to avoid a compilation."""
    seed = check_count("seed", seed, minimum=0)
    return {
        layer.name: {
            "kernel": _lecun_normal(named_generator(seed, f"weights/{layer.name}"), layer.kernel_shape),
            "bias": jnp.zeros(layer.kernel_shape[-1], jnp.float32),
        }
        for layer in layers
    }


def _lecun_normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """A normal distribution truncated at two standard deviations, scaled to variance 1 / fan-in."""
    inside = ndtr(2) - ndtr(-2)
    draws = ndtri(rng.uniform(ndtr(-2), ndtr(2), shape))
    variance = 1 - 4 * math.exp(-2) / (math.sqrt(2 * math.pi) * inside)
    return jnp.asarray(draws / math.sqrt(variance * math.prod(shape[:-1])), jnp.float32)


# Cached, because JAX compiles anew for every network that is another object.
@lru_cache(maxsize=64)
def _from_chain(
    name: str, image_shape: tuple[int, int, int], layers: tuple[Layer, ...], options: tuple[tuple[str, Any], ...]
) -> Model:
    return Model(
        name=name,
        image_shape=image_shape,
        num_classes=layers[-1].kernel_shape[-1],
        layer_names=tuple(layer.name for layer in layers),
        init=partial(_initial_weights, layers),
        apply=partial(chain.logits, layers),
        features=partial(chain.features, layers),
        dense_inputs=partial(chain.dense_inputs, layers),
        chain=layers,
        options=options,
    )


def _cnn(
    name: str, image_shape: tuple[int, int, int], channels: int, second_kernel: int, hidden: int, num_classes: int
) -> Model:
    num_classes = check_count("num_classes", num_classes, minimum=2)
    height, width, input_channels = image_shape
    # With padding 1, a 3 x 3 kernel keeps the size and a 1 x 1 kernel adds a border of 1.
    grown = 3 - second_kernel
    flat = ((height // 2 + grown) // 2) * ((width // 2 + grown) // 2) * 2 * channels
    layers = (
        Layer("Conv_0", (3, 3, input_channels, channels), padding=1, pool=True),
        Layer("Conv_1", (second_kernel, second_kernel, channels, 2 * channels), padding=1, pool=True),
        Layer("Dense_0", (flat, hidden)),
        Layer("last_layer", (hidden, num_classes), relu=False),
    )
    return _from_chain(name, image_shape, layers, (("num_classes", num_classes),))


def femnist_cnn(num_classes: int = 62) -> Model:
    """The network of the paper's FEMNIST experiments, for 28 x 28 x 1 images.

    >>> femnist_cnn().shapes["Dense_0"]["kernel"]
    (3136, 100)
    """
    return _cnn("femnist_cnn", (28, 28, 1), 32, 3, 100, num_classes)


def cifar100_cnn(num_classes: int = 100) -> Model:
    """The network of the paper's CIFAR100 experiments, for 32 x 32 x 3 images."""
    return _cnn("cifar100_cnn", (32, 32, 3), 64, 3, 200, num_classes)


def femnist_cnn_printed(num_classes: int = 62) -> Model:
    """The FEMNIST network as the paper prints it (Table 5): 32 x 32 x 3 inputs, a 1 x 1 second convolution."""
    return _cnn("femnist_cnn_printed", (32, 32, 3), 32, 1, 100, num_classes)


def cifar100_cnn_printed(num_classes: int = 100) -> Model:
    """The CIFAR100 network as the paper prints it (Table 5): a 1 x 1 second convolution with padding 1."""
    return _cnn("cifar100_cnn_printed", (32, 32, 3), 64, 1, 200, num_classes)


def mlp(
    image_shape: tuple[int, int, int] = (28, 28, 1), widths: tuple[int, ...] = (100,), num_classes: int = 62
) -> Model:
    """A fully connected ReLU network with hidden layers of the given widths.

    >>> mlp(widths=(64, 32)).layer_names
    ('Dense_0', 'Dense_1', 'last_layer')
    """
    try:
        widths = tuple(check_count("widths", width) for width in widths)
    except TypeError:
        raise ConfigError(f"widths = {shown(widths)} must be a sequence with the width of each hidden layer.") from None
    image_shape = check_image_shape(image_shape)
    num_classes = check_count("num_classes", num_classes, minimum=2)
    names = [*(f"Dense_{i}" for i in range(len(widths))), "last_layer"]
    shapes = pairwise((math.prod(image_shape), *widths, num_classes))
    layers = tuple(Layer(name, shape, relu=name != "last_layer") for name, shape in zip(names, shapes, strict=True))
    options = (("image_shape", image_shape), ("num_classes", num_classes), ("widths", widths))
    return _from_chain("mlp", image_shape, layers, options)


_BUILDERS: dict[str, Callable[..., Model]] = {
    builder.__name__: builder for builder in (femnist_cnn, cifar100_cnn, femnist_cnn_printed, cifar100_cnn_printed, mlp)
}


def build(name: str, **options: Any) -> Model:
    """A built-in network by name.

    >>> build("femnist_cnn", num_classes=10).num_classes
    10
    """
    builder = _BUILDERS[check_choice("model", name, _BUILDERS)]
    known = inspect.signature(builder).parameters
    for option in options:
        check_choice(f"option of {name}", option, known)
    return builder(**options)


def from_torch_export(path: str | os.PathLike[str], image_shape: tuple[int, int, int] | None = None) -> Model:
    """A network that ``torch.export.save`` wrote to a ``.pt2`` file; torch is not needed, and nothing is unpickled.

    The weights have torch's names: ``conv1.weight`` is ``weights["conv1"]["weight"]``. Only the weight [o, i] of a
    linear layer is stored as ``kernel`` [i, o]. ``init`` returns the exported weights, whatever the seed: they are not
    the server's unless the server exported them. Dropout is simulated as off. Batch normalisation is simulated in the
    mode in which the network was exported, so call ``model.train()`` before `torch.export.export`.

    Args:
        path: the file.
        image_shape: (H, W, C) of one image; needed only where the export leaves the size of images free.
    """
    export = read_torch_export(path)
    with reading(Path(path), EXPECTED):
        graph = TorchGraph(export)
        shape = _exported_shape(export.image_sizes, image_shape)
        weights = jax.eval_shape(graph.init)
        # What is wrong with the graph becomes a sentence about the file, here rather than in the first attack.
        logits = jax.eval_shape(graph.logits, weights, np.zeros((2, *shape), np.float32))
        if len(logits.shape) != 2:
            raise DataError(f"returns {logits.shape} for 2 images; a classifier returns (2, number of classes).")
    return Model(
        name=export.name,
        image_shape=shape,
        num_classes=logits.shape[1],
        layer_names=graph.layer_names,
        init=graph.init,
        apply=graph.logits,
        features=graph.features,
        dense_inputs=graph.dense_inputs if graph.dense_layers else None,
        train=graph.train if graph.has_statistics else None,
        has_dropout=graph.has_dropout,
        state_names=graph.state_names,
    )


def _exported_shape(sizes: list[int | None], given: tuple[int, int, int] | None) -> tuple[int, int, int]:
    """(H, W, C) from an exported [M, C, H, W], where None is free."""
    if len(sizes) != 4:
        raise DataError(f"takes inputs with {len(sizes)} dimensions; expected images [M, C, H, W].")
    exported = (*sizes[2:], sizes[1])
    if given is None and None in exported:
        raise DataError(f"leaves the size of images free, {exported}: pass image_shape=(height, width, channels).")
    shape = check_image_shape(exported if given is None else given)
    if math.prod(shape) > _LARGEST_IMAGE:
        raise DataError(f"takes images of {shape}, more than {_LARGEST_IMAGE} numbers each.")
    if any(size not in (None, here) for size, here in zip(exported, shape, strict=True)):
        raise DataError(f"takes images of {exported}; image_shape = {shape} is another one.")
    return shape
