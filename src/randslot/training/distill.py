"""Light queries: a student learns the vectors that a large model makes of queries, from queries alone.

The loss is the mean of 1 - cosine between each vector of the student and the teacher's at the same place: no pages, no
negatives, as NanoVDR and LEAF do it. A fixed number of vectors makes this possible for several of them.

Shapes: B batch, N queries, K vectors, D dimension of the teacher.
"""

from __future__ import annotations

import gc
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from ..errors import RandSlotError, UsageError
from ..files import read_json, read_lines, write_json
from ..machine import describe_machine, find_commit, list_versions
from ..model.loading import load, make_student
from ..model.model import RandSlotModel
from ..model.reader import Identity, PageReader, check_query, read_identity
from .data import list_queries, read_rows
from .recipe import CHOICES

TEACHER, VECTORS = "teacher.json", "vectors.f16"
BATCH, POOL = 64, 1024  # queries that a teacher encodes at once, and that are sorted by length before


def read_queries(places: Sequence[str], column: str = "query") -> list[str]:
    """Read queries, each once: from the lines of text files, or from a column of what training pairs come from.

    Errors: UsageError for a place or column that is not there; RandSlotError for a file or row that cannot be read.
    """
    found: dict[str, None] = {}
    for place in places:
        path = Path(place)
        as_rows = path.suffix in (".jsonl", ".parquet") or not path.is_file()
        for query in _read_column(place, column) if as_rows else read_lines(path):
            found[query] = None
    if len(found) < 2:
        raise UsageError(f"{', '.join(places)}: {len(found)} different queries are too few to learn from")
    return list(found)


def _read_column(place: str, column: str) -> list[str]:
    rows = read_rows(place, "train")
    if column not in rows.column_names:
        raise UsageError(f"{place} has no column {column!r}; it has {', '.join(rows.column_names)}")
    queries = []
    for number, row in enumerate(rows.select_columns([column]), start=1):
        for query in list_queries(row[column]):
            try:
                queries.append(check_query(query).strip())
            except UsageError as error:
                raise RandSlotError(f"{place}: row {number}: {error}") from error
    return queries


@dataclass(frozen=True)
class Lessons:
    """Queries with the vectors (N, K, D) that a teacher makes of them."""

    teacher: Identity
    queries: list[str]
    vectors: NDArray[np.float16]


class LessonFolder:
    """A folder with a teacher's vectors of some queries, complete or not."""

    def __init__(self, folder: Path, queries: list[str]) -> None:
        self.folder, self.queries = folder, queries
        self.key = blake2b("\n".join(queries).encode(), digest_size=12).hexdigest()

    def read(self) -> Lessons | None:
        """Return the vectors without asking the teacher, if they are complete.

        Errors: UsageError if they are of other queries.
        """
        teacher = self._read_teacher()
        if teacher is None or self._count(teacher) < len(self.queries):
            return None
        return self._open(teacher)

    def fill(self, reader: PageReader, progress: Callable[[int], None]) -> Lessons:
        """Compute the vectors that are missing; `progress` is told how many are there.

        Errors: UsageError if those that are there are of another teacher or of other queries, or if the teacher has no
        fixed number of vectors. RandSlotError for vectors that are not finite.
        """
        teacher = describe_teacher(reader)
        before = self._read_teacher()
        if before is None:
            write_json(self.folder / TEACHER, {"queries": self.key, "teacher": teacher.as_dict()})
        elif before.weights != teacher.weights or before.settings != teacher.settings:
            raise UsageError(f"{self.folder} has vectors of {before}, and this is {teacher}: choose another folder")
        done = self._count(teacher)
        with (self.folder / VECTORS).open("ab") as file:
            file.truncate(done * self._row_bytes(teacher))  # half a row was being written when it was stopped
            for start in range(done, len(self.queries), POOL):
                rows = self._ask(reader, teacher, start, progress)
                file.write(b"".join(rows[query] for query in self.queries[start : start + POOL]))
                file.flush()
        progress(len(self.queries))
        return self._open(teacher)

    def _ask(
        self, reader: PageReader, teacher: Identity, start: int, progress: Callable[[int], None]
    ) -> dict[str, bytes]:
        """Return the rows of some queries from `start` on; those of a like length are encoded together."""
        rows: dict[str, bytes] = {}
        some = sorted(self.queries[start : start + POOL], key=len)
        for first in range(0, len(some), BATCH):
            progress(start + first)
            batch = some[first : first + BATCH]
            for query, vectors in zip(batch, reader.embed_queries(batch), strict=True):
                rows[query] = _pack(query, vectors, teacher)
        return rows

    def _read_teacher(self) -> Identity | None:
        file = self.folder / TEACHER
        if not file.is_file():
            return None
        about = read_json(file)
        if about.get("queries") != self.key:
            raise UsageError(f"{self.folder} has vectors of other queries: choose another folder")
        try:
            return read_identity(about["teacher"])
        except (KeyError, TypeError, AttributeError) as error:
            raise RandSlotError(f"{file} does not say which model it is about: {error}") from error

    def _count(self, teacher: Identity) -> int:
        file = self.folder / VECTORS
        return file.stat().st_size // self._row_bytes(teacher) if file.is_file() else 0

    def _shape(self, teacher: Identity) -> tuple[int, int]:
        num = teacher.num_vectors("query")
        assert num is not None, "describe_teacher refuses others"
        return num, teacher.dimension

    def _row_bytes(self, teacher: Identity) -> int:
        num, dim = self._shape(teacher)
        return 2 * num * dim

    def _open(self, teacher: Identity) -> Lessons:
        shape = (len(self.queries), *self._shape(teacher))
        vectors: Any = np.memmap(self.folder / VECTORS, np.float16, "r", shape=shape)
        return Lessons(teacher, self.queries, vectors)


