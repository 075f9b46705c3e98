"""Distill a large teacher's query vectors into a small student, from queries only.

The loss is the mean of 1 - cosine between each vector of the student and the teacher's vector at the same position: no
pages, no negatives, as in NanoVDR and LEAF. It needs a fixed number of vectors. If the teacher was trained with nested
widths, so is the student.

Shapes: B batch, N queries, K vectors, D dimension of the teacher.
"""

from __future__ import annotations

import gc
import json
import math
import os
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from torch import Tensor

from ..errors import RandSlotError, UsageError, in_one_line
from ..files import read_json, read_lines, write_json
from ..machine import describe_machine
from ..model import open_torch_model
from ..model.model import RandSlotModel, load, make_student
from ..model.reader import Identity, check_query, find_teacher, is_url, read_identity
from .data import list_queries, read_rows
from .train import RUN, check_resumed, write_record

OPTIONS, CHECKPOINT = "distill.json", "checkpoint.pt"
TEACHER, VECTORS = "teacher.json", "vectors.f16"
AT_ONCE = 1024  # queries, sorted by length before batching


@dataclass(frozen=True)
class Distillation:
    """Distillation options; the command checks their limits.

    teacher: a folder, a hub id, embedded, or the URL of a server; a model with a fixed number of vectors per query.
    student: a folder or hub id of a text model, or a shape to build with random weights: a name, "tiny", or a JSON
    file. queries: text files with a query per line, or training pairs. output: a folder for the student and its run.

    layers: keep only this many of the student's first layers; 0: all. freeze_embeddings: freeze token embeddings, to
    preserve words outside the queries; for a student initialised from its teacher's layers. precision: as in recipes.
    validation: the held-out share of the queries. save_every: steps between checkpoints; 0: none. cache: a folder for
    the teacher's vectors, to share between students; by default in the output.
    """

    teacher: str
    student: str
    queries: tuple[str, ...]
    output: str
    layers: int = 0
    freeze_embeddings: bool = False
    epochs: int = 10
    batch: int = 32
    learning_rate: float = 3e-4
    precision: str = "bf16"
    validation: float = 0.05
    seed: int = 42
    save_every: int = 500
    cache: str = ""
    trust_remote_code: bool = False


def distill(options: Distillation, *, resume: bool = False) -> RandSlotModel:
    """Train a student and save it in the output folder, with its options and run record.

    `resume` continues from the last checkpoint of a run with the same options.
    """
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    folder = Path(options.output)
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise UsageError("distillation runs in one process. Start it without torchrun.")
    if (folder / OPTIONS).is_file() and (resume or (folder / CHECKPOINT).is_file() or (folder / RUN).is_file()):
        now = json.loads(json.dumps(asdict(options)))
        check_resumed(folder, read_json(folder / OPTIONS), now, resume, {"output", "cache", "save_every"})
    elif (folder / "randslot.json").is_file() or (folder / "config.json").is_file():
        raise UsageError(f"{folder} already holds a model. Choose another output.")
    if (folder / RUN).is_file():
        console.print(f"{folder} is already finished")
        return load(folder)
    queries = read_queries(options.queries)
    with in_one_line(f"write into output {folder}", UsageError):
        write_json(folder / OPTIONS, asdict(options))
    try:
        place = Path(options.cache) if options.cache else folder / "teacher"
        teacher, vectors = encode_targets(place, queries, options, console)
        return StudentTraining(options, queries, teacher, vectors, console).run()
    except KeyboardInterrupt:
        console.print("stopped: --resume resumes it")
        raise


def read_queries(places: Sequence[str]) -> list[str]:
    """Read distinct queries from the lines of text files, or from training pairs."""
    found: dict[str, None] = {}
    for place in places:
        path = Path(place)
        if path.is_file() and path.suffix not in (".jsonl", ".parquet"):
            found.update(dict.fromkeys(read_lines(path)))
            continue
        for number, row in enumerate(read_rows(place, "train", ["query"]), start=1):
            for query in list_queries(row["query"]):
                try:
                    found[check_query(query).strip()] = None
                except UsageError as error:
                    raise RandSlotError(f"{place}: row {number}: {error}") from error
    if len(found) < 2:
        raise UsageError(f"{', '.join(places)}: too few distinct queries ({len(found)})")
    return list(found)


