"""Every command that the documents quote is one that the real parsers accept."""

import re
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer

from workbench.cli.app import app

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "assets/results/README.md", "docs/audit.md", "docs/cluster.md", "docs/site/recordings.md")


def quoted(page: str) -> list[str]:
    """The commands of a page: lines of shell blocks, continued ones joined, and code in the text."""
    text = (ROOT / page).read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    inline = [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose)]
    return [command for command in (*lines, *inline) if command.strip()]


def words(command: str) -> list[str]:
    """A command as the shell would split it: comments left out, variables replaced by a path."""
    with_paths = re.sub(r"\$\{?[A-Z_][A-Z0-9_]*\}?", "/some/path", command)
    return shlex.split(with_paths, comments=True)


def commands_of(program: str) -> list[Any]:
    """(page, arguments) of every quoted call of a program, as pytest's parameters."""
    found = {}
    for page in PAGES:
        for command in quoted(page):
            try:
                first, *arguments = words(command) or [""]
            except ValueError:  # code in the text that is no shell command, such as one with an apostrophe
                continue
            # The name alone is the name of a thing, not a call.
            if first.removeprefix(".venv/bin/") == program and arguments:
                found[f"{page}: {shlex.join(arguments)}"] = (page, arguments)
    return [pytest.param(*call, id=name) for name, call in found.items()]


def parse(arguments: list[str]) -> None:
    """Parse as the command line would, without running anything."""
    group = typer.main.get_command(app)
    with group.make_context("workbench", list(arguments)) as context:
        name, command, rest = group.resolve_command(context, list(arguments))
        with command.make_context(name, rest, parent=context):
            pass


@pytest.mark.parametrize(("page", "arguments"), commands_of("workbench"))
def test_a_quoted_command_is_understood(page, arguments):
    if "--help" in arguments:
        arguments = [argument for argument in arguments if argument != "--help"]
    try:
        parse(arguments)
    except typer.TyperException as error:
        pytest.fail(f"{page} quotes `workbench {shlex.join(arguments)}`: {error.format_message()}", pytrace=False)


def test_commands_are_found_at_all():
    found = [parameter.values for parameter in commands_of("workbench")]
    assert len(found) > 25
    assert {arguments[0] for _, arguments in found} == {"attack", "audit", "demo", "export", "sweep", "table"}
    assert {page for page, _ in found} == set(PAGES)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("table 1 --no-such-option 3", "No such option"),
        ("table 1 --clients", "requires an argument"),
        ("table one", "valid int"),
        ("table", "Missing argument"),
        ("no-such-command", "No such command"),
        ('table 1 --data "$FEMNIST" surplus', "unexpected extra argument"),
    ],
)
def test_a_wrong_command_is_noticed(command, message):
    with pytest.raises(typer.TyperException) as caught:
        parse(words(command))
    assert message in caught.value.format_message()


@pytest.mark.parametrize(("page", "arguments"), commands_of("python"))
def test_a_quoted_module_exists(page, arguments):
    assert arguments[0] == "-m", f"{page} quotes python {shlex.join(arguments)}"
    assert find_spec(arguments[1]) is not None, f"{page} quotes `python -m {arguments[1]}`, which does not exist"


@pytest.mark.parametrize(("page", "arguments"), commands_of("make"))
def test_a_quoted_target_exists(page, arguments):
    makefile = (ROOT / "Makefile").read_text()
    target = arguments[0]
    assert re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE), f"{page} quotes `make {target}`"
