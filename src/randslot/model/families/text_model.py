"""What language models without vision have in common: a page is its text, in a prompt, cut to a number of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ...errors import RandSlotError, UsageError
from ...pages import NoTextError, read_page_text
from ..hub import Source
from ..template import PAGE
from .base import Family, Features, Processors


class TextModel(Family):
    """A language model that reads the text of a page."""

    reads = "text"
    # The paper's prompt with the text of the page where its image was, and "text" for "image". It ends in
    # <|endoftext|> as there, which also is the token whose state Qwen3-Embedding was trained to be read at.
    page_prompt = "<|im_start|>user\n{page}\nDescribe the text.<|im_end|><|endoftext|>"
    # Without the tokens of a chat, the same words between whatever begins and ends a text for this tokenizer.
    plain_prompt: ClassVar[str] = "{page}\nDescribe the text."
    lora_targets = r".*\.(q_proj|k_proj|v_proj|o_proj)"
    special_tokens = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    end_token = "<|im_end|>"

    def load_processors(self, source: Source) -> Processors:
        processors = super().load_processors(source)
        tokenizer = processors.tokenizer
        if tokenizer.pad_token is None:  # many a Llama has none; which one does not matter, since it is masked
            if tokenizer.eos_token is None:
                raise RandSlotError(f"the tokenizer of {source.name} has neither a padding token nor an end token")
            tokenizer.pad_token = tokenizer.eos_token
        return processors

    # -- from pages to features

    def prompt(self, tokenizer: PreTrainedTokenizerBase) -> str:
        known = tokenizer.get_vocab()
        if all(token in known for token in self.special_tokens):
            return self.page_prompt
        return f"{tokenizer.bos_token or ''}{self.plain_prompt}{tokenizer.eos_token or ''}"

    def open_page(self, processors: Processors, page: Any, num_tokens: int) -> str:
        """Return the text of a page, cut to so many tokens: a string is the text, all else is a page to read."""
        text = page if isinstance(page, str) else read_page_text(page)
        text = text.strip()
        if not text:
            raise NoTextError("a page without text has no vectors in a model that reads text")
        return cut_text(processors, text, num_tokens)

    def preprocess_pages(self, processors: Processors, pages: Sequence[Any], num_tokens: int) -> Features:
        before, after = processors.template.page_prompt.split(PAGE)
        return processors.pad(processors.tokenize_inside(before, after, pages))

    def keep_layers(self, model: PreTrainedModel, num: int, *, last: bool = False) -> None:
        """Keep only the first layers of a model, so many; `last`: the last one in place of the last of them.

        Errors: UsageError if it has fewer.
        """
        if num > len(model.layers):
            raise UsageError(f"layers={num}: this {self.name} model has {len(model.layers)}")
        kept = [*range(num - 1), len(model.layers) - 1 if last else num - 1]
        model.layers = nn.ModuleList(model.layers[place] for place in kept)
        for place, layer in enumerate(model.layers):
            layer.self_attn.layer_idx = place  # where a cache has its keys and values
        model.config.num_hidden_layers = num
        if getattr(model.config, "layer_types", None):
            model.config.layer_types = [model.config.layer_types[place] for place in kept]

    # -- serving

    guide = "serving_text.md"

    def make_full_model(self, config: PreTrainedConfig) -> PreTrainedModel:
        return AutoModelForCausalLM.from_config(config)


def cut_text(processors: Processors, text: str, num_tokens: int) -> str:
    """Return the beginning of a text that takes at most so many tokens, up to the end of a word."""
    if len(text.encode()) < num_tokens:  # a token is a byte at the least
        return text
    offsets = processors.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    if len(offsets) <= num_tokens:
        return text
    end = offsets[num_tokens][0]
    # Between words tokens do not change with what follows: the same text is never cut twice.
    while end and not (text[end].isspace() or text[end - 1].isspace()):
        end -= 1
    return text[: end or offsets[num_tokens][0]].rstrip()
