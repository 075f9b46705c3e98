"""randslot search on a library of words: queries, filters, what is printed."""

from __future__ import annotations

import csv
import os
import stat
from pathlib import Path

import pytest

from contract.pdf import write_pdf

HIT = {"id", "source", "page", "score", "matches", "metadata", "file", "by", "snippet", "boxes", "copies", "fields"}
HIT |= {"gone"}


@pytest.fixture
def find(run, library_once):
    """Return the pages that a query finds, as (name of the file, page), best first."""

    def call(*words: str) -> list[tuple[str, int]]:
        answer = run("search", *words, "-l", library_once, "--json")
        assert answer.code == 0, answer.err
        return [(Path(hit["source"]).name, hit["page"]) for hit in answer.json]

    return call


@pytest.fixture
def find_all(run, library_once):
    """Return the pages that each of some queries finds."""

    def call(*queries: str) -> list[list[tuple[str, int]]]:
        answer = run("search", "-", "-l", library_once, "--json", stdin="\n".join(queries))
        assert answer.code == 0, answer.err
        return [[(Path(hit["source"]).name, hit["page"]) for hit in one["hits"]] for one in answer.json]

    return call


def test_hits_are_printed_with_file_page_and_text(run, library_once, papers_once):
    answer = run("search", "battery", "life", "-l", library_once, cwd=papers_once.parent)
    assert (answer.code, answer.err) == (0, "")
    first, text, second, _ = answer.out.splitlines()
    assert "1" in first
    assert "papers/fleet.pdf" in first + second
    assert "papers/below/manual.pdf" in first + second
    assert "page 1" in first
    assert "Battery life" in text


def test_a_terminal_that_knows_ascii_only_gets_every_hit(run, library_once):
    answer = run("search", "Rechnung", "-l", library_once, env={"PYTHONIOENCODING": "ascii"})
    assert (answer.code, answer.err) == (0, "")
    assert "brief.pdf" in answer.out


def test_hits_in_json(run, library_once, papers_once):
    (hit,) = run("search", "deferred tax 2023", "-l", library_once, "-k", "1", "--json").json
    assert hit.keys() == HIT
    assert (hit["source"], hit["page"], hit["by"]) == (str(papers_once / "report.pdf"), 1, "words")
    assert (hit["matches"], hit["metadata"], hit["copies"]) == ([], {}, [])
    assert hit["score"] > 0
    marked = {hit["snippet"]["text"][start:end] for start, end in hit["snippet"]["marks"]}
    assert marked == {"Deferred", "tax", "2023"}
    assert len(hit["boxes"]) == 3
    assert all(0 < left < right < 1 and 0 < top < bottom < 1 for left, top, right, bottom in hit["boxes"])


def test_words_are_one_query(run, library_once):
    one = run("search", "deferred", "tax", "-l", library_once)
    assert one == run("search", "deferred tax", "-l", library_once)


def test_phrases_and_exclusions(find_all):
    assert find_all(
        '"deferred tax"',
        '"DEFERRED Tax" 2023',
        '"tax deferred"',
        "tax -income",
        'tax -"income tax"',
        '"deferred" INV-20931 -assets',
        "wool -volume",  # left out in every form
        'wool -"volume"',  # as typed
    ) == [
        [("report.pdf", 1)],
        [("report.pdf", 1)],
        [],
        [("report.pdf", 1)],
        [("report.pdf", 1)],
        [("report.pdf", 2)],
        [],
        [("report.pdf", 3)],
    ]


def test_an_excluded_word_needs_no_quotes(find):
    assert find("tax", "-income", "-k", "3") == [("report.pdf", 1)]


def test_identifiers_stems_and_languages(find_all):
    first = {
        "INV-20931": ("report.pdf", 2),
        "1,234.56": ("report.pdf", 1),
        "4.2.1": ("report.pdf", 3),
        "volume growing": ("report.pdf", 3),  # stems
        "read only": ("manual.pdf", 3),  # neighbours written as one
        "e-mail": ("manual.pdf", 3),
        "Rechnung Haus": ("brief.pdf", 1),  # in the language of its page
        "\u00dcBERWIESEN": ("brief.pdf", 1),
    }
    assert {query: pages[0] for query, pages in zip(first, find_all(*first), strict=True)} == first


def test_common_words_find_pages_too(find):
    assert len(find("the", "-k", "9")) > 2


