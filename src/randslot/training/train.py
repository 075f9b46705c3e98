"""A training run: from a recipe to a folder with the model and all that made it."""

from __future__ import annotations

import csv
import json
import math
import os
import platform
import sys
import time
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from sentence_transformers import MultiVectorEncoderTrainer
from sentence_transformers.base.evaluation import BaseEvaluator
from sentence_transformers.multi_vector_encoder.data_collator import MultiVectorEncoderDataCollator
from sentence_transformers.multi_vector_encoder.evaluation import MultiVectorInformationRetrievalEvaluator
from torch.utils.tensorboard import SummaryWriter
from transformers import (
    PrinterCallback,
    ProgressCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.integrations import TensorBoardCallback
from transformers.utils.logging import (
    disable_progress_bar,
    enable_progress_bar,
    get_verbosity,
    set_verbosity,
    set_verbosity_error,
)

from ..errors import RandSlotError, UsageError
from ..files import write_json
from ..machine import find_commit, list_versions
from ..model.frozen_vision import FrozenVision, KnownPage
from ..model.loading import load, untrained
from ..model.model import RandSlotModel
from ..model.preprocessing import Preprocessor
from ..plots import draw_losses
from .arguments import (
    add_kernels,
    check_shared_memory,
    choose_hardware,
    make_arguments,
    refuse_sharding,
    share,
    shared_bytes,
)
from .data import Opener, Pairs, count_queries, drop_bad_rows, held_out, list_queries, load_pairs
from .loss import Loss
from .plan import largest_page
from .recipe import FREE, Recipe, make_recipe, read_recipe, write_recipe

COLUMNS = ["step", "loss", "learning_rate", "grad_norm", "pages_per_second"]


class OwnSlots(TrainerCallback):
    """Give each process a random state of its own.

    The trainer seeds all processes alike, so example i would get the same slots on every one of them. The model is
    made before this, so adapters start equal. A resumed run restores its saved states after this.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        torch.manual_seed(process_seed(self.seed, args.process_index))


class NoLastCheckpoint(TrainerCallback):
    """Leave out the checkpoint of the last step: the model itself comes then.

    A run that was killed between the two would go on from it, and the trainer takes one step more than asked for.
    """

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step >= state.max_steps:
            control.should_save = False


def process_seed(seed: int, rank: int) -> int:
    """Return a seed for one process, the plain seed for the first."""
    return seed + 1_000_003 * rank


class Losses(TrainerCallback):
    """Keep every step's loss in a CSV and stop a run whose loss is not a finite number."""

    def __init__(self, file: Path, batch: int) -> None:
        self.file = file
        self.batch = batch
        self.started = 0.0
        self.first_step = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.started, self.first_step = time.perf_counter(), state.global_step
        if args.process_index == 0:
            # A killed run may have gone on after its last checkpoint: those steps come again.
            kept = [row for row in read_losses(self.file) if int(row["step"]) <= state.global_step]
            with self.file.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, COLUMNS)
                writer.writeheader()
                writer.writerows(kept)

    def speed(self, state: TrainerState) -> float:
        """Return pages a second since this process began."""
        num_pages = int(state.global_step - self.first_step) * self.batch
        return num_pages / max(time.perf_counter() - self.started, 1e-9)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any
    ) -> None:
        if not logs or "loss" not in logs:
            return
        if not math.isfinite(logs["loss"]):
            raise RandSlotError(f"the loss is {logs['loss']} at step {state.global_step}; try a lower learning_rate")
        if args.process_index == 0:
            row = {name: logs.get(name) for name in COLUMNS}
            row |= {"step": state.global_step, "pages_per_second": round(self.speed(state), 3)}
            with self.file.open("a", newline="", encoding="utf-8") as file:
                csv.DictWriter(file, COLUMNS).writerow(row)


def read_losses(file: Path) -> list[dict[str, str]]:
    """Read the rows of a losses file; none if there is no such file yet."""
    if not file.is_file():
        return []
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


