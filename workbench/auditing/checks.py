"""Checks before an attack: does the simulation fit this client? None of them needs the client's images but the last.

Each finding is a sentence with a number. docs/audit_checks.md says which check finds which mistake.
"""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from workbench.auditing.bias import bias_movement, likeliest_causes, looks_like_adam
from workbench.auditing.comparisons import Comparison, compare_logits, compare_update, fits
from workbench.data.dataset import check_images_of
from workbench.errors import check_kind
from workbench.federated.observation import Observation
from workbench.training.model import Model
from workbench.weights import Weights, check_floats

__all__ = ["Checks", "Finding", "check"]


@dataclass(frozen=True)
class Finding:
    """What one check saw.

    Attributes:
        name: of the check: weights, layers, bias, optimizer, probe or rehearsal.
        is_ok: False if the simulation does not fit the client.
        sentence: what was seen, with the number.
        advice: what to do; empty where it is ok.
    """

    name: str
    is_ok: bool
    sentence: str
    advice: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (f"{'ok' if self.is_ok else 'WRONG':5} {self.name}:", self.sentence, self.advice)))


@dataclass(frozen=True)
class Checks:
    """What all checks saw; printed, one line a finding."""

    findings: tuple[Finding, ...]

    @property
    def is_ok(self) -> bool:
        return all(finding.is_ok for finding in self.findings)

    def __str__(self) -> str:
        return "\n".join(str(finding) for finding in self.findings)


def check(
    model: Model,
    observation: Observation,
    probe: tuple[Any, Any] | None = None,
    rehearsal: tuple[Any, Any, Any] | None = None,
) -> Checks:
    """Whether the simulated training fits what a client sent, before any attack.

    Without ``probe`` and ``rehearsal`` it sees weights that are swapped, scaled or differences, layers that were not
    trained, and by the last layer's bias most mistakes about rate, optimiser, schedule and number of steps.

    >>> import workbench as wb
    >>> client, model = wb.load_dataset("glyphs").client(0, num_images=10), wb.models.mlp(widths=(16,))
    >>> training = wb.ClientConfig(epochs=1, batch_size=5)
    >>> seen, secrets = wb.client_update_with_secrets(model, model.init(), client, training)
    >>> checks = check(model, seen, rehearsal=(client.images, client.labels, secrets.order))
    >>> checks.is_ok, [finding.name for finding in checks.findings]
    (True, ['weights', 'layers', 'bias', 'rehearsal'])
    >>> print(checks.findings[-1])
    ok    rehearsal: On the client's own images, the simulated update differs from the observed one by 0.0 %.

    Args:
        model: the network.
        observation: what the server saw.
        probe: (images [n, H, W, C] with pixels in [0, 1], logits [n, K] that the federation's own network gives for
            them at the server's weights, in evaluation mode). It finds a wrong normalisation and a wrong order of
            flattened features. Images like the client's, 20 or more, also sharpen the test of the bias.
        rehearsal: (images [N, H, W, C] with pixels in [0, 1], labels [N], order [E, N] in which every epoch used
            them), for one client that cooperates. The training is repeated and the update compared; if it differs,
            alternatives are tried, each at the cost of one local training.
    """
    check_kind("model", model, Model)
    check_kind("observation", observation, Observation)
    model.check_weights(observation.server_weights, "observation.server_weights")
    findings = [_weights(model, observation), _layers(model, observation)]
    inputs = None
    if probe is not None:
        pixels = check_images_of("probe images", probe[0], model.image_shape)
        found = compare_logits(model, observation, pixels, check_floats("probe logits", probe[1]))
        sentence = f"On {len(pixels)} images, the logits differ by {100 * found.mismatch:.1f} %."
        hint = "Compare the networks layer by layer; logits must be of the server's weights, in evaluation mode."
        findings.append(_compared("probe", sentence, found, hint))
        # Few images would estimate the probabilities worse than many random ones.
        if findings[-1].is_ok and len(pixels) >= 20:
            inputs = observation.normalization.normalize(pixels)
    if findings[0].is_ok:
        findings.append(
            _adam(model, observation) if observation.training.is_adam else _bias(model, observation, inputs)
        )
    if rehearsal is not None:
        found = compare_update(
            model, observation, check_images_of("rehearsal images", rehearsal[0], model.image_shape), *rehearsal[1:]
        )
        sentence = (
            "On the client's own images, the simulated update differs from the observed one by "
            f"{100 * found.mismatch:.1f} %."
        )
        hint = "Not simulated are dropout, random augmentation, noise of a defence and another order of the images."
        findings.append(_compared("rehearsal", sentence, found, hint))
    return Checks(tuple(findings))


