"""The documents: short lines, links that lead somewhere, metadata that agrees."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
NAMED = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "assets/results/README.md")
PAGES = [*NAMED, *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
WIDTH = 120


def prose(page: str) -> list[tuple[int, str]]:
    """Number and text of every line outside code blocks and tables."""
    lines, is_code = [], False
    for number, line in enumerate((ROOT / page).read_text().splitlines(), start=1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code and not line.lstrip().startswith("|"):
            lines.append((number, line))
    assert not is_code, f"{page}: a code block is not closed"
    return lines


@pytest.mark.parametrize("page", PAGES)
def test_lines_of_prose_are_short(page):
    long = [number for number, line in prose(page) if len(line) >= WIDTH]
    assert not long, f"{page}: lines {long} have {WIDTH} characters or more; wrap them"


@pytest.mark.parametrize("page", PAGES)
def test_links_to_files_lead_somewhere(page):
    text = (ROOT / page).read_text()
    targets = {target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text)}
    local = [target for target in targets if target and not re.match(r"[a-z]+:", target)]
    missing = [target for target in local if not ((ROOT / page).parent / target).exists()]
    assert not missing, f"{page} links to {missing}, which do not exist"


def test_the_citation_has_what_the_format_asks_for():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(citation)
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])
    (paper,) = citation["references"]
    assert {"type", "title", "authors"} <= set(paper)
    assert [author["family-names"] for author in paper["authors"]] == [
        "Dimitrov",
        "Balunović",
        "Konstantinov",
        "Vechev",
    ]


def test_the_workflow_runs_the_test_command_of_the_readme():
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())
    (job,) = workflow["jobs"].values()
    assert "make test" in [step.get("run") for step in job["steps"]]
    assert "`make test`" in (ROOT / "README.md").read_text()
    assert job["strategy"]["matrix"]["python"] == ["3.11", "3.13"]
