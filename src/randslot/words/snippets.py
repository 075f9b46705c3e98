"""Where a query's words stand on a page: how near to each other, a snippet that marks them, and their boxes."""

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

LENGTH = 240  # characters of a snippet
BEFORE = 40  # of them before the first word that is marked
MAX_DISTANCE = 4  # of words that are near each other
MAX_BOXES = 400  # of a page: more marks show nothing
Span = tuple[int, int]
Mark = tuple[int, int, str]  # where a word begins and ends, and its term


@dataclass(frozen=True)
class Snippet:
    """A part of a page's text in one line, and where the words of the query begin and end in it."""

    text: str
    marks: tuple[Span, ...] = ()


@dataclass(frozen=True)
class Found:
    """A snippet, and the box of every marked word of the page. best: that of the rarest word.

    passage: lines of the window of the text that a vector was made of, if that was asked for.
    """

    snippet: Snippet
    boxes: tuple[Box, ...] = ()
    best: Box | None = None
    passage: tuple[Box, ...] = ()


def measure_nearness(matches: Sequence[Match], query: WordQuery) -> float:
    """Return how near to each other a page has words that are neighbours in a query; rare ones count more."""
    last: dict[str, int] = {}
    best: dict[tuple[str, str], float] = {}
    for i, _, _, term, _ in matches:
        if term not in query.neighbours:
            continue
        for other, rarity in query.neighbours[term].items():
            if other in last and i - last[other] <= MAX_DISTANCE:
                pair = (term, other) if term < other else (other, term)
                distance = max(i - last[other], 1)  # both may be parts of one word
                best[pair] = max(rarity / distance, best.get(pair, 0.0))
        last[term] = i
    return sum(best.values())


def find_words(page: PageText, query: WordQuery) -> Found:
    """Find the words of a query on a page; those of a phrase where it occurs, or separately if it does not."""
    anywhere = set(query.free)
    marks: list[Mark] = []
    if query.phrases:
        in_order = [token for token in tokenize(page.text) if not token.extra]
        texts = [remove_accents(token.text) for token in in_order]
    for phrase in query.phrases:
        found = _find_phrase(phrase.split(), in_order, texts)
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
        return Found(_cut(page.text, marks))
    starts = find_starts(page.text)
    rarest = _find_rarest(marks)
    best = _find_boxes(page, starts, [rarest])[:1] if rarest else ()
    boxes = _find_boxes(page, starts, _merge([(start, end) for start, end, _ in marks]))
    return Found(_cut(page.text, marks), boxes, best[0] if best else None)