def describe_teacher(reader: PageReader) -> Identity:
    """Return which model a teacher is, with the number of vectors that it makes of a query.

    Errors: UsageError if that depends on the query, or if it is a student itself.
    """
    num, identity = reader.num_vectors("query"), reader.identity
    if num is None:
        raise UsageError(f"{identity} has a vector for every token of a query: a student learns a fixed number of them")
    if getattr(reader, "teacher", None) is not None:
        raise UsageError(f"{identity} is a student itself: name its teacher, {getattr(reader, 'teacher', None)}")
    return replace(identity, settings={**identity.settings, "query_vectors": num})


def _pack(query: str, vectors: NDArray[np.float32], teacher: Identity) -> bytes:
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    if vectors.shape != (teacher.num_vectors("query"), teacher.dimension) or not lengths.all():
        raise RandSlotError(f"the teacher makes no vectors that can be learned of {query[:80]!r}")
    if not np.isfinite(vectors).all():
        raise RandSlotError(f"the teacher makes vectors of {query[:80]!r} that are not finite")
    packed: bytes = (vectors / lengths).astype("<f2").tobytes()
    return packed


def load_lessons(
    name: str, folder: LessonFolder, progress: Callable[[int], None], *, trust_remote_code: bool = False
) -> Lessons:
    """Load a teacher, ask for the vectors that are missing, and let it go: a student has the memory for itself."""
    from ..model.reader import is_url
    from ..model.remote_model import open_model

    reader: Any = open_model(name) if is_url(name) else open_model(name, trust_remote_code=trust_remote_code or None)
    lessons = folder.fill(reader, progress)
    del reader
    gc.collect()
    return lessons


OPTIONS, RUN, CHECKPOINT, LESSONS = "distill.json", "run.json", "checkpoint.pt", "teacher"
MOST_HELD_OUT = 1000  # queries that are compared after each epoch
ENCODED = 64  # queries that are compared at once
POOL = 32  # batches whose queries are sorted by length together
CLIP, WEIGHT_DECAY = 1.0, 0.01
FREE = ("output", "cache", "save_every")  # a run may be resumed with others: what is computed does not depend on them
LIMITS = {
    "layers": (0, 1000),
    "epochs": (1, 10_000),
    "batch": (1, 65_536),
    "learning_rate": (0.0, 1.0),
    "warmup": (0, 1_000_000),
    "validation": (0.0, 0.5),
    "seed": (0, 2**32 - 1),
    "save_every": (0, 1_000_000),
}


