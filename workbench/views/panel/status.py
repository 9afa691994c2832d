"""What a panel says and allows in a situation: pure functions of a `Situation`."""

from __future__ import annotations

from workbench.errors import WorkbenchError, shown
from workbench.study.show.live import duration
from workbench.views.panel.state import Command, Message, Request, Situation, State

__all__ = ["error_text", "pace_text", "refusals", "run_label", "status_of"]

# A phase that waits longer than this for its first step is being compiled.
_COMPILING_SECONDS = 0.5

_SENTENCES = {
    State.EMPTY: "Nothing is built yet: press Build or Run.",
    State.BUILDING: "Building.",
    State.READY: "Ready: Run starts the attack.",
    State.RUNNING: "Running.",
    State.PAUSED: "Paused at step {step}: steer, scrub back, step, or resume.",
    State.STOPPED: "Stopped at step {step}: Run continues.",
    State.FINISHED: "Finished: {step} of {total_steps} steps.",
    State.DIVERGED: "The attack diverged at step {step}: scrub back, go on from there, and steer.",
    State.FAILED: "{failure}",
    State.REPLAYING: "Recording: {num_moments} moments to play and scrub; nothing is computed.",
}
_CHANGED = "The settings have changed: Build or Run makes a new attack with them."

_NOT_RUNNING = "Nothing is running."
_PAUSE_FIRST = "The attack is running: pause it first."
_DIVERGED = "The attack has diverged: scrub back, go on from there, and steer."
_PLAYS = "A recording plays with the timeline below; nothing is computed."
_NO_SESSION = "A recording has no session, so it cannot continue."
_IDLE = {Command.PAUSE: _NOT_RUNNING, Command.STOP: _NOT_RUNNING}
_REFUSALS: dict[State, dict[Command, str]] = {
    State.EMPTY: _IDLE,
    State.BUILDING: {},
    State.READY: _IDLE,
    State.RUNNING: {
        Command.RUN: "The attack is running.",
        Command.STEP: _PAUSE_FIRST,
        Command.REWIND: _PAUSE_FIRST,
    },
    State.PAUSED: {Command.PAUSE: _NOT_RUNNING},
    State.STOPPED: _IDLE,
    State.FINISHED: _IDLE,
    State.DIVERGED: _IDLE,
    State.FAILED: _IDLE,
    State.REPLAYING: {
        **dict.fromkeys((Command.RUN, Command.PAUSE, Command.STEP, Command.STOP), _PLAYS),
        **dict.fromkeys((Command.RESET, Command.FORK, Command.SAVE, Command.REWIND), _NO_SESSION),
    },
}


def status_of(situation: Situation) -> Message:
    """The status line.

    >>> status_of(Situation(State.FINISHED, step=250, total_steps=250)).text
    'Finished: 250 of 250 steps.'
    """
    s = situation
    text, is_error = s.message
    if is_error:
        return s.message
    activity = _activity(s)
    if activity:
        if s.request in (Request.PAUSE, Request.STOP) and s.state in (State.RUNNING, State.BUILDING):
            return Message(f"{s.request.value}, after this: {activity[0].lower()}{activity[1:]}.")
        return Message(f"{activity} … {text}".rstrip())
    sentence = _SENTENCES[s.state].format_map(vars(s))
    if s.state is State.PAUSED:
        return Message(f"{sentence} {text}".rstrip())
    if text:
        return s.message
    if s.has_changed and s.state not in (State.EMPTY, State.FAILED, State.REPLAYING):
        return Message(_CHANGED)
    return Message(sentence, is_error=s.state is State.FAILED)


def _activity(s: Situation) -> str:
    """What is being computed, without a full stop; empty where nothing is."""
    if s.state is not State.RUNNING:
        return "" if s.job is None else s.job.value
    if s.step == 0 or (s.step == s.warm_start_steps and s.seconds_waiting > _COMPILING_SECONDS):
        return f"Compiling step {s.step + 1}, which takes some seconds ({s.seconds_waiting:.0f} s)"
    warm = " of the warm start" if s.step < s.warm_start_steps else ""
    return f"Running: step {s.step + 1}{warm}"


def refusals(situation: Situation) -> dict[Command, str]:
    """Why commands are not allowed; those that are have no entry.

    >>> refusals(Situation(State.READY))[Command.PAUSE]
    'Nothing is running.'
    """
    s = situation
    reasons = dict(_REFUSALS[s.state])
    if s.state is State.REPLAYING:
        return reasons
    if not s.has_session:
        needing = (Command.RESET, Command.FORK, Command.SAVE, Command.EXPORT)
        reasons |= dict.fromkeys(needing, "There is no attack yet: build one first.")
    if s.state is State.DIVERGED and not s.has_changed:
        reasons |= {Command.RUN: _DIVERGED, Command.STEP: _DIVERGED}
    if s.is_newest:
        reasons.setdefault(Command.REWIND, "Scrub back first: this is the newest moment.")
    return reasons


def run_label(situation: Situation) -> str:
    """What the Run button does next."""
    if situation.has_changed and situation.has_session:
        return "Build and run"
    return "Resume" if situation.state is State.PAUSED else "Run"


def pace_text(step: int, total_steps: int, seconds_per_step: float | None, seconds_left: float | None) -> str:
    """How far a run is, how fast, and how long it will take.

    >>> pace_text(50, 250, 0.1, 20)
    '50 of 250 steps · 10.0 steps/s · 20 s left'
    """
    parts = [f"{step} of {total_steps} steps"]
    if seconds_per_step:
        parts.append(f"{1 / seconds_per_step:.1f} steps/s")
        if seconds_left:
            parts.append(f"{duration(seconds_left)} left")
    return " · ".join(parts)


def error_text(error: BaseException) -> str:
    """An error for the status line; what the workbench raises on purpose is a sentence already."""
    if isinstance(error, WorkbenchError):
        return str(error)
    return f"Something went wrong ({type(error).__name__}): {shown(str(error))}"
