"""Libraries find pages by their words: without a model, with one, by OCR, in old libraries, whatever files hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from randslot.errors import UsageError
from randslot.library.backfill import Backfill
from randslot.library.copy import copy_library
from randslot.library.library import Library
from randslot.library.models import ReadingCheck
from support.libraries import ToyReader, write_tiff
from support.models import noise
from support.pdf import write_pages, write_unicode
from support.qdrant_server import serving
from support.scans import write_scan

TEXTS = [
    ["Annual report of the board", "The deferred tax assets of the year", "are shown in note 4.2.1"],
    ["Invoice INV-20931", "The income tax was paid", "and nothing was deferred"],
    ["Battery life and charging", "The battery of the device", "lasts for ten hours"],
]


@pytest.fixture
def papers(tmp_path) -> Path:
    """A folder with a PDF of three pages of text, and a scan."""
    folder = tmp_path / "papers"
    folder.mkdir()
    write_pages(folder / "report.pdf", TEXTS)
    noise(64, 96, 1).save(folder / "scan.png")
    return folder


@pytest.fixture
def library(tmp_path, papers):
    with Library(tmp_path / "lib") as opened:
        opened.add(papers, workers=1)
        yield opened


def found(library: Library, query: str, **options) -> list[int]:
    return [hit.page for hit in library.search(query, 10, **options, verbatim=True)]


def test_a_library_without_a_model_finds_pages_by_their_words(library):
    assert library.binding is None
    assert found(library, "deferred tax assets")[0] == 1
    assert found(library, "batteries") == [3]
    assert found(library, "INV-20931") == [2]
    assert found(library, "note 4.2.1")[0] == 1
    assert found(library, '"income tax"') == [2]
    assert found(library, "tax -income") == [1]
    assert found(library, "the of")[:1] != []
    assert found(library, "unheard") == []
    for query in ("...", '"', '""', "-", "\x00", "\u202e"):
        assert library.search(query) == []
    with pytest.raises(UsageError, match="the query has 1,000,000 characters"):
        library.search("x" * 1_000_000)
    with pytest.raises(UsageError, match="add at least one word to search for"):
        library.search("-battery")
    status = library.status()
    assert (status.model, status.language, status.format) == (None, "english", 2)
    assert (status.with_text, status.origins, status.with_vectors) == (3, {"layer": 3, "none": 1}, 0)


def test_a_hit_shows_the_words_and_where_they_stand(library):
    (hit,) = library.search("batteries", 1, boxes=True)
    assert hit.by == "words"
    assert [hit.snippet.text[start:end] for start, end in hit.snippet.marks] == ["Battery", "battery"]
    words = library.read_text(hit.id, boxes=True).words
    boxes = [(word.left, word.top, word.right, word.bottom) for word in words if word.text.lower() == "battery"]
    assert len(hit.boxes) == 2
    for box, expected in zip(hit.boxes, boxes, strict=True):
        assert box == pytest.approx(expected, abs=1e-4)
    assert library.find_on_page("ten hours", hit.id).boxes != ()
    assert hit.matches == ()


def test_a_file_that_has_changed_or_is_gone_shows_no_boxes(tmp_path):
    write_pages(tmp_path / "report.pdf", TEXTS)
    with Library(tmp_path / "lib") as library:
        library.add(tmp_path / "report.pdf", workers=1)
        assert library.search("battery", 1)[0].boxes == ()
        assert library.search("battery", 1, boxes=True)[0].boxes != ()
        write_pages(tmp_path / "report.pdf", list(reversed(TEXTS)))
        (hit,) = library.search("battery", 1, boxes=True)
        assert (hit.boxes, hit.snippet.marks != ()) == ((), True)
        (tmp_path / "report.pdf").unlink()
        assert library.search("battery", 1, boxes=True)[0].boxes == ()


def test_two_words_find_a_page_that_has_them_as_one(tmp_path):
    write_pages(tmp_path / "bash.pdf", [["The readonly builtin of the shell"], ["Pages about something else"], []])
    with Library(tmp_path / "lib") as library:
        library.add(tmp_path / "bash.pdf", workers=1)
        (hit,) = library.search("read only")
        assert [hit.snippet.text[a:b] for a, b in hit.snippet.marks] == ["readonly"]
        assert library.find_unknown("read only values") == ["values"]
        assert library.search('"read only"') == library.search("shell -readonly") == []
        assert library.status().origins == {"layer": 2, "blank": 1}


# -- languages


@pytest.mark.parametrize(
    ("language", "text", "query"),
    [
        ("german", "Die Häuser und die Verträge sind in der Stadt und nicht auf dem Land", "Haus Vertrag"),
        ("none", "这份报告应与本文件中的财务报表一并阅读", "财务报表"),
    ],
)
def test_the_language_is_that_of_the_pages(tmp_path, language, text, query):
    (tmp_path / "in").mkdir()
    write_unicode(tmp_path / "in" / "a.pdf", text)
    with Library(tmp_path / "lib") as library:
        library.add(tmp_path / "in", workers=1)
        assert library.words.language == language
        assert found(library, query) == [1]
    with Library(tmp_path / "lib") as library:
        assert library.words.language == language


def test_a_word_of_a_rare_language_is_found_by_itself(tmp_path):
    english = [f"The meeting of the board in the town number {i} was about the annual report" for i in range(20)]
    german = [
        "Die Mitgliederversammlung wählt den Vorstand",
        "und beschließt mit Mehrheit die Satzung des Vereins",
    ]
    write_pages(tmp_path / "a.pdf", [*([text] for text in english), german])
    with Library(tmp_path / "lib") as library:
        library.add(tmp_path / "a.pdf", workers=1)
        library.read_words(language="auto", workers=1)
        assert library.words.languages == ("english", "german")
        assert found(library, "Mitgliederversammlung") == [21]
        assert found(library, "Vereine Satzungen") == [21]


def test_function_words_of_a_language_that_no_page_has_find_nothing(tmp_path):
    texts = [["The UN and the EU met in the dans of the city, and the pages say what they agreed on"], ["Read a table"]]
    write_pages(tmp_path / "a.pdf", texts)
    with Library(tmp_path / "lib") as library:
        library.add(tmp_path / "a.pdf", workers=1)
        assert found(library, "comment lire un tableau dans un fichier") == []
        assert found(library, "comment lire un tableau dans un fichier table") == [2]
        assert found(library, "the UN and the EU") == [1]


def test_counting_that_was_stopped_goes_on(library, tmp_path, monkeypatch):
    monkeypatch.setattr("randslot.library.backfill.BATCH", 1)
    counted: list[int] = []
    library.read_words(language="none", progress=lambda now: counted.append(now.pages_done), stop=lambda: True)
    assert counted == [1]
    library.close()
    with Library(tmp_path / "lib") as library:
        assert "run randslot library words" in library.notes()[0]
        with Library(tmp_path / "other") as other:  # a copy counts them
            assert (copy_library(library, other).problems, found(other, "batteries"), other.notes()) == ([], [], [])
            with pytest.raises(UsageError, match=r"keyword index of library .* is incomplete"):
                copy_library(other, library)
        library.read_words()
        assert (found(library, "battery"), found(library, "batteries"), library.notes()) == ([3], [], [])


GERMAN = [
    "Die Verträge und die Rechnungen sind in der Akte",
    "und nicht auf dem Tisch, weil sie mit den anderen",
    "bei der Bank liegen, und das ist auch nicht anders",
]


@pytest.fixture
def letters(tmp_path) -> Path:
    write_pages(tmp_path / "brief.pdf", [GERMAN])
    return tmp_path / "brief.pdf"


def test_each_page_is_read_in_its_own_language(library, letters):
    assert library.status().languages == ("english",)
    library.add(letters, workers=1)
    assert library.status().languages == ("english", "german")
    for query in ("Rechnung", "Verträgen"):
        (hit,) = library.search(query, boxes=True)
        assert Path(hit.source).name == "brief.pdf"
        ((start, end),) = hit.snippet.marks
        assert hit.snippet.text[start:end] == {"Rechnung": "Rechnungen", "Verträgen": "Verträge"}[query]
        assert len(hit.boxes) == 1
    assert found(library, "batteries") == [3]
    assert library.find_unknown("Rechnung batteries xyzzy") == ["xyzzy"]
    assert found(library, "Tisch -Rechnung") == []
    assert found(library, "Tisch -battery") == [1]
    with Library(library.folder.parent / "other") as other:
        other.add(letters, workers=1)
        assert other.status().languages == ("german",)


def test_one_language_for_all_pages_if_it_is_named(library, letters):
    library.read_words(language="english")
    library.add(letters, workers=1)
    assert (library.words.languages, found(library, "Rechnung")) == (("english",), [])
    library.read_words(language="french")
    library.read_words(language="auto")
    assert (library.words.each, library.words.language) == (True, "english")  # most of the text is
    assert found(library, "Rechnung") == [1]


ENGLISH = [
    "The report of the board is to be read with the accounts",
    "that are in this document and on the site, and it was not",
    "changed for the batteries which have been there before",
]


def test_libraries_with_other_usual_languages_are_copied_into_one_that_takes_all(letters, tmp_path):
    write_pages(tmp_path / "report.pdf", [ENGLISH])
    with Library(tmp_path / "english") as library, Library(tmp_path / "german") as other:
        library.add(tmp_path / "report.pdf", workers=1)
        other.add(letters, workers=1)
        assert (library.words.languages, other.words.languages) == (("english",), ("german",))
        copied = copy_library(library, other)
        assert (copied.problems, other.words.languages) == ([], ("german", "english"))
        for query, name in (("battery", "report.pdf"), ("Rechnung", "brief.pdf")):
            (hit,) = other.search(query)
            assert Path(hit.source).name == name


def test_a_copy_has_the_languages_of_both(library, letters, papers, tmp_path):
    library.add(letters, workers=1)
    with Library(tmp_path / "new") as other:
        copy_library(library, other)
        assert (other.words.languages, found(other, "Rechnung")) == (("english", "german"), [1])
    with Library(tmp_path / "one") as other:
        other.add(papers, workers=1)
        other.read_words(language="english")
        copy_library(library, other)
        assert (other.words.languages, found(other, "Rechnung")) == (("english", "german"), [1])
        other.read_words(language="english")
        assert (other.words.languages, found(other, "Rechnung")) == (("english",), [])


# -- scans


def test_pages_without_text_are_stored_first_and_read_later(tmp_path, ocr_engine):
    folder = tmp_path / "in"
    folder.mkdir()
    write_scan(folder / "scan.png", "Second invoice", "of the warehouse")
    noise(64, 96, 1).save(folder / "noise.png")
    write_pages(folder / "text.pdf", TEXTS[:1])
    with Library(tmp_path / "lib") as library:
        summary = library.add(folder, workers=1)
        assert (summary.pages, summary.without_text) == (3, 2)
        assert found(library, "invoice") == []
        assert library.read_words(ocr="missing", workers=1) == 1
        (hit,) = library.search("invoices", boxes=True)
        assert Path(hit.source).name == "scan.png"
        assert hit.boxes != ()
        assert library.search("invoices", filters={"language": "english"}) != []
        assert library.status().origins == {"layer": 1, "ocr": 1, "blank": 1}
        assert library.read_words(ocr="missing") == 0  # the noise has no words, and is not read twice
        assert library.read_words(ocr="all", workers=1) >= 2
        assert library.status().origins == {"ocr": 2, "blank": 1}
        assert found(library, "annual report") == [1]


@pytest.mark.nightly
def test_a_page_that_ocr_cannot_read_is_counted_and_not_tried_again(tmp_path, ocr_engine, papers):
    with Library(tmp_path / "lib") as library:
        library.add(papers, workers=1)
        (papers / "scan.png").write_bytes(b"torn")
        library.read_words(ocr="missing", workers=1)
        assert library.status().origins == {"layer": 3, "failed": 1}
        (papers / "scan.png").unlink()
        assert library.read_words(ocr="all", workers=1) == 3  # a file that is away is left as it is
        assert library.status().origins == {"ocr": 3, "failed": 1}


KILLED = """
import sys
from randslot.library import backfill
from randslot.library.library import Library
backfill.BATCH = 2
with Library(sys.argv[1]) as library:
    library.add(sys.argv[2], workers=1)
    print("stored", flush=True)
    library.read_words(ocr="missing", workers=1, progress=lambda now: print(now.pages_done, flush=True))
