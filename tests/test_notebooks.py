"""The notebooks as files: run from top to bottom, small, short cells, pictures that need no kernel.

That they run, and print what they printed, also on a single core, is checked by nbval: pytest collects the folder
`notebooks` for that, and its conftest.py says which notebooks run when.
"""

import ast
import itertools
import re
import runpy
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MARK = "# NBVAL_CHECK_OUTPUT"
COLLAPSED = {"jupyter": {"source_hidden": True, "outputs_hidden": True}, "tags": ["hide-cell"]}
HIDDEN = {"jupyter": {"source_hidden": True}, "tags": ["remove-cell"]}
MOST_BYTES = 2_000_000
MOST_LINES = 25
MOST_FUNCTION_LINES = 12


def cells(path, kind):
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == kind]


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def path(request):
    return request.param


def test_the_course_is_there():
    assert [path.stem[:2] for path in NOTEBOOKS][:1] == ["00"]
    numbers = [int(path.stem[:2]) for path in NOTEBOOKS]
    assert len(set(numbers)) == len(numbers), "two notebooks have one number"


def test_it_was_run_from_top_to_bottom(path):
    counts = [cell.execution_count for cell in cells(path, "code")]
    assert counts == list(range(1, len(counts) + 1)), "run it again from a fresh kernel: Run All"


