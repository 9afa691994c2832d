"""Quality of the attack on real clients, written as one JSON line per attack: run again, it does only what is missing.

python -m benchmarks.quality --data "$FEMNIST" --preset paper --clients 0-4 --out assets/results/engine_femnist.jsonl
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

import workbench as wb
from workbench.attack.attack import prepare
from workbench.config import AttackConfig
from workbench.metrics import label_errors, score


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="the .npz or folder of the data set")
    parser.add_argument("--dataset", default="femnist", choices=["femnist", "cifar100"])
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--clients", default="0-4", help="e.g. 0-4 or 10,12")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=5)
    parser.add_argument("--num-images", type=int, default=50)
    parser.add_argument("--recover-labels", action="store_true", help="end to end: label counts are not given")
    parser.add_argument("--seed", type=int, default=0, help="of the network, the client's batches and the attack")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="changes to the preset, JSON values")
    parser.add_argument("--score-every", type=int, default=25)
    parser.add_argument("--keep", help="a folder for every attack's images, to study them")
    parser.add_argument("--out", required=True)
    return parser.parse_args()


def numbers(text: str) -> list[int]:
    ranges = [part.split("-") for part in text.split(",")]
    return [n for first, *rest in ranges for n in range(int(first), int(rest[0] if rest else first) + 1)]


def main() -> None:
    options = parse()
    changes = {name: _value(text) for name, text in (item.split("=", 1) for item in options.set)}
    config = AttackConfig.preset(options.preset, options.dataset, **changes)
    dataset = wb.load_dataset(options.dataset, path=options.data)
    model = wb.models.build(f"{options.dataset}_cnn")
    out = Path(options.out)
    done = {json.dumps(json.loads(line)["setting"], sort_keys=True) for line in _lines(out)}
    for client in numbers(options.clients):
        setting = {
            "dataset": options.dataset,
            "preset": options.preset,
            "changes": changes,
            "client": client,
            "epochs": options.epochs,
            "batch_size": options.batch_size,
            "num_images": options.num_images,
            "labels": "recovered" if options.recover_labels else "known",
            "seed": options.seed,
            "config": dataclasses.asdict(config),
        }
        setting = json.loads(json.dumps(setting))
        if json.dumps(setting, sort_keys=True) in done:
            continue
        row = measure(model, dataset, config, options, client)
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("a") as file:
            file.write(json.dumps({"setting": setting, **row}) + "\n")
        last = row["curve"][-1]
        print(
            f"client {client}: PSNR {last['psnr']:.2f} dB, {last['recovered_percent']:.0f} % recovered, "
            f"{row['label_errors']:.0f} label errors, {last['seconds']:.0f} s",
            flush=True,
        )
    summarize(out, options, config, changes)


def measure(
    model: wb.models.Model, dataset: wb.Dataset, config: AttackConfig, options: argparse.Namespace, client: int
) -> dict[str, Any]:
    truth = dataset.client(client, options.num_images)
    observation = wb.client_update(
        model,
        model.init(options.seed),
        truth,
        wb.ClientConfig(epochs=options.epochs, batch_size=options.batch_size),
        seed=options.seed,
    )
    known = None if options.recover_labels else truth.label_counts
    attack = prepare(model, observation, config, seed=options.seed, label_counts=known)
    state, seconds, curve = attack.start(), 0.0, []
    result = attack.reconstruct(state)
    while int(state.step) < attack.total_steps:
        started = time.perf_counter()
        state, infos = attack.advance(state, attack.steering, options.score_every)
        seconds += time.perf_counter() - started
        result = attack.reconstruct(state)
        quality = score(result, truth)
        curve.append(
            {
                "step": int(state.step),
                "seconds": round(seconds, 2),
                "psnr": round(float(quality.psnr.mean()), 3),
                "recovered_percent": quality.recovered_percent,
                "loss": float(infos.loss[-1]),
            }
        )
    if options.keep:
        Path(options.keep).mkdir(parents=True, exist_ok=True)
        np.savez_compressed(
            Path(options.keep) / f"{options.preset}_{options.epochs}x{options.batch_size}_client{client}.npz",
            epochs=result.epochs.astype(np.float16),
            permutations=result.permutations,
            images=result.images.astype(np.float16),
            labels=result.labels,
            order=quality.order,
            psnr=quality.psnr,
        )
    return {
        "label_errors": label_errors(truth.label_counts, attack.label_counts[0]),
        "psnr": [round(float(p), 3) for p in quality.psnr],
        "ssim": [round(float(s), 4) for s in quality.ssim],
        "curve": curve,
    }


def summarize(out: Path, options: argparse.Namespace, config: AttackConfig, changes: dict[str, Any]) -> None:
    """The mean over the clients asked for, with its standard error."""
    wanted = {
        "preset": options.preset,
        "changes": json.loads(json.dumps(changes)),
        "config": json.loads(json.dumps(dataclasses.asdict(config))),
        "epochs": options.epochs,
        "batch_size": options.batch_size,
        "labels": "recovered" if options.recover_labels else "known",
        "seed": options.seed,
    }
    rows = [
        row
        for row in map(json.loads, _lines(out))
        if all(row["setting"][k] == v for k, v in wanted.items())
        and row["setting"]["client"] in numbers(options.clients)
    ]
    psnr = np.array([row["curve"][-1]["psnr"] for row in rows])
    recovered = np.array([row["curve"][-1]["recovered_percent"] for row in rows])
    error = np.sqrt(max(len(rows), 1))
    print(
        f"{len(rows)} clients: PSNR {psnr.mean():.2f} +- {psnr.std(ddof=min(1, len(rows) - 1)) / error:.2f} dB, "
        f"recovered {recovered.mean():.1f} +- {recovered.std(ddof=min(1, len(rows) - 1)) / error:.1f} %"
    )


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


if __name__ == "__main__":
    main()
