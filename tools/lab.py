"""Start JupyterLab on the first notebook; further arguments go to JupyterLab, and win over those given here."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIRST_NOTEBOOK = Path("notebooks/00_start_here.ipynb")


def arguments(given: list[str]) -> list[str]:
    """All arguments: JupyterLab refuses one that is given twice."""
    named = {argument.partition("=")[0] for argument in given}
    return [*(own for own in own_arguments() if own.partition("=")[0] not in named), *given]


def own_arguments() -> list[str]:
    page = f"/lab/tree/{FIRST_NOTEBOOK}" if (ROOT / FIRST_NOTEBOOK).exists() else "/lab"
    return [
        f"--ServerApp.root_dir={ROOT}",
        "--ServerApp.ip=127.0.0.1",
        "--ServerApp.allow_root=True",
        # As the start page rather than as a file to open: so the printed address leads to the notebook too.
        f"--LabApp.default_url={page}",
        # Nothing leaves this machine: no list of extensions from the package index, and by the settings no news and no
        # update check.
        "--LabApp.extension_manager=readonly",
        f"--LabApp.app_settings_dir={ROOT / 'tools/lab_settings'}",
    ]


if __name__ == "__main__":
    os.execv(sys.executable, [sys.executable, "-m", "jupyterlab", *arguments(sys.argv[1:])])
