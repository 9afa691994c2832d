"""The same step in PyTorch: eager mode, autograd with create_graph through all local steps."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from benchmarks.work import Work


def make_step(work: Work) -> Callable[[], float]:
    torch.set_num_threads(2)
    weights = [
        [torch.tensor(_to_torch(work.weights[name]["kernel"])), torch.tensor(work.weights[name]["bias"])]
        for name in work.layer_names
    ]
    target = [
        [torch.tensor(_to_torch(work.gradient_sum[name]["kernel"])), torch.tensor(work.gradient_sum[name]["bias"])]
        for name in work.layer_names
    ]
    # PyTorch flattens images channel first, JAX height first. Permuting the rows of the dense layer makes the results
    # equal; the amount of work is the same.
    side = work.image_shape[0] // 4
    channels = weights[1][1].numel()
    order = torch.arange(side * side * channels).reshape(side, side, channels).permute(2, 0, 1).reshape(-1)
    for tree in (weights, target):
        tree[2][0] = tree[2][0][:, order].contiguous()
    for layer in weights:
        for leaf in layer:
            leaf.requires_grad_()
    images = torch.tensor(work.images.transpose(0, 1, 4, 2, 3)).contiguous().requires_grad_()  # [E, N, C, H, W]
    labels = torch.tensor(work.labels.astype(np.int64))
    optimizer = torch.optim.Adam([images], lr=0.4)
    mean, std = (torch.tensor(v).reshape(1, 1, -1, 1, 1) for v in (work.mean, work.std))

    def network(layers: list[list[torch.Tensor]], x: torch.Tensor) -> torch.Tensor:
        (k1, b1), (k2, b2), (k3, b3), (k4, b4) = layers
        x = F.avg_pool2d(F.relu(F.conv2d(x, k1, b1, padding=1)), 2)
        x = F.avg_pool2d(F.relu(F.conv2d(x, k2, b2, padding=1)), 2)
        return F.linear(F.relu(F.linear(x.flatten(1), k3, b3)), k4, b4)

    def step() -> float:
        layers = weights
        for epoch in range(work.epochs):
            for start in range(0, work.num_images, work.batch_size):
                batch = slice(start, start + work.batch_size)
                loss = F.cross_entropy(network(layers, images[epoch, batch]), labels[batch])
                flat = [leaf for layer in layers for leaf in layer]
                gradient = torch.autograd.grad(loss, flat, create_graph=True)
                moved = [leaf - work.rate * g for leaf, g in zip(flat, gradient, strict=True)]
                layers = [moved[i : i + 2] for i in range(0, len(moved), 2)]
        distance = torch.zeros(())
        for index, (start_layer, end_layer, seen) in enumerate(zip(weights, layers, target, strict=True)):
            for before, after, observed in zip(start_layer, end_layer, seen, strict=True):
                difference = observed - (before - after) / work.rate
                distance = distance + math.exp(-index) * difference.square().sum()
        pixels = images * std + mean
        smooth = (images - images.roll(1, -1)).square().sum() + (images - images.roll(1, -2)).square().sum()
        number = work.epochs * work.num_images
        total = (
            distance / (work.epochs * work.num_images / work.batch_size)
            + 1000 * 2 * images.mean(1).var(0, unbiased=False).mean()
            + 0.001 * smooth / number
            + 2 * (pixels - pixels.clamp(0, 1)).square().sum() / number
        )
        optimizer.zero_grad()
        total.backward(inputs=[images])
        optimizer.step()
        return float(total.detach())

    return step


def _to_torch(kernel: np.ndarray) -> np.ndarray:
    """[k, k, C, F] to [F, C, k, k], [i, o] to [o, i]."""
    return np.ascontiguousarray(kernel.transpose(3, 2, 0, 1) if kernel.ndim == 4 else kernel.T)
