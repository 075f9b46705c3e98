"""Run a study: train and evaluate every arm with every seed, in parallel, and write rows of each run.

A run's rows are a JSON file and, for each inference, a CSV with one line per query: nDCG@5 with the first 1 to 8
vectors of both sides (k1 ...), with only one page readout of four (d1 ...), how often each page readout wins MaxSim
over the relevant pages of the query (w1 ...), and the numbers of relevant pages and distinct winners.

Shapes: Q queries of a task, C columns.
"""

from __future__ import annotations

import csv
import io
import multiprocessing
import os
import signal
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from rich.console import Console

from randslot.errors import RandSlotError, UsageError
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
from randslot.files import read_json, write_json, write_whole
from randslot.machine import describe_machine
from randslot.model import load
from randslot.model.reader import SIDES
from randslot.training.train import LOSSES, RUN, read_losses, train

from .plan import BUDGET, MAX_BUDGET, Study

BUDGETS = [f"k{num}" for num in range(1, MAX_BUDGET + 1)]
SINGLES = [f"d{num}" for num in range(1, BUDGET + 1)]
WINS = [f"w{num}" for num in range(1, BUDGET + 1)]
COLUMNS = [*BUDGETS, *SINGLES, *WINS, "pairs", "distinct"]


def run_study(study: Study, console: Console) -> None:
    """Run all jobs without rows; RandSlotError names those that failed."""
    logs = Path(study.folder, "logs")
    logs.mkdir(parents=True, exist_ok=True)
    lock = FileLock(Path(study.folder, "lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise UsageError(f"another process is running the study in {study.folder}. Wait for it, or stop it.") from error
    study.make_training_pages()
    study.tasks()
    jobs = [job for job in study.jobs if not is_done(study, *job)]
    console.print(f"{len(study.jobs) - len(jobs)} of {len(study.jobs)} runs are done")
    failed = []
    # One thread per worker, which reads this when it starts.
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    pool = ProcessPoolExecutor(study.side_by_side, multiprocessing.get_context("spawn"), start_worker)
    try:
        futures = {pool.submit(run_job, study, *job): "-".join(map(str, job)) for job in jobs}
        for number, future in enumerate(as_completed(futures), start=1):
            name = futures[future]
            try:
                future.result()
            except Exception as error:  # a failed run must not stop the others
                failed.append(name)
                console.print(f"{name} failed: {error}")
            else:
                console.print(f"{name} done, {number} of {len(jobs)}")
    except KeyboardInterrupt:
        console.print("stopped: run the command again to resume")
        for process in multiprocessing.active_children():
            process.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        lock.release()
    if failed:
        raise RandSlotError(f"{len(failed)} runs failed: {', '.join(failed)}. See {logs}, and run the command again.")


def is_done(study: Study, arm: str, seed: int) -> bool:
    """Return whether a run has its rows; UsageError if they were made with other settings."""
    file = Path(study.results, f"{arm}-{seed}.json")
    if not file.is_file():
        return False
    check_settings(file, read_json(file)["settings"], study.settings(arm, seed))
    return True


def check_settings(file: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise UsageError for rows made with other settings, naming one."""
    for name in now.keys() & before.keys():
        if before[name] != now[name]:
            old, new = before[name], now[name]
            raise UsageError(f"{file} was made with {name} = {old!r}, not {new!r}. Remove it, or write rows elsewhere.")


def start_worker() -> None:
    """Limit a worker to one thread, and make it exit with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    torch.set_num_threads(1)

    def end_with_parent() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)  # the next run resumes from the checkpoint

    threading.Thread(target=end_with_parent, daemon=True).start()


def run_job(study: Study, arm: str, seed: int) -> None:
    """Train and evaluate one model and write its rows, in a worker; its output goes to a log."""
    with Path(study.folder, "logs", f"{arm}-{seed}.log").open("a", encoding="utf-8") as log:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(log.fileno(), stream.fileno())
    recipe = study.make_recipe(arm, seed)
    train(recipe, resume=True)
    started, name = time.perf_counter(), f"{arm}-{seed}"
    trained = read_json(Path(recipe.output, RUN))
    if trained["steps"] != study.steps:
        raise RandSlotError(f"{recipe.output} has {trained['steps']} steps, not {study.steps}. Set more epochs.")
    folder = Path(study.folder, "evaluations", name)
    for inference in study.inferences(arm):
        model = load(recipe.output, inference=inference, query_vectors=MAX_BUDGET, page_vectors=MAX_BUDGET)
        results = Evaluation(model, name, folder, folder / "vectors").run(study.tasks())
    tasks = {}
    for result in results:
        subset = next(iter(result.subsets.values()))
        tasks[result.task] = {"queries": subset.queries, "pages": subset.pages, "judged": subset.judged}
    runs = {run.name.rpartition(", ")[2]: run for run in read_runs([folder])}
    last_losses = [float(row["loss"]) for row in read_losses(Path(recipe.output, LOSSES))[-50:]]
    record = {
        "run": name,
        "arm": arm,
        "seed": seed,
        "steps": study.steps,
        "settings": study.settings(arm, seed),
        "tasks": tasks,
        "loss": mean(last_losses),
        "training_seconds": trained["seconds_of_this_process"],
        "evaluation_seconds": round(time.perf_counter() - started, 1),
        "inference": {inference: measure_inference(run) for inference, run in runs.items()},
        "commit": trained["commit"],
        "versions": trained["versions"],
        "machine": describe_machine(),
        "date": datetime.now(UTC).date().isoformat(),
    }
    for inference, run in runs.items():
        write_lines(
            Path(study.results, f"{name}-{inference}.csv"),
            {task: measure_queries(subsets[0]) for task, subsets in run.tasks.items()},
        )
    write_json(Path(study.results, f"{name}.json"), record)  # written last: marks the run as complete


def measure_inference(run: CachedRun) -> dict[str, Any]:
    """Return what the lines of queries cannot give: budgets of one side, ablations, pairs of winners."""
    swept = {str(side): scores for _, side, *scores in sweep_budgets([run], BUDGET).rows}
    readouts, winners = intervene(run, BUDGET), count_winners(run, BUDGET)
    return {
        "budgets": {side: swept[side] for side in SIDES},
        "full": macro(readouts.full),
        "only": {side: [macro(scores) for scores in readouts.only[side]] for side in SIDES},
        "without": {side: [macro(scores) for scores in readouts.without[side]] for side in SIDES},
        "winners": winners.counts.tolist(),
        "ties": winners.ties,
    }


def measure_queries(subset: CachedSubset) -> NDArray[np.float64]:
    """Return the line of each query of a task (Q, C)."""
    views = [full_view(num) for num in range(1, MAX_BUDGET + 1)]
    views += [View(full_view(BUDGET).query, (place,)) for place in range(BUDGET)]
    scores = score_subset(subset, views)
    num_queries = len(subset.judged.query_ids)
    wins = torch.zeros(num_queries, BUDGET, dtype=torch.int64)
    counts = torch.zeros(num_queries, 2, dtype=torch.int64)  # pairs, distinct winners
    for numbers, queries, pages in positive_pairs(subset, BUDGET):
        won = torch.nn.functional.one_hot(find_winners(queries, pages)[0], BUDGET)  # (N, K, K)
        wins.index_add_(0, numbers, won.sum(1))
        distinct = won.amax(1).sum(-1)
        counts.index_add_(0, numbers, torch.stack([torch.ones_like(distinct), distinct], 1))
    return np.column_stack([*(scores[view] for view in views), wins.numpy(), counts.numpy()])


def write_lines(file: Path, by_task: dict[str, NDArray[np.float64]]) -> None:
    """Write the lines of queries, by task, with four digits."""
    file.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["task", *COLUMNS])
    for task, lines in by_task.items():
        for line in lines.tolist():
            writer.writerow([task, *(f"{round(value, 4):g}" for value in line)])
    write_whole(file, text.getvalue())
