"""A recipe as the arguments of sentence-transformers' trainer, on this machine."""

from __future__ import annotations

import os
from functools import partial
from math import acos, pi
from pathlib import Path
from random import Random
from typing import Any

from sentence_transformers import MultiVectorEncoderTrainingArguments
from torch.utils.data import BatchSampler

from ..errors import UsageError
from .hardware import PREFETCH, Hardware
from .recipe import Recipe


def make_arguments(recipe: Recipe, folder: Path, world: int, hardware: Hardware) -> MultiVectorEncoderTrainingArguments:
    """Turn a recipe into the trainer's arguments."""
    on_gpu = hardware.on_gpu
    args = MultiVectorEncoderTrainingArguments(
        output_dir=str(folder / "checkpoints"),
        num_train_epochs=recipe.epochs,
        per_device_train_batch_size=share(recipe.batch, world),
        gradient_accumulation_steps=1,
        dataloader_drop_last=True,
        dataloader_num_workers=recipe.workers,
        dataloader_prefetch_factor=PREFETCH if recipe.workers else None,
        # Persistent workers would draw from the global generator once, but again after a resume: other slots.
        dataloader_persistent_workers=False,
        optim=hardware.optimizer,
        learning_rate=recipe.learning_rate,
        adam_beta1=recipe.beta1,
        adam_beta2=recipe.beta2,
        adam_epsilon=recipe.epsilon,
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.clip,
        lr_scheduler_type="cosine",
        # To half the rate it is a quarter of a period: what T_max = twice the steps is in PyTorch.
        lr_scheduler_kwargs={"num_cycles": acos(2 * recipe.rate_left - 1) / (2 * pi)},
        warmup_steps=recipe.warmup,
        **_order(recipe),
        bf16=hardware.precision == "bf16",
        use_cpu=not on_gpu,
        ddp_backend="gloo" if "RANK" in os.environ and not on_gpu else None,
        ddp_find_unused_parameters=False,
        gradient_checkpointing=False,  # the run switches it on: the trainer would backpropagate the frozen tower
        seed=recipe.seed,
        save_strategy="steps" if recipe.save_every else "no",
        save_steps=recipe.save_every or 500,
        save_total_limit=2,
        eval_strategy="steps" if recipe.validate_every else "no",
        eval_steps=recipe.validate_every or None,
        logging_steps=1,
        logging_nan_inf_filter=False,
        report_to=[],  # TensorBoard comes as a callback, with a folder of its own
        disable_tqdm=True,
    )
    args._n_gpu = min(args.n_gpu, 1)  # one process, one GPU: more of them go through torchrun, not DataParallel
    return args


def _order(recipe: Recipe) -> dict[str, Any]:
    """Return the argument that orders rows, if it is not the trainer's own shuffle of all of them."""
    if not recipe.shuffle:
        return {"batch_sampler": in_order}
    return {"batch_sampler": partial(in_windows, recipe.window, recipe.seed)} if recipe.window else {}


def in_order(dataset: Any, batch_size: int, drop_last: bool, **kwargs: Any) -> BatchSampler:
    """Make batches in the order of the data."""
    return BatchSampler(range(len(dataset)), batch_size, drop_last)


def in_windows(window: int, order: int, dataset: Any, batch_size: int, drop_last: bool, **kwargs: Any) -> BatchSampler:
    """Make batches from rows that are shuffled within windows of the data, by the seed `order`."""
    return BatchSampler(shuffle_within(window, len(dataset), order), batch_size, drop_last)


def shuffle_within(window: int, num: int, seed: int) -> list[int]:
    """Return row numbers, shuffled within each `window` of rows: a curriculum goes on as it was written."""
    random = Random(seed)
    parts = (range(start, min(start + window, num)) for start in range(0, num, window))
    return [row for part in parts for row in random.sample(part, len(part))]


def share(batch: int, world: int) -> int:
    if batch % world:
        raise UsageError(f"batch = {batch} cannot be shared evenly by {world} processes")
    return batch // world
