"""A workbench for studying, teaching and auditing data leakage in federated averaging.

The public names are gathered here; importing the package imports no widget code.
"""

from workbench import models
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
from workbench.metrics import label_errors, score
from workbench.recording import Recording, replay
from workbench.runner import SessionRunner
from workbench.session import AttackSession
from workbench.weights import load_weights, save_weights

__all__ = [
    "AttackConfig",
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
]
