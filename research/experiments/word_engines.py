"""How good search by words is beside bm25s and SQLite's FTS5: nDCG on both halves of the manuals.

    python -m research.manuals data/manuals
    pip install bm25s
    python -m research.experiments.word_engines

All engines get the text that the library has read from the files.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from manuals import HALVES, HITS, Half, grade, open_half, rank
from record import keep, print_table

from words import Bm25s, Fts5, any_word

Ask = Callable[[str, str | None], list[str]]  # from a question, and a manual to stay in, to names of pages


def measure_quality(manuals: Path, folder: Path) -> list[dict[str, Any]]:
    """Ask the questions of both halves, over all manuals of the half and within the right one."""
    rows = []
    for name in HALVES:
        half = open_half(name, manuals, folder)
        for over in ("all manuals", "the right one"):
            for engine, ask in make_engines(half).items():
                inside = over == "the right one"
                ranked = [ask(one.text, one.manual if inside else None) for one in half.questions]
                rows.append(_quality_row(half, over, engine, ranked))
        half.library.close()
    return rows


def _quality_row(half: Half, over: str, engine: str, ranked: list[list[str]]) -> dict[str, Any]:
    at = {cut: grade(half.questions, ranked, cut) for cut in (5, 10)}
    row: dict[str, Any] = {"half": half.name, "pages of": over, "engine": engine}
    row |= {f"nDCG@{cut}": at[cut]["languages"] for cut in (5, 10)}
    row |= {f"@{cut} over questions": at[cut]["questions"] for cut in (5, 10)}
    languages = dict.fromkeys(one.language for one in half.questions)
    return row | {f"@5 {language}": at[5][language] for language in languages}


def make_engines(half: Half) -> dict[str, Ask]:
    """Return every engine, with the pages of a half in it."""
    names = list(half.pages)
    texts = [page.text for page in half.pages.values()]
    files = np.array([name.split("#")[0] for name in names])
    fts = Fts5(Path(":memory:"))
    fts.build(zip(files.tolist(), texts, strict=True))
    stopped, plain = Bm25s("en"), Bm25s(None)
    for one in (stopped, plain):
        one.build(one.tokenize(texts))

    def ask_library(query: str, manual: str | None) -> list[str]:
        return rank(half.library, query, {"source": manual} if manual else None)

    def ask_bm25s(index: Bm25s, query: str, manual: str | None) -> list[str]:
        mask = (files == manual).astype(np.float32) if manual else None
        return [names[i] for i in index.search(query, HITS, mask)]

    def ask_fts(query: str, manual: str | None) -> list[str]:
        return [names[i] for i in fts.search(any_word(query), HITS, manual)]

    return {
        "randslot": ask_library,
        "bm25s, English stop words": lambda query, manual: ask_bm25s(stopped, query, manual),
        "bm25s, no stop words": lambda query, manual: ask_bm25s(plain, query, manual),
        "SQLite FTS5": ask_fts,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--manuals", type=Path, default=Path("data/manuals"))
    parser.add_argument("--folder", type=Path, default=Path("data/words"), help="for libraries, which are used again")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    rows = measure_quality(options.manuals.resolve(), options.folder.resolve())
    print_table(rows)
    keep("words-quality", rows)


if __name__ == "__main__":
    main()
