"""A table from rows alone, without the data that they were measured on."""

import json

import pytest

from workbench import study
from workbench.config import AttackConfig, ClientConfig, DefenceConfig
from workbench.errors import ConfigError, DataError
from workbench.study.plan.plan import Unit


@pytest.fixture
def make_row():
    """A row as a study writes it, of writer ``index``; changes go to `Unit`."""

    def make(index=0, recovered=50.0, attack=None, **changes):
        unit = Unit(
            **{
                "task": "attack",
                "dataset": "femnist",
                "pictures": f"{index}",
                "clients": (index,),
                "num_images": 50,
                "network": "femnist_cnn",
                "client": ClientConfig(epochs=10, batch_size=5),
                "attack": attack or AttackConfig.preset("paper", "femnist"),
                **changes,
            }
        )
        return {"key": unit.key, "settings": unit.settings, "recovered_percent": recovered, "outcome": "finished"}

    return make


@pytest.fixture
def write(tmp_path):
    def write_one(name, *rows):
        path = tmp_path / name
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        return path

    return write_one


def lines_of(results):
    return [(line.entry.setting, line.entry.method, len(line.rows)) for line in results.lines]


def test_rows_find_their_lines_with_mean_error_and_the_papers_numbers(make_row, write):
    best = AttackConfig.preset("best", "femnist")
    file = write("rows.jsonl", make_row(0, 40.0), make_row(1, 60.0), make_row(0, 98.0, best))
    results = study.results(1, file)
    assert lines_of(results) == [("10x5x50", "ours_prior", 2), ("10x5x50", "best", 1)]
    ours = results.records()[0]
    # Two values 40 and 60 have a standard deviation of 14.1, divided by the root of 2.
    assert (ours["recovered"], ours["recovered_error"]) == pytest.approx((50.0, 10.0))
    assert ours["paper_recovered"] == 65.5


def test_values_are_by_client_and_seed(make_row, write):
    file = write("rows.jsonl", make_row(3, 40.0), make_row(3, 44.0, seed=1), make_row(5, 60.0))
    results = study.results(1, file)
    assert results.values("10x5x50", "ours_prior") == {(3, 0): 40.0, (3, 1): 44.0, (5, 0): 60.0}
    with pytest.raises(ConfigError, match="no line '10x5x50', 'best'; it has: 10x5x50, ours_prior"):
        results.values("10x5x50", "best")
    with pytest.raises(ConfigError, match=r"measure = 'recoverd'.*recovered"):
        results.values("10x5x50", "ours_prior", "recoverd")


def test_a_unit_in_several_files_counts_once_as_in_the_first(make_row, write):
    first, second = write("a.jsonl", make_row(0, 40.0)), write("b.jsonl", make_row(0, 60.0))
    assert study.results(1, first, second).values("10x5x50", "ours_prior") == {(0, 0): 40.0}


@pytest.mark.parametrize(
    ("number", "changes", "line"),
    [
        (6, {"client": ClientConfig(10, 5, defence=DefenceConfig("gaussian", 0.03))}, "gaussian 0.03"),
        (
            6,
            {"client": ClientConfig(10, 5, defence=DefenceConfig("gaussian", 0.03, independent=False))},
            "gaussian 0.03, repeated",
        ),
        (7, {"weights": "7d180229fe66feda"}, "round 11"),
        (8, {"labels": "known_per_batch"}, "per batch, random"),
        (
            9,
            {"client": ClientConfig(5, 5), "attack": AttackConfig.preset("paper", epochs=25, batch_size=25)},
            "5x5 as 25x25",
        ),
        (10, {"clients": (0, 1)}, "2 clients"),
    ],
)
def test_every_table_knows_its_settings(make_row, write, number, changes, line):
    assert lines_of(study.results(number, write("rows.jsonl", make_row(**changes)))) == [(line, "ours_prior", 1)]


def test_label_counts_have_a_line_for_each_formula(make_row, write):
    row = make_row(task="labels", attack=None, label_methods=("interpolated", "bias"))
    row["label_errors"] = {"interpolated": 5.0, "bias": 1.0}
    results = study.results(2, write("rows.jsonl", row))
    assert results.values("10x5x50", "bias", "errors") == {(0, 0): 1.0}
    assert lines_of(results) == [("10x5x50", "interpolated", 1), ("10x5x50", "bias", 1)]


def test_rows_with_other_settings_are_counted_and_left_out(make_row, write):
    file = write("rows.jsonl", make_row(0), make_row(0, weights="0123456789abcdef"), make_row(0, num_images=20))
    results = study.results(1, file)
    assert lines_of(results) == [("10x5x50", "ours_prior", 1)]
    assert "2 of 3 rows have other settings." in str(results)


def test_two_data_sets_and_a_wrong_table_are_refused(make_row, write):
    file = write("rows.jsonl", make_row(0), make_row(0, dataset="glyphs"))
    with pytest.raises(ConfigError, match="one data set at a time; these rows are of: femnist, glyphs"):
        study.results(1, file)
    with pytest.raises(ConfigError, match="table = 5 must be one of"):
        study.results(5, file)
    with pytest.raises(ConfigError, match="these rows are of: none"):
        study.results(1, write("empty.jsonl"))
    with pytest.raises(DataError, match="is not a result of a study"):
        study.results(1, write("other.jsonl", [1]))
