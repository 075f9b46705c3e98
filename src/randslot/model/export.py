"""Export a model as an ordinary Hugging Face folder: constant slots become tokens, so that any server can run it.

The folder holds the backbone's own architecture with the adapter merged, slot tokens in the tokenizer and their vectors
in the embedding, a chat template that appends them to a query or page, and

serving.json   for clients: settings, dimension, prompts, image size
SERVING.md     commands for vLLM and for plain transformers
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken
from tokenizers.processors import ByteLevel
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import UsageError, in_one_line
from ..files import write_json
from .backbone import bars_in_terminals
from .checkpoint import check_fit, merge_adapter, share_weights
from .encoder import SlotEncoder
from .families.base import Family
from .hub import SERVING
from .model import load
from .preprocessing import QUERY
from .reader import SIDES, Side
from .settings import check_choice
from .slots import STRATEGIES, Strategy, Zero

FORMAT = 1
GUIDE = "SERVING.md"
ZERO_TOKEN = "<|randslot_zero|>"
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


def export_model(
    name: str | Path,
    output: Path,
    *,
    slots: str | None = None,
    dtype: str = "float32",
    trust_remote_code: bool = False,
) -> dict[str, Any]:
    """Write a model for servers into a new or empty folder, and return the content of serving.json.

    slots: "zero", "fixed" or "learned"; by default the model's own for inference. The adapter is merged in float32, and
    the result rounded to `dtype` once.

    Errors: UsageError for slots that cannot be tokens, or a folder that is not empty.
    """
    check_choice("dtype", dtype, ("float32", "bfloat16", "float16"))
    if output.is_file() or (output.is_dir() and any(output.iterdir())):
        raise UsageError(f"{output} is {'a file' if output.is_file() else 'not empty'}. Choose a new folder.")
    check_choice("slots", slots or "zero", STRATEGIES)
    model = load(name, device="cpu", dtype="float32", trust_remote_code=trust_remote_code)
    if model.teacher is not None:
        raise UsageError(f"cannot export {name}: it is a student, which encodes queries only")
    encoder, settings = model.encoder, model.settings
    # Inference may replace the training slots, unless they are readouts or there are none.
    is_slotted = not (settings.strategy.sequential or settings.strategy.every_token)
    chosen = (slots or settings.inference) if is_slotted else settings.slots
    if reason := why_not_exportable(STRATEGIES[chosen]):
        raise UsageError(f"cannot export {name}, a model with slots={chosen!r}: {reason}")
    encoder.use(inference=chosen)
    serving = describe_serving(encoder, model.weights_key, dtype)
    full = add_head(model.family, merge_adapter(encoder.backbone))
    add_slots(full, encoder)
    with in_one_line(f"write into {output}", UsageError):
        output.mkdir(parents=True, exist_ok=True)
        _write(output, full.to(getattr(torch, dtype)), encoder, serving)
    return serving


def why_not_exportable(strategy: type[Strategy]) -> str:
    """Return why the slots of a strategy cannot be tokens, or an empty string."""
    if strategy.every_token:
        return "a full-token model has no slots. A server can run its backbone unchanged."
    if strategy.sequential:
        return "direct feedback needs a pass per slot, and a server runs one pass"
    if not strategy.constant:
        return "random slots cannot be exported as tokens. Use --slots zero."
    return ""


def add_head(family: Family, model: PreTrainedModel) -> PreTrainedModel:
    """Wrap a backbone in the full model that servers run.

    Its language head is unused; tied to the embedding, it takes no space.
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
    """Return the slot tokens of one side."""
    num = encoder.settings.vectors(side) - 1
    if isinstance(encoder.inference_slots, Zero):
        return [ZERO_TOKEN] * num
    return [f"<|randslot_{side}_{position}|>" for position in range(1, num + 1)]


def add_slots(full: PreTrainedModel, encoder: SlotEncoder) -> None:
    """Add slot tokens to the tokenizer, and their vectors to the embedding."""
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
    # Most backbones have spare embedding rows, and need no resizing.
    if max(ids) >= len(full.get_input_embeddings().weight):
        full.resize_token_embeddings(max(ids) + 1, mean_resizing=False)
    with torch.no_grad():
        full.get_input_embeddings().weight[ids] = torch.stack(list(rows.values()))


def describe_serving(encoder: SlotEncoder, weights: str, dtype: str) -> dict[str, Any]:
    """Return the content of serving.json."""
    family, settings = encoder.family, encoder.settings
    first, last = ("".join(encoder.tokenizer.convert_ids_to_tokens(ids)) for ids in encoder.processors.closing_tokens())
    before, after = encoder.template.query_prompt
    return {
        "format": FORMAT,
        "settings": settings.as_dict(),
        "dimension": encoder.full_width,
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
    if encoder.template.closed:  # the prompts contain its tokens; more after the slots would add a vector
        encoder.tokenizer.backend_tokenizer.post_processor = ByteLevel(trim_offsets=False)
    start, end = serving["query_prompt"].split(QUERY)
    parts = {"QUERY_START": start, "QUERY_END": end + serving["query_slots"], "PAGE_PROMPT": serving["page_prompt"]}
    template = CHAT_TEMPLATE
    for name, text in parts.items():
        template = template.replace(name, json.dumps(text))
    encoder.tokenizer.chat_template = template
    encoder.family.write_processors(encoder.processors, output, encoder.settings.visual_tokens)
    write_json(output / SERVING, serving)
    share_weights(output, SERVING)
    (output / GUIDE).write_text(_guide(serving, encoder.family), encoding="utf-8")


def _guide(serving: dict[str, Any], family: Family) -> str:
    """Return the filled-in guide of a family."""
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
        "query_example": example.replace("'", "'\\''"),  # quoted in a shell
        "page_prompt": serving["page_prompt"].replace("\n", "\\n"),
        "image_token": family.image_token,
        "export_example": family.export_example,
    }
    text = Path(__file__).with_name(family.guide).read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace(f"__{name.upper()}__", str(value))
    return text
