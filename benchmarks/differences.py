"""What the measured rows of FEMNIST depend on: the writers' images and labels, and the network.

    python -m benchmarks.differences --data "$FEMNIST" assets/results/table1_femnist.jsonl
    python -m benchmarks.differences --data "$FEMNIST" --weights "$WEIGHTS" assets/results/table7_femnist.jsonl

For every quantity that was measured on at least five writers or with at least five networks: its rank correlation with
features of the writers or networks, and the value that a linear fit to the measured writers predicts for all writers.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
from scipy.stats import linregress, spearmanr

import workbench as wb
from workbench.attack.labels import dummy_inputs, network_statistics
from workbench.files.weights import load_weights
from workbench.study.plan.plan import digest_of_weights
from workbench.study.run.store import read_rows
from workbench.weights import Weights

NUM_IMAGES = 50
ENOUGH = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="the files of FEMNIST")
    parser.add_argument("--weights", type=Path, help="the folder with the trained weights of Table 7")
    parser.add_argument("rows", nargs="+", help="files of measured rows")
    options = parser.parse_args()

    dataset = wb.load_dataset("femnist", path=options.data)
    writers = [dataset.client(index, NUM_IMAGES) for index in range(dataset.num_clients)]
    model = wb.models.femnist_cnn()
    trained = {}
    for file in options.weights.glob("*weights_after_round_*") if options.weights else ():
        weights = load_weights(file, model)
        trained[digest_of_weights(weights)] = (file.stem, weights)

    of_all = {
        "ink": np.array([float(np.mean(1 - writer.images)) for writer in writers]),
        "different labels": np.array([len(set(writer.labels.tolist())) for writer in writers]),
    }

    only_digits = np.array([writer.labels.max() < 10 for writer in writers])

    @cache
    def losses(digest: str) -> np.ndarray:
        """The trained network's loss on every writer's images."""

        @jax.jit
        def loss(weights: Weights, inputs: Any, labels: Any) -> jax.Array:
            return -jax.nn.log_softmax(model.apply(weights, inputs))[np.arange(NUM_IMAGES), labels].mean()

        return np.array([loss(trained[digest][1], w.inputs, w.labels) for w in writers])

    @cache
    def features_of_noise(seed: int) -> float:
        """The size of the network's features on the label formulas' inputs, relative to their size on images."""
        weights = model.init(seed)
        images = np.concatenate([writer.inputs for writer in writers])
        of_noise, of_images = (network_statistics(model, weights, x) for x in (dummy_inputs(model, seed), images))
        return of_noise.feature_sum / of_images.feature_sum

    measured = defaultdict(list)
    for row in (row for path in options.rows for row in read_rows(path)):
        for what, outcome in outcomes(row):
            settings = row["settings"]
            measured[what, settings["weights"]].append((settings["clients"][0], settings["seed"], outcome))

    for (what, digest), found in sorted(measured.items(), key=str):
        chosen, seeds, values = (np.array(column) for column in zip(*found, strict=True))
        name = f"{what}, {trained[digest][0] if digest in trained else 'trained'}" if digest else what
        known = of_all | ({"loss": losses(digest)} if digest in trained else {})
        print(f"{name}: {values.mean():.2f} over {len(set(chosen))} writers, {len(set(seeds))} networks")
        if len(set(chosen)) >= ENOUGH:
            for feature, numbers in known.items():
                line = linregress(numbers[chosen], values)
                print(
                    f"    {feature}: {numbers[chosen].mean():.3g} (all writers {numbers.mean():.3g}), rank correlation "
                    f"{spearmanr(numbers[chosen], values).statistic:+.2f}, "
                    f"linear fit for all writers {line.intercept + line.slope * numbers.mean():.2f}"
                )
            if 0 < only_digits[chosen].sum() < len(chosen):
                split = (values[only_digits[chosen]], values[~only_digits[chosen]])
                print("    writers of only digits {:.2f}, others {:.2f}".format(*(part.mean() for part in split)))
        if len(set(seeds)) >= ENOUGH:
            of_networks = np.array([values[seeds == seed].mean() for seed in sorted(set(seeds))])
            ratios = [features_of_noise(int(seed)) for seed in sorted(set(seeds))]
            print(
                f"    networks: {of_networks.min():.2f} to {of_networks.max():.2f}, standard deviation "
                f"{of_networks.std(ddof=1):.2f}; features on noise are {min(ratios):.2f} to {max(ratios):.2f} of those "
                f"on characters, rank correlation {spearmanr(ratios, of_networks).statistic:+.2f}"
            )


def outcomes(row: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """The name and value of each measured quantity."""
    settings = row["settings"]
    attack, client = settings["attack"], settings["client"]
    place = f"{client['epochs']}x{client['batch_size']}x{settings['num_images']}"
    if settings["task"] == "labels":
        for method, errors in row["label_errors"].items():
            yield f"{place} {method}, label errors", errors
    elif settings["task"] == "attack":
        method = "warm" if attack["warm_start_steps"] else attack["method"]
        yield f"{place} {method}, dB", float(np.mean(row["psnr"]))
        yield f"{place} {method}, recovered %", row["recovered_percent"]


if __name__ == "__main__":
    main()
