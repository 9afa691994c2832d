"""The true data behind an update: one client's, or that of all clients of an aggregate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workbench.data.dataset import ClientData
from workbench.errors import DataError, shown

__all__ = ["Truth"]


@dataclass(frozen=True, eq=False)
class Truth:
    """The clients behind one update, as one set of images; empty if the truth is not known.

    >>> from workbench.data import load_dataset
    >>> clients = [load_dataset("glyphs").client(index, num_images=4) for index in (0, 1)]
    >>> Truth.of(clients).images.shape
    (8, 28, 28, 1)
    >>> bool(Truth.of(None))
    False
    """

    clients: tuple[ClientData, ...] = ()

    @staticmethod
    def of(truth: ClientData | Iterable[ClientData] | None) -> Truth:
        """The truth from one client, several clients, or None if it is not known."""
        if isinstance(truth, Truth):
            return truth
        if isinstance(truth, ClientData):
            return Truth((truth,))
        clients = tuple(truth) if isinstance(truth, Iterable) else () if truth is None else (truth,)
        if not all(isinstance(client, ClientData) for client in clients):
            raise DataError(f"truth = {shown(truth)} must be a ClientData, or a sequence of them for an aggregate.")
        return Truth(clients)

    def __iter__(self) -> Iterator[ClientData]:
        return iter(self.clients)

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def images(self) -> NDArray[np.float32]:
        """[A * N, H, W, C] pixels of all clients."""
        return np.concatenate([client.images for client in self.clients])

    @property
    def labels(self) -> NDArray[np.int32]:
        """[A * N] of all clients."""
        return np.concatenate([client.labels for client in self.clients])

    @property
    def label_counts(self) -> NDArray[np.int64]:
        """[A, K] the number of images of each class that each client has."""
        return np.stack([client.label_counts for client in self.clients])

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.clients[0].class_names

    @property
    def psnr_threshold(self) -> float:
        """The PSNR in dB above which an image counts as recovered."""
        return self.clients[0].psnr_threshold

    @property
    def name(self) -> str:
        return "; ".join(client.name for client in self.clients)
