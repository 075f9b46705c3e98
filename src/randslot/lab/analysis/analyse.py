"""From the words of a command to the sections of a report: which parts, of which runs, models or libraries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ...errors import UsageError
from .cost import is_library
from .report import PARTS, Section, Subject, make_sections


def analyse(
    words: Sequence[str],
    *,
    benchmarks: Sequence[str] = (),
    data: Path | None = None,
    num_vectors: int = 4,
    dim: int | None = None,
    results: Path = Path("report/results"),
    tell: Callable[[str], None] = print,
) -> list[Section]:
    """Analyse what some words name: first one part if not all, then folders of results or libraries.

    With benchmarks, or a set of one's own in `data`, they are models, which are evaluated first, into `results`. dim:
    the dimension of vectors whose cost is asked for without results. tell: gets a line for every result left out.

    Errors: UsageError in one line for what cannot be analysed, or not together.
    """
    sources = list(words)
    parts = [sources.pop(0)] if sources and sources[0] in PARTS else list(PARTS)
    only_cost = parts == ["cost"]
    if not sources and not only_cost:
        raise UsageError(f"name the folder of results, or one of {', '.join(PARTS)} and the folder")
    if benchmarks or data:
        folders = [_evaluate(sources, benchmarks, data, results)]
    else:
        folders = [_need_folder(source) for source in sources]
    libraries = [folder for folder in folders if is_library(folder)]
    if libraries and not only_cost:
        raise UsageError(f"{libraries[0]} is a library: only its cost can be analysed, by randslot analyse cost")
    folders = [folder for folder in folders if folder not in libraries]
    if dim is not None and (folders or not only_cost):
        raise UsageError("--dim goes with randslot analyse cost without results: they have dimensions of their own")
    runs = []
    if folders:
        from .runs import read_runs  # heavy, and costs are plain arithmetic

        runs = read_runs(folders)
    for run in runs:
        for line in run.left_out:
            tell(f"left out: {line}")
    return make_sections(parts, Subject(runs, num_vectors, libraries, dim))


def _need_folder(source: str) -> Path:
    if not Path(source).is_dir():
        raise UsageError(f"{source!r} is not a folder here, nor one of the parts {', '.join(PARTS)}")
    return Path(source)


def _evaluate(models: Sequence[str], benchmarks: Sequence[str], data: Path | None, results: Path) -> Path:
    """Evaluate models with as many vectors as a budget sweep takes, and return the folder of their results."""
    from ..evaluation.evaluate import evaluate_model
    from ..evaluation.tasks import choose_tasks
    from .budgets import MOST

    tasks = choose_tasks(benchmarks, [], data)
    for model in models:
        evaluate_model(model, tasks, results, settings={"query_vectors": MOST, "page_vectors": MOST})
    return results
