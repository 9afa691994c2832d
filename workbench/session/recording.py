"""Recordings: compact files of a run that play back without computing.

Nothing here imports JAX, so a recording can be read where JAX is not installed.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from workbench.attack.spectrum import Spectrum, confidence_of
from workbench.config import AttackConfig
from workbench.data.dataset import ClientData, Normalization, Truth, eight_bits
from workbench.errors import CheckpointError, ConfigError, check_choice, check_count, check_kind, check_number, shown
from workbench.files import container
from workbench.files.container import Tensors
from workbench.metrics import Score, score
from workbench.session.history import (
    OBSERVED,
    Outcome,
    SessionHistory,
    check_array,
    observed_settings,
    pack_history,
    stored_training,
    unpack_history,
)

__all__ = ["Frame", "RecordedLabels", "Recording", "frame_of", "replay"]

FORMAT_VERSION = 1
KIND = "recording"

# Recordings are far smaller than this. A file that claims more pixels is hostile and would fill the memory: a set of
# images is shown as 32-bit numbers, and a kilobyte of zlib can claim a million pixels.
_MAX_PIXELS = 2**28
_MAX_PIXELS_OF_A_SET = 2**24
_MAX_PIXELS_PER_BYTE = 256  # the noise that an attack starts with cannot be compressed at all
# Terms that older versions named differently.
_RENAMED_TERMS = {"own": "custom"}
_SETTINGS = (
    *("config", "client", "num_steps", "total_steps", "outcome", "seconds_per_step", "device_name"),
    *("view", "terms", "steps", "threshold", "truth", "span"),
)
_SPAN = ("layer", "rank", "unexplained", "num_images")


_SCORED = {"psnr": np.float64, "ssim": np.float64, "order": np.int64}


class RecordedLabels(NamedTuple):
    """Label counts by one method, real-valued and whole, [K] each."""

    real: NDArray[np.float64]
    whole: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Frame:
    """A recorded moment: a reconstruction in 8 bits.

    Attributes:
        step: number of steps made before it.
        pixels: [N, H, W, C] uint8, combined.
        epoch_pixels: [V, N, H, W, C] uint8; None where only the combined images were recorded.
        permutations: [V, N]: ``epochs[e][permutations[e]]`` is in the order of ``images``.
        labels: [N] the class assumed for every image.
        score: against the truth, before the images were reduced to 8 bits; None where the truth was not given.
        residuals: [N] the span residual of every image; None where the update has no span.
        reads: [N] the class that the client's network sees in every image; None where it was not read, as in
            recordings of older versions.
    """

    step: int
    pixels: NDArray[np.uint8]
    epoch_pixels: NDArray[np.uint8] | None
    permutations: NDArray[np.int64]
    labels: NDArray[np.int64]
    score: Score | None
    residuals: NDArray[np.float32] | None
    reads: NDArray[np.int64] | None = None

    @property
    def images(self) -> NDArray[np.float32]:
        """[N, H, W, C] in [0, 1]."""
        return _unit(self.pixels)

    @property
    def epochs(self) -> NDArray[np.float32] | None:
        """[V, N, H, W, C] in [0, 1]."""
        return None if self.epoch_pixels is None else _unit(self.epoch_pixels)

    @property
    def confidence(self) -> NDArray[np.float32] | None:
        """[N] from 0 to 1, as in `Reconstruction`."""
        return confidence_of(self.residuals, self.images)


@dataclass(frozen=True, eq=False)
class Recording:
    """Everything that a session can show, without the session.

    Attributes:
        config: how the attack was configured.
        client: what the server knew: N, E, m, learning rate, local training, image shape, classes, clients.
        num_steps: number of steps made.
        total_steps: number of steps configured.
        outcome: of the session when it was recorded.
        seconds_per_step: as measured; None where it was not.
        device_name: where it ran.
        history: losses, steering and the recorded steps.
        frames: the recorded moments, in order.
        label_counts: [A, K] the counts that the attack used.
        labels: the counts by every label formula.
        view: what the server received, assumed and never saw.
        truth: the clients' data in 8 bits; empty where it was not given.
        spectrum: what the span of a dense layer's update was worth, or a sentence about why there is none.
    """

    config: AttackConfig
    client: dict[str, Any]
    num_steps: int
    total_steps: int
    outcome: Outcome
    seconds_per_step: float | None
    device_name: str
    history: SessionHistory
    frames: tuple[Frame, ...]
    label_counts: NDArray[np.int64]
    labels: dict[str, RecordedLabels]
    view: dict[str, dict[str, Any]]
    truth: tuple[ClientData, ...]
    spectrum: Spectrum | str

    def __repr__(self) -> str:
        c, shape = self.client, "x".join(map(str, self.client["image_shape"]))
        return (
            f"Recording({len(self.frames)} moments; N={c['num_images']} images {shape}, E={c['epochs']}, "
            f"m={c['batch_size']}; {self.config.method}; step {self.num_steps} of {self.total_steps}; "
            f"{self.outcome.value})"
        )

    def attacker_view(self) -> dict[str, dict[str, Any]]:
        """What the server received, what it assumed, and what it never saw."""
        return {**self.view, "assumed": {**self.view["assumed"], "label counts": self.label_counts}}

    def reconstruction(self) -> Frame:
        """The last moment."""
        return self.frames[-1]

    def reconstruction_at(self, step: int) -> Frame:
        """The images as they were at a recorded step (`history.snapshot_steps`)."""
        for frame in self.frames:
            if frame.step == step:
                return frame
        raise ConfigError(f"step = {shown(step)} was not recorded; recorded are {list(self.history.snapshot_steps)}.")

    @staticmethod
    def of(
        session: Any,
        truth: ClientData | Iterable[ClientData] | None = None,
        *,
        snapshots: int = 40,
        epoch_snapshots: int = 12,
    ) -> Recording:
        """Record the snapshots that a session has kept.

        Args:
            session: an `AttackSession` in any state.
            truth: the client, or all clients of an aggregate: their images and the scores are recorded too.
            snapshots: maximum number of moments with combined images; the first and the last are always included.
            epoch_snapshots: maximum number of these that also have the images of every epoch.
        """
        snapshots = check_count("snapshots", snapshots, minimum=2)
        epoch_snapshots = check_count("epoch_snapshots", epoch_snapshots, minimum=0)
        known = Truth.of(truth)
        session = session.fork()  # a copy that does not change while the original goes on
        history = session.history
        kept = sorted({*history.snapshot_steps, len(history.loss)})
        moments = {step: session.reconstruction_at(step) for step in _spread(kept, snapshots)}
        several = [step for step, found in moments.items() if len(found.epochs) > 1]
        with_epochs = _spread(several, epoch_snapshots)
        observation = session.observation
        return Recording(
            config=session.config,
            client=observed_settings(observation),
            num_steps=len(history.loss),
            total_steps=session.total_steps,
            outcome=session.outcome,
            seconds_per_step=session.seconds_per_step,
            device_name=session.device_name,
            history=replace(history, snapshot_steps=tuple(moments)),
            frames=tuple(
                frame_of(step, found, known, session.read, has_epochs=step in with_epochs)
                for step, found in moments.items()
            ),
            label_counts=session.label_counts,
            labels={method: RecordedLabels(*found) for method, found in session.formula_labels.items()},
            view=_without_arrays(session.attacker_view()),
            truth=tuple(replace(client, images=_unit(eight_bits(client.images))) for client in known),
            spectrum=session.spectrum,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file; images are compressed."""
        pixels = (array for frame in self.frames for array in (frame.pixels, frame.epoch_pixels))
        size, of_a_set = sum(array.size for array in pixels if array is not None), self.frames[0].pixels.size
        if size > _MAX_PIXELS:
            raise ConfigError(f"the recording would hold {size} pixels; use fewer snapshots for at most {_MAX_PIXELS}.")
        if of_a_set > _MAX_PIXELS_OF_A_SET:
            raise ConfigError(f"the images have {of_a_set} pixels; a recording holds at most {_MAX_PIXELS_OF_A_SET}.")
        tensors: Tensors = {"label_counts": self.label_counts, **pack_history(self.history)}
        for method, counts in self.labels.items():
            tensors |= {f"labels/{method}/{name}": array for name, array in counts._asdict().items()}
        for index, frame in enumerate(self.frames):
            tensors |= {f"{index}/{name}": array for name, array in _pack_frame(frame).items()}
        for index, client in enumerate(self.truth):
            tensors |= {
                f"truth/{index}/images": _pack(eight_bits(client.images)),
                f"truth/{index}/labels": client.labels,
            }
        span: dict[str, Any] = {"message": self.spectrum}
        if isinstance(self.spectrum, Spectrum):
            span = {name: getattr(self.spectrum, name) for name in _SPAN}
            tensors["singular_values"] = self.spectrum.singular_values
        settings = {
            "config": asdict(self.config),
            "client": self.client,
            "num_steps": self.num_steps,
            "total_steps": self.total_steps,
            "outcome": self.outcome.name,
            "seconds_per_step": self.seconds_per_step,
            "device_name": self.device_name,
            "view": self.view,
            "terms": list(self.history.terms),
            "steps": list(self.history.snapshot_steps),
            "threshold": 0.0 if (scored := self.frames[0].score) is None else scored.threshold,
            "truth": [
                {
                    "class_names": client.class_names,
                    "normalization": asdict(client.normalization),
                    "psnr_threshold": client.psnr_threshold,
                    "name": client.name,
                }
                for client in self.truth
            ],
            "span": span,
        }
        container.write(path, KIND, FORMAT_VERSION, settings, tensors)


