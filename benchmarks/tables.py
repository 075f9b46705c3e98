"""Fill the tables of the docs from results/, between `<!-- table: NAME -->` and `<!-- end -->`.

python benchmarks/tables.py              # rewrite them
python benchmarks/tables.py --check      # fail if one is stale
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
PLACES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "research").glob("*.md"))]
# Tables made from the rows of another one.
SOURCES = {"plan": "search", "reader-short": "reader-test"}
# Scripts moved since they wrote their rows.
MOVED = ("embedded", "encoding", "families", "growth", "imports", "languages", "neighbours", "ocr", "text", "waiting")
# Scripts renamed since they wrote their rows.
RENAMED = {
    "benchmarks/compare.py": "benchmarks/manuals.py --model",
    "benchmarks/feel.py": "benchmarks/serve.py waits",
    "benchmarks/fits.py": "benchmarks/training.py fits",
    "benchmarks/loading.py": "benchmarks/scale.py load",
    "benchmarks/scale.py": "benchmarks/scale.py hand",
    "benchmarks/sketches.py": "benchmarks/scale.py sketches",
    "benchmarks/training.py": "benchmarks/training.py steps",
    "benchmarks/training_count.py": "benchmarks/training.py count",
} | {f"benchmarks/{name}.py": f"-m research.experiments.{name}" for name in MOVED}
Rows = list[dict[str, Any]]


# -- transformations of rows


def shorten_reader(rows: Rows) -> Rows:
    """Return words, and words with the small reader, on all questions of the test half: a column per language."""
    chosen = [row for row in rows if (row["questions"], row["search"]) == ("with more", "both")]
    mean = next(row for row in chosen if row["language"] == "mean over languages")
    languages = chosen[: chosen.index(mean)]
    short = []
    for search, column in (("words", "words"), ("words and use-multilingual", "nDCG@5")):
        row: dict[str, Any] = {"search": search, "nDCG@5": mean[column]}
        short.append(row | {f"{one['language']} ({one['number']} questions)": one[column] for one in languages})
    return short


def make_plan(rows: Rows) -> Rows:
    """Return the resources by number of pages: measured by the search benchmark, and extrapolated beyond that.

    Disk and search time grow linearly with the pages; cores share the time. A code has one bit per dimension.
    """
    measured = [row for row in rows if row.get("way") == "randslot, default" and row["size"] == "4 x 2048"]
    largest = max(measured, key=lambda row: row["pages"])
    vectors, codes = 4 * 2048 * 2 / 1e9, 4 * 2048 / 8 / 1e9  # GB per page: float16, and one bit per dimension

    def plan(pages: int, where: str, nodes: int, cores: int, shards: int, copies: int) -> dict[str, Any]:
        times = pages / largest["pages"]
        return {
            "pages": f"{pages:,}",
            "where": where,
            "nodes x cores": f"{nodes} x {cores}",
            "shards x copies": f"{shards} x {copies}",
            "vectors, GB": pages * vectors,
            "on disk, GB": times * copies * largest["MB on disk"] / 1000,
            "codes in memory, GB": pages * copies * codes,
            "a search that compares all codes, ms": times * largest["p50 ms"] / (nodes * cores),
            "time and disk are": "extrapolated",
        }

    planned = []
    for row in measured:
        known = {"on disk, GB": row["MB on disk"] / 1000, "a search that compares all codes, ms": row["p50 ms"]}
        planned.append(plan(row["pages"], "in the process", 1, 1, 1, 1) | known | {"time and disk are": "measured"})
    planned.append(plan(1_000_000, "one server", 1, 8, 4, 1))
    planned.append(plan(100_000_000, "a cluster", 8, 32, 32, 2))
    return planned


def fit_exponent(pages: list[int], times: list[float]) -> float:
    """Return the exponent of times as a power of the number of pages."""
    return float(np.polyfit(np.log(pages), np.log(times), 1)[0])


def show_growth(rows: Rows) -> Rows:
    """Return a row per way and number of pages: the fastest with recall@5 of 0.98, else the one with the best recall.

    Also the exponent by which the time of those with enough recall grows with the pages.
    """
    groups: dict[tuple[Any, ...], Rows] = {}
    for row in rows:
        groups.setdefault((row["vectors"], row["size"], row["way"], row["pages"]), []).append(row)
    shown = []
    enough: dict[tuple[Any, ...], Rows] = {}
    for (vectors, size, way, _), group in sorted(groups.items()):
        right = [row for row in group if row["recall@5"] >= 0.98]
        best = max(group, key=lambda row: (row["recall@5"], -row["CPU ms"]))
        row = min(right, key=lambda row: row["CPU ms"]) if right else best
        if right:
            enough.setdefault((f"{vectors}, {size}", way), []).append(row)
        shown.append(
            {
                "vectors": f"{row['vectors']}, {row['size']}",
                "way": row["way"],
                "pages": f"{row['pages']:,}",
                "ef": row["ef"] or "",
                "CPU ms a search": row["CPU ms"],
                "recall@5": row["recall@5"],
                "CPU ms, a tenth of the files": row["CPU ms, a tenth"],
                "recall@5, a tenth of the files": row["recall@5, a tenth"],
                "recall@5, a hundredth": row["recall@5, a hundredth"],
                "CPU s to build": row["build CPU s"],
                "MB on disk": row["MB on disk"],
                "peak MB": row["own MB"],
            }
        )
    for (name, way), group in enough.items():
        if len(group) > 1:
            pages = [row["pages"] for row in group]
            power = fit_exponent(pages, [row["CPU ms"] for row in group])
            numbers = f"{pages[0]:,} to {pages[-1]:,}"
            shown.append({"vectors": name, "way": way, "pages": numbers, "time grows by a power of": power})
    return shown


def pick(*columns: str, **values: Any) -> Callable[[Rows], Rows]:
    """Return a function that selects columns of rows that have them and match these values in other columns."""

    def choose(rows: Rows) -> Rows:
        found = [row for row in rows if all(head in row for head in columns)]
        found = [row for row in found if all(row[head] == value for head, value in values.items())]
        return [{head: row[head] for head in columns} for row in found]

    return choose


def join(*choices: Callable[[Rows], Rows]) -> Callable[[Rows], Rows]:
    """Return a function that joins what several functions select."""
    return lambda rows: [row for choose in choices for row in choose(rows)]


def leave_out(word: str, choose: Callable[[Rows], Rows] = list) -> Callable[[Rows], Rows]:
    """Return a function that drops rows with a word in their first column."""
    return lambda rows: [row for row in choose(rows) if word not in str(next(iter(row.values())))]


def keep_ways(*ways: str) -> Callable[[Rows], Rows]:
    """Return a function that keeps some ways to search vectors, over the most pages."""
    return lambda rows: [row for row in SEARCH(rows) if row["way"] in ways]


SEARCH = pick("way", "p50 ms", "p95 ms", "MB on disk", "recall@5", pages=100_000, size="4 x 2048")
OTHER_ENGINES = ("maxsim-cpu, fp32", "LanceDB multivector, fp16", "qdrant-client local mode")
PEERS = ("set", "engine", "index s", "first hit s", "p50 ms", "p95 ms", "nDCG@5", "nDCG@5 of documents")
CHOICES: dict[str, Callable[[Rows], Rows]] = {
    "plan": make_plan,
    "reader-short": shorten_reader,
    "growth": show_growth,
    "sketches-short": pick("where", "vectors", "pages", "recall@5", "CPU ms", "CPU ms of all pages", "MB on disk"),
    "compare-short": leave_out("embedded", pick("search", "nDCG@5", "minus words", "from", "to", "verdict")),
    "words-speed-short": pick("engine", "bytes a page", "CPU p50 ms", "p95 ms", "phrase p50 ms", pages=100_000),
    "peers-short": pick(*PEERS, "disk MB"),
    "peers-test-short": pick(*PEERS),
    "ocr-short": pick("engine", "recall", "precision", "CPU s a page", "peak MB", image="scan", megapixels=2.0),
    "codes-short": pick("vectors", "CPU ms of the default", "CPU ms exact", "times faster", "recall@5 of the default"),
    "search-short": SEARCH,
    "search-peers": keep_ways("randslot, default", *OTHER_ENGINES),
    "serve-questions-short": pick("what", "clients", "errors", "searches a second", "p50 ms", "p95 ms", "CPU ms"),
    "serve-short": pick("what", "clients", "errors", "searches a second", "p50 ms", "p95 ms", "CPU ms"),
    "feel-short": pick("what", "wall s", "CPU s"),
    "page-short": join(
        pick("what", "median ms", "best ms"),
        pick("page KB", "answers and pictures KB", "whole hits on 1440 x 900"),
        pick("axe, views", "serious findings"),
    ),
    "fits-short": pick("recipe", "weights", "activations", "all", "pages at once in 24 GB", "all in float32 on a CPU"),
}


# -- tables


def make_table(name: str) -> str:
    """Return the Markdown of one table: its rows by kind, then their provenance."""
    file = ROOT / "results" / f"{SOURCES.get(name, name.removesuffix('-short'))}.json"
    if not file.is_file():
        sys.exit(f"no {file}: run python benchmarks/{name.split('-')[0]}.py")
    record = json.loads(file.read_text(encoding="utf-8"))
    rows = CHOICES.get(name, list)(record["rows"])
    lines = []
    for heads in dict.fromkeys(tuple(row) for row in rows):
        lines += [heads, ["---"] * len(heads)]
        lines += [[_show(row[head]) for head in heads] for row in rows if tuple(row) == heads]
        lines.append([])
    machine = record["machine"]
    made = f"{describe_command(record['command'])} at commit {record['commit']}, {record['date']}: "
    threads = "1 thread" if machine["threads"] == 1 else f"{machine['threads']} threads"
    made += f"{machine['processor']}, {threads}, torch {machine['torch']}.\n"
    return "".join(f"| {' | '.join(line)} |\n" if line else "\n" for line in lines) + made


def describe_command(command: str) -> str:
    """Return a command as it was run, and its new name if the script was renamed."""
    for old, new in RENAMED.items():
        if f"python {old}" in command and f"python {new}" not in command:
            return f"`{command}` (now `python {new}`)"
    return f"`{command}`"


def _show(value: Any) -> str:
    if not isinstance(value, float):
        return "" if value is None else str(value)
    if value == 0:
        return "0"
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def main() -> None:
    marked = re.compile(r"(<!-- table: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
    stale = []
    for file in PLACES:
        before = file.read_text(encoding="utf-8")
        after = marked.sub(lambda found: f"{found[1]}{make_table(found['name'])}{found[3]}", before)
        if after != before and "--check" in sys.argv:
            stale.append(file.relative_to(ROOT).as_posix())
        elif after != before:
            file.write_text(after, encoding="utf-8")
    if stale:
        sys.exit(f"tables in {', '.join(stale)} are stale. Run python benchmarks/tables.py")


if __name__ == "__main__":
    main()
