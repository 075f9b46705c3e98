"""Plan a run: choose precision, attention and optimizer for this machine; estimate steps, memory, disk and time.

The dry run sends the largest page through the model on the meta device, where tensors have shapes but no data, without
any download.
"""

from __future__ import annotations

import os
import shutil
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.utils import is_flash_attn_2_available

from ..errors import RandSlotError, UsageError
from ..model.backbone import list_shapes
from ..model.families.base import Family
from ..model.hub import is_hub_id
from ..model.model import RandSlotModel, untrained
from ..tables import Cell, Table, write_table
from .data import load_pairs
from .recipe import Recipe

aten = torch.ops.aten
GB = 1e9
# GB of memory, and the vendor's peak dense bfloat16 throughput in TFLOPS.
GPUS = {"RTX 4090": (24, 165), "L40S": (48, 362), "A100": (80, 312), "H100": (80, 989)}
SHARED_MEMORY = Path("/dev/shm")
PREFETCH = 2  # batches that each worker keeps ready: the trainer's default


# -- this machine


@dataclass(frozen=True)
class Hardware:
    """The execution of a recipe on this machine; fallbacks: a line for each difference from the recipe."""

    on_gpu: bool
    precision: str  # "bf16" or "fp32"
    attention: str  # as transformers calls it
    optimizer: str  # as transformers calls it
    fallbacks: tuple[str, ...]

    @property
    def dtype(self) -> torch.dtype:
        """The compute type of layers."""
        return torch.bfloat16 if self.precision == "bf16" else torch.float32


def choose_hardware(recipe: Recipe, family: Family | None = None) -> Hardware:
    """Choose precision, attention and optimizer for this machine; with a family, report its missing kernels too."""
    # A gradient cache runs backward inside the loss, which these two do not support.
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
        if on_gpu and find_spec("bitsandbytes"):
            optimizer = "paged_adamw_8bit"
        else:
            fallbacks.append("no GPU with bitsandbytes: AdamW in float32 instead of PagedAdamW8bit")
    for module, package in (family.kernels if family else {}).items():
        if not (on_gpu and find_spec(module)):
            fallbacks.append(f"no GPU with {package}: plain PyTorch instead of its kernels, slower, same results")
    return Hardware(on_gpu, precision, attention, optimizer, tuple(fallbacks))


def share(batch: int, world: int) -> int:
    """Return the number of pairs per process in a batch."""
    if batch % world:
        raise UsageError(f"batch = {batch} is not divisible by {world} processes")
    return batch // world


def largest_page(model: RandSlotModel) -> Image.Image | str:
    """Make a page with the maximum number of tokens: 2 x 3, or square for a model with square tiles."""
    if model.reads == "text":
        return "word " * model.settings.text_tokens
    pages = []
    for aspect in (3 / 2, 1):
        width = (model.page_pixels / aspect) ** 0.5
        pages.append(Image.new("RGB", (round(width), round(width * aspect)), "white"))
    return max(pages, key=lambda page: model.preprocess([page], task="document")["input_ids"].shape[1])


def check_shared_memory(recipe: Recipe, model: RandSlotModel, dtype: torch.dtype, pairs: int) -> None:
    """Raise UsageError if shared memory is too small: workers would crash with a bus error mid-run."""
    features = replace(model.preprocessor, dtype=dtype)([largest_page(model)], task="document")
    page_bytes = sum(value.nbytes for value in features.values() if isinstance(value, Tensor))
    batches = (recipe.workers * PREFETCH + 1) * int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    need = batches * pairs * recipe.pages_per_row * page_bytes
    free = shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else float("inf")
    if need > free:
        raise UsageError(
            f"workers may need {need / GB:.1f} GB of {SHARED_MEMORY}, which has {free / GB:.1f} GB free. "
            "Set fewer workers, or enlarge it (in Docker: --shm-size)."
        )


# -- a page on the meta device


