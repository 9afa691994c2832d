"""How well an attacker without the truth can judge: images by their confidence, and pictures by their membership.

    python -m benchmarks.judging rows assets/results/table1_span_femnist.jsonl ...
    python -m benchmarks.judging times rows_of_both_presets.jsonl
    python -m benchmarks.judging lost --pictures figures/pictures rows.jsonl
    python -m benchmarks.judging members --data "$FEMNIST" --clients 45-64 --setting 10x5x50 --defence gaussian 0.03

The first reads measured rows and prints the AUC of the confidence: recovered images against lost ones, for each file
and for all together. The second trains each client and compares the span residuals of its images with those of the same
writer's other images: their AUC, and the true positives at 1 % false positives. It needs no attack. `times` compares
the rows of `ours_prior` and `best` on the same clients, which should come from one run on an idle machine. `lost` says
what lost images show instead: it needs the pictures that `workbench table --figures` keeps.
"""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import mannwhitneyu

import workbench as wb
from workbench.attack.prepare import prepare
from workbench.files.weights import load_weights
from workbench.study.plan.plan import Row, parse_clients
from workbench.study.run.measure import load_pictures
from workbench.study.run.store import read_rows

NUM_IMAGES = 50
FALSE_POSITIVES = 0.01


def auc(larger: Sequence[float], smaller: Sequence[float]) -> float:
    """The share of pairs in which the first is larger."""
    if not (len(larger) and len(smaller)):
        return float("nan")
    return float(mannwhitneyu(larger, smaller).statistic / (len(larger) * len(smaller)))


def judge_rows(files: Iterable[Path]) -> None:
    """Print how well the confidence separates recovered images from lost ones."""
    pooled: tuple[list[float], list[float]] = ([], [])
    for file in files:
        found: tuple[list[float], list[float]] = ([], [])
        for row in read_rows(file):
            for psnr, confidence in zip(row["psnr"], row.get("confidence_by_span") or (), strict=False):
                found[psnr is None or psnr <= _threshold(row)].append(confidence)
        print(f"{file.name}: AUC {auc(*found):.3f} ({len(found[0])} recovered, {len(found[1])} lost)")
        for all_, one in zip(pooled, found, strict=True):
            all_.extend(one)
    print(f"all: AUC {auc(*pooled):.3f} ({len(pooled[0])} recovered, {len(pooled[1])} lost)")


def judge_lost(files: Iterable[Path], pictures: Path) -> None:
    """Print how many lost images are nevertheless above the threshold beside another true image of their client."""
    lost, repeats = 0, 0
    for row in (row for file in files for row in read_rows(file)):
        found = load_pictures(str(pictures), row["key"])
        if found is None:
            continue
        threshold = _threshold(row)
        is_lost = found.psnr <= threshold
        images, truth = found.images[is_lost] / 255, found.truth / 255
        errors = ((images[:, None] - truth[None]) ** 2).mean((2, 3, 4)).min(1, initial=1.0)
        lost += int(is_lost.sum())
        repeats += int((-10 * np.log10(errors) > threshold).sum())
    print(f"{lost} lost images; {repeats} of them show another image of the client above the threshold")


def _threshold(row: Row) -> int:
    return 19 if row["settings"]["dataset"] in ("cifar100", "photos") else 20


def judge_times(files: Iterable[Path]) -> None:
    """Print when best reaches the final quality of the published recipe, and its whole time, as shares of its time."""
    by_client: dict[str, dict[bool, dict[str, Any]]] = {}
    for row in (row for file in files for row in read_rows(file)):
        settings = row["settings"]
        name = f"{settings['dataset']} {settings['clients']}, {settings['labels']} labels"
        by_client.setdefault(name, {})[settings["attack"].get("span_weight", 0) > 0] = row
    shares = []
    for name, rows in by_client.items():
        if len(rows) < 2:
            continue
        paper, best = rows[False]["curve"], rows[True]["curve"]
        reached = next((seconds for _, seconds, psnr, *_ in best if psnr >= paper[-1][2]), float("inf"))
        # The first score of a process includes its compilation; the others' mean step stands for its steps.
        paper_time, best_time = (_without_compilation(curve) for curve in (paper, best))
        compilation = best[-1][1] - best_time
        shares.append(((reached - compilation) / paper_time, best_time / paper_time))
        print(f"{name}: the same quality after {shares[-1][0]:.2f}, all of best {shares[-1][1]:.2f} of the time")
    print("medians:", *np.round(np.median(shares, axis=0), 2))


