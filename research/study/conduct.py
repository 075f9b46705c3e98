"""A study from its file to its report: choose length and pages, then do all runs, some side by side.

Jobs are done by a pool of processes with one thread of computation each. They end when this process does, however that
ends, and the next call goes on from the rows and checkpoints that are there.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from randslot.errors import RandSlotError, UsageError
from randslot.files import write_json
from randslot.model.hub import find, is_hub_id

from .plan import BASE, CHOICE, Job, Study, make_rule, read_choice, read_study
from .report import write_report
from .rows import check_settings, is_done

# Of the processes of the pool. One that is ended by Ctrl-C leaves a semaphore, which Python removes and warns about.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore:resource_tracker"}
Scores = dict[int, float]  # by number of reports
Tried = dict[str, Any]  # what was tried in a choice: "candidate" and "reports" where there are any, "steps", the score
SCORE = "ndcg@5"


def conduct(file: Path, console: Console, *, choose_only: bool = False, report_only: bool = False) -> Path | None:
    """Conduct a study as far as it is asked for, and return its report.

    Errors: RandSlotError if runs failed; those that did not have their rows.
    """
    study = read_study(file)
    if not report_only:
        _check_start(study)
        with _alone(study), _open_pool(study.side_by_side) as pool:
            choice = choose(study, pool, console)
            console.print(_describe(choice))
            if choose_only:
                return None
            _run_all(study, choice, pool, console)
    return write_report(study)


def _check_start(study: Study) -> None:
    """Refuse to begin without the backbone or the data of the recipe; a backbone of the hub is fetched once for all."""
    recipes = []
    for candidate in study.candidate_names:
        recipes += [study.make_recipe(job) for job in study.jobs(study.lengths[0], study.sizes[0], candidate)]
    if study.sets:
        for split in ("validation", "test"):
            study.tasks(split, 0)
    needed = set() if study.train_reports else {recipe.data for recipe in recipes}
    for data in needed:
        if not Path(data).exists() and (Path(data).suffix or not is_hub_id(data)):
            raise UsageError(f"no training pages {data!r}: {_make_first(study)}")
    for backbone in {recipe.backbone for recipe in recipes} - {""}:
        try:
            find(backbone)
        except RandSlotError as error:
            raise UsageError(f"no backbone {backbone!r}: {_make_first(study)} ({error})") from error


def _make_first(study: Study) -> str:
    return (
        f"recipe {study.recipe!r} needs it; make pages with `python -m research.samples` and a backbone with "
        "`python -m research.pretrain` first (research/study.md has the commands), or name others in [set]"
    )


@contextmanager
def _alone(study: Study) -> Iterator[None]:
    """Let no second process work on the same study."""
    try:
        study.path("logs").mkdir(parents=True, exist_ok=True)
        lock = FileLock(study.path("lock"))
        lock.acquire(timeout=0)
    except Timeout as error:
        raise UsageError(f"another study is at work in {study.folder}: wait for it, or stop it") from error
    except OSError as error:
        raise UsageError(f"cannot write into {study.folder}: {error.strerror or error}") from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _open_pool(num: int) -> Iterator[Executor]:
    """Open a pool of processes, and end them with it: at once if it is left by an error or by Ctrl-C."""
    from .work import start_worker

    others = multiprocessing.active_children()
    environment = os.environ.copy()
    os.environ.update(ENVIRONMENT)  # read by every process when it starts, which is with the first jobs
    pool = ProcessPoolExecutor(num, multiprocessing.get_context("spawn"), start_worker)
    try:
        yield pool
    except BaseException:
        for process in multiprocessing.active_children():
            if process not in others:
                process.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        for name in ENVIRONMENT:
            os.environ.pop(name)
        os.environ.update(environment)


# -- the choice


def choose(study: Study, pool: Executor, console: Console) -> dict[str, Any]:
    """Return candidate, length and number of reports, chosen on Zero-Feedback and validation pages alone, once.

    Of each candidate the lengths are tried from the shortest on, as many at once as runs go side by side; of what is in
    range the shortest wins, and then the number of reports that is named first. What was tried is kept, in range or
    not.
    """
    study.make_training_pages()
    before = read_choice(study)
    job = Job(BASE, study.seeds[0], 0, candidate=before.get("candidate", study.candidate_names[0]))
    if "steps" in before:
        check_settings(before["settings"], study.settings(job), f"{study.results}/{CHOICE}")
        return keep_hypotheses(study, before)
    for reports in study.reports:
        study.make_pages("validation", reports)
    kept: dict[str, Any] = {"rule": make_rule(study), "settings": study.settings(job)}
    if before:  # the report says what was tried in vain
        last = {key: before[key] for key in ("rule", "settings", "tried")}
        changed = any(last[key] != kept[key] for key in ("rule", "settings"))
        kept["before"] = [*before.get("before", []), *([last] if changed else [])]

    tried: list[Tried] = []
    for candidate in study.candidate_names:
        for start in range(0, len(study.lengths), study.side_by_side):
            lengths = study.lengths[start : start + study.side_by_side]
            jobs = [Job(BASE, study.seeds[0], steps, candidate=candidate) for steps in lengths]
            found = run_jobs(study, jobs, pool, Watch(study, jobs, console, "choosing"))
            for job in jobs:
                tried += [_note(job, num, score) for num, score in found[job].items()]
            fitting = [one for one in tried if fits(study, one, tried)]
            kept["tried"] = tried
            if fitting:
                settings = study.settings(Job(BASE, study.seeds[0], 0, candidate=candidate))
                kept |= {key: value for key, value in fitting[0].items() if key != SCORE} | {"settings": settings}
            write_json(Path(study.results, CHOICE), kept)
            if fitting:
                return keep_hypotheses(study, kept)
    low, high = study.range
    scores = ", ".join(f"{one[SCORE]:.1f} ({_describe(one)})" for one in tried)
    raise RandSlotError(
        f"Zero-Feedback is nowhere between {low} and {high} on validation pages: {scores}; "
        "change lengths or reports in the study's file, and choose again"
    )


def fits(study: Study, one: Tried, tried: Sequence[Tried]) -> bool:
    """Whether a score is in range, and above that of the length before by as little as the study wants."""
    low, high = study.range
    if not low <= one[SCORE] <= high:
        return False
    if not study.most_rise:
        return True
    place = study.lengths.index(one["steps"])
    before = [other for other in tried if place and _is_same(one, other) and other["steps"] == study.lengths[place - 1]]
    return bool(before) and 0 < one[SCORE] - before[0][SCORE] <= study.most_rise


def _is_same(one: Tried, other: Tried) -> bool:
    """Whether two trials differ in their length only."""
    return all(one.get(key) == other.get(key) for key in ("candidate", "reports"))


def _note(job: Job, reports: int, score: float) -> Tried:
    candidate = {"candidate": job.candidate} if job.candidate else {}
    number = {"reports": reports} if reports else {}
    return candidate | {"steps": job.steps} | number | {SCORE: score}


def _describe(one: Mapping[str, Any]) -> str:
    parts = [one["candidate"]] if one.get("candidate") else []
    parts.append(f"{one['steps']} steps")
    if one.get("reports"):
        parts.append(f"{one['reports']} reports of each layout")
    return ", ".join(parts)


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


def _run_all(study: Study, choice: dict[str, Any], pool: Executor, console: Console) -> None:
    reports = choice.get("reports", 0)
    study.make_pages("test", reports)
    jobs = study.jobs(choice["steps"], reports, choice.get("candidate", ""))
    missing = [job for job in jobs if not is_done(study, job)]
    console.print(f"{len(jobs) - len(missing)} of {len(jobs)} runs are done")
    run_jobs(study, missing, pool, Watch(study, missing, console, "running"))


def run_jobs(study: Study, jobs: Sequence[Job], pool: Executor, watch: Watch) -> dict[Job, Scores]:
    """Do jobs, some side by side, and return what each found; one that fails does not stop the others.

    If a process dies, the pool ends, and all that are not finished have failed.

    Errors: RandSlotError in the end that names those that failed.
    """
    from .work import run_job

    futures = {pool.submit(run_job, study, job): job for job in jobs}
    found: dict[Job, Scores] = {}
    try:
        with watch:
            for future in watch.follow(futures):
                job = futures[future]
                try:
                    found[job] = future.result()
                except (RandSlotError, BrokenProcessPool) as error:
                    watch.count(job, f"failed: {error}")
                else:
                    watch.count(job, "done")
    except KeyboardInterrupt:
        watch.console.print("stopped: the same command goes on")
        raise
    if failed := [job.name for job in jobs if job not in found]:
        raise RandSlotError(
            f"{len(failed)} of {len(jobs)} runs failed: {', '.join(failed)}; "
            f"see {study.path('logs')}, and run the same command again"
        )
    return found


class Watch:
    """Show how far the jobs are: a bar in a terminal, a line for each job elsewhere."""

    def __init__(self, study: Study, jobs: Sequence[Job], console: Console, what: str) -> None:
        from randslot.training.train import LOSSES

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

    def follow(self, futures: Iterable[Future[Scores]]) -> Iterator[Future[Scores]]:
        """Yield each future when it is over, looking at the others meanwhile."""
        waiting = set(futures)
        while waiting:
            self.progress.update(self.bar, completed=self._steps(), status=self.describe())
            over, waiting = wait(waiting, timeout=1, return_when=FIRST_COMPLETED)
            yield from over

    def count(self, job: Job, how: str) -> None:
        """Take down that a job is over, and how."""
        self.jobs[job] = True
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
