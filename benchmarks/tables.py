"""Put the rows of results/ into the tables of the docs, between `<!-- table: NAME -->` and `<!-- end -->`.

python benchmarks/tables.py              # rewrite them
python benchmarks/tables.py --check      # fail if one is not what the results say
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from growth import fit_exponents, summarize
from scale import make_plan
from sketches import fit_exponents as fit_sketch_exponents
from sketches import shorten

ROOT = Path(__file__).parent.parent
NAMES = ("models", "training", "library", "web", "export", "scale", "light", "versions")
PLACES = ["README.md", "research/log.md", "research/embedded.md", *(f"docs/{name}.md" for name in NAMES)]
# Tables that are made from the rows of another one.
SOURCES = {"plan": "search", "reader-short": "reader-test"}


def shorten_reader(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return words beside words and the small reader, on all questions of the test half: a column for each language."""
    chosen = [row for row in rows if (row["questions"], row["search"]) == ("with more", "both")]
    mean = next(row for row in chosen if row["language"] == "mean over languages")
    languages = chosen[: chosen.index(mean)]
    short = []
    for search, column in (("words", "words"), ("words and use-multilingual", "nDCG@5")):
        row: dict[str, Any] = {"search": search, "nDCG@5": mean[column]}
        short.append(row | {f"{one['language']} ({one['number']} questions)": one[column] for one in languages})
    return short


# What is shown of rows that are not shown as they are.
CHOICES: dict[str, Callable[[list[dict[str, Any]]], list[dict[str, Any]]]] = {
    "plan": make_plan,
    "reader-short": shorten_reader,
    "growth": lambda rows: summarize(rows) + fit_exponents(rows),
    "sketches": lambda rows: shorten(rows) + fit_sketch_exponents(rows),
}
MARKED = re.compile(r"(<!-- table: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def make_table(name: str) -> str:
    """Return the Markdown of one table: its rows by kind, then what made them."""
    file = ROOT / "results" / f"{SOURCES.get(name, name)}.json"
    if not file.is_file():
        sys.exit(f"no {file}: run python benchmarks/{name.split('-')[0]}.py")
    record = json.loads(file.read_text(encoding="utf-8"))
    kinds: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in CHOICES.get(name, list)(record["rows"]):
        kinds.setdefault(tuple(row), []).append(row)
    tables = [
        "".join(f"| {' | '.join(line)} |\n" for line in _lines(list(heads), rows)) for heads, rows in kinds.items()
    ]
    machine = record["machine"]
    made = f"`{record['command']}` at commit {record['commit']}, {record['date']}: {machine['processor']}, "
    return "\n".join([*tables, f"{made}{machine['threads']} thread, torch {machine['torch']}.\n"])


def _lines(heads: list[str], rows: list[dict[str, Any]]) -> list[list[str]]:
    return [heads, ["---"] * len(heads), *[[_show(row[head]) for head in heads] for row in rows]]


def _show(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def main() -> None:
    stale = []
    for place in PLACES:
        file = ROOT / place
        before = file.read_text(encoding="utf-8")
        after = MARKED.sub(lambda found: f"{found[1]}{make_table(found['name'])}{found[3]}", before)
        if after != before and "--check" in sys.argv:
            stale.append(place)
        elif after != before:
            file.write_text(after, encoding="utf-8")
    if stale:
        sys.exit(f"tables in {', '.join(stale)} are not what results/ says: run python benchmarks/tables.py")


if __name__ == "__main__":
    main()
