"""What every test runs under: strict JAX on the CPU, a compilation cache, hypothesis without chance, a core per worker.

`make test` runs the tests in several worker processes (pytest-xdist). A file's tests stay together on one worker, and
so do all browser tests, which share one JupyterLab. Each worker has its share of the cores to itself.
"""

import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

hypothesis.settings.register_profile("workbench", derandomize=True, deadline=None)
hypothesis.settings.load_profile("workbench")

ROOT = Path(__file__).parents[1]

# Workers take these first, in this order, so that no long file is left for the end, when the other workers are idle.
LONGEST_FIRST = (
    "tests/browser",
    "tests/study",
    "tests/session",
    "tests/attack",
    "tests/training",
    "notebooks",
    "tests/views",
    "tests/cli",
)

# Scripts that made files of the tests, with torch.
collect_ignore = ["files/torch"]


def pytest_configure(config: pytest.Config) -> None:
    # Started in the background, a process ignores Ctrl-C and so do its children, among them those that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput") and config.workerinput["cores"]:
        # Threads and processes inherit this, so it comes before JAX and NumPy start theirs.
        os.sched_setaffinity(0, share_of_cores(config.workerinput))
    # In the environment and before JAX is imported, so that the kernels and commands that tests start have it too.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(compilation_cache(config))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")

    import jax

    # JAX reads the environment once: where something imported it earlier, only this reaches it.
    jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")


def compilation_cache(config: pytest.Config) -> Path:
    """A directory inside pytest's cache, or a temporary one under ``-p no:cacheprovider``, where there is no cache."""
    if cache := getattr(config, "cache", None):
        return cache.mkdir("jax")
    directory = tempfile.TemporaryDirectory(prefix="workbench-tests-")
    config.add_cleanup(directory.cleanup)
    return Path(directory.name)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort by `LONGEST_FIRST`; what it does not name comes last, in the order of the files."""

    def rank(item: pytest.Item) -> int:
        return next((i for i, path in enumerate(LONGEST_FIRST) if item.nodeid.startswith(path)), len(LONGEST_FIRST))

    if items and hasattr(items[0].config, "workerinput"):
        items.sort(key=rank)


# The parts that belong to pytest-xdist. They are optional, so that pytest runs without it as well.


def available_cores() -> list[int]:
    """The cores this process may use; none where the system cannot tell, as on macOS."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def share_of_cores(workerinput: dict) -> list[int]:
    """Every n-th of the cores for one of n workers; on a machine with fewer cores, workers share them."""
    cores, index = workerinput["cores"], int(workerinput["workerid"].removeprefix("gw"))
    return cores[index % len(cores) :: workerinput["workercount"]]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node) -> None:
    """Tell a worker which cores there are before it starts."""
    node.workerinput["cores"] = available_cores()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log):
    from xdist.scheduler import LoadScopeScheduling

    class FilesStayTogether(LoadScopeScheduling):
        """Gives the tests of one file, the cells of one notebook and all browser tests to one worker each."""

        def _split_scope(self, nodeid: str) -> str:
            return "tests/browser" if nodeid.startswith("tests/browser/") else nodeid.partition("::")[0]

    config.option.loadscopereorder = False  # it would start with the files that have the most tests, not the longest
    return FilesStayTogether(config, log)


@pytest.fixture(scope="session")
def cores(pytestconfig: pytest.Config) -> list[int]:
    """All cores that the tests may use, also those of other workers."""
    return getattr(pytestconfig, "workerinput", {}).get("cores", available_cores())


@pytest.fixture(scope="session")
def compiled_library() -> None:
    """The compiled local training; tests of it are skipped where it cannot be compiled, but never in CI."""
    from workbench.training import native
    from workbench.training.native import binding

    try:
        native.build()
    except native.CannotCompileError as problem:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(problem))
    binding._library.cache_clear()


# A small attack that most folders use. The workbench is imported in the fixtures: the settings above must come before
# JAX.


@pytest.fixture(scope="session")
def client():
    import workbench as wb

    return wb.load_dataset("glyphs").client(0, num_images=5)


@pytest.fixture(scope="session")
def model():
    import workbench as wb

    return wb.models.mlp(widths=(16,))


@pytest.fixture(scope="session")
def observation(client, model):
    import workbench as wb

    return wb.client_update(model, model.init(), client, wb.ClientConfig(epochs=2, batch_size=2))


@pytest.fixture(scope="session")
def environment_with(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Make an environment with this one's packages and further ones, which are pinned too; returns its Python."""

    def make(*requirements: str) -> Path:
        folder = tmp_path_factory.mktemp("environment")
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        (packages,) = folder.glob("lib/python*/site-packages")
        (packages / "workbench.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})")
        pip = [folder / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *requirements, "-c", ROOT / "constraints.txt"], check=True)
        return folder / "bin/python"

    return make
