"""The control room: a session to step, steer, rewind, save and record, and the worker thread that drives one."""

from workbench.session.history import Outcome, SessionHistory, SteeringEvent
from workbench.session.recording import Recording, replay
from workbench.session.runner import SessionRunner
from workbench.session.session import AttackSession, Snapshot

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
