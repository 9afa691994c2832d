"""Record what a Flower server sends to its clients and receives from them, in one file for an audit.

This file needs NumPy and safetensors alone: neither flwr nor the rest of the workbench, which asks for other versions
of the same libraries. ``python -m workbench.auditing.flower > recorder.py`` writes a copy for the federation's server:

    from recorder import record

    strategy = record(FedAvg(...), "round3.audit", server_round=3)

`workbench.Observation.from_audit_file` opens what it writes.
"""

import functools
import hashlib
import io
import json
import logging
import os
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

__all__ = ["record"]

# The reader is `workbench.files.audit`; the checksum is that of `workbench.files.container`.
KIND, FORMAT = "audit file", 1
_MOST_SETTINGS = 2**20
# The method that sends, the one that gets the answers, and the argument that has them.
_APIS = (("configure_fit", "aggregate_fit", "results"), ("configure_train", "aggregate_train", "replies"))

Strategy = TypeVar("Strategy")
Arrays = dict[str, NDArray[Any]]


def record(
    strategy: Strategy,
    path: str | os.PathLike[str],
    *,
    server_round: int = 1,
    clients: int | Collection[str] | None = None,
) -> Strategy:
    """Let a strategy write an audit file when a round ends, and return it; what it decides does not change.

    Both interfaces of Flower are known by their methods: ``flwr.server.strategy.Strategy`` (``configure_fit`` and
    ``aggregate_fit``) and ``flwr.serverapp.strategy.Strategy`` (``configure_train`` and ``aggregate_train``). If
    recording fails, the reason is logged and the federation goes on. Call it again for another round.

    Args:
        strategy: of the server.
        path: the file to write.
        server_round: the round to record; Flower counts from 1.
        clients: whom to record: the first so many of the round, those with these ids (``ClientProxy.cid``, or the node
            id as a string), or None for all.
    """
    known = [names for names in _APIS if all(callable(getattr(strategy, name, None)) for name in names[:2])]
    if not known:
        raise TypeError(f"strategy = {type(strategy).__name__} has none of Flower's pairs of methods, {_APIS}.")
    recorder = _Recorder(Path(path), server_round, clients, type(strategy).__name__)
    for sends, gets, answers in known:
        _replace(strategy, sends, recorder.around(getattr(strategy, sends)))
        _replace(strategy, gets, recorder.around(getattr(strategy, gets), answers))
    return strategy


def _replace(strategy: Any, name: str, method: Callable[..., Any]) -> None:
    try:
        setattr(strategy, name, method)
    except AttributeError:
        # An object with __slots__ or a frozen one takes a method from its class alone.
        kind: Any = type(strategy)
        changed: Any = type(kind)(kind.__name__, (kind,), {"__slots__": (), name: staticmethod(method)})
        object.__setattr__(strategy, "__class__", changed)


