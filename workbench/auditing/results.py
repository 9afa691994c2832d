"""What an audit found: numbers for people and programs, a verdict, and what it does not prove."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from workbench.attack.spectrum import Membership
from workbench.auditing.checks import Checks
from workbench.auditing.privacy import ADJACENCIES, dp_sgd_epsilon
from workbench.auditing.twin import Calibration
from workbench.auditing.work import Found
from workbench.config import AttackConfig, ClientConfig
from workbench.data import Truth
from workbench.federated import Observation
from workbench.files.writing import write_atomically
from workbench.metrics import label_errors, reference_levels, score
from workbench.session import Outcome
from workbench.session.history import OBSERVED
from workbench.training.model import Model

__all__ = ["CONFIDENT", "FORMAT", "Audit", "Variant", "kept_attack"]

FORMAT = {"format": "fedavg-leakage-audit", "version": 1}
# On 3,000 images of FEMNIST, 99 % of the reconstructions with at least this confidence were recognisable.
CONFIDENT = 0.9
# A wrong order of flattening left eight times as much of the update as the twin, right simulations up to 3 times.
_MUCH_MORE = 5.0
_PACKAGES = ("fedavg-leakage-workbench", "jax", "jaxlib", "numpy", "scipy")
_LIMITS = """
No success is no proof: an attack that fails does not show that the update is private. Better attacks, more rounds, or
knowledge about the client can succeed where this one fails.

An image counts as recognisable by a threshold of its PSNR, which is not a person's judgement: look at the pictures.

The audit covers one update. A server that sees a client in many rounds learns more.