def replay(path: str | os.PathLike[str]) -> Recording:
    """Read a recording; any file that is not a valid one raises a `CheckpointError`."""
    settings, tensors = container.read(path, KIND, FORMAT_VERSION)
    with container.fitting_together(path, KIND):
        return _rebuild(settings, tensors)


def _spread(steps: Sequence[int], maximum: int) -> list[int]:
    """At most ``maximum`` of the steps, evenly spread from the first to the last; a single one is the last.

    >>> _spread(range(0, 101, 10), 3), _spread(range(0, 101, 10), 1)
    ([0, 50, 100], [100])
    """
    if len(steps) <= maximum:
        return list(steps)
    from_the_last = np.linspace(len(steps) - 1, 0, maximum).round().astype(int)
    return [steps[index] for index in reversed(from_the_last)]


def _unit(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """8-bit pixels to [0, 1]."""
    return pixels.astype(np.float32) / np.float32(255)


def _without_arrays(view: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The part of an attacker's view that JSON can hold; the label counts are stored as a tensor."""
    return {
        part: {name: value for name, value in facts.items() if not isinstance(value, np.ndarray)}
        for part, facts in view.items()
    }


def frame_of(
    step: int,
    found: Any,
    truth: Truth,
    read: Callable[[NDArray[np.float32]], NDArray[np.int64]] | None,
    *,
    has_epochs: bool = True,
    has_residuals: bool = True,
) -> Frame:
    """A reconstruction in 8 bits.

    Args:
        step: number of steps made before it.
        found: a `Reconstruction`.
        truth: to compare with; empty where it is not known.
        read: returns the class that the client's network sees in every image; None reads nothing, which saves time.
        has_epochs: whether to keep the images of every epoch.
        has_residuals: whether to compute the span residuals, which takes time.
    """
    return Frame(
        step=step,
        pixels=eight_bits(found.images),
        epoch_pixels=eight_bits(found.epochs) if has_epochs else None,
        permutations=found.permutations,
        labels=found.labels,
        score=score(found, truth) if truth else None,
        residuals=found.residuals if has_residuals else None,
        reads=None if read is None else read(found.images),
    )


def _pack(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.frombuffer(zlib.compress(pixels.tobytes(), 9), np.uint8)


def _unpack(packed: NDArray[np.uint8], shape: tuple[int, ...]) -> NDArray[np.uint8]:
    if packed.dtype != np.uint8:
        raise CheckpointError("its images are not bytes.")
    # One byte more than expected is enough to see that a file is too long, without unpacking all of it.
    content = zlib.decompressobj().decompress(packed.tobytes(), math.prod(shape) + 1)
    return np.frombuffer(content, np.uint8).reshape(shape)


def _pack_frame(frame: Frame) -> Tensors:
    tensors: Tensors = {
        "images": _pack(frame.pixels),
        "permutations": frame.permutations.astype(np.int32),
        "labels": frame.labels.astype(np.int32),
    }
    if frame.epoch_pixels is not None:
        tensors["epochs"] = _pack(frame.epoch_pixels)
    if frame.score is not None:
        tensors |= {name: getattr(frame.score, name) for name in _SCORED}
    if frame.residuals is not None:
        tensors["residuals"] = frame.residuals
    if frame.reads is not None:
        tensors["reads"] = frame.reads.astype(np.int32)
    return tensors


def _rebuild(settings: dict[str, Any], tensors: Tensors) -> Recording:
    # The first version knew no span.
    settings = {"span": {"message": "This recording is of a version that did not compute spans."}, **settings}
    container.check_keys(settings, _SETTINGS)
    client, training = stored_training(settings["client"])
    container.check_keys(client, OBSERVED)
    client["image_shape"] = tuple(check_count("image_shape", side) for side in client["image_shape"])
    check_number("learning_rate", client["learning_rate"], above=0)
    for name in set(OBSERVED) - {"image_shape", "learning_rate"}:
        check_count(name, client[name])
    num_steps = check_count("num_steps", settings["num_steps"], minimum=0)
    steps = tuple(check_count("step", step, minimum=0, maximum=num_steps) for step in settings["steps"])
    if list(steps) != sorted(set(steps)) or steps[-1:] != (num_steps,):
        raise CheckpointError("its recorded steps are not in order, or the last one is missing.")
    terms = [_RENAMED_TERMS.get(check_kind("term", term, str), term) for term in settings["terms"]]
    seconds = settings["seconds_per_step"]
    threshold = check_number("threshold", settings["threshold"])
    shape = (client["num_clients"] * client["num_images"], *client["image_shape"])
    if len(settings["truth"]) not in (0, client["num_clients"]):
        raise CheckpointError(f"it has the images of {len(settings['truth'])} of {client['num_clients']} clients.")
    _check_size(tensors, shape, len(steps))
    return Recording(
        config=AttackConfig(**settings["config"]),
        client={**client, "training": training.changes},
        num_steps=num_steps,
        total_steps=check_count("total_steps", settings["total_steps"]),
        outcome=Outcome[check_choice("outcome", settings["outcome"], Outcome.__members__)],
        seconds_per_step=None if seconds is None else check_number("seconds_per_step", seconds, minimum=0),
        device_name=check_kind("device_name", settings["device_name"], str),
        history=unpack_history(tensors, terms, num_steps, steps),
        frames=tuple(
            _rebuild_frame(tensors, i, step, shape, threshold, client["num_classes"]) for i, step in enumerate(steps)
        ),
        label_counts=check_array(tensors["label_counts"], np.int64, (client["num_clients"], client["num_classes"])),
        labels=_rebuild_labels(tensors, client["num_classes"]),
        view=_rebuild_view(settings["view"]),
        truth=tuple(_rebuild_truth(tensors, i, client, facts) for i, facts in enumerate(settings["truth"])),
        spectrum=_rebuild_spectrum(tensors, settings["span"]),
    )


def _check_size(tensors: Tensors, shape: tuple[int, ...], num_frames: int) -> None:
    """Refuse a file that claims more pixels than a recording has, before anything is unpacked."""
    sets = sum(1 + len(tensors[f"{i}/permutations"]) * (f"{i}/epochs" in tensors) for i in range(num_frames))
    packed = sum(array.size for name, array in tensors.items() if name.endswith(("/images", "/epochs")))
    of_a_set = math.prod(shape)
    most = min(_MAX_PIXELS, _MAX_PIXELS_PER_BYTE * packed)
    if of_a_set > _MAX_PIXELS_OF_A_SET or of_a_set * sets > most:
        raise CheckpointError(
            f"it claims {sets} sets of {shape} pixels in {packed} bytes, too many for a recording; expected at most "
            f"{_MAX_PIXELS_OF_A_SET} pixels in a set and {most} in all."
        )


def _rebuild_spectrum(tensors: Tensors, span: dict[str, Any]) -> Spectrum | str:
    if "singular_values" not in tensors:
        container.check_keys(span, ("message",))
        return check_kind("message", span["message"], str)
    container.check_keys(span, _SPAN)
    values = tensors["singular_values"]
    return Spectrum(
        layer=check_kind("layer", span["layer"], str),
        singular_values=check_array(values, np.float64, (values.size,)),
        rank=check_count("rank", span["rank"], minimum=0, maximum=values.size),
        unexplained=check_number("unexplained", span["unexplained"], minimum=0, maximum=1),
        num_images=check_count("num_images", span["num_images"]),
    )


def _rebuild_frame(
    tensors: Tensors, index: int, step: int, shape: tuple[int, ...], threshold: float, num_classes: int
) -> Frame:
    parts = {name.removeprefix(f"{index}/"): array for name, array in tensors.items() if name.startswith(f"{index}/")}
    variables = len(parts["permutations"])
    permutations = check_array(parts["permutations"], np.int32, (variables, shape[0])).astype(np.int64)
    if not variables or not (np.sort(permutations, axis=1) == np.arange(shape[0])).all():
        raise CheckpointError("a matching is empty or uses an image twice.")
    scored = {name: check_array(parts[name], _SCORED[name], shape[:1]) for name in _SCORED if name in parts}
    if len(scored) not in (0, len(_SCORED)):
        raise CheckpointError("a score is incomplete.")
    return Frame(
        step=step,
        pixels=_unpack(parts["images"], shape),
        epoch_pixels=_unpack(parts["epochs"], (variables, *shape)) if "epochs" in parts else None,
        permutations=permutations,
        labels=_labels_of(parts["labels"], shape[0], num_classes),
        score=Score(**scored, threshold=threshold) if scored else None,
        residuals=check_array(parts["residuals"], np.float32, shape[:1]) if "residuals" in parts else None,
        reads=_labels_of(parts["reads"], shape[0], num_classes) if "reads" in parts else None,
    )


def _labels_of(array: NDArray[Any], count: int, num_classes: int) -> NDArray[np.int64]:
    labels = check_array(array, np.int32, (count,)).astype(np.int64)
    if labels.min() < 0 or labels.max() >= num_classes:
        raise CheckpointError(f"it has a class that is not one of {num_classes}.")
    return labels


def _rebuild_labels(tensors: Tensors, num_classes: int) -> dict[str, RecordedLabels]:
    methods = sorted({name.split("/")[1] for name in tensors if name.startswith("labels/")})
    return {
        method: RecordedLabels(
            real=check_array(tensors[f"labels/{method}/real"], np.float64, (num_classes,)),
            whole=check_array(tensors[f"labels/{method}/whole"], np.int64, (num_classes,)),
        )
        for method in methods
    }


def _rebuild_view(view: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    container.check_keys(view, ("received", "assumed", "never seen"))
    return {
        part: {name: tuple(value) if isinstance(value, list) else value for name, value in facts.items()}
        for part, facts in view.items()
    }


def _rebuild_truth(tensors: Tensors, index: int, client: dict[str, Any], facts: dict[str, Any]) -> ClientData:
    return ClientData(
        images=_unit(_unpack(tensors[f"truth/{index}/images"], (client["num_images"], *client["image_shape"]))),
        labels=tensors[f"truth/{index}/labels"],
        class_names=tuple(check_kind("class name", name, str) for name in facts["class_names"]),
        normalization=Normalization(**{name: tuple(values) for name, values in facts["normalization"].items()}),
        psnr_threshold=check_number("psnr_threshold", facts["psnr_threshold"]),
        name=check_kind("name", facts["name"], str),
    )