def test_a_larger_k_only_adds_hits(find):
    few, many = find("the tax of battery", "-k", "2"), find("the tax of battery", "-k", "6")
    assert many[:2] == few
    assert len(many) > 2


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (["source=report.pdf"], {("report.pdf", 1), ("report.pdf", 2), ("report.pdf", 3)}),
        (["source=below"], {("manual.pdf", 1), ("manual.pdf", 2), ("manual.pdf", 3)}),
        (["source=*e*.pdf", "page=1"], {("report.pdf", 1), ("fleet.pdf", 1), ("manual.pdf", 1), ("brief.pdf", 1)}),
        (["source=below/manual.pdf", "page=2-3"], {("manual.pdf", 2), ("manual.pdf", 3)}),
        (["page=3"], {("report.pdf", 3), ("manual.pdf", 3)}),
    ],
)
def test_filters_by_file_and_page(find, filters, found):
    words = [word for one in filters for word in ("--filter", one)]
    query = "tax wool battery terms the die to in"
    assert set(find(query, "-k", "20", "--copies", *words)) == found


def test_identical_pages_are_one_hit_that_names_the_others(run, library_once):
    answer = run("search", "terms and conditions", "-l", library_once, "-k", "1")
    assert "manual.pdf" in answer.out
    assert "fleet.pdf" in answer.out
    (hit,) = run("search", "conditions", "-l", library_once, "--json").json
    (copy,) = hit["copies"]
    assert {Path(hit["source"]).name, Path(copy["source"]).name} == {"manual.pdf", "fleet.pdf"}
    assert copy["page"] == 2
    hits = run("search", "conditions", "-l", library_once, "--json", "--copies").json
    assert [len(hit["copies"]) for hit in hits] == [0, 0]


def test_a_score_is_shown_on_demand(run, library_once):
    hit = run("search", "deferred tax", "-l", library_once, "-k", "1", "--json").json[0]
    score = f"{hit['score']:.3f}"
    assert score in run("search", "deferred tax", "-l", library_once, "-k", "1", "--explain").out
    assert score not in run("search", "deferred tax", "-l", library_once, "-k", "1").out


def test_queries_are_read_from_stdin(run, library_once):
    answers = run("search", "-", "-l", library_once, "--json", "-k", "1", stdin="wool\n\nred button\n").json
    assert [answer["query"] for answer in answers] == ["wool", "red button"]
    assert [Path(answer["hits"][0]["source"]).name for answer in answers] == ["report.pdf", "manual.pdf"]
    (one,) = run("search", "-", "-l", library_once, "--json", stdin="wool\n").json
    assert one.keys() == {"query", "hits"}
    answer = run("search", "-", "-l", library_once, "-k", "1", stdin="wool\nred button\n")
    assert answer.code == 0
    assert all(word in answer.out for word in ("wool", "report.pdf", "red button", "manual.pdf"))


def test_an_unknown_word_is_pointed_out(run, library_once):
    answer = run("search", "xyzzy", "wool", "-l", library_once)
    assert (answer.code, "report.pdf" in answer.out) == (0, True)
    assert "xyzzy" in answer.err
    assert "wool" not in answer.err


def test_a_search_that_finds_nothing_is_no_failure(run, library_once):
    answer = run("search", "xyzzy", "-l", library_once)
    assert answer.code == 0
    assert ".pdf" not in answer.out
    assert run("search", "xyzzy", "-l", library_once, "--json").json == []


def test_the_first_hit_is_opened_at_its_page(run, library_once, papers_once, tmp_path):
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    os.chmod(browser, stat.S_IRWXU)
    answer = run("search", "INV-20931", "-l", library_once, "--open", env={"BROWSER": str(browser)})
    assert answer.code == 0
    assert (tmp_path / "opened").read_text().strip() == f"{(papers_once / 'report.pdf').as_uri()}#page=2"


