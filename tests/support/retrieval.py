"""A tiny copy of Qwen3-VL-Embedding as it is published, and the published way to its vectors: transformers alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoModelForImageTextToText,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Qwen2VLImageProcessorPil,
    Qwen3VLConfig,
    Qwen3VLModel,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

import randslot
from randslot.model.backbone import make_tokenizer
from support.others import change, write_dense_modules

PLACES = {name: f"<|{name}|>" for name in ("vision_start", "vision_end", "image_pad", "video_pad")}
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *PLACES.values())
FACTOR = 32  # pixels of a visual token's side
PIXELS = (4 * FACTOR**2, 1800 * FACTOR**2)  # of an image, at least and at most, in the published script
DEFAULT_INSTRUCTION = "Represent the user's input."
# What the chat template of Qwen3-VL makes of a system message and a message of one text or one image.
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' -}}
{%- for part in message.content -%}
{%- if part.type == 'image' -%}{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
{%- else -%}{{- part.text -}}{%- endif -%}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def write_checkpoint(folder: Path, *, closed: bool = True) -> Path:
    """Write the folder: weights under the names of the model with a language head, its processors and template.

    closed: whether the tokenizer puts <|endoftext|> behind every text, as that of Qwen3-Embedding does.
    """
    tokenizer = _make_tokenizer(closed)
    shape = Path(randslot.__file__).parent / "model" / "shapes" / "qwen3-vl-tiny.json"
    options = json.loads(shape.read_text())["config"]
    options["text_config"] |= {"vocab_size": len(tokenizer), "bos_token_id": None, "eos_token_id": None}
    ids = {
        f"{name.removesuffix('_pad')}_token_id": tokenizer.convert_tokens_to_ids(token)
        for name, token in PLACES.items()
    }
    config = Qwen3VLConfig(**options, **ids)
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(5)  # a fresh model's tiny weights would hardly show wrong positions or masks
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    size = {"shortest_edge": PIXELS[0], "longest_edge": 1280 * FACTOR**2}  # which the published script overrides
    half = [0.5, 0.5, 0.5]
    Qwen2VLImageProcessorPil(patch_size=16, size=size, image_mean=half, image_std=half).save_pretrained(folder)
    change(folder, "preprocessor_config.json", processor_class="Qwen3VLProcessor")
    write_dense_modules(folder, dict.fromkeys(("query", "document"), DEFAULT_INSTRUCTION))
    return folder


def _make_tokenizer(closed: bool) -> Any:
    """Make a tokenizer of bytes in which, as in the real one, two line breaks are one token."""
    made = json.loads(make_tokenizer(SPECIAL, "<|im_end|>").backend_tokenizer.to_str())
    made["model"]["vocab"]["ĊĊ"] = 256
    made["model"]["merges"] = [["Ċ", "Ċ"]]
    for token in made["added_tokens"]:
        token["id"] += 1
    backend = Tokenizer.from_str(json.dumps(made))
    if closed:
        end = ("<|endoftext|>", backend.token_to_id("<|endoftext|>"))
        backend.post_processor = TemplateProcessing(single="$A <|endoftext|>", special_tokens=[end])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<|endoftext|>", eos_token="<|im_end|>", padding_side="right"
    )
    assert tokenizer.convert_tokens_to_ids(["ĊĊ", SPECIAL[0], SPECIAL[-1]]) == [256, 257, 256 + len(SPECIAL)]
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def embed_as_published(folder: Path, inputs: list[dict[str, Any]]) -> torch.Tensor:
    """Embed inputs ({"text": ...} or {"image": ...}, each perhaps with its "instruction") as the model's script does.

    A conversation with the instruction as system message, through the chat template with the beginning of an answer;
    the image resized between the script's limits; right padding; the last state that is not padding, of length 1.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)
    images = [_resize(one["image"]) for one in inputs if "image" in one]
    prompts = [
        tokenizer.apply_chat_template(_converse(one), tokenize=False, add_generation_prompt=True) for one in inputs
    ]
    seen: dict[str, Any] = {}
    if images:
        processor = Qwen2VLImageProcessorPil.from_pretrained(folder)
        seen = dict(processor(images, do_resize=False, return_tensors="pt"))
        counts = iter((seen["image_grid_thw"].prod(-1) // processor.merge_size**2).tolist())
        prompts = [
            prompt.replace("<|image_pad|>", "<|image_pad|>" * next(counts)) if "image" in one else prompt
            for one, prompt in zip(inputs, prompts, strict=True)
        ]
    batch = tokenizer(prompts, padding=True, padding_side="right", return_tensors="pt")
    model = Qwen3VLModel.from_pretrained(folder).eval()
    types = (batch["input_ids"] == model.config.image_token_id).int()
    mask = batch["attention_mask"]
    with torch.no_grad():
        states = model(
            input_ids=batch["input_ids"], attention_mask=mask, mm_token_type_ids=types, **seen
        ).last_hidden_state
    last = mask.shape[1] - mask.flip(1).argmax(1) - 1
    return torch.nn.functional.normalize(states[torch.arange(len(last)), last], dim=-1)


def _converse(one: dict[str, Any]) -> list[dict[str, Any]]:
    content = {"type": "image"} if "image" in one else {"type": "text", "text": one["text"]}
    instruction = {"type": "text", "text": one.get("instruction", DEFAULT_INSTRUCTION)}
    return [{"role": "system", "content": [instruction]}, {"role": "user", "content": [content]}]


def _resize(image: Image.Image) -> Image.Image:
    height, width = smart_resize(image.height, image.width, FACTOR, *PIXELS)
    return image.resize((width, height), Image.Resampling.BICUBIC)
