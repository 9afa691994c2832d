"""The immutable state of a session between two steps, and the pure functions that make the next one from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from workbench.attack.attack import Attack
from workbench.attack.objective import Steering, Terms
from workbench.attack.step import AttackState, StepInfo
from workbench.session.history import Outcome, SessionHistory, SteeringEvent, steering_field

__all__ = ["Moment", "Snapshot", "advanced", "first_moment", "resumed", "rewound", "size_of"]


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What views show of a session: immutable; `AttackSession.reconstruction` computes its images."""

    step: int
    total_steps: int
    outcome: Outcome
    loss: float | None
    terms: dict[str, float]
    seconds_per_step: float | None
    state: AttackState
    rewinds: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Moment:
    """Everything about a session that changes. A session replaces it as a whole, so no thread sees half a change.

    Attributes:
        state: what the attack carries from step to step.
        step: number of steps made; the same as ``state.step``, but on the host.
        phase: index of the phase; the same as ``state.phase``, but on the host.
        infos: the `StepInfo` of all steps made, stacked: NumPy arrays [n].
        steering: the weights and the step size of the next step.
        events: every change of the steering that acted on a step made, or acts on the next one.
        snapshots: kept states by step; the start is always among them.
        snapshot_every: smallest distance between two kept states, in steps.
        has_diverged: whether the next step would have no finite loss.
        rewinds: the step of every rewind so far; what a view has of later steps may be of a run that did not happen.
    """

    state: AttackState
    step: int
    phase: int
    infos: StepInfo
    steering: Steering
    events: tuple[SteeringEvent, ...]
    snapshots: dict[int, AttackState]
    snapshot_every: int
    has_diverged: bool = False
    rewinds: tuple[int, ...] = ()

    @property
    def history(self) -> SessionHistory:
        infos = jax.tree.map(np.copy, self.infos)  # a caller may change its arrays
        return SessionHistory(
            loss=infos.loss,
            terms=infos.terms._asdict(),
            gradient_norm=infos.gradient_norm,
            step_size=infos.step_size,
            steering=self.events,
            snapshot_steps=tuple(sorted(self.snapshots)),
        )

    @property
    def states(self) -> dict[int, AttackState]:
        """The kept states and the current one, by step."""
        return self.snapshots | {self.step: self.state}

    def outcome(self, total_steps: int) -> Outcome:
        if self.has_diverged:
            return Outcome.DIVERGED
        if self.step == 0:
            return Outcome.NEW
        return Outcome.FINISHED if self.step >= total_steps else Outcome.IN_PROGRESS

    def snapshot(self, total_steps: int, seconds_per_step: float | None) -> Snapshot:
        terms = self.infos.terms._asdict()
        return Snapshot(
            step=self.step,
            total_steps=total_steps,
            outcome=self.outcome(total_steps),
            loss=float(self.infos.loss[-1]) if self.step else None,
            terms={name: float(values[-1]) for name, values in terms.items()} if self.step else {},
            seconds_per_step=seconds_per_step,
            state=self.state,
            rewinds=self.rewinds,
        )

    def steered(self, changes: Mapping[str, float]) -> Moment:
        """With changes that act on the next step. They replace earlier changes before the same step."""
        if not changes:
            return self
        events = [event for event in self.events if event.step < self.step or event.name not in changes]
        events += [SteeringEvent(self.step, name, value) for name, value in changes.items()]
        steering = self.steering._replace(**{steering_field(name): value for name, value in changes.items()})
        return replace(self, events=tuple(events), steering=steering)

    def with_snapshot(self, max_bytes: int) -> Moment:
        """Keep the current state if it is due; above ``max_bytes``, thin the kept states to every other one."""
        if self.step - max(self.snapshots) < self.snapshot_every:
            return self
        kept, every = self.states, self.snapshot_every
        while len(kept) > 1 and sum(map(size_of, kept.values())) > max_bytes:
            # The start stays because every replay can begin there; the newest stays as long as two fit.
            every, steps = 2 * every, sorted(kept)
            kept = {step: kept[step] for step in (*steps[:-1:2], *steps[-1:] * (len(steps) > 2))}
        return replace(self, snapshots=kept, snapshot_every=every)


