"""Can a model read the pages of a library? Lines of its own pages are asked for, and must be near their page."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .stores.store import Store, StoredPage, Vectors

LINES = 40  # that are asked for
OTHERS = 100  # pages that each is compared with
FEWEST = 8  # pages with vectors and text below which nothing can be said
WORDS = (5, 16)  # of a line that is asked for: at least, at most
# Half of the other pages are nearer to a line by chance. A model that reads has nearly none nearer.
READS_FROM, WELL_FROM = 0.75, 0.97
# Of the ranks by vectors beside those by words, if the model reads well or less so; how they were chosen: docs/log.md.
STRONG, LIGHT = 0.7, 0.2
ACROSS = 2.0  # for a query in another language than the library, if its model reads several


@dataclass(frozen=True)
class Trust:
    """How well vectors know pages: the share of other pages that are farther from a line than its own; 0.5 is chance.

    pages: how many were compared.
    """

    share: float
    pages: int

    @property
    def reads(self) -> bool:
        """Whether the model can read these pages."""
        return self.share >= READS_FROM

    @property
    def weight(self) -> float:
        """How much ranks by vectors count beside those by words."""
        return STRONG if self.share >= WELL_FROM else LIGHT

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_trust(values: Any) -> Trust | None:
    """Read what `as_dict` wrote; None if it is not there."""
    return Trust(float(values["share"]), int(values["pages"])) if values else None


def estimate_trust(
    store: Store, visible: Collection[str], embed: Callable[[Sequence[str]], list[Vectors]]
) -> Trust | None:
    """Ask for lines of some pages, and compare their vectors with those of the page and of others.

    visible: ids of files that count. embed: of queries. None if too few pages have both text and vectors.
    """
    ids = [page.id for page in store.find(("layer", "ocr"), vectors=True) if page.file in visible]
    dice = random.Random(0)
    chosen = dice.sample(ids, min(len(ids), OTHERS))
    pages = list(store.read(chosen).values())
    lines: list[tuple[int, str]] = []
    for i, page in enumerate(pages[:LINES]):
        line = choose_line(page, dice)
        if line:
            lines.append((i, line))
    if len(pages) < FEWEST or len(lines) < FEWEST:
        return None
    shares = []
    for (i, _), query in zip(lines, embed([line for _, line in lines]), strict=True):
        scores = np.array([_max_sim(query, page) for page in pages])
        others = np.delete(scores, i)
        shares.append(float((others < scores[i]).mean() + (others == scores[i]).mean() / 2))
    return Trust(round(float(np.mean(shares)), 3), len(pages))


def _max_sim(query: Vectors, page: StoredPage) -> float:
    assert page.vectors is not None
    return float((query @ page.vectors.T).max(1).sum())


def choose_line(page: StoredPage, dice: random.Random) -> str:
    """Return a line of a page, with those after it if it is short, or nothing if the page has too few words."""
    assert page.text is not None
    lines = page.text.text.splitlines()
    if not lines:
        return ""
    start = dice.randrange(len(lines))
    words: list[str] = []
    for line in [*lines[start:], *lines[:start]]:
        words += line.split()
        if len(words) >= WORDS[0]:
            return " ".join(words[: WORDS[1]])
    return ""
