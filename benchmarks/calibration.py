"""What `wb.calibrate` brings over the preset `best` as it is, on networks that are not the paper's.

    python -m benchmarks.calibration --out calibration.jsonl

Clients are attacked with the preset and with the settings that a twin chose. The twin has other data, which is nothing
like the client's (photographs for glyphs, glyphs for photographs), or the bundled images that `calibrate` takes, which
are of other writers or other photographs. Every finished client is one line of the file, and the command continues
after the last one.
"""

import argparse
import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import workbench as wb
from benchmarks.networks import lenet_by_hand

DATA = {name: wb.load_dataset(name) for name in ("glyphs", "photos")}
EXPORT = Path(__file__).parents[1] / "assets" / "update" / "network.pt2"
NUM_IMAGES = 10
TRAINING = wb.ClientConfig(epochs=2, batch_size=5, learning_rate=0.004)
STAND_INS = ("other data", "bundled")
NETWORKS = {
    "mlp": lambda: wb.models.mlp(widths=(100,)),
    "torch export": lambda: wb.models.from_torch_export(EXPORT),
    "LeNet": lenet_by_hand,
}


def client_of(model: wb.models.Model, number: int) -> wb.ClientData:
    """Glyphs; for coloured images, photographs at half their size in as many classes as the network has."""
    if model.image_shape[-1] == 1:
        return DATA["glyphs"].client(number, NUM_IMAGES)
    photos = DATA["photos"].client(number, NUM_IMAGES)
    height, width, channels = model.image_shape
    small = photos.images.reshape(NUM_IMAGES, height, 2, width, 2, channels).mean((2, 4))
    names = tuple(map(str, range(model.num_classes)))
    return replace(photos, images=small, labels=photos.labels % model.num_classes, class_names=names)


def stand_in(name: str, model: wb.models.Model) -> Any:
    """Images without labels; or None, for which `calibrate` takes bundled ones."""
    other = "photos" if model.image_shape[-1] == 1 else "glyphs"
    return DATA[other].client(0, NUM_IMAGES).images if name == "other data" else None


def quality(model: wb.models.Model, seen: wb.Observation, config: wb.AttackConfig, client: wb.ClientData) -> Any:
    session = wb.AttackSession(model, seen, config)
    session.step(session.total_steps)
    score = wb.score(session.reconstruction(), client)
    return {"psnr": float(np.mean(score.psnr)), "recovered": score.recovered_percent}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("calibration.jsonl"))
    options = parser.parse_args()
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    done = {(one["stand_in"], one["network"], one["client"]): one for one in map(json.loads, lines)}
    # One object for every network, so that each is compiled once.
    models = {name: make() for name, make in NETWORKS.items()}
    for stood, name, number in product(STAND_INS, NETWORKS, range(options.clients)):
        if (stood, name, number) in done:
            continue
        model = models[name]
        client = client_of(model, number)
        seen = wb.client_update(model, model.init(number), client, TRAINING, seed=number)
        settings = wb.calibrate(model, seen, stand_in(stood, model), store=options.out.with_suffix(".sqlite"))
        before = [one["best"] for (_, *key), one in done.items() if key == [name, number]]
        best = before[0] if before else quality(model, seen, settings.tries[0].config, client)
        line = {
            "stand_in": stood,
            "network": name,
            "client": number,
            "chosen": settings.best.name,
            "best": best,
            "calibrated": best if settings.best.name == "best" else quality(model, seen, settings.config, client),
            "twin": {"best": settings.tries[0].psnr, "calibrated": settings.twin_psnr, "blank": settings.blank_psnr},
        }
        done[stood, name, number] = line
        with options.out.open("a") as file:
            file.write(json.dumps(line) + "\n")
    for name, stood in product(NETWORKS, STAND_INS):
        rows = [one for (kind, network, _), one in done.items() if (network, kind) == (name, stood)]
        means = (
            f"{key} {np.mean([one[key]['psnr'] for one in rows]):.1f} dB "
            f"{np.mean([one[key]['recovered'] for one in rows]):.0f} %"
            for key in ("best", "calibrated")
        )
        print(f"{name}, twin with {stood}: {', '.join(means)}; chosen: {', '.join(one['chosen'] for one in rows)}")


if __name__ == "__main__":
    main()