def test_no_output_is_an_error_or_a_warning(path):
    outputs = [output for cell in cells(path, "code") for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    assert not [output.text for output in outputs if output.get("name") == "stderr"]


def test_it_is_small_and_has_no_widget_state(path):
    assert path.stat().st_size < MOST_BYTES
    notebook = nbformat.read(path, as_version=4)
    assert "widgets" not in notebook.metadata
    views = [
        index
        for index, cell in enumerate(notebook.cells)
        for output in cell.get("outputs", [])
        if "application/vnd.jupyter.widget-view+json" in output.get("data", {})
    ]
    assert not views, f"cells {views} hold a view of a widget, which is broken without its kernel: leave its text alone"


def test_cells_are_short_and_hold_no_logic(path):
    for index, cell in enumerate(cells(path, "code")):
        lines = cell.source.splitlines()
        assert len(lines) <= MOST_LINES, f"code cell {index + 1} has {len(lines)} lines"
        for node in ast.walk(ast.parse(cell.source)):
            assert not isinstance(node, ast.ClassDef), f"code cell {index + 1} defines the class {node.name}"
            if isinstance(node, ast.FunctionDef):
                length = node.end_lineno - node.lineno + 1
                assert length <= MOST_FUNCTION_LINES, f"{node.name} in code cell {index + 1} has {length} lines"


def test_checked_cells_end_in_print_and_claims_are_asserted(path):
    checked = [cell for cell in cells(path, "code") if MARK in cell.source]
    assert checked, "no number of this notebook is checked"
    for cell in checked:
        assert cell.source.startswith(MARK), "the mark belongs into the first line"
        assert [output.output_type for output in cell.outputs] == ["stream"], f"not plain text: {cell.source}"
    assert any("assert" in cell.source for cell in cells(path, "code"))


def test_it_opens_with_what_it_needs_and_gives(path):
    notebook = nbformat.read(path, as_version=4)
    assert notebook.cells[0].source.startswith(f"# {int(path.stem[:2])} · ")
    bullets = re.findall(r"^- (\*\*.+?\*\*)", notebook.cells[0].source, re.MULTILINE)
    assert bullets == ["**Time.**", "**You need.**", "**You will be able to.**", "**In the paper.**"]


def test_it_closes_with_what_to_remember_and_two_open_tasks(path):
    notebook = nbformat.read(path, as_version=4)
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    sections = re.findall(r"^## (.+)$", text, re.MULTILINE)
    if path.stem.startswith("00"):
        assert sections.pop() == "Your turn"
        assert "AttackPanel" in notebook.cells[-1].source, "the first notebook ends on the panel"
    assert sections[-2:] == ["What to remember", "Two open tasks"]
    tasks = text.split("## Two open tasks")[1].split("\n## ")[0]
    assert re.findall(r"^(\d)\.", tasks, re.MULTILINE) == ["1", "2"]
    assert "<details>" not in tasks, "an open task has no solution"


def test_a_guess_is_asked_for_and_shown_beside_the_outcome(path):
    notebook = nbformat.read(path, as_version=4)
    asked = [index for index, cell in enumerate(notebook.cells) if "**Predict, then run.**" in cell.source]
    assert asked, "no prediction is asked for"
    for index in asked:
        assert re.match(r"guess\w* = .+  # ", notebook.cells[index + 1].source), "the guess has a cell of its own"
        name = notebook.cells[index + 1].source.split(" = ")[0]
        later = [cell.source for cell in notebook.cells[index + 2 :] if cell.cell_type == "code"]
        assert any(re.search(rf"\b{name}\b", source) for source in later), f"{name} is shown nowhere"


def test_answers_are_collapsed_and_checked(path):
    notebook = nbformat.read(path, as_version=4)
    answers = [index for index, cell in enumerate(notebook.cells) if "<details>" in cell.source]
    if not path.stem.startswith("00"):
        assert 2 <= len(answers) <= 4
    for index in answers:
        text, shown = notebook.cells[index].source, notebook.cells[index + 1]
        assert text.count("<details>") == text.count("</details>") == 1, "one answer, then the cell that shows it"
        assert shown.metadata == COLLAPSED, f"cell {index + 1} shows the answer {text!r} and is open"
        assert shown.source.startswith(MARK)
        assert "assert" in shown.source


def test_cells_for_tests_alone_are_hidden_and_all_others_are_shown(path):
    notebook = nbformat.read(path, as_version=4)
    for before, cell in itertools.pairwise(notebook.cells):
        if "remove-cell" in cell.metadata.get("tags", []):
            assert cell.metadata == HIDDEN
            assert not cell.outputs, f"nobody sees what this cell prints: {cell.source}"
        elif "<details>" not in before.source:
            assert not {"tags", "jupyter"} & set(cell.metadata), f"a reader needs this cell: {cell.source}"


def test_outputs_show_numbers(path):
    for cell in cells(path, "code"):
        shown = "".join(output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs)
        assert not re.search(r"\b(True|False)\b", shown), f"print the number behind it: {cell.source}"


def test_it_has_pictures(path):
    pictures = [o for cell in cells(path, "code") for o in cell.outputs if "image/png" in o.get("data", {})]
    assert len(pictures) >= (1 if path.stem.startswith("00") else 2), "a reader without a kernel wants pictures"


def test_it_says_image_and_not_picture(path):
    text = "\n".join(cell.source for cell in cells(path, "markdown"))
    assert "picture" not in text.lower()


def test_psnr_is_explained_where_it_first_appears():
    text = "\n".join(cell.source for cell in nbformat.read(NOTEBOOKS[0], as_version=4).cells)
    assert "PSNR" in text
    assert "root-mean-square" in text[text.index("PSNR") :][:200]


def test_it_links_to_notebooks_that_exist(path):
    text = "\n".join(cell.source for cell in cells(path, "markdown"))
    linked = {part.split(")")[0] for part in text.split("](")[1:] if ".ipynb" in part.split(")")[0]}
    missing = [link for link in linked if not (path.parent / link).exists()]
    assert not missing, f"{path.name} links to {missing}"


def test_three_notebooks_run_in_every_run():
    """All other notebooks are marked slow."""
    beginnings = runpy.run_path(str(ROOT / "notebooks/conftest.py"))["IN_EVERY_RUN"]
    in_every_run = [path.name for path in NOTEBOOKS if path.name.startswith(beginnings)]
    assert len(in_every_run) == 3, f"in every run there are {in_every_run}"
