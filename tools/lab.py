"""Start JupyterLab on the first notebook; further arguments go to JupyterLab, and win over those given here."""

import logging
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


def keep_compiled() -> None:
    """Kernels keep what JAX compiles, where the command line keeps it; a cache of the user's own goes first."""
    from workbench.files.cache import cache_folder

    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        os.environ |= {
            "JAX_COMPILATION_CACHE_DIR": str(cache_folder() / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }


def is_worth_a_line(record: logging.LogRecord) -> bool:
    """Not where a page was left while a picture was on its way to it, which tornado reports with a traceback."""
    from tornado.websocket import WebSocketClosedError

    return not (record.exc_info and isinstance(record.exc_info[1], WebSocketClosedError))


def main() -> None:
    from jupyterlab.labapp import main as start_jupyterlab

    keep_compiled()
    logging.getLogger("asyncio").addFilter(is_worth_a_line)
    start_jupyterlab(arguments(sys.argv[1:]))


if __name__ == "__main__":
    main()
