"""`docs/paper_to_code.md`: every name in it exists, and nothing of the paper is missing."""

import dataclasses
import importlib
import re
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parents[2] / "docs/paper_to_code.md").read_text()
SYMBOLS = sorted(set(re.findall(r"`(workbench(?:\.\w+)+)`", PAGE)))
# Every line that the paper numbers, ends of loops included.
NUM_LINES = {"Algorithm 1": 12, "Algorithm 2": 13, "Algorithm 3": 23}
NUM_EQUATIONS = 3
NUM_TABLES = 11
FUNCTIONS = (
    "ClientUpdate",
    "PartitionData",
    "RecLabels",
    "RandOrder",
    "RandInit",
    "SimUpdate",
    "MatchEpoch",
    "ReorderEpoch",
)
HYPERPARAMETERS = {
    "lambda_TV": ("0.001", "0.0002"),
    "lambda_clip": ("2", "10"),
    "lambda_inv": ("1000", "6.075"),
    "eta_rec": ("0.4", "0.1"),
    "gamma_rec": ("0.995", "0.997"),
    "gamma_rec is applied every": ("10 steps", "20 steps"),
    "optimisation steps": ("200 printed, 400 run", "200 printed, 400 run"),
    "eta": ("0.004", "0.004"),
    "N^c": ("50", "50"),
}


def rows() -> list[list[str]]:
    """The cells of every line of every table of the page."""
    lines = [line for line in PAGE.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def resolve(name: str) -> Any:
    """The object of a dotted name; LookupError says which part does not exist."""
    parts = name.split(".")
    found: Any = importlib.import_module(parts[0])
    for position, part in enumerate(parts[1:], start=1):
        path = ".".join(parts[: position + 1])
        if hasattr(found, "__path__"):
            try:
                found = importlib.import_module(path)
                continue
            except ModuleNotFoundError as error:
                if error.name != path:
                    raise
        if not hasattr(found, part):
            # A dataclass field without a default is no attribute of its class.
            if position == len(parts) - 1 and part in {field.name for field in _fields(found)}:
                return found
            raise LookupError(f"{'.'.join(parts[:position])} has no {part!r}")
        found = getattr(found, part)
    return found


def _fields(found: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(found) if dataclasses.is_dataclass(found) else ()


@pytest.mark.parametrize("name", SYMBOLS)
def test_a_named_symbol_exists(name):
    try:
        resolve(name)
    except LookupError as error:
        message = f"docs/paper_to_code.md names `{name}`, but {error}: correct the page or restore the name."
        pytest.fail(message, pytrace=False)


def test_the_check_of_symbols_finds_a_wrong_one():
    with pytest.raises(LookupError, match=r"workbench\.config\.AttackConfig has no 'no_such_field'"):
        resolve("workbench.config.AttackConfig.no_such_field")
    with pytest.raises(LookupError, match=r"workbench\.attack has no 'no_such_module'"):
        resolve("workbench.attack.no_such_module")
    assert len(SYMBOLS) > 60


@pytest.mark.parametrize("algorithm", NUM_LINES)
def test_every_line_of_an_algorithm_is_there(algorithm):
    named = {first for first, *_ in rows()}
    missing = [n for n in range(1, NUM_LINES[algorithm] + 1) if f"{algorithm}, line {n}" not in named]
    assert not missing, f"docs/paper_to_code.md says nothing about {algorithm}, lines {missing}"


def test_every_function_of_the_algorithms_is_there():
    missing = [name for name in FUNCTIONS if name not in PAGE]
    assert not missing, f"docs/paper_to_code.md says nothing about {missing}"


def test_every_equation_and_every_table_is_there():
    first_cells = {first for first, *_ in rows()}
    wanted = [f"Equation ({n})" for n in range(1, NUM_EQUATIONS + 1)] + [f"Table {n}" for n in range(1, NUM_TABLES + 1)]
    missing = [name for name in wanted if name not in first_cells]
    assert not missing, f"docs/paper_to_code.md has no line for {missing}"


@pytest.mark.parametrize("name", HYPERPARAMETERS)
def test_every_hyperparameter_is_there_with_both_values(name):
    found = [row for row in rows() if row[0] == name and tuple(row[1:3]) == HYPERPARAMETERS[name]]
    assert found, f"docs/paper_to_code.md has no line {name} = {HYPERPARAMETERS[name]}"


def test_the_hyperparameters_are_those_of_the_preset():
    from workbench.config import AttackConfig

    femnist, cifar100 = (AttackConfig.preset("paper", dataset=name) for name in ("femnist", "cifar100"))
    for paper, field in (
        ("lambda_TV", "tv_weight"),
        ("lambda_clip", "clip_weight"),
        ("lambda_inv", "prior_weight"),
        ("eta_rec", "step_size"),
        ("gamma_rec", "step_decay"),
    ):
        printed = tuple(float(value) for value in HYPERPARAMETERS[paper])
        assert (getattr(femnist, field), getattr(cifar100, field)) == printed, paper


@pytest.mark.parametrize("section", ["3.1", "3.2", "4.1", "4.2", "4.3", "4.4", "4.5", "Appendix A", "Appendix B.2"])
def test_every_section_of_the_method_is_there(section):
    assert section in {first for first, *_ in rows()}, f"docs/paper_to_code.md has no line for section {section}"


def test_every_symbol_stands_in_a_code_column():
    """Lines of the algorithms either name code or say why none is needed."""
    wrong = [
        row[0]
        for row in rows()
        if row[0].startswith("Algorithm ") and "`" not in row[-1] and "not needed" not in row[-1]
    ]
    assert not wrong, f"docs/paper_to_code.md names no code for {wrong}"
