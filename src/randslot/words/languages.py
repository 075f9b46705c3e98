"""The languages whose words are brought to their stems, and which of them a text is in."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from functools import cache
from importlib import resources

from ..errors import UsageError
from .tokens import tokenize

NO_STEMS = "none"  # words are taken as they are; pairs of characters serve Chinese, Japanese, Korean and Thai
DEFAULT = "english"
FOREIGN = 2  # so many more words that carry the grammar of another language make a text foreign

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
    """Return a language by its English name or its code of two letters.

    Errors: UsageError for one that is not known.
    """
    wanted = name.strip().lower()
    if wanted in LANGUAGES:
        return wanted
    if wanted in CODES:
        return CODES[wanted]
    raise UsageError(f"no language {name!r}: one of {', '.join(LANGUAGES)}, or a code such as de")


def detect_language(texts: Iterable[str]) -> str | None:
    """Return the language that most of some texts are in; None if they have too few words to tell."""
    counts, num, unspaced = _count_function_words(texts)
    if num and unspaced > num / 2:
        return NO_STEMS
    language, most = max(counts.items(), key=_count, default=("", 0))
    return language if most >= 5 and most >= num / 50 else None


def is_foreign(text: str, language: str) -> bool:
    """Whether a text, which may be as short as a query, is in another language than this one, as far as can be told."""
    counts, num, unspaced = _count_function_words([text])
    if num and unspaced > num / 2:
        return language != NO_STEMS
    if language != NO_STEMS and language not in counts:
        return False  # how many words it would have of its own is not known
    return max(counts.values(), default=0) >= counts[language] + FOREIGN


def _count_function_words(texts: Iterable[str]) -> tuple[Counter[str], int, int]:
    """Return how many words of some texts carry the grammar of each language, are there, and are not divided."""
    known = list_function_words()
    counts: Counter[str] = Counter()
    unspaced = num = 0
    for text in texts:
        for token in tokenize(text):
            if token.extra:
                continue
            num += 1
            unspaced += _is_unspaced(token.text)
            for language, words in known.items():
                counts[language] += token.text in words
    return counts, num, unspaced


def _is_unspaced(word: str) -> bool:
    return len(word) == 1 and re.match("[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]", word) is not None


def _count(item: tuple[str, int]) -> int:
    return item[1]
