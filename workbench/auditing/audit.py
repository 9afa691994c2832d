"""The audit of one update: attacks with several seeds, membership, and the same client with defences."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from numpy.typing import ArrayLike, NDArray

from workbench.attack.prepare import check_label_counts
from workbench.attack.spectrum import Membership
from workbench.auditing.checks import check
from workbench.auditing.results import Audit, Variant
from workbench.auditing.twin import Calibration, twin_of
from workbench.auditing.work import Found, Work, best_settings, digest_of_network, sha256, training_of, updated
from workbench.config import DEFENCES, AttackConfig, ClientConfig, DefenceConfig
from workbench.data import ClientData, Truth
from workbench.data.dataset import check_images_of
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
    settings: Calibration | AttackConfig | Callable[[], Calibration | AttackConfig] | None = None,
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
        settings: of the attacks: from `calibrate`, or of your choice; None takes the preset ``best``. A function that
            gives them is called when everything else has been checked.
        truth: the client's images, or those of all clients of an aggregate; None judges by the confidence. They are
            normalised as the observation says.
        pictures: to ask whether they were among the client's (`AttackSession.membership`).
        defences: to try on the same client, such as ``"gaussian 0.1"``, ``"dp_sgd 1.0"`` (clipped at norm 1) or
            ``"dp_sgd 1.0 5"`` (clipped at 5). Without the truth they are tried on the twin's images.
        test_set: to measure the accuracy that a defence costs.
        schedules: to try on the same client, as changes of its `ClientConfig`, such as ``{"epochs": 1}``.
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
    known = Truth(_fitted(model, observation, "truth", client) for client in Truth.of(truth))
    tested = None if test_set is None else _fitted(model, observation, "test_set", test_set)
    asked, others = _pixels(model, "pictures", pictures), _pixels(model, "controls", controls)
    chosen = [check_count("seed", seed, minimum=0) for seed in seeds]
    check_count("number of seeds", len(chosen))
    rounds, delta = check_count("rounds", rounds), check_number("delta", delta, above=0, maximum=1)
    if known and (sizes := [one.num_images for one in known]) != [observation.num_images] * observation.num_clients:
        raise DataError(
            f"truth has {sizes} images; the observation has {observation.num_clients} clients with "
            f"{observation.num_images} each."
        )
    if label_counts is not None:
        check_label_counts(observation, label_counts)
    trainings = _trainings(observation, defences, schedules)
    checks = check(model, observation, probe, rehearsal)
    given = settings() if callable(settings) else settings
    calibration = given if isinstance(given, Calibration) else None
    config = check_kind(
        "settings",
        calibration.config if calibration else best_settings(observation) if given is None else given,
        AttackConfig,
        "a Calibration or an AttackConfig",
    )
    twin = calibration.twin if calibration else Truth() if known or not trainings else twin_of(model, observation)
    on, per_training = known or twin, len(chosen) + (tested is not None)
    with Work(model, "audit", len(chosen) + len(trainings) * per_training, store, device) as work:

        def attack(name: str, seen: Observation, counts: Any) -> tuple[Found, ...]:
            found = (work.attack(f"{name}, seed {seed}", seen, config, seed, counts) for seed in chosen)
            return tuple(one for one in found if one is not None)

        attacks = attack("attack", observation, label_counts)
        if not attacks:
            raise KeyboardInterrupt
        attack_variant = partial(attack, counts=None if label_counts is None or not on else on.label_counts)
        variants = [
            _variant(work, name, observation, training, on, attack_variant, tested, rounds)
            for name, training in trainings.items()
        ]
        data = {
            "truth": truth,
            "pictures": pictures,
            "test_set": test_set,
            "controls": controls,
            "label_counts": label_counts,
            "probe": probe,
            "rehearsal": rehearsal,
        }
        arguments = [
            "model, observation",
            calibration.call if calibration else f"wb.{config!r}",
            *(f"{name}={name}" for name, value in data.items() if value is not None),
            f"defences={list(defences)}".replace("DefenceConfig(", "wb.DefenceConfig("),
            f"schedules={[dict(changes) for changes in schedules]}, seeds={chosen}, rounds={rounds}, delta={delta}",
        ]
        inputs = {
            "server weights": observation.server_weights,
            "client weights": observation.client_weights,
            **data,
            "truth": [(client.images, client.labels) for client in known] or None,
            "twin": [(client.images, client.labels) for client in twin] or None,
            "pictures": asked,
            "controls": others,
            "test_set": tested and (tested.images, tested.labels),
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
            inputs={
                "network": digest_of_network(model, observation),
                **{name.replace("_", " "): sha256(value) for name, value in inputs.items() if value is not None},
            },
            call=f"wb.audit({', '.join(arguments)})",
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
        example = f"'{name} {'1.0 5' if name == 'dp_sgd' else '0.1'}'"
        raise ConfigError(f"defence = {shown(text)} must be a name and a strength, such as {example}.")
    strength, clip_norm = [*map(float, numbers), USUAL_CLIP_NORM][:2]
    return DefenceConfig(name, strength, clip_norm=clip_norm if name == "dp_sgd" else None)


def _trainings(
    observation: Observation, defences: Sequence[str | DefenceConfig], schedules: Sequence[Mapping[str, Any]]
) -> dict[str, ClientConfig]:
    """The trainings to try by name, the observed one first; none if nothing is to be tried."""
    base = training_of(observation)
    for changes in schedules:
        for name in changes:
            check_choice("schedule", name, settings_of(ClientConfig))
    trainings = {
        "no defence": base,
        **{one if isinstance(one, str) else str(one): replace(base, defence=defence_of(one)) for one in defences},
        **{", ".join(f"{name} {value}" for name, value in one.items()): replace(base, **one) for one in schedules},
    }
    return trainings if len(trainings) > 1 else {}


def _pixels(model: Model, field: str, pictures: Any) -> NDArray[Any] | None:
    return (
        None if pictures is None else check_images_of(field, getattr(pictures, "images", pictures), model.image_shape)
    )


def _fitted(model: Model, observation: Observation, field: str, data: ClientData) -> ClientData:
    """Data as the client's: with the normalisation of its update, and a name of its own for every class."""
    data = check_kind(field, data, ClientData)
    check_images_of(f"{field} images", data.images, model.image_shape)
    names = [*data.class_names, *map(str, range(data.num_classes, model.num_classes))][: model.num_classes]
    unique = (name if names.count(name) == 1 else f"{name} (class {index})" for index, name in enumerate(names))
    return replace(data, class_names=tuple(unique), normalization=observation.normalization)


