"""What the picture grid's script gets to see of an attack or a recording: descriptions as JSON, pixels as bytes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.attack.spectrum import Spectrum
from workbench.config import label_of
from workbench.data import Truth
from workbench.data.dataset import eight_bits
from workbench.metrics import reference_levels, score
from workbench.session import AttackSession, Recording
from workbench.session.history import SessionHistory
from workbench.session.recording import Frame
from workbench.views.figures import THEMES

__all__ = [
    "LEVELS",
    "SCRIPT",
    "describe_frame",
    "describe_history",
    "describe_source",
    "quality_levels",
    "style",
    "truth_pixels",
]

# What images that show nothing of the client reach: the name of each level, and its text for people.
LEVELS = {"mean": "mean image", "blank": "blank image", "noise": "noise at the start"}
_FOLDER = Path(__file__).parent
SCRIPT = _FOLDER / "grid.js"
# A curve with more points looks the same, and a long run would send megabytes every second.
_MOST_POINTS = 1000
_DIGITS = 6
_NOTES = {"light": "#57606a", "dark": "#a7b0ba"}
_EDGES = {"light": "#8a929c", "dark": "#6b747f"}


def describe_source(source: AttackSession | Recording, truth: Truth, key: str) -> dict[str, Any]:
    """What all frames of a source have in common; ``key`` is unique to it."""
    observed = source.client if isinstance(source, Recording) else vars(source.observation)
    return {
        "key": key,
        "isRecording": isinstance(source, Recording),
        "totalSteps": int(source.total_steps),
        "numImages": int(observed["num_clients"] * observed["num_images"]),
        "shape": [int(side) for side in observed["image_shape"]],
        "names": [truth.class_names[label] for label in truth.labels] if truth else None,
        "threshold": truth.psnr_threshold if truth else None,
        "levels": quality_levels(source, truth) if truth else None,
        "blank": _rounded(reference_levels(truth)["blank"]) if truth else None,
        "spanText": "" if isinstance(source.spectrum, Spectrum) else source.spectrum,
    }


def quality_levels(source: AttackSession | Recording, truth: Truth) -> dict[str, float]:
    """The mean PSNR in dB of what shows nothing of the client: the noise at the start, and `reference_levels`."""
    levels = {name: float(values.mean()) for name, values in reference_levels(truth).items()}
    if 0 in source.history.snapshot_steps:
        start = source.reconstruction_at(0)
        # That of a recording was computed before its pixels were rounded and clipped.
        quality = start.score if isinstance(start, Frame) and start.score else score(start, truth)
        levels["noise"] = float(quality.psnr.mean())
    return {name: round(value, 2) for name, value in levels.items()}


def truth_pixels(truth: Truth) -> bytes:
    """The true images as bytes."""
    return eight_bits(truth.images).tobytes()


def describe_frame(frame: Frame, truth: Truth) -> dict[str, Any]:
    """Everything about a moment but its pixels."""
    names = truth.class_names if truth else None
    quality, residuals, confidence = frame.score, frame.residuals, frame.confidence
    return {
        "step": int(frame.step),
        "sets": len(frame.permutations),
        "hasEpochs": frame.epoch_pixels is not None and len(frame.permutations) > 1,
        "permutations": frame.permutations.tolist(),
        "classes": [_class_name(names, label) for label in frame.labels],
        "order": None if quality is None else quality.order.tolist(),
        "psnr": None if quality is None else _rounded(quality.psnr),
        "ssim": None if quality is None else _rounded(quality.ssim),
        "residuals": None if residuals is None else _rounded(residuals),
        "confidence": None if confidence is None else _rounded(confidence),
        "reads": None if frame.reads is None else [_class_name(names, label) for label in frame.reads],
    }


def _class_name(names: Sequence[str] | None, label: int) -> str:
    return names[label] if names else f"class {label}"


def describe_history(history: SessionHistory, warm_start_steps: int) -> dict[str, Any]:
    """The loss, its terms and the steering; a long history is thinned evenly."""
    count = len(history.loss)
    chosen = np.unique(np.linspace(0, max(0, count - 1), min(count, _MOST_POINTS)).round().astype(int))
    steering = history.steering[-20:]
    return {
        "numSteps": count,
        "steps": [int(step) for step in chosen],
        "loss": _rounded(history.loss[chosen]),
        "terms": [
            {"name": name, "label": label_of(name), "values": _rounded(values[chosen])}
            for name, values in history.terms.items()
        ],
        "steering": [{"step": event.step, "text": f"{label_of(event.name)} = {event.value:g}"} for event in steering],
        "numSteered": len(history.steering),
        "warmSteps": warm_start_steps,
    }


def style(light: str, dark: Sequence[str]) -> str:
    """The script's style sheet, with the colours of both themes.

    Args:
        light: the selector of elements that are always drawn light unless a dark rule applies.
        dark: the beginnings of rules for dark pages, each a selector, or an at-rule and a selector.
    """
    lines = "\n".join(f".wbg-line-{index} {{ color: var(--wbg-line-{index}); }}" for index in range(7))
    rules = [f"{light} {{ {_variables('light')} }}"]
    for rule in dark:
        closing = "}" * (rule.count("{") + 1)
        rules.append(f"{rule} {{ {_variables('dark')} {closing}")
    return "\n".join([*rules, lines, (_FOLDER / "grid.css").read_text()])


def _variables(theme: str) -> str:
    colours = THEMES[theme]
    named = {name: getattr(colours, name) for name in ("paper", "ink", "faint", "accent")}
    named |= {"note": _NOTES[theme], "edge": _EDGES[theme]}
    named |= {f"line-{index}": colour for index, colour in enumerate(colours.lines)}
    return " ".join(f"--wbg-{name}: {colour};" for name, colour in named.items())


def _rounded(values: NDArray[Any]) -> list[float | None]:
    """Numbers with a few digits; JSON knows no infinite ones."""
    return [float(f"{value:.{_DIGITS}g}") if np.isfinite(value) else None for value in values.tolist()]
