"""The words of a library: to correct typos and to complete what somebody types."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterable

from rapidfuzz import process
from rapidfuzz.distance import OSA

MIN_LENGTH, MAX_LENGTH = 3, 30  # letters of words worth keeping
Shard = dict[str, int]  # words that begin alike, and on how many pages each was


class Vocabulary:
    """The words of a library by their first letters, in shards that are loaded when needed.

    Counts only grow: a word of a deleted page stays, and a search shows that no page has it.
    """

    def __init__(self, load: Callable[[str], bytes | None], save: Callable[[dict[str, bytes]], None]) -> None:
        """load: a shard by its name, None if there is none. save: several shards by their names, at once."""
        self._load, self._save = load, save
        self._shards: dict[str, Shard] = {}
        self._new: Counter[str] = Counter()

    def add(self, words: Iterable[str]) -> None:
        """Count the words of one page; `flush` keeps them."""
        for word in set(words):
            if MIN_LENGTH <= len(word) <= MAX_LENGTH and word.isalpha():
                self._new[word] += 1

    def flush(self) -> None:
        """Keep what was added."""
        changed = {word[0] for word in self._new}
        for letter in changed:
            self._find_shard(letter)
        for word, count in self._new.items():
            shard = self._shards[word[0]]
            shard[word] = shard.get(word, 0) + count
        packed = {}
        for letter in changed:
            lines = [f"{word} {count}" for word, count in sorted(self._shards[letter].items())]
            packed[letter] = zlib.compress("\n".join(lines).encode())
        if packed:
            self._save(packed)
        self._new.clear()

    def correct(self, word: str) -> str | None:
        """Return the word of the library that was probably meant; None for a known word, and if none is near.

        The first letter counts as typed. Two edits are allowed in a word of seven letters and more, else one.
        """
        max_edits = 2 if len(word) >= 7 else 1
        if not word.isalpha() or not 4 <= len(word) <= MAX_LENGTH:
            return None
        shard = self._find_shard(word[0])
        if word in shard:
            return None
        near = [known for known in shard if abs(len(known) - len(word)) <= max_edits]
        found = process.extract(word, near, scorer=OSA.distance, score_cutoff=max_edits, limit=50)
        if not found:
            return None
        best, _, _ = min(found, key=lambda match: (match[1], -shard[match[0]], match[0]))
        return best

    def complete(self, prefix: str, limit: int = 8) -> list[str]:
        """Return words that begin so, the most frequent first."""
        if not prefix:
            return []
        shard = self._find_shard(prefix[0])
        found = [word for word in shard if word.startswith(prefix) and word != prefix]
        return sorted(found, key=lambda word: (-shard[word], word))[:limit]

    def _find_shard(self, letter: str) -> Shard:
        if letter not in self._shards:
            shard: Shard = {}
            packed = self._load(letter)
            for line in zlib.decompress(packed).decode().splitlines() if packed else ():
                word, _, count = line.partition(" ")
                shard[word] = int(count)
            self._shards[letter] = shard
        return self._shards[letter]
