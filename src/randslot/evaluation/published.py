"""The paper's published numbers: scores in percent, costs, readout diagnostics.

published.json keys them by the paper's numbering ("table1", "figure4"). Methods are rows, even where the paper prints
them as columns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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
    """One method in one table; None where the paper gives no value.

    RandSlot is random input at training and inference (RS-R), RS-Z the same encoder with zero input at inference.
    """

    table: str
    backbone: str | None
    method: str
    query_vectors: int | None
    page_vectors: int | None
    source: str  # "this paper", or "CausalEmbed" for results from that paper
    seeds: Sequence[int] = ()  # if several, scores are means
    side: str | None = None  # "query" or "page", for readouts of one side
    scores: Mapping[str, float] = field(default_factory=dict)  # by task
    averages: Mapping[str, float] = field(default_factory=dict)  # by benchmark, as printed
    deviations: Mapping[str, float] = field(default_factory=dict)  # of the scores, over seeds
    average_deviations: Mapping[str, float] = field(default_factory=dict)
    values: Mapping[str, float | None] = field(default_factory=dict)  # other values: costs, diagnostics


@dataclass(frozen=True)
class PublishedTable:
    """One table of the paper; columns: the names of its scores or values, without averages.

    differences: a method's scores and averages minus another's, as printed, in points.
    """

    key: str
    label: str
    caption: str
    benchmarks: Sequence[str]
    metric: str | None
    columns: Sequence[str]
    rows: Sequence[PublishedRow]
    differences: Sequence[Mapping[str, Any]] = ()
    note: str = ""


@cache
def published_tables() -> dict[str, PublishedTable]:
    """Return the paper's tables by key, in the paper's order; then those of its figures and text."""
    text = resources.files(__package__).joinpath("published.json").read_text(encoding="utf-8")
    tables = {}
    for key, table in json.loads(text)["tables"].items():
        rows = [PublishedRow(table=key, **row) for row in table.pop("rows")]
        tables[key] = PublishedTable(key=key, rows=rows, **table)
    return tables


def rows_for(benchmark: str) -> list[PublishedRow]:
    """Return the rows with every task of a benchmark, without other tasks and without repeated rows."""
    found: dict[tuple[object, ...], PublishedRow] = {}
    for table in published_tables().values():
        for row in table.rows:
            if row.scores.keys() >= set(TASKS[benchmark]):
                scores = {task: row.scores[task] for task in TASKS[benchmark]}
                averages = {name: value for name, value in row.averages.items() if name == benchmark}
                same = (row.backbone, row.method, row.query_vectors, row.page_vectors, *row.seeds)
                found.setdefault(same, replace(row, scores=scores, averages=averages))
    return list(found.values())
