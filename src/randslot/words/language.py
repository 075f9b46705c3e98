"""The languages whose words are brought to their stems, and which of them a text is in."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from importlib import resources

from ..errors import UsageError
from .tokens import tokenize

NO_STEMS = "none"  # words are taken as they are; pairs of characters serve Chinese, Japanese, Korean and Thai
DEFAULT = "english"
AUTO = "auto"  # each page in its own language
FOREIGN = 2  # so many more words that carry the grammar of another language make a text foreign
# A page is in another language than most only if it clearly is: it has so many words of that grammar, as a number, as a
# share of all its words, and of different ones; and more than of the usual language, of different ones too, because
# tables repeat "v" and "de".
CLEAR_NUM, CLEAR_SHARE, CLEAR_KINDS = 10, 0.05, 5

STEMMED = (
    *("arabic", "armenian", "basque", "catalan", "czech", "danish", "dutch", "english", "esperanto", "estonian"),
    *("finnish", "french", "german", "greek", "hindi", "hungarian", "indonesian", "irish", "italian", "lithuanian"),
    *("nepali", "norwegian", "persian", "polish", "portuguese", "romanian", "russian", "serbian", "spanish"),
    *("swedish", "tamil", "turkish", "yiddish"),
)
LANGUAGES = (*STEMMED, NO_STEMS)
CODES = {
    "ar": "arabic", "ca": "catalan", "cs": "czech", "da": "danish", "de": "german", "el": "greek", "en": "english",
    "es": "spanish", "et": "estonian", "eu": "basque", "fa": "persian", "fi": "finnish", "fr": "french",
    "ga": "irish", "hi": "hindi", "hu": "hungarian", "hy": "armenian", "id": "indonesian", "it": "italian",
    "ja": NO_STEMS, "ko": NO_STEMS, "lt": "lithuanian", "nb": "norwegian", "ne": "nepali", "nl": "dutch",
    "no": "norwegian", "pl": "polish", "pt": "portuguese", "ro": "romanian", "ru": "russian", "sr": "serbian",
    "sv": "swedish", "ta": "tamil", "th": NO_STEMS, "tr": "turkish", "yi": "yiddish", "zh": NO_STEMS,
}  # fmt: skip


@cache
def list_function_words() -> dict[str, frozenset[str]]:
    """Return the words that carry the grammar of a language, by language.

    A text is in the language whose words it has most of, and in a query they say little: they are not marked on a page
    unless the query has nothing else.
    """
    content = (resources.files(__package__) / "function_words.json").read_text(encoding="utf-8")
    return {language: frozenset(words.split()) for language, words in json.loads(content).items()}


def find_language(name: str) -> str:
    """Return a language by its English name or its code of two letters; "auto" is what it is.

    Errors: UsageError for one that is not known.
    """
    wanted = name.strip().lower()
    if wanted in (*LANGUAGES, AUTO):
        return wanted
    if wanted in CODES:
        return CODES[wanted]
    if near := get_close_matches(wanted, LANGUAGES, 1):
        raise UsageError(f"no language {name!r}: did you mean {near[0]}?")
    raise UsageError(f"no language {name!r}: one of {', '.join(LANGUAGES)}, a code such as de, or {AUTO}")


def detect_language(texts: Iterable[str]) -> str | None:
    """Return the language that most of some texts are in; None if they have too few words to tell."""
    seen = _count_grammar(texts)
    if seen.is_unspaced:
        return NO_STEMS
    language, most = max(seen.counts.items(), key=_count, default=("", 0))
    return language if most >= 5 and most >= seen.num / 50 else None


def choose_language(text: str, usual: str) -> str:
    """Return the language of a page: the usual one, unless it clearly is in another."""
    seen = _count_grammar([text])
    if seen.is_unspaced:
        return NO_STEMS
    language, most = max(seen.counts.items(), key=_count, default=(usual, 0))
    is_clear = most >= CLEAR_NUM and most >= CLEAR_SHARE * seen.num and seen.kinds[language] >= CLEAR_KINDS
    is_more = most > seen.counts[usual] and seen.kinds[language] > seen.kinds[usual]
    return language if is_clear and is_more else usual


def is_foreign(text: str, language: str) -> bool:
    """Whether a text, which may be as short as a query, is in another language than this one, as far as can be told."""
    seen = _count_grammar([text])
    if seen.is_unspaced:
        return language != NO_STEMS
    if language != NO_STEMS and language not in list_function_words():
        return False  # how many words it would have of its own is not known
    return max(seen.counts.values(), default=0) >= seen.counts[language] + FOREIGN


@dataclass
class _Grammar:
    """How many words of some texts carry the grammar of each language, how many different ones, and how many there are.

    unspaced: words of scripts that do not divide them.
    """

    counts: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    num: int = 0
    unspaced: int = 0

    @property
    def is_unspaced(self) -> bool:
        return self.unspaced > self.num / 2


def _count_grammar(texts: Iterable[str]) -> _Grammar:
    languages = _list_languages()
    words = Counter(token.text for text in texts for token in tokenize(text) if not token.extra)
    seen = _Grammar(num=words.total())
    for word, num in words.items():
        seen.unspaced += num * _is_unspaced(word)
        for language in languages.get(word, ()):
            seen.counts[language] += num
            seen.kinds[language] += 1
    return seen


@cache
def _list_languages() -> dict[str, list[str]]:
    """Return the languages whose grammar a word carries, by word."""
    languages: dict[str, list[str]] = {}
    for language, words in list_function_words().items():
        for word in words:
            languages.setdefault(word, []).append(language)
    return languages


def _is_unspaced(word: str) -> bool:
    return len(word) == 1 and re.match("[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]", word) is not None


def _count(item: tuple[str, int]) -> int:
    return item[1]
