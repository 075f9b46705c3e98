"""Find where texts have the terms of a query, without cutting all their words into tokens.

A search looks at the texts of twenty pages. Most of their words begin in another way than the terms of the query do, so
that numpy can leave them out; the others are cut into tokens and stemmed as at indexing.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable
from functools import cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from .analyzer import LETTER_SIGN, Analyzer, fold_case, remove_accents
from .language import IS_UNSPACED, NO_STEMS

Match = tuple[int, int, int, str, tuple[str, ...]]
"""A token of a text that a query asks for: the number of the word that it is in, where it begins and ends in the text,
its term in the usual language, and all its terms."""

# Languages whose stems begin like their words (see `list_beginnings`); the Dutch stemmer takes off a ge-, for instance.
KEEP_STARTS = {
    *("basque", "catalan", "czech", "danish", "english", "french", "german", "hungarian", "italian", "norwegian"),
    *("polish", "portuguese", "romanian", "russian", "spanish", "swedish", NO_STEMS),
}
JOINERS = "-._/:,'\u2019\u2010\u2011+#"  # of the parts of a compound, as COMPOUND has them
MAX_BEGINNING = 4  # letters by which words are left out
HASHES = 2**12  # of beginnings: by far more than a query has
SEPARATORS = "-,.:/_"  # in numbers, which are also found without them
UNKNOWN, SPACE, SIGN, JOINER, LETTER, DIGIT, CAPITAL, UNSPACED, OTHER = range(9)  # kinds of characters


class Characters:
    """Characters by their codes: their kind, and the letter that they are in lower case and without accents.

    Kinds: a JOINER may be in the middle of a token or at its end, a SIGN may not. A token may begin with any CAPITAL,
    as in camelCase. OTHER is what may become several characters or none. It learns a character when a text has it:
    there are a million.
    """

    def __init__(self) -> None:
        self.kinds = np.zeros(0x110000, np.uint8)
        self.letters = np.zeros(0x110000, "<u2")

    def read(self, text: str) -> tuple[NDArray[np.uint8], NDArray[np.uint16]]:
        """Return the kinds and letters of a text."""
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
        kinds = self.kinds.take(codes)
        if not kinds.all():
            for code in set(codes[kinds == UNKNOWN].tolist()):
                self._learn(code)
            kinds = self.kinds.take(codes)
        return kinds, self.letters.take(codes)

    def _learn(self, code: int) -> None:
        character = chr(code)
        kind, letter = SIGN, character
        if character.isspace():
            kind = SPACE
        elif character in JOINERS:
            kind = JOINER
        elif LETTER_SIGN.match(character):
            letter = remove_accents(fold_case(character))
            if len(letter) != 1 or ord(letter) > 0xFFFF or unicodedata.category(character)[0] == "M":
                kind, letter = OTHER, character
            elif IS_UNSPACED.match(character):
                kind = UNSPACED
            else:
                kind = CAPITAL if character.isupper() else DIGIT if character.isdigit() else LETTER
        is_half = 0xD800 <= ord(letter) < 0xE000
        self.letters[code] = 0 if is_half or ord(letter) > 0xFFFF else ord(letter)
        self.kinds[code] = kind  # last: other threads take it for known then


@cache
def get_characters() -> Characters:
    """Return what is known about characters."""
    return Characters()


def list_beginnings(term: str, languages: Collection[str]) -> list[str]:
    """Return how tokens may begin that have a term; stems have other endings, up to two letters that words have not.

    Numbers are found without separators too. English stems have die for dying, and German ones u for ue.
    """
    if any(character.isdigit() for character in term):
        return [term[:2], *(term[0] + sign for sign in SEPARATORS)]
    if not term.isalpha():
        return [term]
    if len(term) == 1:
        return [term + letter for letter in "sei"]  # what may be left of longer words, such as "aed"
    beginnings = [term[: min(max(len(term) - 1, 2), MAX_BEGINNING)]]
    if term[1] == "i" and len(term) <= 3:
        beginnings.append(f"{term[0]}y")
    if "german" in languages:
        spelled = product(*([letter, f"{letter}e"] if letter in "aou" else letter for letter in beginnings[0]))
        beginnings += ["".join(letters)[:MAX_BEGINNING] for letters in spelled if len("".join(letters)) > len(letters)]
    return beginnings


class Matcher:
    """Finds terms in texts. It looks once at each text: a search ranks pages by their matches, then marks them."""

    def __init__(self, analyzer: Analyzer, wanted: frozenset[str]) -> None:
        self.analyzer, self.wanted = analyzer, wanted
        languages = {one.language for one in (analyzer, *analyzer.others)}
        self.keeps_starts = languages <= KEEP_STARTS
        self.beginnings = np.zeros((MAX_BEGINNING + 1, HASHES), bool)  # hashes of the first letters of tokens
        for one in {one for term in wanted for one in list_beginnings(term, languages)}:
            hash = 0
            for letter in one[:MAX_BEGINNING]:
                hash = (31 * hash + ord(letter)) % HASHES
            self.beginnings[min(len(one), MAX_BEGINNING), hash] = True
        self.single = np.zeros(2**16, bool)  # letters and digits that may be a token
        self.single[[ord(term) & 0xFFFF for term in wanted if len(term) == 1]] = True
        self.tokens: dict[str, list[tuple[int, int, str, tuple[str, ...]]]] = {}  # the wanted ones of words
        self.texts: dict[str, list[Match]] = {}

    def match(self, text: str) -> list[Match]:
        """Return where a text has wanted terms."""
        if text not in self.texts:
            self.read([text])
        return self.texts[text]

    def find_terms(self, text: str) -> set[str]:
        """Return the wanted terms that a text has."""
        return {match[3] for match in self.match(text)}

    def read(self, texts: Iterable[str]) -> None:
        """Match several texts at once, which is faster than one by one."""
        new = [text for text in dict.fromkeys(texts) if text not in self.texts]
        found: list[list[Match]] = [[] for _ in new]
        self.texts.update(zip(new, found, strict=True))
        joined = "\n".join(new)
        if not joined or not self.wanted:
            return
        kinds, letters = get_characters().read(joined)
        edges = np.flatnonzero(np.diff(np.concatenate([[True], kinds <= SIGN, [True]])))
        starts, ends = edges[::2], edges[1::2]  # of parts of words without signs
        if self.keeps_starts:
            owners = np.searchsorted(starts, self._find_places(kinds, letters), "right") - 1
            owners = owners[np.diff(owners, prepend=-1) > 0]
            starts, ends = starts[owners], ends[owners]
        words = np.flatnonzero(np.diff(kinds == SPACE, prepend=True))[::2]  # where they begin
        begins = np.cumsum([0, *(len(text) + 1 for text in new)])  # of texts
        numbers = np.searchsorted(begins, starts, "right") - 1
        firsts = np.searchsorted(words, begins)[numbers]  # the first word of each text
        places = np.searchsorted(words, starts, "right") - 1 - firsts
        columns = (starts, ends, places, begins[numbers], numbers)
        for start, end, i, begin, number in zip(*(column.tolist() for column in columns), strict=True):
            part = joined[start:end]
            tokens = self.tokens.get(part)
            if tokens is None:
                tokens = self.tokens[part] = self._find_tokens(part)
            for first, stop, term, terms in tokens:
                found[number].append((i, start - begin + first, start - begin + stop, term, terms))

    def _find_places(self, kinds: NDArray[np.uint8], letters: NDArray[np.uint16]) -> NDArray[np.intp]:
        """Return where tokens may begin that have a wanted term, and characters that may be anything."""
        before = np.concatenate([[np.uint8(SPACE)], kinds[:-1]])
        is_new = (before < LETTER) | (before == UNSPACED) | ((kinds == DIGIT) != (before == DIGIT)) | (kinds >= CAPITAL)
        places = np.flatnonzero(is_new & (kinds >= LETTER))
        kind, last = kinds[places], len(kinds) - 1
        after = np.minimum(places + 1, last)
        is_single = (kinds[after] < LETTER) | (kind == UNSPACED) | (after == places)
        hashes = letters[places]
        may_match = (self.single[hashes] & is_single) | (kind == OTHER)
        for num in range(2, MAX_BEGINNING + 1):
            hashes = 31 * hashes + letters[np.minimum(places + num - 1, last)]
            may_match |= self.beginnings[num][hashes % HASHES]
        found: NDArray[np.intp] = places[may_match]
        return found

    def _find_tokens(self, word: str) -> list[tuple[int, int, str, tuple[str, ...]]]:
        found = []
        for token, terms in self.analyzer.read[word]:
            if not self.wanted.isdisjoint(terms):
                found.append((token.start, token.end, terms[0], terms))
        return found
