"""Evaluate a model: encode each page once, score in blocks, write nDCG of every task to a file.

Shapes: Q queries, P pages.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor, distributed

from ..errors import RandSlotError, UsageError, in_one_line
from ..model import open_torch_model
from ..model.batching import batched, prefetch, return_freed_memory
from ..model.model import RandSlotModel
from ..model.preprocessing import PreparedPage
from ..model.reader import SIDES, Side, is_url
from ..model.sentence_model import EmbeddingModel, cut_strips
from ..model.text_reader import cut_evenly
from ..pages import NoTextError, open_page, read_page_text
from .cache import Judged, VectorCache, open_cache
from .metrics import ndcg_of_each
from .published import TASKS
from .result_files import CUTS, Result, SubsetResult, average_queries, average_subsets, result_path
from .tasks import Pages, Subset, Task, content_key

Caches = dict[Side, VectorCache]
T = TypeVar("T")


class Processes:
    """The processes that torchrun started, which share the encoding; usually one."""

    def __init__(self) -> None:
        self.rank, self.world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        if self.world > 1 and not distributed.is_initialized():
            # They exchange only keys and messages. Long waits are fine: if one fails, torchrun stops all.
            distributed.init_process_group("gloo", timeout=timedelta(days=7))

    def share(self, work: list[T], group: int) -> list[T]:
        """Return this process's share of the work: every n-th group of `group` items.

        The groups do not depend on the number of processes, because batching affects rounding.
        """
        if self.world == 1:
            return work
        lists: list[Any] = [work]
        distributed.broadcast_object_list(lists, src=0)
        mine = []
        for start in range(self.rank * group, len(lists[0]), self.world * group):
            mine += lists[0][start : start + group]
        return mine

    def join(self, error: RandSlotError | None) -> None:
        """Wait for all processes; raise the error of any."""
        errors: list[Any] = [error]
        if self.world > 1:
            errors *= self.world
            distributed.all_gather_object(errors, error)
        for one in errors:
            if one is not None:
                raise one


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of one model and its settings on tasks.

    name: the model's label in tables. output: the results folder, one file per task. cache: the folder of vectors.
    windows: cut pages into this many horizontal strips, each encoded as a page; a page has the vectors of all.
    """

    model: RandSlotModel | EmbeddingModel
    name: str
    output: Path
    cache: Path
    batch: int = 8
    windows: int = 1
    processes: Processes = field(default_factory=Processes)

    @cached_property
    def console(self) -> Console:
        return Console(stderr=True, quiet=self.processes.rank > 0, highlight=False, soft_wrap=True)

    def run(self, tasks: Sequence[Task]) -> list[Result]:
        """Evaluate on each task, write its scores to a file, and return them (the first process only)."""
        settings, weights = self.model.settings, self.model.weights_key
        caches = {side: open_cache(self.cache, weights, settings, side) for side in SIDES}
        if self.windows > 1:
            folder = caches["page"].folder
            caches["page"] = VectorCache(folder.with_name(f"windows{self.windows}-{folder.name}"))
        results = []
        for task in tasks:
            where = f"{task.dataset} at revision {task.revision}" if task.revision else task.dataset
            self.console.print(f"evaluating on {task.name}: {where}")
            subsets: dict[str, SubsetResult] = {}
            for subset in task.subsets():
                what = f"{task.name} {subset.name}"
                page_keys = self._encode_pages(what, subset.pages, caches["page"])
                query_keys = self._encode_queries(list(subset.queries.values()), caches["query"])
                if self.processes.rank == 0:
                    subsets[subset.name] = self._score(what, subset, query_keys, page_keys, caches)
            if self.processes.rank == 0:
                results.append(self._write(task, weights, subsets, caches))
        return results

    def _write(self, task: Task, weights: str, subsets: dict[str, SubsetResult], caches: Caches) -> Result:
        """Write the scores of a task to a file."""
        settings, how = self.model.settings, self.model.settings.label
        counts = {side: settings.num_vectors(side) for side in SIDES}
        if settings.width:
            how += f", width {settings.width}"
        if self.windows > 1:
            how += f", {self.windows} windows"
            counts["page"] = self.windows * counts["page"] if counts["page"] else None
        budget = f"q{counts['query'] or 'all'}-p{counts['page'] or 'all'}"
        setting = f"{how}-{budget}-seed{settings.seed}-{weights[:8]}"
        file = result_path(self.output, self.name, setting, f"{task.benchmark}-{task.name}")
        result = Result(
            file=file,
            model=self.name,
            weights=weights,
            settings=asdict(settings),
            how=how,
            counts=counts,
            benchmark=task.benchmark,
            task=task.name,
            is_drawn=settings.is_seeded,
            has_prefixes=self.windows == 1 and all(settings.has_prefixes(side) for side in SIDES),
            ndcg=average_subsets(subsets),
            subsets=subsets,
            dataset=task.dataset,
            revision=task.revision,
            vectors={side: caches[side].folder.relative_to(self.cache).as_posix() for side in SIDES},
            cache=Path(os.path.relpath(self.cache, file.parent)).as_posix(),
        )
        result.write()
        return result

    def _score(
        self, what: str, subset: Subset, query_keys: list[str], page_keys: list[str], caches: Caches
    ) -> SubsetResult:
        """Return nDCG from cached vectors.

        If the model reads text, pages without text are skipped: they have no vectors.
        """
        if subset.left_out:
            self.console.print(f"{what}: skipping {subset.left_out} queries without a relevant page")
        found = [i for i, key in enumerate(page_keys) if key in caches["page"]]
        ids, keys = [subset.pages.ids[i] for i in found], [page_keys[i] for i in found]
        if not found:
            raise RandSlotError(f"{what}: no page has text, and {self.name} reads text")
        if len(found) < len(page_keys):
            self.console.print(f"{what}: {len(page_keys) - len(found)} pages have no text and cannot be found")
        settings = self.model.settings
        queries = caches["query"].read(query_keys, settings.num_vectors("query"))
        scores_QP, start = torch.empty(len(query_keys), len(keys)), 0
        for pages in caches["page"].blocks(keys, settings.num_vectors("page") if self.windows == 1 else None):
            end = start + len(pages)
            scores_QP[:, start:end] = self.model.similarity(queries, pages, device=self.model.device)
            start = end
        grades = [subset.grades[id] for id in subset.queries]
        each = {cut: ndcg_of_each(scores_QP.numpy(), ids, grades, cut) for cut in CUTS}
        judged = Judged(ids, keys, list(subset.queries), query_keys, grades)
        return average_queries(each, len(page_keys), judged.write(self.cache), subset.key())

    def _encode_queries(self, texts: list[str], cache: VectorCache) -> list[str]:
        """Encode the queries that are not cached, and return all keys."""
        by_key = {content_key(text.encode()): text for text in texts}
        missing = [key for key in by_key if key not in cache]
        for batch in batched(self.processes.share(missing, 4 * self.batch), 4 * self.batch):
            cache.add(batch, self.model.encode_query([by_key[key] for key in batch], batch_size=len(batch)))
        cache.flush()
        self.processes.join(None)
        cache.refresh()
        return [content_key(text.encode()) for text in texts]

    def _encode_pages(self, what: str, pages: Pages, cache: VectorCache) -> list[str]:
        """Encode the pages that are not cached, opening pages in other threads; return all keys."""
        keys = [pages.key(i) for i in range(len(pages.ids))]
        missing = list({key: i for i, key in enumerate(keys) if key not in cache}.values())
        size = 2 * self.batch  # collect two batches, to batch pages of similar length
        missing = self.processes.share(missing, size)
        failed = None
        opened = prefetch(lambda i: self._open(pages, i), missing, depth=2 * size)
        shown: dict[str, Any] = {"console": self.console, "transient": True, "disable": not self.console.is_terminal}
        try:
            for group in batched(track(opened, what, len(missing), **shown), size):
                found = {keys[i]: page for i, page in group if page is not None}
                cache.add(list(found), self._encode(list(found.values())))
                return_freed_memory()
        except RandSlotError as error:  # a damaged page: stop the other processes too
            failed = error
        finally:
            cache.flush()  # also when stopped
        self.processes.join(failed)
        cache.refresh()
        return keys

    def _open(self, pages: Pages, i: int) -> list[Any] | None:
        """Open and preprocess the windows of a page; None if the model reads text and the page has none."""
        page = pages.open(i)
        try:
            if self.model.reads == "text":
                text = read_page_text(page)
                return cut_evenly(text, self.windows) if self.windows > 1 else [text]
            image = open_page(page, self.windows * self.model.page_pixels)
        except NoTextError:
            return None
        except RandSlotError as error:
            raise RandSlotError(f"page {pages.ids[i]}: {error}") from error
        opened: list[Any] = cut_strips(image, self.windows)
        return [self.model.prepare_page(one) for one in opened] if isinstance(self.model, RandSlotModel) else opened

    def _encode(self, pages: list[list[Any]]) -> list[Tensor]:
        """Return the vectors of opened pages, in order."""
        windows = [window for page in pages for window in page]
        if not windows:
            return []
        if isinstance(self.model, RandSlotModel) and isinstance(windows[0], PreparedPage):
            vectors = iter(self.model.encode_prepared(windows, self.batch))
        else:
            vectors = iter(self.model.encode_document(windows, batch_size=self.batch))
        return [torch.cat([next(vectors) for _ in page]) for page in pages]


