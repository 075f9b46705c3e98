"""The words of a library, to correct queries and to complete what is being typed.

Words are counted by page, in sections: those with the same first letter and length. One blob has them all, another
those of recent pages, which join the others when they are many. So a new page costs little, and a lookup reads a few
sections. Words of removed pages stay until all words are counted again: ask the store whether a page has a suggestion.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..words.language import IS_UNSPACED
from .location import Location

# Names of both blobs: on a server, and in a folder.
ALL, RECENT = ("vocabulary", "vocabulary.bin"), ("recent words", "vocabulary.recent.bin")


class Section:
    """Words of one length: their characters, how many pages have each, and which letters each has, a bit a letter."""

    def __init__(self, content: bytes, length: int) -> None:
        num = int.from_bytes(content[:4], "little")
        self.counts = np.frombuffer(content, "<u4", num, 4)
        text = content[4 + 4 * num :].decode()
        self.characters = np.frombuffer(text.encode("utf-32-le"), "<u4").reshape(num, length)
        self.letters = find_letters(self.characters)


def find_letters(characters: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """Return a bit for each letter of each word."""
    bits = np.uint64(1) << (characters & 63).astype(np.uint64)
    letters: NDArray[np.uint64] = np.bitwise_or.reduce(bits, axis=-1)
    return letters


@lru_cache(200_000)
def is_counted(word: str) -> bool:
    """Whether a word is kept: one of letters, which is not written without spaces."""
    return 3 <= len(word) <= 30 and word.isalpha() and (word.isascii() or not IS_UNSPACED.match(word))


class Vocabulary:
    """The words of a library. Safe in several threads, one of which adds words.

    stamp: changes whenever words are saved; other processes see it in library.json.
    """

    def __init__(self, location: Location) -> None:
        self.location = location
        self.stamp = 0
        self.recent: Counter[str] | None = None
        self.is_changed = False
        self.forget()

    def forget(self) -> None:
        """Forget what was read: it is another one now."""
        self._blobs: list[tuple[dict[str, Any], bytes]] | None = None
        self._sections: dict[str, list[Section]] = {}

    def follow(self, stamp: int) -> None:
        """Forget what was read if another process has saved words since."""
        if stamp != self.stamp:
            self.stamp, self.recent = stamp, None
            self.forget()

    def count(self, word: str) -> int:
        """Return how many pages have a word, in lower case and without accents."""
        num = 0
        for section in self._find(f"{word[:1]}{len(word)}"):
            words = section.characters.view(f"<U{len(word)}")[:, 0]
            i = int(np.searchsorted(words, word))
            num += int(section.counts[i]) if i < len(words) and words[i] == word else 0
        return num

    def add(self, words: str) -> None:
        """Count the words of a page."""
        if self.recent is None:
            self.recent = self._read_counts(RECENT)
        self.recent.update(filter(is_counted, set(words.split())))
        self.is_changed = True

    def clear(self) -> None:
        """Forget all words; all pages are about to be counted again."""
        self.recent, self.is_changed = Counter(), True
        self.location.write_blob(*ALL, write_counts({}))

    def save(self) -> None:
        """Write the words of recent pages; many of them join the others."""
        if self.recent is None or not self.is_changed:
            return
        size = sum(size for _, size in self._read(ALL)[0].values())
        if len(self.recent) > max(20_000, size // 80):  # a twentieth of all: a word takes four bytes
            self.location.write_blob(*ALL, write_counts(self._read_counts(ALL) + self.recent))
            self.recent.clear()
        self.location.write_blob(*RECENT, write_counts(self.recent))
        self.stamp += 1
        self.is_changed = False
        self.forget()

    def suggest(self, word: str, num: int = 5) -> list[str]:
        """Return words like one in lower case that may be misspelled: fewest edits first, then those on most pages.

        One edit, or two from eight letters on. The first letter is right, or has changed places with the second. From
        six letters on it may be another one, if there is no such word: of shorter ones, too many are words themselves.
        """
        found = self._list_similar(word, set(word[:2]))
        if len(word) < 6:
            right = (word[0], word[1::-1])
            found = {other: edits for other, edits in found.items() if other.startswith(right)}
        elif not found:
            letters = {key[0] for places, _ in self._open() for key in places}
            found = self._list_similar(word, letters.difference(word[:2]))
        return sorted(found, key=lambda other: (found[other], other[0], len(other)))[:num]

    def _list_similar(self, word: str, first_letters: Collection[str]) -> dict[str, tuple[int, int]]:
        """Return similar words with some first letters: their edits, and the negative number of their pages."""
        max_edits = 0 if len(word) < 4 else 1 if len(word) < 8 else 2
        codes = np.frombuffer(word.encode("utf-32-le"), "<u4")
        letters = find_letters(codes)
        found: dict[str, tuple[int, int]] = {}
        for length in range(len(word) - max_edits, len(word) + max_edits + 1):
            sections = [one for letter in sorted(first_letters) for one in self._find(f"{letter}{length}")]
            # An edit changes two letters at most.
            near = [np.bitwise_count(one.letters ^ letters) <= 2 * max_edits for one in sections]
            counts = [num for one, some in zip(sections, near, strict=True) for num in one.counts[some].tolist()]
            if not counts:
                continue
            similar = np.concatenate([one.characters[some] for one, some in zip(sections, near, strict=True)])
            edits = count_edits(codes, similar)
            for i in np.flatnonzero((edits > 0) & (edits <= max_edits)).tolist():
                other = similar[i].tobytes().decode("utf-32-le")
                found[other] = (int(edits[i]), found.get(other, (0, 0))[1] - counts[i])
        return found

    def complete(self, prefix: str, num: int = 8) -> list[str]:
        """Return the words that begin so, in lower case; those on most pages first."""
        codes = np.frombuffer(prefix.encode("utf-32-le"), "<u4")
        found: Counter[str] = Counter()
        keys = {key for places, _ in self._open() for key in places}
        for key in keys:
            if key[0] == prefix[:1] and int(key[1:]) >= len(prefix):
                for section in self._find(key):
                    (begin,) = np.nonzero((section.characters[:, : len(prefix)] == codes).all(1))
                    for i in begin[np.argsort(-section.counts[begin].astype(np.int64))[:num]]:
                        found[section.characters[i].tobytes().decode("utf-32-le")] += int(section.counts[i])
        return sorted(found, key=lambda word: (-found[word], word))[:num]

    def _find(self, key: str) -> list[Section]:
        """Return the sections of a first letter and a length, of all words and of recent ones."""
        if key not in self._sections:
            found = []
            for places, content in self._open():
                if key in places:
                    start, size = places[key]
                    found.append(Section(zlib.decompress(content[start : start + size]), int(key[1:])))
            self._sections[key] = found
        return self._sections[key]

    def _open(self) -> list[tuple[dict[str, Any], bytes]]:
        if self._blobs is None:
            self._blobs = [self._read(ALL), self._read(RECENT)]
        return self._blobs

    def _read(self, blob: tuple[str, str]) -> tuple[dict[str, Any], bytes]:
        """Return where the sections of a blob are, and the sections; none if it was lost while it was written."""
        head, _, content = (self.location.read_blob(*blob) or b"{}").partition(b"\n")
        return json.loads(head), content

    def _read_counts(self, blob: tuple[str, str]) -> Counter[str]:
        places, content = self._read(blob)
        counts: Counter[str] = Counter()
        for key, (start, size) in places.items():
            length = int(key[1:])
            section = Section(zlib.decompress(content[start : start + size]), length)
            text = section.characters.tobytes().decode("utf-32-le")
            for i, count in enumerate(section.counts.tolist()):
                counts[text[i * length : (i + 1) * length]] = count
        return counts


def count_edits(word: NDArray[np.uint32], others: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return the edits from a word to others of one length: letters added, left out, replaced, or two exchanged."""
    steps = np.arange(others.shape[1] + 1)
    before = last = np.tile(steps, (len(others), 1))
    for i, letter in enumerate(word):
        now = last + 1  # the letter is left out
        now[:, 1:] = np.minimum(now[:, 1:], last[:, :-1] + (others != letter))
        if i:
            exchanged = (others[:, :-1] == letter) & (others[:, 1:] == word[i - 1])
            now[:, 2:] = np.where(exchanged, np.minimum(now[:, 2:], before[:, :-2] + 1), now[:, 2:])
        before, last = last, np.minimum.accumulate(now - steps, axis=1) + steps  # letters are added
    return last[:, -1]


def write_counts(counts: Mapping[str, int]) -> bytes:
    """Return words and their counts as a blob: a line of JSON that says where each section is, and the sections."""
    sections: dict[str, list[str]] = {}
    for word in sorted(counts):
        sections.setdefault(f"{word[0]}{len(word)}", []).append(word)
    places, parts, start = {}, [], 0
    for key, words in sections.items():
        numbers = np.array([counts[word] for word in words], "<u4").tobytes()
        parts.append(zlib.compress(len(words).to_bytes(4, "little") + numbers + "".join(words).encode(), 1))
        places[key] = (start, len(parts[-1]))
        start += len(parts[-1])
    return json.dumps(places).encode() + b"\n" + b"".join(parts)
