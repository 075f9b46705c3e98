"""What a run would take, computed before anything is downloaded: steps, memory, disk, time, what is missing."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from ..errors import RandSlotError, UsageError
from ..model.families.family import Family
from ..model.hub import is_hub_id
from ..model.model import RandSlotModel
from ..tables import Cell, Table, write_table
from .arguments import share
from .hardware import Hardware, add_kernels, choose_hardware, free_shared_memory, refuse_sharding, shared_bytes
from .memory import PageCost, is_cached, make_model_without_memory, measure_page, memory_by_part, step_multiply_adds
from .pairs import load_pairs
from .recipe import Recipe

KNOWN_ROWS = {"vidore/colpali_train_set": 118_195}  # of the paper's data, so that it need not be fetched to be counted
# GB of memory, and 1e12 operations a second in bfloat16, the most by their vendors, without sparsity.
GPUS = {"RTX 4090": (24, 165), "L40S": (48, 362), "A100": (80, 312), "H100": (80, 989)}
UTILISATION = 0.4  # of that peak, which well-fed training of this size reaches: assumed
GB = 1e9
CHECKPOINTS = 2  # that a run keeps


def describe_run(recipe: Recipe, devices: int | None = None) -> str:
    """Return a page of text about a run; devices: how many processes, by default those of torchrun or the GPUs here.

    Errors: UsageError if the batch cannot be shared by them, or the shape of the backbone is not known.
    """
    refuse_sharding()
    devices = devices or int(os.environ.get("WORLD_SIZE", "0")) or max(torch.cuda.device_count(), 1)
    pages = share(recipe.batch, devices)
    # As on a GPU, whatever is here: that is what the figures are for.
    dtype = torch.bfloat16 if recipe.precision == "bf16" else torch.float32
    model = make_model_without_memory(recipe, dtype if recipe.lora else torch.float32)
    hardware = add_kernels(choose_hardware(recipe), model.family)
    cost = measure_page(model)
    memory = memory_by_part(recipe, model, cost, devices, recipe.optimizer)
    num_rows, where = _count_rows(recipe)
    steps = recipe.epochs * (num_rows // recipe.batch) if num_rows else 0
    steps = min(recipe.steps or steps, steps) if steps else recipe.steps
    many = _count(devices, "device")
    lines = [
        f"backbone   {recipe.backbone or recipe.untrained}, slots {recipe.slots}, "
        f"{recipe.query_vectors} and {recipe.page_vectors} vectors",
        f"pairs      {where}",
        f"steps      {steps or 'not known yet'}, each of {recipe.batch} pairs: {many} with {pages} each",
        f"execution  {_describe_execution(recipe, pages)}",
        f"page       at most {cost.positions:,} positions, {cost.sent / 1e6:.0f} MB from worker to device",
        "",
        write_table(_memory_table(memory), "md"),
        *_describe_savings(recipe, model, cost, pages, devices),
        *_describe_places(recipe, model, cost, pages, devices),
        "",
        write_table(_speed_table(recipe, cost, pages, devices, steps, sum(memory.values())), "md"),
        *_describe_here(hardware, model.family),
    ]
    return "\n".join(lines)


def _count_rows(recipe: Recipe) -> tuple[int, str]:
    """Return how many pairs there are, if it can be known without a network, and what to say of them."""
    if recipe.data in KNOWN_ROWS and not Path(recipe.data).exists():
        return KNOWN_ROWS[recipe.data], f"{KNOWN_ROWS[recipe.data]:,} of {recipe.data}, from the hub"
    if is_hub_id(recipe.data) and not Path(recipe.data).exists():
        return 0, f"{recipe.data}, from the hub: counted when it is there"
    try:
        num = len(load_pairs(recipe.data, recipe.split, recipe.query_column, recipe.page_column))
    except (UsageError, RandSlotError) as error:
        return 0, f"missing: {error}"
    return num, f"{num:,} of {recipe.data}"


def _describe_execution(recipe: Recipe, pages: int) -> str:
    parts = ["every prefix anew (the paper's loop)" if recipe.execution == "loop" else "one pass"]
    parts.append(f"{_count(recipe.micro_batch or pages, 'page')} at once")
    parts.append("gradient cache" if is_cached(recipe, pages) else "no gradient cache")
    parts.append("layers checkpointed" if recipe.gradient_checkpointing else "layers not checkpointed")
    return ", ".join(parts)


def _memory_table(memory: dict[str, int]) -> Table:
    rows: list[list[Cell]] = [[part, num / GB] for part, num in memory.items()]
    rows.append(["all", sum(memory.values()) / GB])
    return Table("Memory of each device, computed for the largest pages", ["part", "GB"], rows, digits=2)


def _describe_savings(recipe: Recipe, model: RandSlotModel, cost: PageCost, pages: int, devices: int) -> Iterator[str]:
    saving = replace(recipe, gradient_cache=True)
    if is_cached(saving, pages) and not is_cached(recipe, pages):
        memory = sum(memory_by_part(saving, model, cost, devices, recipe.optimizer).values())
        yield f"less memory    {memory / GB:.1f} GB with --set gradient_cache=true, for one forward pass more"


def _describe_places(recipe: Recipe, model: RandSlotModel, cost: PageCost, pages: int, devices: int) -> Iterator[str]:
    here = min(devices, 8)
    need, free = shared_bytes(recipe, cost.sent, pages, here), free_shared_memory()
    has = "" if free is None else f"; this machine has {free / GB:.1f} GB free"
    workers = f"{_count(recipe.workers, 'worker')} on each of {_count(here, 'device')}"
    yield f"shared memory  at most {need / GB:.1f} GB for {workers}{has}"
    if free is not None and need > free:
        yield "missing        that much shared memory: set fewer workers, or give it more (in Docker --shm-size)"
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    saved = 4 * trained if recipe.lora else sum(weight.nbytes for weight in model.parameters())
    kept = saved + (CHECKPOINTS * (saved + 8 * trained) if recipe.save_every else 0)
    place = Path(recipe.output or ".").absolute()
    while not place.exists():
        place = place.parent
    free_disk = shutil.disk_usage(place).free
    weights = sum(weight.nbytes for weight in model.parameters() if not weight.requires_grad)
    fetched = f", and {weights / GB:.1f} GB of weights from the hub" if is_hub_id(recipe.backbone) else ""
    yield f"disk           {kept / GB:.1f} GB for model and checkpoints{fetched}; {free_disk / GB:.0f} GB are free"


def _speed_table(recipe: Recipe, cost: PageCost, pages: int, devices: int, steps: int, memory: int) -> Table:
    """Compute how fast some GPUs would be by their peak."""
    operations = 2 * step_multiply_adds(recipe, cost, pages)
    rows: list[list[Cell]] = []
    for name, (size, peak) in GPUS.items():
        seconds = operations / (UTILISATION * peak * 1e12)
        hours = steps * seconds / 3600 if steps else None
        fits = "yes" if memory <= size * GB else "no"
        positions = round(pages * cost.positions / seconds)
        rows.append([f"{name}, {size} GB", fits, positions, pages * devices / seconds, seconds, hours])
    many = _count(devices, "device")
    title = f"Expected at {UTILISATION:.0%} of the peak in bfloat16 (assumed), {many}, workers that keep up"
    heads = ["GPU", "fits", "positions/s of a device", "pages/s of all", "s a step", "hours"]
    return Table(title, heads, rows, digits=1)


def _describe_here(hardware: Hardware, family: Family) -> Iterator[str]:
    device = torch.cuda.get_device_name() if hardware.on_gpu else "CPU"
    yield f"this machine   {device}: {hardware.precision}, attention {hardware.attention}, {hardware.optimizer}"
    for line in hardware.fallbacks:
        yield f"missing        {line}"
    wanted = {"bitsandbytes": '"randslot[gpu]"', "flash_attn": "--no-build-isolation flash-attn", **family.kernels}
    for module, package in wanted.items():
        if importlib.util.find_spec(module) is None:
            yield f"not installed  {module}: pip install {package}"


def _count(num: int, what: str) -> str:
    return f"{num} {what}" if num == 1 else f"{num} {what}s"
