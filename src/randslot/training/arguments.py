"""A recipe as the arguments of sentence-transformers' trainer, on this machine."""

from __future__ import annotations

import importlib.util
import os
import shutil
from dataclasses import dataclass, replace
from functools import partial
from math import acos, pi
from pathlib import Path
from random import Random
from typing import Any

import torch
from sentence_transformers import MultiVectorEncoderTrainingArguments
from torch.utils.data import BatchSampler
from transformers.utils import is_flash_attn_2_available

from ..errors import UsageError
from ..model.families.base import Family
from .recipe import Recipe

SHARED_MEMORY = Path("/dev/shm")
PREFETCH = 2  # batches that each worker has ready: the trainer's default


@dataclass(frozen=True)
class Hardware:
    """What a recipe gets here. fallbacks: a line for each thing that is not as the recipe wants it."""

    on_gpu: bool
    precision: str  # "bf16" or "fp32"
    attention: str  # as transformers calls it
    optimizer: str  # as transformers calls it
    fallbacks: tuple[str, ...]

    @property
    def dtype(self) -> torch.dtype:
        """What the layers compute in."""
        return torch.bfloat16 if self.precision == "bf16" else torch.float32

    def weights_dtype(self, recipe: Recipe) -> torch.dtype:
        """What frozen weights are kept in; weights that are all trained stay in float32, under autocast."""
        return self.dtype if recipe.lora else torch.float32


def choose_hardware(recipe: Recipe) -> Hardware:
    """Decide what a recipe gets on this machine."""
    on_gpu = torch.cuda.is_available()
    fallbacks = []
    precision = recipe.precision
    if precision == "bf16-anywhere":
        precision = "bf16"
    elif precision == "bf16" and not on_gpu:
        fallbacks.append("no GPU here: float32 instead of bfloat16")
        precision = "fp32"
    if on_gpu and precision == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=False):
        fallbacks.append("this GPU has no bfloat16: float32 instead")
        precision = "fp32"
    attention = "sdpa"
    if on_gpu and precision == "bf16" and recipe.lora and is_flash_attn_2_available():
        attention = "flash_attention_2"
    elif recipe.precision == "bf16" and recipe.lora:
        why = "flash-attn is not installed" if on_gpu and precision == "bf16" else "no GPU with bfloat16 here"
        fallbacks.append(f"{why}: PyTorch's attention (SDPA) instead of flash attention 2, the same numbers")
    optimizer = "adamw_torch"
    if recipe.optimizer == "paged_adamw_8bit":
        if on_gpu and importlib.util.find_spec("bitsandbytes"):
            optimizer = "paged_adamw_8bit"
        else:
            fallbacks.append("no GPU with bitsandbytes here: AdamW in float32 instead of PagedAdamW8bit")
    return Hardware(on_gpu, precision, attention, optimizer, tuple(fallbacks))


def add_kernels(hardware: Hardware, family: Family) -> Hardware:
    """Say also which kernels of a family are missing, now that the family is known."""
    lines = list(hardware.fallbacks)
    for module, package in family.kernels.items():
        if not (hardware.on_gpu and importlib.util.find_spec(module)):
            lines.append(f"no GPU with {package} here: plain PyTorch instead of its kernels, slower, the same numbers")
    return replace(hardware, fallbacks=tuple(lines))


def refuse_sharding() -> None:
    """Refuse launchers that cut a model into pieces: a gradient cache runs backward inside the loss.

    Errors: UsageError in one line.
    """
    for variable, name in (("ACCELERATE_USE_FSDP", "FSDP"), ("ACCELERATE_USE_DEEPSPEED", "DeepSpeed")):
        if os.environ.get(variable, "").lower() in ("1", "true", "yes"):
            raise UsageError(
                f"{name} is not supported: start with torchrun, or accelerate launch --multi_gpu; every device holds "
                "the whole model, and memory is saved by micro_batch and gradient_checkpointing"
            )


def shared_bytes(recipe: Recipe, page_bytes: int, share: int, processes: int) -> int:
    """Return how much shared memory the batches take that the workers of this machine have ready."""
    batches = recipe.workers * PREFETCH + 1 if recipe.workers else 0
    return batches * share * page_bytes * processes


def check_shared_memory(need: int, workers: int) -> None:
    """Refuse to start where workers would die with a bus error in the middle of a run.

    Errors: UsageError in one line.
    """
    free = free_shared_memory()
    if free is not None and need > free:
        raise UsageError(
            f"{workers} workers a device may hold {need / 1e9:.1f} GB of pages in {SHARED_MEMORY}, which has "
            f"{free / 1e9:.1f} GB free: set fewer workers, or give it more (in Docker --shm-size)"
        )


def free_shared_memory() -> int | None:
    """Return the free bytes of shared memory; None where there is no such place."""
    return shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else None


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
