"""How often `wb.check` raises a false alarm, and how often it finds a mistake, on many clients of glyphs.

    python -m benchmarks.checks --clients 60 --seed 1

Networks, rates, epochs, batches and numbers of images are drawn; a quarter of the networks are trained for one or three
rounds first, and some have ten classes. Every client trains once as described, and once with a kind that is not given.
"""

import argparse
from collections import Counter
from dataclasses import replace

import jax
import numpy as np

import workbench as wb
from workbench.auditing import Finding

KINDS = {
    "momentum": {"momentum": 0.9},
    "Nesterov": {"momentum": 0.9, "nesterov": True},
    "cosine": {"rate_schedule": "cosine"},
    "label smoothing": {"label_smoothing": 0.1},
    "clipping": {"gradient_clip": 0.5},
    "Adam": {"optimizer": "adam"},
    "swapped": {},
    "rate x 10": {},
}
GLYPHS = wb.load_dataset("glyphs")


def digits(client: wb.ClientData, num_images: int) -> wb.ClientData:
    chosen = np.flatnonzero(client.labels < 10)[:num_images]
    return replace(
        client, images=client.images[chosen], labels=client.labels[chosen], class_names=client.class_names[:10]
    )


def trained(model: wb.models.Model, weights: wb.models.Weights, rounds: int) -> wb.models.Weights:
    config = wb.ClientConfig(epochs=5, batch_size=10, learning_rate=0.01)
    for number in range(rounds):
        clients = [GLYPHS.client(30 + 4 * number + place, num_images=50) for place in range(4)]
        if model.num_classes == 10:
            clients = [digits(client, 20) for client in clients]
        updates = [wb.client_update(model, weights, client, config) for client in clients]
        # Clients with different numbers of images are averaged alike.
        weights = wb.aggregate([replace(update, num_images=20) for update in updates]).client_weights
    return weights


def finding_of(model: wb.models.Model, observation: wb.Observation, probe: tuple | None) -> Finding:
    findings = wb.check(model, observation, probe=probe).findings
    return next(one for one in findings if one.name in ("bias", "optimizer"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    networks = [
        wb.models.mlp(widths=(32,)),
        wb.models.mlp(widths=(100,)),
        wb.models.mlp(widths=(64, 32)),
        wb.models.femnist_cnn(),
        wb.models.mlp(widths=(64,), num_classes=10),
    ]
    counts: Counter[tuple[str, str, str]] = Counter()
    for number in range(options.clients):
        model = networks[number % len(networks)]
        client = GLYPHS.client(int(rng.integers(25)), num_images=int(rng.choice([10, 20, 50])))
        if model.num_classes == 10:
            client = digits(GLYPHS.client(int(rng.integers(25)), num_images=200), int(rng.choice([5, 10, 20])))
        rounds = int(rng.choice([0, 0, 0, 1, 3]))
        weights = trained(model, model.init(number), rounds)
        settings = {
            "epochs": int(rng.choice([1, 2, 5, 10])),
            "batch_size": min(5, client.num_images),
            "learning_rate": float(
                rng.choice([0.001, 0.004] if model.chain[0].name == "Conv_0" else [0.002, 0.01, 0.03])
            ),
        }
        stand_ins = GLYPHS.client(26, num_images=50).images
        logits = np.asarray(model.apply(weights, jax.numpy.asarray(client.normalization.normalize(stand_ins))))
        kind = list(KINDS)[number % len(KINDS)]
        given = {name: value for name, value in KINDS[kind].items() if kind != "Adam"}
        cases = {"as described": wb.ClientConfig(**settings, **given), kind: wb.ClientConfig(**settings, **KINDS[kind])}
        for name, config in cases.items():
            seen = wb.client_update(model, weights, client, config, seed=number)
            if name == "swapped":
                seen = replace(seen, server_weights=seen.client_weights, client_weights=seen.server_weights)
            elif name == "rate x 10":
                seen = replace(seen, learning_rate=10 * seen.learning_rate)
            elif name != "as described":
                seen = replace(seen, training=wb.ClientConfig())
            # A probe belongs to the server's weights, which are others where they are swapped.
            for label, probe in (("alone", None), ("with a probe", None if name == "swapped" else (stand_ins, logits))):
                finding = finding_of(model, seen, probe)
                result = "no answer" if "no answer" in finding.sentence else "fits" if finding.is_ok else "alarm"
                counts[name, label, result] += 1
                if (name, result) == ("as described", "alarm"):
                    print(f"False alarm: {model.shapes}, {rounds} rounds, {seen}: {finding}", flush=True)
    for name in ("as described", *KINDS):
        for label in ("alone", "with a probe"):
            found = {result: counts[name, label, result] for result in ("fits", "alarm", "no answer")}
            print(f"{name:16} {label:13} " + "  ".join(f"{result} {count:3}" for result, count in found.items()))


if __name__ == "__main__":
    main()
