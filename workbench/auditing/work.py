"""The parts of an audit: attacks as plain values, which a store keeps; one progress bar, and Ctrl-C between steps."""

import base64
import hashlib
import json
import os
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_leaves_with_path
from numpy.typing import NDArray

from workbench.attack.spectrum import confidence_of
from workbench.config import AttackConfig, ClientConfig
from workbench.data import ClientData
from workbench.federated import Observation, aggregate, client_update
from workbench.files.container import digest_of
from workbench.progress import interruptible, progress_bar
from workbench.session import AttackSession, Outcome
from workbench.session.history import observed_settings
from workbench.study.plan.plan import Row
from workbench.study.run.store import Store
from workbench.training.model import Model

__all__ = ["Found", "Work", "best_settings", "bundled", "digest_of_network", "sha256", "training_of", "updated"]

# Steps between two looks at Ctrl-C.
_STEPS = 10
# JSON has no infinity.
_INFINITE = 1e9


@dataclass(frozen=True, eq=False)
class Found:
    """What one attack found.

    Attributes:
        images: [A * N, H, W, C] pixels.
        labels: [A * N] the class assumed for every image.
        label_counts: [A, K] that the attack used.
        residuals: [A * N] of the span; None where the update has none.
        update_left: the distance between the observed and the simulated update at the last step, divided by the
            distance at the first step; 1e9 where it is not finite, or where no step was made.
        config: the settings of the attack, after the choice between its methods.
        outcome: ``FINISHED`` or ``DIVERGED``.
        steps: made.
        seconds: of these steps, compilation included.
        seed: of the attack.
        device: that it ran on, for people.
        finished: when, in UTC.
    """

    images: NDArray[np.float32]
    labels: NDArray[np.int64]
    label_counts: NDArray[np.int64]
    residuals: NDArray[np.float32] | None
    update_left: float
    config: AttackConfig
    outcome: Outcome
    steps: int
    seconds: float
    seed: int
    device: str
    finished: str

    @property
    def confidence(self) -> NDArray[np.float32] | None:
        """[A * N] as `Reconstruction.confidence`; None where a residual is not finite."""
        is_finite = self.residuals is not None and np.isfinite(self.residuals).all()
        return confidence_of(self.residuals, self.images) if is_finite else None

    @staticmethod
    def from_row(row: Row) -> "Found":
        """From plain JSON values."""
        pixels = np.frombuffer(zlib.decompress(base64.b64decode(row["pixels"])), np.float32)
        residuals = row["residuals"]
        return Found(
            images=pixels.reshape(row["shape"]),
            labels=np.array(row["labels"], np.int64),
            label_counts=np.array(row["label_counts"], np.int64),
            residuals=None if residuals is None else np.array(residuals, np.float32),
            config=AttackConfig(**row["config"]),
            outcome=Outcome[row["outcome"]],
            **{name: row[name] for name in ("update_left", "steps", "seconds", "seed", "device", "finished")},
        )


def _update_left(session: AttackSession) -> float:
    """The update term without its weight, at the last step relative to the first."""
    term, config = session.history.terms["update"], session.config
    if not len(term):
        return _INFINITE
    first, later = config.update_weight
    steps = len(term) - 1 - config.warm_start_steps * (len(term) > config.warm_start_steps)
    grown = (later / first) ** min(steps / config.update_weight_steps, 1.0)
    return float(np.nan_to_num(term[-1] / term[0] / grown, nan=_INFINITE, posinf=_INFINITE))


