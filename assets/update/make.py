"""Makes the files beside it with torch 2.13, as a client elsewhere would (python assets/update/make.py).

Coloured shapes of two clients; a network with strides and GELU, exported; its weights before and after the first
client's training on eight of its shapes, by SGD with momentum; and the round as the recorder for Flower writes it.
"""

import io
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from safetensors.numpy import load_file
from safetensors.torch import save_file
from torch import nn

from workbench.auditing.flower import record

HERE = Path(__file__).parent


def shape(kind, place, size, colour):
    """One drawing of 16 by 16 pixels."""
    y, x = np.mgrid[:16, :16] - np.array(place)[:, None, None]
    far, near = np.maximum(abs(x), abs(y)), np.minimum(abs(x), abs(y))
    masks = (x**2 + y**2 <= size**2, far <= size, near <= 1, abs(x - y) <= 1, abs(far - size) <= 1, y > 0)
    return np.where(masks[kind][..., None], colour, 0.95)


class Network(nn.Module):
    """Not one of the paper's."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 12, 4, stride=2, padding=1)
        self.hidden, self.last = nn.Linear(12 * 8 * 8, 32), nn.Linear(32, 6)

    def forward(self, x):
        x = nn.functional.gelu(self.conv(x))
        return self.last(nn.functional.relu(self.hidden(x.flatten(1))))


def main():
    """Export, train, save."""
    rng = np.random.default_rng(4)
    labels = np.arange(24) % 6
    images = [shape(kind, rng.integers(5, 11, 2), rng.integers(3, 6), rng.uniform(0, 0.8, 3)) for kind in labels]
    arrays = {"images": np.float32(images), "labels": labels, "clients": np.arange(24) // 12}
    np.savez_compressed(HERE / "images.npz", **arrays)
    x = torch.tensor(np.float32(images[:8]).transpose(0, 3, 1, 2) * 2 - 1)
    y = torch.tensor(labels[:8])
    torch.manual_seed(0)
    network = Network()
    free = ({0: torch.export.Dim("images")},)
    program = torch.export.export(network, (x,), dynamic_shapes=free)
    for node in program.graph.nodes:
        for kind in ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn"):
            node.meta.pop(kind, None)
    torch.export.save(program, HERE / "network.pt2")
    save_file(network.state_dict(), HERE / "before.safetensors")
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    for _ in range(3):
        for batch in torch.randperm(8).split(4):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x[batch]), y[batch]).backward()
            optimizer.step()
    save_file(network.state_dict(), HERE / "after.safetensors")
    record_round()


class Strategy:
    """A round with one client, by the methods of Flower's message interface; flwr is not needed."""

    def configure_train(self, server_round, arrays, config, grid):
        return [message(arrays, "config_records", config, dst_node_id=7461059283)]

    def aggregate_train(self, server_round, replies):
        pass


def message(arrays, kind, values, **metadata):
    """A message as far as the recorder reads it."""
    data = {}
    for name, array in arrays.items():
        np.save(buffer := io.BytesIO(), array)
        data[name] = SimpleNamespace(data=buffer.getvalue())
    content = SimpleNamespace(array_records={"arrays": data}, **{kind: {"values": values}})
    return SimpleNamespace(metadata=SimpleNamespace(**metadata), content=content, has_error=lambda: False)


def record_round():
    """Write ``round.audit``."""
    before, after = (load_file(HERE / f"{name}.safetensors") for name in ("before", "after"))
    strategy = record(Strategy(), HERE / "round.audit", server_round=3)
    training = {"epochs": 3, "batch_size": 4, "lr": 0.01, "momentum": 0.9}
    strategy.configure_train(server_round=3, arrays=before, config=training, grid=None)
    reply = message(after, "metric_records", {"num-examples": 8}, src_node_id=7461059283)
    strategy.aggregate_train(server_round=3, replies=[reply])


if __name__ == "__main__":
    main()