@dataclass(frozen=True)
class Distillation:
    """How to make a student.

    teacher: a folder, a hub id, embedded, or the URL of a server; any model with a fixed number of vectors a query.
    student: a folder or hub id of a text model, whose weights it begins with, or the shape of one to build, by its
    name, "tiny", or a JSON file. queries: files with a query on each line, or what training pairs come from. output: a
    folder for the student and its run.

    layers: only so many of the student's first ones; 0: all. still_embeddings: those of tokens are not trained, so that
    words that no query has keep their place beside the others; for a student that begins with its teacher's. warmup:
    steps in which the rate rises; then it falls to zero as a cosine. precision: as in recipes. validation: the share of
    queries that are held out. save_every: steps between checkpoints; 0: none. cache: a folder for the teacher's
    vectors, which several students can share; by default one in the output.
    """

    teacher: str
    student: str
    queries: tuple[str, ...]
    output: str
    query_column: str = "query"
    layers: int = 0
    still_embeddings: bool = False
    epochs: int = 10
    batch: int = 32
    learning_rate: float = 3e-4
    warmup: int = 50
    precision: str = "bf16"
    validation: float = 0.05
    seed: int = 42
    save_every: int = 500
    cache: str = ""
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        for name in ("teacher", "student", "queries", "output"):
            if not getattr(self, name):
                raise UsageError(f"{name} is missing: a student needs a teacher, something to begin with, and queries")
        for name, (least, most) in LIMITS.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise UsageError(f"{name} must be between {least:g} and {most:g}, not {value}")
        if self.precision not in CHOICES["precision"]:
            raise UsageError(f"precision must be one of {', '.join(CHOICES['precision'])}, not {self.precision!r}")

    @property
    def lessons(self) -> Path:
        """Where the teacher's vectors are kept."""
        return Path(self.cache) if self.cache else Path(self.output) / LESSONS


def distill(options: Distillation, *, resume: bool = False) -> RandSlotModel:
    """Make a student of a model and leave it in the output folder, with its options and the record of its run.

    `resume` goes on from the last checkpoint of a run with the same options.

    Errors: UsageError for wrong options or a folder that holds another run. RandSlotError if a file cannot be read.
    """
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    folder = Path(options.output)
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise UsageError("a student learns in one process: run it without torchrun")
    _check_folder(folder, options, resume)
    if (folder / RUN).is_file():
        console.print(f"{folder} is finished already")
        return load(folder)
    queries = read_queries(options.queries, options.query_column)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / OPTIONS, asdict(options))
    except OSError as error:
        raise UsageError(f"cannot write into output {folder}: {error.strerror or error}") from error
    try:
        lessons = _find_lessons(options, queries, resume, console)
        return Run(options, lessons, console).go()
    except KeyboardInterrupt:
        console.print("stopped: --resume goes on from here")
        raise


def _check_folder(folder: Path, options: Distillation, resume: bool) -> None:
    """Refuse to write over another run or over one of the models, and to go on with other options."""
    for model in (options.teacher, options.student):
        if Path(model).is_dir() and Path(model).resolve() == folder.resolve():
            raise UsageError(f"output {folder} is the folder of {model}: choose another output")
    if not (folder / OPTIONS).is_file():
        if (folder / "randslot.json").is_file() or (folder / "config.json").is_file():
            raise UsageError(f"{folder} holds a model already: choose another output")
        return
    if not resume:
        raise UsageError(f"{folder} holds a run already: go on with it by --resume, or choose another output")
    before, now = read_json(folder / OPTIONS), json.loads(json.dumps(asdict(options)))
    for option in fields(options):
        name = option.name
        was = before[name]
        if name not in FREE and was != now[name]:
            raise UsageError(
                f"{folder} holds a run with another {name} ({was!r}, not {now[name]!r}): choose another output"
            )


def _find_lessons(options: Distillation, queries: list[str], resume: bool, console: Console) -> Lessons:
    """Return the teacher's vectors of the queries; one that has said all is not loaded again to go on."""
    folder = LessonFolder(options.lessons, queries)
    if resume and (lessons := folder.read()) is not None:
        return lessons
    console.print(f"asking {options.teacher} for the vectors of {len(queries):,} queries")
    with _show_progress(console, "teacher", len(queries)) as tell:
        return load_lessons(options.teacher, folder, tell, trust_remote_code=options.trust_remote_code)


@contextmanager
def _show_progress(console: Console, what: str, total: int) -> Iterator[Any]:
    """Show a bar where there is a terminal; yield what is told how far it is, and a few words."""
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[status]}"))
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=total, status="")
        yield lambda done, status="": progress.update(bar, completed=done, status=status)


