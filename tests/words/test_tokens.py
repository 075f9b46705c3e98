"""Text as tokens: words, numbers and identifiers as typed, and scripts without spaces."""

from __future__ import annotations

import pytest

from randslot.words.analyzer import MAX_LENGTH, get_analyzer, list_words, tokenize
from randslot.words.language import (
    LANGUAGES,
    NO_STEMS,
    choose_language,
    detect_language,
    find_language,
    find_query_language,
)


def split(text: str) -> list[str]:
    return [token.text for token in tokenize(text)]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Deferred Tax, 2023.", ["deferred", "tax", "2023"]),
        ("INV-20931", ["inv", "20931", "inv-20931", "inv20931"]),
        ("FY2018", ["fy2018", "fy", "2018"]),
        ("Q3FY22", ["q3fy22", "q3", "fy", "22", "fy22"]),
        ("getUserName PDFs McKinsey", ["getusername", "get", "user", "name", "pdfs", "mckinsey", "mc", "kinsey"]),
        ("a1b2c3d4e5f6", ["a1b2c3d4e5f6"]),
        ("1,577 1.577,00", ["1", "577", "1577", "1", "577", "00", "1.577,00", "1577"]),
        ("see § 4.2.1!", ["see", "4", "2", "1", "4.2.1"]),
        ("Form 10-K 10K", ["form", "10", "k", "10-k", "10k", "10k", "10"]),
        ("1,234,567.89", ["1", "234", "567", "89", "1234567.89"]),
        ("foo_bar e-mail", ["foo", "bar", "foo_bar", "e", "mail", "e-mail"]),
        ("and/or", ["and", "or"]),
        ("l'eau d\u2019été", ["eau", "été"]),
        ("what's the user's", ["what", "the", "user"]),
        ("C++ and C#, issue #5 a#b", ["c++", "c", "and", "c#", "c", "issue", "5", "a", "b"]),
        ("Straße ﬁne \uff26\uff55\uff4c\uff4c", ["strasse", "fine", "full"]),
        ("non\u2011breaking", ["non", "breaking", "non-breaking"]),
        ("中文字", ["中", "中文", "文", "文字", "字"]),
        ("第3章", ["第", "3", "章", "第3章"]),
        ("カタカナ", ["カ", "カタ", "タ", "タカ", "カ", "カナ", "ナ"]),
        ("Donaudampfschifffahrt", ["donaudampfschifffahrt"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("... !? -- \u200f", []),
        ("", []),
    ],
)
def test_tokens(text, tokens):
    assert split(text) == tokens


def test_tokens_know_where_they_stand():
    text = "The INV-20931, of 中文."
    for token in tokenize(text):
        assert text[token.start : token.end].lower().replace("-", "") == token.text.replace("-", "")


def test_a_run_of_letters_without_end_is_cut():
    assert split("x" * 100_000) == ["x" * MAX_LENGTH]


def test_a_phrase_is_made_of_words_without_their_extras():
    assert " ".join(list_words("Café INV-20931 中文")) == "cafe inv 20931 中 文"


@pytest.mark.parametrize(
    ("language", "one", "other"),
    [
        ("english", "deferred taxes", "Defer tax"),
        ("english", "resumé", "resume"),
        ("german", "Häuser", "haus"),
        ("french", "l'utilisateur généraux", "utilisateurs général"),
        ("spanish", "canciones", "canción"),
        ("none", "taxes", "TAXES"),
    ],
)
def test_words_of_one_stem_are_one_term(language, one, other):
    analyzer = get_analyzer(language)
    first = [analyzer.find_term(token) for token in tokenize(one)]
    second = [analyzer.find_term(token) for token in tokenize(other)]
    assert set(second) <= set(first)


def test_numbers_and_identifiers_have_no_stem():
    analyzer = get_analyzer("english")
    terms = [analyzer.find_term(token) for token in tokenize("INV-2093s 10s")]
    assert terms == ["inv", "2093s", "2093", "inv-2093s", "inv2093s", "10s", "10"]


def test_every_language_can_be_had():
    for language in LANGUAGES:
        assert get_analyzer(language).analyse_page("word")[0].numbers


