"""What a panel can do and be, by name; and pure functions for what it says and allows in a situation."""

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from workbench.errors import WorkbenchError, shown
from workbench.progress import duration

__all__ = [
    "GIVEN",
    "Command",
    "Job",
    "Message",
    "Situation",
    "Stage",
    "State",
    "error_text",
    "pace_text",
    "refusals",
    "run_label",
    "status_of",
]

# A phase that waits longer than this for its first step is being compiled.
_COMPILING_SECONDS = 0.5


class State(Enum):
    """How the attack stands, with its sentence for people."""

    EMPTY = "Nothing is built yet: press Build or Run."
    BUILDING = "The attack is being built."
    READY = "Ready: Run starts the attack."
    RUNNING = "The attack is running."
    PAUSED = "Paused at step {step}: steer, scrub back, step, or resume."
    STOPPED = "Stopped at step {step}: Run continues."
    FINISHED = "Finished: {step} of {total_steps} steps."
    DIVERGED = "The attack diverged at step {step}: scrub back, rewind to there, and steer."
    FAILED = "The run failed at step {step}: {failure}"
    REPLAYING = "Recording of {step} steps: play it or scrub; nothing is computed."


class Job(Enum):
    """What the worker does, with its text for people."""

    BUILD = "Building"
    START = "Starting"
    RESET = "Resetting to the start"
    REWIND = "Rewinding to the step that is shown"
    FORK = "Forking"
    SAVE = "Saving the checkpoint"
    LOAD = "Loading the file"
    EXPORT = "Exporting"
    ESTIMATE_COST = "Estimating the cost"
    ESTIMATE_LABELS = "Estimating the labels"

    @property
    def is_quiet(self) -> bool:
        """Whether the status line leaves it out: it starts by itself, and no person waits for it."""
        return self in (Job.ESTIMATE_COST, Job.ESTIMATE_LABELS)


# What a person can ask for, by a button each.
Command = Enum(
    "Command",
    ["BUILD", "RUN", "PAUSE", "STEP", "STOP", "RESET", "FORK", "SAVE", "LOAD", "EXPORT", "REWIND", "CHOOSE"],
)


class Stage(Enum):
    """What a build does, in order, with its text for people; compiling comes with the first step of the run."""

    TRAIN = "the client trains; then labels, then compiling"
    LABELS = "label counts are estimated and the attack is prepared; then compiling"


class Message(NamedTuple):
    """A text for people, and whether it reports an error."""

    text: str = ""
    is_error: bool = False


@dataclass(frozen=True)
class Situation:
    """Everything that decides what the status line says and which commands are allowed.

    Attributes:
        state: of the attack.
        job: what the worker does or will do next, without quiet jobs.
        stage: of the build, while there is one.
        request: what was asked of the run last: RUN, STEP, PAUSE or STOP.
        message: the last event worth reporting, until something else happens.
        failure: what made the run fail.
        step: how many steps were made.
        total_steps: of the configuration.
        warm_start_steps: how many of these are the warm start.
        seconds_waiting: since the last step ended.
        has_session: whether there is an attack, which may be about to be replaced.
        has_changed: whether the settings are no longer those of the attack.
        is_newest: whether the newest moment is looked at.
        is_given: whether the panel was given an update, so that there is no client to choose.
    """

    state: State
    job: Job | None = None
    stage: Stage | None = None
    request: Command | None = None
    message: Message = field(default_factory=Message)
    failure: str = ""
    step: int = 0
    total_steps: int = 0
    warm_start_steps: int = 0
    seconds_waiting: float = 0.0
    has_session: bool = True
    has_changed: bool = False
    is_newest: bool = False
    is_given: bool = False

    @property
    def is_stale(self) -> bool:
        """Whether what is shown is about to be replaced by an attack that is being built."""
        shows_attack = self.state is State.BUILDING and self.has_session
        return self.job is Job.BUILD and (shows_attack or self.state is State.REPLAYING)


GIVEN = "This panel was given an update; wb.AttackPanel() lets you choose the client."

_ASKED = {Command.PAUSE: "Pausing", Command.STOP: "Stopping"}

