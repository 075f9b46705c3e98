"""The content of sample reports: pages of facts, and questions whose evidence is in several parts of a page.

A report is a few pages under one title. A hash of its words assigns each fact to one split, so training, validation and
test pages share no fact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from random import Random
from zlib import crc32

from randslot.errors import UsageError

from .words import GOODS, MEASURES, PLACES, SUBJECTS, THEMES, VERBS

SPLITS = ("train", "validation", "test")
ANSWERS, RELATED = 2, 1  # the grades of a page, as in ViDoRe V3
PAGES = 3  # of a report
BLOCKS = ("text", "table", "chart")
CHARTS = ("bars", "columns", "line")


@dataclass(frozen=True)
class Page:
    """The content of one page."""

    place: str
    theme: str
    sentences: tuple[tuple[str, str], ...]  # subject, verb
    goods: tuple[str, ...]  # row heads
    measures: tuple[str, ...]  # column heads
    values: tuple[tuple[int, ...], ...]  # a row for each good
    labels: tuple[str, ...]  # of the chart
    heights: tuple[int, ...]  # in percent
    chart: str
    blocks: tuple[str, ...]  # from top to bottom
    blank: frozenset[str] = frozenset()  # blocks left blank

    @property
    def title(self) -> str:
        return f"{self.place} {self.theme}"

    @property
    def shown(self) -> tuple[str, ...]:
        return tuple(block for block in self.blocks if block not in self.blank)

    @property
    def text(self) -> str:
        """What is written on the page, line by line in reading order."""
        rows = zip(self.goods, self.values, strict=True)
        parts = {
            "title": [self.title],
            "text": [f"{subject.capitalize()} {verb}." for subject, verb in self.sentences],
            "table": [
                " ".join(self.measures),
                *(" ".join([good, *map(str, row)]) for good, row in rows),
            ],
            "chart": [" ".join(self.labels)],
        }
        return "\n".join(line for block in self.shown for line in parts[block])

    def clippings(self) -> list[Page]:
        """Return each block as a separate small page: easier for learning to read."""
        return [replace(self, blocks=(block,)) for block in self.blocks]

    def keep(self, num: int, random: Random) -> Page:
        """Return the page with only some of its blocks, the others blank: easier for learning retrieval."""
        return replace(self, blank=frozenset(random.sample(self.blocks, len(self.blocks) - num)))

    def facts(self) -> set[tuple[str, ...]]:
        """Return the facts on the page: its title, each cell, each sentence, and adjacent labels."""
        cells = {
            ("table", good, measure, str(value))
            for good, row in zip(self.goods, self.values, strict=True)
            for measure, value in zip(self.measures, row, strict=True)
        }
        neighbours = zip(self.labels, self.labels[1:], strict=False)
        return (
            cells
            | {("title", self.place, self.theme)}
            | {("text", *sentence) for sentence in self.sentences}
            | {("chart", left, right) for left, right in neighbours}
        )

    def evidence(self) -> set[tuple[str, str]]:
        """Return every word or number that a question can ask for, with its part of the page."""
        found = {("title", self.place), ("title", self.theme)}
        found |= {("row", good) for good in self.goods} | {("column", measure) for measure in self.measures}
        found |= {("label", label) for label in self.labels}
        found |= {("text", word) for sentence in self.sentences for word in sentence}
        found |= {
            ("cell", f"{good} {value}") for good, row in zip(self.goods, self.values, strict=True) for value in row
        }
        return found


@dataclass(frozen=True)
class Report:
    """A few pages under one title, in one style."""

    name: str
    pages: tuple[Page, ...]
    style: int  # the seed of its look


@dataclass(frozen=True)
class Question:
    """A question, its kind, and the evidence that a page needs to answer it."""

    text: str
    kind: str
    needs: frozenset[tuple[str, str]]


def split_of(fact: Iterable[str]) -> str:
    """Return the split of a fact: 10 % test, 10 % validation."""
    return {0: "test", 1: "validation"}.get(crc32("|".join(fact).encode()) % 10, "train")


def make_reports(num: int, *, split: str = "train", seed: int = 0) -> Iterator[Report]:
    """Make reports, each seeded by its number: the first ones do not depend on the total."""
    if split not in SPLITS:
        raise UsageError(f"split {split!r} is not one of {', '.join(SPLITS)}")
    return (_make_report(f"{split}-{seed}-{i:05d}", split) for i in range(num))


def arrange(report: Report, layout: str) -> Report:
    """Return a report with the blocks of all pages in one order, as in "table-chart-text"."""
    blocks = tuple(layout.split("-"))
    if sorted(blocks) != sorted(BLOCKS):
        raise UsageError(f"layout {layout!r} is not an order of {', '.join(BLOCKS)}, as in {'-'.join(BLOCKS)}")
    return replace(report, pages=tuple(replace(page, blocks=("title", *blocks)) for page in report.pages))


def _make_report(name: str, split: str) -> Report:
    random = Random(name)
    place, theme = _choose_fact(random, split, "title", PLACES, THEMES)
    pages = tuple(_make_page(random, split, place, theme) for _ in range(PAGES))
    return Report(f"{name}-{place}-{theme}".lower(), pages, random.getrandbits(32))


def _make_page(random: Random, split: str, place: str, theme: str) -> Page:
    goods, measures = tuple(random.sample(GOODS, 2)), tuple(random.sample(MEASURES, 2))
    labels = [random.choice([label for label in PLACES if label != place])]
    while len(labels) < 3:
        others = [label for label in PLACES if label not in (place, *labels)]
        fitting = [label for label in others if split_of(("chart", labels[-1], label)) == split]
        labels = [*labels, random.choice(fitting)] if fitting else [random.choice(others)]
    sentences = tuple(_choose_fact(random, split, "text", SUBJECTS, VERBS) for _ in range(2))
    return Page(
        place=place,
        theme=theme,
        sentences=sentences,
        goods=goods,
        measures=measures,
        values=tuple(tuple(_choose_value(random, split, good, measure) for measure in measures) for good in goods),
        labels=tuple(labels),
        heights=tuple(random.randint(20, 100) for _ in labels),
        chart=random.choice(CHARTS),
        blocks=("title", *random.sample(BLOCKS, 3)),
    )


def _choose_fact(
    random: Random, split: str, part: str, first: tuple[str, ...], second: tuple[str, ...]
) -> tuple[str, str]:
    while True:
        pair = random.choice(first), random.choice(second)
        if split_of((part, *pair)) == split:
            return pair


def _choose_value(random: Random, split: str, good: str, measure: str) -> int:
    while True:
        value = random.randint(10, 999)
        if split_of(("table", good, measure, str(value))) == split:
            return value


def ask(page: Page, random: Random) -> list[Question]:
    """Ask one question of each kind about a page; the evidence of each kind is in several parts of it."""
    good, row = random.choice(list(zip(page.goods, page.values, strict=True)))
    measure, value = random.choice(page.measures), random.choice(row)
    label, other = random.sample(page.labels, 2)
    subject, verb = random.choice(page.sentences)
    place, theme = page.place, page.theme
    kinds: dict[str, tuple[list[tuple[str, str]], list[str]]] = {
        "cell": (
            [("title", place), ("row", good), ("column", measure)],
            [
                f"what were the {measure} of {good} in {place}?",
                f"{measure} of {good}, {place} report",
                f"how are {good} doing in {place}: {measure}",
            ],
        ),
        "chart": (
            [("title", theme), ("label", label), ("label", other)],
            [
                f"chart that compares {label} with {other} in the {theme} report",
                f"{theme} chart with {label} and {other}",
                f"how do {label} and {other} compare in {theme}?",
            ],
        ),
        "number": (
            [("title", place), ("row", good), ("cell", f"{good} {value}")],
            [
                f"{place} report with {value} for {good}",
                f"where in {place} are {good} at {value}?",
                f"{good} {value} {place}",
            ],
        ),
        "text": (
            [("title", theme), ("text", subject), ("text", verb)],
            [
                f"which {theme} report says that {subject} {verb}?",
                f"{subject} {verb}, {theme}",
                f"when was it that {subject} {verb} in {theme}?",
            ],
        ),
        "mixed": (
            [("row", good), ("label", label), ("text", subject)],
            [
                f"page about {subject} with {good} in the table and {label} in the chart",
                f"{good} and {subject}, chart of {label}",
                f"which page has {good} in a table, a chart of {label}, and {subject}?",
            ],
        ),
    }
    return [Question(random.choice(texts), kind, frozenset(needs)) for kind, (needs, texts) in kinds.items()]
