"""Train a model from a recipe; save it with its losses and the record of the run."""

from __future__ import annotations

import csv
import json
import math
import os
import platform
import sys
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from sentence_transformers import MultiVectorEncoderTrainer, MultiVectorEncoderTrainingArguments
from sentence_transformers.base.evaluation import BaseEvaluator
from sentence_transformers.multi_vector_encoder.data_collator import MultiVectorEncoderDataCollator
from sentence_transformers.multi_vector_encoder.evaluation import MultiVectorInformationRetrievalEvaluator
from torch.utils.tensorboard import SummaryWriter
from transformers import PrinterCallback, TrainerCallback
from transformers.integrations import TensorBoardCallback
from transformers.utils import logging

from ..errors import RandSlotError, UsageError, in_one_line
from ..files import write_json
from ..machine import describe_checkout, list_versions
from ..model.encoder import FrozenVision
from ..model.model import RandSlotModel, load, untrained
from ..model.own_code import hash_code, list_code, trust_code
from ..plots import draw_losses
from .data import (
    ColumnPreprocessor,
    PageOpener,
    Pairs,
    count_queries,
    drop_bad_rows,
    held_out,
    in_windows,
    load_pairs,
)
from .loss import Loss
from .plan import PREFETCH, Hardware, check_shared_memory, choose_hardware, share
from .recipe import RUNTIME_KEYS, Recipe, make_recipe, read_recipe, write_recipe

RECIPE, RUN, LOSSES, SKIPPED = "recipe.toml", "run.json", "losses.csv", "skipped_rows.txt"
COLUMNS = ["step", "loss", "learning_rate", "grad_norm", "pages_per_second"]


def train(recipe: Recipe | str | Path | dict[str, Any], *, resume: bool = False) -> RandSlotModel:
    """Train a model and save it in the recipe's output folder with recipe, versions, losses and model card.

    `recipe` is a Recipe, a dictionary of its values, a recipe file, or the name of a shipped recipe. `resume` continues
    from the last checkpoint of the same recipe. Under torchrun every process calls this.
    """
    if isinstance(recipe, dict):
        recipe = make_recipe(recipe)
    elif not isinstance(recipe, Recipe):
        recipe = read_recipe(recipe)
    recipe = recipe if recipe.output else replace(recipe, output=f"runs/{recipe.slots}-{recipe.seed}")
    run = TrainingRun(recipe, resume)
    if resume and (run.folder / RUN).is_file():
        run.console.print(f"{run.folder} is already finished")
        return load(run.folder)
    return run.run()


