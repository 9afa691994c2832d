"""The audit of one update: attacks with several seeds, membership, and the same client with defences."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.attack.spectrum import Membership
from workbench.auditing.checks import check
from workbench.auditing.results import Audit, Variant
from workbench.auditing.twin import Calibration, twin_of
from workbench.auditing.work import Found, Work, best_settings, sha256, training_of, updated
from workbench.config import DEFENCES, AttackConfig, ClientConfig, DefenceConfig
from workbench.data import ClientData, Truth
from workbench.errors import (
    ConfigError,
    DataError,
    WorkbenchError,
    check_choice,
    check_count,
    check_kind,
    check_number,
    shown,
)
from workbench.federated import Observation, accuracy, server_rounds
from workbench.session import AttackSession
from workbench.settings import settings_of
from workbench.training.model import Model

__all__ = ["audit", "defence_of"]

# Without a clip norm, dp_sgd clips every gradient to this one.
USUAL_CLIP_NORM = 1.0
_NUMBER = re.compile(r"\d*\.?\d+(e[+-]?\d+)?")


def audit(
    model: Model,
    observation: Observation,
    settings: Calibration | AttackConfig | None = None,
    truth: ClientData | Sequence[ClientData] | None = None,
    pictures: ClientData | ArrayLike | None = None,
    defences: Sequence[str | DefenceConfig] = (),
    test_set: ClientData | None = None,
    *,
    schedules: Sequence[Mapping[str, Any]] = (),
    controls: ClientData | ArrayLike | None = None,
    label_counts: ArrayLike | None = None,
    seeds: Sequence[int] = (0, 1),
    rounds: int = 1,
    delta: float = 1e-5,
    probe: Any = None,
    rehearsal: Any = None,
    store: str | os.PathLike[str] | None = None,
    device: str = "auto",
) -> Audit:
    """Attack an update as a curious server would, and report what it reveals.

    Ctrl-C stops, and the audit holds what is finished; with a store, the next call continues there.

    Args:
        model: the network.
        observation: what the server saw.
        settings: of the attacks: from `calibrate`, or of your choice; None takes the preset ``best``.
        truth: the client's images, or those of all clients of an aggregate; None judges by the confidence.
        pictures: to ask whether they were among the client's (`AttackSession.membership`).
        defences: to try on the same client, such as ``"gaussian 0.1"``, ``"dp_sgd 1.0"`` (clipped at norm 1) or
            ``"dp_sgd 1.0 5"`` (clipped at 5). Without the truth they are tried on the twin's images.
        test_set: to measure the accuracy that a defence costs.
        schedules: other trainings to try, as changes of `ClientConfig`, such as ``{"epochs": 1}``.
        controls: pictures like ``pictures`` that were certainly not the client's.
        label_counts: [K] known counts, or [A, K] for an aggregate; None recovers them.
        seeds: of the attacks; the one that explains the update best is reported.
        rounds: in which the client takes part, for the accuracy and for epsilon.
        delta: of epsilon.
        probe: inputs and logits, as for `check`.
        rehearsal: the client's images in their order, as for `check`.
        store: a file that keeps finished parts.
        device: as for `AttackSession`.

    Example:
        >>> import workbench as wb
        >>> client, model = wb.load_dataset("glyphs").client(0, num_images=2), wb.models.mlp(widths=(16,))
        >>> seen = wb.client_update(model, model.init(), client, wb.ClientConfig(epochs=1, batch_size=2))
        >>> found = wb.audit(model, seen, wb.AttackConfig(method="shared", steps=3), truth=client, seeds=[0])
        >>> len(found.images)
        2
    """
    # Data may name fewer classes than the network has.
    known = Truth(
        replace(one, class_names=(*one.class_names, *map(str, range(one.num_classes, model.num_classes))))
        for one in Truth.of(truth)
    )
    calibration = settings if isinstance(settings, Calibration) else None
    given = calibration.config if calibration else best_settings(observation) if settings is None else settings
    config = check_kind("settings", given, AttackConfig, "a Calibration or an AttackConfig")
    chosen = tuple(check_count("seed", seed, minimum=0) for seed in seeds)
    if not chosen:
        raise ConfigError("seeds = () must hold at least one whole number.")
    rounds, delta = check_count("rounds", rounds), check_number("delta", delta, above=0, maximum=1)
    sizes = [client.num_images for client in known]
    if known and sizes != [observation.num_images] * observation.num_clients:
        raise DataError(
            f"truth has {sizes} images; the observation has {observation.num_clients} clients with "
            f"{observation.num_images} each."
        )
    trainings = _trainings(observation, defences, schedules)
    on = known
    if trainings and not known:
        on = calibration.twin if calibration else twin_of(model, observation)
    checks = check(model, observation, probe, rehearsal)
    with Work(model, "audit", len(chosen) * (1 + len(trainings)), store, device) as work:
        attacks = _attacks(work, "attack", observation, config, chosen, label_counts)
        variants = [
            _variant(work, name, observation, training, on, config, chosen, label_counts, test_set, rounds)
            for name, training in trainings.items()
        ]
        if not attacks:
            raise KeyboardInterrupt
        asked, others = _pixels(pictures), _pixels(controls)
        inputs = {
            "server weights": observation.server_weights,
            "client weights": observation.client_weights,
            "truth": [(client.images, client.labels) for client in known] or None,
            "pictures": asked,
            "controls": others,
            "test set": None if test_set is None else (test_set.images, test_set.labels),
        }
        return Audit(
            model=model,
            observation=observation,
            config=config,
            calibration=calibration,
            truth=known,
            checks=checks,
            attacks=attacks,
            has_known_labels=label_counts is not None,
            membership=None if asked is None else _membership(model, observation, attacks[0], asked, others, device),
            variants=tuple(variants),
            variants_on=on,
            rounds=rounds,
            delta=delta,
            is_complete=not work.is_stopped,
            inputs={name: sha256(value) for name, value in inputs.items() if value is not None},
        )


def defence_of(text: str | DefenceConfig) -> DefenceConfig:
    """A defence from its name and its strength, for dp_sgd also the clip norm.

    >>> defence_of("dp_sgd 1.0")
    DefenceConfig(name='dp_sgd', strength=1.0, clip_norm=1.0, independent=True)
    """
    if isinstance(text, DefenceConfig):
        return text
    name, *numbers = check_kind("defence", text, str, "a text such as 'gaussian 0.1', or a DefenceConfig").split(" ")
    check_choice("defence", name, DEFENCES[1:])
    if not all(map(_NUMBER.fullmatch, numbers)) or not 1 <= len(numbers) <= 1 + (name == "dp_sgd"):
        example = f"{name} 1.0 5" if name == "dp_sgd" else f"{name} 0.1"
        raise ConfigError(f"defence = {shown(text)} must be a name and a strength, such as {example!r}.")
    strength, clip_norm = [*map(float, numbers), USUAL_CLIP_NORM][:2]
    return DefenceConfig(name, strength, clip_norm=clip_norm if name == "dp_sgd" else None)


def _trainings(
    observation: Observation, defences: Sequence[str | DefenceConfig], schedules: Sequence[Mapping[str, Any]]
) -> dict[str, ClientConfig]:
    """The trainings to try by name, the observed one first; none if nothing is to be tried."""
    base = training_of(observation)
    trainings = {"no defence": base}
    for one in defences:
        defence = defence_of(one)
        trainings[str(defence) if isinstance(one, DefenceConfig) else one] = replace(base, defence=defence)
    for changes in schedules:
        for name in changes:
            check_choice("schedule", name, settings_of(ClientConfig))
        trainings[", ".join(f"{name} {value}" for name, value in changes.items())] = replace(base, **changes)
    return trainings if len(trainings) > 1 else {}


def _attacks(
    work: Work, name: str, seen: Observation, config: AttackConfig, seeds: Sequence[int], label_counts: Any
) -> tuple[Found, ...]:
    """One attack for each seed, up to Ctrl-C."""
    found = (work.attack(f"{name}, seed {seed}", seen, config, seed, label_counts) for seed in seeds)
    return tuple(one for one in found if one is not None)


def _variant(
    work: Work,
    name: str,
    observation: Observation,
    training: ClientConfig,
    clients: Truth,
    config: AttackConfig,
    seeds: Sequence[int],
    label_counts: Any,
    test_set: ClientData | None,
    rounds: int,
) -> Variant:
    """Train the clients like this, attack the update, and measure the accuracy."""
    counts = None if label_counts is None else clients.label_counts
    try:
        seen = updated(work.model, observation, clients.clients, training)
        attacks = _attacks(work, name, seen, config, seeds, counts)
    except WorkbenchError as error:
        # A defence that does not fit the network, or a training that diverges, is a result, too.
        return Variant(name, training, (), failure=str(error))
    measured = None
    if test_set is not None and not work.is_stopped:
        weights, _ = server_rounds(
            work.model,
            observation.server_weights,
            clients.clients,
            training,
            rounds=rounds,
            clients_per_round=len(clients),
            progress=False,
        )
        measured = accuracy(work.model, weights, observation.normalization.normalize(test_set.images), test_set.labels)
    return Variant(name, training, attacks, measured)


def _pixels(pictures: ClientData | ArrayLike | None) -> NDArray[Any] | None:
    return None if pictures is None else np.asarray(getattr(pictures, "images", pictures))


def _membership(
    model: Model, seen: Observation, found: Found, pictures: NDArray[Any], controls: NDArray[Any] | None, device: str
) -> Membership | str:
    """Whether the pictures were the client's; a session that has made no step gives the same verdict."""
    session = AttackSession(model, seen, found.config, label_counts=found.label_counts, device=device)
    if isinstance(session.spectrum, str):
        return session.spectrum
    return session.membership(pictures, controls)
