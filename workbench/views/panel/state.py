"""The names of everything a panel can do and be: states, jobs, commands; and one immutable description of it all."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

__all__ = ["Command", "Job", "Message", "Request", "Situation", "State"]


class State(Enum):
    """How the attack stands."""

    EMPTY = auto()
    BUILDING = auto()
    READY = auto()
    RUNNING = auto()
    PAUSED = auto()
    STOPPED = auto()
    FINISHED = auto()
    DIVERGED = auto()
    FAILED = auto()
    REPLAYING = auto()


class Job(Enum):
    """What the worker does, with its text for people."""

    BUILD = "Building: the client trains and the attack is prepared"
    START = "Starting"
    RESET = "Resetting to the start"
    REWIND = "Rewinding to an earlier step"
    FORK = "Forking"
    SAVE = "Saving the checkpoint"
    LOAD = "Loading the file"
    EXPORT = "Exporting"
    ESTIMATE_COST = "Estimating the cost"
    ESTIMATE_LABELS = "Estimating the labels"

    @property
    def is_quiet(self) -> bool:
        """Whether the status line leaves it out: it starts by itself, and nobody waits for it."""
        return self in (Job.ESTIMATE_COST, Job.ESTIMATE_LABELS)


class Command(Enum):
    """What a person can ask for, by a button each."""

    BUILD = auto()
    RUN = auto()
    PAUSE = auto()
    STEP = auto()
    STOP = auto()
    RESET = auto()
    REWIND = auto()
    FORK = auto()
    SAVE = auto()
    LOAD = auto()
    EXPORT = auto()


class Request(Enum):
    """What was asked of the run last, with its text while it has not happened yet."""

    NONE = ""
    RUN = "Running"
    PAUSE = "Pausing"
    STOP = "Stopping"


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
        request: what was asked of the run last.
        message: the last event worth reporting, until something else happens.
        failure: what made the run fail.
        step: how many steps were made.
        total_steps: of the configuration.
        warm_start_steps: how many of these are the warm start.
        seconds_waiting: since the last step ended.
        num_moments: in the recording that is shown.
        has_session: whether there is an attack, which may be about to be replaced.
        has_changed: whether the settings are no longer those of the attack.
        is_newest: whether the timeline follows the newest step.
    """

    state: State
    job: Job | None = None
    request: Request = Request.NONE
    message: Message = field(default_factory=Message)
    failure: str = ""
    step: int = 0
    total_steps: int = 0
    warm_start_steps: int = 0
    seconds_waiting: float = 0.0
    num_moments: int = 0
    has_session: bool = True
    has_changed: bool = False
    is_newest: bool = False
