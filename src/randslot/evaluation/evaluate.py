"""Evaluate a model: encode each page once, score in blocks, keep nDCG of every task in a file.

Shapes: Q queries, P pages.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from ..errors import RandSlotError, UsageError
from ..model import open_torch_model
from ..model.batching import Ahead, in_groups, return_freed_memory
from ..model.model import RandSlotModel
from ..model.preprocessing import PreparedPage
from ..model.reader import SIDES, Side, is_url
from ..model.sentence_model import EmbeddingModel
from ..pages import NoTextError, open_page, read_page_text
from .cache import Judged, VectorCache, open_cache
from .metrics import ndcg_of_each
from .published import TASKS
from .result_files import CUTS, Result, SubsetResult, average_queries, average_subsets, name_file
from .tasks import Pages, Subset, Task, content_key

Caches = dict[Side, VectorCache]


@dataclass(frozen=True)
class Evaluation:
    """One model, under its settings, that is evaluated on tasks.

    name: the model in tables. output: the folder of results, one file per task. cache: the folder of vectors.
    """

    model: RandSlotModel | EmbeddingModel
    name: str
    output: Path
    cache: Path
    batch: int = 8
    console: Console = field(default_factory=lambda: Console(stderr=True, highlight=False, soft_wrap=True))

    def run(self, tasks: Sequence[Task]) -> list[Result]:
        """Evaluate on each task, write its scores to a file, and return them."""
        settings = self.model.settings
        if settings.note:
            self.console.print(f"note: {self.name} {settings.note}")
        weights = self.model.weights_key
        caches = {side: open_cache(self.cache, weights, settings, side) for side in SIDES}
        return [self._run_task(task, weights, caches) for task in tasks]

    def _run_task(self, task: Task, weights: str, caches: Caches) -> Result:
        where = f"{task.dataset} at revision {task.revision}" if task.revision else task.dataset
        self.console.print(f"evaluating on {task.name}: {where}")
        subsets = {subset.name: self._run_subset(task.name, subset, caches) for subset in task.subsets()}
        settings = self.model.settings
        counts = {side: settings.num_vectors(side) for side in SIDES}
        budget = "-".join(f"{side[0]}{num or 'all'}" for side, num in counts.items())
        setting = f"{settings.label}-{budget}-seed{settings.seed}-{weights[:8]}"
        file = name_file(self.output, self.name, setting, f"{task.benchmark}-{task.name}")
        result = Result(
            file=file,
            model=self.name,
            weights=weights,
            settings=asdict(settings),
            label=settings.label,
            counts=counts,
            benchmark=task.benchmark,
            task=task.name,
            dataset=task.dataset,
            revision=task.revision,
            ndcg=average_subsets(subsets),
            subsets=subsets,
            vectors={side: caches[side].folder.relative_to(self.cache).as_posix() for side in SIDES},
            cache=Path(os.path.relpath(self.cache, file.parent)).as_posix(),
        )
        result.write()
        return result

    def _run_subset(self, task: str, subset: Subset, caches: Caches) -> SubsetResult:
        what, num_pages = f"{task} {subset.name}", len(subset.pages.ids)
        if subset.left_out:
            self.console.print(f"{what}: skipping {subset.left_out} queries without a relevant page")
        ids, page_keys = self._encode_pages(what, subset.pages, caches["page"])
        if len(ids) < num_pages:
            self.console.print(f"{what}: {num_pages - len(ids)} pages have no text and cannot be found")
        query_keys = self._encode_queries(list(subset.queries.values()), caches["query"])
        settings = self.model.settings
        queries = caches["query"].read(query_keys, settings.num_vectors("query"))
        scores_QP = torch.empty(len(query_keys), len(page_keys))
        for indexes, pages in caches["page"].blocks(page_keys, settings.num_vectors("page")):
            scores_QP[:, indexes] = self.model.similarity(queries, pages, device=self.model.device)
        grades = [subset.grades[id] for id in subset.queries]
        each = {cut: ndcg_of_each(scores_QP.numpy(), ids, grades, cut) for cut in CUTS}
        judged = Judged(ids, page_keys, list(subset.queries), query_keys, grades)
        return average_queries(each, num_pages, judged.write(self.cache), subset.key())

    def _encode_queries(self, texts: list[str], cache: VectorCache) -> list[str]:
        """Encode the queries that are not cached, and return all keys."""
        keys = [content_key(text.encode()) for text in texts]
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in cache}
        for batch in in_groups(missing, 4 * self.batch):
            cache.add(batch, self.model.encode_query([missing[key] for key in batch], batch_size=len(batch)))
        cache.flush()
        return keys

    def _encode_pages(self, what: str, pages: Pages, cache: VectorCache) -> tuple[list[str], list[str]]:
        """Encode the pages that are not cached, opening the next ones meanwhile; return all ids and their keys.

        If the model reads text, pages without text are left out: they have no vectors, so no search finds them.
        """
        keys = [pages.key(i) for i in range(len(pages.ids))]
        missing = list({key: i for i, key in enumerate(keys) if key not in cache}.values())
        size = 2 * self.batch  # two batches are gathered, so that pages of one length come together
        speed = TextColumn("{task.fields[speed]}")
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), speed, TimeRemainingColumn()
        with Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal) as progress:
            bar = progress.add_task(what, total=len(missing), speed="")
            opened = Ahead(lambda i: self._open(pages, i), missing, depth=2 * size)
            try:
                for group in in_groups(opened, size):
                    found = {i: page for i, page in group if page is not None}
                    cache.add([keys[i] for i in found], self._encode(list(found.values())))
                    progress.update(bar, advance=len(group))
                    progress.update(bar, speed=f"{progress.tasks[bar].speed or 0:.1f} pages/s")
                    return_freed_memory()
            finally:
                cache.flush()  # also when stopped, or a page is damaged
        readable = [i for i, key in enumerate(keys) if key in cache]
        if not readable:
            raise RandSlotError(f"{what}: no page has text, and {self.name} reads text")
        return [pages.ids[i] for i in readable], [keys[i] for i in readable]

    def _open(self, pages: Pages, i: int) -> Any:
        """Open and preprocess a page as the model reads it; None if it lacks the text for it."""
        page = pages.open(i)
        try:
            if self.model.reads == "text":
                return read_page_text(page)
            image = open_page(page, self.model.page_pixels)
        except NoTextError:
            return None
        except RandSlotError as error:
            raise RandSlotError(f"page {pages.ids[i]}: {error}") from error
        return self.model.prepare_page(image) if isinstance(self.model, RandSlotModel) else image

    def _encode(self, pages: list[Any]) -> list[Tensor]:
        """Return the vectors of opened pages, in their order."""
        if not pages:
            return []
        if isinstance(self.model, RandSlotModel) and isinstance(pages[0], PreparedPage):
            return self.model.encode_prepared(pages, self.batch)
        return list(self.model.encode_document(pages, batch_size=self.batch))


def evaluate_model(
    model: str,
    tasks: Sequence[Task],
    output: Path,
    *,
    settings: Mapping[str, Any],
    name: str | None = None,
    cache: Path | None = None,
    batch: int = 8,
    as_published: bool = False,
) -> list[Result]:
    """Open a model by its folder, hub id or address, and evaluate it.

    settings: changes to the model's own, where not None. name: the model in tables. cache: the folder of vectors, by
    default beside the results. as_published: on benchmarks of the paper's tables, evaluate a model that was trained
    with random slots twice, as the paper does: with zeros in their place (RS-Z), and with them (RS-R).
    """
    cache = cache or output / "vectors"
    for folder in (output, cache):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot write into {folder}: {error.strerror or error}") from error
    opened = open_torch_model(model, **settings)
    evaluation = Evaluation(opened, name or model, output, cache, batch)
    results = evaluation.run(tasks)
    published = [task for task in tasks if task.benchmark in TASKS]
    if not as_published or not published or settings.get("inference") is not None:
        return results
    if isinstance(opened, RandSlotModel) and not is_url(model) and opened.settings.inference != opened.settings.slots:
        opened.use(inference=opened.settings.slots)
        results += evaluation.run(published)
    return results
