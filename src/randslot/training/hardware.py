"""What a run uses of this machine: precision, attention, optimizer, shared memory."""

from __future__ import annotations

import importlib.util
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from PIL import Image
from transformers.utils import is_flash_attn_2_available

from ..errors import UsageError
from ..model.families.base import Family
from ..model.model import RandSlotModel
from .recipe import Recipe

SHARED_MEMORY = Path("/dev/shm")
PREFETCH = 2  # batches that each worker keeps ready: the trainer's default


@dataclass(frozen=True)
class Hardware:
    """What a recipe gets on this machine; fallbacks: a line for each difference from what it asks for."""

    on_gpu: bool
    precision: str  # "bf16" or "fp32"
    attention: str  # as transformers calls it
    optimizer: str  # as transformers calls it
    fallbacks: tuple[str, ...]

    @property
    def dtype(self) -> torch.dtype:
        """The type that layers compute in."""
        return torch.bfloat16 if self.precision == "bf16" else torch.float32


def choose_hardware(recipe: Recipe) -> Hardware:
    """Choose precision, attention and optimizer for this machine."""
    # A gradient cache runs backward inside the loss, which these two do not allow.
    for variable, name in (("ACCELERATE_USE_FSDP", "FSDP"), ("ACCELERATE_USE_DEEPSPEED", "DeepSpeed")):
        if os.environ.get(variable, "").lower() in ("1", "true", "yes"):
            raise UsageError(f"{name} is not supported. Use torchrun, or accelerate launch --multi_gpu.")
    on_gpu = torch.cuda.is_available()
    fallbacks = []
    precision = "fp32" if recipe.precision == "fp32" else "bf16"
    if recipe.precision == "bf16" and not on_gpu:
        fallbacks.append("no GPU: float32 instead of bfloat16")
        precision = "fp32"
    elif on_gpu and precision == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=False):
        fallbacks.append("this GPU has no bfloat16: float32 instead")
        precision = "fp32"
    attention = "sdpa"
    if on_gpu and precision == "bf16" and recipe.lora and is_flash_attn_2_available():
        attention = "flash_attention_2"
    elif recipe.precision == "bf16" and recipe.lora:
        why = "flash-attn is not installed" if on_gpu and precision == "bf16" else "no GPU with bfloat16"
        fallbacks.append(f"{why}: PyTorch's attention (SDPA) instead of flash attention 2, same results")
    optimizer = "adamw_torch"
    if recipe.optimizer == "paged_adamw_8bit":
        if on_gpu and importlib.util.find_spec("bitsandbytes"):
            optimizer = "paged_adamw_8bit"
        else:
            fallbacks.append("no GPU with bitsandbytes: AdamW in float32 instead of PagedAdamW8bit")
    return Hardware(on_gpu, precision, attention, optimizer, tuple(fallbacks))


def add_kernels(hardware: Hardware, family: Family) -> Hardware:
    """Add a fallback for each missing kernel of a family."""
    lines = list(hardware.fallbacks)
    for module, package in family.kernels.items():
        if not (hardware.on_gpu and importlib.util.find_spec(module)):
            lines.append(f"no GPU with {package}: plain PyTorch instead of its kernels, slower, same results")
    return replace(hardware, fallbacks=tuple(lines))


def share(batch: int, world: int) -> int:
    """Return how many pairs of a batch each process gets."""
    if batch % world:
        raise UsageError(f"batch = {batch} is not divisible by {world} processes")
    return batch // world


def largest_page(model: RandSlotModel) -> Image.Image | str:
    """Make a page with the maximum number of tokens: 2 x 3, or square where pages are cut into square tiles."""
    if model.reads == "text":
        return "word " * model.settings.text_tokens
    pages = []
    for aspect in (3 / 2, 1):
        width = (model.page_pixels / aspect) ** 0.5
        pages.append(Image.new("RGB", (round(width), round(width * aspect)), "white"))
    return max(pages, key=lambda page: model.preprocess([page], task="document")["input_ids"].shape[1])


def shared_bytes(recipe: Recipe, page_bytes: int, pages: int, processes: int) -> int:
    """Return the shared memory of the batches that the workers of this machine keep ready."""
    batches = recipe.workers * PREFETCH + 1 if recipe.workers else 0
    return batches * pages * page_bytes * processes


def free_shared_memory() -> int | None:
    """Return the free bytes of shared memory; None if the system has none."""
    return shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else None


def check_shared_memory(need: int) -> None:
    """Raise UsageError if workers would die of a bus error in the middle of a run."""
    free = free_shared_memory()
    if free is not None and need > free:
        raise UsageError(
            f"workers may need {need / 1e9:.1f} GB of {SHARED_MEMORY}, which has {free / 1e9:.1f} GB free. "
            "Set fewer workers, or enlarge it (in Docker: --shm-size)."
        )
