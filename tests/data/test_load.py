"""`load_dataset` itself, and what importing the package costs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import workbench
import workbench.data
from workbench.data import load_dataset
from workbench.errors import ConfigError


def test_glyphs_are_the_default():
    assert load_dataset().name == "glyphs"


def test_all_public_names_exist():
    missing = [name for name in workbench.data.__all__ if not hasattr(workbench.data, name)]
    assert missing == []


@pytest.mark.parametrize(
    ("name", "nearest"), [("glyph", "glyphs"), ("FEMNIST", None), ("cifar10", "cifar100"), (3, None)]
)
def test_an_unknown_name_gets_the_nearest_one(name, nearest):
    hint = f"did you mean '{nearest}'" if nearest else "Choose one of: glyphs, photos, femnist, cifar100"
    with pytest.raises(ConfigError, match=hint):
        load_dataset(name)


@pytest.mark.parametrize("name", ["glyphs", "photos"])
def test_a_bundled_dataset_takes_no_path(name):
    with pytest.raises(ConfigError, match=f"path = 'somewhere' must be None for '{name}', which is bundled"):
        load_dataset(name, path="somewhere")


def modules_after(code):
    root = Path(next(iter(workbench.__path__))).parent
    code += "; import sys; print(*sys.modules)"
    environment = os.environ | {"PYTHONPATH": str(root)}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_importing_the_package_imports_nothing_heavy():
    # Only what this package adds counts: `workbench` itself may import JAX.
    added = modules_after("import workbench.data") - modules_after("import workbench")
    heavy = {"matplotlib", "skimage", "scipy", "PIL", "pooch", "requests", "tqdm", "datasets", "jax"}
    assert heavy & added == set()


def test_bundled_pictures_come_without_a_downloader():
    code = "from workbench.data import load_dataset as load; load('glyphs').client(0); load('photos').client(0)"
    added = modules_after(code) - modules_after("import workbench")
    assert {"pooch", "requests", "matplotlib.pyplot"} & added == set()
