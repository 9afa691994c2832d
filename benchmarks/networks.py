"""One optimisation step with networks that are not built in, in XLA and on the cores that this process has.

    python -m benchmarks networks

The paper's FEMNIST network, written by a user with the library's convolutions, beside the built-in one without its
compiled library; LeNet with max pooling; a small ResNet with GroupNorm; and, where torch is installed, these three in
PyTorch eager and imported from its export. LeNet also jitted, in Flax and in Equinox where these are installed; and a
network of grouped convolutions.
"""

from __future__ import annotations

import importlib.util
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

import workbench as wb
from workbench.attack import step as engine
from workbench.attack.prepare import prepare
from workbench.models import Model
from workbench.study.run.measure import available_cores
from workbench.training.convolutions import WithFastConvolutions

EPOCHS, BATCH_SIZE, NUM_IMAGES, RATE = 4, 5, 20, 0.004
BLOCKS = ((16, 1), (32, 2), (64, 2))  # filters and stride


def convolve(x: Array, kernel: Array, stride: int = 1, groups: int = 1) -> Array:
    edges = [(kernel.shape[0] // 2,) * 2] * 2
    return lax.conv_general_dilated(
        x,
        kernel,
        (stride, stride),
        edges,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


def femnist_by_hand() -> Model:
    built_in = wb.models.femnist_cnn()

    def features(weights: Any, x: Array) -> Array:
        for layer in ("Conv_0", "Conv_1"):
            x = jax.nn.relu(convolve(x, weights[layer]["kernel"]) + weights[layer]["bias"])
            x = lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4
        return jax.nn.relu(x.reshape(len(x), -1) @ weights["Dense_0"]["kernel"] + weights["Dense_0"]["bias"])

    def apply(weights: Any, x: Array) -> Array:
        return features(weights, x) @ weights["last_layer"]["kernel"] + weights["last_layer"]["bias"]

    return Model("femnist by hand", (28, 28, 1), 62, built_in.layer_names, built_in.init, apply, features)


def lenet_by_hand() -> Model:
    sizes = {"conv1": (5, 5, 1, 6), "conv2": (5, 5, 6, 16), "fc1": (784, 120), "fc2": (120, 84), "last": (84, 62)}

    def init(seed: int = 0) -> Any:
        rng = np.random.default_rng(seed)
        return {
            name: {
                "kernel": jnp.asarray(rng.normal(size=size) / np.sqrt(np.prod(size[:-1])), jnp.float32),
                "bias": jnp.zeros(size[-1]),
            }
            for name, size in sizes.items()
        }

    def features(weights: Any, x: Array) -> Array:
        for layer in ("conv1", "conv2"):
            x = jax.nn.relu(convolve(x, weights[layer]["kernel"]) + weights[layer]["bias"])
            x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = x.reshape(len(x), -1)
        for layer in ("fc1", "fc2"):
            x = jax.nn.relu(x @ weights[layer]["kernel"] + weights[layer]["bias"])
        return x

    def apply(weights: Any, x: Array) -> Array:
        return features(weights, x) @ weights["last"]["kernel"] + weights["last"]["bias"]

    return Model("lenet by hand", (28, 28, 1), 62, tuple(sizes), init, apply, features)


def lenet_in_flax() -> Model:
    from flax import linen as nn

    class LeNet(nn.Module):
        def setup(self) -> None:
            self.conv1, self.conv2 = nn.Conv(6, (5, 5)), nn.Conv(16, (5, 5))
            self.fc1, self.fc2, self.last = nn.Dense(120), nn.Dense(84), nn.Dense(62)

        def features(self, x: Array) -> Array:
            for layer in (self.conv1, self.conv2):
                x = nn.max_pool(nn.relu(layer(x)), (2, 2), (2, 2))
            x = x.reshape(len(x), -1)
            return nn.relu(self.fc2(nn.relu(self.fc1(x))))

        def __call__(self, x: Array) -> Array:
            return self.last(self.features(x))

    network = LeNet()

    def init(seed: int = 0) -> Any:
        return network.init(jax.random.key(seed), jnp.zeros((1, 28, 28, 1)))["params"]

    def apply(weights: Any, x: Array) -> Array:
        return network.apply({"params": weights}, x)

    def features(weights: Any, x: Array) -> Array:
        return network.apply({"params": weights}, x, method="features")

    return Model("lenet in flax", (28, 28, 1), 62, ("conv1", "conv2", "fc1", "fc2", "last"), init, apply, features)


def lenet_in_equinox() -> Model:
    import equinox as eqx

    class LeNet(eqx.Module):
        layers: dict[str, Any]

        def __init__(self, key: Array) -> None:
            keys = iter(jax.random.split(key, 5))
            convs = {"conv1": (1, 6), "conv2": (6, 16)}
            dense = {"fc1": (784, 120), "fc2": (120, 84), "last": (84, 62)}
            self.layers = {name: eqx.nn.Conv2d(*c, 5, padding=2, key=next(keys)) for name, c in convs.items()}
            self.layers |= {name: eqx.nn.Linear(*widths, key=next(keys)) for name, widths in dense.items()}

        def features(self, image: Array) -> Array:
            pool = eqx.nn.MaxPool2d(2, 2)
            for name in ("conv1", "conv2"):
                image = pool(jax.nn.relu(self.layers[name](image)))
            flat = image.reshape(-1)
            return jax.nn.relu(self.layers["fc2"](jax.nn.relu(self.layers["fc1"](flat))))

    def init(seed: int = 0) -> Any:
        layers = LeNet(jax.random.key(seed)).layers
        weights = {name: {"kernel": layer.weight, "bias": layer.bias} for name, layer in layers.items()}
        return weights | {"last": {"kernel": layers["last"].weight.T, "bias": layers["last"].bias}}

    def features(weights: Any, x: Array) -> Array:
        names = [name for name in weights if name != "last"]
        values = [weights[name][key] for name in names for key in ("kernel", "bias")]
        empty = LeNet(jax.random.key(0))
        of = lambda net: [array for name in names for array in (net.layers[name].weight, net.layers[name].bias)]  # noqa: E731
        return jax.vmap(eqx.tree_at(of, empty, values).features)(x.transpose(0, 3, 1, 2))

    def apply(weights: Any, x: Array) -> Array:
        return features(weights, x) @ weights["last"]["kernel"] + weights["last"]["bias"]

    return Model("lenet in equinox", (28, 28, 1), 62, tuple(init()), init, apply, features)


def jitted(model: Model) -> Model:
    """The same network from functions that its author jitted."""
    functions = {name: jax.jit(getattr(model, name).function) for name in ("apply", "features")}
    return replace(model, name=f"{model.name}, jitted", **functions)


def grouped_by_hand() -> Model:
    """Convolutions in 4 groups, and a stride."""
    sizes = {"conv1": (3, 3, 1, 16), "conv2": (3, 3, 4, 32), "conv3": (3, 3, 8, 64), "last": (64, 62)}

    def init(seed: int = 0) -> Any:
        rng = np.random.default_rng(seed)
        return {
            name: {"kernel": jnp.asarray(rng.normal(size=size) / np.sqrt(np.prod(size[:-1])), jnp.float32)}
            for name, size in sizes.items()
        }

    def features(weights: Any, x: Array) -> Array:
        for layer, stride, groups in (("conv1", 1, 1), ("conv2", 2, 4), ("conv3", 2, 4)):
            x = jax.nn.relu(convolve(x, weights[layer]["kernel"], stride, groups))
        return x.mean((1, 2))

    def apply(weights: Any, x: Array) -> Array:
        return features(weights, x) @ weights["last"]["kernel"]

    return Model("grouped by hand", (28, 28, 1), 62, tuple(sizes), init, apply, features)


def group_norm(x: Array, weights: dict[str, Array]) -> Array:
    y = x.reshape(*x.shape[:3], 4, -1)
    y = (y - y.mean((1, 2, 4), keepdims=True)) * lax.rsqrt(y.var((1, 2, 4), keepdims=True) + 1e-5)
    return y.reshape(x.shape) * weights["scale"] + weights["bias"]


def resnet_by_hand() -> Model:
    def init(seed: int = 0) -> Any:
        rng = np.random.default_rng(seed)
        kernel = lambda *s: {"kernel": jnp.asarray(rng.normal(size=s) / np.sqrt(np.prod(s[:-1])), jnp.float32)}  # noqa: E731
        norm = lambda c: {"scale": jnp.ones(c), "bias": jnp.zeros(c)}  # noqa: E731
        weights, channels = {"stem": kernel(3, 3, 1, 16), "norm": norm(16)}, 16
        for i, (filters, stride) in enumerate(BLOCKS):
            weights |= {f"conv{i}a": kernel(3, 3, channels, filters), f"norm{i}a": norm(filters)}
            weights |= {f"conv{i}b": kernel(3, 3, filters, filters), f"norm{i}b": norm(filters)}
            if stride > 1:
                weights[f"shortcut{i}"] = kernel(1, 1, channels, filters)
            channels = filters
        return weights | {"last": kernel(channels, 62) | {"bias": jnp.zeros(62)}}

    def features(weights: Any, x: Array) -> Array:
        x = jax.nn.relu(group_norm(convolve(x, weights["stem"]["kernel"]), weights["norm"]))
        for i, (_, stride) in enumerate(BLOCKS):
            y = jax.nn.relu(group_norm(convolve(x, weights[f"conv{i}a"]["kernel"], stride), weights[f"norm{i}a"]))
            y = group_norm(convolve(y, weights[f"conv{i}b"]["kernel"]), weights[f"norm{i}b"])
            x = jax.nn.relu(y + (convolve(x, weights[f"shortcut{i}"]["kernel"], stride) if stride > 1 else x))
        return x.mean((1, 2))

    def apply(weights: Any, x: Array) -> Array:
        return features(weights, x) @ weights["last"]["kernel"] + weights["last"]["bias"]

    return Model("resnet by hand", (28, 28, 1), 62, tuple(init()), init, apply, features)


def seconds(step: Callable[[], Any], repeats: int = 5) -> float:
    """The best time of a step, after a first one that compiles."""
    step()
    taken = []
    for _ in range(repeats):
        started = time.perf_counter()
        step()
        taken.append(time.perf_counter() - started)
    return min(taken)


def of_model(model: Model) -> float:
    client = wb.load_dataset("glyphs").client(0, NUM_IMAGES)
    observation = wb.client_update(model, model.init(), client, wb.ClientConfig(EPOCHS, BATCH_SIZE, RATE))
    attack = prepare(model, observation, wb.AttackConfig(), label_counts=client.label_counts)
    phase, carried = attack.phases[-1], [attack.start()]
    steering = jax.tree.map(np.float32, attack.steering)

    def step() -> None:
        carried[0], _ = engine.step(phase.objective, attack.optimizer, phase.problem, carried[0], steering)
        jax.block_until_ready(carried[0])

    return seconds(step)


def unreplaced(model: Model) -> Model:
    """The same network with the library's gradients."""
    copy = object.__new__(Model)
    for name, value in vars(model).items():
        object.__setattr__(copy, name, value.function if isinstance(value, WithFastConvolutions) else value)
    return copy


def torch_networks() -> dict[str, Any]:
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self, channels: int, filters: int, stride: int) -> None:
            super().__init__()
            self.first = nn.Conv2d(channels, filters, 3, stride, 1, bias=False)
            self.second = nn.Conv2d(filters, filters, 3, 1, 1, bias=False)
            self.norms = nn.ModuleList([nn.GroupNorm(4, filters) for _ in range(2)])
            self.shortcut = nn.Conv2d(channels, filters, 1, stride, bias=False) if stride > 1 else nn.Identity()

        def forward(self, x: Any) -> Any:
            y = functional.relu(self.norms[0](self.first(x)))
            return functional.relu(self.norms[1](self.second(y)) + self.shortcut(x))

    channels = [16, *(filters for filters, _ in BLOCKS)]
    blocks = [Block(channels[i], *block) for i, block in enumerate(BLOCKS)]
    return {
        "FEMNIST network": nn.Sequential(
            *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)),
            *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)),
            *(nn.Flatten(), nn.Linear(3136, 100), nn.ReLU(), nn.Linear(100, 62)),
        ),
        "LeNet": nn.Sequential(
            *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(6, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(784, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 62)),
        ),
        "ResNet with GroupNorm": nn.Sequential(
            *(nn.Conv2d(1, 16, 3, 1, 1, bias=False), nn.GroupNorm(4, 16), nn.ReLU(), *blocks),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 62)),
        ),
    }


