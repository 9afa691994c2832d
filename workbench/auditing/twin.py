"""Settings without tuning by hand: a twin of the client trains on other images, and its attack can be judged.

The twin starts from the same weights and trains in the same way as the client, on stand-in images. The settings that
reconstruct the twin's images best are those for the client. What they reach on the twin is what a working attack
reaches here, and the update distance that they leave is a yardstick: an attack on the client that leaves much more
does not simulate this client.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.auditing.work import Found, Work, best_settings, bundled, training_of, updated
from workbench.config import AttackConfig
from workbench.data import ClientData, Truth, load_dataset
from workbench.data.dataset import check_images, resized
from workbench.errors import DataError, check_count
from workbench.federated import Observation
from workbench.metrics import Score, reference_levels, score
from workbench.session import AttackSession
from workbench.study.show.results import text_table
from workbench.training.model import Model

__all__ = ["TRIES", "Calibration", "Try", "calibrate", "twin_of"]

# In dB: an attack that is no better than images of one colour plus this recovers nothing.
LEAST_GAIN = 2.0
# Changes of the preset best, in the order in which they are tried: a number multiplies the setting, a text replaces it.
TRIES: dict[str, dict[str, float | str]] = {
    "best": {},
    "in range": {"clip_weight": 100.0},
    "smooth, in range": {"tv_weight": 1000.0, "clip_weight": 100.0},
    "less span, in range": {"span_weight": 0.1, "clip_weight": 100.0},
    "smaller steps, in range": {"step_size": 0.25, "clip_weight": 100.0},
    "separate epochs, in range": {"method": "ours_prior", "clip_weight": 100.0},
}


@dataclass(frozen=True, eq=False)
class Try:
    """One attack on the twin: the name of its settings in `TRIES`, the settings, what it found, and how good it is."""

    name: str
    config: AttackConfig
    found: Found
    score: Score

    @property
    def psnr(self) -> float:
        """The mean over the twin's images, in dB."""
        return float(self.score.psnr.mean())


@dataclass(frozen=True, eq=False)
class Calibration:
    """The settings for an attack, chosen on a twin.

    Attributes:
        tries: what was tried, in order; Ctrl-C leaves fewer than were asked for.
        twin: the twin's clients.
        call: the Python code that repeats it.
        is_complete: whether everything that was asked for was tried.
    """

    tries: tuple[Try, ...]
    twin: Truth
    call: str = "calibration"
    is_complete: bool = True

    @cached_property
    def best(self) -> Try:
        """The attack with the best mean PSNR."""
        return max(self.tries, key=lambda one: one.psnr)

    @property
    def config(self) -> AttackConfig:
        """The settings for the attack on the client."""
        return self.best.config

    @property
    def twin_psnr(self) -> float:
        """What a working attack reaches here: the mean PSNR in dB on the twin."""
        return self.best.psnr

    @property
    def yardstick(self) -> float:
        """`Found.update_left` of the best attack: what an attack that simulates the client leaves."""
        return self.best.found.update_left

    @property
    def blank_psnr(self) -> float:
        """What images of one colour reach on the twin, in dB."""
        return float(reference_levels(self.twin)["blank"].mean())

    @property
    def is_working(self) -> bool:
        """Whether the attack recovers anything of the twin: it is better than images of one colour."""
        return self.twin_psnr > self.blank_psnr + LEAST_GAIN

    def rows(self) -> list[dict[str, Any]]:
        """One record for every try."""
        return [
            {
                "name": one.name,
                "psnr": one.psnr,
                "recovered_percent": one.score.recovered_percent,
                "update_left": one.found.update_left,
                "seconds": one.found.seconds,
                "is_chosen": one is self.best,
            }
            for one in self.tries
        ]

    def __str__(self) -> str:
        cells = [
            [name, f"{psnr:.1f} dB", f"{recovered:.0f} %", f"{left:.2g}", f"{seconds:.0f} s", "chosen" * is_chosen]
            for name, psnr, recovered, left, seconds, is_chosen in (row.values() for row in self.rows())
        ]
        gain = self.twin_psnr - self.tries[0].psnr
        reached = "a working attack reaches" if self.is_working else "no settings work here; the best attack reaches"
        return (
            f"{text_table([['settings', 'PSNR', 'recognisable', 'update left', 'time', ''], *cells])}\n"
            f"Twin of {len(self.twin.images)} images ({self.twin[0].name}), on which images of one colour reach "
            f"{self.blank_psnr:.1f} dB: {reached} {self.twin_psnr:.1f} dB, {gain:.1f} dB more than "
            f"{self.tries[0].name} as it is, and leaves {self.yardstick:.2g} of the update distance."
        )