def test_weights_rise_with_the_count_and_fall_with_the_length():
    analyzer = get_analyzer("english")
    once = analyzer.analyse_page("tax and other words")[0].weights[0]
    twice = analyzer.analyse_page("tax tax and other words")[0].weights[0]
    long = analyzer.analyse_page("tax " + "other words " * 500)[0].weights[0]
    assert long < once < twice < 2 * once


def test_a_field_counts_more_than_the_text():
    analyzer = get_analyzer("english")
    (number,) = analyzer.analyse_page("tax")[0].numbers
    weights = {}
    for field in ("", "title", "section", "heading", "name"):
        terms, words = analyzer.analyse_page("the tax of others", {field: "Taxes"} if field else {})
        weights[field] = terms.weights[terms.numbers.index(number)]
        assert words == "the tax of others"
    assert sorted(weights, key=weights.get) == list(weights)


TEXTS = {
    "english": "The report of the board is to be read with the accounts that are in this document and on the site.",
    "german": "Der Bericht ist mit den Angaben zu lesen, die sich auf der Seite und in dem Anhang befinden, und nicht.",
    "french": "Le rapport est à lire avec les comptes qui sont dans ce document et sur le site de la société.",
    "spanish": "El informe se lee con las cuentas que están en este documento y en la página de la empresa.",
    "italian": "La relazione si legge con i conti che sono in questo documento e sul sito della società.",
    "dutch": "Het verslag is te lezen met de cijfers die in dit document en op de site van het bedrijf staan.",
    "portuguese": "O relatório deve ser lido com as contas que estão em um documento e não na página da empresa.",
    "russian": "Отчет не читается без того, что есть в документе и на сайте, как это было и для других.",
    NO_STEMS: "这份报告应与本文件中的财务报表一并阅读。公司的网站上也有这份报告。",
}


@pytest.mark.parametrize("language", TEXTS)
def test_a_language_is_known_by_its_words(language):
    assert detect_language([TEXTS[language]]) == language


def test_most_of_the_text_decides_and_too_little_says_nothing():
    assert detect_language([TEXTS["german"]] * 3 + [TEXTS["english"]]) == "german"
    assert detect_language(["12 34 56", "INV-20931"]) is None
    assert detect_language([]) is None


@pytest.mark.parametrize(
    ("query", "foreign_to"),
    [
        ("how do I make a variable read only", {"french", NO_STEMS}),
        ("comment restaurer une sauvegarde sur un autre disque", {"english", NO_STEMS}),
        ("这份报告在哪里", {"english", "french"}),
        ("SWIG Warning 513", set()),
        ("backup", set()),
        ("", set()),
    ],
)
def test_a_query_is_foreign_to_a_language_if_its_grammar_is_another_one(query, foreign_to):
    foreign = {usual for usual in ("english", "french", NO_STEMS) if find_query_language(query, usual) != usual}
    assert foreign == foreign_to


@pytest.mark.parametrize("language", TEXTS)
@pytest.mark.parametrize("usual", ["english", "german", NO_STEMS])
def test_a_page_is_in_the_language_that_it_clearly_has(language, usual):
    assert choose_language(3 * TEXTS[language], usual) == language


@pytest.mark.parametrize(
    "text",
    [
        "",
        "12 34 INV-20931",
        "tar V:920, I:999 3144 find V:160, I:642 zip V:28, I:226 " * 10,
        "the de facto standard of la mode",
        TEXTS["german"][:40],
    ],
)
def test_a_page_that_says_little_is_in_the_usual_language(text):
    assert choose_language(text, "english") == "english"
    assert choose_language(text, "finnish") == "finnish"


def test_a_language_has_a_name_and_a_code():
    assert find_language("German") == find_language("de") == "german"
    assert find_language("ja") == NO_STEMS
    with pytest.raises(ValueError, match=r"unknown language 'klingon': use arabic, .*, a code such as de, or auto"):
        find_language("klingon")
    with pytest.raises(ValueError, match=r"unknown language 'germen': did you mean german\?"):
        find_language("germen")
