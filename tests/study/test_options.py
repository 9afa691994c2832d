"""Every option of a study is declared once: Python and the command line take the same ones."""

import pytest
import typer

from workbench import study
from workbench.cli.app import app
from workbench.errors import ConfigError
from workbench.settings import settings_of
from workbench.study.plan.tables import TableOptions
from workbench.study.study import RunOptions

COMMANDS = {"table": (TableOptions, RunOptions), "sweep": (RunOptions,)}
# What the command line has beside the fields, and what Python alone has.
OTHERS = {"number", "file", "dataset", "export", "over_time", "help"}
PYTHON_ONLY = {"progress"}


def parameters(command):
    return {one.name: one for one in typer.main.get_command(app).commands[command].params}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_line_has_every_field_with_its_help_and_default(command):
    found = parameters(command)
    expected = {known.key: known for kind in COMMANDS[command] for known in settings_of(kind).values()}
    assert set(found) - OTHERS == set(expected) - PYTHON_ONLY
    for name, known in expected.items():
        assert known.label
        assert known.help.endswith("."), f"{name}: {known.help} is not a sentence"
        if name not in PYTHON_ONLY:
            assert found[name].help.startswith(f"{known.label}: {known.help}")
            default = ",".join(map(str, known.default)) if isinstance(known.default, tuple) else known.default
            assert str(found[name].default) == str(default), name


def test_options_keep_their_names():
    names = {option for one in parameters("table").values() for option in one.opts}
    assert names >= {"--setting", "--settings", "--set", "--repeated-draws", "--only-measured", "--over-time", "--jobs"}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: study.table(1, clint=3), "option = 'clint' is unknown; did you mean 'clients'.*store"),
        (lambda: study.table(1, job=2), "option = 'job' is unknown; did you mean 'jobs'"),
        (lambda: study.plan_table(1, clients=1, jobs=2), "option = 'jobs' is unknown"),
        (lambda: study.sweep("grid.toml", prgress="none"), "option = 'prgress' is unknown; did you mean 'progress'"),
        (lambda: study.table(1, clients=1, only_measured=1), "only_measured = 1 must be True or False"),
    ],
)
def test_a_wrong_name_is_one_sentence(call, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        call()
    assert not list(tmp_path.iterdir()), "a store was made for nothing"


def test_unknown_names_are_reported_by_run_plan(plan):
    with pytest.raises(ConfigError, match="option = 'stor' is unknown; did you mean 'store'"):
        study.run_plan(plan(), stor="study.sqlite")
