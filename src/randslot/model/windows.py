"""The text of a page in windows: a model of one vector reads each, so a page gets several vectors."""

from __future__ import annotations

from itertools import pairwise

LEAST = 60  # words of a window, about; a page with fewer gets fewer windows


def cut_windows(text: str, most: int) -> list[str]:
    """Cut a text into at most so many windows of equal numbers of words; what stands in none of them is white space.

    Where words are not divided by spaces, as in Chinese, each line counts as one.
    """
    words = text.split()
    num = max(1, min(most, round(len(words) / LEAST)))
    if num == 1:
        return [text]
    starts = [i * len(words) // num for i in range(num + 1)]
    return [" ".join(words[start:end]) for start, end in pairwise(starts)]
