"""How much of the difference between writers is how much they write: measured rows beside the ink in their images.

    python -m benchmarks.ink --data "$FEMNIST" assets/results/table1_femnist.jsonl

For every setting and method with at least five writers: the rank correlation of ink and PSNR, and what a straight line
through the measured writers says of all writers of the file.
"""

from __future__ import annotations

import argparse
from collections import defaultdict

import numpy as np
from scipy.stats import linregress, spearmanr

import workbench as wb
from workbench.study.store import read_rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="the files of FEMNIST")
    parser.add_argument("rows", nargs="+", help="files of measured rows")
    options = parser.parse_args()

    writers = wb.load_dataset("femnist", path=options.data)
    num_images = 50
    ink = [float(np.mean(1 - writers.client(i, num_images).images)) for i in range(writers.num_clients)]
    measured = defaultdict(list)
    for row in (row for path in options.rows for row in read_rows(path)):
        settings = row["settings"]
        attack, client, (writer,) = settings["attack"], settings["client"], settings["clients"]
        name = "best" if attack["warm_start_steps"] else attack["method"]
        place = f"{client['epochs']}x{client['batch_size']}x{settings['num_images']}"
        measured[place, name].append((writer, np.mean(row["psnr"]), row["recovered_percent"]))

    print(f"Mean darkness of a pixel over all {len(ink)} writers: {np.mean(ink):.4f}")
    for (place, name), found in sorted(measured.items()):
        chosen = np.array([ink[writer] for writer, *_ in found])
        if len({writer for writer, *_ in found}) < 5:
            continue
        psnr, recovered = np.array([numbers for _, *numbers in found]).T
        of_all = [linregress(chosen, numbers) for numbers in (psnr, recovered)]
        expected = [line.intercept + line.slope * np.mean(ink) for line in of_all]
        print(
            f"{place} {name}: {len(found)} attacks on writers with {chosen.mean():.4f}, {psnr.mean():.1f} dB, "
            f"{recovered.mean():.0f} %; rank correlation {spearmanr(chosen, psnr).statistic:+.2f}; "
            f"on all writers by a straight line {expected[0]:.1f} dB, {expected[1]:.0f} %"
        )


if __name__ == "__main__":
    main()