"""


@pytest.mark.nightly
def test_reading_scans_can_be_killed_and_goes_on(tmp_path, ocr_engine):
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(12):
        write_scan(folder / f"scan{number}.png", f"Invoice number {number}00", "warehouse")
    command = [sys.executable, "-c", KILLED, str(tmp_path / "lib"), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.strip() == "3":
                break
        process.kill()
    with Library(tmp_path / "lib") as library:
        assert len(library) == 12
        assert library.verify() == []
        before = library.status().origins
        assert 0 < before.get("none", 0) < 12
        assert library.read_words(ocr="missing", workers=1) == before["none"]
        assert library.status().origins == {"ocr": 12}
        assert len(library.search("warehouse", 20)) == 12


# -- words and vectors


def test_encoding_for_a_new_model_can_be_stopped_and_goes_on(tmp_path, papers):
    with Library(tmp_path / "lib") as library:
        library.add(papers, workers=1)
    with Library(tmp_path / "lib", ToyReader(stop_after=1)) as library:
        with pytest.raises(KeyboardInterrupt):
            library.add(papers, batch=2, workers=1)
        assert library.status().with_vectors == 2
        assert found(library, "battery", by="words") == [3]
    with Library(tmp_path / "lib", ToyReader()) as library:
        assert library.add(papers, workers=1).encoded == 2


def test_with_a_model_pages_have_words_and_vectors(tmp_path, papers):
    with Library(tmp_path / "lib", ToyReader()) as library:
        library.add(papers, workers=1)
        assert (library.choose_by(), library.models.reading_check) == ("both", None)
        hits = library.search('"income tax"')
        assert [(hit.page, hit.by) for hit in hits] == [(2, "both")]  # a phrase holds for vectors too
        assert len(hits[0].matches) == 3
        assert library.search("...", by="both") == []  # nothing is asked for
        assert library.search("...", by="words") == []


class Blind(ToyReader):
    """A model whose queries are all the same: one page is the best for all of them."""

    def embed_queries(self, queries, num_vectors=None):
        return [self.vectors(b"x", 3) for _ in queries]


class Reading(ToyReader):
    """A model that knows which page a line is from."""

    def embed_pages(self, pages):
        self.texts = [*getattr(self, "texts", []), *pages]
        return super().embed_pages(pages)

    def embed_queries(self, queries, num_vectors=None):
        found = []
        for query in queries:
            page = next((text for text in self.texts if query in text), query)
            found.append(self.vectors(page.encode()))
        return found


def write_many(folder: Path, num: int) -> None:
    folder.mkdir()
    pages = [[f"This is the page of number {i} and of nothing else"] for i in range(num)]
    write_pages(folder / "many.pdf", pages)


def test_vectors_that_cannot_tell_pages_apart_are_not_relied_on(tmp_path):
    write_many(tmp_path / "in", 20)
    with Library(tmp_path / "lib", Blind()) as library:
        library.add(tmp_path / "in", workers=1)
        assert 0.2 < library.models.reading_check.share < 0.75
        assert library.choose_by() == "words"
        (note,) = library.notes()
        assert note.startswith("the model cannot read these pages")
        assert library.search("number 7", 1)[0].by == "words"
        assert library.search("number 7", 1, by="both")[0].by == "both"
    with Library(tmp_path / "lib") as library:
        assert not library.models.reading_check.reads
        assert library.status().notes == (note,)


def test_vectors_that_know_their_pages_are(tmp_path):
    write_many(tmp_path / "in", 20)
    with Library(tmp_path / "lib", Reading(reads="text")) as library:
        library.add(tmp_path / "in", workers=1)
        assert library.models.reading_check == ReadingCheck(1.0, 20)
        assert (library.choose_by(), library.notes()) == ("both", [])


# -- copies


def test_a_copy_finds_the_same_in_the_same_order(library, url, tmp_path):
    queries = ["deferred tax", '"income tax"', "the board of the battery", "tax -income", "INV-20931"]
    wanted = [[(hit.id, round(hit.score, 3)) for hit in hits] for hits in library.search_all(queries)]
    for place in (url, tmp_path / "copy"):
        with Library(place) as other:
            assert copy_library(library, other).problems == []
            got = [[(hit.id, round(hit.score, 3)) for hit in hits] for hits in other.search_all(queries)]
            if "shards=" in str(place):  # each shard counts by itself how rare words are: the pages are the same
                assert [{id for id, _ in hits} for hits in got] == [{id for id, _ in hits} for hits in wanted]
            else:
                assert got == wanted
            assert other.words.language == "english"
            assert other.search("battery")[0].snippet == library.search("battery")[0].snippet


def test_who_searches_follows_languages_that_another_process_adds(url, papers, letters, monkeypatch):
    monkeypatch.setattr("randslot.library.library.REFRESH_SECONDS", 0.0)
    with Library(url) as first, Library(url) as second:
        second.add(papers, workers=1)
        assert found(first, "batteries") == [3]
        second.add(letters, workers=1)
        assert found(first, "Rechnung", by="words") == [1]


def test_vectors_come_to_the_words_on_a_server(papers, tmp_path, monkeypatch):
    """On the stand-in: Qdrant 1.16 refuses it in one line, newer ones are to have it."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    with serving() as (_, port):
        url = f"qdrant://127.0.0.1:{port}/papers"
        with Library(url) as library:
            library.add(papers, workers=1)
        with Library(url, ToyReader()) as library:
            assert library.add(papers, workers=1).encoded == 4
            assert library.status().with_vectors == 4
            assert sorted(found(library, "tax", by="vectors")) == [1, 1, 2, 3]
            assert found(library, "battery", by="words") == [3]