@dataclass
class _Recorder:
    """What was sent in the round, until the answers arrive."""

    path: Path
    server_round: int
    clients: int | Collection[str] | None
    strategy: str
    sent: Any = ()

    def around(self, method: Callable[..., Any], answers: str = "") -> Callable[..., Any]:
        """The method, with the messages of the chosen round kept.

        Args:
            method: of the strategy.
            answers: the argument with the messages; without it they are what the method returns.
        """

        @functools.wraps(method)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            # Flower gives some arguments by name; the first is the round, the second of an answer the messages.
            given: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
            is_chosen = given.get("server_round", given.get(0)) == self.server_round
            if is_chosen and answers:
                place = answers if answers in given else 1
                given[place] = _readable(given.get(place))
                self._write(given[place])
                args, kwargs = tuple(given[i] for i in range(len(args))), {name: given[name] for name in kwargs}
            result = method(*args, **kwargs)
            if is_chosen and not answers:
                result = self.sent = _readable(result)
            return result

        return recorded

    def _write(self, answers: Any) -> None:
        """Write the file; a failure must not stop the federation."""
        try:
            _write(self.path, *self._content(answers))
        except Exception:
            logging.getLogger(__name__).exception("The audit file %s could not be recorded.", self.path)

    def _content(self, answers: Any) -> tuple[dict[str, Any], Arrays]:
        """The settings and the arrays of the file; what every client gets is stored once."""
        sent = {_client(message): message for message in self.sent}
        received = {
            _client(answer, is_answer=True): answer for answer in answers if not getattr(answer, "has_error", bool)()
        }
        chosen = sent if self.clients is None else self.clients
        wanted = list(sent)[:chosen] if isinstance(chosen, int) else chosen
        # Only those are decoded: a round may have thousands of clients.
        pairs = {
            client: (_opened(sent[client]), _opened(received[client], is_answer=True))
            for client in sent
            if client in wanted and client in received
        }
        if not pairs:
            raise ValueError(f"none of the chosen clients answered in round {self.server_round}")
        sets = {_digest(one.arrays): one.arrays for pair in pairs.values() for one in pair}
        layouts = list(dict.fromkeys(tuple(arrays) for arrays in sets.values()))
        settings = {
            "server_round": self.server_round,
            "strategy": self.strategy,
            "framework": f"flwr {getattr(sys.modules.get('flwr'), '__version__', 'of unknown version')}",
            "layouts": layouts,
            "sets": {digest: layouts.index(tuple(arrays)) for digest, arrays in sets.items()},
            "clients": [
                {
                    "id": client,
                    "config": _plain(message.values),
                    "sent": _digest(message.arrays),
                    "num_images": answer.num_images,
                    "metrics": _plain(answer.values),
                    "received": _digest(answer.arrays),
                }
                for client, (message, answer) in pairs.items()
            ],
        }
        return settings, {
            f"{digest}/{i}": one for digest, arrays in sets.items() for i, one in enumerate(arrays.values())
        }


def _readable(messages: Any) -> Any:
    """A generator can be read once, so its messages are kept in a list."""
    return list(messages) if isinstance(messages, Iterator) else messages


class _Message(NamedTuple):
    arrays: Arrays
    values: dict[str, Any]
    num_images: Any


def _client(message: Any, *, is_answer: bool = False) -> str:
    if isinstance(message, tuple):
        return str(message[0].cid)
    return str(message.metadata.src_node_id if is_answer else message.metadata.dst_node_id)


def _opened(message: Any, *, is_answer: bool = False) -> _Message:
    """One message of either interface: its values are the configuration or the metrics."""
    if isinstance(message, tuple):
        content = message[1]
        arrays = {str(place): _array(data) for place, data in enumerate(content.parameters.tensors)}
        values = content.metrics if is_answer else content.config
        return _Message(arrays, dict(values), getattr(content, "num_examples", None))
    records = message.content.array_records
    # Names say which record an array is from only where there are several.
    arrays = {
        name if len(records) == 1 else f"{key}.{name}": _array(one.data)
        for key, arrays in records.items()
        for name, one in arrays.items()
    }
    parts = message.content.metric_records if is_answer else message.content.config_records
    values = {name: value for part in parts.values() for name, value in part.items()}
    return _Message(arrays, values, values.get("num-examples"))


def _array(data: bytes) -> NDArray[Any]:
    return np.array(np.load(io.BytesIO(data), allow_pickle=False), order="C")


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Numbers and texts as they are, and everything else as text: JSON has no bytes and no NaN."""
    return {
        str(name): one
        if isinstance(one, str | int) or (isinstance(one, float) and np.isfinite(one))
        else repr(one)[:1000]
        for name, one in values.items()
    }


def _digest(arrays: Arrays, texts: str = "") -> str:
    digest = hashlib.sha256(texts.encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _write(path: Path, settings: dict[str, Any], tensors: Arrays) -> None:
    text = json.dumps(settings, sort_keys=True, allow_nan=False)
    if len(text) > _MOST_SETTINGS:
        raise ValueError(f"{len(settings['clients'])} clients are too many for one file; choose some with clients=")
    about = {"kind": KIND, "format": str(FORMAT), "settings": text}
    digest = _digest(tensors, "".join(f"{name} {value}\n" for name, value in about.items()))
    path.parent.mkdir(parents=True, exist_ok=True)
    # Renamed at the end, so that nobody reads half a file.
    partial = path.with_name(f"{path.name}.part")
    partial.write_bytes(save(tensors, {**about, "sha256": digest}))
    partial.replace(path)


if __name__ == "__main__":
    sys.stdout.write(Path(__file__).read_text())
