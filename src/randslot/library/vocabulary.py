"""The vocabulary of a library, for typo correction and completion.

It stores document frequencies in sections of words with the same first letter and length. One blob has all words,
another those of recent pages, which is merged when it is large. So a new page is cheap to add, and a lookup reads few
sections. Words of removed pages stay until a recount: ask the store whether a page still has a suggestion.
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

# Names of the blobs: on a server, and in a folder.
ALL, RECENT = ("vocabulary", "vocabulary.bin"), ("recent words", "vocabulary.recent.bin")


class Section:
    """Words of one length: their characters, document frequencies, and letters as bit masks."""

    def __init__(self, content: bytes, length: int) -> None:
        num = int.from_bytes(content[:4], "little")
        self.counts = np.frombuffer(content, "<u4", num, 4)
        text = content[4 + 4 * num :].decode()
        self.characters = np.frombuffer(text.encode("utf-32-le"), "<u4").reshape(num, length)
        self.letters = find_letters(self.characters)


def find_letters(characters: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """Return the letters of each word as a bit mask."""
    bits = np.uint64(1) << (characters & 63).astype(np.uint64)
    letters: NDArray[np.uint64] = np.bitwise_or.reduce(bits, axis=-1)
    return letters


@lru_cache(200_000)
def is_counted(word: str) -> bool:
    """Whether the vocabulary has a word: only letters of scripts with spaces between words."""
    return 3 <= len(word) <= 30 and word.isalpha() and (word.isascii() or not IS_UNSPACED.match(word))


class Vocabulary:
    """The words of a library. Thread-safe for several readers and one writer.

    stamp: increases with every save; other processes compare it with library.json.
    """

    def __init__(self, location: Location) -> None:
        self.location = location
        self.stamp = 0
        self.recent: Counter[str] | None = None
        self.is_changed = False
        self.clear_cache()

    def clear_cache(self) -> None:
        """Clear the cache of blobs and sections."""
        self._blobs: list[tuple[dict[str, Any], bytes]] | None = None
        self._sections: dict[str, list[Section]] = {}

    def refresh(self, stamp: int) -> None:
        """Clear the cache if another process has saved words."""
        if stamp != self.stamp:
            self.stamp, self.recent = stamp, None
            self.clear_cache()

    def count(self, word: str) -> int:
        """Return the document frequency of a word in lower case without accents."""
        num = 0
        for section in self._find_sections(f"{word[:1]}{len(word)}"):
            words = section.characters.view(f"<U{len(word)}")[:, 0]
            i = int(np.searchsorted(words, word))
            num += int(section.counts[i]) if i < len(words) and words[i] == word else 0
        return num

    def add(self, words: str) -> None:
        """Add the words of a page."""
        if self.recent is None:
            self.recent = self._read_counts(RECENT)
        self.recent.update(filter(is_counted, set(words.split())))
        self.is_changed = True

    def clear(self) -> None:
        """Remove all words before a recount."""
        self.recent, self.is_changed = Counter(), True
        self.location.write_blob(*ALL, write_counts({}))

    def save(self) -> None:
        """Save the words of recent pages; if there are many, merge them into all words."""
        if self.recent is None or not self.is_changed:
            return
        size = sum(size for _, size in self._read(ALL)[0].values())
        if len(self.recent) > max(20_000, size // 80):  # a twentieth of all, at four bytes per word
            self.location.write_blob(*ALL, write_counts(self._read_counts(ALL) + self.recent))
            self.recent.clear()
        self.location.write_blob(*RECENT, write_counts(self.recent))
        self.stamp += 1
        self.is_changed = False
        self.clear_cache()

    def suggest(self, word: str, num: int = 5) -> list[str]:
        """Suggest corrections of a word in lower case: fewest edits first, then by document frequency.

        At most one edit, or two from eight letters on. The first letter must match, or be swapped with the second. From
        six letters on it may differ if nothing else matches: too many shorter words are valid themselves.
        """
        found = self._list_similar(word, set(word[:2]))
        if len(word) < 6:
            prefixes = (word[0], word[1::-1])
            found = {other: edits for other, edits in found.items() if other.startswith(prefixes)}
        elif not found:
            letters = {key[0] for places, _ in self._open() for key in places}
            found = self._list_similar(word, letters.difference(word[:2]))
        return sorted(found, key=lambda other: (found[other], other[0], len(other)))[:num]

    def _list_similar(self, word: str, first_letters: Collection[str]) -> dict[str, tuple[int, int]]:
        """Return similar words with these first letters: their edits, and their negative document frequency."""
        max_edits = 0 if len(word) < 4 else 1 if len(word) < 8 else 2
        codes = np.frombuffer(word.encode("utf-32-le"), "<u4")
        letters = find_letters(codes)
        found: dict[str, tuple[int, int]] = {}
        for length in range(len(word) - max_edits, len(word) + max_edits + 1):
            sections = [
                section for letter in sorted(first_letters) for section in self._find_sections(f"{letter}{length}")
            ]
            # An edit changes at most two letters of the mask.
            near = [np.bitwise_count(section.letters ^ letters) <= 2 * max_edits for section in sections]
            counts = [
                num for section, mask in zip(sections, near, strict=True) for num in section.counts[mask].tolist()
            ]
            if not counts:
                continue
            similar = np.concatenate([section.characters[mask] for section, mask in zip(sections, near, strict=True)])
            edits = count_edits(codes, similar)
            for i in np.flatnonzero((edits > 0) & (edits <= max_edits)).tolist():
                other = similar[i].tobytes().decode("utf-32-le")
                found[other] = (int(edits[i]), found.get(other, (0, 0))[1] - counts[i])
        return found

    def complete(self, prefix: str, num: int = 8) -> list[str]:
        """Return completions of a prefix in lower case, by document frequency."""
        codes = np.frombuffer(prefix.encode("utf-32-le"), "<u4")
        found: Counter[str] = Counter()
        keys = {key for places, _ in self._open() for key in places}
        for key in keys:
            if key[0] == prefix[:1] and int(key[1:]) >= len(prefix):
                for section in self._find_sections(key):
                    (begin,) = np.nonzero((section.characters[:, : len(prefix)] == codes).all(1))
                    for i in begin[np.argsort(-section.counts[begin].astype(np.int64))[:num]]:
                        found[section.characters[i].tobytes().decode("utf-32-le")] += int(section.counts[i])
        return sorted(found, key=lambda word: (-found[word], word))[:num]

    def _find_sections(self, key: str) -> list[Section]:
        """Return the sections of a first letter and length: of all words and of recent ones."""
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
        """Return the offsets and sizes of the sections of a blob, and its content; empty if there is no blob."""
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
    """Return the edit distances of a word to others of one length; a transposition is one edit."""
    steps = np.arange(others.shape[1] + 1)
    before = last = np.tile(steps, (len(others), 1))
    for i, letter in enumerate(word):
        now = last + 1  # deletion
        now[:, 1:] = np.minimum(now[:, 1:], last[:, :-1] + (others != letter))
        if i:
            swapped = (others[:, :-1] == letter) & (others[:, 1:] == word[i - 1])
            now[:, 2:] = np.where(swapped, np.minimum(now[:, 2:], before[:, :-2] + 1), now[:, 2:])
        before, last = last, np.minimum.accumulate(now - steps, axis=1) + steps  # insertions
    return last[:, -1]


def write_counts(counts: Mapping[str, int]) -> bytes:
    """Serialize counts as a blob: a line of JSON with the offset and size of each section, then the sections."""
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