def imported(network: Any) -> Model:
    import torch

    free = ({0: torch.export.Dim("images")},)
    program = torch.export.export(network, (torch.zeros(2, 1, 28, 28),), dynamic_shapes=free)
    with tempfile.TemporaryDirectory() as folder:
        torch.export.save(program, Path(folder) / "network.pt2")
        return wb.models.from_torch_export(Path(folder) / "network.pt2")


def of_torch(network: Any) -> float:
    """The gradient of the update distance by the images, through all local steps."""
    import torch
    from torch.nn import functional

    torch.set_num_threads(len(available_cores()))
    start = {name: p.detach().requires_grad_() for name, p in network.named_parameters()}
    images = torch.randn(EPOCHS, NUM_IMAGES, 1, 28, 28, requires_grad=True)
    labels = torch.arange(NUM_IMAGES)

    def step() -> None:
        weights = start
        for epoch in range(EPOCHS):
            for first in range(0, NUM_IMAGES, BATCH_SIZE):
                batch = slice(first, first + BATCH_SIZE)
                logits = torch.func.functional_call(network, weights, (images[epoch, batch],))
                loss = functional.cross_entropy(logits, labels[batch])
                gradient = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
                weights = {n: w - RATE * g for (n, w), g in zip(weights.items(), gradient, strict=True)}
        distance = sum(((start[name] - weights[name]) / RATE).square().sum() for name in start)
        images.grad = None
        distance.backward(inputs=[images])

    return seconds(step)


