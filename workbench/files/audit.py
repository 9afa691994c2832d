"""Audit files: what a federation's server sent to clients and received from them in one round.

`workbench.auditing.flower` writes them, in the federation's environment.
"""

import os
from dataclasses import dataclass, field
from typing import Any

from workbench.errors import CheckpointError, DataError, check_count, shown
from workbench.files.container import Tensors, digest_of, fitting_together, read

__all__ = ["RecordedClient", "RecordedRound", "read_audit_file"]

KIND, FORMAT = "audit file", 1


@dataclass(frozen=True, eq=False)
class RecordedClient:
    """One client in a recorded round.

    Attributes:
        id: the federation's name of the client.
        num_images: how many images it said that it trained on; None if it said nothing.
        config: the settings that the server sent with the weights.
        metrics: the numbers that the client sent with its update.
        sent: the arrays that the server sent.
        received: the arrays that the client sent back.
        hashes: SHA-256 of the two.
    """

    id: str
    num_images: int | None
    config: dict[str, Any]
    metrics: dict[str, Any]
    sent: Tensors = field(repr=False)
    received: Tensors = field(repr=False)
    hashes: tuple[str, str] = field(repr=False)


@dataclass(frozen=True, eq=False)
class RecordedRound:
    """A round of a federation, for the clients that were recorded."""

    server_round: int
    strategy: str
    framework: str
    clients: tuple[RecordedClient, ...]

    def client(self, which: str | int) -> RecordedClient:
        """A client by its id, or by its place among those recorded; a text is an id first, a number a place first."""
        ids, places = [one.id for one in self.clients], [str(place) for place in range(len(self.clients))]
        for names in (places, ids) if isinstance(which, int) else (ids, places):
            if str(which) in names:
                return self.clients[names.index(str(which))]
        known = shown(", ".join(ids))
        raise DataError(
            f"client = {shown(which)} was not recorded; give a place from 0 to {len(self.clients) - 1} or one of the "
            f"ids {known}."
        )


def read_audit_file(path: str | os.PathLike[str]) -> RecordedRound:
    """The round in an audit file; its hashes are verified, and nothing is unpickled."""
    settings, tensors = read(path, KIND, FORMAT)
    with fitting_together(path, KIND):
        sets = {
            digest: _checked(
                digest, {name: tensors[f"{digest}/{place}"] for place, name in enumerate(settings["layouts"][layout])}
            )
            for digest, layout in settings["sets"].items()
        }
        clients = tuple(
            RecordedClient(
                id=str(one["id"]),
                num_images=None if one["num_images"] is None else check_count("num_images", one["num_images"]),
                config=dict(one["config"]),
                metrics=dict(one["metrics"]),
                sent=sets[one["sent"]],
                received=sets[one["received"]],
                hashes=(one["sent"], one["received"]),
            )
            for one in settings["clients"]
        )
        if not clients:
            raise CheckpointError("it has no clients.")
        number = check_count("server_round", settings["server_round"])
        return RecordedRound(number, str(settings["strategy"]), str(settings["framework"]), clients)


def _checked(digest: str, arrays: Tensors) -> Tensors:
    if digest_of(arrays) != digest:
        raise CheckpointError(f"its arrays {shown(digest)} do not match their SHA-256.")
    return arrays
