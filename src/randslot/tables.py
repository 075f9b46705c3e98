"""Tables as Markdown, CSV or LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

Cell = str | int | float | None
Style = Literal["md", "csv", "latex"]


@dataclass(frozen=True)
class Table:
    """A table. Numbers are rounded to `digits`, but not in CSV; None is "-".

    note: a line below the table, not in CSV.
    """

    title: str
    heads: list[str]
    rows: Sequence[Sequence[Cell]]
    digits: int = 1
    note: str = ""

    def show(self, cell: Cell) -> str:
        """Format a cell."""
        if isinstance(cell, float):
            return f"{cell:.{self.digits}f}"
        return "-" if cell is None else str(cell)

    def drop_empty(self) -> Table:
        """Return the table without empty columns."""
        used = [i for i in range(len(self.heads)) if any(row[i] not in (None, "-") for row in self.rows)]
        rows = [[row[i] for i in used] for row in self.rows]
        return replace(self, heads=[self.heads[i] for i in used], rows=rows)


def write_table(table: Table, style: Style) -> str:
    """Format a table as Markdown, CSV or LaTeX."""
    if style == "csv":
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n").writerows([table.heads, *table.rows])
        return buffer.getvalue()
    texts = [[table.show(cell) for cell in row] for row in table.rows]
    if style == "latex":
        return _latex(table, texts)
    assert style == "md"
    lines = ""
    for row in (table.heads, ["---"] * len(table.heads), *texts):
        lines += "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n"
    return f"## {table.title}\n\n{lines}" + (f"\n{table.note}\n" if table.note else "")


def _latex(table: Table, texts: list[list[str]]) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}
    escapes = str.maketrans(special | {char: f"\\{char}" for char in "&%_#{}$"})
    heads, *lines = (" & ".join(cell.translate(escapes) for cell in row) + r" \\" for row in (table.heads, *texts))
    columns = ""
    for column in range(len(table.heads)):
        columns += "l" if all(isinstance(row[column], str) for row in table.rows) else "r"
    start = [f"% {table.title}", rf"\begin{{tabular}}{{{columns}}}", r"\toprule", heads, r"\midrule"]
    end = [r"\bottomrule", r"\end{tabular}"]
    if table.note:
        end += ["", rf"{{\footnotesize {table.note.translate(escapes)}}}"]
    return "\n".join([*start, *lines, *end, ""])
