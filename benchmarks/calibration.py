"""What `wb.calibrate` brings over the preset `best` as it is, on networks that are not the paper's.

    python -m benchmarks.calibration --out calibration.jsonl

Clients of glyphs are attacked with the preset and with the settings that a twin chose. The twin has photographs, which
are nothing like glyphs, or glyphs of other hands. Every finished client is one line of the file, and the command
continues after the last one.
"""

import argparse
import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import workbench as wb
from benchmarks.networks import lenet_by_hand, resnet_by_hand

GLYPHS = wb.load_dataset("glyphs")
NUM_IMAGES = 10
TRAINING = wb.ClientConfig(epochs=2, batch_size=5, learning_rate=0.004)
STAND_INS = ("photos", "glyphs")
NETWORKS = {"mlp": lambda: wb.models.mlp(widths=(100,)), "LeNet": lenet_by_hand, "ResNet": resnet_by_hand}


def stand_in(name: str) -> Any:
    """Photographs without labels; or None, for which `calibrate` takes glyphs of hands that no client here has."""
    return wb.load_dataset("photos").client(0, NUM_IMAGES).images if name == "photos" else None


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
        model, client = models[name], GLYPHS.client(number, NUM_IMAGES)
        seen = wb.client_update(model, model.init(number), client, TRAINING, seed=number)
        settings = wb.calibrate(model, seen, stand_in(stood), store=options.out.with_suffix(".sqlite"))
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
        print(f"{name}, twin of {stood}: {', '.join(means)}; chosen: {', '.join(one['chosen'] for one in rows)}")


if __name__ == "__main__":
    main()
