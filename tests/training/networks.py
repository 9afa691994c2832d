"""The networks of tests/files/make_torch.py as custom networks, of plain JAX operations and our batch norm."""

import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import lax

from workbench.training.layers import batch_norm
from workbench.training.model import Model

MADE = runpy.run_path(str(Path(__file__).parents[1] / "files" / "make_torch.py"))


def rows(vector, like):
    return vector.reshape((1,) * (like.ndim - 1) + vector.shape)


def linear(x, layer):
    z = x.reshape(len(x), -1) @ layer["kernel"]
    return z + rows(layer["bias"], z)


def conv(x, layer, stride=1):
    groups = x.shape[-1] // layer["kernel"].shape[2]
    z = lax.conv_general_dilated(
        x,
        layer["kernel"],
        (stride, stride),
        ((1, 1), (1, 1)),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )
    return z + rows(layer["bias"], z)


def max_pool(x):
    m, h, w, c = x.shape
    return x.reshape(m, h // 2, 2, w // 2, 2, c).max((2, 4))


def normalized(x, axes):
    centred = x - x.mean(axes, keepdims=True)
    return centred / jnp.sqrt((centred**2).mean(axes, keepdims=True) + 1e-5)


def scaled(x, layer):
    return x * rows(layer["scale"], x) + rows(layer["bias"], x)


def group_norm(x, layer):
    m, h, w, c = x.shape
    return scaled(normalized(x.reshape(m, h, w, 2, c // 2), (1, 2, 4)).reshape(x.shape), layer)


def with_running_statistics(x, layer):
    root = jnp.sqrt(layer["variance"] + 1e-5)
    return scaled((x - rows(layer["mean"], x)) / rows(root, x), layer)


def features(name, weights, images, mask=None):
    """What enters the last layer, and the new running statistics where a mask says that the network is trained."""
    statistics = {}
    if name in ("dense", "layer_norm"):
        x = linear(images, weights["hidden"])
        if name == "layer_norm":
            x = scaled(normalized(x, (1,)), weights["norm"])
        return jax.nn.relu(x), statistics
    y = conv(images, weights["conv"], 2 if name == "strides" else 1)
    if name == "group_norm":
        y = group_norm(y, weights["norm"])
    elif name == "batch_norm" and mask is None:
        y = with_running_statistics(y, weights["norm"])
    elif name == "batch_norm":
        y, statistics["norm"] = batch_norm(y, mask, weights["norm"])
    y = jax.nn.relu(y)
    if name == "residual":
        return (images + y).reshape(len(y), -1), statistics
    if name in ("max_pool", "strides"):
        return (max_pool(y) if name == "max_pool" else y).reshape(len(y), -1), statistics
    return y.mean((1, 2)), statistics


def network(name, **changes):
    def train(weights, images, mask):
        found, statistics = features(name, weights, images, mask)
        return linear(found, weights["last"]), statistics

    options = {
        "name": name,
        "image_shape": MADE["IMAGE_SHAPE"],
        "num_classes": MADE["NUM_CLASSES"],
        "layer_names": tuple(MADE["NETWORKS"][name]),
        "init": lambda seed=0: jax.tree.map(jnp.asarray, MADE["make_weights"](name)),
        "features": lambda weights, images: features(name, weights, images)[0],
        "apply": lambda weights, images: linear(features(name, weights, images)[0], weights["last"]),
        "train": train if name == "batch_norm" else None,
    }
    return Model(**{**options, **changes})
