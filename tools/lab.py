"""Start JupyterLab with the first notebook; further arguments go to JupyterLab and override those given here."""

import logging
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIRST_NOTEBOOK = Path("notebooks/00_start_here.ipynb")


def arguments(given: list[str]) -> list[str]:
    """The given arguments and the defaults that they do not override: JupyterLab rejects repeated arguments."""
    named = {argument.partition("=")[0] for argument in given}
    return [*(default for default in default_arguments() if default.partition("=")[0] not in named), *given]


def default_arguments() -> list[str]:
    page = f"/lab/tree/{FIRST_NOTEBOOK}" if (ROOT / FIRST_NOTEBOOK).exists() else "/lab"
    return [
        f"--ServerApp.root_dir={ROOT}",
        "--ServerApp.ip=127.0.0.1",
        "--ServerApp.allow_root=True",
        # As the start page and not as a file to open, so that the printed address leads to the notebook too.
        f"--LabApp.default_url={page}",
        # No network access: no list of extensions from the package index; the settings disable news and update checks.
        "--LabApp.extension_manager=readonly",
        f"--LabApp.app_settings_dir={ROOT / 'tools/lab_settings'}",
    ]


def keep_compiled() -> None:
    """Let kernels share the command line's cache of compiled code, unless the user has set another one."""
    from workbench.files.cache import cache_folder

    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        os.environ |= {
            "JAX_COMPILATION_CACHE_DIR": str(cache_folder() / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }


def should_log(record: logging.LogRecord) -> bool:
    """False for the traceback that tornado logs when a page is closed while a message is being sent to it."""
    from tornado.websocket import WebSocketClosedError

    return not (record.exc_info and isinstance(record.exc_info[1], WebSocketClosedError))


def main() -> None:
    from jupyterlab.labapp import main as start_jupyterlab

    keep_compiled()
    logging.getLogger("asyncio").addFilter(should_log)
    start_jupyterlab(arguments(sys.argv[1:]))


if __name__ == "__main__":
    main()
