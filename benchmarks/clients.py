"""Label errors for every kind of client, and what a simulated step of each costs.

    python -m benchmarks.clients labels         errors of 50 labels, mean over 20 clients of glyphs
    python -m benchmarks.clients speed          processor time relative to plain SGD without the compiled library

Plain SGD is the first line of both. Adam is not in `labels`: its labels are refused. The last line of `labels` is plain
SGD on a network with batch normalisation, that of `speed` is plain SGD in the compiled library, which has no other.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import workbench as wb
from workbench.attack.labels import dummy_inputs, estimate_labels, network_statistics
from workbench.config import LABEL_FORMULAS
from workbench.models import Model
from workbench.training import native
from workbench.training.layers import Window, average_pool, batch_norm, convolution
from workbench.training.native import binding

CLIENTS: dict[str, dict[str, Any]] = {
    "plain SGD": {},
    "momentum 0.9": {"momentum": 0.9, "learning_rate": 0.001},
    "Nesterov 0.9": {"momentum": 0.9, "nesterov": True, "learning_rate": 0.001},
    "weight decay 0.01": {"weight_decay": 0.01},
    "cosine": {"rate_schedule": "cosine"},
    "step, half every epoch": {"rate_schedule": "step", "rate_unit": "epoch", "rate_decay": 0.5},
    "warm-up": {"warmup_steps": 10},
    "clipped at 1": {"gradient_clip": 1.0},
    "label smoothing 0.1": {"label_smoothing": 0.1},
    "drop last": {"drop_last": True, "batch_size": 8},
    "FedProx 0.1": {"proximal_weight": 0.1},
    # Repeated over all steps.
    "rates, every second half": {"rates": (0.004, 0.002)},
    "Adam": {"optimizer": "adam", "learning_rate": 0.001},
    "AdamW": {"optimizer": "adamw", "learning_rate": 0.001, "weight_decay": 0.01},
}


def config_of(settings: dict[str, Any], epochs: int, num_images: int) -> wb.ClientConfig:
    whole = {"epochs": epochs, "batch_size": 5, **settings}
    if "rates" in whole:
        whole["rates"] = tuple(np.resize(whole["rates"], epochs * num_images // 5).tolist())
    return wb.ClientConfig(**whole)


def normalised_cnn() -> Model:
    """The paper's FEMNIST network with batch normalisation after each convolution."""
    plain = wb.models.femnist_cnn()
    norms = {"Norm_0": 32, "Norm_1": 64}

    def init(seed: int = 0) -> Any:
        fresh = {"scale": jnp.ones, "bias": jnp.zeros, "mean": jnp.zeros, "variance": jnp.ones}
        return plain.init(seed) | {name: {key: of(width) for key, of in fresh.items()} for name, width in norms.items()}

    def dense(layer: dict[str, Array], x: Array) -> Array:
        return x @ layer["kernel"] + layer["bias"]

    def both(weights: Any, x: Array, mask: Array | None) -> tuple[Array, Any]:
        statistics = {}
        for i, name in enumerate(norms):
            layer, norm = weights[f"Conv_{i}"], weights[name]
            x = convolution(x, layer["kernel"], Window.padded(1)) + layer["bias"]
            if mask is None:
                x = (x - norm["mean"]) / jnp.sqrt(norm["variance"] + 1e-5) * norm["scale"] + norm["bias"]
            else:
                x, statistics[name] = batch_norm(x, mask, norm)
            x = average_pool(jax.nn.relu(x))
        return jax.nn.relu(dense(weights["Dense_0"], x.reshape(len(x), -1))), statistics

    def features(weights: Any, x: Array) -> Array:
        return both(weights, x, None)[0]

    def apply(weights: Any, x: Array) -> Array:
        return dense(weights["last_layer"], features(weights, x))

    def train(weights: Any, x: Array, mask: Array) -> tuple[Array, Any]:
        x, statistics = both(weights, x, mask)
        return dense(weights["last_layer"], x), statistics

    names = ("Conv_0", "Norm_0", "Conv_1", "Norm_1", "Dense_0", "last_layer")
    return Model("normalised_cnn", plain.image_shape, 62, names, init, apply, features, train=train)


def labels(num_clients: int, epochs: int, num_dummies: int) -> None:
    data, plain = wb.load_dataset("glyphs"), wb.models.femnist_cnn()
    print(
        f"Wrong labels of 50, mean over {num_clients} clients, {epochs} epochs: {', '.join(LABEL_FORMULAS)}", flush=True
    )
    kinds = [(name, plain, settings) for name, settings in CLIENTS.items() if not settings.get("optimizer")]
    for name, model, settings in [*kinds, ("batch normalisation", normalised_cnn(), {})]:
        inputs = dummy_inputs(model)[:num_dummies]
        at_server = network_statistics(model, model.init(), inputs)
        errors: dict[str, list[float]] = {method: [] for method in LABEL_FORMULAS}
        for index in range(num_clients):
            client = data.client(index, num_images=50)
            config = config_of(settings, epochs, 50)
            seen = wb.client_update(model, model.init(), client, config, seed=index)
            ends = at_server, network_statistics(model, seen.client_weights, inputs)
            for method, wrong in errors.items():
                found = estimate_labels(model, seen, method, statistics=ends).whole
                wrong.append(wb.label_errors(client.label_counts, found))
        print(f"  {name}: {', '.join(f'{np.mean(wrong):.1f}' for wrong in errors.values())}", flush=True)


def speed(repeats: int = 3) -> None:
    """The best of several steps in processor time, which other programs on the machine disturb least."""
    native.build()
    client, model = wb.load_dataset("glyphs").client(0, num_images=20), wb.models.femnist_cnn()
    plain = 0.0
    compiled = "plain SGD, compiled library"
    for name, settings in [*CLIENTS.items(), (compiled, {})]:
        os.environ["WORKBENCH_NATIVE"] = "1" if name == compiled else "0"
        binding._library.cache_clear()
        config = config_of(settings, 5, 20)
        seen = wb.client_update(model, model.init(), client, config)
        counts = client.label_counts
        session = wb.AttackSession(model, seen, wb.AttackConfig(method="shared", steps=10), label_counts=counts)
        session.step()
        best = float("inf")
        for _ in range(repeats):
            started = time.process_time()
            session.step()
            best = min(best, time.process_time() - started)
        plain = plain or best
        memory = session.memory_estimate / 1e6
        print(f"  {name}: {best:.3f} s, {best / plain:.2f} x plain SGD; {memory:.0f} MB", flush=True)
        jax.clear_caches()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", choices=("labels", "speed"))
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--dummies", type=int, default=3000)
    options = parser.parse_args()
    if options.what == "speed":
        speed()
    else:
        labels(options.clients, options.epochs, options.dummies)


if __name__ == "__main__":
    main()
