"""The commands: what they print, their exit codes, and errors of one line."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from randslot.cli import main
from randslot.library.library import Library
from randslot.library.results import QueryResult
from support.libraries import write_tiff
from support.models import noise
from support.pdf import write_pdf

pytestmark = pytest.mark.slow


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run a command in an empty folder; return its exit code and what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("logging.Logger.setLevel", lambda *_: None)

    def call(*words: str, stdin: str = "") -> tuple[int, str, str]:
        import io

        monkeypatch.setattr(sys, "argv", ["randslot", *words])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return call


@pytest.fixture
def indexed(run, papers, saved) -> None:
    assert run("index", "papers", "-l", "lib", "--model", str(saved), "--quiet") == (0, "", "")


def test_index_tells_what_it_did(run, papers, saved):
    code, out, err = run("index", "papers", "-l", "lib", "--model", str(saved))
    assert (code, err) == (0, "")
    assert "files: 3 added\n7 pages, 7 of them encoded, in" in out
    (told,) = re.findall(
        r"the library has 7 pages, ([\d.]+ KB on disk, without the engine's log; [\d.]+ KB a page, 512)", out
    )
    assert told in " ".join(run("library", "status", "-l", "lib")[1].split())  # both tell the same size
    write_tiff(papers / "a.tif", [1, 2, 30])
    os.remove(papers / "b.tif")
    code, out, _ = run("index", "papers", "-l", "lib", "--prune", "--yes")
    assert "  papers/b.tif\n1 file removed" in out
    assert (code, "files: 1 changed, 1 removed, 1 unchanged\n3 pages, 1 of them encoded" in out) == (0, True)
    code, out, _ = run("index", "papers", "-l", "lib")
    assert (code, out.startswith("files: 2 unchanged\n4 pages without text")) == (0, True)


def test_index_in_json(run, papers, saved):
    code, out, err = run("index", "papers", "-l", "lib", "--model", str(saved), "--json")
    summary = json.loads(out)
    assert (code, err) == (0, "")
    assert (len(summary["added"]), summary["pages"], summary["library_pages"], summary["failed"]) == (3, 7, 7, {})
    assert (summary["vector_bytes_per_page"], summary["library_bytes"] > 7 * 512) == (512, True)
    assert summary["seconds"] > 0


def test_files_that_fail_are_told_at_the_end_with_code_1(run, papers, saved):
    (papers / "torn.pdf").write_bytes(b"%PDF-1.4 torn")
    (papers / "notes.txt").write_text("mine")
    code, out, err = run("index", "papers", "-l", "lib", "--model", str(saved))
    assert code == 1
    assert "files: 3 added, 1 failed" in out
    assert err.splitlines() == [
        "left out, not a PDF or an image: papers/notes.txt",
        "could not index papers/torn.pdf: cannot open: it is corrupt, or not a PDF",
    ]
    code, out, err = run("index", "papers", "-l", "lib", "--quiet")
    assert (code, out, len(err.splitlines())) == (1, "", 1)


def test_a_folder_without_documents_is_told_what_is_read(run, tmp_path):
    (tmp_path / "empty").mkdir()
    code, out, err = run("index", "empty", "-l", "lib")
    assert (code, err) == (0, "")
    assert out.startswith("files: none; these are read: .pdf, .png, ")
    code, out, err = run("search", "tax", "-l", "lib")
    assert (code, out, err) == (0, "no pages found\n", "note: the library is empty: randslot index adds files\n")


def test_a_search_that_finds_nothing_tells_of_files_that_are_not_complete(run, papers, tmp_path):
    with Library(tmp_path / "lib") as library:
        library.add(papers)
        library.manifest.put(*(replace(file, state="pending") for file in library.files()))
    code, out, err = run("search", "tax", "-l", "lib")
    assert (code, out) == (0, "no pages found\n")
    assert "3 files not complete yet: randslot index resumes" in err


def test_search_prints_pages_or_json(run, indexed):
    code, out, _ = run("search", "deferred tax", "-l", "lib", "-k", "3")
    assert code == 0
    assert len(out.splitlines()) == 3
    assert out.startswith(" 1.")
    assert "papers/" in out
    code, out, _ = run("search", "deferred tax", "-l", "lib", "-k", "2", "--json", "--exact")
    hits = json.loads(out)
    assert len(hits) == 2
    known = {"id", "source", "page", "score", "matches", "metadata", "file", "by", "snippet", "boxes", "copies"}
    assert hits[0].keys() == known
    assert hits[0]["score"] >= hits[1]["score"]
    assert [match["query"] for match in hits[0]["matches"]] == [1, 2, 3, 4]


def test_search_explains(run, indexed):
    _, out, _ = run("search", "tax", "-l", "lib", "-k", "1", "--explain", "--query-vectors", "2")
    label, score, *matches = out.splitlines()[1].split()
    assert (label, float(score) > 0) == ("MaxSim", True)
    assert next(match for match in matches if ">" in match).startswith("1>")
    assert len(matches) == 4
    hit = json.loads(run("search", "tax", "-l", "lib", "-k", "1", "--json", "--query-vectors", "2")[1])[0]
    assert matches[0] == f"1>{hit['matches'][0]['page']}"
    assert matches[1] == f"{hit['matches'][0]['similarity']:.3f}"


def test_search_reads_many_queries(run, indexed):
    code, out, _ = run("search", "-", "-l", "lib", "-k", "1", "--json", stdin="deferred tax\n\nsales\n")
    answers = json.loads(out)
    assert (code, [one["query"] for one in answers]) == (0, ["deferred tax", "sales"])
    assert all(len(one["hits"]) == 1 for one in answers)
    _, out, _ = run("search", "-", "-l", "lib", "-k", "1", "--json", stdin="sales\n")
    (answer,) = json.loads(out)
    assert (answer["query"], answer["hits"][0]["id"]) == ("sales", answers[1]["hits"][0]["id"])
    _, out, _ = run("search", "-", "-l", "lib", "-k", "1", stdin="tax\nsales\n")
    assert out.count("? ") == 2


@pytest.mark.parametrize(
    ("typed", "query"),
    [
        (["deferred", "-life", "tax", "-king", "-k", "2"], "deferred tax -life -king"),
        (["tax", "-income tax"], 'tax -"income tax"'),
        (["tax", "-k2", "-5"], None),
        (["-llib", "tax"], "tax"),
        (["--", "tax", "-life"], "tax -life"),
    ],
)
def test_a_word_after_a_minus_needs_no_quotes(run, indexed, monkeypatch, typed, query):
    asked = []

    def remember(self: Library, queries: list[str], *rest: object, **options: object) -> list[QueryResult]:
        asked.extend(queries)
        return [QueryResult("words")]

    monkeypatch.setattr(Library, "search_results", remember)
    monkeypatch.setenv("RANDSLOT_LIBRARY", "lib")
    code, _, err = run("search", *typed)
    assert (code, asked) == ((0, [query]) if query else (2, [])), err


def test_an_option_with_one_minus_is_no_excluded_word(run, indexed):
    code, _, err = run("search", "tax", "-open", "-l", "lib")
    assert (code, err.count("\n")) == (2, 1)
    assert "--open" in err


def test_several_words_are_one_query(run, indexed):
    one, two = run("search", "deferred", "tax", "-l", "lib"), run("search", "deferred tax", "-l", "lib")
    assert one == two


def test_a_library_of_ones_own_needs_no_name(run, papers, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert run("index", "papers")[0] == 0
    assert (tmp_path / "data" / "randslot" / "library" / "library.json").is_file()
    assert "pages    7" in run("library", "status")[1]
    monkeypatch.setenv("RANDSLOT_LIBRARY", str(tmp_path / "other"))
    code, _, err = run("search", "tax")
    assert code == 2
    assert err == f"randslot: no library at {tmp_path}/other: randslot index makes one\n"


def test_the_first_hit_is_opened_at_its_page(run, indexed, papers, tmp_path, monkeypatch):
    opened: list[str] = []
    monkeypatch.setenv("BROWSER", "none")  # the viewers of this machine stay closed
    monkeypatch.setattr("webbrowser.open", lambda link: opened.append(link) or True)
    write_pdf(papers / "x.pdf", 3, [])
    run("index", "papers", "-l", "lib")
    assert run("search", '"page 3"', "-l", "lib", "--by", "words", "--open")[0] == 0
    assert opened == [f"{(papers / 'x.pdf').as_uri()}#page=3"]
    monkeypatch.setattr("webbrowser.open", lambda link: False)
    code, _, err = run("search", '"page 3"', "-l", "lib", "--by", "words", "--open")
    assert (code, "x.pdf#page=3" in err) == (1, True)
    (papers / "x.pdf").unlink()
    code, _, err = run("search", '"page 3"', "-l", "lib", "--by", "words", "--open")
    assert (code, "x.pdf is not where it was" in err) == (1, True)


def test_search_filters(run, indexed, papers, saved):
    def pages(*filters: str) -> set[tuple[str, int]]:
        words = [word for one in filters for word in ("--filter", one)]
        hits = json.loads(run("search", "tax", "-l", "lib", "-k", "9", "--json", *words)[1])
        return {(Path(hit["source"]).name, hit["page"]) for hit in hits}

    assert pages("source=a.tif", "page=2-3") == {("a.tif", 2), ("a.tif", 3)}
    assert pages("page=3") == {("a.tif", 3), ("b.tif", 3)}
    run("index", "papers/b.tif", "-l", "lib", "--meta", "year=2023")
    assert pages("year=2023") == {("b.tif", 1), ("b.tif", 2), ("b.tif", 3)}
    for wanted in ("year=1999", "source=zzz"):
        code, out, err = run("search", "tax", "-l", "lib", "--filter", wanted)
        assert (code, out) == (0, "no pages found\n")
        assert f"note: no file of the library matches --filter {wanted}: randslot library list shows all" in err
    _, _, err = run("search", "tax", "-l", "lib", "--filter", "source=a.tif", "--filter", "year=2023")
    assert "note: no file of the library matches --filter source=a.tif and year=2023: " in err
    _, _, err = run("search", "tax", "-l", "lib", "--filter", "source=a.tif")
    assert "matches" not in err


def test_library_commands(run, indexed, papers):
    _, out, _ = run("library", "status", "-l", "lib")
    assert "files    3" in out
    assert "pages    7" in out
    assert re.search(r"size     [\d.]+ KB on disk, without the engine's log; [\d.]+ KB a page, 512", out)
    status = json.loads(run("library", "status", "-l", "lib", "--json")[1])
    assert (status["files"], status["pages"], status["vector_bytes_per_page"], status["pending"]) == (3, 7, 512, 0)
    assert status["bytes_per_page"] == status["bytes"] // 7 > 512
    _, out, _ = run("library", "list", "-l", "lib")
    assert out.splitlines() == ["papers/a.tif  (3 pages)", "papers/b.tif  (3 pages)", "papers/below/c.png  (1 page)"]
    assert [file["num_pages"] for file in json.loads(run("library", "list", "-l", "lib", "--json")[1])] == [3, 3, 1]
    assert run("library", "verify", "-l", "lib")[:2] == (0, "7 pages, all as they should be\n")
    code, out, err = run("library", "remove", "*.tif", "-l", "lib")
    assert (code, err) == (1, "nothing was removed: --yes does it without asking\n")
    assert out.splitlines() == ["  papers/a.tif", "  papers/b.tif", "2 files would be removed"]
    assert "2 files would be removed" in run("library", "remove", "*.tif", "-l", "lib", "--dry-run")[1]
    assert json.loads(run("library", "status", "-l", "lib", "--json")[1])["pages"] == 7
    assert "2 files removed" in run("library", "remove", "*.tif", "-l", "lib", "--yes")[1]
    assert json.loads(run("library", "status", "-l", "lib", "--json")[1])["pages"] == 1


def test_verify_fails_and_repairs(run, indexed, papers, model):
    with Library("lib", model) as library:
        library.store.delete(library.manifest.find(source=str(papers / "a.tif"))[0].id)
    code, _, err = run("library", "verify", "-l", "lib")
    assert (code, "a.tif: 0 of 3 pages are stored" in err) == (1, True)
    code, out, _ = run("library", "verify", "-l", "lib", "--repair")
    assert (code, out.splitlines()[-1]) == (0, "1 file not complete yet: index again to resume")
    assert run("library", "verify", "-l", "lib")[1].splitlines() == [
        "4 pages, all as they should be",
        out.splitlines()[-1],
    ]
    assert "not complete yet" in run("library", "list", "-l", "lib")[1]
    assert run("index", "papers", "-l", "lib", "-q")[0] == 0
    assert run("library", "verify", "-l", "lib")[0] == 0


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["index", "nowhere", "-l", "lib"], 2, "no such file or folder: nowhere"),
        (["index", "--ray", "nowhere", "-l", "lib"], 2, "nowhere; an address after --ray is as in host:6379"),
        (["index", "papers", "-l", "lib", "--ray=foo"], 2, "--ray takes the address of a cluster"),
        (["index", "papers", "-l", "papers"], 2, "papers is not a library and not empty"),
        (["index", "papers", "-l", "lib", "--model", "gone"], 2, "no model found at 'gone'"),
        (["index", "papers", "-l", "lib", "--model", "embedded"], 2, "belongs to"),
        (["index", "papers", "-l", "lib", "--model", "embedded", "--page-vectors", "6"], 2, "belongs to"),
        (
            ["index", "papers", "-l", "lib", "--page-vectors", "6"],
            2,
            "--page-vectors needs --model",
        ),
        (["index", "", "-l", "lib"], 2, "an empty path: name a file or a folder"),
        (["library", "remove", "", "-l", "lib", "--yes"], 2, "an empty name of a file"),
        (["library", "words", "-l", "lib", "--workers", "-2"], 2, "workers must be at least 0, not -2"),
        (["search", "x", "-l", ""], 2, "an empty path of a library"),
        (["search", "x", "-l", "lib", "-k", "99999999999999999999999"], 2, "k must be at most 1,000,000"),
        (["index", "papers", "-l", "lib", "--meta", "a=1", "--meta", "a=2"], 2, "--meta names 'a' twice"),
        (["index", "papers", "-l", "lib", "--meta", "year"], 2, "--meta takes key=value, not 'year'"),
        (["index", "papers", "-l", "lib", "--meta", "page=3"], 2, "metadata cannot be called 'page'"),
        (["search", "x", "-l", "nolib"], 2, "no library at nolib: randslot index makes one"),
        (["search", " ", "-l", "lib"], 2, "empty query"),
        (["search", "-", "-l", "lib"], 2, "empty query"),
        (
            ["search", "\udcff\udcfe", "-l", "lib"],
            2,
            "a query has characters that are not valid text: '\\udcff\\udcfe'",
        ),
        (["search", "x", "-l", "lib", "--filter", "year=2023"], 2, "no page in library lib has 'year' to filter by"),
        (["search", "x", "-l", "lib", "--filter", "page=1", "--filter", "page=2"], 2, "--filter names 'page' twice"),
        (["search", "x", "-l", "lib", "--filter", "page=x"], 2, "--filter page takes a number or a range"),
        (["search", "x", "-l", "lib", "--filter", "page=9-3"], 2, "page must be a number from 1"),
        (["search", "x", "-l", "lib", "--model", "embedded"], 2, "belongs to"),
        (["search", "x", "-l", "lib", "--query-vectors", "0"], 2, "query_vectors must be a whole number"),
        (["library", "status", "-l", "nolib"], 2, "no library at nolib"),
        (["library", "remove", "x.pdf", "-l", "lib"], 2, "matches 'x.pdf'"),
    ],
)
def test_errors_are_one_line_with_the_right_code(run, indexed, words, code, message):
    found, out, err = run(*words)
    assert (found, out, len(err.splitlines())) == (code, "", 1), err
    assert message in err


def test_a_wrong_path_leaves_no_library(run, papers, tmp_path):
    code, out, err = run("index", "papers", "nothere.pdf", "-l", "lib")
    assert (code, out, err) == (2, "", "randslot: no such file or folder: nothere.pdf\n")
    assert not (tmp_path / "lib").exists()


def test_a_refused_library_leaves_no_folders(run, papers, tmp_path):
    assert run("index", "papers", "-l", "new/one/lib", "--model", "gone")[0] == 2
    assert not (tmp_path / "new").exists()
    (tmp_path / "mine").mkdir()
    assert run("index", "papers", "-l", "mine/lib", "--model", "gone")[0] == 2
    assert list((tmp_path / "mine").iterdir()) == []


def test_what_is_no_regular_file_is_told_and_the_rest_is_indexed(run, papers, saved):
    os.mkfifo("pipe.pdf")
    code, _, err = run("index", "pipe.pdf", "papers/a.tif", "-l", "lib", "--model", str(saved))
    assert (code, err) == (1, "could not index pipe.pdf: not a regular file\n")
    assert run("library", "list", "-l", "lib")[1] == "papers/a.tif  (3 pages)\n"


def test_a_gif_is_a_page(run, tmp_path, saved):
    noise(40, 60).save("x.gif", save_all=True, append_images=[noise(40, 60, 1)])
    assert run("index", "x.gif", "-l", "lib", "--model", str(saved), "-q") == (0, "", "")
    assert run("library", "list", "-l", "lib")[1] == "x.gif  (1 page)\n"


@pytest.mark.parametrize(
    "words", [["library", "status", "-l", "lib"], ["library", "verify", "-l", "lib"], ["analyse", "cost"]]
)
def test_commands_without_a_model_load_nothing_heavy(indexed, words):
    code = (
        f"import sys; sys.argv = ['randslot', *{words}]\n"
        "from randslot.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "print(sorted({'torch', 'transformers', 'sentence_transformers', 'matplotlib'} & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines()[-1] == "[]"


def test_names_are_printed_as_they_are(run, tmp_path, saved):
    (tmp_path / "in").mkdir()
    noise(40, 40).save(tmp_path / "in" / "[bold]x.png")
    noise(40, 40, 1).save(tmp_path / "in" / "line\nbreak.png")
    assert run("index", "in", "-l", "lib", "--model", str(saved), "-q")[0] == 0
    _, out, _ = run("search", "x", "-l", "lib")
    assert "in/[bold]x.png  page 1" in out
    assert len(out.splitlines()) == 2


def test_ctrl_c_stops_cleanly_and_says_how_to_go_on(tmp_path, saved, model):
    """In a real process, while it reads pages."""
    for number in range(200):
        write_tiff(tmp_path / f"{number}.tif", range(10 * number, 10 * number + 10))
    words = [sys.executable, "-m", "randslot", "index", str(tmp_path), "-l", str(tmp_path / "lib")]
    process = subprocess.Popen(
        [*words, "--model", str(saved), "--batch", "2"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while process.poll() is None and not (tmp_path / "lib" / "pages" / "segments").exists():
        time.sleep(0.05)
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "run the command again to resume" in err
    assert "Traceback" not in out + err
    with Library(tmp_path / "lib", model) as library:
        assert library.verify() == []
        assert library.status().files < 200
