"""Where a query's words stand on a page: a few lines of text with the words marked, and their boxes."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from ..pages.text import PageText
from .analyzer import Analyzer
from .query import WordQuery
from .tokens import tokenize

LENGTH = 240  # characters of a snippet
BEFORE = 40  # of them before the first word that is marked
MOST_BOXES = 400  # of a page: more marks show nothing
Span = tuple[int, int]
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Snippet:
    """A part of a page's text in one line, and where the words of the query begin and end in it."""

    text: str
    marks: tuple[Span, ...] = ()


@dataclass(frozen=True)
class Found:
    """A snippet, and the box of every marked word of the page: left, top, right, bottom, in fractions of the page."""

    snippet: Snippet
    boxes: tuple[Box, ...] = ()


def find_words(page: PageText, query: WordQuery, analyzer: Analyzer) -> Found:
    """Find the words of a query on a page."""
    marks: list[tuple[int, int, str]] = []
    for token in tokenize(page.text):
        term = analyzer.find_term(token)
        if term in query.marked:
            marks.append((token.start, token.end, term))
    snippet = _cut(page.text, marks)
    return Found(snippet, _find_boxes(page, _merge([(start, end) for start, end, _ in marks])))


def _cut(text: str, marks: list[tuple[int, int, str]]) -> Snippet:
    """Cut out the part with the most different words of the query; without any, the beginning."""
    start = _choose_start(marks)
    start = 0 if start < BEFORE else _next_word(text, start - BEFORE)
    end = min(start + LENGTH, len(text))
    if end < len(text):
        end = max(text.rfind(" ", start, end), text.rfind("\n", start, end), start + LENGTH // 2)
    inside = [(a - start, b - start) for a, b, _ in marks if a >= start and b <= end]
    before, after = "\u2026 " if start else "", " \u2026" if end < len(text) else ""
    shift = len(before)
    shown = tuple((a + shift, b + shift) for a, b in _merge(inside))
    return Snippet(before + text[start:end].replace("\n", " ") + after, shown)


def _choose_start(marks: list[tuple[int, int, str]]) -> int:
    """Return where the marked word stands from which on a snippet has the most different words, then the most."""
    best, best_start = (0, 0), 0
    last = 0
    inside: dict[str, int] = {}
    for first, (start, _, term) in enumerate(marks):
        while last < len(marks) and marks[last][1] <= start + LENGTH - BEFORE:
            inside[marks[last][2]] = inside.get(marks[last][2], 0) + 1
            last += 1
        value = (len(inside), last - first)
        if value > best:
            best, best_start = value, start
        if term in inside:
            inside[term] -= 1
            if not inside[term]:
                del inside[term]
    return best_start


def _next_word(text: str, start: int) -> int:
    """Return where the first word begins from a place on."""
    place = text.find(" ", start, start + BEFORE)
    line = text.find("\n", start, start + BEFORE)
    found = [one for one in (place, line) if one >= 0]
    return min(found) + 1 if found else start


def _merge(spans: list[Span]) -> list[Span]:
    """Join spans that overlap, as an identifier and its parts do."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _find_boxes(page: PageText, spans: list[Span]) -> tuple[Box, ...]:
    """Return the boxes of spans: a part of a long word, as Chinese lines are, is that part of its box."""
    starts: list[int] = []
    place = 0
    for word in page.words:
        starts.append(place)
        place += len(word.text) + 1  # words of the text have one space or line break between them
    boxes: list[Box] = []
    for start, end in spans[:MOST_BOXES]:
        i = bisect_right(starts, start) - 1
        if not 0 <= i < len(page.words):
            continue
        word = page.words[i]
        length, width = max(len(word.text), 1), word.right - word.left
        left = word.left + width * (start - starts[i]) / length
        right = min(word.left + width * (end - starts[i]) / length, word.right)
        boxes.append((round(left, 5), word.top, round(right, 5), word.bottom))
    return tuple(boxes)
