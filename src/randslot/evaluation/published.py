"""The paper's published numbers, to show beside ours: scores in percent, costs, readout diagnostics.

They stand in published.json under the paper's own numbers ("table1", "figure4"). Methods are rows, also where the paper
prints them as columns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any

# The tasks of each benchmark under the paper's short names.
TASKS = {
    "ViDoRe(v1)": ("Arxiv", "Doc", "Info", "TabF", "TatD", "Shift", "Syn-AI", "Syn-En", "Syn-GR", "Syn-HI"),
    "ViDoRe(v2)": ("ESG", "Bio", "Econ", "ESG-H"),
    "ViDoRe(v3)": ("HR", "Fin-E", "Ind.", "Phar.", "C.S.", "Ener.", "Phys.", "Fin-F"),
}


@dataclass(frozen=True)
class PublishedRow:
    """One method in one table; None where the paper says nothing.

    RandSlot is random input at training and inference (RS-R), RS-Z the same encoder with zero input at inference.
    """

    table: str
    backbone: str | None
    method: str
    query_vectors: int | None
    page_vectors: int | None
    source: str  # "this paper", or "CausalEmbed" for what it takes from that paper
    seeds: tuple[int, ...] = ()  # several: scores are their means
    side: str | None = None  # "query" or "page", where a readout of one side is measured
    scores: Mapping[str, float] = field(default_factory=dict)  # by task
    averages: Mapping[str, float] = field(default_factory=dict)  # by benchmark, as printed
    deviations: Mapping[str, float] = field(default_factory=dict)  # of the scores, over seeds
    average_deviations: Mapping[str, float] = field(default_factory=dict)
    values: Mapping[str, float | None] = field(default_factory=dict)  # what is no task's score: costs, diagnostics


@dataclass(frozen=True)
class PublishedDifference:
    """A method's scores minus another's, as printed, in points."""

    method: str
    minus: str
    scores: Mapping[str, float]
    averages: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class PublishedTable:
    """One table of the paper; its columns name the scores or values of its rows, averages left out."""

    key: str
    label: str
    caption: str
    benchmarks: tuple[str, ...]
    metric: str | None
    columns: tuple[str, ...]
    rows: tuple[PublishedRow, ...]
    differences: tuple[PublishedDifference, ...] = ()
    note: str = ""


@cache
def published_tables() -> dict[str, PublishedTable]:
    """Return the paper's tables by key, in the paper's order; then what its figures and text add."""
    text = resources.files(__package__).joinpath("published.json").read_text(encoding="utf-8")
    return {key: _table(key, table) for key, table in json.loads(text)["tables"].items()}


def rows_for(benchmark: str) -> list[PublishedRow]:
    """Return the rows with every task of a benchmark, cut to it; of a row printed in several tables, the first."""
    tasks = TASKS[benchmark]
    found: dict[tuple[object, ...], PublishedRow] = {}
    for table in published_tables().values():
        for row in table.rows:
            if row.scores.keys() >= set(tasks):
                same = (row.backbone, row.method, row.query_vectors, row.page_vectors, row.seeds)
                found.setdefault(same, _cut(row, benchmark))
    return list(found.values())


def _cut(row: PublishedRow, benchmark: str) -> PublishedRow:
    tasks = TASKS[benchmark]
    return replace(
        row,
        scores={task: row.scores[task] for task in tasks},
        averages={name: value for name, value in row.averages.items() if name == benchmark},
    )


def _table(key: str, table: dict[str, Any]) -> PublishedTable:
    typed = {
        "benchmarks": tuple(table["benchmarks"]),
        "columns": tuple(table["columns"]),
        "rows": tuple(_row(key, row) for row in table["rows"]),
        "differences": tuple(PublishedDifference(**difference) for difference in table.get("differences", ())),
    }
    return PublishedTable(key=key, **(table | typed))


def _row(key: str, row: dict[str, Any]) -> PublishedRow:
    return PublishedRow(table=key, **(row | {"seeds": tuple(row.get("seeds", ()))}))
