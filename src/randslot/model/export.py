"""A model as an ordinary Hugging Face folder: constant slots become tokens, so that any server can give its vectors.

The folder holds the backbone's own architecture with the adapter merged, slot tokens in the tokenizer and their vectors
in the embedding, a chat template that puts them behind a query or a page, and

serving.json   what a client must know: settings, dimension, prompts, image size
SERVING.md     commands for vLLM and for plain transformers
"""

from __future__ import annotations

import copy
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken
from tokenizers.processors import ByteLevel
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import UsageError
from ..files import write_json
from .backbone import bars_in_terminals
from .checkpoint import check_fit, merge_adapter, share_weights
from .encoder import SlotEncoder
from .families.base import Family
from .hub import SERVING
from .loading import load
from .preprocessing import QUERY
from .reader import SIDES, Side
from .slots import STRATEGIES, Strategy, Zero

FORMAT = 1
GUIDE = "SERVING.md"
ZERO_TOKEN = "<|randslot_zero|>"
DTYPES = ("float32", "bfloat16", "float16")
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{%- if message['content'] is string -%}
{{- QUERY_START + message['content'] + QUERY_END -}}
{%- else -%}
{%- if message['content'] | length != 1 -%}{{- raise_exception('one text or one image, nothing else') -}}{%- endif -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'text' -%}
{{- QUERY_START + part['text'] + QUERY_END -}}
{%- else -%}
{{- PAGE_PROMPT -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- endfor -%}
"""


def export_model(name: str | Path, output: Path, *, slots: str | None = None, dtype: str = "float32") -> dict[str, Any]:
    """Write a model for serving into a new or empty folder, and return what serving.json says.

    slots: "zero", "fixed" or "learned"; by default what the model appends when encoding. The adapter is merged in
    float32 and the result rounded to `dtype` once.

    Errors: UsageError for slots that no token can stand for, or a folder that is not empty or a file.
    """
    if dtype not in DTYPES:
        raise UsageError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    if output.is_file():
        raise UsageError(f"{output} is a file: name a new folder")
    if output.is_dir() and any(output.iterdir()):
        raise UsageError(f"{output} is not empty: name a new folder")
    if slots is not None and slots not in list_served():
        reason = f": {why_not_served(STRATEGIES[slots])}" if slots in STRATEGIES else ""
        raise UsageError(f"slots {slots!r} is not one of {', '.join(list_served())}{reason}")
    model = load(name, device="cpu", dtype="float32")
    if model.teacher is not None:
        raise UsageError(f"cannot export {name}: it is a student, which servers would take for a model of pages too")
    encoder = model.encoder
    trained, slots = encoder.settings.slots, slots or encoder.settings.inference
    if reason := why_not_served(STRATEGIES[slots]):
        raise UsageError(f"cannot export {name}, a model with slots={slots!r}: {reason}")
    # Slots may be replaced when encoding, but not those of a model that was trained on its readouts, or without slots.
    if encoder.settings.strategy.sequential or encoder.settings.strategy.every_token:
        reason = why_not_served(encoder.settings.strategy)
        raise UsageError(f"cannot export {name}, a model with slots={trained!r}: {reason}")
    encoder.use(inference=slots)
    serving = describe_serving(encoder, model.weights_key, dtype)
    full = add_head(model.family, merge_adapter(encoder.backbone))
    add_slots(full, encoder)
    try:
        output.mkdir(parents=True, exist_ok=True)
        _write(output, full.to(getattr(torch, dtype)), encoder, serving)
    except OSError as error:
        raise UsageError(f"cannot write into {output}: {error.strerror or error}") from error
    return serving


def list_served() -> list[str]:
    """Return the strategies whose slots can be tokens."""
    return [name for name, strategy in STRATEGIES.items() if not why_not_served(strategy)]


def why_not_served(strategy: type[Strategy]) -> str:
    """Return why the slots of a strategy cannot be tokens; empty if they can."""
    if strategy.every_token:
        return "a full-token model appends no slots and keeps every vector; a server can run its backbone as it is"
    if strategy.sequential:
        return "direct feedback makes each slot from the output before it, and a server runs its input in one pass"
    if not strategy.constant:
        return "random slots are drawn afresh, a token is constant; a model trained with them goes out with slots zero"
    return ""


def add_head(family: Family, model: PreTrainedModel) -> PreTrainedModel:
    """Return a backbone as the whole model that servers know, with a language head tied to its embedding.

    Nothing here reads the head, and RandSlot does not keep one; tied, it takes no room.
    """
    config = copy.deepcopy(model.config)
    config.tie_word_embeddings = True
    with torch.device("meta"):
        full = family.make_full_model(config)
    expected = full.state_dict()
    full.model = model
    full.tie_weights()
    check_fit("the merged model", full.state_dict(), expected)
    return full


def name_slots(encoder: SlotEncoder, side: Side) -> list[str]:
    """Return the tokens that stand for the slots of one side, in their order."""
    num = encoder.settings.vectors(side) - 1
    if isinstance(encoder.inference_slots, Zero):
        return [ZERO_TOKEN] * num
    return [f"<|randslot_{side}_{position}|>" for position in range(1, num + 1)]


def add_slots(full: PreTrainedModel, encoder: SlotEncoder) -> None:
    """Put slot tokens into the tokenizer, and their vectors into the embedding as they are."""
    rows: dict[str, Tensor] = {}
    for side in SIDES:
        names = name_slots(encoder, side)
        vectors = encoder.inference_slots(side, len(names), torch.zeros(1, dtype=torch.long))[0]
        rows |= dict(zip(names, vectors.detach(), strict=True))
    if not rows:
        return
    tokens = [AddedToken(token, special=True, normalized=False) for token in rows]
    encoder.tokenizer.add_tokens(tokens, special_tokens=True)
    ids = encoder.tokenizer.convert_tokens_to_ids(list(rows))
    # Real backbones have room for more tokens than their tokenizer has; then the embedding stays as large as it is.
    if max(ids) >= len(full.get_input_embeddings().weight):
        full.resize_token_embeddings(max(ids) + 1, mean_resizing=False)
    with torch.no_grad():
        full.get_input_embeddings().weight[ids] = torch.stack(list(rows.values()))


def describe_serving(encoder: SlotEncoder, weights: str, dtype: str) -> dict[str, Any]:
    """Return what a client must know of an exported model."""
    family, settings = encoder.family, encoder.settings
    first, last = ("".join(encoder.tokenizer.convert_ids_to_tokens(ids)) for ids in encoder.processors.closing_tokens())
    before, after = encoder.template.query_prompt
    return {
        "format": FORMAT,
        "settings": asdict(settings),
        "dimension": encoder.get_embedding_dimension(),
        "query_prompt": first + before + QUERY + after + last,
        "query_slots": "".join(name_slots(encoder, "query")),
        "page_prompt": first + encoder.template.page_prompt + last + "".join(name_slots(encoder, "page")),
        "image": family.image_limits(encoder.processors, settings.visual_tokens),
        "family": family.name,
        "dtype": dtype,
        "weights": weights,
    }


def _write(output: Path, full: PreTrainedModel, encoder: SlotEncoder, serving: dict[str, Any]) -> None:
    for name in full.config.sub_configs:
        getattr(full.config, name).dtype = full.dtype
    with bars_in_terminals():
        full.save_pretrained(output)
    encoder.tokenizer.padding_side = "left"
    if encoder.template.closed:  # the prompts spell its tokens out: behind the slots they would be one row too many
        encoder.tokenizer.backend_tokenizer.post_processor = ByteLevel(trim_offsets=False)
    encoder.tokenizer.chat_template = _chat_template(serving)
    encoder.family.write_processors(encoder.processors, output, encoder.settings.visual_tokens)
    write_json(output / SERVING, serving)
    share_weights(output, SERVING)
    (output / GUIDE).write_text(_guide(serving, encoder.family), encoding="utf-8")


def _chat_template(serving: dict[str, Any]) -> str:
    start, end = serving["query_prompt"].split(QUERY)
    parts = {"QUERY_START": start, "QUERY_END": end + serving["query_slots"], "PAGE_PROMPT": serving["page_prompt"]}
    template = CHAT_TEMPLATE
    for name, text in parts.items():
        template = template.replace(name, json.dumps(text))
    return template


def _guide(serving: dict[str, Any], family: Family) -> str:
    settings = serving["settings"]
    query = serving["query_prompt"] + serving["query_slots"]
    example = json.dumps(query.replace(QUERY, "revenue by region"))
    values = {
        "query_vectors": settings["query_vectors"],
        "page_vectors": settings["page_vectors"],
        "inference": settings["inference"],
        "dimension": serving["dimension"],
        "dtype": serving["dtype"],
        "length": settings["text_tokens" if family.reads == "text" else "visual_tokens"] + 512,
        "text_tokens": settings["text_tokens"],
        "query_prompt": query.replace("\n", "\\n"),
        "query_string": json.dumps(query),
        "query_example": example.replace("'", "'\\''"),  # inside quotes of a shell
        "page_prompt": serving["page_prompt"].replace("\n", "\\n"),
        "image_token": family.image_token,
        "export_example": family.export_example,
    }
    text = Path(__file__).with_name(family.guide).read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace(f"__{name.upper()}__", str(value))
    return text
