"""A study from its file to its report: choose length and pages, then do all runs, some side by side.

Each worker is a process with one thread of computation that does one job after the other. It ends when this process
does, however that ends, and the next call goes on from the rows and checkpoints that are there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from ...errors import RandSlotError, UsageError
from ...model.hub import find, is_hub_id
from .plan import BASE, CHOICE, Job, Study, make_rule, read_choice, read_study
from .report import write_report
from .rows import check_settings, is_done, write_json

LOSSES = "losses.csv"
Done = Callable[[Job, dict[str, Any]], None]


def conduct(file: Path, console: Console, *, choose_only: bool = False, report_only: bool = False) -> Path | None:
    """Conduct a study as far as it is asked for, and return its report.

    Errors: RandSlotError if runs failed; those that did not have their rows.
    """
    study = read_study(file)
    if not report_only:
        _check_start(study)
        with _alone(study), _workers(file, study) as workers:
            choice = choose(study, workers, console)
            console.print(f"{choice['steps']} steps, {choice['reports']} reports of each layout")
            if choose_only:
                return None
            _run_all(study, choice, workers, console)
    return write_report(study)


def _check_start(study: Study) -> None:
    """Refuse to begin without the backbone or the data of the recipe; a backbone of the hub is fetched once for all."""
    recipes = [study.make_recipe(job) for job in study.jobs(study.lengths[0], study.reports[0])]
    for data in {recipe.data for recipe in recipes} if not study.train_reports else ():
        if not Path(data).exists() and (Path(data).suffix or not is_hub_id(data)):
            raise UsageError(f"no training pages {data!r}: {_make_first(study)}")
    for backbone in {recipe.backbone for recipe in recipes} - {""}:
        try:
            find(backbone)
        except RandSlotError as error:
            raise UsageError(f"no backbone {backbone!r}: {_make_first(study)} ({error})") from error


def _make_first(study: Study) -> str:
    return (
        f"recipe {study.recipe!r} needs it; make pages with `randslot samples` and a backbone with `randslot pretrain` "
        "first (docs/study.md has the commands), or name others in [set]"
    )


@contextmanager
def _alone(study: Study) -> Iterator[None]:
    """Let no second process work on the same study."""
    try:
        study.path("logs").mkdir(parents=True, exist_ok=True)
        lock = FileLock(study.path("lock"))
        lock.acquire(timeout=0)
    except Timeout as error:
        raise UsageError(f"another randslot study is at work in {study.folder}: wait for it, or stop it") from error
    except OSError as error:
        raise UsageError(f"cannot write into {study.folder}: {error.strerror or error}") from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _workers(file: Path, study: Study) -> Iterator[list[Worker]]:
    workers = [Worker(file, study) for _ in range(study.side_by_side)]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.close()


# -- the choice


def choose(study: Study, workers: list[Worker], console: Console) -> dict[str, Any]:
    """Return the length and the number of reports, chosen on Zero-Feedback and validation pages alone, once.

    The lengths are tried from the shortest on, as many at once as runs go side by side; of what is in range the
    shortest wins, and then the number of reports that is named first. What was tried is kept, in range or not.
    """
    job = Job(BASE, study.seeds[0], 0)
    study.make_training_pages()
    before = read_choice(study)
    if "steps" in before:
        check_settings(before["settings"], study.settings(job), f"{study.results}/{CHOICE}")
        return keep_hypotheses(study, before)
    for reports in study.reports:
        study.make_pages("validation", reports)
    tried: dict[tuple[int, int], float] = {}
    kept: dict[str, Any] = {"rule": make_rule(study), "settings": study.settings(job)}
    if before:  # the report says what was tried in vain
        last = {key: before[key] for key in ("rule", "settings", "tried")}
        changed = any(last[key] != kept[key] for key in ("rule", "settings"))
        kept["before"] = [*before.get("before", []), *([last] if changed else [])]

    def keep(job: Job, reply: dict[str, Any]) -> None:
        tried.update({(job.steps, int(reports)): score for reports, score in reply["scores"].items()})

    low, high = study.range
    for start in range(0, len(study.lengths), study.side_by_side):
        jobs = [Job(BASE, study.seeds[0], steps) for steps in study.lengths[start : start + study.side_by_side]]
        run_jobs(study, jobs, workers, keep, Watch(study, jobs, console, "choosing"))
        order = [(job.steps, reports) for job in jobs for reports in study.reports]
        rows = [{"steps": steps, "reports": num, "ndcg@5": tried[steps, num]} for steps, num in order]
        kept["tried"] = [*kept.get("tried", []), *rows]
        in_range = [place for place in order if low <= tried[place] <= high]
        if in_range:
            kept |= dict(zip(("steps", "reports"), in_range[0], strict=True))
        write_json(Path(study.results, CHOICE), kept)
        if in_range:
            return keep_hypotheses(study, kept)
    scores = ", ".join(f"{score:.1f} ({steps} steps, {num} reports)" for (steps, num), score in tried.items())
    raise RandSlotError(
        f"Zero-Feedback is nowhere between {low} and {high} on validation pages: {scores}; "
        "change lengths or reports in the study's file, and choose again"
    )


def keep_hypotheses(study: Study, choice: dict[str, Any]) -> dict[str, Any]:
    """Write the hypothesis of every extra that has no rows yet into the choice, once, and return it."""
    kept = choice.get("hypotheses", {})
    new = {
        extra.name: extra.promise()
        for extra in study.extra
        if extra.name not in kept and not any(Path(study.results).glob(f"{extra.name}-*"))
    }
    if new:
        choice = choice | {"hypotheses": kept | new}
        write_json(Path(study.results, CHOICE), choice)
    return choice


# -- the runs


def _run_all(study: Study, choice: dict[str, Any], workers: list[Worker], console: Console) -> None:
    study.make_pages("test", choice["reports"])
    jobs = study.jobs(choice["steps"], choice["reports"])
    missing = [job for job in jobs if not is_done(study, job)]
    console.print(f"{len(jobs) - len(missing)} of {len(jobs)} runs are done")
    run_jobs(study, missing, workers, lambda job, reply: None, Watch(study, missing, console, "running"))


def run_jobs(study: Study, jobs: Sequence[Job], workers: list[Worker], done: Done, watch: Watch) -> None:
    """Do jobs, some side by side; one that fails does not stop the others.

    Errors: RandSlotError in the end that names those that failed.
    """
    waiting: SimpleQueue[Job] = SimpleQueue()
    replies: SimpleQueue[tuple[Job, dict[str, Any]]] = SimpleQueue()
    for job in jobs:
        waiting.put(job)
    threads = [threading.Thread(target=_feed, args=(worker, waiting, replies), daemon=True) for worker in workers]
    failed: dict[Job, str] = {}
    try:
        for thread in threads:
            thread.start()
        with watch:
            for _ in jobs:
                job, reply = watch.wait_for(replies)
                if "failed" in reply:
                    failed[job] = reply["failed"]
                else:
                    done(job, reply)
                watch.count(job, reply)
    except KeyboardInterrupt:
        watch.console.print("stopped: the same command goes on")
        raise
    if failed:
        logs = study.path("logs")
        raise RandSlotError(
            f"{len(failed)} of {len(jobs)} runs failed: {', '.join(job.name for job in failed)}; "
            f"see {logs}, and run the same command again"
        )


def _feed(worker: Worker, waiting: SimpleQueue[Job], replies: SimpleQueue[tuple[Job, dict[str, Any]]]) -> None:
    while True:
        try:
            job = waiting.get_nowait()
        except Empty:
            return
        replies.put((job, worker.do(job)))


class Worker:
    """A process that does jobs, started for the first one and again after a failure."""

    def __init__(self, file: Path, study: Study) -> None:
        self.file = file
        self.study = study
        self.process: subprocess.Popen[str] | None = None
        self.closed = False

    def do(self, job: Job) -> dict[str, Any]:
        """Do a job and return the reply: what it found, or how it failed."""
        if self.closed:
            return {"failed": "stopped"}
        process = self.process = self.process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(asdict(job)) + "\n")
            process.stdin.flush()
            reply: dict[str, Any] = json.loads(process.stdout.readline())
        except (OSError, ValueError):  # it died
            reply = {"failed": f"its process ended with code {process.wait()}"}
        if "failed" in reply:
            self.stop()
        return reply

    def _start(self) -> subprocess.Popen[str]:
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        with self.study.path("logs", "workers.log").open("a", encoding="utf-8") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "randslot.lab.study.work", str(self.file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | one_thread,
            )

    def close(self) -> None:
        """End the process, and begin no other."""
        self.closed = True
        self.stop()

    def stop(self) -> None:
        """End the process, and wait for it."""
        process, self.process = self.process, None
        if process is not None:
            with suppress(BrokenPipeError), process:  # which closes its pipes
                process.kill()


class Watch:
    """Show how far the jobs are: a bar in a terminal, a line for each job elsewhere."""

    def __init__(self, study: Study, jobs: Sequence[Job], console: Console, what: str) -> None:
        self.jobs = dict.fromkeys(jobs, False)  # whether it is over
        self.files = {job: Path(study.make_recipe(job).output, LOSSES) for job in jobs}
        self.console = console
        self.started = time.monotonic()
        self.first = self._steps()
        columns = TextColumn(what), BarColumn(), TextColumn("{task.fields[status]}")
        self.progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self.bar = self.progress.add_task("", total=sum(job.steps for job in jobs), status="")

    def __enter__(self) -> Watch:
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    def wait_for(self, replies: SimpleQueue[tuple[Job, dict[str, Any]]]) -> tuple[Job, dict[str, Any]]:
        """Wait for the next job that is over, looking at the others meanwhile."""
        while True:
            self.progress.update(self.bar, completed=self._steps(), status=self.describe())
            try:
                return replies.get(timeout=1)
            except Empty:
                pass

    def count(self, job: Job, reply: dict[str, Any]) -> None:
        """Take down that a job is over."""
        self.jobs[job] = True
        how = f"failed: {reply['failed']}" if "failed" in reply else "done"
        self.console.print(f"{job.name}, {job.steps} steps, {how}; {self.describe()}")

    def describe(self) -> str:
        """Return how many jobs are over, which are being done, and how long the rest may take at the speed so far."""
        steps, total = self._steps(), sum(job.steps for job in self.jobs)
        since, new = time.monotonic() - self.started, steps - self.first
        # A training that goes on from its checkpoint takes back the steps after it.
        minutes = (total - steps) * since / new / 60 if new > 0 else None
        left = "no time known yet" if minutes is None else _tell(minutes)
        now = [job.name for job, over in self.jobs.items() if not over and self._steps_of(job)]
        at = f", now {' and '.join(now)}" if now else ""
        over = sum(self.jobs.values())
        return f"{over} of {len(self.jobs)} runs" + (f"{at}, {left}" if over < len(self.jobs) else "")

    def _steps(self) -> int:
        return sum(job.steps if over else self._steps_of(job) for job, over in self.jobs.items())

    def _steps_of(self, job: Job) -> int:
        """Return the steps that a training has written down."""
        try:
            with self.files[job].open("rb") as lines:
                return max(sum(1 for _ in lines) - 1, 0)
        except OSError:
            return 0


def _tell(minutes: float) -> str:
    return "less than a minute left" if minutes < 1 else f"about {minutes:.0f} min left"
