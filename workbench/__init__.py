"""A workbench for studying, teaching and auditing data leakage in federated averaging.

The public names are gathered here; importing the package imports no widget code.
"""

from typing import TYPE_CHECKING, Any

from workbench import models, study
from workbench.auditing.audit import audit
from workbench.auditing.checks import check
from workbench.auditing.twin import calibrate
from workbench.config import AttackConfig, ClientConfig, DefenceConfig
from workbench.data import ClientData, Dataset, load_dataset
from workbench.errors import CheckpointError, ConfigError, DataError, WorkbenchError
from workbench.federated import (
    Observation,
    accuracy,
    aggregate,
    client_update,
    client_update_with_secrets,
    server_rounds,
)
from workbench.files.weights import load_weights, save_weights
from workbench.metrics import label_errors, score
from workbench.session import AttackSession, Recording, SessionRunner, replay

if TYPE_CHECKING:
    from workbench.views.panel import AttackPanel

__all__ = [
    "AttackConfig",
    "AttackPanel",
    "AttackSession",
    "CheckpointError",
    "ClientConfig",
    "ClientData",
    "ConfigError",
    "DataError",
    "Dataset",
    "DefenceConfig",
    "Observation",
    "Recording",
    "SessionRunner",
    "WorkbenchError",
    "accuracy",
    "aggregate",
    "audit",
    "calibrate",
    "check",
    "client_update",
    "client_update_with_secrets",
    "label_errors",
    "load_dataset",
    "load_weights",
    "models",
    "replay",
    "save_weights",
    "score",
    "server_rounds",
    "study",
]


def __getattr__(name: str) -> Any:
    """The panel, when it is first asked for: widgets take a while to import, and most uses need none."""
    if name == "AttackPanel":
        from workbench.views.panel import AttackPanel

        return AttackPanel
    raise AttributeError(f"module 'workbench' has no attribute {name!r}")
