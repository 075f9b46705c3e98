"""What a run shows and keeps while it goes: a progress bar, every loss in a CSV, different slots on every process."""

from __future__ import annotations

import csv
import math
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..errors import RandSlotError

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