def evaluate_model(
    model: str,
    tasks: Sequence[Task],
    output: Path,
    *,
    settings: Mapping[str, Any],
    name: str | None = None,
    cache: Path | None = None,
    batch: int = 8,
    windows: int = 1,
) -> list[Result]:
    """Open a model by its folder, hub id or URL, and evaluate it.

    settings: override the model's own, where not None. windows: see `Evaluation`. name: the label in tables. cache: the
    folder of vectors, by default beside the results.

    On the paper's benchmarks, a model trained with random slots is evaluated twice, with zeros (RS-Z) and with random
    slots (RS-R), unless settings include `inference`.
    """
    cache = cache or output / "vectors"
    for folder in (output, cache):
        with in_one_line(f"write into {folder}", UsageError):
            folder.mkdir(parents=True, exist_ok=True)
    opened = open_torch_model(model, **settings)
    evaluation = Evaluation(opened, name or model, output, cache, batch, windows)
    results = evaluation.run(tasks)
    published = [task for task in tasks if task.benchmark in TASKS]
    if not published or settings.get("inference") is not None or is_url(model):
        return results
    if isinstance(opened, RandSlotModel) and opened.settings.inference != opened.settings.slots:
        opened.use(inference=opened.settings.slots)
        results += evaluation.run(published)
    return results
