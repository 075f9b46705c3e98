"""What somebody types: words, phrases, words to leave out; and where they stand on a page."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest

from randslot.errors import UsageError
from randslot.pages.text import PageText, pack_boxes
from randslot.words.analyzer import Analyzer, get_analyzer, get_page_analyzer, hash_terms
from randslot.words.language import NO_STEMS
from randslot.words.query import JOINED_WEIGHT, MAX_CHARACTERS, OTHER_WEIGHT, Matcher, read_query
from randslot.words.snippets import MAX_BOXES, SNIPPET_LENGTH, Box, find_words

ENGLISH = get_analyzer("english")


@pytest.mark.parametrize(
    ("text", "plain", "phrases", "excluded"),
    [
        ('"Deferred Tax" assets', "Deferred Tax assets", ("deferred tax",), ()),
        ("“deferred tax” «net»", "deferred tax net", ("deferred tax", "net"), ()),
        ("tax -income", "tax", (), ("income",)),
        ('tax -"income tax"', "tax", (), ("income tax",)),
        ("-5 degrees", "-5 degrees", (), ()),
        ("ls -l and gcc -lm", "ls -l and gcc -lm", (), ()),
        ("well-known word", "well-known word", (), ()),
        ('an "open quote', 'an "open quote', (), ()),
        ('""', "", (), ()),
        ('"..." tax', "... tax", (), ()),
        ("-all", "", (), ("all",)),
        ('"INV-20931"', "INV-20931", ("inv 20931",), ()),
    ],
)
def test_what_a_query_means(text, plain, phrases, excluded):
    query = read_query(text, ENGLISH)
    assert (query.plain, query.phrases, query.excluded) == (plain, phrases, excluded)


@pytest.mark.parametrize("text", ["", "...", '"" -', "§ !", "\x00\x01", "\u202e\u200f"])
def test_a_query_without_words_has_no_terms(text):
    assert read_query(text, ENGLISH).terms.numbers == ()


def test_a_query_is_not_a_document():
    read_query("a" * MAX_CHARACTERS, ENGLISH)
    with pytest.raises(UsageError, match="the query has 1,000,000 characters: use at most 10,000"):
        read_query("a" * 1_000_000, ENGLISH)


def test_what_is_marked():
    assert read_query("the tax of the year", ENGLISH).marked == {"tax", "year"}
    assert read_query("to be or not to be", ENGLISH).marked == {"to", "be", "or", "not"}
    assert read_query("section 4.2.1", ENGLISH).marked == {"section", "4.2.1"}
    assert read_query("中文字", ENGLISH).marked == {"中文", "文字"}


@pytest.mark.parametrize(
    ("text", "joined"),
    [
        ("variable read only", {"variableread", "readon"}),
        ("read-only", {"readon"}),
        ("e-mail", {"email"}),
        ("e mail", set()),  # single letters stand alone too often
        ("go in to", {"goin"}),  # not "into": both are words of grammar
        ('"read only" access', set()),  # a phrase is meant as typed
        ("read -not only", set()),
        ("read. only, read/only", set()),
        ("page 3, INV-20931", set()),
        ("中 文", set()),
    ],
)
def test_neighbours_are_also_one_word(text, joined):
    query = read_query(text, ENGLISH)
    assert {term for word in query.joined for term in word.terms} == joined
    assert set(hash_terms(dict.fromkeys(joined, 1.0)).numbers) <= set(query.terms.numbers)


def test_a_joined_word_counts_less_than_a_typed_one_and_is_never_counted_twice():
    plain, both = read_query("readonly", ENGLISH), read_query("readonly read only", ENGLISH)
    number = plain.terms.numbers[0]
    weights = dict(zip(both.terms.numbers, both.terms.weights, strict=True))
    assert weights[number] == 1
    joined = read_query("read only", ENGLISH).terms
    assert dict(zip(joined.numbers, joined.weights, strict=True))[number] == JOINED_WEIGHT < 1


def make_page(text: str) -> PageText:
    boxes = [(i / 1000, 0.5, (i + 1) / 1000, 0.6) for i in range(len(text.split()))]
    return PageText(text, pack_boxes(boxes))


def is_near(boxes: tuple[Box, ...], expected: tuple[Box, ...]) -> bool:
    """Whether boxes are the same but for rounding."""
    return np.shape(boxes) == np.shape(expected) and np.allclose(boxes, expected, rtol=0, atol=2e-5)


def marked(text: str, query: str) -> list[str]:
    snippet = find_words(make_page(text), read_query(query, ENGLISH)).snippet
    return [snippet.text[start:end] for start, end in snippet.marks]


def test_a_snippet_marks_the_words_of_the_query():
    assert marked("Deferred\ntaxes of INV-20931, and taxed.", "tax inv-20931") == ["taxes", "INV-20931", "taxed"]
    assert marked("nothing here", "tax") == marked("", "tax") == []


def test_a_joined_word_is_marked():
    assert marked("readonly marks names as read only.", "read only") == ["readonly", "read"]


def test_a_phrase_is_marked_where_it_stands_and_its_words_not_elsewhere():
    text = "The tax office. Deferred Tax is a tax that is deferred."
    assert marked(text, '"deferred tax"') == ["Deferred", "Tax"]
    assert marked(text, '"deferred tax" office') == ["office", "Deferred", "Tax"]
    assert marked(text, '"deferred tax" deferred') == ["Deferred", "Tax", "deferred"]
    assert marked(text, '"income tax"') == ["tax", "Tax", "tax"]  # by vectors, pages without it are found too


def test_a_snippet_is_where_most_of_the_words_are():
    text = "tax " + "filler " * 200 + "deferred tax assets " + "filler " * 200
    snippet = find_words(make_page(text), read_query("deferred tax", ENGLISH)).snippet
    assert "deferred tax assets" in snippet.text
    assert snippet.text.startswith("\u2026 filler")
    assert snippet.text.endswith("filler \u2026")
    assert len(snippet.text) <= SNIPPET_LENGTH + 4


def test_boxes_are_those_of_the_words():
    found = find_words(make_page("a deferred tax, a tax"), read_query("tax", ENGLISH))
    # "tax," is a word with its comma: three of four characters are marked
    assert is_near(found.boxes, ((0.002, 0.5, 0.00275, 0.6), (0.004, 0.5, 0.005, 0.6)))


def test_a_box_in_a_line_without_spaces_is_a_part_of_it():
    page = PageText("这份报告的内容", pack_boxes([(0.0, 0.1, 0.7, 0.2)]))
    found = find_words(page, read_query("报告", get_analyzer("none")))
    assert is_near(found.boxes, ((0.2, 0.1, 0.4, 0.2),))
    assert found.snippet.marks == ((2, 4),)


def test_a_page_of_one_word_has_not_too_many_boxes():
    found = find_words(make_page("tax " * 10_000), read_query("tax", ENGLISH))
    assert len(found.boxes) == MAX_BOXES


def test_a_word_that_is_broken_at_the_end_of_a_line_has_two_boxes():
    """Its own box is around both of its parts, which would mark the two lines whole."""
    placed = (
        (0.1, 0.10, 0.2, 0.12),
        (0.1, 0.10, 0.9, 0.15),
        (0.2, 0.13, 0.3, 0.15),
        (0.1, 0.2, 0.5, 0.25),  # a headline is high too, and so is what stands beside it
        (0.55, 0.2, 0.9, 0.25),
    )
    page = PageText("of models\nin\nModels again", pack_boxes(placed))
    boxes = find_words(page, read_query("models", ENGLISH)).boxes
    assert is_near(boxes, ((0.204, 0.10, 0.9, 0.12), (0.1, 0.13, 0.196, 0.15), (0.1, 0.2, 0.5, 0.25)))


def test_dots_of_a_table_of_contents_are_not_shown():
    text = "2.7 Keys . . . . . . . . . 49\n2.8 Views of aptitude......50 Keys, etc... and so on"
    snippet = find_words(PageText(text), read_query("views keys", ENGLISH)).snippet
    assert snippet.text == "2.7 Keys \u2026 49 2.8 Views of aptitude \u2026 50 Keys, etc... and so on"
    assert [snippet.text[start:end] for start, end in snippet.marks] == ["Keys", "Views", "Keys"]


def test_a_query_stands_for_stems_in_several_languages():
    analyzer = get_analyzer("english", "german")
    query = read_query("Rechnungen batteries", analyzer)
    assert query.marked == {"rechnungen", "rechnung", "batteri"}
    assert [word.text for word in query.content_words] == ["Rechnungen", "batteries"]
    for page, language in (("Rechnung", "german"), ("battery", "english")):
        assert set(get_page_analyzer(language, "english").analyse_page(page)[0].numbers) <= set(query.terms.numbers)


@pytest.mark.parametrize(("text", "marked"), [("when do batteries die", "die"), ("die Kosten und die Last", None)])
def test_words_of_grammar_are_those_of_the_language_of_the_query(text, marked):
    """To die is a word; "die" is an article."""
    query = read_query(text, get_analyzer("english", "german"))
    assert (marked or "kosten") in query.marked
    assert ("die" in query.marked) == (marked == "die")


def test_a_word_of_the_usual_language_is_the_same_term_on_all_pages():
    """Otherwise it would count as rare on pages in other languages, and those would come first."""
    for word in ("encrypted", "installation", "downloading", "options"):
        for language in ("german", "french", "spanish", NO_STEMS):
            on_page = get_page_analyzer(language, "english").analyse_page(word)[0]
            assert on_page.numbers == get_analyzer("english").analyse_page(word)[0].numbers


def test_stems_in_other_languages_count_less():
    query = read_query("Rechnungen", get_analyzer("english", "german"))
    assert query.terms.weights[:2] == (1.0, OTHER_WEIGHT)
    assert get_page_analyzer("german", "english").analyse_page("Rechnung")[0].numbers == query.terms.numbers[1:2]


def test_searches_in_several_threads_look_for_words_of_pages_at_once():
    """A page that another thread reads meanwhile may bring words that this query asks for, in new numbers."""
    analyzer = Analyzer("english")
    query = read_query("harbour", analyzer)
    errors: list[str] = []

    def search(thread: int) -> None:
        try:
            for number in range(300):
                matcher = Matcher(analyzer, query.marked)
                for part in range(5):
                    text = " ".join(f"harbours{'-' * (1 + part)}{thread}x{number}x{i}" for i in range(5))
                    if len(matcher.match(text)) != 5:
                        errors.append(f"{text}: {matcher.match(text)}")
        except IndexError as error:
            errors.append(str(error))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=search, args=[thread]) for thread in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert errors == []