@dataclass
class State:
    """How far a run is: steps done, and the cosine on held-out queries after each epoch."""

    step: int = 0
    cosines: list[float] = field(default_factory=list)


class Run:
    """A student on its way through the lessons. Its queries come in an order of the seed, another in each epoch."""

    def __init__(self, options: Distillation, lessons: Lessons, console: Console) -> None:
        self.options, self.lessons, self.console = options, lessons, console
        self.folder = Path(options.output)
        self.state = State()
        self.student = make_student(options.student, lessons.teacher, layers=options.layers, seed=options.seed)
        if options.still_embeddings:
            self.student.encoder.backbone.get_input_embeddings().requires_grad_(False)
        trained = [weight for weight in self.student.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.AdamW(
            trained, lr=options.learning_rate, betas=(0.9, 0.98), weight_decay=WEIGHT_DECAY
        )
        anywhere = options.precision == "bf16-anywhere"
        self.autocast = anywhere or (options.precision == "bf16" and self.student.device.type == "cuda")
        self.lengths = np.array([len(query) for query in lessons.queries])
        order = np.random.default_rng(options.seed).permutation(len(lessons.queries))
        num = min(round(options.validation * len(order)), MOST_HELD_OUT)
        num = max(num, 1) if options.validation else 0
        self.held_out, self.learned = np.sort(order[:num]), np.sort(order[num:])
        self.epoch, self.order = -1, self.learned  # which epoch it is, and how its queries follow each other
        self.steps_an_epoch = math.ceil(len(self.learned) / options.batch)
        self.num_steps = options.epochs * self.steps_an_epoch

    def go(self) -> RandSlotModel:
        """Learn, and save the student."""
        started = time.perf_counter()
        self._read_checkpoint()
        self._introduce()
        self.student.encoder.plain_queries = True  # as a library asks
        with _show_progress(self.console, "student", self.num_steps) as tell:
            while self.state.step < self.num_steps:
                loss = self._step()
                tell(self.state.step, f"cosine {1 - loss:.4f}")
                if self.state.step % self.steps_an_epoch == 0:
                    self._end_epoch(1 - loss)
                every = self.options.save_every
                if every and self.state.step % every == 0 and self.state.step < self.num_steps:
                    self._write_checkpoint()
        self.student.encoder.plain_queries = False
        self._finish(time.perf_counter() - started)
        return self.student

    def _introduce(self) -> None:
        size = sum(parameter.numel() for parameter in self.student.parameters()) / 1e6
        head = f", a projection to {self.student.dimension}" if self.student.encoder.head is not None else ""
        guess = f"; the mean of all has a cosine of {self.constant_cosine:.4f}" if len(self.held_out) else ""
        self.console.print(
            f"student {self.options.student}: {size:.1f} million weights{head}; {len(self.learned):,} queries to learn"
            f", {len(self.held_out):,} held out{guess}"
        )
        if self.state.step:
            self.console.print(f"going on from step {self.state.step} of {self.num_steps}")

    def _step(self) -> float:
        """Learn from one batch and return its loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.options.learning_rate * self._share_of_rate()
        rows = self._choose_rows()
        self.student.train()
        self.optimizer.zero_grad(set_to_none=True)
        loss = (1 - self._compare(rows)).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.student.parameters(), CLIP)
        self.optimizer.step()
        self.state.step += 1
        value = loss.item()
        if not math.isfinite(value):
            raise RandSlotError(f"the loss is {value} at step {self.state.step}: try a lower rate")
        return value

    def _share_of_rate(self) -> float:
        """Return how much of the full rate this step has: it rises, then falls as a cosine."""
        step, warmup = self.state.step, min(self.options.warmup, self.num_steps // 2)
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 + 0.5 * math.cos(math.pi * (step - warmup) / (self.num_steps - warmup))

    def _choose_rows(self) -> NDArray[np.int64]:
        epoch, place = divmod(self.state.step, self.steps_an_epoch)
        if epoch != self.epoch:
            self.epoch = epoch
            self.order = self._arrange(epoch)
        return self.order[place * self.options.batch : (place + 1) * self.options.batch]

    def _arrange(self, epoch: int) -> NDArray[np.int64]:
        """Return the queries of an epoch in their order: a batch holds those of a like length, so little is padding."""
        dice, batch = np.random.default_rng([self.options.seed, epoch]), self.options.batch
        order = dice.permutation(self.learned)
        for start in range(0, len(order), POOL * batch):
            pool = order[start : start + POOL * batch]
            pool[:] = pool[np.argsort(self.lengths[pool], kind="stable")]
        num = len(order) // batch
        whole = order[: num * batch].reshape(num, batch)
        return np.concatenate([dice.permutation(whole).ravel(), order[num * batch :]])

    def _compare(self, rows: NDArray[np.int64]) -> Tensor:
        """Return the cosines (B, K) between the vectors of student and teacher."""
        texts = [self.lessons.queries[row] for row in rows]
        features = self.student.preprocessor(texts, task="query")
        device = self.student.device
        features = {name: one.to(device) if isinstance(one, Tensor) else one for name, one in features.items()}
        with torch.autocast(device.type, torch.bfloat16) if self.autocast else nullcontext():
            found = self.student(features)["token_embeddings"].float()
        wanted = torch.from_numpy(self.lessons.vectors[rows].astype(np.float32)).to(device)
        return F.cosine_similarity(found, wanted, dim=-1)

    def _end_epoch(self, last: float) -> None:
        epoch = self.state.step // self.steps_an_epoch
        line = f"epoch {epoch} of {self.options.epochs}: cosine {last:.4f} in its last batch"
        if len(self.held_out):
            self.state.cosines.append(self._validate())
            line += f", {self.state.cosines[-1]:.4f} on {len(self.held_out):,} held-out queries"
        self.console.print(line)

    @torch.no_grad()
    def _validate(self) -> float:
        """Return the mean cosine on held-out queries."""
        self.student.eval()
        parts = [
            self._compare(self.held_out[start : start + ENCODED]).mean(1)
            for start in range(0, len(self.held_out), ENCODED)
        ]
        return float(torch.cat(parts).mean())

    @cached_property
    def constant_cosine(self) -> float:
        """The mean cosine on held-out queries of who answers all with the mean of the queries to learn."""
        sample = self.lessons.vectors[self.learned[:MOST_HELD_OUT]].astype(np.float32).mean(0)
        sample /= np.linalg.norm(sample, axis=-1, keepdims=True)
        held_out = self.lessons.vectors[self.held_out].astype(np.float32)
        return float((held_out * sample).sum(-1).mean())

    # -- files

    def _write_checkpoint(self) -> None:
        part = self.folder / f"{CHECKPOINT}.part"
        state = {"student": self.student.state_dict(), "optimizer": self.optimizer.state_dict(), **asdict(self.state)}
        torch.save(state, part)
        os.replace(part, self.folder / CHECKPOINT)

    def _read_checkpoint(self) -> None:
        file = self.folder / CHECKPOINT
        if not file.is_file():
            return
        try:
            kept = torch.load(file, map_location=self.student.device, weights_only=True)
            self.student.load_state_dict(kept["student"])
            self.optimizer.load_state_dict(kept["optimizer"])
            self.state = State(kept["step"], kept["cosines"])
        except Exception as error:  # a file that was damaged fails in many ways
            raise RandSlotError(f"{file} is broken: delete it to begin again") from error

    def _finish(self, seconds: float) -> None:
        options, state = self.options, self.state
        self.student.eval()
        self.student.model_card_data.trained_on = (
            f"{state.step} steps of {options.batch} queries out of {len(self.learned):,}, by the cosine to the "
            f"vectors of its teacher; `{OPTIONS}` has every setting, `{RUN}` versions and time."
        )
        self.student.save_pretrained(str(self.folder))
        record = {
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": sys.argv,
            "steps": state.step,
            "seconds_of_this_process": round(seconds, 1),
            "queries": len(self.learned),
            "held_out": len(self.held_out),
            "cosines": state.cosines,
            "constant_cosine": self.constant_cosine if len(self.held_out) else None,
            "teacher": self.lessons.teacher.as_dict(),
            "commit": find_commit(),
            "machine": describe_machine(),
            "versions": list_versions(),
        }
        write_json(self.folder / RUN, record)
        (self.folder / CHECKPOINT).unlink(missing_ok=True)
        self.console.print(f"learned {state.step} steps in {seconds:.0f} s: {self.folder}")
