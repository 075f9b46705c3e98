"""Terms are found in texts as if every word were cut into tokens and stemmed."""

from __future__ import annotations

import random

import pytest

from randslot.words.analyzer import get_analyzer, tokenize
from randslot.words.language import LANGUAGES
from randslot.words.matching import KEEP_PREFIXES, Match, Matcher

WORDS = """
dying lying ties skies using uses hoping fly flies early only singly R. (R) C++ C# c x86_64 PDFs FY2018 Q3FY22 10-K
1,577 1.577,00 1,577.00 INV-20931 e-mail readonly fooBar kernelVersion PDFFile read.table() and/or 4.2.1 A4-size
fuehren führen Führung Übung Uebung ueber Straße STRASSE Häuser Aerzte Ärzte l\u2019eau l'eau d\u2019accueil 10,000
application applicatifs indication fréquemment évidemment généraux \ufb01le ½ m² Café cafe\u0301 İstanbul as ls a·b
数据导入 データ ไทย नमस्ते Россия хорошо Ελλάδα αβ “Word” •item naïve œuvre ærlig aed us _init_ --option 2018-03-31
"""
ENDINGS = """
ing ed es s ly ies er en y ness ment ation erie ieux amment emment isch keit lich heit ung able ible eed ación mente
idad logía ución azione ità ção lógia atrice usion ence eaux issement ational ness' , ). .)
"""


def match_all(matcher: Matcher, text: str) -> list[Match]:
    """Match every word of a text: slow, and obvious."""
    found, end = [], 0
    for i, word in enumerate(text.split()):
        start = text.index(word, end)
        end = start + len(word)
        for token in tokenize(word):
            terms = matcher.analyzer.find_terms(token)
            if not matcher.wanted.isdisjoint(terms):
                found.append((i, start + token.start, start + token.end, terms[0], terms))
    return found


@pytest.mark.parametrize(
    "languages", [*([one] for one in sorted(KEEP_PREFIXES)), ["english", "german", "french"], ["dutch"]], ids="-".join
)
def test_no_word_of_a_text_is_missed(languages):
    rng = random.Random(languages[0])
    analyzer = get_analyzer(*languages)
    letters = "aeiouyaeiouybcdfghlmnrstäöüéèßñ"
    for _ in range(40):
        words = [*rng.choices(WORDS.split(), k=30)]
        for _ in range(60):
            stem = "".join(rng.choices(letters, k=rng.randint(1, 6)))
            words += [stem + rng.choice(ENDINGS.split()), stem, rng.choice(WORDS.split()) + rng.choice(ENDINGS.split())]
        rng.shuffle(words)
        text = "".join(word + rng.choice([" ", "\n", "\u00a0"]) for word in words)
        query = " ".join(rng.choices(words, k=6))
        wanted = {term for token in tokenize(query) for term in analyzer.find_terms(token)}
        matcher = Matcher(analyzer, frozenset(wanted))
        matcher.read([text, "", "another text", query])
        assert matcher.match(text) == match_all(matcher, text), query
        assert matcher.match(query) == match_all(matcher, query), query


def test_only_known_languages_keep_starts():
    assert set(LANGUAGES) > KEEP_PREFIXES