def encode_targets(
    folder: Path, queries: list[str], options: Distillation, console: Console
) -> tuple[Identity, NDArray[np.float16]]:
    """Return the teacher and its vectors (N, K, D) of queries, computing those missing from the folder."""
    key = blake2b("\n".join(queries).encode(), digest_size=12).hexdigest()
    file, before = folder / VECTORS, None
    if (folder / TEACHER).is_file():
        about = read_json(folder / TEACHER)
        if about["queries"] != key:
            raise UsageError(f"{folder} has vectors of other queries. Choose another folder.")
        before = read_identity(about["teacher"])
        shape = len(queries), before.settings["query_vectors"], before.dimension
        is_same = before.name in (options.teacher, str(Path(options.teacher).resolve()))
        if is_same and file.is_file() and file.stat().st_size == 2 * math.prod(shape):
            return before, np.memmap(file, np.float16, "r", shape=shape)
    console.print(f"encoding {len(queries):,} queries with {options.teacher}")
    trust = options.trust_remote_code and not is_url(options.teacher)
    reader = open_torch_model(options.teacher, trust_remote_code=trust or None)
    num, teacher = reader.num_vectors("query"), reader.identity
    if num is None:
        raise UsageError(f"{teacher} has a vector for every token of a query, but a student needs a fixed number")
    if (its_teacher := find_teacher(reader)) is not None:
        raise UsageError(f"{teacher} is a student itself. Pass its teacher, {its_teacher}.")
    teacher = replace(teacher, settings={**teacher.settings, "query_vectors": num})
    if before and (before.weights, before.settings) != (teacher.weights, teacher.settings):
        raise UsageError(f"{folder} has vectors of {before}, not of {teacher}. Choose another folder.")
    write_json(folder / TEACHER, {"queries": key, "teacher": teacher.as_dict()})
    row_bytes = 2 * num * teacher.dimension
    done = file.stat().st_size // row_bytes if file.is_file() else 0
    with file.open("ab") as output:
        output.truncate(done * row_bytes)  # a killed run may leave half a row
        starts = range(done, len(queries), AT_ONCE)
        for start in track(starts, "teacher", console=console, disable=not console.is_terminal):
            vectors_BKD = np.stack(reader.embed_queries(queries[start : start + AT_ONCE]))
            lengths = np.linalg.norm(vectors_BKD, axis=-1, keepdims=True)
            assert (np.isfinite(lengths) & (lengths > 0)).all(), "the teacher makes invalid vectors"
            output.write((vectors_BKD / lengths).astype("<f2").tobytes())
            output.flush()
    del reader
    gc.collect()  # free its memory for the student
    return teacher, np.memmap(file, np.float16, "r", shape=(len(queries), num, teacher.dimension))


