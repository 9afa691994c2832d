"""Makes the exported networks and the numbers beside this file, with torch 2.13: python tests/files/torch/make.py

For every network: a ``.pt2`` as `torch.export.save` writes it, and an ``.npz`` with images, labels, and what torch
computes of them in float64: logits, the gradient of the mean cross-entropy by every parameter, the derivative by the
images of the sum of its squares, and the new running statistics.
"""

from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

HERE = Path(__file__).parent


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 5, padding=2), nn.Conv2d(4, 6, 3)
        self.fc1, self.fc2 = nn.Linear(6 * 3 * 2, 12), nn.Linear(12, 5)

    def forward(self, x):
        x = functional.avg_pool2d(torch.sigmoid(self.conv1(x)), 2)
        x = functional.avg_pool2d(torch.tanh(self.conv2(x)), 2)
        return self.fc2(functional.relu(self.fc1(torch.flatten(x, 1))))


class MaxPooled(nn.Module):
    """As in torch's own MNIST example: max pooling, dropout, a log_softmax at the end; and many operators more."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.depthwise = nn.Conv2d(8, 8, 3, padding="same", groups=8, bias=False)
        self.grouped = nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=2)
        self.norm = nn.LayerNorm(16)
        self.drop = nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(16 * 2 * 2, 10), nn.Linear(10, 5)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 8).reshape(8, 1, 1))

    def forward(self, x):
        x = functional.max_pool2d(functional.gelu(self.conv1(x)), 3, stride=2, padding=1)
        y = functional.hardswish(self.depthwise(x)) * self.scale + functional.silu(self.grouped(x))
        x = torch.cat([x, functional.leaky_relu(y, 0.1)], dim=1)
        x = self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        x = functional.adaptive_avg_pool2d(functional.max_pool2d(x, 2, ceil_mode=True), (2, 2))
        x = functional.elu(self.fc1(x.reshape(x.size(0), -1)))
        return functional.log_softmax(self.fc2(self.drop(x)), dim=1)


class Block(nn.Module):
    def __init__(self, norm, channels, filters, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, filters, 3, stride, 1, bias=False)
        self.norm1 = norm(filters)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(filters, filters, 3, 1, 1, bias=False)
        self.norm2 = norm(filters)
        self.shortcut = nn.Identity()
        if stride != 1:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, filters, 1, stride, bias=False), norm(filters))

    def forward(self, x):
        y = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        y += self.shortcut(x)
        return self.relu(y)


def resnet(norm):
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, 1, 1, bias=False),
        norm(4),
        nn.ReLU(inplace=True),
        Block(norm, 4, 4, 1),
        Block(norm, 4, 8, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    )


def group_norm(channels):
    return nn.GroupNorm(2, channels)


NETWORKS = {
    "lenet": (LeNet, (1, 16, 13), False),
    "lenet_decomposed": (LeNet, (1, 16, 13), False),
    "max_pooled": (MaxPooled, (3, 14, 11), True),
    "resnet_batch_norm": (lambda: resnet(nn.BatchNorm2d), (3, 10, 8), True),
    "resnet_batch_norm_eval": (lambda: resnet(nn.BatchNorm2d), (3, 10, 8), False),
    "resnet_group_norm": (lambda: resnet(group_norm), (3, 10, 8), True),
}


def export(name, network, shape):
    # A free batch size for some, a fixed one for others: both are common.
    free = ({0: torch.export.Dim("images")},) if name.startswith("resnet") else None
    program = torch.export.export(network, (torch.zeros(2, *shape),), dynamic_shapes=free)
    if name.endswith("decomposed"):
        program = program.run_decompositions()
    for node in program.graph.nodes:
        # Where the code stood: nothing that a reader needs, and most of the file.
        for kind in ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn"):
            node.meta.pop(kind, None)
    torch.export.save(program, HERE / f"{name}.pt2")


def numbers(network, shape):
    for part in network.modules():
        if isinstance(part, nn.Dropout):
            part.eval()
    network = network.double()
    images = torch.randn(3, *shape, dtype=torch.float64).float().double().requires_grad_()
    labels = torch.tensor([4, 0, 2])
    parameters = dict(network.named_parameters())
    logits = network(images)
    loss = functional.cross_entropy(logits, labels)
    gradient = torch.autograd.grad(loss, list(parameters.values()), create_graph=True)
    (second,) = torch.autograd.grad(sum((g**2).sum() for g in gradient), images)
    found = {"images": images, "labels": labels, "logits": logits, "second": second}
    found |= {f"gradient/{key}": g for key, g in zip(parameters, gradient, strict=True)}
    found |= {f"statistic/{key}": b for key, b in network.named_buffers() if "running" in key}
    kept = {key: value.detach().numpy() for key, value in found.items()}
    return {key: value.astype(np.float32) if value.dtype == np.float64 else value for key, value in kept.items()}


def main():
    for name, (build, shape, is_training) in NETWORKS.items():
        torch.manual_seed(0)
        network = build().train(is_training)
        for statistic, buffer in network.named_buffers():
            if "running" in statistic:
                buffer.uniform_(0.5, 1.5).sub_(1.0 if "mean" in statistic else 0.0)
        export(name, network, shape)
        if name.endswith("decomposed"):
            continue
        np.savez_compressed(HERE / f"{name}.npz", **numbers(network, shape))


if __name__ == "__main__":
    main()
