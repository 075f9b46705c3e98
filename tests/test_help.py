"""The help of commands is for people: examples, everyday options, then advanced ones; no types."""

from __future__ import annotations

import re

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from randslot.cli import app
from randslot.commands.help import split_examples

COMMANDS = get_command(app)
EVERYDAY = (["index"], ["search"], ["serve"], ["library", "status"], ["library", "verify"], ["evaluate"], ["train"])


def show(*words: str) -> str:
    answer = CliRunner().invoke(app, [*words, "--help"])
    assert answer.exit_code == 0
    return answer.output


def list_commands(group, *words: str) -> list[list[str]]:
    """Return every command, and every group of commands, as the words that call it."""
    found = [list(words)]
    for name, command in getattr(group, "commands", {}).items():
        found += list_commands(command, *words, name)
    return found


@pytest.mark.parametrize("words", list_commands(COMMANDS), ids=" ".join)
def test_no_help_shows_a_type(words):
    assert not re.search(r"<\w+|\[x>|list\[|INTEGER|BOOLEAN", show(*words))


@pytest.mark.parametrize("words", EVERYDAY, ids=" ".join)
def test_every_command_shows_how_it_is_called(words):
    usage, _, rest = show(*words).partition("\n")
    assert usage.startswith("Usage: ")
    assert re.search(r"^  .*randslot .*\n", rest, re.MULTILINE)


@pytest.mark.parametrize(
    ("command", "everyday", "advanced"),
    [
        ("index", ["--model", "--prune", "--ocr"], ["--inference", "--page-vectors", "--batch", "--workers", "--ray"]),
        ("search", ["-k", "--open", "--filter", "--by"], ["--exact", "--explain", "--query-vectors", "--copies"]),
        ("serve", ["--port", "--new", "--read-only"], ["--host", "--token", "--origin"]),
    ],
)
def test_advanced_options_come_last_and_apart(command, everyday, advanced):
    first, title, last = show(command).partition("\nAdvanced\n")
    assert title
    options = first.partition("\nOptions\n")[2]
    for name in everyday:
        assert f"{name} " in options
    for name in advanced:
        assert f"{name} " not in options
        assert f"{name} " in last


def test_defaults_and_variables_are_told():
    assert "[default: 5]" in show("search")
    assert "RANDSLOT_LIBRARY" in show("search")


def test_examples_are_told_from_what_is_said():
    text = "Do it.\n\nWith randslot you can.\n\nrandslot do it\n\nX=1 randslot do it -x\n\nIn two lines\nof prose"
    assert split_examples(text) == (
        ["Do it.", "With randslot you can.", "In two lines of prose"],
        ["randslot do it", "X=1 randslot do it -x"],
    )
