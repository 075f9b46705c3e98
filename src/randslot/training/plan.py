"""What a run would take, computed before anything is downloaded: steps, memory, disk, time, what is missing."""

from __future__ import annotations

import importlib.util
import os
import shutil
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry
from transformers import AttentionInterface, AttentionMaskInterface

from ..errors import RandSlotError, UsageError
from ..model.backbone import find_shape
from ..model.families.base import Family
from ..model.hub import is_hub_id
from ..model.loading import untrained
from ..model.model import RandSlotModel
from ..tables import Cell, Table, write_table
from .arguments import Hardware, add_kernels, choose_hardware, free_shared_memory, refuse_sharding, share, shared_bytes
from .data import load_pairs
from .recipe import Recipe

aten = torch.ops.aten
META = torch.device("meta")
ATTENTION = "randslot_fused"  # the name of the attention below among those of transformers


@dataclass
class Counted:
    """What has been counted so far. Bytes are those of tensors that were made meanwhile: weights do not count.

    multiply_adds: of matrix products, and of attention as if every position saw all others. bytes_now, bytes_most: of
    what is alive, and the most that ever was at once.
    """

    multiply_adds: int = 0
    bytes_now: int = 0
    bytes_most: int = 0

    def allocate(self, num: int) -> None:
        """Count the bytes of a tensor that was made, or that is gone."""
        self.bytes_now += num
        self.bytes_most = max(self.bytes_most, self.bytes_now)


@contextmanager
def rehearsing(model: RandSlotModel) -> Iterator[Counted]:
    """Let a model on the meta device run over features that are in memory, and count what it does."""
    AttentionInterface.register(ATTENTION, _attend)
    AttentionMaskInterface.register(ATTENTION, _no_mask)
    backbone = model.backbone.model
    before = backbone.config._attn_implementation
    backbone.set_attn_implementation(ATTENTION)
    counted = Counted()
    try:
        with _OnMeta(counted, model):
            yield counted
    finally:
        backbone.set_attn_implementation(before)


class _OnMeta(TorchDispatchMode):
    """Takes tensors in memory along to the meta device where they meet others, and counts the bytes of what is made.

    Sizes and positions stay in memory, where they can be read. A question about tensors without numbers is whether all
    positions count, and is answered by yes.
    """

    counts_bytes = True

    def __init__(self, counted: Counted, model: RandSlotModel) -> None:
        super().__init__()
        self.counted = counted
        weights = [*model.parameters(), *model.buffers()]
        self.known = {weight.untyped_storage()._cdata for weight in weights}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (
            func is aten._to_copy.default
            and args[0].dtype == torch.bool
            and kwargs.get("device") == torch.device("meta")
        ):
            return args[0]  # a mask stays where its numbers are
        if func in (aten.index.Tensor, aten.index_put_.default, aten.index_put.default):
            args = (args[0], _masks_to_places(args[1]), *args[2:])
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        is_there = [tensor.is_meta for tensor in tensors]
        if any(is_there):
            if func is aten._local_scalar_dense.default and tensors[0].dtype == torch.bool:
                return True
            if not all(is_there):
                args, kwargs = tree_map(_to_meta, (args, kwargs))
        output = func(*args, **kwargs)
        if func._overloadpacket in flop_registry:
            products = flop_registry[func._overloadpacket](*args, **kwargs, out_val=output)
            self.counted.multiply_adds += products // 2  # torch counts a multiplication and an addition as two
        for leaf in tree_leaves(output):
            if self.counts_bytes and isinstance(leaf, Tensor) and leaf.is_meta:
                self._count(leaf)
        return output

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        place, num = storage._cdata, storage.nbytes()
        if place not in self.known:
            self.known.add(place)
            self.counted.allocate(num)
            weakref.finalize(storage, self._forget, place, num)

    def _forget(self, place: int, num: int) -> None:
        self.known.discard(place)
        self.counted.allocate(-num)


def _masks_to_places(indices: list[Tensor | None]) -> list[Tensor | None]:
    """Return the indices of a tensor with the places that a mask names in its stead: how many is known here only."""
    found: list[Tensor | None] = []
    for index in indices:
        if index is None or index.dtype != torch.bool or index.is_meta:
            found.append(index)
        else:
            found.extend(index.nonzero(as_tuple=True))
    return found


def _to_meta(leaf: Any) -> Any:
    return leaf.to("meta") if isinstance(leaf, Tensor) else leaf


