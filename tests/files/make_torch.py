"""Writes torch_updates.npz: what PyTorch's own optimisers and layers make of some weights.

    python tests/files/make_torch.py        (in an environment with torch 2.13)

The tests take the clients, networks, images and batches from this file, and compare without PyTorch.
"""

from pathlib import Path

import numpy as np

FILE = Path(__file__).with_name("torch_updates.npz")
IMAGE_SHAPE, NUM_CLASSES, RATE = (4, 4, 2), 3, 0.05
NUM_IMAGES, EPOCHS, BATCH_SIZE = 7, 2, 3

# Every kind of client, as settings of `LocalTraining`; they train the network "dense".
CLIENTS = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    "weight_decay": {"weight_decay": 0.3},
    "adam": {"optimizer": "adam"},
    "adam_decay": {"optimizer": "adam", "weight_decay": 0.1, "beta1": 0.8, "beta2": 0.9, "epsilon": 1e-4},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.5},
    "cosine": {"rate_schedule": "cosine"},
    "cosine_by_epoch": {"rate_schedule": "cosine", "rate_unit": "epoch"},
    "step": {"rate_schedule": "step", "rate_decay": 0.5, "rate_every": 2},
    "warmup": {"rate_schedule": "cosine", "warmup_steps": 3, "momentum": 0.5},
    "rates": {"rates": (0.1, 0.0, 0.02, 0.3, 0.05, 0.01)},
    "clip": {"gradient_clip": 0.2},
    "smoothing": {"label_smoothing": 0.2},
    "drop_last": {"drop_last": True, "momentum": 0.9},
    "fedprox": {"proximal_weight": 2.0, "gradient_clip": 1.0},
}

# The weights of every network: {layer: {array: shape}}, kernels as [height, width, in, out] or [in, out].
NETWORKS = {
    "dense": {"hidden": {"kernel": (32, 4), "bias": (4,)}, "last": {"kernel": (4, 3), "bias": (3,)}},
    "max_pool": {"conv": {"kernel": (3, 3, 2, 3), "bias": (3,)}, "last": {"kernel": (12, 3), "bias": (3,)}},
    "strides": {"conv": {"kernel": (3, 3, 2, 3), "bias": (3,)}, "last": {"kernel": (12, 3), "bias": (3,)}},
    "groups": {"conv": {"kernel": (3, 3, 1, 4), "bias": (4,)}, "last": {"kernel": (4, 3), "bias": (3,)}},
    "residual": {"conv": {"kernel": (3, 3, 2, 2), "bias": (2,)}, "last": {"kernel": (32, 3), "bias": (3,)}},
    "group_norm": {
        "conv": {"kernel": (3, 3, 2, 4), "bias": (4,)},
        "norm": {"scale": (4,), "bias": (4,)},
        "last": {"kernel": (4, 3), "bias": (3,)},
    },
    "layer_norm": {
        "hidden": {"kernel": (32, 4), "bias": (4,)},
        "norm": {"scale": (4,), "bias": (4,)},
        "last": {"kernel": (4, 3), "bias": (3,)},
    },
    "batch_norm": {
        "conv": {"kernel": (3, 3, 2, 3), "bias": (3,)},
        "norm": {"scale": (3,), "bias": (3,), "mean": (3,), "variance": (3,)},
        "last": {"kernel": (3, 3), "bias": (3,)},
    },
}

# Clients that train another network than "dense".
PAIRS = [("batch_norm", "fedprox")]


def make_weights(network):
    """The server's weights."""
    rng = np.random.default_rng(1)
    weights = {}
    for layer, arrays in NETWORKS[network].items():
        weights[layer] = {}
        for name, shape in arrays.items():
            drawn = rng.normal(size=shape).astype(np.float32)
            # A scale and a variance near 1, kernels whose outputs keep the size of their inputs.
            near_one = 1 + 0.1 * np.abs(drawn)
            weights[layer][name] = near_one if name in ("scale", "variance") else drawn * np.prod(shape[:-1]) ** -0.5
    return {layer: {name: np.float32(array) for name, array in arrays.items()} for layer, arrays in weights.items()}


def make_data():
    """Images [N, H, W, C], labels [N], and the order of every epoch [E, N]."""
    rng = np.random.default_rng(0)
    images = rng.normal(size=(NUM_IMAGES, *IMAGE_SHAPE)).astype(np.float32)
    order = np.stack([rng.permutation(NUM_IMAGES) for _ in range(EPOCHS)])
    return images, rng.integers(NUM_CLASSES, size=NUM_IMAGES), order