_IDLE = dict.fromkeys((Command.PAUSE, Command.STOP), "Nothing is running.")
_REFUSALS: dict[State, dict[Command, str]] = {
    State.EMPTY: _IDLE,
    State.BUILDING: {},
    State.READY: _IDLE,
    State.RUNNING: {
        Command.RUN: "The attack is running.",
        **dict.fromkeys((Command.STEP, Command.REWIND), "The attack is running: pause it first."),
    },
    State.PAUSED: {Command.PAUSE: "The attack is paused."},
    State.STOPPED: _IDLE,
    State.FINISHED: dict.fromkeys((Command.PAUSE, Command.STOP), "Finished already: nothing is running."),
    State.DIVERGED: {
        **_IDLE,
        **dict.fromkeys(
            (Command.RUN, Command.STEP), "The attack has diverged: scrub back, rewind to there, and steer."
        ),
    },
    State.FAILED: _IDLE,
    State.REPLAYING: {
        **dict.fromkeys(
            (Command.RUN, Command.PAUSE, Command.STEP, Command.STOP),
            "A recording plays with the timeline below; nothing is computed.",
        ),
        **dict.fromkeys(
            (Command.RESET, Command.FORK, Command.SAVE, Command.REWIND),
            "A recording has no session, so it cannot continue.",
        ),
    },
}


def status_of(situation: Situation) -> Message:
    """The status line.

    >>> status_of(Situation(State.FINISHED, step=250, total_steps=250)).text
    'Finished: 250 of 250 steps.'
    """
    state, (text, is_error) = situation.state, situation.message
    if is_error:
        return situation.message
    activity = _activity(situation)
    if activity:
        if situation.request in _ASKED and state in (State.RUNNING, State.BUILDING):
            return Message(f"{_ASKED[situation.request]}, after this: {activity[0].lower()}{activity[1:]}.")
        return Message(f"{activity} … {text}".rstrip())
    sentence = state.value.format_map(vars(situation))
    if state is State.PAUSED:
        return Message(f"{sentence} {text}".rstrip())
    if text:
        return situation.message
    if situation.has_changed and state not in (State.EMPTY, State.FAILED):
        return Message("The settings have changed: Build or Run makes a new attack with them.")
    return Message(sentence, is_error=state is State.FAILED)


def _activity(situation: Situation) -> str:
    """What is being computed, without a full stop; empty where nothing is."""
    if situation.state is not State.RUNNING:
        if situation.job is Job.BUILD and situation.stage is not None:
            return f"{situation.job.value}: {situation.stage.value}"
        return "" if situation.job is None else situation.job.value
    step, seconds = situation.step, situation.seconds_waiting
    if step == 0 or (step == situation.warm_start_steps and seconds > _COMPILING_SECONDS):
        return f"Compiling step {step + 1}, which takes some seconds ({seconds:.0f} s)"
    return f"Running: step {step + 1}{' of the warm start' if step < situation.warm_start_steps else ''}"


def refusals(situation: Situation) -> dict[Command, str]:
    """Why commands are not allowed; those that are have no entry.

    >>> refusals(Situation(State.READY))[Command.PAUSE]
    'Nothing is running.'
    """
    reasons = dict(_REFUSALS[situation.state])
    if situation.state is State.DIVERGED and situation.has_changed:
        reasons = dict(_IDLE)  # a new attack is built
    if not situation.has_session and situation.state is not State.REPLAYING:
        needing = (Command.RESET, Command.FORK, Command.SAVE, Command.EXPORT)
        reasons |= dict.fromkeys(needing, "There is no attack yet: build one first.")
    if situation.is_given:
        reasons[Command.CHOOSE] = GIVEN
    if situation.is_newest:
        reasons.setdefault(Command.REWIND, "Scrub back first: this is the newest moment.")
    return reasons


def run_label(situation: Situation) -> str:
    """What the Run button does next."""
    if situation.has_changed and situation.has_session:
        return "Build and run"
    return "Resume" if situation.state is State.PAUSED else "Run"


def pace_text(step: int, total_steps: int, seconds_per_step: float | None = None, left: float | None = None) -> str:
    """How far a run is, how fast, and how many seconds are left.

    >>> pace_text(50, 250, 0.1, 20)
    '50 of 250 steps · 10.0 steps/s · 20 s left'
    """
    speed = f" · {1 / seconds_per_step:.1f} steps/s" if seconds_per_step else ""
    rest = f" · {duration(left)} left" if seconds_per_step and left else ""
    return f"{step} of {total_steps} steps{speed}{rest}"


def error_text(error: BaseException) -> str:
    """An error for the status line; what the workbench raises on purpose is a sentence already."""
    if isinstance(error, WorkbenchError):
        return str(error)
    return f"Something went wrong ({type(error).__name__}): {shown(str(error))}"