def _without_compilation(curve: Sequence[Sequence[float]]) -> float:
    """The seconds of all steps, with the first ones counted as the mean of the others."""
    (first, begun, *_), (last, ended, *_) = curve[0], curve[-1]
    return (ended - begun) * last / (last - first)


def judge_members(
    dataset: wb.Dataset, indices: Iterable[int], training: wb.ClientConfig, weights: Path | None, num_images: int
) -> None:
    """Print how well residuals tell a client's images from the same writer's other ones."""
    model = wb.models.femnist_cnn()
    start = model.init(seed=0) if weights is None else load_weights(weights, model)
    own: list[float] = []
    others: list[float] = []
    for index in indices:
        everything = dataset.client(index, num_images=None)
        client = dataset.client(index, num_images=num_images)
        # Copies of the client's images among the others would count as false positives.
        known = {image.tobytes() for image in client.images}
        controls = [image for image in everything.images[num_images:] if image.tobytes() not in known]
        observation = wb.client_update(model, start, client, training, seed=0)
        attack = prepare(model, observation, label_counts=client.label_counts)
        membership = attack.membership(client.images, np.stack(controls), FALSE_POSITIVES)
        if isinstance(membership, str):
            print(f"writer {index}: {membership}")
            continue
        own.extend(membership.residuals.tolist())
        others.extend(membership.controls.tolist())
    if not own:
        return
    threshold = np.quantile(others, FALSE_POSITIVES)
    rate = np.mean(np.array(own) < threshold)
    print(
        f"{training.epochs}x{training.batch_size}x{num_images}, {training.defence}: AUC {auc(others, own):.3f}, "
        f"true positives {rate:.3f} at 1 % false positives ({len(own)} own, {len(others)} other pictures)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    kinds = parser.add_subparsers(dest="kind", required=True)
    rows = kinds.add_parser("rows", help="the confidence of measured images")
    rows.add_argument("files", nargs="+", type=Path)
    times = kinds.add_parser("times", help="when best reaches the quality of the published recipe")
    times.add_argument("files", nargs="+", type=Path)
    lost = kinds.add_parser("lost", help="what lost images show instead")
    lost.add_argument("files", nargs="+", type=Path)
    lost.add_argument("--pictures", type=Path, required=True, help="the folder with the pictures of a study")
    members = kinds.add_parser("members", help="the membership of pictures")
    members.add_argument("--data", required=True, help="the files of FEMNIST")
    members.add_argument("--clients", default="45-64")
    members.add_argument("--setting", default="10x5x50")
    members.add_argument("--defence", nargs=2, action="append", metavar=("NAME", "STRENGTH"), default=[])
    members.add_argument("--weights", type=Path, help="of a trained network")
    options = parser.parse_args()
    if options.kind == "lost":
        judge_lost(options.files, options.pictures)
        return
    if options.kind != "members":
        {"rows": judge_rows, "times": judge_times}[options.kind](options.files)
        return
    dataset = wb.load_dataset("femnist", path=options.data)
    indices = parse_clients(options.clients, dataset.num_clients)
    epochs, batch_size, num_images = map(int, options.setting.split("x"))
    defences = [wb.DefenceConfig(name, float(strength)) for name, strength in options.defence]
    for defence in defences or [wb.DefenceConfig()]:
        training = wb.ClientConfig(epochs, batch_size, defence=defence)
        judge_members(dataset, indices, training, options.weights, num_images)


if __name__ == "__main__":
    main()