def main():
    import torch
    from torch import nn
    from torch.nn import functional as F  # noqa: N812 - its usual name

    def flat(x):  # in the order height, width, channels
        return x.permute(0, 2, 3, 1).flatten(1)

    class Network(nn.Module):
        def __init__(self, name):
            super().__init__()
            self.name, shapes = name, NETWORKS[name]
            if "conv" in shapes:
                _, _, channels, filters = shapes["conv"]["kernel"]
                stride = 2 if name == "strides" else 1
                self.conv = nn.Conv2d(2, filters, 3, stride=stride, padding=1, groups=2 // channels)
            else:
                self.hidden = nn.Linear(*shapes["hidden"]["kernel"])
            norms = {
                "group_norm": lambda: nn.GroupNorm(2, 4),
                "layer_norm": lambda: nn.LayerNorm(4),
                "batch_norm": lambda: nn.BatchNorm2d(3),
            }
            if name in norms:
                self.norm = norms[name]()
            self.last = nn.Linear(*shapes["last"]["kernel"])

        def forward(self, x):
            name = self.name
            if name in ("dense", "layer_norm"):
                x = self.hidden(flat(x))
                return self.last(F.relu(self.norm(x) if name == "layer_norm" else x))
            y = self.conv(x)
            y = F.relu(self.norm(y) if name in ("group_norm", "batch_norm") else y)
            if name == "residual":
                return self.last(flat(x + y))
            if name in ("max_pool", "strides"):
                return self.last(flat(F.max_pool2d(y, 2) if name == "max_pool" else y))
            return self.last(y.mean((2, 3)))

    torch_names = {"kernel": "weight", "scale": "weight", "mean": "running_mean", "variance": "running_var"}

    def arrays_of(network):
        for layer, arrays in NETWORKS[network.name].items():
            for name in arrays:
                yield layer, name, getattr(getattr(network, layer), torch_names.get(name, name))

    def load(network, weights):
        with torch.no_grad():
            for layer, name, tensor in arrays_of(network):
                array = torch.from_numpy(weights[layer][name])
                tensor.copy_(array.permute(3, 2, 0, 1) if array.ndim == 4 else array.T if array.ndim == 2 else array)

    def flattened(network):
        parts = []
        for _, _, tensor in arrays_of(network):
            array = tensor.detach()
            array = array.permute(2, 3, 1, 0) if array.ndim == 4 else array.T if array.ndim == 2 else array
            parts.append(array.reshape(-1).numpy())
        return np.concatenate(parts)

    def optimizer_of(parameters, client):
        decay = client.get("weight_decay", 0.0)
        if "optimizer" not in client:
            momentum, nesterov = client.get("momentum", 0.0), client.get("nesterov", False)
            return torch.optim.SGD(parameters, RATE, momentum=momentum, nesterov=nesterov, weight_decay=decay)
        kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[client["optimizer"]]
        betas = (client.get("beta1", 0.9), client.get("beta2", 0.999))
        return kind(parameters, RATE, betas=betas, eps=client.get("epsilon", 1e-8), weight_decay=decay)

    def schedule_of(optimizer, client, num_steps):
        from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR, StepLR

        kind, warmup = client.get("rate_schedule"), client.get("warmup_steps", 0)
        if kind == "cosine" and warmup:
            rise = LinearLR(optimizer, start_factor=1 / warmup, total_iters=warmup - 1)
            fall = CosineAnnealingLR(optimizer, num_steps - warmup)
            return SequentialLR(optimizer, [rise, fall], milestones=[warmup])
        if kind == "cosine":
            return CosineAnnealingLR(optimizer, EPOCHS if client.get("rate_unit") == "epoch" else num_steps)
        if kind == "step":
            return StepLR(optimizer, client["rate_every"], client["rate_decay"])
        return None

    def train(name, client):
        images, labels, order = make_data()
        inputs, targets = torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(labels)
        network = Network(name)
        load(network, make_weights(name))
        network.train()
        server = [parameter.detach().clone() for parameter in network.parameters()]
        used = NUM_IMAGES // BATCH_SIZE * BATCH_SIZE if client.get("drop_last") else NUM_IMAGES
        batches = [epoch[start : start + BATCH_SIZE] for epoch in order for start in range(0, used, BATCH_SIZE)]
        per_epoch = len(batches) // EPOCHS
        optimizer = optimizer_of(network.parameters(), client)
        schedule = schedule_of(optimizer, client, len(batches))
        for number, batch in enumerate(batches):
            if "rates" in client:
                optimizer.param_groups[0]["lr"] = client["rates"][number]
            optimizer.zero_grad()
            smoothing = client.get("label_smoothing", 0.0)
            loss = F.cross_entropy(network(inputs[batch]), targets[batch], label_smoothing=smoothing)
            for parameter, before in zip(network.parameters(), server, strict=True):
                loss = loss + client.get("proximal_weight", 0.0) / 2 * ((parameter - before) ** 2).sum()
            loss.backward()
            if "gradient_clip" in client:
                torch.nn.utils.clip_grad_norm_(network.parameters(), client["gradient_clip"])
            optimizer.step()
            if schedule is not None and (client.get("rate_unit") != "epoch" or (number + 1) % per_epoch == 0):
                schedule.step()
        return flattened(network)

    torch.set_num_threads(1)
    results = {f"client/{name}": train("dense", client) for name, client in CLIENTS.items()}
    results |= {f"network/{name}": train(name, {}) for name in NETWORKS}
    results |= {f"both/{name}/{client}": train(name, CLIENTS[client]) for name, client in PAIRS}
    np.savez_compressed(FILE, **results)


if __name__ == "__main__":
    main()
