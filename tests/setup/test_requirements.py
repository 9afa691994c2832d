"""Ranges in pyproject.toml, pins in constraints.txt and the conda environment must not drift apart."""

import json
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
SUPPORTED_PYTHONS = ["3.11", "3.12", "3.13"]


def pinned_versions() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    requirements = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(each.name): str(each.specifier).removeprefix("==") for each in requirements}


PINS = pinned_versions()


def installed_closure(requirements: list[str]) -> dict[str, str]:
    """Name and version of everything that these requirements bring with them in this environment."""
    found: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(Requirement(each), "") for each in requirements]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        distribution = metadata.distribution(requirement.name)
        found[canonicalize_name(requirement.name)] = distribution.version
        for wanted in {"", *requirement.extras} - {extra for name, extra in seen if name == requirement.name}:
            seen.add((requirement.name, wanted))
            waiting.extend((Requirement(each), wanted) for each in distribution.requires or [])
    return found


@pytest.mark.parametrize(
    "requirement", dict.fromkeys([*PROJECT["dependencies"], *(each for extra in EXTRAS.values() for each in extra)])
)
def test_a_requirement_has_a_pin_inside_its_range(requirement):
    wanted = Requirement(requirement)
    assert wanted.specifier.contains(PINS[canonicalize_name(wanted.name)])


def test_every_pin_is_exact():
    assert [version for version in PINS.values() if not re.fullmatch(r"[0-9][0-9a-z.]*", version)] == []


def test_what_is_installed_is_what_is_pinned():
    installed = installed_closure([*PROJECT["dependencies"], *EXTRAS["test"]])
    assert {name: PINS.get(name) for name in installed} == installed


def test_conda_gives_python_and_pip_and_nothing_else():
    python, pip, section = CONDA
    assert pip == "pip"
    assert section == {"pip": ["-c constraints.txt", "-e .[test]"]}
    assert python.startswith("python")
    conda_range, own_range = SpecifierSet(python.removeprefix("python")), SpecifierSet(PROJECT["requires-python"])
    pythons = [f"3.{minor}" for minor in range(8, 20)]
    assert [each for each in pythons if each in conda_range] == SUPPORTED_PYTHONS
    assert all(each in own_range for each in SUPPORTED_PYTHONS)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("python", [SUPPORTED_PYTHONS[0], SUPPORTED_PYTHONS[-1]])
def test_pip_resolves_the_conda_section_from_wheels_alone(python, tmp_path):
    section = [word for line in CONDA[-1]["pip"] for word in line.split()]
    report = tmp_path / "report.json"
    target = ["--python-version", python, "--only-binary=:all:", "--target", tmp_path / "target"]
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", report]
    subprocess.run([*pip, *target, *section], cwd=ROOT, check=True)
    resolved = [each["metadata"] for each in json.loads(report.read_text())["install"]]
    versions = {canonicalize_name(each["name"]): each["version"] for each in resolved}
    assert versions.pop(PROJECT["name"]) == PROJECT["version"]
    assert {name: PINS.get(name) for name in versions} == versions
