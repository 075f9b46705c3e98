"""The command line itself: help, version, errors, doctor and the demo."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version

import pytest

from contract.conftest import make_environment

OPTIONS = {
    "index": "-l --library --model --language --ocr --no-ocr --meta --prune -y --yes --dry-run -q --quiet --json "
    "--strict --follow-links --password --password-file "
    "--page-vectors --reduction --inference --trust-remote-code --batch --workers --ray",
    "search": "-l --library -k --filter --in --year --type --by --open --json --csv --format -0 --null --copies "
    "--explain --exact --query-vectors --model --query-model --trust-remote-code",
    "library status": "-l --library --json",
    "library words": "-l --library --language --ocr --no-ocr --workers",
    "library sketch": "-l --library --queries --remove",
    "library list": "-l --library --json",
    "library export": "-l --library",
    "watch": "-l --library --poll --follow-links --password --password-file",
    "library remove": "-l --library -y --yes --dry-run",
    "library backup": "-l --library",
    "library copy": "--json",
    "library verify": "-l --library --repair",
    "doctor": "--torch --json",
    "demo": "-o --output -q --query --open",
}


def test_version(run):
    assert (run("--version").out.strip(), run("--version").code) == (version("randslot"), 0)


def test_help_names_the_commands(run):
    answer = run("--help")
    assert answer.code == 0
    named = {line.strip("│ ").split()[0] for line in answer.out.splitlines() if line.strip("│ ")}
    search = {"index", "search", "serve", "mcp", "doctor", "demo", "library"}
    models = {"train", "distill", "pairs", "export", "evaluate", "report", "analyse", "compare", "profile"}
    assert search | models <= named
    assert run().out.split() == answer.out.split()
    assert run().code == 2


@pytest.mark.parametrize("command", OPTIONS)
def test_help_names_the_options(run, command):
    answer = run(*command.split(), "--help")
    assert (answer.code, answer.err) == (0, "")
    told = set(answer.out.replace(",", " ").split())
    assert set(OPTIONS[command].split()) - told == set()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["nonsense"], "nonsense"),
        (["--nonsense"], "--nonsense"),
        (["search"], "query"),
        (["search", "wool", "-l"], "-l"),
        (["search", "wool", "-l", "nolib"], "nolib"),
        (["search", "wool", "-l", ""], ""),
        (["doctor", "too", "many"], "too"),
    ],
)
def test_wrong_usage_is_one_line_with_code_2(run, words, named):
    answer = run(*words)
    assert (answer.code, answer.out, len(answer.err.splitlines())) == (2, "", 1), answer.err
    assert named in answer.err


def test_debug_shows_where_an_error_comes_from(run):
    answer = run("--debug", "search", "wool", "-l", "nolib")
    assert (answer.code != 0, "Traceback" in answer.err, "nolib" in answer.err) == (True, True, True)


def test_a_query_that_is_no_text_is_no_crash(library_once, home):
    words = [os.fsencode(sys.executable), b"-m", b"randslot", b"search", b"\xff\xfe", b"-l", os.fsencode(library_once)]
    done = subprocess.run(words, env=make_environment(home), capture_output=True)
    assert (done.returncode in (0, 2), b"Traceback" in done.stderr, b".pdf" in done.stdout) == (True, False, False)


def test_a_reader_that_leaves_early_sees_no_traceback(library_once, home):
    command = f"'{sys.executable}' -m randslot search the -k 9 --json -l '{library_once}' | true"
    done = subprocess.run(command, shell=True, env=make_environment(home), capture_output=True, text=True)
    assert "Traceback" not in done.stderr


def test_a_plain_locale_is_no_failure(run, library_once):
    answer = run("search", "Verwaltung", "-l", library_once, env={"LC_ALL": "C"})
    assert (answer.code, "brief.pdf" in answer.out, "Traceback" in answer.err) == (0, True, False)


def test_searching_words_loads_no_model(library_once, home):
    words = [sys.executable, "-X", "importtime", "-m", "randslot", "search", "wool", "-l", str(library_once)]
    done = subprocess.run(words, env=make_environment(home), capture_output=True, text=True, check=True)
    loaded = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines()}
    assert "randslot" in loaded
    assert not loaded & {"torch", "transformers", "sentence_transformers", "qdrant_client", "matplotlib", "fastapi"}


def test_doctor(run, library_once):
    answer = run("doctor", env={"RANDSLOT_LIBRARY": str(library_once)})
    assert (answer.code, answer.err) == (0, "")
    assert version("randslot") in answer.out
    assert str(library_once) in answer.out
    rows = run("doctor", "--json").json
    assert all(row.keys() == {"name", "state", "found", "advice"} for row in rows)
    assert {row["state"] for row in rows} <= {"ok", "optional", "low", "broken"}
    states = {row["name"]: row["state"] for row in rows}
    assert (states["python"], states["packages"], states["engine"], states["ocr"]) == ("ok", "ok", "ok", "optional")
    assert all(row["advice"] for row in rows if row["state"] == "optional")


@pytest.mark.slow
def test_doctor_asks_torch(run):
    rows = run("doctor", "--torch", "--json").json
    assert "torch" in next(row["found"] for row in rows if row["name"] == "gpu")


@pytest.mark.slow
def test_the_demo_searches_by_words_and_by_vectors(run, tmp_path):
    answer = run("demo", "-o", "here", "-q", "sales of wool")
    assert answer.code == 0, answer.err
    assert "sales of wool" in answer.out
    assert "handbook.pdf" in answer.out
    assert (tmp_path / "here" / "demo.html").read_text(encoding="utf-8").lower().startswith("<!doctype html>")
    assert (tmp_path / "here" / "handbook.pdf").read_bytes().startswith(b"%PDF")