def first_moment(attack: Attack, snapshot_every: int) -> Moment:
    """The moment before the first step."""
    start, none = attack.start(), np.zeros(0, np.float32)
    infos = StepInfo(none, Terms(*[none] * len(Terms._fields)), none, none)
    return Moment(start, 0, 0, infos, attack.steering, (), {0: start}, snapshot_every)


def resumed(attack: Attack, first: Moment, state: AttackState, history: SessionHistory, has_diverged: bool) -> Moment:
    """The moment that a checkpoint holds; of the kept states it has the start alone."""
    infos = StepInfo(history.loss, Terms(**history.terms), history.gradient_norm, history.step_size)
    step = len(history.loss)
    return replace(
        first,
        state=state,
        step=step,
        phase=int(state.phase),
        infos=infos,
        steering=_steering_at(attack, history.steering, step),
        events=history.steering,
        has_diverged=has_diverged,
    )


def advanced(attack: Attack, moment: Moment, state: AttackState, infos: StepInfo, num_steps: int) -> Moment:
    """The moment after an attack was asked for ``num_steps`` steps and returned this state and these infos.

    If the attack stopped early or its images cannot be used, this is the last step with a finite loss, marked as
    diverged.
    """
    made = len(infos.loss)
    joined = jax.tree.map(lambda *parts: np.concatenate(parts), moment.infos, infos)
    after = replace(moment, state=state, step=moment.step + made, phase=int(state.phase), infos=joined)
    is_usable = _is_usable(attack, state, moment.steering, was_stopped=made < num_steps)
    if is_usable and made == num_steps:
        return after
    last_good = after.step if is_usable else max(after.step - 1, 0)
    events = tuple(event for event in moment.events if event.step <= last_good)
    return _cut(attack, replace(moment, infos=joined), last_good, events, has_diverged=True)


def rewound(attack: Attack, moment: Moment, step: int) -> Moment:
    """The moment as it was at an earlier step, before any steering of that step."""
    earlier = replace(moment, rewinds=(*moment.rewinds, step))
    return _cut(attack, earlier, step, tuple(event for event in moment.events if event.step < step))


def _cut(
    attack: Attack, moment: Moment, step: int, events: tuple[SteeringEvent, ...], *, has_diverged: bool = False
) -> Moment:
    state = _state_at(attack, moment, step)
    return replace(
        moment,
        state=state,
        step=step,
        phase=int(state.phase),
        infos=jax.tree.map(lambda array: array[:step], moment.infos),
        steering=_steering_at(attack, events, step),
        events=events,
        snapshots={at: kept for at, kept in moment.snapshots.items() if at <= step},
        has_diverged=has_diverged,
    )


def _state_at(attack: Attack, moment: Moment, step: int) -> AttackState:
    """The state at an earlier step, computed again from the nearest kept one before it."""
    at = max(kept for kept in moment.states if kept <= step)
    state = moment.states[at]
    while at < step:
        following = min((event.step for event in moment.events if at < event.step < step), default=step)
        state, _ = attack.advance(state, _steering_at(attack, moment.events, at), following - at)
        at = following
    jax.block_until_ready(state)  # type: ignore[no-untyped-call]
    return state


def _steering_at(attack: Attack, events: Sequence[SteeringEvent], step: int) -> Steering:
    """The steering that acts on a step."""
    changes = {steering_field(event.name): event.value for event in events if event.step <= step}
    return attack.steering._replace(**changes)


def _is_usable(attack: Attack, state: AttackState, steering: Steering, *, was_stopped: bool) -> bool:
    """Whether the images are finite and, after an early stop, whether their loss and gradient are."""
    if not jnp.isfinite(jnp.vdot(state.images, state.images)):
        return False
    if not was_stopped:
        return True  # the next step computes the loss of these images
    return attack.has_finite_loss(state, steering)


def size_of(state: AttackState) -> int:
    """The bytes of a state."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(state))
