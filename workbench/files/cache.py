"""The cache folder: downloads, and libraries compiled for this machine."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_folder"]


def cache_folder() -> Path:
    """``$WORKBENCH_CACHE``, or the operating system's cache folder."""
    import pooch

    return Path(os.environ.get("WORKBENCH_CACHE") or pooch.os_cache("fedavg-leakage-workbench"))
