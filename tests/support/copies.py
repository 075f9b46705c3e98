"""Small copies of ViDoRe repositories in the exact layouts of V1, V2 and V3, with pages from the sample generator."""

from __future__ import annotations

from pathlib import Path

import pypdfium2 as pdfium
from datasets import Dataset, Features, Image, Value
from PIL import Image as PillowImage

from research.samples.drawing import draw_report
from research.samples.reports import make_reports
from research.samples.sets import ask_all, page_ids

LANGUAGES = ("english", "french", "german", "italian", "portuguese", "spanish")


def make_content(num_reports: int = 4) -> tuple[list[PillowImage.Image], list[tuple[str, dict[int, int]]]]:
    """Return pages, and questions with grades by the page's number."""
    reports = list(make_reports(num_reports, split="test"))
    numbers = {id: i for i, id in enumerate(id for report in reports for id in page_ids(report))}
    images = []
    for report in reports:
        with pdfium.PdfDocument(draw_report(report)) as pdf:
            images += [page.render(scale=0.5).to_pil() for page in pdf]
    asked = ask_all(reports)[::3]
    return images, [(one.question.text, {numbers[id]: grade for id, grade in one.grades.items()}) for one in asked]


def write_repository(folder: Path, parts: dict[str, Dataset]) -> None:
    """Write the configs of a dataset repository as parquet, with a README that names them, as on the hub."""
    folder.mkdir(parents=True)
    lines = ["---", "configs:"]
    for name, dataset in parts.items():
        (folder / name).mkdir()
        dataset.to_parquet(folder / name / "test-00000-of-00001.parquet")
        lines += [f"- config_name: {name}", "  data_files:", "  - split: test", f"    path: {name}/test-*.parquet"]
    (folder / "README.md").write_text("\n".join([*lines, "---", ""]), encoding="utf-8")


def make_parts(
    images: list[PillowImage.Image], queries: list[tuple[str, str, dict[int, int]]], query_id: str, page_id: str
) -> dict[str, Dataset]:
    """Return the three tables of a repository with numbers as ids; queries: language, text and grades by page."""
    number = Value("int64")
    named = {"query": Value("string"), "language": Value("string"), query_id: number}
    rows, rels = [], []
    for q, (language, text, grades) in enumerate(queries):
        rows.append({query_id: q, "query": _say(language, text), "language": language})
        rels += [{query_id: q, page_id: page, "score": grade} for page, grade in grades.items()]
    pages = [{page_id: i, "image": image} for i, image in enumerate(images)]
    return {
        "corpus": Dataset.from_list(pages, features=Features({page_id: number, "image": Image()})),
        "queries": Dataset.from_list(rows, features=Features(named)),
        "qrels": Dataset.from_list(rels, features=Features({query_id: number, page_id: number, "score": number})),
    }


def write_v1(root: Path, name: str = "arxivqa_test_subsampled_beir") -> Path:
    """V1: hyphens, numbers as ids, one language, all grades 1; the last query has no relevant page."""
    images, asked = make_content()
    queries = [("english", text, {p: 1 for p, grade in grades.items() if grade == 2}) for text, grades in asked]
    parts = make_parts(images, [*queries, ("english", "nothing has this", {})], "query-id", "corpus-id")
    parts["queries"] = parts["queries"].remove_columns("language")
    write_repository(root / name, parts)
    return root


def write_v2(root: Path, name: str = "esg_reports_v2") -> Path:
    """V2: hyphens, four languages in one list of queries, grades."""
    images, asked = make_content()
    languages = ("french", "spanish", "english", "german")
    queries = [(language, text, grades) for language in languages for text, grades in asked]
    write_repository(root / name, make_parts(images, queries, "query-id", "corpus-id"))
    return root


def write_v3(root: Path, name: str = "vidore_v3_hr_mteb_format") -> Path:
    """V3 as mteb keeps it: a config of each kind for each language, text ids, grades 1 and 2."""
    images, asked = make_content()
    pages = [{"id": f"corpus-test-{i}", "image": image} for i, image in enumerate(images)]
    parts: dict[str, Dataset] = {}
    for language in LANGUAGES:
        queries, rels = [], []
        for q, (text, grades) in enumerate(asked):
            id = f"query-test-{language}-{q}"
            queries.append({"id": id, "text": _say(language, text)})
            rels += [{"query-id": id, "corpus-id": f"corpus-test-{p}", "score": grade} for p, grade in grades.items()]
        features = Features({"id": Value("string"), "image": Image()})
        parts[f"{language}-corpus"] = Dataset.from_list(pages, features=features)
        parts[f"{language}-queries"] = Dataset.from_list(queries)
        parts[f"{language}-qrels"] = Dataset.from_list(rels)
    write_repository(root / name, parts)
    return root


def _say(language: str, text: str) -> str:
    """Say it in another language: another string is all that matters here."""
    return text if language == "english" else f"{text} ({language})"