class Bar(TrainerCallback):
    """Show a progress bar with loss, rate, pages a second and time left; plain lines where there is no terminal."""

    losses: Losses

    def __init__(self, console: Console) -> None:
        self.console = console
        self.task = TaskID(0)
        self.progress = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.task = self.progress.add_task("", total=state.max_steps, completed=state.global_step, status="")
        self.progress.start()

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any
    ) -> None:
        if not logs:
            return
        for key, what in (("eval_maxsim_ndcg@5", "nDCG@5"), ("eval_read", "share read right")):
            if key in logs:
                self.console.print(f"step {state.global_step}: validation {what} {logs[key]:.4f}")
        if "loss" not in logs:
            return
        speed = self.losses.speed(state)
        status = f"loss {logs['loss']:.4f}  rate {logs.get('learning_rate', 0):.2e}  {speed:.1f} pages/s"
        self.progress.update(self.task, completed=state.global_step, status=status)
        every = max(state.max_steps // 20, 1)
        if not self.console.is_terminal and (state.global_step % every == 0 or state.global_step == state.max_steps):
            left = (state.max_steps - state.global_step) * self.losses.batch / max(speed, 1e-9)
            self.console.print(f"step {state.global_step}/{state.max_steps}  {status}  {left:.0f} s left")

    def stop(self) -> None:
        """Give the terminal back, however the run ended."""
        self.progress.stop()


RECIPE, RUN, LOSSES, CURVE, SKIPPED = "recipe.toml", "run.json", "losses.csv", "losses.png", "skipped_rows.txt"


def train(recipe: Recipe | str | Path | dict[str, Any], *, resume: bool = False) -> RandSlotModel:
    """Train a model and leave it in the recipe's output folder with recipe, versions, losses and model card.

    `recipe` is a Recipe, a dictionary of its values, a recipe file, or the name of one that ships with the package.
    `resume` goes on from the last checkpoint of the same recipe. Under torchrun every process calls this.
    """
    if isinstance(recipe, dict):
        recipe = make_recipe(recipe)
    elif not isinstance(recipe, Recipe):
        recipe = read_recipe(recipe)
    recipe = recipe if recipe.output else replace(recipe, output=f"runs/{recipe.slots}-{recipe.seed}")
    run = Run(recipe, resume)
    if resume and (run.folder / RUN).is_file():
        run.console.print(f"{run.folder} is finished already")
        return load(run.folder)
    return run.go()


class UndisturbedTrainer(MultiVectorEncoderTrainer):
    """The trainer, whose validation leaves the random state of training as it was: looking changes nothing."""

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        with torch.random.fork_rng(devices=[torch.cuda.current_device()] if torch.cuda.is_available() else []):
            found: dict[str, float] = super().evaluate(*args, **kwargs)
        return found


@dataclass(frozen=True)
class Columns:
    """Preprocesses the columns of a batch in a worker: pages, or queries, of which a row may have several."""

    preprocessor: Preprocessor
    frozen: FrozenVision | None = None

    def __call__(self, inputs: list[Any], **options: Any) -> dict[str, Any]:
        if self.frozen is not None and isinstance(inputs[0], KnownPage):
            return self.frozen.preprocess(inputs)
        flat = [item for row in inputs for item in list_queries(row)]
        return self.preprocessor(flat, **options)


class Run:
    """One run of one recipe in one process of possibly many."""

    def __init__(self, recipe: Recipe, resume: bool) -> None:
        self.recipe = recipe
        self.folder = Path(recipe.output)
        self.rank = int(os.environ.get("RANK", "0"))
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self.console = Console(stderr=True, quiet=self.rank != 0, highlight=False, soft_wrap=True)
        self.bar = Bar(self.console)
        self.batch = share(recipe.batch, self.world)
        self.hardware = choose_hardware(recipe)
        self.frozen: FrozenVision | None = None
        refuse_sharding()
        self.checkpoint = _last_checkpoint(self.folder, self.world)
        if self.rank == 0:  # the others may look when the first one has begun to write
            _check_folder(self.folder, recipe, self.checkpoint, resume)

    def go(self) -> RandSlotModel:
        """Train, and save the result."""
        verbosity = get_verbosity()
        set_verbosity_error()  # our own bar and lines say what is needed
        disable_progress_bar()
        try:
            return self._go()
        except RandSlotError as error:
            # A worker's error arrives with its traceback as its message; its last line is ours.
            line = str(error).strip().splitlines()[-1].rpartition("RandSlotError: ")[2]
            raise type(error)(line) from error
        except torch.OutOfMemoryError as error:
            raise RandSlotError(
                "the GPU has too little memory: set gradient_cache = true, then a smaller micro_batch or fewer "
                "visual_tokens; randslot train RECIPE --dry-run computes what is needed"
            ) from error
        except KeyboardInterrupt:
            if self.recipe.save_every:
                self.console.print("stopped: --resume goes on from the last checkpoint")
            raise
        finally:
            self.bar.stop()
            set_verbosity(verbosity)
            enable_progress_bar()

    def _go(self) -> RandSlotModel:
        started = time.perf_counter()
        pairs, evaluator, model = self.load_pairs(), self.make_evaluator(), self.make_model()
        self.hardware = add_kernels(self.hardware, model.family)
        if self.rank == 0:
            self.begin()
        for line in self.hardware.fallbacks:
            self.console.print(line)
        self.check_shared_memory(model)
        trainer = self.make_trainer(model, pairs, evaluator)
        if self.checkpoint:
            self.console.print(f"going on from {self.checkpoint}")
        trainer.train(resume_from_checkpoint=str(self.checkpoint) if self.checkpoint else None)
        if self.frozen:
            self.frozen.close()
        if trainer.is_world_process_zero():
            self.finish(model, trainer, pairs, time.perf_counter() - started)
        trainer.accelerator.wait_for_everyone()  # no process leaves while the first one is still writing
        return model

    def begin(self) -> None:
        """Make the output folder and write the recipe into it."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if self.checkpoint is None:
                (self.folder / SKIPPED).unlink(missing_ok=True)
            write_recipe(self.recipe, self.folder / RECIPE)
        except OSError as error:
            raise UsageError(f"cannot write into output {self.folder}: {error.strerror or error}") from error

    def load_pairs(self) -> Pairs:
        """Load the training pairs and look for bad rows."""
        recipe = self.recipe
        pairs = self._load(recipe.data, recipe.split)
        pairs, bad = drop_bad_rows(pairs, recipe.on_bad_row)
        if bad:
            self.console.print(
                f"skipped {len(bad)} of {len(pairs) + len(bad)} rows: {bad[0]}" + ", ..." * (len(bad) > 1)
            )
        if len(pairs) < recipe.batch:
            raise UsageError(f"{recipe.data} has {len(pairs)} good pairs, fewer than one batch of {recipe.batch}")
        return pairs

    def _load(self, data: str, split: str) -> Pairs:
        recipe = self.recipe
        return load_pairs(data, split, recipe.query_column, recipe.page_column, texts=recipe.page_texts)

    def make_model(self) -> RandSlotModel:
        """Make the model as it is before training: the same for every strategy under one seed."""
        recipe = self.recipe
        adapter = {"rank": recipe.lora_rank, "alpha": recipe.lora_alpha, "dropout": recipe.lora_dropout}
        options: dict[str, Any] = {
            "lora": adapter if recipe.lora else False,
            "device": f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if self.hardware.on_gpu else "cpu",
            "dtype": self.hardware.weights_dtype(recipe),
            "attn_implementation": self.hardware.attention,
        }
        options |= asdict(recipe.settings())
        model = untrained(recipe.untrained, **options) if recipe.untrained else load(recipe.backbone, **options)
        _check_reads(recipe, model)
        model.encoder.loops = recipe.execution == "loop"
        return model

    def make_trainer(
        self, model: RandSlotModel, pairs: Pairs, evaluator: BaseEvaluator | None = None
    ) -> MultiVectorEncoderTrainer:
        """Put model, pairs, loss and settings into sentence-transformers' trainer."""
        recipe = self.recipe
        if recipe.gradient_checkpointing:
            model.backbone.checkpoint_layers()
        args = make_arguments(recipe, self.folder, self.world, self.hardware)
        whole = recipe.epochs * (len(pairs) // recipe.batch)
        args.max_steps = min(recipe.steps or whole, whole)
        losses = Losses(self.folder / LOSSES, recipe.batch)
        self.frozen = FrozenVision(model) if recipe.still_vision else None
        read = self.frozen.read if self.frozen else model.page_opener
        opener = Opener(pairs, recipe.on_bad_row, self.folder / SKIPPED, read)
        trainer = UndisturbedTrainer(
            model=model,
            args=args,
            train_dataset=pairs.dataset.with_transform(opener),
            loss=self.make_loss(model),
            evaluator=evaluator,
            data_collator=MultiVectorEncoderDataCollator(Columns(self.make_preprocessor(model), self.frozen)),
            callbacks=[OwnSlots(recipe.seed), NoLastCheckpoint(), losses],
        )
        if self.rank == 0:
            self.bar.losses = losses
            trainer.add_callback(self.bar)
            trainer.add_callback(TensorBoardCallback(SummaryWriter(str(self.folder / "tensorboard"))))
        trainer.remove_callback(PrinterCallback)
        trainer.remove_callback(ProgressCallback)
        return trainer

    def make_preprocessor(self, model: RandSlotModel) -> Preprocessor:
        """Return what workers preprocess with: page images leave them in the type that the first layer computes in."""
        return replace(model.preprocessor, dtype=self.hardware.dtype)

    def check_shared_memory(self, model: RandSlotModel) -> None:
        """Refuse to start if the workers of this machine have no room for their batches."""
        if self.recipe.workers:
            features = self.make_preprocessor(model)([largest_page(model)], task="document")
            page_bytes = sum(value.nbytes for value in features.values() if isinstance(value, torch.Tensor))
            here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
            check_shared_memory(shared_bytes(self.recipe, page_bytes, self.batch, here), self.recipe.workers)

    def make_loss(self, model: RandSlotModel) -> torch.nn.Module:
        """Make the loss."""
        recipe = self.recipe
        return Loss(
            model,
            temperature=recipe.temperature,
            batch=self.batch,
            micro_batch=recipe.micro_batch,
            mask_repeats=recipe.repeated_pages == "mask",
            prefixes=recipe.prefixes,
            gradient_cache=recipe.gradient_cache,
        )

    def make_evaluator(self) -> BaseEvaluator | None:
        """Make what looks at held-out pairs, if the recipe asks for it."""
        recipe = self.recipe
        if not recipe.validate_every:
            return None
        pairs = self._load(recipe.validation, recipe.validation_split)
        pairs, _ = drop_bad_rows(pairs, recipe.on_bad_row)
        return self.evaluate_on(
            replace(pairs, dataset=pairs.dataset.select(range(min(len(pairs), recipe.validation_rows))))
        )

    def evaluate_on(self, pairs: Pairs) -> BaseEvaluator:
        """Make the search over held-out pairs."""
        return MultiVectorInformationRetrievalEvaluator(*held_out(pairs), ndcg_at_k=[5], batch_size=8)

    def save(self, model: RandSlotModel) -> None:
        """Save the trained model."""
        model.save_pretrained(str(self.folder))

    def finish(self, model: RandSlotModel, trainer: MultiVectorEncoderTrainer, pairs: Pairs, seconds: float) -> None:
        """Save the model, the curve and the record of the run."""
        num_queries = count_queries(pairs)
        what = "pairs" if num_queries == 1 else f"pages with {num_queries} queries each"
        model.model_card_data.trained_on = (
            f"{trainer.state.global_step} steps of {self.recipe.batch} {what} out of {len(pairs):,} from "
            f"{self.recipe.data}; `recipe.toml` has every setting, `run.json` versions and time."
        )
        self.save(model)
        rows = read_losses(self.folder / LOSSES)
        losses, rates = ([float(row[name]) for row in rows] for name in ("loss", "learning_rate"))
        draw_losses([int(row["step"]) for row in rows], losses, rates, self.folder / CURVE)
        skipped = self.folder / SKIPPED
        num_skipped = len(set(skipped.read_text(encoding="utf-8").splitlines())) if skipped.is_file() else 0
        record = {
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": sys.argv,
            "steps": trainer.state.global_step,
            "seconds_of_this_process": round(seconds, 1),
            "processes": self.world,
            "seed": self.recipe.seed,
            "commit": find_commit(),
            "optimizer": trainer.args.optim,
            "attention": model.backbone.model.config._attn_implementation,
            "precision": self.hardware.precision,
            "fallbacks": list(self.hardware.fallbacks),
            "broken_images_passed_over": num_skipped,
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or "cpu",
            "versions": list_versions(),
        }
        write_json(self.folder / RUN, record)
        if num_skipped:
            self.console.print(f"skipped {num_skipped} broken images: see {skipped}")
        self.console.print(f"trained {trainer.state.global_step} steps in {seconds:.0f} s: {self.folder}")


def _check_reads(recipe: Recipe, model: RandSlotModel) -> None:
    """Refuse a recipe that asks a model for what it does not read."""
    if recipe.page_texts and model.reads != "text":
        raise UsageError(f"page_texts is for models that read text, and a {model.family} model looks at images")


def _check_folder(folder: Path, recipe: Recipe, checkpoint: Path | None, resume: bool) -> None:
    """Refuse to write over another run or over the backbone, and to go on with another recipe."""
    if recipe.backbone and Path(recipe.backbone).is_dir() and Path(recipe.backbone).resolve() == folder.resolve():
        raise UsageError(f"output {folder} is the backbone's own folder: choose another output")
    finished = (folder / RUN).is_file()
    if not finished and checkpoint is None:
        return
    if not resume:
        raise UsageError(f"{folder} holds a run already: go on with it by --resume, or choose another output")
    before = read_recipe(folder / RECIPE)
    for name in (field.name for field in fields(recipe) if field.name not in FREE):
        if getattr(before, name) != getattr(recipe, name):
            raise UsageError(
                f"{folder} holds a run with another {name} ({getattr(before, name)!r}, "
                f"not {getattr(recipe, name)!r}): choose another output"
            )


def _last_checkpoint(folder: Path, world: int) -> Path | None:
    """Return the newest checkpoint that was written to its end."""
    found = [path for path in (folder / "checkpoints").glob("checkpoint-*") if _is_whole(path, world)]
    return max(found, key=lambda path: int(path.name.rpartition("-")[2]), default=None)


def _is_whole(checkpoint: Path, world: int) -> bool:
    """Whether the first process wrote its state, which comes last, and every process its random state."""
    try:
        json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    states = {file.name for file in checkpoint.glob("rng_state*.pth")}
    of_all = {f"rng_state_{rank}.pth" for rank in range(world)} if world > 1 else set()
    return bool(states) and (of_all <= states or "rng_state.pth" in states)
