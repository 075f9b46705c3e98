"""Find the terms of a query in texts without tokenizing all words.

A search matches the texts of twenty pages. numpy skips most words by their prefixes; the others are tokenized and
stemmed as at indexing.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable
from functools import cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from .analyzer import IS_LETTER, Analyzer, fold_case, remove_accents
from .language import IS_UNSPACED, NO_STEMS

Match = tuple[int, int, int, str, tuple[str, ...]]
"""A token with a wanted term: the index of its word, its start and end in the text, its term in the main language, and
all its terms."""

# Languages whose stems keep the prefix of a word (see `list_prefixes`); the Dutch stemmer removes ge-, for instance.
KEEP_PREFIXES = {
    *("basque", "catalan", "czech", "danish", "english", "french", "german", "hungarian", "italian", "norwegian"),
    *("polish", "portuguese", "romanian", "russian", "spanish", "swedish", NO_STEMS),
}
JOINERS = "-._/:,'\u2019\u2010\u2011+#"  # between parts of a compound, as in COMPOUND
MAX_PREFIX = 4  # letters
HASHES = 2**12  # of prefixes: far more than a query has
SEPARATORS = "-,.:/_"  # in numbers, which also match without them
UNKNOWN, SPACE, SIGN, JOINER, LETTER, DIGIT, CAPITAL, UNSPACED, OTHER = range(9)  # kinds of characters


class Characters:
    """Tables of the kind of each character, and of its letter in lower case without accents.

    Kinds: a JOINER may be inside or at the end of a token, a SIGN may not. Any CAPITAL may start a token, as in
    camelCase. OTHER may normalise to several characters or none. The tables are filled on demand: there are a million
    characters.
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
        elif IS_LETTER.match(character):
            letter = remove_accents(fold_case(character))
            if len(letter) != 1 or ord(letter) > 0xFFFF or unicodedata.category(character)[0] == "M":
                kind, letter = OTHER, character
            elif IS_UNSPACED.match(character):
                kind = UNSPACED
            else:
                kind = CAPITAL if character.isupper() else DIGIT if character.isdigit() else LETTER
        is_half = 0xD800 <= ord(letter) < 0xE000
        self.letters[code] = 0 if is_half or ord(letter) > 0xFFFF else ord(letter)
        self.kinds[code] = kind  # last: it marks the character as known to other threads


@cache
def get_characters() -> Characters:
    """Return the shared tables."""
    return Characters()


def list_prefixes(term: str, languages: Collection[str]) -> list[str]:
    """Return the prefixes of the tokens that may have a term; a stem may end in letters that its words do not have.

    Numbers also match without separators. English stems have die for dying, and German ones u for ue.
    """
    if any(character.isdigit() for character in term):
        return [term[:2], *(term[0] + sign for sign in SEPARATORS)]
    if not term.isalpha():
        return [term]
    if len(term) == 1:
        return [term + letter for letter in "sei"]  # stemming may leave one letter of words such as "aed"
    prefixes = [term[: min(max(len(term) - 1, 2), MAX_PREFIX)]]
    if term[1] == "i" and len(term) <= 3:
        prefixes.append(f"{term[0]}y")
    if "german" in languages:
        spelled = product(*([letter, f"{letter}e"] if letter in "aou" else letter for letter in prefixes[0]))
        prefixes += ["".join(letters)[:MAX_PREFIX] for letters in spelled if len("".join(letters)) > len(letters)]
    return prefixes


class Matcher:
    """Finds terms in texts. Caches matches by text: a search ranks pages by them, then highlights them."""

    def __init__(self, analyzer: Analyzer, wanted: frozenset[str]) -> None:
        self.analyzer, self.wanted = analyzer, wanted
        languages = {one.language for one in (analyzer, *analyzer.others)}
        self.use_prefixes = languages <= KEEP_PREFIXES
        self.prefixes = np.zeros((MAX_PREFIX + 1, HASHES), bool)  # hashes of the first letters of tokens
        for prefix in {prefix for term in wanted for prefix in list_prefixes(term, languages)}:
            hash = 0
            for letter in prefix[:MAX_PREFIX]:
                hash = (31 * hash + ord(letter)) % HASHES
            self.prefixes[min(len(prefix), MAX_PREFIX), hash] = True
        self.single = np.zeros(2**16, bool)  # letters and digits that are terms
        self.single[[ord(term) & 0xFFFF for term in wanted if len(term) == 1]] = True
        self.tokens: dict[str, list[tuple[int, int, str, tuple[str, ...]]]] = {}  # those with wanted terms, by word
        self.texts: dict[str, list[Match]] = {}

    def match(self, text: str) -> list[Match]:
        """Return the matches of a text."""
        if text not in self.texts:
            self.read([text])
        return self.texts[text]

    def find_terms(self, text: str) -> set[str]:
        """Return the wanted terms in a text, in the main language."""
        return {match[3] for match in self.match(text)}

    def read(self, texts: Iterable[str]) -> None:
        """Match several texts in one batch, which is faster."""
        new = [text for text in dict.fromkeys(texts) if text not in self.texts]
        found: list[list[Match]] = [[] for _ in new]
        self.texts.update(zip(new, found, strict=True))
        joined = "\n".join(new)
        if not joined or not self.wanted:
            return
        kinds, letters = get_characters().read(joined)
        edges = np.flatnonzero(np.diff(np.concatenate([[True], kinds <= SIGN, [True]])))
        starts, ends = edges[::2], edges[1::2]  # of runs without spaces and signs
        if self.use_prefixes:
            owners = np.searchsorted(starts, self._find_places(kinds, letters), "right") - 1
            owners = owners[np.diff(owners, prepend=-1) > 0]
            starts, ends = starts[owners], ends[owners]
        words = np.flatnonzero(np.diff(kinds == SPACE, prepend=True))[::2]  # their starts
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
        """Return the possible starts of tokens with a wanted term, and all OTHER characters."""
        before = np.concatenate([[np.uint8(SPACE)], kinds[:-1]])
        is_new = (before < LETTER) | (before == UNSPACED) | ((kinds == DIGIT) != (before == DIGIT)) | (kinds >= CAPITAL)
        places = np.flatnonzero(is_new & (kinds >= LETTER))
        kind, last = kinds[places], len(kinds) - 1
        after = np.minimum(places + 1, last)
        is_single = (kinds[after] < LETTER) | (kind == UNSPACED) | (after == places)
        hashes = letters[places]
        may_match = (self.single[hashes] & is_single) | (kind == OTHER)
        for num in range(2, MAX_PREFIX + 1):
            hashes = 31 * hashes + letters[np.minimum(places + num - 1, last)]
            may_match |= self.prefixes[num][hashes % HASHES]
        found: NDArray[np.intp] = places[may_match]
        return found

    def _find_tokens(self, word: str) -> list[tuple[int, int, str, tuple[str, ...]]]:
        found = []
        for token, terms in self.analyzer.read[word]:
            if not self.wanted.isdisjoint(terms):
                found.append((token.start, token.end, terms[0], terms))
        return found
