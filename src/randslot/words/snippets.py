"""Where a query's words stand on a page: a few lines of text with the words marked, and their boxes."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..pages.text import Box, PageText, Word
from .analyzer import Token, remove_accents, tokenize
from .query import WordQuery

LENGTH = 240  # characters of a snippet
BEFORE = 40  # of them before the first word that is marked
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


def find_words(page: PageText, query: WordQuery) -> Found:
    """Find the words of a query on a page; those of a phrase where it occurs, or separately if it does not."""
    tokens, analyzer = list(tokenize(page.text)), query.analyzer
    marks: list[Mark] = []
    anywhere = set(query.free)
    in_order = [token for token in tokens if not token.extra] if query.phrases else []
    texts = [remove_accents(token.text) for token in in_order]
    for phrase in query.phrases:
        found = _find_phrase(phrase.split(), in_order, texts)
        marks += [(token.start, token.end, analyzer.find_term(token)) for token in found]
        if not found:
            anywhere.update(term for token in tokenize(phrase) for term in analyzer.find_terms(token))
    anywhere &= query.marked
    for word in query.joined:
        anywhere.update(word.terms)
    for token in tokens:
        if not anywhere.isdisjoint(analyzer.find_terms(token)):
            marks.append((token.start, token.end, analyzer.find_term(token)))
    marks = sorted(set(marks))
    boxes = _find_boxes(page, _merge([(start, end) for start, end, _ in marks]))
    rarest = _find_rarest(marks)
    best = _find_boxes(page, [rarest])[:1] if rarest else ()
    return Found(_cut(page.text, marks), boxes, best[0] if best else None)


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
    wanted = query.marked.union(*(word.terms for word in query.joined))
    found = []
    for name, text in fields.items():
        for token in tokenize(text):
            if not wanted.isdisjoint(query.analyzer.find_terms(token)):
                found.append(name)
                break
    return found


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
        others = [mark for mark in marks if mark[2] not in _find_terms(marks, [first])]
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
    return {term for start, end, term in marks if any(first <= start and end <= last for first, last in spans)}


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
    best, best_start = (0, 0), 0
    last = 0
    inside: Counter[str] = Counter()
    for first, (start, _, term) in enumerate(marks):
        while last < len(marks) and marks[last][1] <= start + room:
            inside[marks[last][2]] += 1
            last += 1
        value = (len(inside), last - first)
        if value > best:
            best, best_start = value, start
        inside[term] -= 1
        if inside[term] <= 0:
            del inside[term]
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


def _find_boxes(page: PageText, spans: list[Span]) -> tuple[Box, ...]:
    """Return the boxes of spans: a part of a long word, as Chinese lines are, is that part of its box."""
    starts: list[int] = []
    place = 0
    for word in page.words:
        starts.append(place)
        place += len(word.text) + 1  # words of the text have one space or line break between them
    boxes: list[Box] = []
    for start, end in spans[:MAX_BOXES]:
        i = bisect_right(starts, start) - 1
        if not 0 <= i < len(page.words):
            continue
        if broken := _split_broken(page.words, i):
            boxes += broken
            continue
        word = page.words[i]
        length, width = max(len(word.text), 1), word.right - word.left
        left = word.left + width * (start - starts[i]) / length
        right = min(word.left + width * (end - starts[i]) / length, word.right)
        boxes.append((round(left, 5), word.top, round(right, 5), word.bottom))
    return tuple(boxes)


def _split_broken(words: Sequence[Word], i: int) -> list[Box]:
    """Return the boxes of both parts of a word that is broken at the end of a line; nothing for other words.

    The box of such a word is around both, across two lines: its neighbours tell where they are.
    """
    if not 0 < i < len(words) - 1:
        return []
    before, word, after = words[i - 1 : i + 2]
    middle, lower = (word.top + word.bottom) / 2, 0.7 * (word.bottom - word.top)  # a line is lower than that
    if before.bottom - before.top > lower or after.bottom - after.top > lower:
        return []
    on_first_line = before.top < middle and before.bottom < middle + lower / 4 and before.right < word.right
    on_second_line = after.bottom > middle and after.top > middle - lower / 4 and after.left > word.left
    if not (on_first_line and on_second_line):
        return []
    space = 0.004  # between two words, in fractions of the page
    begin = round(min(before.right + space, word.right), 5)
    stop = round(max(after.left - space, word.left), 5)
    return [(begin, before.top, word.right, before.bottom), (word.left, after.top, stop, after.bottom)]


def _shorten_leaders(text: str, marks: list[Span]) -> Snippet:
    """Return a snippet without the dots that lead the eye in a table of contents, and with marks that have moved so."""
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
