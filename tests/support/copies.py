"""Small copies of ViDoRe repositories in the exact layouts of V1, V2 and V3, with pages from the sample generator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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


def table(columns: dict[str, list[Any]], **types: Any) -> Dataset:
    features = {name: types.get(name, Value("string")) for name in columns}
    return Dataset.from_dict(columns, features=Features(features))


def write_v1(root: Path, name: str = "arxivqa_test_subsampled_beir") -> Path:
    """V1: hyphens, numbers as ids, one language, all grades 1; the last query has no relevant page."""
    images, asked = make_content()
    number = Value("int64")
    rels = [(q, p) for q, (_, grades) in enumerate(asked) for p, grade in grades.items() if grade == 2]
    write_repository(
        root / name,
        {
            "corpus": table(
                {"corpus-id": list(range(len(images))), "image": images}, **{"corpus-id": number}, image=Image()
            ),
            "queries": table(
                {"query-id": list(range(len(asked) + 1)), "query": [text for text, _ in asked] + ["nothing has this"]},
                **{"query-id": number},
            ),
            "qrels": table(
                {"query-id": [q for q, _ in rels], "corpus-id": [p for _, p in rels], "score": [1] * len(rels)},
                **{"query-id": number, "corpus-id": number, "score": number},
            ),
        },
    )
    return root


def write_v2(root: Path, name: str = "esg_reports_v2") -> Path:
    """V2: hyphens, four languages in one list of queries, grades."""
    images, asked = make_content()
    number = Value("int64")
    languages = ("french", "spanish", "english", "german")
    queries = [(language, text, grades) for language in languages for text, grades in asked]
    rels = [(q, p, grade) for q, (_, _, grades) in enumerate(queries) for p, grade in grades.items()]
    write_repository(
        root / name,
        {
            "corpus": table(
                {"corpus-id": list(range(len(images))), "image": images}, **{"corpus-id": number}, image=Image()
            ),
            "queries": table(
                {
                    "query-id": list(range(len(queries))),
                    "query": [_say(language, text) for language, text, _ in queries],
                    "language": [language for language, _, _ in queries],
                },
                **{"query-id": number},
            ),
            "qrels": table(
                {
                    "query-id": [q for q, _, _ in rels],
                    "corpus-id": [p for _, p, _ in rels],
                    "score": [grade for _, _, grade in rels],
                },
                **{"query-id": number, "corpus-id": number, "score": number},
            ),
        },
    )
    return root


def write_v3(root: Path, name: str = "vidore_v3_hr_mteb_format") -> Path:
    """V3 as mteb keeps it: a config of each kind for each language, text ids, grades 1 and 2."""
    images, asked = make_content()
    parts: dict[str, Dataset] = {}
    for language in LANGUAGES:
        rels = [(q, p, grade) for q, (_, grades) in enumerate(asked) for p, grade in grades.items()]
        parts[f"{language}-corpus"] = table(
            {"id": [f"corpus-test-{i}" for i in range(len(images))], "image": images}, image=Image()
        )
        parts[f"{language}-queries"] = table(
            {
                "id": [f"query-test-{language}-{q}" for q in range(len(asked))],
                "text": [_say(language, text) for text, _ in asked],
            }
        )
        parts[f"{language}-qrels"] = table(
            {
                "query-id": [f"query-test-{language}-{q}" for q, _, _ in rels],
                "corpus-id": [f"corpus-test-{p}" for _, p, _ in rels],
                "score": [grade for _, _, grade in rels],
            },
            score=Value("int64"),
        )
    write_repository(root / name, parts)
    return root


def write_native_v3(root: Path, name: str = "vidore_v3_hr") -> Path:
    """V3 in its own layout: underscores, numbers as ids, six languages in one list of queries."""
    images, asked = make_content()
    number = Value("int64")
    queries = [(language, text, grades) for language in LANGUAGES for text, grades in asked]
    rels = [(q, p, grade) for q, (_, _, grades) in enumerate(queries) for p, grade in grades.items()]
    write_repository(
        root / name,
        {
            "corpus": table(
                {"corpus_id": list(range(len(images))), "image": images, "doc_id": ["x"] * len(images)},
                corpus_id=number,
                image=Image(),
            ),
            "queries": table(
                {
                    "query_id": list(range(len(queries))),
                    "query": [_say(language, text) for language, text, _ in queries],
                    "language": [language for language, _, _ in queries],
                },
                query_id=number,
            ),
            "qrels": table(
                {
                    "query_id": [q for q, _, _ in rels],
                    "corpus_id": [p for _, p, _ in rels],
                    "score": [grade for _, _, grade in rels],
                },
                query_id=number,
                corpus_id=number,
                score=number,
            ),
        },
    )
    return root


def _say(language: str, text: str) -> str:
    """Say it in another language: another string is all that matters here."""
    return text if language == "english" else f"{text} ({language})"