def _compared(name: str, sentence: str, found: Comparison, hint: str) -> Finding:
    """The finding of a comparison; the hint is for one that no alternative explains."""
    if fits(found.mismatch):
        return Finding(name, not found.wrong, sentence, found.wrong)
    best = f"{found.best[0]} ({100 * found.best[1]:.1f} %)"
    advice = f"It fits with {best}."
    if not fits(found.best[1]):
        advice = f"None of {found.num_tried} alternatives explains it; nearest is {best}. {hint}"
    return Finding(name, False, sentence, f"{found.wrong} {advice}".lstrip())


def _update(model: Model, observation: Observation) -> Weights:
    before, after = (model.trained(w) for w in (observation.server_weights, observation.client_weights))
    return jax.tree.map(lambda a, b: np.asarray(b, np.float64) - np.asarray(a, np.float64), before, after)


def _weights(model: Model, observation: Observation) -> Finding:
    """By the multiple of the server's weights that is nearest to the client's."""
    before, after = (
        np.asarray(ravel_pytree(model.trained(weights))[0], np.float64)
        for weights in (observation.server_weights, observation.client_weights)
    )
    multiple, kept = float(np.vdot(before, after) / (np.vdot(before, before) or 1.0)), observation.response.kept
    likely = [
        ("the client sent differences: give sends='delta'", abs(multiple) < 0.5 * kept),
        ("the client sent weights that were taken for differences: give sends='weights'", abs(multiple - 2) < 0.3),
        (f"the client multiplied its weights, for instance by N: divide by {multiple:.4g}", abs(multiple - kept) > 0.5),
    ]
    advice = next((f"Likely {cause}." for cause, is_so in likely if is_so), "")
    sentence = f"The client's weights are {multiple:.2f} times the server's, besides the update."
    return Finding("weights", not advice, sentence, advice)


def _layers(model: Model, observation: Observation) -> Finding:
    update = _update(model, observation)
    still = [
        layer for layer in model.layer_names if not any(a.any() for a in update.get(layer, {"": np.ones(1)}).values())
    ]
    fixed = [
        f"{layer}/{name}"
        for layer, name in model.statistics
        if np.array_equal(observation.server_weights[layer][name], observation.client_weights[layer][name])
    ]
    if still:
        return Finding(
            "layers",
            False,
            f"{len(still)} of {len(model.layer_names)} layers have no update at all: {', '.join(still[:3])}.",
            "Check what is before and after; if the client froze layers, make them constants of a custom network.",
        )
    if fixed:
        return Finding(
            "layers",
            False,
            f"{len(fixed)} running statistics did not move, such as {fixed[0]}.",
            "The client trained in evaluation mode, or sent no buffers; export the network as it was trained.",
        )
    return Finding("layers", True, f"All {len(model.layer_names)} layers have an update.")


def _bias(model: Model, observation: Observation, inputs: Any) -> Finding:
    moved = bias_movement(model, observation, inputs)
    if isinstance(moved, str):
        return Finding("bias", True, f"This test gives no answer: {moved}.")
    sentence = (
        f"The last layer's bias moved {moved.ratio:.2f} times as far as this training explains; {moved.low:.2f} to "
        f"{moved.high:.2f} is normal here."
    )
    if moved.low <= moved.ratio <= moved.high:
        return Finding("bias", True, sentence)
    is_adam = looks_like_adam(observation, _update(model, observation)) and moved.ratio > moved.high
    return Finding("bias", False, sentence, f"Likely {' or '.join(likeliest_causes(observation, moved, is_adam))}.")


def _adam(model: Model, observation: Observation) -> Finding:
    if looks_like_adam(observation, _update(model, observation)):
        return Finding("optimizer", True, "All weights moved by similar amounts, as Adam's do.")
    return Finding(
        "optimizer",
        False,
        f"A few weights moved much further than most, or not at the rate {observation.learning_rate:g}; Adam moves all "
        "alike.",
        "Likely the client uses SGD, or another rate.",
    )