def test_copies_of_different_kinds_are_refused(library, tmp_path):
    with Library(tmp_path / "other", ToyReader()) as other, pytest.raises(UsageError, match=r"has vectors and .* none"):
        copy_library(library, other)
    write_pages(tmp_path / "de.pdf", [["Die Häuser sind in der Stadt und nicht auf dem Land und das ist gut"]])
    with Library(tmp_path / "german") as other:
        other.add(tmp_path / "de.pdf", workers=1)
        other.read_words(language="german")
        with pytest.raises(UsageError, match=r"is indexed as english and .* as german"):
            copy_library(library, other)


# -- bad input


def test_odd_characters_do_no_harm(tmp_path):
    write_unicode(tmp_path / "odd.pdf", "battery\x00life \u202eabc\u202c \x07 word \ue000\ufffd")
    write_pages(tmp_path / "long.pdf", [["x" * 5000], ["tax " * 3000]])
    with Library(tmp_path / "lib") as library:
        summary = library.add([tmp_path / "odd.pdf", tmp_path / "long.pdf"], workers=1)
        assert summary.failed == {}
        assert found(library, "word") == found(library, "abc") == [1]
        (hit,) = library.search("tax")
        assert hit.page == 2
        assert len(hit.snippet.text) < 300
        assert hit.snippet.text.isprintable()


def test_noise_and_words_do_not_mix(tmp_path):
    """A library of pictures alone has no language, and is searched by its vectors."""
    write_tiff(tmp_path / "a.tif", [1, 2, 3])
    with Library(tmp_path / "lib", ToyReader()) as library:
        library.add(tmp_path / "a.tif", workers=1)
        assert (library.words.language, library.choose_by()) == (None, "vectors")
        np.testing.assert_array_equal(sorted(found(library, "tax")), [1, 2, 3])


def test_uploads_and_images_leave_folders_as_they_are(library, papers, monkeypatch):
    """What a library keeps itself is in none of the user's folders: no page is to be counted again for it."""
    counted = []
    monkeypatch.setattr(Backfill, "_reindex_words", lambda self: counted.append(self))
    before = library.words.root
    upload = library.folder.absolute() / "uploads" / "minutes.pdf"
    upload.parent.mkdir()
    write_pages(upload, [["Minutes of the annual meeting"]])
    library.add(upload, workers=1)
    library.add([noise(64, 96, 2)], workers=1)
    assert (library.words.root, counted) == (before, [])
    assert before == str(papers)
    assert found(library, "minutes") == [1]
