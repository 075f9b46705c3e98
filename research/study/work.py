"""One job of a study: train a model, look at it on held-out pages, keep the rows; and the process that does jobs.

Shapes: Q queries of a task, C columns of a row.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean

import numpy as np
import torch
from numpy.typing import NDArray

from randslot.errors import RandSlotError, first_line
from randslot.evaluation.analysis import (
    CachedRun,
    CachedSubset,
    View,
    count_winners,
    find_winners,
    full_view,
    intervene,
    macro,
    positive_pairs,
    read_runs,
    score_subset,
    sweep_budgets,
)
from randslot.evaluation.evaluate import Evaluation
from randslot.evaluation.result_files import Result
from randslot.evaluation.tasks import Task
from randslot.files import read_json
from randslot.machine import describe_machine
from randslot.model import load
from randslot.model.reader import SIDES
from randslot.training.train import LOSSES, RUN, read_losses, train

from .plan import BUDGET, MOST, Job, Study
from .rows import COLUMNS, Inference, Record, Row, TaskSize, write_row

LAST = 50  # steps whose loss is averaged


def do_job(study: Study, job: Job) -> dict[int, float]:
    """Train and evaluate; return the scores on validation pages, by number of reports, or nothing if rows were kept."""
    recipe = study.make_recipe(job)
    model = train(recipe, resume=True)
    steps = read_json(Path(recipe.output, RUN))["steps"]
    if steps != job.steps:
        raise RandSlotError(f"{recipe.output} has {steps} steps, not {job.steps}: with too few batches, set epochs")
    del model
    if job.split == "validation":
        return {reports: _validate(study, job, reports) for reports in study.sizes}
    _keep_rows(study, job)
    return {}


def _validate(study: Study, job: Job, reports: int) -> float:
    """Return nDCG@5 in percent on the validation pages, each task counted alike."""
    tasks = study.tasks("validation", reports)
    results = _evaluate(study, job, study.inferences(job.arm)[0], tasks, BUDGET, f"validation-{job.folder}")
    return 100 * mean(result.ndcg[5] for result in results)


def _evaluate(study: Study, job: Job, inference: str, tasks: list[Task], vectors: int, name: str) -> list[Result]:
    folder = study.path("evaluations", name)
    output = study.make_recipe(job).output
    model = load(output, inference=inference, query_vectors=vectors, page_vectors=vectors)
    return Evaluation(model, name, folder, folder / "vectors").run(tasks)


def _keep_rows(study: Study, job: Job) -> None:
    started = time.perf_counter()
    # Results of a model that was trained before go; vectors are found by the weights that made them.
    shutil.rmtree(study.path("evaluations", job.name, job.name), ignore_errors=True)
    for inference in study.inferences(job.arm):
        results = _evaluate(study, job, inference, study.tasks("test", job.reports), MOST, job.name)
    runs = {run.name.rpartition(", ")[2]: run for run in read_runs([study.path("evaluations", job.name)])}
    tasks = {}
    for result in results:
        subset = next(iter(result.subsets.values()))
        tasks[result.task] = TaskSize(subset.queries, subset.pages, subset.judged)
    output = Path(study.make_recipe(job).output)
    trained = read_json(output / RUN)
    record = Record(
        run=job.name,
        arm=job.arm,
        seed=job.seed,
        steps=job.steps,
        settings=study.settings(job),
        tasks=tasks,
        loss=mean(float(row["loss"]) for row in read_losses(output / LOSSES)[-LAST:]),
        training_seconds=trained["seconds_of_this_process"],
        evaluation_seconds=round(time.perf_counter() - started, 1),
        inference={inference: measure_inference(run) for inference, run in runs.items()},
        commit=trained["commit"],
        versions=trained["versions"],
        machine=describe_machine(),
        date=datetime.now(UTC).date().isoformat(),
    )
    queries = {}
    for inference, run in runs.items():
        queries[inference] = {task: list_queries(subsets[0]) for task, subsets in run.tasks.items()}
    write_row(Path(study.results), Row(record, queries))


def measure_inference(run: CachedRun) -> Inference:
    """Return what a run's lines of queries do not say: budgets of one side, interventions, who wins for whom."""
    swept = {str(side): scores for _, side, *scores in sweep_budgets([run], BUDGET).rows}
    readouts, winners = intervene(run, BUDGET), count_winners(run, BUDGET)
    return Inference(
        budgets={side: [float(score or 0) for score in swept[side]] for side in SIDES},
        full=macro(readouts.full),
        only={side: [macro(scores) for scores in readouts.only[side]] for side in SIDES},
        without={side: [macro(scores) for scores in readouts.without[side]] for side in SIDES},
        winners=winners.counts.tolist(),
        ties=winners.ties,
    )


def list_queries(subset: CachedSubset) -> NDArray[np.float64]:
    """Return the line of each query of a task (Q, C)."""
    full = full_view(BUDGET)
    views = [full_view(num) for num in range(1, MOST + 1)]
    views += [View(full.query, (place,)) for place in range(BUDGET)]
    scores = score_subset(subset, views)
    num_queries = len(subset.judged.query_ids)
    wins = torch.zeros(num_queries, BUDGET, dtype=torch.int64)
    counts = torch.zeros(num_queries, 2, dtype=torch.int64)  # pairs, distinct winners
    for numbers, queries, pages in positive_pairs(subset, BUDGET):
        won = torch.nn.functional.one_hot(find_winners(queries, pages)[0], BUDGET)  # (N, K, K)
        wins.index_add_(0, numbers, won.sum(1))
        distinct = won.amax(1).sum(-1)
        counts.index_add_(0, numbers, torch.stack([torch.ones_like(distinct), distinct], 1))
    lines = np.column_stack([*(scores[view] for view in views), wins.numpy(), counts.numpy()])
    assert lines.shape == (num_queries, len(COLUMNS))
    return lines


# -- the process


def start_worker() -> None:
    """Make a process of a pool compute with one thread, and end at once when its parent does, however that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # a training goes on from its checkpoint


def run_job(study: Study, job: Job) -> dict[int, float]:
    """Do a job in a process of a pool; whatever it prints goes to its log.

    Errors: RandSlotError in one line, whatever went wrong: it must get through to the parent.
    """
    with study.path("logs", f"{job.folder}.log").open("a", encoding="utf-8") as log:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(log.fileno(), stream.fileno())
    try:
        return do_job(study, job)
    except RandSlotError as error:
        print(error, file=sys.stderr)
        raise
    except Exception as error:  # one run that fails must not take the others along
        traceback.print_exc()
        raise RandSlotError(f"{type(error).__name__}: {first_line(error)}") from None
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
