"""Federated averaging without an attack: local training, defences, aggregation, server rounds."""

from workbench.federated.client import ClientSecrets, batch_order, client_update, client_update_with_secrets
from workbench.federated.observation import Observation
from workbench.federated.rounds import Round, accuracy, aggregate, server_rounds

__all__ = [
    "ClientSecrets",
    "Observation",
    "Round",
    "accuracy",
    "aggregate",
    "batch_order",
    "client_update",
    "client_update_with_secrets",
    "server_rounds",
]
