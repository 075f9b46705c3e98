"""Words of a library correct queries and complete prefixes, in a folder and on a server, after kills and changes."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from randslot.library.copy import copy_library
from randslot.library.library import Library
from randslot.library.vocabulary import RECENT, Vocabulary, count_edits, write_counts
from support.pdf import write_pages


class Blobs:
    """A location that keeps blobs in memory."""

    def __init__(self):
        self.kept: dict[str, bytes] = {}

    def read_blob(self, kind, file):
        return self.kept.get(kind)

    def write_blob(self, kind, file, content):
        self.kept[kind] = content


def slow_edits(one: str, two: str) -> int:
    """Optimal string alignment, as it is defined."""
    table = [[i + j if 0 in (i, j) else 0 for j in range(len(two) + 1)] for i in range(len(one) + 1)]
    for i, j in itertools.product(range(1, len(one) + 1), range(1, len(two) + 1)):
        changed = one[i - 1] != two[j - 1]
        table[i][j] = min(table[i - 1][j] + 1, table[i][j - 1] + 1, table[i - 1][j - 1] + changed)
        if i > 1 and j > 1 and one[i - 1] == two[j - 2] and one[i - 2] == two[j - 1]:
            table[i][j] = min(table[i][j], table[i - 2][j - 2] + 1)
    return table[-1][-1]


def test_edits_are_those_of_the_definition():
    dice = random.Random(0)
    for length in (1, 2, 3, 6):
        words = ["".join(dice.choices("abc", k=length)) for _ in range(30)]
        others = np.array([[ord(letter) for letter in word] for word in words], np.uint32)
        for size in (1, 2, 4, 7):
            word = "".join(dice.choices("abc", k=size))
            found = count_edits(np.array([ord(letter) for letter in word], np.uint32), others)
            assert found.tolist() == [slow_edits(word, other) for other in words]


def test_words_are_kept_in_two_blobs_and_read_by_another_process():
    blobs = Blobs()
    ours = Vocabulary(blobs)
    ours.add("capital expenditure capital 2018 inv20931 größe 日本")
    ours.add("captain capital cash uid")
    ours.save()
    theirs = Vocabulary(blobs)
    assert theirs.suggest("captial") == ["capital"]
    assert theirs.suggest("grösse") == []  # two edits of six letters
    assert theirs.suggest("xapital") == ["capital"]
    assert theirs.suggest("suid") == []  # uid is no misspelling of it
    assert theirs.suggest("acsh") == ["cash"]
    assert theirs.complete("cap") == ["capital", "captain"]
    assert [theirs.count(word) for word in ("capital", "inv20931", "日本")] == [2, 0, 0]
    ours.add(" ".join("".join(letters) for letters in itertools.product("abcdefghijklmnopqrst", repeat=4)))
    ours.save()  # too many for recent words
    assert blobs.kept[RECENT[0]] == write_counts({})
    theirs.refresh(ours.stamp)
    assert theirs.complete("cap")[0] == "capital"
    assert theirs.suggest("expendture") == ["expenditure"]


PAGES = [["Statement of cash flows", "Capital expenditure was 1,577 million.", "Staff costs rose."], ["Depreciation"]]


@pytest.fixture
def library(tmp_path):
    (tmp_path / "in").mkdir()
    write_pages(tmp_path / "in" / "report.pdf", PAGES)
    with Library(tmp_path / "lib") as library:
        library.add(tmp_path / "in", workers=1)
        yield library


@pytest.mark.parametrize(
    ("query", "corrected"),
    [
        ("captial expenditure", "capital expenditure"),
        ("Captial expendture 2018", "Capital expenditure 2018"),
        ("depreciaton -captial", "depreciation -captial"),
        ("kapital expenditure", "capital expenditure"),
        ("capital", ""),
        ('"captial" expenditure', ""),
        ("capt1al CAPTIAL INV-20931 1578", ""),
        ("captial-expenditure", ""),
        ("xyzzy", ""),
    ],
)
def test_a_word_that_no_page_has_is_corrected_unless_it_is_quoted_or_an_identifier(library, query, corrected):
    (result,) = library.search_results([query])
    assert result.corrected == corrected
    if corrected:
        assert result.hits == library.search(corrected)
        assert result.unknown == library.search_results([corrected])[0].unknown
    (result,) = library.search_results([query], verbatim=True)
    assert result.corrected == ""


def test_a_word_that_a_filter_leaves_out_is_not_misspelled(library, tmp_path):
    (tmp_path / "more").mkdir()
    write_pages(tmp_path / "more" / "notes.pdf", [["The captain sails.", "Ships carry coal."]])
    library.add(tmp_path / "more", workers=1)
    (result,) = library.search_results(["capital ships"], filters={"source": "notes.pdf"})
    assert (result.corrected, result.unknown) == ("", ["capital"])
    assert library.search_results(["captial"], filters={"source": "report.pdf"})[0].corrected == "capital"
    library.remove("report.pdf")
    (result,) = library.search_results(["expendture"])  # no page has it any more
    assert (result.corrected, result.unknown) == ("", ["expendture"])


def test_prefixes_are_completed_by_the_words_of_most_pages(library, tmp_path):
    assert library.complete("Ca") == ["capital", "cash"]
    assert library.complete("") == library.complete("zzz") == []


def test_words_of_a_run_that_was_killed_are_recalled(tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    write_pages(tmp_path / "in" / "report.pdf", PAGES)
    with Library(tmp_path / "lib") as library, monkeypatch.context() as patch:
        patch.setattr(Vocabulary, "save", lambda self: None)
        patch.setattr("randslot.library.manifest.FileManifest.show", lambda *_: 1 / 0)  # as if killed before
        with pytest.raises(ZeroDivisionError):
            library.add(tmp_path / "in", workers=1)
    with Library(tmp_path / "lib") as library:
        library.add(tmp_path / "in", workers=1)
        assert library.search_results(["captial"])[0].corrected == "capital"


def test_all_words_are_counted_again(library):
    before = library.complete("c")
    library.location.write_blob(*RECENT, write_counts({"captive": 9}))
    library.words.vocabulary.clear_cache()
    assert library.complete("c") == ["captive"]
    library.read_words(language="german", workers=1)
    assert library.complete("c") == before


def test_a_library_on_a_server_corrects_alike_also_for_another_process_and_after_a_copy(url, library, tmp_path):
    with Library(url) as there, Library(url, create=False) as reader:
        assert copy_library(library, there).problems == []
        (tmp_path / "more").mkdir()
        write_pages(tmp_path / "more" / "notes.pdf", [["The locomotive stops."]])
        there.add(tmp_path / "more", workers=1)
        reader.refreshed_at = 0.0  # a second ago
        for query, corrected in (("captial expenditure", "capital expenditure"), ("locomotvie", "locomotive")):
            assert [one.search_results([query])[0].corrected for one in (there, reader)] == [corrected] * 2
            reader.refreshed_at = 0.0
