"""Tables as Markdown, CSV or LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .errors import UsageError

Cell = str | int | float | None
STYLES = ("md", "csv", "latex")


@dataclass(frozen=True)
class Table:
    """Rows under heads; numbers are rounded to `digits` when shown, but not in CSV. None is shown as "-"."""

    title: str
    heads: list[str]
    rows: Sequence[Sequence[Cell]]
    digits: int = 1

    def show(self, cell: Cell) -> str:
        """Return a cell as text."""
        if isinstance(cell, float):
            return f"{cell:.{self.digits}f}"
        return "-" if cell is None else str(cell)


def write_table(table: Table, style: str) -> str:
    """Return a table as text.

    Errors: UsageError for a style that is not md, csv or latex.
    """
    check_style(style)
    writers: dict[str, Callable[[Table], str]] = {"md": _markdown, "csv": _csv, "latex": _latex}
    return writers[style](table)


def check_style(style: str) -> None:
    """Refuse a style that is not md, csv or latex.

    Errors: UsageError.
    """
    if style not in STYLES:
        raise UsageError(f"format {style!r} is not one of {', '.join(STYLES)}")


def _markdown(table: Table) -> str:
    lines = [table.heads, ["---"] * len(table.heads), *([table.show(cell) for cell in row] for row in table.rows)]
    cells = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return f"## {table.title}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in cells)


def _csv(table: Table) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerows([table.heads, *table.rows])
    return buffer.getvalue()


def _latex(table: Table) -> str:
    def escape(text: str) -> str:
        special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}
        return "".join(special.get(char, f"\\{char}" if char in "&%_#{}$" else char) for char in text)

    texts = [table.heads, *([table.show(cell) for cell in row] for row in table.rows)]
    lines = [" & ".join(escape(text) for text in row) + r" \\" for row in texts]
    left = [all(isinstance(row[column], str) for row in table.rows) for column in range(len(table.heads))]
    return "\n".join(
        [
            f"% {table.title}",
            rf"\begin{{tabular}}{{{''.join('l' if text else 'r' for text in left)}}}",
            r"\toprule",
            lines[0],
            r"\midrule",
            *lines[1:],
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )
