"""Where the workbench keeps what it can make or fetch again: downloads, and what is compiled for this machine."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_folder"]


def cache_folder() -> Path:
    """``$WORKBENCH_CACHE``, or the operating system's place for such files."""
    import pooch

    return Path(os.environ.get("WORKBENCH_CACHE") or pooch.os_cache("fedavg-leakage-workbench"))
