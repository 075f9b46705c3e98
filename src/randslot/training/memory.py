"""How much memory and work a recipe takes, computed before it runs: from one page that goes through on the meta device.

What is computed is exact for tensors; a CUDA context, the allocator and the workspaces of kernels come on top.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from ..errors import UsageError
from ..model.backbone import find_shape
from ..model.loading import untrained
from ..model.model import RandSlotModel
from .recipe import Recipe
from .rehearsal import rehearsing

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
        model.family.freeze_vision(model.backbone.model)
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
        seen = model.backbone.see(features)
        vision, tower, kept = counted.multiply_adds, counted.bytes_most, counted.bytes_now
        content = model.backbone.read_content(features, seen)
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