class TrainingRun:
    """One run of one recipe, in one process of possibly many. Research overrides the make_ methods."""

    def __init__(self, recipe: Recipe, resume: bool) -> None:
        self.recipe = recipe
        self.folder = Path(recipe.output)
        self.rank = int(os.environ.get("RANK", "0"))
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self.console = Console(stderr=True, quiet=self.rank != 0, highlight=False, soft_wrap=True)
        self.log = TrainingLog(recipe, self.folder / LOSSES, self.console)
        self.batch = share(recipe.batch, self.world)
        self.hardware = choose_hardware(recipe)
        self.frozen: FrozenVision | None = None
        self.rows: dict[str, int] = {}  # how many there are, for the record
        self.num_queries = 1  # of each page
        self.checkpoint = find_checkpoint(self.folder, self.world)
        if self.rank != 0:  # other processes may check after the first one has begun to write
            return
        backbone = Path(recipe.backbone)
        if recipe.backbone and backbone.is_dir() and backbone.resolve() == self.folder.resolve():
            raise UsageError(f"output {self.folder} is the backbone's own folder. Choose another output.")
        if self.checkpoint is not None or (self.folder / RUN).is_file():
            before = asdict(read_recipe(self.folder / RECIPE))
            check_resumed(self.folder, before, asdict(recipe), resume, set(RUNTIME_KEYS))

    def run(self) -> RandSlotModel:
        """Train and save the model."""
        verbosity = logging.get_verbosity()
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        try:
            return self._train()
        except RandSlotError as error:
            # The message of a worker's error is its traceback; the last line is the error.
            raise type(error)(str(error).strip().splitlines()[-1].rpartition("RandSlotError: ")[2]) from error
        except torch.OutOfMemoryError as error:
            raise RandSlotError(
                "out of GPU memory. Set gradient_cache = true, then a smaller micro_batch or fewer visual_tokens. "
                "randslot train RECIPE --dry-run estimates the memory."
            ) from error
        except KeyboardInterrupt:
            if self.recipe.save_every:
                self.console.print("stopped: --resume resumes from the last checkpoint")
            raise
        finally:
            logging.set_verbosity(verbosity)
            logging.enable_progress_bar()

    def _train(self) -> RandSlotModel:
        started = time.perf_counter()
        pairs, evaluator, model = self.load_pairs(), self.make_evaluator(), self.make_model()
        self.hardware = choose_hardware(self.recipe, model.family)
        if self.rank == 0:
            with in_one_line(f"write into output {self.folder}", UsageError):
                self.folder.mkdir(parents=True, exist_ok=True)
                if self.checkpoint is None:
                    (self.folder / SKIPPED).unlink(missing_ok=True)
                write_recipe(self.recipe, self.folder / RECIPE)
        for line in self.hardware.fallbacks:
            self.console.print(line)
        if self.recipe.workers:
            check_shared_memory(self.recipe, model, self.hardware.dtype, self.batch)
        trainer = self.make_trainer(model, pairs, evaluator)
        if self.checkpoint:
            self.console.print(f"resuming from {self.checkpoint}")
        trainer.train(resume_from_checkpoint=str(self.checkpoint) if self.checkpoint else None)
        if self.frozen:
            self.frozen.close()
        if trainer.is_world_process_zero():
            self._finish(model, trainer, pairs, time.perf_counter() - started)
        trainer.accelerator.wait_for_everyone()  # no process leaves while the first one is still writing
        return model

    def load_pairs(self) -> Pairs:
        """Load the training pairs and drop bad rows."""
        recipe = self.recipe
        pairs, bad = self._load(recipe.data, recipe.split, recipe.keep_empty_queries, recipe.negatives)
        if bad:
            more = ", ..." if len(bad) > 1 else ""
            self.console.print(f"skipped {len(bad)} of {len(pairs) + len(bad)} rows: {bad[0]}{more}")
        if recipe.keep_empty_queries:
            self.console.print(f"{pairs.num_empty} of {len(pairs)} rows have an empty query, and are kept")
        self.rows = {"pairs": len(pairs), "skipped_rows": len(bad), "empty_queries": pairs.num_empty}
        self.num_queries = count_queries(pairs)  # with unequal numbers, queries would be scored against the wrong pages
        if len(pairs) < recipe.batch:
            raise UsageError(f"{recipe.data} has {len(pairs)} valid pairs, fewer than one batch of {recipe.batch}")
        return pairs

    def _load(self, data: str, split: str, keep_empty: bool = False, negatives: int = 0) -> tuple[Pairs, list[str]]:
        recipe = self.recipe
        columns = recipe.query_column, recipe.page_column
        pairs = load_pairs(data, split, *columns, texts=recipe.page_texts, negatives=negatives)
        return drop_bad_rows(pairs, recipe.on_bad_row, keep_empty=keep_empty, negatives=negatives)

    def make_evaluator(self) -> BaseEvaluator | None:
        """Make the evaluator of held-out pairs, if the recipe has one."""
        recipe = self.recipe
        if not recipe.validate_every:
            return None
        pairs, _ = self._load(recipe.validation, recipe.validation_split)
        rows = range(min(len(pairs), recipe.validation_rows))
        return self.evaluate_on(replace(pairs, dataset=pairs.dataset.select(rows)))

    def evaluate_on(self, pairs: Pairs) -> BaseEvaluator:
        """Make an evaluator that searches held-out pairs."""
        return MultiVectorInformationRetrievalEvaluator(*held_out(pairs), ndcg_at_k=[5], batch_size=8)

    def make_model(self) -> RandSlotModel:
        """Build the untrained model: the same weights for every strategy under one seed."""
        recipe = self.recipe
        options: dict[str, Any] = {
            "lora": recipe.adapter,
            "device": f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if self.hardware.on_gpu else "cpu",
            "dtype": self.hardware.dtype if recipe.lora else torch.float32,  # all weights are trained under autocast
            "attn_implementation": self.hardware.attention,
        }
        options |= asdict(replace(recipe.settings(), widths=()))
        model = untrained(recipe.untrained, **options) if recipe.untrained else load(recipe.backbone, **options)
        full = model.encoder.full_width
        if recipe.widths and recipe.widths[-1] >= full:
            raise UsageError(
                f"widths = {list(recipe.widths)} must be below the full width of {full}, which is always trained"
            )
        model.encoder.settings = replace(model.settings, widths=recipe.widths)  # also if it starts from a trained model
        if recipe.page_texts and model.reads != "text":
            raise UsageError(f"page_texts needs a text model; a {model.family} model reads images")
        model.encoder.loops = recipe.execution == "loop"
        model.encoder.record = {}  # of an earlier run that it starts from
        return model

    def make_loss(self, model: RandSlotModel) -> torch.nn.Module:
        """Make the loss."""
        recipe = self.recipe
        return Loss(
            model,
            temperature=recipe.temperature,
            batch=self.batch * recipe.pages_per_row,
            micro_batch=recipe.micro_batch,
            mask_repeats=recipe.repeated_pages == "mask",
            prefixes=recipe.prefixes,
            widths=dict(zip(recipe.widths, recipe.width_weights or (1.0,) * len(recipe.widths), strict=True)),
            gradient_cache=recipe.gradient_cache,
        )

    def make_trainer(
        self, model: RandSlotModel, pairs: Pairs, evaluator: BaseEvaluator | None = None
    ) -> MultiVectorEncoderTrainer:
        """Build sentence-transformers' trainer from model, pairs, loss and arguments."""
        recipe = self.recipe
        if recipe.gradient_checkpointing:
            model.backbone.checkpoint_layers()
        args = make_arguments(recipe, self.folder, self.world, self.hardware)
        num_steps = recipe.epochs * (len(pairs) // recipe.batch)
        args.max_steps = min(recipe.steps or num_steps, num_steps)
        self.frozen = FrozenVision(model.encoder) if recipe.still_vision else None
        read = self.frozen.read if self.frozen else model.preprocessor.open_page
        empty_query = model.encoder.tokenizer.pad_token if recipe.keep_empty_queries else ""
        opener = PageOpener(pairs, recipe.on_bad_row, self.folder / SKIPPED, read, empty_query, recipe.negatives)
        # Workers send images in the dtype of the first layer.
        preprocessor = ColumnPreprocessor(replace(model.preprocessor, dtype=self.hardware.dtype), self.frozen)
        trainer = Trainer(
            model=model,
            args=args,
            train_dataset=pairs.dataset.with_transform(opener),
            loss=self.make_loss(model),
            evaluator=evaluator,
            data_collator=MultiVectorEncoderDataCollator(preprocessor),
            callbacks=[self.log],
        )
        if self.rank == 0:
            trainer.add_callback(TensorBoardCallback(SummaryWriter(str(self.folder / "tensorboard"))))
        trainer.remove_callback(PrinterCallback)
        return trainer

    def save(self, model: RandSlotModel) -> None:
        """Save the trained model."""
        model.save_pretrained(str(self.folder))

    def _finish(self, model: RandSlotModel, trainer: MultiVectorEncoderTrainer, pairs: Pairs, seconds: float) -> None:
        """Save the model, the loss curve and the record of the run."""
        steps = trainer.state.global_step
        what = "pairs" if self.num_queries == 1 else f"pages with {self.num_queries} queries each"
        model.model_card_data.trained_on = (
            f"{steps} steps of {self.recipe.batch} {what} out of {len(pairs):,} from "
            f"{self.recipe.data}; `recipe.toml` has every setting, `run.json` versions and time."
        )
        self.save(model)
        rows = read_losses(self.folder / LOSSES)
        steps_of, losses, rates = ([float(row[name]) for row in rows] for name in COLUMNS[:3])
        draw_losses(steps_of, losses, rates, self.folder / "losses.png")
        skipped = self.folder / SKIPPED
        num_skipped = len(set(skipped.read_text(encoding="utf-8").splitlines())) if skipped.is_file() else 0
        record = {
            "steps": steps,
            "seconds_of_this_process": round(seconds, 1),
            "processes": self.world,
            **self.rows,
            "seed": self.recipe.seed,
            "optimizer": trainer.args.optim,
            "attention": model.backbone.model.config._attn_implementation,
            "precision": self.hardware.precision,
            "fallbacks": list(self.hardware.fallbacks),
            "broken_images_skipped": num_skipped,
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or "cpu",
        }
        write_record(self.folder, model, record, RECIPE)
        for text in list_code(model.settings).values():
            trust_code(hash_code(text), str(self.folder))  # this user has run it
        if num_skipped:
            self.console.print(f"skipped {num_skipped} broken images: see {skipped}")
        self.console.print(f"trained {steps} steps in {seconds:.0f} s: {self.folder}")


def write_record(folder: Path, model: RandSlotModel, values: dict[str, Any], options: str) -> None:
    """Write run.json, and attach it and the options file to the model, which saves both."""
    record = {
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "trained_on": model.model_card_data.trained_on,
        **values,
        **describe_checkout(),
        "versions": list_versions(),
    }
    write_json(folder / RUN, record)
    model.encoder.record = {name: (folder / name).read_text(encoding="utf-8") for name in (options, RUN)}


class Trainer(MultiVectorEncoderTrainer):
    """sentence-transformers' trainer, but validation preserves the random state of training."""

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        with torch.random.fork_rng(devices=[torch.cuda.current_device()] if torch.cuda.is_available() else []):
            found: dict[str, float] = super().evaluate(*args, **kwargs)
        return found


def make_arguments(recipe: Recipe, folder: Path, world: int, hardware: Hardware) -> MultiVectorEncoderTrainingArguments:
    """Turn a recipe into the trainer's arguments."""
    window = recipe.window if recipe.shuffle else 1
    order = (
        {"batch_sampler": partial(in_windows, window, recipe.seed)} if window else {}
    )  # by default the trainer shuffles all rows
    args = MultiVectorEncoderTrainingArguments(
        output_dir=str(folder / "checkpoints"),
        num_train_epochs=recipe.epochs,
        per_device_train_batch_size=share(recipe.batch, world),
        gradient_accumulation_steps=1,
        **order,
        dataloader_drop_last=True,
        dataloader_num_workers=recipe.workers,
        dataloader_prefetch_factor=PREFETCH if recipe.workers else None,
        # Persistent workers would draw from the global generator once, and again after a resume: different slots.
        dataloader_persistent_workers=False,
        optim=hardware.optimizer,
        learning_rate=recipe.learning_rate,
        adam_beta1=recipe.beta1,
        adam_beta2=recipe.beta2,
        adam_epsilon=recipe.epsilon,
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.clip,
        lr_scheduler_type="cosine",
        # The rate halves after a quarter of a period: PyTorch's T_max = twice the steps.
        lr_scheduler_kwargs={"num_cycles": math.acos(2 * recipe.rate_left - 1) / (2 * math.pi)},
        warmup_steps=recipe.warmup,
        bf16=hardware.precision == "bf16",
        use_cpu=not hardware.on_gpu,
        ddp_backend="gloo" if "RANK" in os.environ and not hardware.on_gpu else None,
        ddp_find_unused_parameters=False,
        gradient_checkpointing=False,  # make_trainer enables it: the trainer would backpropagate the frozen tower
        seed=recipe.seed,
        save_strategy="steps" if recipe.save_every else "no",
        save_steps=recipe.save_every or 500,
        save_total_limit=2,
        eval_strategy="steps" if recipe.validate_every else "no",
        eval_steps=recipe.validate_every or None,
        logging_steps=1,
        logging_nan_inf_filter=False,
        report_to=[],  # make_trainer adds TensorBoard, with its own folder
        disable_tqdm=True,
    )
    args._n_gpu = min(args.n_gpu, 1)  # one process, one GPU: torchrun and not DataParallel
    return args


class TrainingLog(TrainerCallback):
    """Seeds each process, logs losses to a CSV, shows progress, and stops at a non-finite loss."""

    def __init__(self, recipe: Recipe, file: Path, console: Console) -> None:
        self.recipe, self.file, self.console = recipe, file, console
        self.started, self.first_step = 0.0, 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # The trainer gives all processes the same seed, so they would draw the same slots. The model is built before
        # this, so adapters start equal. A resumed run restores its random state after this.
        torch.manual_seed(self.recipe.seed + 1_000_003 * args.process_index)
        self.started, self.first_step = time.perf_counter(), state.global_step
        if args.process_index == 0:
            # A killed run may have trained beyond its last checkpoint: it repeats those steps.
            kept = [row for row in read_losses(self.file) if int(row["step"]) <= state.global_step]
            with self.file.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, COLUMNS)
                writer.writeheader()
                writer.writerows(kept)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # No checkpoint after the last step: a run killed before saving the model would resume with one step too many.
        if state.global_step >= state.max_steps:
            control.should_save = False

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        step, last, logs = state.global_step, state.max_steps, logs or {}
        for key, what in (("eval_maxsim_ndcg@5", "nDCG@5"), ("eval_read", "next-token accuracy")):
            if key in logs:
                self.console.print(f"step {step}: validation {what} {logs[key]:.4f}")
        if "loss" not in logs:
            return
        if not math.isfinite(logs["loss"]):
            raise RandSlotError(f"the loss is {logs['loss']} at step {step}. Try a lower learning_rate.")
        if args.process_index != 0:
            return
        pages = self.recipe.batch * self.recipe.pages_per_row  # of a step
        speed = (step - self.first_step) * pages / max(time.perf_counter() - self.started, 1e-9)
        row = {name: logs.get(name) for name in COLUMNS} | {"step": step, "pages_per_second": round(speed, 3)}
        with self.file.open("a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, COLUMNS).writerow(row)
        left = timedelta(seconds=round((last - step) * pages / max(speed, 1e-9)))
        rate, is_shown = logs.get("learning_rate", 0), step == last or step % max(last // 20, 1) == 0
        line = f"step {step}/{last}  loss {logs['loss']:.4f}  rate {rate:.2e}  {speed:.1f} pages/s  {left} left"
        if self.console.is_terminal:
            self.console.print(line.ljust(90), end="\n" if is_shown else "\r")  # the others on one line
        elif is_shown:
            self.console.print(line)


def read_losses(file: Path) -> list[dict[str, str]]:
    """Read the rows of a losses file; none if it does not exist."""
    if not file.is_file():
        return []
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def check_resumed(folder: Path, before: dict[str, Any], now: dict[str, Any], resume: bool, free: set[str]) -> None:
    """Raise UsageError for a run without `resume`, or with changed options other than the free ones."""
    if not resume:
        raise UsageError(f"{folder} already holds a run. Add --resume, or choose another output.")
    for name in now.keys() - free:
        if (old := before.get(name)) != now[name]:
            raise UsageError(f"{folder} holds a run with {name} = {old!r}, not {now[name]!r}. Choose another output.")


def find_checkpoint(folder: Path, world: int) -> Path | None:
    """Return the newest complete checkpoint: with the trainer's state, written last, and all random states."""
    found: dict[int, Path] = {}
    for checkpoint in (folder / "checkpoints").glob("checkpoint-*"):
        try:
            json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        states = {file.name for file in checkpoint.glob("rng_state*.pth")}
        of_all = {f"rng_state_{rank}.pth" for rank in range(world)} if world > 1 else set()
        if states and (of_all <= states or "rng_state.pth" in states):
            found[int(checkpoint.name.rpartition("-")[2])] = checkpoint
    return found[max(found)] if found else None
