"""The site's sources: every public name has its place in the API, and the code of its pages runs."""

import re
from pathlib import Path

import pytest

import workbench as wb

ROOT = Path(__file__).parents[2]
API = "\n".join(page.read_text() for page in (ROOT / "docs/site/api").glob("*.md"))
DOCUMENTED = set(re.findall(r"^\.\. auto\w+:: ([\w.]+)$", API, re.MULTILINE))
MODULES = {"models": wb.models, "study": wb.study}
# A type that is a name for another one has no page.
ALIASES = {"workbench.models.Weights"}


def test_every_public_name_is_in_the_api():
    names = {f"workbench.{name}" for name in wb.__all__ if name not in MODULES}
    names |= {f"workbench.{module}.{name}" for module, found in MODULES.items() for name in found.__all__}
    missing = sorted(names - ALIASES - DOCUMENTED)
    assert not missing, f"docs/site/api has no entry for {missing}"


def test_the_table_of_the_api_names_what_workbench_exports():
    table = "\n".join(line for line in (ROOT / "docs/site/api/index.md").read_text().splitlines() if line[:1] == "|")
    assert set(re.findall(r"`(\w+)`", table)) == set(wb.__all__)


@pytest.mark.parametrize("page", ["docs/custom_priors.md", pytest.param("docs/site/index.md", marks=pytest.mark.slow)])
def test_the_code_of_a_page_runs(page, monkeypatch, tmp_path):
    code = "\n".join(re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL))
    assert "wb.AttackSession(" in code
    monkeypatch.chdir(tmp_path)
    exec(compile(code, page, "exec"), {})