class MetaCounter(TorchDispatchMode):
    """Runs a model on the meta device, and counts multiply-adds and the bytes of activations.

    CPU tensors move to the meta device when an operation mixes both. Sizes, positions and masks stay on the CPU, where
    they can be read. The only data a model reads from a meta tensor is whether all positions are unmasked.
    """

    def __init__(self, model: RandSlotModel) -> None:
        super().__init__()
        self.multiply_adds = self.bytes_now = self.max_bytes = 0
        self.counts_bytes = True
        self.known = {weight.untyped_storage()._cdata for weight in (*model.parameters(), *model.buffers())}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        to_meta = kwargs.get("device") == torch.device("meta")
        if func is aten._to_copy.default and args[0].dtype == torch.bool and to_meta:
            return args[0]
        if func in (aten.index.Tensor, aten.index_put_.default, aten.index_put.default):
            indices: list[Any] = []
            for index in args[1]:  # the output shape depends on the number of true values in a mask
                is_mask = index is not None and index.dtype == torch.bool and not index.is_meta
                indices += index.nonzero(as_tuple=True) if is_mask else [index]
            args = (args[0], indices, *args[2:])
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        num_meta = sum(tensor.is_meta for tensor in tensors)
        if num_meta and func is aten._local_scalar_dense.default and tensors[0].dtype == torch.bool:
            return True
        if 0 < num_meta < len(tensors):
            args, kwargs = tree_map(lambda leaf: leaf.to("meta") if isinstance(leaf, Tensor) else leaf, (args, kwargs))
        output = func(*args, **kwargs)
        if func._overloadpacket in flop_registry:
            flops = flop_registry[func._overloadpacket](*args, **kwargs, out_val=output)
            self.multiply_adds += flops // 2
        for leaf in tree_leaves(output) if self.counts_bytes else ():
            if isinstance(leaf, Tensor) and leaf.is_meta:
                storage = leaf.untyped_storage()
                place, num = storage._cdata, storage.nbytes()
                if place not in self.known:
                    self.known.add(place)
                    self.bytes_now += num
                    self.max_bytes = max(self.max_bytes, self.bytes_now)
                    weakref.finalize(storage, self._free, place, num)
        return output

    def _free(self, place: int, num: int) -> None:
        self.known.discard(place)
        self.bytes_now -= num


class FusedAttention(torch.autograd.Function):
    """The cost of fused attention: two matrix products forward, five backward, no scores kept."""

    @staticmethod
    def forward(ctx: Any, counter: MetaCounter, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.counter = counter
        ctx.kept = query.new_empty(query.shape), query.new_empty(query.shape[:-1], dtype=torch.float32)
        FusedAttention.multiply(counter, query, key, value)
        return torch.empty_like(query)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor, Tensor, Tensor]:
        query, key, value = ctx.saved_tensors
        # Recomputed scores and their gradient, then the gradients of queries, keys and values.
        FusedAttention.multiply(ctx.counter, query, key, value, num_more=3)
        return None, torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)

    @staticmethod
    def multiply(counter: MetaCounter, query: Tensor, key: Tensor, value: Tensor, num_more: int = 0) -> None:
        """Count the multiply-adds of matrix products, but not the bytes of their outputs."""
        counter.counts_bytes = False
        times = query.shape[1] // key.shape[1]  # heads that share a key
        keys = key.repeat_interleave(times, dim=1)
        scores = query @ keys.transpose(-1, -2)
        scores @ value.repeat_interleave(times, dim=1)
        for _ in range(num_more):
            scores @ keys  # each as many products as this one, also for one query and a cache
        counter.counts_bytes = True


@contextmanager
def count_on_meta(model: RandSlotModel) -> Iterator[MetaCounter]:
    """Run a model on the meta device with CPU features, and count its work."""
    counter = MetaCounter(model)

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
    ) -> tuple[Tensor, None]:
        output: Tensor = FusedAttention.apply(counter, query, key, value)
        return output.transpose(1, 2).contiguous(), None

    AttentionInterface.register("randslot_fused", attend)
    AttentionMaskInterface.register("randslot_fused", lambda *args, **options: None)
    backbone = model.backbone.model
    before = backbone.config._attn_implementation
    backbone.set_attn_implementation("randslot_fused")
    try:
        with counter:
            yield counter
    finally:
        backbone.set_attn_implementation(before)


@dataclass(frozen=True)
class PageCost:
    """The cost of one page of the largest size: multiply-adds of vision tower and language model, and bytes."""

    positions: int  # of the language model, with slots
    vision: int  # multiply-adds of the tower
    forward: int  # multiply-adds of the language model
    backward: int
    sent: int  # bytes of its features
    seen: int  # bytes of the tower's output
    tower: int  # peak bytes of the tower
    held: int  # bytes that the language model saves for the backward pass
    inputs: int  # bytes of the inputs of its layers
    layers: int
    dimension: int  # of a vector


