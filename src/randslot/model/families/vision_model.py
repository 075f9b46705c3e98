"""What vision-language models have in common: visual tokens stand in a prompt, where one token stands for the image."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedConfig, PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer

from .base import Family, Features


class VisionModel(Family):
    """A model that looks at the image of a page."""

    reads = "image"

    def make_config(self, shape: dict[str, Any], tokenizer: Tokenizer) -> PreTrainedConfig:
        options = dict(shape["config"])
        options["text_config"] = {"vocab_size": len(tokenizer)} | options["text_config"]
        options["text_config"] |= {"bos_token_id": None, "eos_token_id": None}
        return AutoConfig.for_model(**options, **self.token_ids(tokenizer))

    def token_ids(self, tokenizer: Tokenizer) -> dict[str, int]:
        """Return the tokens that a configuration of this family names, by their names there."""
        return {"image_token_id": tokenizer.convert_tokens_to_ids(self.image_token)}

    def without_pixels(self, features: Features) -> Features:
        return {name: value for name, value in features.items() if name != "pixel_values"}

    def make_full_model(self, config: PreTrainedConfig) -> PreTrainedModel:
        return AutoModelForImageTextToText.from_config(config)