def find_starts(text: str) -> list[int]:
    """Return where each word of a text begins."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    spaces = _list_spaces()
    is_space = spaces[np.minimum(codes, len(spaces) - 1)]
    follows_space = np.concatenate([[True], is_space[:-1]])
    starts: list[int] = np.flatnonzero(follows_space[: len(codes)] & ~is_space).tolist()
    return starts


@cache
def _list_spaces() -> NDArray[np.bool_]:
    """Return whether each character is a space, up to one after the last space."""
    return np.array([chr(code).isspace() for code in range(0x3002)])


def show_window(page: PageText, window: int, num: int) -> Found:
    """Show one of the windows of equal numbers of words that a text was cut into: its beginning, and its lines."""
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
    end = len(text) if len(text) <= LENGTH else text.rfind(" ", 0, LENGTH)
    before, after = "\u2026 " if first else "", " \u2026" if end < len(text) or last < len(words) else ""
    return Found(Snippet(before + text[:end] + after), tuple(boxes[:MAX_BOXES]))


def find_fields(fields: Mapping[str, str], query: WordQuery) -> list[str]:
    """Return which of some named texts have a word of a query."""
    return [name for name, text in fields.items() if query.matcher.match(text)]


def _find_phrase(phrase: list[str], words: Sequence[Token], texts: Sequence[str]) -> list[Token]:
    """Return the tokens of a page that are part of a phrase; texts: of its words, without accents."""
    found: list[Token] = []
    for i, text in enumerate(texts):
        if text == phrase[0] and texts[i : i + len(phrase)] == phrase:
            found += words[i : i + len(phrase)]
    return found


def _find_rarest(marks: Sequence[Mark]) -> Span | None:
    """Return the marked word of the best passage that the page has least often."""
    counts = Counter(term for _, _, term in marks)
    start = _choose_start(marks, LENGTH - BEFORE)
    inside = [mark for mark in marks if start <= mark[0] and mark[1] <= start + LENGTH - BEFORE]
    best = min(inside, key=lambda mark: (counts[mark[2]], mark[0]), default=None)
    return (best[0], best[1]) if best else None


def _cut(text: str, marks: Sequence[Mark]) -> Snippet:
    """Cut out the part with the most different words of the query, and a part with others; or the beginning."""
    spans = [_choose_span(text, marks, LENGTH)]
    seen = _find_terms(marks, spans)
    if any(term not in seen for _, _, term in marks):
        first = _choose_span(text, marks, 5 * LENGTH // 8)
        shown_first = _find_terms(marks, [first])
        others = [mark for mark in marks if mark[2] not in shown_first]
        two = _merge([first, _choose_span(text, others, 3 * LENGTH // 8)])
        if len(_find_terms(marks, two)) > len(seen):
            spans = two
    shown, places = "", []
    for start, end in spans:
        shown += " \u2026 " if shown else "\u2026 " if start else ""
        inside = _merge([(a, b) for a, b, _ in marks if start <= a and b <= end])
        places += [(a - start + len(shown), b - start + len(shown)) for a, b in inside]
        shown += text[start:end].replace("\n", " ")
    return _shorten_leaders(shown + (" \u2026" if spans[-1][1] < len(text) else ""), places)


def _find_terms(marks: Sequence[Mark], spans: Sequence[Span]) -> set[str]:
    """Return the terms of the marked words that are in some parts of a text."""
    found: set[str] = set()
    for first, last in spans:
        found.update(term for start, end, term in marks if first <= start and end <= last)
    return found


def _choose_span(text: str, marks: Sequence[Mark], length: int) -> Span:
    """Return the part of a text of at most some length that has the most different marked words, from word to word."""
    start = _choose_start(marks, length - BEFORE) - BEFORE
    if start < 0:
        start = 0
    elif space := re.search(r"[ \n]", text[start : start + BEFORE]):
        start += space.end()  # where a word begins
    end = min(start + length, len(text))
    if end < len(text):
        end = max(text.rfind(" ", start, end), text.rfind("\n", start, end), start + length // 2)
    return start, end


def _choose_start(marks: Sequence[Mark], room: int) -> int:
    """Return where the marked word stands from which on a snippet has the most different words, then the most."""
    most, most_marks, best_start, last = 0, 0, 0, 0
    inside: dict[str, int] = {}
    for first, (start, _, term) in enumerate(marks):
        while last < len(marks) and marks[last][1] <= start + room:
            inside[marks[last][2]] = inside.get(marks[last][2], 0) + 1
            last += 1
        if len(inside) > most or (len(inside) == most and last - first > most_marks):
            most, most_marks, best_start = len(inside), last - first, start
        num = inside.pop(term, 0)
        if num > 1:
            inside[term] = num - 1
    return best_start


def _merge(spans: list[Span]) -> list[Span]:
    """Join spans that overlap, as an identifier and its parts do."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _find_boxes(page: PageText, starts: Sequence[int], spans: list[Span]) -> tuple[Box, ...]:
    """Return the boxes of spans: a part of a long word, as Chinese lines are, is that part of its box."""
    words, spans = page.text.split(), spans[:MAX_BOXES]
    last = min(len(words), len(page.boxes) // 8) - 1
    if last < 0:
        return ()
    owners = [bisect_right(starts, start, 0, last + 1) - 1 for start, _ in spans]
    near = sorted({min(max(i + step, 0), last) for i in owners for step in (-1, 0, 1)})
    sides = dict(zip(near, page.find_boxes(near), strict=True))
    boxes: list[Box] = []
    for i, (start, end) in zip(owners, spans, strict=True):
        if start >= starts[i] + len(words[i]):  # the file has no box for it
            continue
        if broken := _split_broken([sides[j] for j in (i - 1, i, i + 1) if j in sides]):
            boxes += broken
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


def _split_broken(sides: list[list[float]]) -> list[Box]:
    """Return the boxes of both parts of a word that is broken at the end of a line; nothing for other words.

    sides: of the words before it, itself and after it. Its box is around both parts, across two lines: its neighbours
    tell where they are.
    """
    if len(sides) < 3:
        return []
    (_, before_top, before_right, before_bottom), word, (after_left, after_top, _, after_bottom) = sides
    left, top, right, bottom = word
    middle, lower = (top + bottom) / 2, 0.7 * (bottom - top)  # a line is lower than that
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
    """Return a snippet without the dots that lead the eye in a table of contents, and with marks that have moved so."""
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
