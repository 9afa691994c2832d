"""The workbench on screen: widgets for JupyterLab that link to a session and its runner, and contain no attack."""

from workbench.views.panel.compare import ComparePanel
from workbench.views.panel.panel import AttackPanel

__all__ = ["AttackPanel", "ComparePanel"]
