"""What tests/conftest.py prepares: a compilation cache in every case, and cores for the workers."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
A_QUICK_FILE = "tests/test_config.py"


@pytest.fixture(scope="module")
def conftest():
    spec = importlib.util.spec_from_file_location("a_copy_of_conftest", ROOT / "tests/conftest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_pytests_cache_there_is_a_temporary_compilation_cache(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    options = ["-p", "no:cacheprovider", "-p", "no:nbval", "-o", "addopts=--import-mode=importlib"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options, A_QUICK_FILE],
        cwd=ROOT,
        env=environment | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert not list(tmp_path.glob("workbench-tests-*")), "the temporary directory was not removed"


@pytest.mark.parametrize(
    ("cores", "num_workers", "shares"),
    [
        ([0, 1], 2, [[0], [1]]),
        ([0, 1, 2, 3, 4], 2, [[0, 2, 4], [1, 3]]),
        ([3], 2, [[3], [3]]),
        ([4, 6], 3, [[4], [6], [4]]),
    ],
)
def test_every_worker_has_its_share_of_the_cores(conftest, cores, num_workers, shares):
    workers = [{"cores": cores, "workerid": f"gw{i}", "workercount": num_workers} for i in range(num_workers)]
    assert [conftest.share_of_cores(worker) for worker in workers] == shares


def test_a_worker_uses_its_share_of_the_cores_and_no_other(conftest, pytestconfig):
    worker = getattr(pytestconfig, "workerinput", None)
    if not worker or not worker["cores"]:
        pytest.skip("not in a worker, or the system cannot give a process some of the cores")
    assert sorted(os.sched_getaffinity(0)) == conftest.share_of_cores(worker)
