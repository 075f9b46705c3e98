"""One job of a study: train a model, look at it on held-out pages, keep the rows; and the process that does jobs.

Shapes: Q queries of a task, C columns of a row.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path
from queue import Queue
from statistics import mean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import RandSlotError
from ...machine import describe_machine
from ...model import load
from ...training.train import LOSSES, RUN, train
from ...training.watch import read_losses
from ..analysis.budgets import sweep_budgets
from ..analysis.readouts import intervene
from ..analysis.runs import Part, Run, read_runs
from ..analysis.views import full_view, macro, score_part
from ..analysis.winners import count_winners, find_winners, positive_pairs
from ..evaluation.evaluate import Evaluation
from ..evaluation.result import Result
from ..evaluation.tasks import Task
from .plan import BUDGET, MOST, Job, Study, read_study
from .rows import COLUMNS, write_row

LAST = 50  # steps whose loss is averaged


def do_job(study: Study, job: Job) -> dict[str, Any]:
    """Train and evaluate; return the scores on validation pages, by number of reports, or nothing if rows were kept."""
    recipe = study.make_recipe(job)
    model = train(recipe, resume=True)
    steps = json.loads(Path(recipe.output, RUN).read_text(encoding="utf-8"))["steps"]
    if steps != job.steps:
        raise RandSlotError(f"{recipe.output} has {steps} steps, not {job.steps}: with too few batches, set epochs")
    del model
    if not job.reports:
        return {str(reports): _validate(study, job, reports) for reports in study.reports}
    _keep_rows(study, job)
    return {}


def _validate(study: Study, job: Job, reports: int) -> float:
    """Return nDCG@5 in percent on the validation pages, each task counted alike."""
    tasks = study.tasks("validation", reports)
    results = _evaluate(study, job, study.inferences(job.arm)[0], tasks, BUDGET, f"validation-{job.name}-{job.steps}")
    return 100 * mean(result.ndcg[5] for result in results)


def _evaluate(study: Study, job: Job, inference: str, tasks: list[Task], vectors: int, name: str) -> list[Result]:
    folder = study.path("evaluations", name)
    options: dict[str, Any] = {"inference": inference, "query_vectors": vectors, "page_vectors": vectors}
    model = load(study.make_recipe(job).output, **options)
    return Evaluation(model, name, folder, folder / "vectors").run(tasks)


def _keep_rows(study: Study, job: Job) -> None:
    started = time.perf_counter()
    # Results of a model that was trained before go; vectors are found by the weights that made them.
    shutil.rmtree(study.path("evaluations", job.name, job.name), ignore_errors=True)
    for inference in study.inferences(job.arm):
        results = _evaluate(study, job, inference, study.tasks("test", job.reports), MOST, job.name)
    runs = {run.name.rpartition(", ")[2]: run for run in read_runs([study.path("evaluations", job.name)])}
    subsets = {result.task: next(iter(result.subsets.values())) for result in results}
    output = Path(study.make_recipe(job).output)
    trained = json.loads((output / RUN).read_text(encoding="utf-8"))
    record = {
        "run": job.name,
        "arm": job.arm,
        "seed": job.seed,
        "steps": job.steps,
        "settings": study.settings(job),
        "tasks": {
            task: {"queries": subset.queries, "pages": subset.pages, "judged": subset.judged}
            for task, subset in subsets.items()
        },
        "loss": mean(float(row["loss"]) for row in read_losses(output / LOSSES)[-LAST:]),
        "training_seconds": trained["seconds_of_this_process"],
        "evaluation_seconds": round(time.perf_counter() - started, 1),
        "inference": {inference: describe(run) for inference, run in runs.items()},
        "commit": trained["commit"],
        "versions": trained["versions"],
        "machine": describe_machine(),
        "date": datetime.now(UTC).date().isoformat(),
    }
    queries = {
        inference: {task: list_queries(parts[0]) for task, parts in run.tasks.items()}
        for inference, run in runs.items()
    }
    write_row(Path(study.results), record, queries)


def describe(run: Run) -> dict[str, Any]:
    """Return what a run's lines of queries do not say: budgets of one side, interventions, who wins for whom."""
    budgets = {str(side): scores for _, side, *scores in sweep_budgets([run], BUDGET).rows}
    readouts, winners = intervene(run, BUDGET), count_winners(run, BUDGET)
    return {
        "budgets": {side: budgets[side] for side in ("query", "page")},
        "full": macro(readouts.full),
        "only": {side: [macro(scores) for scores in by] for side, by in readouts.only.items()},
        "without": {side: [macro(scores) for scores in by] for side, by in readouts.without.items()},
        "winners": winners.counts.tolist(),
        "ties": winners.ties,
    }


def list_queries(part: Part) -> NDArray[np.float64]:
    """Return the line of each query of a task (Q, C)."""
    full = full_view(BUDGET)
    views = [full_view(num) for num in range(1, MOST + 1)]
    views += [full.change("page", [place]) for place in range(BUDGET)]
    scores = score_part(part, views)
    num_queries = len(part.judged.query_ids)
    wins = torch.zeros(num_queries, BUDGET, dtype=torch.int64)
    counts = torch.zeros(num_queries, 2, dtype=torch.int64)  # pairs, distinct winners
    for numbers, queries, pages in positive_pairs(part, BUDGET):
        won = torch.nn.functional.one_hot(find_winners(queries, pages)[0], BUDGET)  # (N, K, K)
        wins.index_add_(0, numbers, won.sum(1))
        distinct = won.amax(1).sum(-1)
        counts.index_add_(0, numbers, torch.stack([torch.ones_like(distinct), distinct], 1))
    lines = np.column_stack([*(scores[view] for view in views), wins.numpy(), counts.numpy()])
    assert lines.shape == (num_queries, len(COLUMNS))
    return lines


# -- the process


def main() -> None:
    """Do the jobs that come as lines of JSON, answer each with a line, and end when the parent does, at once."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    study = read_study(Path(sys.argv[1]))
    out = os.fdopen(os.dup(1), "w")
    jobs: Queue[Job] = Queue()
    threading.Thread(target=_listen, args=(jobs,), daemon=True).start()
    while True:
        job = jobs.get()
        print(json.dumps(_answer(study, job)), file=out, flush=True)


def _listen(jobs: Queue[Job]) -> None:
    for line in sys.stdin:
        jobs.put(Job(**json.loads(line)))
    os._exit(0)  # the parent is gone: a training goes on from its checkpoint


def _answer(study: Study, job: Job) -> dict[str, Any]:
    log = study.path("logs", f"{job.name}-{job.steps}.log")
    with log.open("a", encoding="utf-8") as file:  # whatever training and evaluation print
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        return {"scores": do_job(study, job)}
    except RandSlotError as error:
        reason = str(error)
    except Exception as error:  # one run that fails must not take the others along
        traceback.print_exc()
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
    print(reason, file=sys.stderr)
    return {"failed": reason}


if __name__ == "__main__":
    main()