def make_model_on_meta(recipe: Recipe, dtype: torch.dtype) -> RandSlotModel:
    """Build the model of a recipe on the meta device, from the shape of its backbone."""
    config = Path(recipe.backbone, "config.json")
    published = Path(recipe.backbone).name.lower().replace("-instruct", "").replace("-embedding", "")
    shape = recipe.untrained or (str(config) if config.is_file() else published)
    if shape == published and shape not in list_shapes():
        raise UsageError(f"the shape of {recipe.backbone} is unknown. Pass a folder with its config.json.")
    model = untrained(shape, device="meta", dtype=dtype, lora=recipe.adapter, **asdict(recipe.settings()))
    if recipe.still_vision:
        model.backbone.freeze_vision()
    return model


def measure_page(model: RandSlotModel) -> PageCost:
    """Run a page of the largest size through a model on the meta device, forward and backward."""
    model.train()
    features: dict[str, Any] = model.preprocess([largest_page(model)], task="document")
    config = model.backbone.model.config.get_text_config()
    with count_on_meta(model) as counter:
        output = model.backbone.run_vision(features)
        vision, tower, kept = counter.multiply_adds, counter.max_bytes, counter.bytes_now
        content = model.backbone.read_content(features, output)
        vectors = model.encoder.read(content, features)["token_embeddings"]
        forward, held = counter.multiply_adds - vision, counter.bytes_now - kept
        vectors.sum().backward()
        backward = counter.multiply_adds - vision - forward
    positions = content.mask_BL.shape[1] + model.settings.page_vectors - 1
    return PageCost(
        positions=positions,
        vision=vision,
        forward=forward,
        backward=backward,
        sent=sum(value.nbytes for value in features.values() if isinstance(value, Tensor)),
        seen=kept,
        tower=tower,
        held=held,
        inputs=config.num_hidden_layers * positions * config.hidden_size * content.embeds_BLD.element_size(),
        layers=config.num_hidden_layers,
        dimension=config.hidden_size,
    )


# -- the dry run


def is_cached(recipe: Recipe, pages: int) -> bool:
    """Return whether the run uses a gradient cache for this many pages per device."""
    return recipe.gradient_cache and 0 < recipe.micro_batch < pages


def count_passes(recipe: Recipe) -> int:
    """Return the number of passes of the language model per page: more with "loop", or without a KV cache."""
    runs_prefixes = recipe.execution == "loop" or (recipe.strategy.sequential and recipe.gradient_checkpointing)
    return recipe.page_vectors if runs_prefixes else 1


def step_multiply_adds(recipe: Recipe, cost: PageCost, pages: int) -> int:
    """Return the multiply-adds of a step on one device, ignoring queries, which are short."""
    passes = 1 + is_cached(recipe, pages) + recipe.gradient_checkpointing
    times = count_passes(recipe)
    return pages * (cost.vision + times * (passes * cost.forward + cost.backward))


def memory_by_part(
    recipe: Recipe, model: RandSlotModel, cost: PageCost, devices: int, optimizer: str
) -> dict[str, int]:
    """Return the bytes that each device needs, by part; `model` is on the meta device."""
    pages = recipe.batch // devices * recipe.pages_per_row
    weights = list(model.parameters())
    trained = [weight for weight in weights if weight.requires_grad]
    moments = (2 if optimizer == "paged_adamw_8bit" else 8) * sum(weight.numel() for weight in trained)
    gradients = sum(weight.nbytes for weight in trained) * (2 if devices > 1 else 1)  # and the buckets of DDP
    at_once = recipe.micro_batch or pages
    held_pages = min(at_once, pages) if is_cached(recipe, pages) else pages
    one_layer = at_once * cost.held // cost.layers
    held = count_passes(recipe) * held_pages * (cost.inputs if recipe.gradient_checkpointing else cost.held)
    if recipe.gradient_checkpointing:
        held += one_layer
    return {
        "weights": sum(weight.nbytes for weight in weights),
        "gradients and optimizer": gradients + moments,
        "pages of the batch": pages * cost.sent,
        "vision tower outputs": pages * cost.seen,
        "activations": held + max(one_layer, at_once * cost.tower),
        "CUDA (assumed)": 1_500_000_000,
    }


