"""Pairs on disk, and a recipe that trains on them in a second or two."""

from __future__ import annotations

import json
from pathlib import Path

from PIL import Image, ImageDraw

WORDS = "tax fleet staff sales water steel paper crops"


def draw_page(word: str) -> Image.Image:
    page = Image.new("RGB", (96, 96), "white")
    ImageDraw.Draw(page).text((8, 30), word, fill="black", font_size=26)
    return page


def write_pairs(folder: Path, num: int = 8) -> Path:
    """Write `num` pairs (word -> page that shows it) as JSON lines beside their images."""
    folder.mkdir(exist_ok=True)
    words = [f"{WORDS.split()[i % 8]}{i // 8 or ''}" for i in range(num)]
    for word in words:
        draw_page(word).save(folder / f"{word}.png")
    rows = [json.dumps({"query": f"about {word}", "image": f"{word}.png"}) for word in words]
    (folder / "pairs.jsonl").write_text("\n".join(rows) + "\n")
    return folder / "pairs.jsonl"


def small(data: Path, output: Path, **changes: object) -> dict[str, object]:
    """A recipe that trains in a second or two."""
    return {
        "untrained": "qwen3-vl-tiny",
        "lora": False,
        "visual_tokens": 16,
        "data": str(data),
        "output": str(output),
        "batch": 4,
        "micro_batch": 0,
        "steps": 3,
        "epochs": 999,
        "optimizer": "adamw",
        "precision": "fp32",
        "gradient_checkpointing": False,
        "learning_rate": 1e-3,
        "workers": 0,
        "save_every": 0,
    } | changes