class StudentTraining:
    """One training run of a student. The seed determines the order of queries in each epoch."""

    def __init__(
        self,
        options: Distillation,
        queries: list[str],
        teacher: Identity,
        vectors_NKD: NDArray[np.float16],
        console: Console,
    ) -> None:
        self.options, self.queries, self.console, self.folder = options, queries, console, Path(options.output)
        self.teacher, self.vectors = teacher, vectors_NKD
        self.student = make_student(options.student, teacher, layers=options.layers, seed=options.seed)
        if options.freeze_embeddings:
            self.student.encoder.backbone.get_input_embeddings().requires_grad_(False)
        trained = [weight for weight in self.student.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=options.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
        on_gpu = self.student.device.type == "cuda"
        self.autocast = options.precision == "bf16-anywhere" or (options.precision == "bf16" and on_gpu)
        order = np.random.default_rng(options.seed).permutation(len(queries))
        num = min(max(round(options.validation * len(order)), 1), 1000) if options.validation else 0
        self.held_out, self.training_rows = np.sort(order[:num]), np.sort(order[num:])
        self.steps_per_epoch = math.ceil(len(self.training_rows) / options.batch)
        self.num_steps = options.epochs * self.steps_per_epoch
        self.step = 0
        self.cosines: list[float] = []  # on held-out queries, after each epoch
        file = self.folder / CHECKPOINT
        if file.is_file():
            with in_one_line(f"read {file}", hint="; delete it to start again"):
                state = torch.load(file, map_location=self.student.device, weights_only=True)
                self.student.load_state_dict(state["student"])
                self.optimizer.load_state_dict(state["optimizer"])
                self.step, self.cosines = state["step"], state["cosines"]

    def run(self) -> RandSlotModel:
        """Train and save the student."""
        started, batch, every = time.perf_counter(), self.options.batch, self.options.save_every
        size = sum(parameter.numel() for parameter in self.student.parameters()) / 1e6
        self.console.print(
            f"student {self.options.student}: {size:.1f} million weights, {len(self.training_rows):,} training "
            f"queries, {len(self.held_out):,} held out"
        )
        if self.step:
            self.console.print(f"resuming from step {self.step} of {self.num_steps}")
        self.student.encoder.plain_queries = True  # as in a library
        steps = range(self.step, self.num_steps)
        for _ in track(steps, "student", console=self.console, disable=not self.console.is_terminal):
            epoch, place = divmod(self.step, self.steps_per_epoch)
            if place == 0 or self.step == steps[0]:
                order = self.order_queries(epoch)
            loss = self.train_step(order[place * batch : (place + 1) * batch])
            if self.step % self.steps_per_epoch == 0:
                self._end_epoch(epoch, 1 - loss)
            if every and self.step % every == 0 and self.step < self.num_steps:
                part = self.folder / f"{CHECKPOINT}.part"
                state = {"student": self.student.state_dict(), "optimizer": self.optimizer.state_dict()}
                torch.save(state | {"step": self.step, "cosines": self.cosines}, part)
                os.replace(part, self.folder / CHECKPOINT)
        self.student.encoder.plain_queries = False
        self._finish(time.perf_counter() - started)
        return self.student

    def order_queries(self, epoch: int) -> NDArray[np.int64]:
        """Return the queries of an epoch in shuffled batches of similar length, to save padding."""
        rng, batch = np.random.default_rng([self.options.seed, epoch]), self.options.batch
        lengths = np.array([len(query) for query in self.queries])
        order = rng.permutation(self.training_rows)
        for start in range(0, len(order), 32 * batch):
            pool = order[start : start + 32 * batch]
            pool[:] = pool[np.argsort(lengths[pool], kind="stable")]
        num = len(order) // batch
        full = order[: num * batch].reshape(num, batch)
        return np.concatenate([rng.permutation(full).ravel(), order[num * batch :]])

    def train_step(self, rows: NDArray[np.int64]) -> float:
        """Train on one batch and return its loss."""
        warmup = min(50, self.num_steps // 2)  # linear warmup, before a cosine decay to zero
        if self.step < warmup:
            rate_factor = (self.step + 1) / warmup
        else:
            rate_factor = 0.5 + 0.5 * math.cos(math.pi * (self.step - warmup) / (self.num_steps - warmup))
        for group in self.optimizer.param_groups:
            group["lr"] = self.options.learning_rate * rate_factor
        self.student.train()
        self.optimizer.zero_grad(set_to_none=True)
        loss = (1 - self.compare(rows, self.student.settings.widths)).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.student.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1
        if not loss.isfinite():
            raise RandSlotError(f"the loss is {loss.item()} at step {self.step}. Try a lower rate.")
        return loss.item()

    def compare(self, rows: NDArray[np.int64], widths: Sequence[int] = ()) -> Tensor:
        """Return the cosines (1 + widths, B, K) between vectors of student and teacher: full, then cut to widths."""
        features = self.student.preprocessor([self.queries[row] for row in rows], task="query")
        device = self.student.device
        features = {name: one.to(device) if isinstance(one, Tensor) else one for name, one in features.items()}
        with torch.autocast(device.type, torch.bfloat16) if self.autocast else nullcontext():
            predicted = self.student(features)["token_embeddings"].float()
        targets = torch.from_numpy(self.vectors[rows].astype(np.float32)).to(device)
        cosines = [
            F.cosine_similarity(predicted[..., :width], targets[..., :width], dim=-1) for width in (None, *widths)
        ]
        return torch.stack(cosines)

    @torch.no_grad()
    def _end_epoch(self, epoch: int, cosine: float) -> None:
        line = f"epoch {epoch + 1} of {self.options.epochs}: cosine {cosine:.4f} in the last batch"
        if len(self.held_out):
            self.student.eval()
            parts = []
            for start in range(0, len(self.held_out), 64):
                parts.append(self.compare(self.held_out[start : start + 64])[0].mean(1))
            self.cosines.append(float(torch.cat(parts).mean()))
            line += f", {self.cosines[-1]:.4f} on {len(self.held_out):,} held-out queries"
        self.console.print(line)

    def _finish(self, seconds: float) -> None:
        self.student.eval()
        self.student.model_card_data.trained_on = (
            f"{self.step} steps of {self.options.batch} queries out of {len(self.training_rows):,}, by the cosine to "
            f"the vectors of its teacher; `{OPTIONS}` has every setting, `{RUN}` versions and time."
        )
        self.student.save_pretrained(str(self.folder))
        record = {
            "steps": self.step,
            "seconds_of_this_process": round(seconds, 1),
            "queries": len(self.training_rows),
            "held_out": len(self.held_out),
            "cosines": self.cosines,
            "teacher": self.teacher.as_dict(),
            "machine": describe_machine(),
        }
        write_record(self.folder, self.student, record, OPTIONS)
        (self.folder / CHECKPOINT).unlink(missing_ok=True)
        self.console.print(f"trained {self.step} steps in {seconds:.0f} s: {self.folder}")