def _variant(
    work: Work,
    name: str,
    observation: Observation,
    training: ClientConfig,
    clients: Truth,
    attack: Callable[[str, Observation], tuple[Found, ...]],
    test_set: ClientData | None,
    rounds: int,
) -> Variant:
    """Train the clients like this, attack the update, and measure the accuracy."""
    made = Variant(name, training, ())
    try:
        if not work.is_stopped:
            made = replace(made, attacks=attack(name, updated(work.model, observation, clients.clients, training)))
        if test_set is not None:
            made = replace(made, accuracy=_accuracy(work, name, observation, training, clients, test_set, rounds))
    except WorkbenchError as error:
        # A defence that does not fit the network, or a training that diverges, is a result, too.
        made = replace(made, failure=str(error))
    return made


def _accuracy(
    work: Work,
    name: str,
    observation: Observation,
    training: ClientConfig,
    clients: Truth,
    test_set: ClientData,
    rounds: int,
) -> float | None:
    """The accuracy after so many rounds; None after Ctrl-C."""

    def measure() -> dict[str, float]:
        weights, _ = server_rounds(
            work.model,
            observation.server_weights,
            clients.clients,
            training,
            rounds=rounds,
            clients_per_round=len(clients),
            progress=False,
        )
        return {"accuracy": accuracy(work.model, weights, test_set.inputs, test_set.labels)}

    settings = {
        "part": "accuracy",
        "network": digest_of_network(work.model, observation),
        "data": sha256(observation.server_weights, [(one.images, one.labels) for one in (*clients, test_set)]),
        "normalization": asdict(observation.normalization),
        "training": asdict(training),
        "rounds": rounds,
    }
    row = work.part(f"accuracy, {name}", settings, measure)
    return None if row is None else float(row["accuracy"])


def _membership(
    model: Model, seen: Observation, found: Found, pictures: NDArray[Any], controls: NDArray[Any] | None, device: str
) -> Membership | str:
    """Whether the pictures were the client's; a session that has made no step gives the same verdict."""
    session = AttackSession(model, seen, found.config, label_counts=found.label_counts, device=device)
    return session.spectrum if isinstance(session.spectrum, str) else session.membership(pictures, controls)
