"""Train a network for some rounds of federated averaging with chosen clients, for Table 7.

    python -m benchmarks.rounds --data "$FEMNIST" --clients 0-9 --out seen
    workbench table 7 --data "$FEMNIST" --weights seen

The weights after every fifth round are saved in the folder.
"""

from __future__ import annotations

import argparse

import workbench as wb
from workbench.study.plan.plan import parse_clients


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="the files of FEMNIST")
    parser.add_argument(
        "--clients", default="100", help="how many, or which, such as 20-24; ten of them in every round"
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", required=True, help="the folder for the weights")
    options = parser.parse_args()

    writers = wb.load_dataset("femnist", path=options.data)
    chosen = [writers.client(index, 50) for index in parse_clients(options.clients, writers.num_clients)]
    model = wb.models.femnist_cnn()
    wb.server_rounds(
        model, model.init(0), chosen, wb.ClientConfig(10, 5), rounds=options.rounds, save_every=5, save_to=options.out
    )


if __name__ == "__main__":
    main()
