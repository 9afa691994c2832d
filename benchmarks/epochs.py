"""How often the search for unknown epochs is right, for all combinations of epochs and batch size with U local steps.

    python -m benchmarks.epochs --data "$FEMNIST" --clients 20-24 --out epochs.jsonl

Every search is one JSON line; a restart runs only the missing searches.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

import workbench as wb
from workbench.attack.search import beliefs, search_epochs
from workbench.study.plan.plan import parse_clients


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="the files of FEMNIST; without them, glyphs")
    parser.add_argument("--clients", default="5", help="how many, or which, such as 20-24")
    parser.add_argument("--images", type=int, default=50, help="images per client")
    parser.add_argument("--local-steps", type=int, default=10, help="U, which the server knows")
    parser.add_argument("--steps", type=int, default=60, help="steps of each attack")
    parser.add_argument("--out", type=Path, default=Path("epochs.jsonl"))
    options = parser.parse_args()

    dataset = wb.load_dataset("femnist", path=options.data) if options.data else wb.load_dataset("glyphs")
    clients = parse_clients(options.clients, dataset.num_clients)
    possible = [(belief.epochs, belief.batch_size) for belief in beliefs(options.images, options.local_steps)]
    given = {"images": options.images, "local_steps": options.local_steps, "steps": options.steps}
    rows = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    rows = [row for row in rows if row["dataset"] == dataset.name and row.items() >= given.items()]
    model = wb.models.femnist_cnn()
    weights = model.init(0)
    for index in clients:
        client = dataset.client(index, options.images)
        for truth in possible:
            what = {"dataset": dataset.name, "client": index, "truth": list(truth), **given}
            if any(row.items() >= what.items() for row in rows):
                continue
            seen = wb.client_update(model, weights, client, wb.ClientConfig(*truth), seed=0)
            config = wb.AttackConfig(steps=options.steps)
            ranked = search_epochs(model, seen, config, label_counts=client.label_counts)
            rows.append(what | {"ranked": [list(belief) for belief in ranked]})
            with options.out.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
            print(f"client {index}: truth {truth}, chosen {ranked[0][:2]}", flush=True)

    chosen = {truth: Counter() for truth in possible}
    for row in rows:
        if row["client"] in clients:
            chosen[tuple(row["truth"])][tuple(row["ranked"][0][:2])] += 1
    names = [f"{epochs}x{size}" for epochs, size in possible]
    print("\n| truth | " + " | ".join(f"chosen {name}" for name in names) + " |\n|" + " --- |" * (len(names) + 1))
    for name, counts in zip(names, chosen.values(), strict=True):
        print(f"| {name} | " + " | ".join(str(counts[belief]) for belief in possible) + " |")
    right = sum(counts[truth] for truth, counts in chosen.items())
    print(f"\nright in {right} of {sum(map(Counter.total, chosen.values()))} searches")


if __name__ == "__main__":
    main()