def test_a_file_that_is_gone_cannot_be_opened(run, papers):
    assert run("index", "papers/report.pdf", "-l", "own", "-q").code == 0
    (papers / "report.pdf").unlink()
    answer = run("search", "INV-20931", "-l", "own", "--open", env={"BROWSER": "true"})
    assert answer.code == 1
    assert "report.pdf" in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([" "], ""),
        (["-"], ""),
        (["tax", "-k", "0"], "0"),
        (["tax", "-k", "99999999999999999999999"], ""),
        (["tax", "--by", "smell"], "smell"),
        (["tax", "--by", "vectors"], "vectors"),
        (["tax", "--filter", "colour=red"], "colour"),
        (["tax", "--filter", "page=x"], "page"),
        (["tax", "--filter", "page=1", "--filter", "page=2"], "page"),
        (["tax", "-open"], "open"),
        (["tax", "--nonsense"], "--nonsense"),
    ],
)
def test_wrong_usage_is_one_line_with_code_2(run, library_once, words, named):
    answer = run("search", *words, "-l", library_once)
    assert (answer.code, answer.out, len(answer.err.splitlines())) == (2, "", 1), answer.err
    assert named in answer.err


def test_a_misspelled_word_is_corrected_and_told(run, library_once):
    assert "deferred" in run("search", "deferred tax", "-l", library_once).out
    found = run("search", "incmoe tax", "-l", library_once)
    assert "note: Showing results for income tax; search instead for incmoe tax: --verbatim" in found.err
    assert found.out == run("search", "income tax", "-l", library_once).out
    as_typed = run("search", "incmoe tax", "-l", library_once, "--verbatim")
    assert 'no page has "incmoe"' in as_typed.err
    assert "Showing" not in as_typed.err
    (answer,) = run("search", "-", "-l", library_once, "--json", stdin="incmoe tax\n").json
    assert answer["corrected"] == "income tax"


def test_several_libraries_give_one_list_and_other_commands_take_one(run, library, tmp_path):
    write_pdf(tmp_path / "more" / "wool.pdf", [["The wool of the hills"]])
    run("index", "more", "-l", "more lib", "-q")
    hits = run("search", "wool", "-l", "lib", "-l", "more lib", "--json", "-k", "2").json
    assert [hit["library"] for hit in hits] == ["lib", "more lib"]  # by rank
    assert "library more lib" in run("search", "wool", "-l", "lib", "-l", "more lib").out
    (hit,) = run("search", "hills", "--json", env={"RANDSLOT_LIBRARY": "more lib"}).json
    assert "library" not in hit
    corrected = run("search", "woll", "-l", "lib", "-l", "more lib")
    assert "Showing results for wool" in corrected.err
    write_pdf(tmp_path / "more" / "woll.pdf", [["A woll is something else"]])
    run("index", "more", "-l", "more lib", "-q")
    alone = run("search", "woll", "-l", "lib", "-l", "more lib")
    assert (alone.out.count("page 1"), "woll.pdf" in alone.out, alone.err) == (1, True, "")
    both = run("search", "woll or wool", "-l", "lib", "-l", "more lib", "--json")
    assert ({hit["library"] for hit in both.json}, both.err) == ({"lib", "more lib"}, "")
    answer = run("library", "status", "-l", "lib", "-l", "more lib")
    assert (answer.code, answer.err) == (2, "randslot: --library was given twice: pass it once\n")


def test_hits_for_other_programs(run, library):
    words = ["search", '"battery life"', "-l", "lib"]
    rows = list(csv.DictReader(run(*words, "--csv").out.splitlines()))
    assert [(row["name"], row["page"]) for row in rows] == [("fleet.pdf", "1"), ("manual.pdf", "1")]
    assert "eleven hours" in rows[0]["text"]
    assert run(*words, "--format", "{rank} {name}#{page}").out == "1 fleet.pdf#1\n2 manual.pdf#1\n"
    assert run(*words, "-0").out == "".join(f"{row['source']}\0" for row in rows)
    for wrong in (["--format", "{nothing}"], ["--format", "{"], ["--csv", "--json"]):
        answer = run(*words, *wrong)
        assert (answer.code, answer.err.count("\n")) == (2, 1)


def test_texts_are_exported_as_parquet(run, library, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    assert run("library", "export", "pages.parquet", "-l", "lib").out == "9 pages in pages.parquet\n"
    rows = parquet.read_table(tmp_path / "pages.parquet").to_pylist()
    (row,) = [row for row in rows if "eleven hours" in row["text"]]
    assert (row["source"].endswith("fleet.pdf"), row["page"], row["type"], row["vectors"]) == (True, 1, "pdf", None)
    assert run("library", "export", "pages.parquet", "-l", "lib").code == 2
