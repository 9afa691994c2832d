"""Several attacks beside each other: one timeline, the same pictures in the same places, their differences.

The attacks may have different updates of the same client, for instance with a defence and without.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.attack.matching import assign, psnr_matrix
from workbench.data import ClientData, Truth
from workbench.errors import ConfigError, shown
from workbench.metrics import score
from workbench.session import AttackSession, Recording, SessionRunner
from workbench.session.runner import RunnerState
from workbench.views.panel.worker import wait_in_turn

__all__ = ["Attacks", "Compared", "Row"]

# Room above and below the curves, in dB.
_MARGIN = 0.5


@dataclass(frozen=True, eq=False)
class Row:
    """One attack at one moment.

    Attributes:
        name: of the attack.
        step: how many steps it had made.
        images: [N, H, W, C] pixels, in places that are the same for every attack.
        psnr: [N] in dB; None where the truth is not known.
        ssim: [N]; None where the truth is not known.
    """

    name: str
    step: int
    images: NDArray[np.float32]
    psnr: NDArray[np.float64] | None
    ssim: NDArray[np.float64] | None


@dataclass(frozen=True, eq=False)
class Compared:
    """Every attack at one moment of the timeline; the first is the one that others are compared with.

    Attributes:
        truth: [N, H, W, C] in the places of all rows; None where it is not known.
        rows: one for each attack.
    """

    truth: NDArray[np.float32] | None
    rows: tuple[Row, ...]

    def differences(self) -> dict[str, NDArray[np.float32]]:
        """Every further attack to [N, H, W, C]: how far its pixels are from those of the first."""
        first, *others = self.rows
        return {row.name: np.abs(row.images - first.images) for row in others}

    def gains(self) -> dict[str, NDArray[np.float64]]:
        """Every further attack to [N]: its PSNR minus that of the first, in dB; empty where the truth is not known."""
        first, *others = self.rows
        if first.psnr is None:
            return {}
        return {row.name: row.psnr - first.psnr for row in others if row.psnr is not None}


class Attacks:
    """Attacks on the same images, run together and looked at together.

    Args:
        sources: sessions or recordings by name, at least two; recordings are looked at and not run.
        truth: the client, or all clients of an aggregate; None where it is not known.

    >>> import workbench as wb
    >>> client = wb.load_dataset("glyphs").client(0, num_images=4)
    >>> model = wb.models.mlp(widths=(16,))
    >>> sessions = {}
    >>> for name, defence in {"off": wb.DefenceConfig(), "on": wb.DefenceConfig("gaussian", 0.1)}.items():
    ...     training = wb.ClientConfig(epochs=2, batch_size=2, defence=defence)
    ...     observation = wb.client_update(model, model.init(), client, training)
    ...     sessions[name] = wb.AttackSession(model, observation, wb.AttackConfig(steps=3))
    >>> attacks = Attacks(sessions, client)
    >>> attacks.run()
    >>> attacks.wait(60)
    True
    >>> [row.name for row in attacks.at(attacks.steps[-1]).rows]
    ['off', 'on']
    """

    def __init__(
        self,
        sources: Mapping[str, AttackSession | Recording],
        truth: ClientData | Iterable[ClientData] | None = None,
    ) -> None:
        self.sources, self.truth = dict(sources), Truth.of(truth)
        if len(self.sources) < 2:
            raise ConfigError(f"sources = {shown(list(sources))} must be at least two attacks to compare.")
        shapes = {name: source.reconstruction_at(source.num_steps).images.shape for name, source in sources.items()}
        if len({*shapes.values(), *([self.truth.images.shape] if self.truth else [])}) > 1:
            raise ConfigError(f"sources have images of the shapes {shapes}; compare attacks on the same images.")
        self._kept: dict[tuple[Any, ...], Row] = {}

    # All of them at once

    @cached_property
    def runners(self) -> dict[str, SessionRunner]:
        """What drives each session."""
        return {
            name: SessionRunner(source) for name, source in self.sources.items() if isinstance(source, AttackSession)
        }

    def run(self, steps: int | None = None) -> None:
        """Start all, or continue all that pause."""
        for runner in self.runners.values():
            if runner.state is RunnerState.PAUSED:
                runner.resume()
            elif not runner.is_active:
                runner.start(steps)

    def step(self) -> None:
        """Make one step in all that do not run."""
        self.run(1)

    def pause(self) -> None:
        """Hold all after their current steps."""
        for runner in self.runners.values():
            runner.pause()

    def stop(self) -> None:
        """End all runs after their current steps."""
        for runner in self.runners.values():
            runner.stop()

    def reset(self) -> None:
        """Take all back to their start."""
        self.stop()
        self.wait()
        for runner in self.runners.values():
            runner.session.rewind(0)

    def wait(self, timeout: float | None = None) -> bool:
        """Until no run is under way; False where the time was not enough."""
        return wait_in_turn((runner.wait for runner in self.runners.values()), timeout)

    # One timeline

    @property
    def steps(self) -> list[int]:
        """The moments to look at: those that any attack has kept."""
        return sorted({step for source in self.sources.values() for step in _kept_steps(source)})

    def at(self, step: int) -> Compared:
        """All attacks at a moment; one that has not kept it shows the nearest that it has."""
        rows = [
            self._row(name, min(_kept_steps(source), key=lambda kept: abs(kept - step)))
            for name, source in self.sources.items()
        ]
        if self.truth:
            return Compared(self.truth.images, tuple(rows))
        # Without the truth, the images of the first attack decide which picture stands where.
        first, *others = rows
        placed = [_placed_like(first, row) for row in others]
        return Compared(None, (first, *placed))

    def _row(self, name: str, step: int) -> Row:
        source = self.sources[name]
        # The same steering leads to the same images, also after a rewind.
        key = name, step, tuple(event for event in source.history.steering if event.step < step)
        if key not in self._kept:
            step, images = _images(source, step)
            found = score(images, self.truth) if self.truth else None
            row = Row(name, step, images, None, None)
            if found is not None:
                row = Row(name, step, images[found.order], found.psnr, found.ssim)
            if step != key[1]:
                return row  # of a newer moment
            self._kept[key] = row
        return self._kept[key]

    def text(self, compared: Compared) -> str:
        """A moment in words: the mean PSNR of every attack, and how much each gains over the first."""
        parts = []
        for row in compared.rows:
            quality = "" if row.psnr is None else f" {row.psnr.mean():.1f} dB"
            parts.append(f"{row.name}{quality} at step {row.step}")
        gains = [f"{name} {gain.mean():+.1f} dB" for name, gain in compared.gains().items()]
        compared_with = f" Compared with {compared.rows[0].name}: {', '.join(gains)}." if gains else ""
        return f"{', '.join(parts)}.{compared_with}"

    # Shared axes

    def curves(self) -> dict[str, tuple[list[int], list[float]]]:
        """Every attack to its kept steps and the mean PSNR at each; empty where the truth is not known."""
        if not self.truth:
            return {}
        rows = {name: [self._row(name, step) for step in _kept_steps(source)] for name, source in self.sources.items()}
        return {
            name: ([row.step for row in of], [float(np.mean(row.psnr)) for row in of if row.psnr is not None])
            for name, of in rows.items()
        }

    def limits(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """The ends of the step axis and of the PSNR axis that hold the curves of all attacks."""
        curves = self.curves().values()
        levels = [level for _, values in curves for level in values]
        last = max(source.total_steps for source in self.sources.values())
        reached = max(self.steps)
        return (0.0, float(max(last, reached))), (
            (min(levels) - _MARGIN, max(levels) + _MARGIN) if levels else (0.0, 1.0)
        )


def _images(source: AttackSession | Recording, step: int) -> tuple[int, NDArray[np.float32]]:
    """The images at a kept step; a session that goes on in another thread may have dropped it for newer ones."""
    try:
        return step, source.reconstruction_at(step).images
    except ConfigError:
        if not isinstance(source, AttackSession):
            raise
        newest = source.snapshot()
        return newest.step, source.reconstruction(newest).images


def _kept_steps(source: AttackSession | Recording) -> list[int]:
    return sorted({*source.history.snapshot_steps, source.num_steps})


def _placed_like(first: Row, row: Row) -> Row:
    order = assign(psnr_matrix(first.images, row.images))
    return Row(row.name, row.step, row.images[order], None, None)
