"""Every published figure that `report` prints, in every format, is the one in the paper's source."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from randslot.evaluation.published import TASKS
from randslot.evaluation.report import make_report

V1, V2, V3 = TASKS
SOURCE = (Path(__file__).parent / "data" / "paper_tables.tex").read_text(encoding="utf-8")
BACKBONES = {"3B": "Qwen2.5-VL-3B", "4B": "Qwen3-VL-4B"}
STRATEGIES = ["RandSlot", "Zero-Feedback", "Fixed-Random", "Learned-Feedback", "Direct-Feedback"]
QUERY_VECTORS = {"RandSlot": "4", "CausalEmbed": "16", "BiQwen2": "1"}  # from the note below the first table
LONG_NAMES = {
    "Human Resources": "HR",
    "Finance-EN": "Fin-E",
    "Industrial": "Ind.",
    "Pharmaceuticals": "Phar.",
    "Computer Science": "C.S.",
    "Energy": "Ener.",
    "Physics": "Phys.",
    "Finance-FR": "Fin-F",
    "Macro Average": "avg",
}
Row = tuple[str, str]  # method and vectors, as reports name them
Figures = dict[str, str]  # by task or "avg", as printed


def read_source(label: str) -> list[list[str]]:
    """Return the cells of a table's body, without commands for looks."""
    body = SOURCE.split(rf"\label{{tab:{label}}}")[1].split(r"\midrule", 1)[1].split(r"\bottomrule")[0]
    body = re.sub(r"\\midrule|\$\^\\dagger\$|\\textbf|\\mathbf|[${}]", "", body)
    body = body.replace(r"\pm", "±").replace(r"\method", "RandSlot")
    return [[cell.strip() for cell in line.split("&")] for line in body.split(r"\\") if line.strip()]


def read_columns(label: str, methods: list[str]) -> dict[str, Figures]:
    """Return the figures of each method of a table that has tasks as rows."""
    found: dict[str, Figures] = {method: {} for method in methods}
    for task, *cells in read_source(label):
        for method, cell in zip(methods, cells, strict=False):
            found[method][LONG_NAMES.get(task, "avg" if task == "Average" else task)] = cell
    return found


def expect(benchmark: str) -> dict[Row, Figures]:
    """Return every row that the paper has for a benchmark."""
    rows: dict[Row, Figures] = {}

    def add(method: str, vectors: str, figures: Figures) -> None:
        known = rows.setdefault((method, vectors), {})
        assert {**known, **figures} == {**figures, **known}  # the paper prints some rows several times
        known |= figures

    heads = [*TASKS[benchmark], "avg"]
    for name, pages, *cells in read_source("main-v1" if benchmark == V1 else "main-v32"):
        method = re.sub(r"RS \((\w+)\)", lambda found: f"RandSlot ({BACKBONES[found[1]]})", name)
        own = cells[9:] if benchmark == V2 else cells[: len(heads)]
        add(method, f"{QUERY_VECTORS.get(method.split()[0], '-')}/{pages}", dict(zip(heads, own, strict=True)))
    if benchmark != V3:
        return rows
    for backbone, method, *cells in read_source("feedback"):
        add(f"{method} ({BACKBONES[backbone]})", "4/4", dict(zip(heads, cells, strict=True)))
    for backbone, _, inference, *cells in read_source("train-infer"):
        short = inference.partition("(")[2].rstrip(")")
        method = {"RS-R": "RandSlot", "Z": "Zero-Feedback"}.get(short, short)
        add(f"{method} ({BACKBONES[backbone]})", "4/4", dict(zip(heads, cells, strict=True)))
    for label, backbone, methods in [
        ("tasks-3b", "3B", STRATEGIES),
        ("tasks-3b-zero", "3B", ["RandSlot", "Zero-Feedback", "RS-Z"]),
        ("tasks-4b", "4B", [*STRATEGIES, "RS-Z"]),
    ]:
        for method, figures in read_columns(label, methods).items():
            add(f"{method} ({BACKBONES[backbone]})", "4/4", figures)
    for method, figures in read_columns("seed-robustness", ["Zero-Feedback", "RandSlot"]).items():
        add(f"{method} (Qwen2.5-VL-3B), mean of 3 seeds", "4/4", figures)
    return rows


def write_results(folder: Path, benchmark: str) -> None:
    """Write results of one's own, so that there is something to report."""
    for task in TASKS[benchmark]:
        result = {"model": "mine", "benchmark": benchmark, "task": task, "settings": {"seed": 42}, "how": "zero"}
        result |= {"is_drawn": False, "has_prefixes": True}
        result |= {"weights": "w", "cache": "", "vectors": {}, "subsets": {}, "counts": {"query": 4, "page": 4}}
        (folder / f"{task}.json").write_text(json.dumps(result | {"ndcg@5": 0.5, "ndcg@10": 0.5}))


def read_table(text: str) -> dict[Row, Figures]:
    """Return the published rows of the first table, in Markdown or LaTeX."""
    cells = []
    for line in text.replace(r"$\pm$", "±").splitlines():
        if line.startswith("|"):
            cells.append([cell.strip() for cell in line.strip("|").split("|")])
        elif line.endswith(r"\\"):
            cells.append([cell.strip() for cell in line.removesuffix(r"\\").split("&")])
    heads, *lines = cells
    found = {}
    for line in lines:
        row = dict(zip(heads, line, strict=True))
        if row["source"] not in ("yours", "---"):
            found[row["method"], row["vectors"]] = {task: row[task] for task in heads[4:-1]}
    return found


@pytest.mark.parametrize("benchmark", TASKS)
@pytest.mark.parametrize("style", ["md", "latex"])
def test_printed_figures_are_those_of_the_paper(benchmark, style, tmp_path):
    write_results(tmp_path, benchmark)
    printed = make_report(tmp_path, style)
    assert read_table(printed.partition("nDCG@10")[0]) == expect(benchmark)


@pytest.mark.parametrize("benchmark", TASKS)
def test_figures_for_programs_are_those_of_the_paper(benchmark, tmp_path):
    write_results(tmp_path, benchmark)
    found: dict[Row, Figures] = {}
    for row in csv.DictReader(make_report(tmp_path, "csv").splitlines()):
        if row["source"] == "yours":
            continue
        figure = f"{float(row['mean']):.1f}"
        if row["deviation"]:
            figure = f"{float(row['mean']):.2f} ± {float(row['deviation']):.2f}"
        assert (row["runs"] == "3") == bool(row["deviation"])
        assert float(row["mean"]) == float(figure.split()[0])  # nothing behind what the paper prints
        found.setdefault((row["method"], row["vectors"]), {})[row["task"]] = figure
    assert found == expect(benchmark)


@pytest.mark.parametrize("style", ["md", "latex", "csv"])
def test_a_contradiction_of_the_source_has_a_note(style, tmp_path):
    """The paper prints 46.4 for BiQwen2 on V2, where its four scores average 47.4."""
    note = "the paper prints an average of 46.4; its scores average 47.4"
    (tmp_path / "v1").mkdir()
    write_results(tmp_path / "v1", V1)
    assert "the paper prints" not in make_report(tmp_path / "v1", style)
    write_results(tmp_path, V2)
    assert make_report(tmp_path, style).count(note) == 1
