"""Locate the words of a query on a page: their proximity, a snippet with highlights, and bounding boxes."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ..pages.text import Box, PageText
from .analyzer import Token, remove_accents, tokenize
from .matching import Match
from .query import WordQuery

SNIPPET_LENGTH = 240  # characters
LEAD = 40  # characters of context before the first highlight
MAX_DISTANCE = 4  # words between neighbours in a query that count as near on a page
MAX_BOXES = 400  # highlights of a page: more are of no use
Span = tuple[int, int]
Mark = tuple[int, int, str]  # start and end of a word, and its term


@dataclass(frozen=True)
class Snippet:
    """An excerpt of a page's text in one line, and the spans of its highlights."""

    text: str
    marks: tuple[Span, ...] = ()


@dataclass(frozen=True)
class Found:
    """A snippet, and the boxes of all highlighted words of the page. best: the box of the rarest word.

    passage: boxes of the lines of the text window that a vector was made from, if requested.
    """

    snippet: Snippet
    boxes: tuple[Box, ...] = ()
    best: Box | None = None
    passage: tuple[Box, ...] = ()


def score_proximity(matches: Sequence[Match], query: WordQuery) -> float:
    """Score how near to each other the neighbouring words of a query are on a page; rare words count more."""
    last: dict[str, int] = {}
    best: dict[tuple[str, str], float] = {}
    for i, _, _, term, _ in matches:
        if term not in query.neighbours:
            continue
        for other, idf in query.neighbours[term].items():
            if other in last and i - last[other] <= MAX_DISTANCE:
                pair = (term, other) if term < other else (other, term)
                distance = max(i - last[other], 1)  # both may be parts of one word
                best[pair] = max(idf / distance, best.get(pair, 0.0))
        last[term] = i
    return sum(best.values())


def find_words(page: PageText, query: WordQuery) -> Found:
    """Find the words of a query on a page; words of a phrase only in the phrase, unless the page does not have it."""
    anywhere = set(query.unquoted)
    marks: list[Mark] = []
    if query.phrases:
        tokens = [token for token in tokenize(page.text) if not token.extra]
        texts = [remove_accents(token.text) for token in tokens]
    for phrase in query.phrases:
        found = _find_phrase(phrase.split(), tokens, texts)
        marks += [(token.start, token.end, query.analyzer.find_term(token)) for token in found]
        if not found:
            anywhere.update(query.analyzer.find_term(token) for token in tokenize(phrase))
    anywhere &= query.marked
    anywhere.update(*(word.terms for word in query.joined))
    for _, start, end, term, terms in query.matcher.match(page.text):
        if not query.phrases or not anywhere.isdisjoint(terms):
            marks.append((start, end, term))
    marks = sorted(set(marks))
    if not page.boxes:
        return Found(_make_snippet(page.text, marks))
    starts = find_starts(page.text)
    rarest = _find_rarest(marks)
    best = _find_boxes(page, starts, [rarest])[:1] if rarest else ()
    boxes = _find_boxes(page, starts, _merge_spans([(start, end) for start, end, _ in marks]))
    return Found(_make_snippet(page.text, marks), boxes, best[0] if best else None)


def find_starts(text: str) -> list[int]:
    """Return the start of each word of a text."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    spaces = _list_spaces()
    is_space = spaces[np.minimum(codes, len(spaces) - 1)]
    follows_space = np.concatenate([[True], is_space[:-1]])
    starts: list[int] = np.flatnonzero(follows_space[: len(codes)] & ~is_space).tolist()
    return starts


@cache
def _list_spaces() -> NDArray[np.bool_]:
    """Return whether each code point is a space; the last entry is for all higher ones."""
    return np.array([chr(code).isspace() for code in range(0x3002)])


def show_window(page: PageText, window: int, num: int) -> Found:
    """Return the beginning and line boxes of one of the `num` equal windows that a text was split into."""
    words = page.text.split()
    first, last = window * len(words) // num, (window + 1) * len(words) // num
    boxes: list[Box] = []
    for word in page.words[first:last]:
        if boxes and abs(boxes[-1][1] - word.top) < word.bottom - word.top and word.left >= boxes[-1][2] - 0.01:
            left, top, _, bottom = boxes[-1]
            boxes[-1] = (left, min(top, word.top), word.right, max(bottom, word.bottom))
        else:
            boxes.append((word.left, word.top, word.right, word.bottom))
    text = " ".join(words[first:last])
    end = len(text) if len(text) <= SNIPPET_LENGTH else text.rfind(" ", 0, SNIPPET_LENGTH)
    lead, tail = "\u2026 " if first else "", " \u2026" if end < len(text) or last < len(words) else ""
    return Found(Snippet(lead + text[:end] + tail), tuple(boxes[:MAX_BOXES]))


def find_fields(fields: Mapping[str, str], query: WordQuery) -> list[str]:
    """Return the names of the fields that have a word of a query."""
    return [name for name, text in fields.items() if query.matcher.match(text)]


def _find_phrase(phrase: list[str], words: Sequence[Token], texts: Sequence[str]) -> list[Token]:
    """Return the tokens of all occurrences of a phrase; texts: of the words, without accents."""
    found: list[Token] = []
    for i, text in enumerate(texts):
        if text == phrase[0] and texts[i : i + len(phrase)] == phrase:
            found += words[i : i + len(phrase)]
    return found


def _find_rarest(marks: Sequence[Mark]) -> Span | None:
    """Return the highlight in the best passage whose term is rarest on the page."""
    counts = Counter(term for _, _, term in marks)
    start = _choose_start(marks, SNIPPET_LENGTH - LEAD)
    inside = [mark for mark in marks if start <= mark[0] and mark[1] <= start + SNIPPET_LENGTH - LEAD]
    best = min(inside, key=lambda mark: (counts[mark[2]], mark[0]), default=None)
    return (best[0], best[1]) if best else None


def _make_snippet(text: str, marks: Sequence[Mark]) -> Snippet:
    """Excerpt the part with the most distinct words of the query, and a second part if it has others; or the start."""
    spans = [_choose_span(text, marks, SNIPPET_LENGTH)]
    seen = _list_terms(marks, spans)
    if any(term not in seen for _, _, term in marks):
        first = _choose_span(text, marks, 5 * SNIPPET_LENGTH // 8)
        shown_first = _list_terms(marks, [first])
        others = [mark for mark in marks if mark[2] not in shown_first]
        two = _merge_spans([first, _choose_span(text, others, 3 * SNIPPET_LENGTH // 8)])
        if len(_list_terms(marks, two)) > len(seen):
            spans = two
    shown, places = "", []
    for start, end in spans:
        shown += " \u2026 " if shown else "\u2026 " if start else ""
        inside = _merge_spans([(a, b) for a, b, _ in marks if start <= a and b <= end])
        places += [(a - start + len(shown), b - start + len(shown)) for a, b in inside]
        shown += text[start:end].replace("\n", " ")
    return _shorten_leaders(shown + (" \u2026" if spans[-1][1] < len(text) else ""), places)


def _list_terms(marks: Sequence[Mark], spans: Sequence[Span]) -> set[str]:
    """Return the terms of the highlights inside of spans."""
    found: set[str] = set()
    for first, last in spans:
        found.update(term for start, end, term in marks if first <= start and end <= last)
    return found


def _choose_span(text: str, marks: Sequence[Mark], length: int) -> Span:
    """Return the span of at most `length` characters with the most distinct highlights, at word boundaries."""
    start = _choose_start(marks, length - LEAD) - LEAD
    if start < 0:
        start = 0
    elif space := re.search(r"[ \n]", text[start : start + LEAD]):
        start += space.end()  # the start of a word
    end = min(start + length, len(text))
    if end < len(text):
        end = max(text.rfind(" ", start, end), text.rfind("\n", start, end), start + length // 2)
    return start, end


def _choose_start(marks: Sequence[Mark], room: int) -> int:
    """Return the start of the span with the most distinct highlights; ties go to the most highlights."""
    max_terms, max_marks, best_start, last = 0, 0, 0, 0
    inside: dict[str, int] = {}
    for first, (start, _, term) in enumerate(marks):
        while last < len(marks) and marks[last][1] <= start + room:
            inside[marks[last][2]] = inside.get(marks[last][2], 0) + 1
            last += 1
        if len(inside) > max_terms or (len(inside) == max_terms and last - first > max_marks):
            max_terms, max_marks, best_start = len(inside), last - first, start
        num = inside.pop(term, 0)
        if num > 1:
            inside[term] = num - 1
    return best_start


def _merge_spans(spans: list[Span]) -> list[Span]:
    """Merge overlapping spans, such as those of an identifier and its parts."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _find_boxes(page: PageText, starts: Sequence[int], spans: list[Span]) -> tuple[Box, ...]:
    """Return the boxes of spans; for a part of a word, such as a line of Chinese, the same part of its box."""
    words, spans = page.text.split(), spans[:MAX_BOXES]
    last = min(len(words), len(page.boxes) // 8) - 1
    if last < 0:
        return ()
    owners = [bisect_right(starts, start, 0, last + 1) - 1 for start, _ in spans]
    near = sorted({min(max(i + step, 0), last) for i in owners for step in (-1, 0, 1)})
    sides = dict(zip(near, page.find_boxes(near), strict=True))
    boxes: list[Box] = []
    for i, (start, end) in zip(owners, spans, strict=True):
        if start >= starts[i] + len(words[i]):  # beyond the words with boxes
            continue
        if halves := _split_hyphenated([sides[j] for j in (i - 1, i, i + 1) if j in sides]):
            boxes += halves
            continue
        left, top, right, bottom = sides[i]
        length, width, begin = max(len(words[i]), 1), right - left, starts[i]
        boxes.append(
            (
                round(left + width * (start - begin) / length, 5),
                top,
                round(min(left + width * (end - begin) / length, right), 5),
                bottom,
            )
        )
    return tuple(boxes)


def _split_hyphenated(sides: list[list[float]]) -> list[Box]:
    """Return the boxes of both parts of a word that is hyphenated across two lines; [] for other words.

    sides: boxes of the previous word, the word and the next one. The box of the word spans both lines; the neighbours
    show where its parts are.
    """
    if len(sides) < 3:
        return []
    (_, before_top, before_right, before_bottom), word, (after_left, after_top, _, after_bottom) = sides
    left, top, right, bottom = word
    middle, lower = (top + bottom) / 2, 0.7 * (bottom - top)  # more than the height of a line
    if before_bottom - before_top > lower or after_bottom - after_top > lower:
        return []
    on_first_line = before_top < middle and before_bottom < middle + lower / 4 and before_right < right
    on_second_line = after_bottom > middle and after_top > middle - lower / 4 and after_left > left
    if not (on_first_line and on_second_line):
        return []
    space = 0.004  # between two words, in fractions of the page
    begin, stop = round(min(before_right + space, right), 5), round(max(after_left - space, left), 5)
    return [(begin, before_top, right, before_bottom), (left, after_top, stop, after_bottom)]


def _shorten_leaders(text: str, marks: list[Span]) -> Snippet:
    """Shorten the dot leaders of a table of contents, and shift the highlights."""
    if ".." not in text and ". ." not in text:  # most texts
        return Snippet(text, tuple(marks))
    parts: list[str] = []
    moved = list(marks)
    end = 0
    for found in re.finditer(r"(?: ?\.){4,} ?", text):
        parts += [text[end : found.start()], " \u2026 "]
        end = found.end()
        less = len(found[0]) - 3
        for i, (start, _) in enumerate(marks):
            if start >= end:
                moved[i] = moved[i][0] - less, moved[i][1] - less
    return Snippet("".join([*parts, text[end:]]), tuple(moved))
