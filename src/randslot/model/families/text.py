"""Language models without vision: Llama, Qwen2, Qwen3. A page is its text in a prompt, cut to a number of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ...errors import UsageError
from ...pages import NoTextError, read_page_text
from ..hub import Source
from ..preprocessing import PAGE, Features, Processors, Template
from .base import Family


class TextFamily(Family):
    """A family that reads the text of a page."""

    reads = "text"
    # The paper's prompt with the text of the page in place of its image. It ends in <|endoftext|>, as in the paper,
    # which is also the token that Qwen3-Embedding pools.
    page_prompt = "<|im_start|>user\n{page}\nDescribe the text.<|im_end|><|endoftext|>"
    lora_targets = r".*\.(q_proj|k_proj|v_proj|o_proj)"
    special_tokens = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    end_token = "<|im_end|>"
    guide = "serving_text.md"

    def load_processors(self, source: Source) -> Processors:
        processors = super().load_processors(source)
        tokenizer = processors.tokenizer
        if tokenizer.pad_token is None:  # true of many Llamas; padding is masked, so any token will do
            tokenizer.pad_token = tokenizer.eos_token
        return processors

    def prompt(self, tokenizer: PreTrainedTokenizerBase) -> str:
        """Return the page prompt: without chat tokens, the same words between the tokenizer's begin and end tokens."""
        known = tokenizer.get_vocab()
        if all(token in known for token in self.special_tokens):
            return self.page_prompt
        return f"{tokenizer.bos_token or ''}{{page}}\nDescribe the text.{tokenizer.eos_token or ''}"

    def open_page(self, processors: Processors, page: Any, num_tokens: int) -> str:
        """Return the text of a page, cut to `num_tokens`; a string is the text itself."""
        text = page if isinstance(page, str) else read_page_text(page)
        text = text.strip()
        if not text:
            raise NoTextError("a page without text has no vectors in a model that reads text")
        return cut_text(processors, text, num_tokens)

    def preprocess_pages(self, processors: Processors, pages: Sequence[Any], num_tokens: int) -> Features:
        before, after = processors.template.page_prompt.split(PAGE)
        return processors.pad(processors.tokenize_inside(before, after, pages))

    def keep_layers(self, model: PreTrainedModel, num: int, *, last: bool = False) -> None:
        """Keep only the first `num` layers of a model; `last`: replace the last of these by the model's last one."""
        if num > len(model.layers):
            raise UsageError(f"layers={num}: this {self.name} model has {len(model.layers)}")
        kept = [*range(num - 1), len(model.layers) - 1 if last else num - 1]
        model.layers = nn.ModuleList(model.layers[place] for place in kept)
        for place, layer in enumerate(model.layers):
            layer.self_attn.layer_idx = place  # the index of its keys and values in a cache
        model.config.num_hidden_layers = num
        if getattr(model.config, "layer_types", None):
            model.config.layer_types = [model.config.layer_types[place] for place in kept]

    def make_full_model(self, config: PreTrainedConfig) -> PreTrainedModel:
        return AutoModelForCausalLM.from_config(config)


class Llama(TextFamily):
    """Llama and models built like it: SmolLM2, TinyLlama, Llama 3."""

    name = model_type = "llama"


class Qwen2(TextFamily):
    """Qwen2 and Qwen2.5 without vision."""

    name = model_type = "qwen2"


class Qwen3(TextFamily):
    """Qwen3 without vision, and Qwen3-Embedding."""

    name = model_type = "qwen3"
    # As Qwen3-Embedding was trained: an instruction before a query, bare pages, and <|endoftext|>, which its tokenizer
    # adds to every text and whose state is the vector.
    templates: ClassVar = {
        "embedding": Template(
            page="{page}",
            query="Instruct: {instruction}\nQuery:{query}",
            instruction="Given a web search query, retrieve relevant passages that answer the query",
            closed=True,
        )
    }


def cut_text(processors: Processors, text: str, num_tokens: int) -> str:
    """Return the beginning of a text, at most `num_tokens` tokens, up to the end of a word."""
    if len(text.encode()) < num_tokens:  # a token has at least one byte
        return text
    offsets = processors.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    if len(offsets) <= num_tokens:
        return text
    end = offsets[num_tokens][0]
    # Tokens do not cross the end of a word: cutting the result again changes nothing.
    while end and not (text[end].isspace() or text[end - 1].isspace()):
        end -= 1
    return text[: end or offsets[num_tokens][0]].rstrip()
