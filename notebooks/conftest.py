"""How pytest runs the notebooks: every kernel on a single core, and most notebooks only among the slow tests.

The outputs that the notebooks hold were computed on several cores. Running them on one shows that the numbers do not
depend on it.
"""

import os

import psutil
import pytest

# Together they use most of the API: the panel and a whole attack, matching and scores, studies and their tables.
IN_EVERY_RUN = ("00_", "05_", "09_")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.suffix == ".ipynb" and not item.path.name.startswith(IN_EVERY_RUN):
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item):
    """Start a notebook's kernel, which happens before its first cell, on one of the cores."""
    if not hasattr(os, "sched_setaffinity"):
        return (yield)
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
    used = psutil.Process(item.parent.kernel.km.provisioner.pid).cpu_affinity()
    assert len(used) == 1, f"the kernel of {item.path.name} uses the cores {used}"