class Work(AbstractContextManager["Work"]):
    """Makes the parts of an audit one after the other; those that are in the store are not made again."""

    def __init__(
        self, model: Model, title: str, num_parts: int, store: str | os.PathLike[str] | None, device: str
    ) -> None:
        self.model, self._device, self._title = model, device, title
        self._stack = ExitStack()
        self._store = None if store is None else self._stack.enter_context(Store(store))
        self._bar = self._stack.enter_context(
            progress_bar(total=num_parts, desc=title, unit="part", miniters=0, mininterval=1.0)
        )
        self._stop = self._stack.enter_context(interruptible("Stopping; Ctrl-C again stops at once."))

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    @property
    def is_stopped(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return self._stop.is_set()

    def part(self, name: str, settings: Row, compute: Callable[[], Row | None]) -> Row | None:
        """The result of a part as plain JSON values, from the store or computed; None after Ctrl-C.

        Args:
            name: for the progress bar.
            settings: everything that decides the result, as plain JSON values.
            compute: gives None if Ctrl-C stopped it.
        """
        if self.is_stopped:
            return None
        self._bar.set_description(f"{self._title}: {name}")
        settings = {**settings, "version": version("fedavg-leakage-workbench")}
        key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:32]
        row = None if self._store is None else self._store.kept(key)
        if row is None:
            row = compute()
            if row is not None and self._store is not None:
                self._store.keep(key, settings, row)
        self._bar.update(row is not None)
        return row

    def attack(
        self, name: str, observation: Observation, config: AttackConfig, seed: int, label_counts: Any = None
    ) -> Found | None:
        """Attack an update to the last configured step; None after Ctrl-C."""
        settings = {
            "part": "attack",
            "form": 2,
            "network": digest_of_network(self.model, observation),
            "weights": sha256(observation.server_weights, observation.client_weights),
            "observation": observed_settings(observation),
            "normalization": asdict(observation.normalization),
            "config": asdict(config),
            "seed": seed,
            "label_counts": None if label_counts is None else np.asarray(label_counts).tolist(),
        }
        row = self.part(name, settings, lambda: self._run(observation, config, seed, label_counts))
        return None if row is None else Found.from_row(row)

    def _run(self, observation: Observation, config: AttackConfig, seed: int, label_counts: Any) -> Row | None:
        started = time.perf_counter()
        session = AttackSession(
            self.model,
            observation,
            config,
            label_counts=label_counts,
            seed=seed,
            device=self._device,
            snapshot_every=2**30,
        )
        while (left := session.total_steps - session.num_steps) > 0 and session.outcome is not Outcome.DIVERGED:
            if self.is_stopped:
                return None
            session.step(min(_STEPS, left))
            self._bar.set_postfix_str(f"step {session.num_steps} of {session.total_steps}", refresh=False)
            self._bar.update(0)
        found = session.reconstruction()
        pixels = np.asarray(found.images, np.float32)
        return {
            "pixels": base64.b64encode(zlib.compress(pixels.tobytes())).decode(),
            "shape": pixels.shape,
            "labels": found.labels.tolist(),
            "label_counts": session.label_counts.tolist(),
            "residuals": None if found.residuals is None else found.residuals.tolist(),
            "config": asdict(session.config),
            "outcome": session.outcome.name,
            "update_left": _update_left(session),
            "steps": session.num_steps,
            "seconds": round(time.perf_counter() - started, 2),
            "seed": seed,
            "device": f"{session.device_name} ({session.device.device_kind})",
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        }


def sha256(*values: Any) -> str:
    """A digest of arrays and trees of arrays, with their names, shapes and types."""
    return digest_of({keystr(path): np.asarray(leaf) for path, leaf in tree_leaves_with_path(values)})


def digest_of_network(model: Model, observation: Observation) -> str:
    """A digest of what a network computes for two fixed images at the server's weights.

    Two networks with equal weights can compute different logits, for instance by their order of flattening.
    """
    probe = np.random.default_rng(0).random((2, *observation.image_shape), np.float32)
    logits = model.apply(observation.server_weights, jnp.asarray(observation.normalization.normalize(probe)))
    return sha256({model.name: np.round(logits, 3)})


def training_of(observation: Observation) -> ClientConfig:
    """How the server asked the client to train."""
    return ClientConfig(
        epochs=observation.epochs,
        batch_size=observation.batch_size,
        learning_rate=observation.learning_rate,
        **observation.training.changes,
    )


def updated(
    model: Model, observation: Observation, clients: Sequence[ClientData], training: ClientConfig, seed: int = 0
) -> Observation:
    """What the server sees of clients that start from the weights of the observation; of several, their aggregate."""
    return aggregate(
        [
            client_update(model, observation.server_weights, client, training, seed=seed + number)
            for number, client in enumerate(clients)
        ]
    )


def best_settings(observation: Observation, **changes: Any) -> AttackConfig:
    """The preset ``best`` for this kind of images: grey ones are like characters, the others like photographs."""
    return AttackConfig.preset("best", dataset=bundled(observation), **changes)


def bundled(observation: Observation) -> str:
    """The bundled data set whose images are most like those of the observation."""
    return "glyphs" if observation.image_shape[-1] == 1 else "photos"