def main() -> None:
    print(f"One step, {EPOCHS} epochs of {NUM_IMAGES // BATCH_SIZE} batches of {BATCH_SIZE}, seconds")
    built_in = of_model(wb.models.femnist_cnn())
    networks = torch_networks() if importlib.util.find_spec("torch") else {}
    by_hand = {
        "FEMNIST network": femnist_by_hand(),
        "LeNet": lenet_by_hand(),
        "ResNet with GroupNorm": resnet_by_hand(),
        "grouped convolutions": grouped_by_hand(),
        "LeNet, jitted": jitted(lenet_by_hand()),
    }
    for library, build in (("flax", lenet_in_flax), ("equinox", lenet_in_equinox)):
        if importlib.util.find_spec(library):
            by_hand[f"LeNet in {library.capitalize()}"] = build()
        else:
            print(f"  {library.capitalize()} is not installed: pip install {library}")
    for name, model in by_hand.items():
        own, slow = of_model(model), of_model(unreplaced(model))
        line = f"  {name}: by hand {own:.3f}, with the library's gradients {slow:.3f} ({slow / own:.1f} x slower)"
        if name == "FEMNIST network":
            line += f", built in {built_in:.3f} (by hand {own / built_in:.2f} x)"
        if name in networks:
            read, eager = of_model(imported(networks[name])), of_torch(networks[name])
            line += f", imported {read:.3f}, PyTorch {eager:.3f} ({eager / own:.2f} and {eager / read:.2f} x slower)"
        print(line, flush=True)
    if not networks:
        print("  PyTorch is not installed: pip install -e '.[bench]' -c constraints.txt")


if __name__ == "__main__":
    main()