Label counts can say something about a person even where no image is recognisable.
"""
_WITHOUT_TRUTH = f"""
Without the truth, the confidence judges the images: 1 minus the span residual. With at least {CONFIDENT}, 99 % of the
images of FEMNIST clients were recognisable; for other networks and data the share is not known.
"""
_VARIANTS = """
The settings of the attacks are not tuned anew for each variant: an attacker who knows the defence may recover more.
"""
_EPSILON = """
Epsilon is that of dp_sgd for two clients that differ in one image: it is left out (its gradient counts as zero; the
number of images and the batches stay), or replaced. It counts every use of an image in all rounds and epochs, and no
amplification by sampling, because batches are shuffled and not drawn by Poisson sampling.
"""


def _paragraphs(*texts: str) -> list[str]:
    return [" ".join(part.split()) for text in texts for part in text.strip().split("\n\n")]


@dataclass(frozen=True, eq=False)
class Variant:
    """The same client with a defence or another schedule, and the attacks on its update.

    Attributes:
        name: for people.
        training: with the defence.
        attacks: one for each seed; fewer after Ctrl-C, none where the training was refused.
        accuracy: on the test set after training like this, in [0, 1]; None without a test set.
        failure: why the training was refused, or could not go on to the last round.
    """

    name: str
    training: ClientConfig
    attacks: tuple[Found, ...]
    accuracy: float | None = None
    failure: str = ""

    @property
    def diverged(self) -> str | None:
        """In words if all attacks diverged, which is no protection: another attack may not diverge."""
        return "the attack diverged" if all(one.outcome is Outcome.DIVERGED for one in self.attacks) else None


def kept_attack(attacks: Sequence[Found]) -> Found:
    """The attack that an attacker would keep, who does not see the truth: the one that explains the update best."""
    return min(attacks, key=lambda found: (found.outcome is Outcome.DIVERGED, found.update_left))


@dataclass(frozen=True, eq=False)
class Audit:
    """What `workbench.audit` found.

    Attributes:
        model: the network.
        observation: the audited update.
        config: the settings of the attacks.
        calibration: where the settings come from; None without a twin.
        truth: the client's images; empty where they are not known.
        checks: whether the simulation fits the client.
        attacks: one for each seed.
        has_known_labels: whether the label counts were given to the attack.
        membership: of the pictures that were asked about, a sentence about why there is none, or None.
        variants: the client with defences and other schedules; the first one is without.
        variants_on: whose images the variants trained on; without the truth, those of a twin.
        rounds: that the test accuracy and epsilon count.
        delta: of epsilon.
        is_complete: whether all parts were made; Ctrl-C leaves some out.
        inputs: SHA-256 of everything that was given, by name.
        call: the Python code that repeats it.
    """

    model: Model
    observation: Observation
    config: AttackConfig
    calibration: Calibration | None
    truth: Truth
    checks: Checks
    attacks: tuple[Found, ...]
    has_known_labels: bool
    membership: Membership | str | None
    variants: tuple[Variant, ...]
    variants_on: Truth
    rounds: int
    delta: float
    is_complete: bool
    inputs: Mapping[str, str]
    call: str

    @cached_property
    def found(self) -> Found:
        """The attack that is reported (`kept_attack`)."""
        return kept_attack(self.attacks)

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.truth.class_names if self.truth else tuple(map(str, range(self.model.num_classes)))

    @cached_property
    def images(self) -> list[dict[str, Any]]:
        """One record for every true image, or for every reconstruction where the truth is not known."""
        return _judged(self.found, self.truth, self.class_names)

    @property
    def is_on_twin(self) -> bool:
        """Whether the variants had to train on a twin's images."""
        return bool(self.variants) and not self.truth

    def __str__(self) -> str:
        return "\n".join([*self.verdict, self.mismatch, self.recommendation]).strip()

    # Sentences

    @property
    def verdict(self) -> tuple[str, str]:
        """What the update reveals, in two sentences."""
        return self._verdict_on_labels(), self._verdict_on_images()

    def _verdict_on_labels(self) -> str:
        number, counts = len(self.found.images), self.found.label_counts.sum(0)
        if self.has_known_labels:
            return f"The attack was given how many of the {number} images each class has."
        if not self.truth:
            largest = [f"{self.class_names[k]}: {counts[k]}" for k in np.argsort(-counts, kind="stable")[:5]]
            return (
                f"The attack estimates how many of the {number} images each class has, such as {', '.join(largest)}; "
                "whether that is right is not known without the truth."
            )
        if wrong := label_errors(self.truth.label_counts.sum(0), counts):
            return f"The attack estimates the labels of the {number} images with {wrong:g} error{'s' * (wrong != 1)}."
        return f"The update reveals how many of the {number} images each class has, exactly."

    def _verdict_on_images(self) -> str:
        number, known = len(self.images), sum(bool(one["is_recognisable"]) for one in self.images)
        if self.images[0]["is_recognisable"] is None:
            return (
                f"How many of the {number} images are recognisable is not known: this update has no span to judge by."
            )
        measure, text = ("psnr", "{:.1f} dB") if self.truth else ("confidence", "{:.2f}")
        ordered = sorted(self.images, key=lambda one: -one[measure])
        worst = ", ".join(f"{one['number']} ({text.format(one[measure])})" for one in ordered[:3])
        if not self.truth:
            return (
                f"{known} of {number} images are probably recognisable (confidence of at least {CONFIDENT}); the most "
                f"certain ones are {worst}."
            )
        level = f"PSNR above {self.truth.psnr_threshold:g} dB"
        if known:
            return f"{known} of {number} images are recognisable ({level}); the most exposed ones are {worst}."
        blank = float(reference_levels(self.truth)["blank"].mean())
        return (
            f"None of the {number} images is recognisable ({level}); the best ones are {worst}, and images of one "
            f"colour reach {blank:.1f} dB."
        )

    @property
    def is_fitting(self) -> bool:
        """Whether the attack explains the update about as well as the one on the twin, where there is a twin."""
        twin = self.calibration
        return twin is None or (twin.is_working and self.found.update_left <= _MUCH_MORE * twin.yardstick)

    @property
    def mismatch(self) -> str:
        """What the update left says about the simulation."""
        left = self.found.update_left
        if self.calibration is None:
            return f"The attack leaves {left:.2g} of the update distance; there is no twin to compare it with."
        yardstick, fits = self.calibration.yardstick, "the simulation fits this client"
        if not self.calibration.is_working:
            fits = "even the twin's recovers nothing, so this audit says little about this network and training"
        elif not self.is_fitting:
            fits = (
                "the simulation may not fit this client, labels may be wrong, or the client has a defence; until that "
                "is cleared up, a failed attack says little"
            )
        return f"The attack leaves {left:.2g} of the update distance, the twin's attack {yardstick:.2g}: {fits}."

    @property
    def recommendation(self) -> str:
        """Which of the tried variants to use, or why none is recommended; empty where none was tried."""
        if not self.variants:
            return ""
        base, *others = self.defences
        rows, where = [row for row in others if not row["failure"]], " on the twin" * self.is_on_twin
        reasons = [
            ("the simulation may not fit this client", not (self.checks.is_ok and self.is_fitting)),
            (f"{base['name']}: {base['failure']}", base["failure"]),
            (f"{base['name']}: the attack finds no recognisable image{where}", not base["recognisable"]),
            ("none of them was trained and attacked to the end", not rows),
        ]
        if found := [reason for reason, is_so in reasons if is_so]:
            return f"No variant can be recommended: {found[0]}."
        best = min(rows, key=lambda row: (row["recognisable"], -(row["accuracy_percent"] or 0)))
        right, without = (row["accuracy_percent"] for row in (best, base))
        cost = "its cost in accuracy needs a test set"
        if right is not None:
            cost = f"the test accuracy is {right:.1f} % ({without:.1f} % without)"
        if not best["recognisable"]:
            safe = ", ".join(row["name"] for row in rows if not row["recognisable"])
            return f"No image is recognisable{where} with: {safe}. Recommended of these is {best['name']}; {cost}."
        return (
            f"None of the tried variants protects the images: {best['name']} leaves the fewest recognisable, "
            f"{best['recognisable']} of {best['num_images']}{where}; {cost}. Try stronger ones."
        )

    # Numbers

    @cached_property
    def defences(self) -> list[dict[str, Any]]:
        """One record for every variant; the first one is the client without a defence."""
        return [
            {
                "name": one.name,
                **_totals(one.attacks, self.variants_on, self.class_names),
                "accuracy_percent": None if one.accuracy is None else 100 * one.accuracy,
                **{
                    f"epsilon_{how}": dp_sgd_epsilon(
                        one.training.defence, one.training.epochs, rounds=self.rounds, delta=self.delta, adjacency=how
                    )
                    for how in ADJACENCIES
                },
                "failure": one.failure or (None if one.attacks else "not finished") or one.diverged,
            }
            for one in self.variants
        ]

    def summary(self, command: str | None = None, files: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Everything but the pictures, as plain JSON values; docs/audit_report.md describes them.

        Args:
            command: that repeats the audit; None gives Python code.
            files: SHA-256 of the files that were read, by name.
        """
        seen, twin, counts = self.observation, self.calibration, self.found.label_counts.sum(0)
        true_counts = self.truth.label_counts.sum(0) if self.truth else None
        made = [one for attacks in (self.attacks, *(each.attacks for each in self.variants)) for one in attacks]
        has_epsilon = any(row["epsilon_remove"] is not None for row in self.defences)
        values: dict[str, Any] = {
            **FORMAT,
            "verdict": self.verdict,
            "is_complete": self.is_complete,
            "target": {
                "network": self.model.name,
                "num_weights": sum(np.size(leaf) for leaf in jax.tree.leaves(seen.server_weights)),
                **{name: getattr(seen, name) for name in OBSERVED},
                "training": seen.training.description,
                "normalization": asdict(seen.normalization),
                "truth": self.truth.name or None,
            },
            "labels": {
                "source": "given" if self.has_known_labels else "recovered",
                "counts": self._by_class(counts),
                "true_counts": None if true_counts is None else self._by_class(true_counts),
                "errors": None if true_counts is None else label_errors(true_counts, counts),
            },
            "images": self.images,
            "attacks": [
                {
                    "seed": one.seed,
                    "outcome": one.outcome.name.lower(),
                    "steps": one.steps,
                    "seconds": one.seconds,
                    "update_left": one.update_left,
                    **_totals([one], self.truth, self.class_names),
                    "is_reported": one is self.found,
                }
                for one in self.attacks
            ],
            "settings": asdict(self.found.config),
            "checks": [asdict(finding) for finding in self.checks.findings],
            "mismatch": {
                "update_left": self.found.update_left,
                "yardstick": None if twin is None else twin.yardstick,
                "is_ok": self.is_fitting,
                "sentence": self.mismatch,
            },
            "twin": twin
            and {
                "images": twin.twin[0].name,
                "psnr": twin.twin_psnr,
                "blank_psnr": twin.blank_psnr,
                "yardstick": twin.yardstick,
                "tries": twin.rows(),
            },
            "membership": _membership(self.membership),
            "defences": {
                "trained_on": "twin" if self.is_on_twin else "client",
                "rounds": self.rounds,
                "delta": self.delta,
                "rows": self.defences,
                "recommendation": self.recommendation or None,
            },
            "limits": _paragraphs(
                _LIMITS,
                *[_WITHOUT_TRUTH] * (not self.truth),
                *[_VARIANTS] * bool(self.variants),
                *[_EPSILON] * has_epsilon,
            ),
            "reproduction": {
                "command": command or self.call,
                "seeds": [one.seed for one in self.attacks],
                "versions": {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
                "device": ", ".join(sorted({one.device for one in made})),
                "finished": max(one.finished for one in made),
                "sha256": {**self.inputs, **(files or {})},
            },
        }
        # Tuples become lists, as in the file.
        plain: dict[str, Any] = json.loads(json.dumps(values, allow_nan=False))
        return plain

    def _by_class(self, counts: NDArray[np.int64]) -> dict[str, int]:
        return {name: int(count) for name, count in zip(self.class_names, counts, strict=True) if count}

    # Files

    def json(self, path: str | os.PathLike[str], **origin: Any) -> None:
        """Write `summary` as a JSON file; ``origin`` are its arguments."""
        write_atomically(path, json.dumps(self.summary(**origin), indent=1).encode())

    def report(self, path: str | os.PathLike[str], **origin: Any) -> None:
        """Write the report as one HTML file; ``origin`` are the arguments of `summary`."""
        # matplotlib takes a while to import, and nothing before needs it.
        from workbench.auditing.report import report_html

        found = self.found.images[score(self.found, self.truth).order if self.truth else slice(None)]
        true = self.truth.images if self.truth else None
        write_atomically(path, report_html(self.summary(**origin), found, true, self.class_names).encode())


def _judged(found: Found, truth: Truth, class_names: Sequence[str]) -> list[dict[str, Any]]:
    """One record for every true image, or for every reconstruction where the truth is not known."""
    sure, quality = found.confidence, score(found, truth) if truth else None
    order = np.arange(len(found.images)) if quality is None else quality.order
    labels = truth.labels if truth else found.labels
    is_known = quality.psnr > quality.threshold if quality else None if sure is None else sure >= CONFIDENT
    return [
        {
            "number": place + 1,
            "class": class_names[labels[place]],
            "psnr": None if quality is None else float(quality.psnr[place]),
            "ssim": None if quality is None else float(quality.ssim[place]),
            "confidence": None if sure is None else float(sure[index]),
            "is_recognisable": None if is_known is None else bool(is_known[place]),
        }
        for place, index in enumerate(order)
    ]


def _totals(attacks: Sequence[Found], truth: Truth, class_names: Sequence[str]) -> dict[str, Any]:
    """How much the kept one of several attacks recovers; everything is None without attacks."""
    found = kept_attack(attacks) if attacks else None
    records = _judged(found, truth, class_names) if found else []
    names = ("is_recognisable", "psnr", "confidence")
    known, psnr, sure = (_mean([one[name] for one in records]) for name in names)
    return {
        "recognisable": None if known is None else round(known * len(records)),
        "num_images": len(records) or None,
        "mean_psnr": psnr,
        "mean_confidence": sure,
        "label_errors": label_errors(truth.label_counts.sum(0), found.label_counts.sum(0)) if found and truth else None,
    }


def _mean(values: Sequence[Any]) -> float | None:
    return None if not values or None in values else float(np.mean(values))


def _membership(found: Membership | str | None) -> dict[str, Any] | None:
    if found is None:
        return None
    if isinstance(found, str):
        return {"sentence": found, "residuals": [], "is_member": None, "threshold": None}
    members, sentence = (
        found.is_member,
        "Without controls there is no threshold: the smaller, the likelier the client's.",
    )
    if members is not None:
        sentence = (
            f"{members.sum()} of {len(members)} pictures were probably the client's, at a threshold that "
            f"{found.false_positive_rate:.1%} of {len(found.controls)} controls are below."
        )
    return {
        "sentence": sentence,
        "residuals": found.residuals.tolist(),
        "is_member": None if members is None else members.tolist(),
        "threshold": found.threshold,
    }
