"""What a run will use of this machine: device, precision, attention, optimizer. What it lacks is said, and recorded."""

from __future__ import annotations

import importlib.util
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from transformers.utils import is_flash_attn_2_available

from ..errors import UsageError
from ..model.families.family import Family
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
