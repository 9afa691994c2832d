"""The scripts behind `make`: where the browser comes from, and what happens where there is none."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
ONE_BROWSER_TEST = "tests/browser/test_lab.py::test_jupyterlab_shows_up_without_news_or_update_check"


@pytest.fixture
def without_browser(tmp_path: Path) -> dict[str, str]:
    """An environment in which no browser can be found."""
    if any(Path(f"/Applications/{name}.app").exists() for name in ("Google Chrome", "Chromium")):
        pytest.skip("macOS finds its applications without PATH")
    nowhere = str(tmp_path / "nowhere")
    kept = {name: value for name, value in os.environ.items() if name != "CI"}
    return kept | {"PATH": nowhere, "PLAYWRIGHT_BROWSERS_PATH": nowhere}


@pytest.fixture
def browser_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("browser_tool", ROOT / "tools/browser.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def run(environment: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    python = [sys.executable, *command]
    return subprocess.run(python, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_a_browser_on_the_path_is_found(without_browser, tmp_path):
    chromium = tmp_path / "chromium"
    chromium.touch(mode=0o755)
    assert run(without_browser | {"PATH": str(tmp_path)}, "tools/browser.py").stdout.strip() == str(chromium)


def test_no_browser_is_told_in_one_line(without_browser):
    answer = run(without_browser, "tools/browser.py")
    assert answer.returncode == 1
    assert len(answer.stderr.splitlines()) == 1
    assert "playwright install chromium" in answer.stderr


@pytest.mark.parametrize(
    ("user", "first_command"), [(0, ["apt-get", "update"]), (1000, [sys.executable, "-m", "playwright"])]
)
def test_root_takes_debians_package_and_others_playwrights_download(browser_tool, monkeypatch, user, first_command):
    commands = []
    monkeypatch.setattr(browser_tool.os, "geteuid", lambda: user)
    monkeypatch.setattr(browser_tool.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(browser_tool.subprocess, "run", lambda command, **_: commands.append(command))
    browser_tool.install()
    assert commands[0][: len(first_command)] == first_command
    assert "chromium" in commands[-1]


@pytest.mark.parametrize(("ci", "outcome"), [({}, "1 skipped"), ({"CI": "true"}, "1 error")])
def test_a_missing_browser_skips_at_home_and_fails_where_it_counts(without_browser, tmp_path, ci, outcome):
    # Without the plug-in for notebooks, which takes a second to import.
    plain = ["-p", "no:nbval", "-o", "addopts=--import-mode=importlib", "-o", f"cache_dir={tmp_path}"]
    answer = run(without_browser | ci, "-m", "pytest", "-rs", *plain, ONE_BROWSER_TEST)
    assert outcome in answer.stdout.splitlines()[-1]
    assert "There is no browser" in answer.stdout


def test_pre_commit_reads_its_configuration():
    assert run(os.environ, "-m", "pre_commit", "validate-config").returncode == 0


@pytest.mark.parametrize("own", ["", "/somewhere"])
def test_kernels_of_the_lab_keep_what_jax_compiles_unless_the_user_has_a_cache(monkeypatch, tmp_path, own):
    import lab

    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", own)
    for name in ("MIN_COMPILE_TIME_SECS", "MIN_ENTRY_SIZE_BYTES"):
        monkeypatch.setenv(f"JAX_PERSISTENT_CACHE_{name}", "7")  # so that it is as before afterwards
    lab.keep_compiled()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == (own or str(tmp_path / "compiled"))
    assert os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] == ("7" if own else "0")


@pytest.mark.slow
def test_notebooks_are_run_with_their_metadata_kept_and_without_views(tmp_path):
    import run_notebooks

    bar = "from workbench.progress import progress_bar\n\nwith progress_bar(total=2) as bar:\n    bar.update(2)\n1 + 1"
    hidden = {"jupyter": {"source_hidden": True}, "tags": ["remove-cell"]}
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(bar, metadata=hidden)])
    nbformat.write(notebook, tmp_path / "small.ipynb")
    run_notebooks.run(tmp_path / "small.ipynb")
    (cell,) = nbformat.read(tmp_path / "small.ipynb", as_version=4).cells
    assert cell.metadata == hidden
    assert [output.data for output in cell.outputs] == [{"text/plain": "2"}]
