"""A tokenizer made in code, for backbones that are built and not loaded: no file, no download."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast


def make_tokenizer(special_tokens: Sequence[str], end_token: str, words: Sequence[str] = ()) -> PreTrainedTokenizerBase:
    """Make a tokenizer of 256 bytes, some special tokens (the padding token first), and a token for each of the words.

    With words, which are lower case, it reads capitals as small letters.
    """
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *words]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = to_bytes
    if words:
        tokenizer.normalizer = normalizers.Lowercase()
        whole = pre_tokenizers.Split(Regex("[a-z]+"), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([whole, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special_tokens])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=special_tokens[0], eos_token=end_token, padding_side="left"
    )
