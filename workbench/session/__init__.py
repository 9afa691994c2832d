"""Interactive attacks: a session to step, steer, rewind, save and record, and a worker thread that drives it."""

from workbench.session.history import Outcome, SessionHistory, SteeringEvent
from workbench.session.moment import Snapshot
from workbench.session.recording import Recording, replay
from workbench.session.runner import SessionRunner
from workbench.session.session import AttackSession

__all__ = [
    "AttackSession",
    "Outcome",
    "Recording",
    "SessionHistory",
    "SessionRunner",
    "Snapshot",
    "SteeringEvent",
    "replay",
]