class _Fused(torch.autograd.Function):
    """Attention as its fused kernels compute it: two products forward, five backward, no scores kept."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.kept = query.new_empty(query.shape), query.new_empty(query.shape[:-1], dtype=torch.float32)
        with _unseen():
            times = query.shape[1] // key.shape[1]  # heads that share a key
            scores = query @ key.repeat_interleave(times, dim=1).transpose(-1, -2)
            scores @ value.repeat_interleave(times, dim=1)
        return torch.empty_like(query)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = ctx.saved_tensors
        with _unseen():
            times = query.shape[1] // key.shape[1]
            scores = query @ key.repeat_interleave(times, dim=1).transpose(-1, -2)
            scores @ value.repeat_interleave(times, dim=1)  # as many as the gradient of the scores takes
            for other in (query, query, query):  # the gradients of queries, keys and values
                scores @ other
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


@contextmanager
def _unseen() -> Iterator[None]:
    """Count products, and not the bytes of what they give."""
    _OnMeta.counts_bytes = False
    try:
        yield
    finally:
        _OnMeta.counts_bytes = True


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    output: Tensor = _Fused.apply(query, key, value)
    return output.transpose(1, 2).contiguous(), None


def _no_mask(*args: Any, **options: Any) -> None:
    return None


CUDA = 1_500_000_000  # bytes that a process takes on a GPU for CUDA, libraries and the allocator: assumed


@dataclass(frozen=True)
class PageCost:
    """What one page of the largest size costs, in multiply-adds and bytes.

    positions: of the language model, slots among them. vision, forward, backward: multiply-adds of the tower, of the
    language model, and of going back through it. sent: bytes of its features. seen: what the tower gives. tower: the
    most it takes meanwhile. held: what the language model keeps for the backward. inputs: the inputs of its layers.
    layers: how many it has.
    """

    positions: int
    vision: int
    forward: int
    backward: int
    sent: int
    seen: int
    tower: int
    held: int
    inputs: int
    layers: int


def make_model_without_memory(recipe: Recipe, dtype: torch.dtype) -> RandSlotModel:
    """Make the model of a recipe on the meta device, from the shape of its backbone: nothing is downloaded.

    Errors: UsageError if the shape is not known.
    """
    shape = recipe.untrained or find_shape(recipe.backbone)
    if shape is None:
        raise UsageError(f"the shape of {recipe.backbone} is not known before it is loaded: nothing can be computed")
    adapter = {"rank": recipe.lora_rank, "alpha": recipe.lora_alpha, "dropout": recipe.lora_dropout}
    settings = asdict(recipe.settings())
    model = untrained(shape, device="meta", dtype=dtype, lora=adapter if recipe.lora else False, **settings)
    if recipe.still_vision:
        model.backbone.freeze_vision()
    return model


def largest_page(model: RandSlotModel) -> Image.Image | str:
    """Make a page that takes all the tokens it may: 2 x 3, or square where pages are cut into square tiles."""
    if model.reads == "text":
        return "word " * model.settings.text_tokens
    pages = []
    for aspect in (3 / 2, 1):
        width = (model.page_pixels / aspect) ** 0.5
        pages.append(Image.new("RGB", (round(width), round(width * aspect)), "white"))
    return max(pages, key=lambda page: model.preprocess([page], task="document")["input_ids"].shape[1])


def measure_page(model: RandSlotModel) -> PageCost:
    """Send a page of the largest size through a model on the meta device, forward and backward."""
    model.train()
    features: dict[str, Any] = model.preprocess([largest_page(model)], task="document")
    config = model.backbone.model.config.get_text_config()
    with rehearsing(model) as counted:
        output = model.backbone.run_vision(features)
        vision, tower, kept = counted.multiply_adds, counted.bytes_most, counted.bytes_now
        content = model.backbone.read_content(features, output)
        vectors = model.encoder.read(content, features)["token_embeddings"]
        forward, held = counted.multiply_adds - vision, counted.bytes_now - kept
        vectors.sum().backward()
        backward = counted.multiply_adds - vision - forward
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
    )


def step_multiply_adds(recipe: Recipe, cost: PageCost, pages: int) -> int:
    """Return the multiply-adds of a step over some pages of a device; queries are left out, being short."""
    passes = 1 + is_cached(recipe, pages) + recipe.gradient_checkpointing
    times = recipe.page_vectors if recipe.execution == "loop" else 1
    return pages * (cost.vision + times * (passes * cost.forward + cost.backward))


def is_cached(recipe: Recipe, share: int) -> bool:
    """Whether a gradient cache is used for this many pages of a device."""
    return recipe.gradient_cache and 0 < recipe.micro_batch < share


def memory_by_part(
    recipe: Recipe, model: RandSlotModel, cost: PageCost, devices: int, optimizer: str
) -> dict[str, int]:
    """Return the bytes that each device needs, by what for; `model` is on the meta device."""
    share = recipe.batch // devices
    weights = list(model.parameters())
    trained = sum(weight.numel() for weight in weights if weight.requires_grad)
    trained_bytes = sum(weight.nbytes for weight in weights if weight.requires_grad)
    states = 2 if optimizer == "paged_adamw_8bit" else 8  # bytes of two moments
    gradients = trained_bytes * (2 if devices > 1 else 1)  # and the buckets that processes exchange
    return {
        "weights": sum(weight.nbytes for weight in weights),
        "gradients and optimizer": gradients + states * trained,
        "pages of the batch": share * cost.sent,
        "what the tower saw": share * cost.seen,
        "activations": _activations(recipe, cost, share),
        "CUDA (assumed)": CUDA,
    }


def _activations(recipe: Recipe, cost: PageCost, share: int) -> int:
    """Return what is held for the backward, and at work in one layer or in the tower, whichever is more."""
    at_once = recipe.micro_batch or share
    held_pages = min(at_once, share) if is_cached(recipe, share) or not recipe.micro_batch else share
    times = recipe.page_vectors if recipe.execution == "loop" else 1
    one_layer = at_once * cost.held // cost.layers
    if recipe.gradient_checkpointing:
        held = times * held_pages * cost.inputs + one_layer
    else:
        held = times * held_pages * cost.held
    return held + max(one_layer, at_once * cost.tower)


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