def calibrate(
    model: Model,
    observation: Observation,
    stand_in: Any = None,
    *,
    tries: int | None = None,
    steps: int | None = None,
    known_labels: bool = False,
    seed: int = 0,
    store: str | os.PathLike[str] | None = None,
    device: str = "auto",
) -> Calibration:
    """Choose the settings of an attack by attacking a twin of the client.

    Ctrl-C stops, and what is finished counts; with a store, the next call continues there.

    Args:
        model: the network.
        observation: what the server saw.
        stand_in: images for the twin: a `ClientData`, images [n, H, W, C], or (images, labels); the most similar ones
            that you have. None takes bundled ones. Other sizes are scaled, and colours
            become grey where the number of channels differs.
        tries: how many settings to try, from the first of `TRIES` on; None tries all.
        steps: of every attack, in place of the preset's.
        known_labels: whether the attack on the client will be given its label counts; then the one on the twin is, too.
        seed: of the twin's training and of the attacks.
        store: a file that keeps finished attacks.
        device: as for `AttackSession`.

    Example:
        >>> import workbench as wb
        >>> client, model = wb.load_dataset("glyphs").client(0, num_images=2), wb.models.mlp(widths=(16,))
        >>> seen = wb.client_update(model, model.init(), client, wb.ClientConfig(epochs=1, batch_size=2))
        >>> settings = wb.calibrate(model, seen, tries=1, steps=3)
        >>> attack = wb.AttackSession(model, seen, settings.config)
    """
    count = check_count("tries", len(TRIES) if tries is None else tries, maximum=len(TRIES))
    base = best_settings(observation, **({} if steps is None else {"steps": steps}))
    twin = twin_of(model, observation, stand_in, seed=seed)
    seen = updated(model, observation, twin.clients, training_of(observation), seed)
    # From Adam's update labels cannot be recovered.
    counts = twin.label_counts if known_labels or seen.training.is_adam else None
    done: list[Try] = []
    with Work(model, "twin", count, store, device) as work:
        for name, changes in islice(TRIES.items(), count):
            config = _changed(base, changes)
            if (found := work.attack(name, seen, config, seed, counts)) is None:
                break
            # All settings get the same labels, which are recovered once.
            counts = found.label_counts
            done.append(Try(name, config, found, score(found, twin)))
    if not done:
        raise KeyboardInterrupt
    stood = "" if stand_in is None else "stand_in=stand_in, "
    arguments = f"{stood}tries={count}, steps={steps}, known_labels={known_labels}, seed={seed}"
    return Calibration(tuple(done), twin, f"wb.calibrate(model, observation, {arguments})", len(done) == count)


def _changed(config: AttackConfig, changes: Mapping[str, float | str]) -> AttackConfig:
    values: dict[str, Any] = {
        name: v if isinstance(v, str) else getattr(config, name) * v for name, v in changes.items()
    }
    if "method" in values:
        # Where noise hides the span, `noisy_method` would replace the method.
        values["noisy_method"] = None
    return replace(config, **values)


def twin_of(model: Model, observation: Observation, stand_in: Any = None, *, seed: int = 0) -> Truth:
    """The clients of a twin: as many, with as many images of the same shape, as the observation has.

    Without labels of their own, the images get the label counts that the update reveals. The arguments are those of
    `calibrate`.
    """
    number = observation.num_images * observation.num_clients
    name, threshold, labels = "stand-in images", 20.0, None
    if stand_in is None:
        name, dataset = bundled(observation), load_dataset(bundled(observation))
        # From the last client on: an example that takes the first ones as its client has others as its twin.
        last, each = dataset.num_clients - 1, dataset.client(0, None).num_images
        stood = [dataset.client(index, None) for index in range(last, last - -(-number // each), -1)]
        images, threshold = np.concatenate([one.images for one in stood]), dataset.psnr_threshold
        if dataset.num_classes == observation.num_classes:
            labels = np.concatenate([one.labels for one in stood])
    elif isinstance(stand_in, ClientData):
        images, labels, name, threshold = stand_in.images, stand_in.labels, stand_in.name, stand_in.psnr_threshold
    else:
        images, labels = stand_in if isinstance(stand_in, tuple) else (stand_in, None)
    pixels = check_images(np.asarray(images)[:number])
    if len(pixels) < number:
        raise DataError(f"stand_in has {len(pixels)} images; the twin needs {number}, as many as the client has.")
    if labels is None:
        labels = _revealed_labels(model, observation, seed)
    return Truth(
        ClientData(
            images=resized(pixels[part], observation.image_shape),
            labels=np.asarray(labels)[part],
            class_names=tuple(map(str, range(observation.num_classes))),
            normalization=observation.normalization,
            psnr_threshold=threshold,
            name=name,
        )
        for part in np.arange(number).reshape(observation.num_clients, -1)
    )


def _revealed_labels(model: Model, observation: Observation, seed: int) -> NDArray[np.int64]:
    """[A * N] labels with the counts that the update reveals; with Adam, which reveals none, all classes in turn."""
    if observation.training.is_adam:
        number = observation.num_images * observation.num_clients
        return np.arange(number) % observation.num_classes
    counts = AttackSession(model, observation, best_settings(observation), seed=seed).label_counts
    return np.concatenate([np.repeat(np.arange(len(each)), each) for each in counts])
