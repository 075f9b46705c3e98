"""The command line: help, exit codes, one-line errors, and the way from PDFs to a trained model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import randslot
from randslot.cli import SECTIONS, app, main
from support.pdf import write_pdf


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["randslot", *words])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


@pytest.fixture
def manual(tmp_path: Path) -> Path:
    folder = tmp_path / "manuals"
    folder.mkdir()
    titles = [("Setting the clock", 0), ("Ordering parts", 1), ("Drum and belt", 2), ("Steam tables", 3)]
    write_pdf(folder / "washer.pdf", 4, titles)
    return folder


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["train", "nowhere.toml"], 2, "randslot: no recipe nowhere.toml"),
        (["train", "tiny", "--set", "slot=zero"], 2, "unknown key 'slot'; did you mean 'slots'?"),
        (["train", "tiny", "--set", "batch=many"], 2, "batch must be a whole number, not 'many'"),
        (["train", "tiny", "--set", "query_vectors=0"], 2, "query_vectors must be a whole number from 1"),
        (["train", "tiny", "--set", "data=gone.jsonl"], 2, "gone.jsonl"),
        (["train", "tiny", "--set", "data=torn.jsonl"], 1, "torn.jsonl"),
        (["pairs", "nowhere", "-o", "x.jsonl"], 2, "'nowhere' does not exist"),
        (["pairs", "empty", "-o", "x.jsonl"], 1, "no PDF below empty has an outline with useful titles"),
        (["search", "tax", "-k", "many"], 2, "'-k': Input should be a valid integer"),
        (["search", "--colour"], 2, "--colour (see randslot search --help)"),
        (["index"], 2, "randslot: Missing argument 'paths' (see randslot index --help)"),
        (["serch"], 2, "Did you mean 'search'"),
        (["library", "wrods"], 2, "(see randslot library --help)"),
    ],
)
def test_errors_are_one_line_with_the_right_code(words, code, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "torn.jsonl").write_text("{")
    (tmp_path / "empty").mkdir()
    assert run(monkeypatch, *words) == code
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert message in lines[0]


def test_fewer_pairs_a_batch_than_processes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "16")
    assert run(monkeypatch, "train", "tiny") == 2
    assert "batch = 8 is not divisible by 16 processes" in capsys.readouterr().err


def test_only_the_first_process_speaks(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    assert run(monkeypatch, "train", "nowhere.toml") == 2
    assert capsys.readouterr().err == ""


def test_a_pdf_that_cannot_be_read_is_named_and_the_rest_is_done(manual, tmp_path, monkeypatch, capsys):
    (manual / "torn.pdf").write_bytes(b"%PDF-1.4 torn")
    assert run(monkeypatch, "pairs", str(manual), "-o", str(tmp_path / "pairs.jsonl")) == 1
    assert "could not read" in capsys.readouterr().err
    assert len((tmp_path / "pairs.jsonl").read_text().splitlines()) == 4


def test_a_place_that_cannot_be_written_is_one_line(manual, tmp_path, monkeypatch, capsys):
    assert run(monkeypatch, "pairs", str(manual), "-o", str(tmp_path)) == 2
    assert "cannot write" in capsys.readouterr().err


def test_help_is_instant_and_loads_nothing_heavy():
    code = (
        "import sys; sys.argv = ['randslot', '--help']\n"
        "from randslot.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'rich', 'torch', 'transformers', 'PIL', 'numpy', 'datasets', 'matplotlib', 'qdrant_edge'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "train" in answer.stdout
    assert answer.stdout.splitlines()[-1] == "[]"


def test_help_shows_what_commands_say_of_themselves():
    group = get_command(app)
    for commands in SECTIONS.values():
        for name, (_, line) in commands.items():
            assert group.get_command(None, name).help.split("\n\n")[0] == line


@pytest.mark.parametrize(
    ("command", "everyday", "advanced"),
    [
        ("index", ["--model", "--prune", "--ocr"], ["--inference", "--page-vectors", "--batch", "--workers", "--ray"]),
        ("search", ["-k", "--open", "--filter", "--by"], ["--exact", "--explain", "--query-vectors", "--copies"]),
        ("serve", ["--port", "--new", "--read-only"], ["--host", "--token", "--origin"]),
    ],
)
def test_help_shows_examples_then_options_then_advanced_ones(command, everyday, advanced):
    shown = CliRunner().invoke(app, [command, "--help"]).output
    examples, _, rest = shown.partition("\nOptions:\n")
    assert f"\n  randslot {command} " in examples
    options, _, last = rest.partition("\nAdvanced:\n")
    assert [name for name in everyday if f" {name} " not in options] == []
    assert [name for name in advanced if f" {name} " in options or f" {name} " not in last] == []


def test_shipped_recipes_are_in_the_package():
    folder = Path(randslot.__file__).parent / "recipes"
    real = {"qwen2.5-vl-3b", "qwen3-vl-4b", "qwen3-vl-embedding-2b", "smollm2-135m"}
    small = {"tiny", "tiny-text"}
    assert {file.stem for file in folder.glob("*.toml")} >= real | small


def test_a_missing_extra_is_said_in_one_line(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mteb", None)
    assert run(monkeypatch, "evaluate", "embedded", "--tasks", "hr") == 1
    assert capsys.readouterr().err == 'randslot: this needs mteb: pip install "randslot[evaluate]"\n'
