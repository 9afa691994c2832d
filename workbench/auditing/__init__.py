"""Other people's federations: checks before an attack, and a recorder for Flower."""

from workbench.auditing.checks import Checks, Finding, check

__all__ = ["Checks", "Finding", "check"]
