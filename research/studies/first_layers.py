"""Cut a language model to its first layers: a pretrained backbone that two cores can train.

    python -m research.studies.first_layers data/smollm2-135m 6 data/smollm2-6

Embeddings, the layers and the last norm keep their weights and names.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from transformers import AutoModel, AutoTokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("layers", type=int)
    parser.add_argument("output", type=Path)
    asked = parser.parse_args()
    model = AutoModel.from_pretrained(asked.model, local_files_only=True)
    if not 1 <= asked.layers <= model.config.num_hidden_layers:
        parser.error(f"{asked.model} has {model.config.num_hidden_layers} layers, so it has no first {asked.layers}")
    model.layers = model.layers[: asked.layers]
    model.config.num_hidden_layers = asked.layers
    model.save_pretrained(asked.output)
    AutoTokenizer.from_pretrained(asked.model, local_files_only=True).save_pretrained(asked.output)
    print(f"{sum(weight.numel() for weight in model.parameters()):,} weights in {asked.output}")


if __name__ == "__main__":
    main()