def describe_run(recipe: Recipe, devices: int | None = None) -> str:
    """Return a text about a run; devices: the number of processes, by default torchrun's or the GPUs here."""
    devices = devices or int(os.environ.get("WORLD_SIZE", "0")) or max(torch.cuda.device_count(), 1)
    pairs = share(recipe.batch, devices)
    pages = pairs * recipe.pages_per_row
    model = make_model_on_meta(recipe, torch.bfloat16 if recipe.precision == "bf16" and recipe.lora else torch.float32)
    cost = measure_page(model)
    memory = memory_by_part(recipe, model, cost, devices, recipe.optimizer)
    num_rows, where = count_rows(recipe)
    steps = count_steps(recipe, num_rows)
    execution = (
        "every prefix re-encoded (the paper's loop)" if recipe.execution == "loop" else "one pass",
        f"pages at once: {recipe.micro_batch or pages}",
        "gradient cache" if is_cached(recipe, pages) else "no gradient cache",
        "layers checkpointed" if recipe.gradient_checkpointing else "layers not checkpointed",
    )
    parts: list[list[Cell]] = [[part, num / GB] for part, num in memory.items()]
    parts.append(["total", sum(memory.values()) / GB])
    disk = f"{run_bytes(recipe, model) / GB:.1f} GB for model and checkpoints"
    if recipe.backbone and not Path(recipe.backbone).exists():
        weights = sum(weight.nbytes for weight in model.parameters() if not weight.requires_grad)
        disk += f", and {weights / GB:.1f} GB of weights from the hub"
    # Hardware FLOPs utilization (HFU) of 40% is common for training of this size (assumed).
    operations = 2 * step_multiply_adds(recipe, cost, pages)
    speeds: list[list[Cell]] = []
    for name, (size, peak) in GPUS.items():
        seconds = operations / (0.4 * peak * 1e12)
        hours = steps * seconds / 3600 if steps else None
        fits = "yes" if sum(memory.values()) <= size * GB else "no"
        speeds.append([f"{name}, {size} GB", fits, pages * devices / seconds, seconds, hours])
    title = f"Estimate at 40% HFU in bfloat16 (assumed), devices: {devices}, data loading not the bottleneck"
    lines = [
        f"backbone   {recipe.backbone or recipe.untrained}, slots {recipe.slots}, "
        f"{recipe.query_vectors} and {recipe.page_vectors} vectors",
        f"pairs      {where}",
        f"steps      {steps or 'unknown'}, each of {recipe.batch} pairs with {recipe.negatives} negatives, "
        f"{pairs} pairs per device",
        f"execution  {', '.join(execution)}",
        f"page       at most {cost.positions:,} positions, {cost.sent / 1e6:.0f} MB from worker to device",
        f"disk       {disk}",
        "",
        write_table(Table("Memory per device for the largest pages", ["part", "GB"], parts, digits=2), "md"),
        write_table(Table(title, ["GPU", "fits", "total pages/s", "s/step", "hours"], speeds), "md"),
    ]
    return "\n".join(lines)


def count_rows(recipe: Recipe) -> tuple[int, str]:
    """Return the number of pairs (0 if unknown without a network) and a line about them."""
    if is_hub_id(recipe.data) and not Path(recipe.data).exists():
        if recipe.data == "vidore/colpali_train_set":  # the paper's data
            return 118_195, f"118,195 of {recipe.data}, from the hub"
        return 0, f"{recipe.data}, from the hub: not counted yet"
    try:
        num = len(load_pairs(recipe.data, recipe.split, recipe.query_column, recipe.page_column))
    except RandSlotError as error:
        return 0, f"missing: {error}"
    return num, f"{num:,} of {recipe.data}"


def count_steps(recipe: Recipe, num_rows: int) -> int:
    """Return the number of steps of a run; 0 if the number of rows is unknown and so are the steps."""
    whole = recipe.epochs * (num_rows // recipe.batch)
    return min(recipe.steps or whole, whole) if whole else recipe.steps


def run_bytes(recipe: Recipe, model: RandSlotModel) -> int:
    """Return the disk space of a run: the model, and two checkpoints with the state of the optimizer."""
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    saved: int = 4 * trained if recipe.lora else sum(weight.nbytes for weight in model.parameters())
    return saved + (2 * (saved + 8 * trained) if recipe.save_every else 0)
