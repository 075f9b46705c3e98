"""Training of models that read text: on pages of PDFs, or on texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from randslot.errors import RandSlotError, UsageError
from randslot.training.data import drop_bad_rows, find_pairs, load_pairs, write_pairs
from randslot.training.train import train
from support.pairs import WORDS, small
from support.pdf import write_pages


def text_recipe(data: Path, output: Path, **changes: object) -> dict[str, object]:
    return small(data, output, untrained="llama-tiny", text_tokens=32, **changes)


def write_texts(file: Path, *, empty: bool = False) -> Path:
    rows = [{"query": f"about {word}", "text": f"{word} {word} {word}"} for word in WORDS.split()]
    if empty:
        rows.append({"query": "nothing", "text": " "})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_texts_train_and_are_searched_meanwhile(tmp_path):
    data = write_texts(tmp_path / "texts.jsonl")
    recipe = text_recipe(data, tmp_path / "run", page_column="text", page_texts=True, steps=60, learning_rate=3e-3)
    model = train(recipe | {"validation": str(data), "validate_every": 30, "batch": 8})
    assert model.reads == "text"
    losses = [float(line.split(",")[1]) for line in (tmp_path / "run" / "losses.csv").read_text().splitlines()[1:]]
    assert losses[-1] < losses[0] / 2


def test_pages_of_pdfs_train_by_their_text(tmp_path):
    """As `randslot pairs` writes them: the column says which page, and the model decides what it takes of it."""
    write_pages(tmp_path / "a.pdf", [[word] for word in WORDS.split()])
    rows = [{"query": word, "image": f"a.pdf#page={i}"} for i, word in enumerate(WORDS.split(), start=1)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = tmp_path / "pairs.jsonl"
    model = train(text_recipe(data, tmp_path / "run", validation=str(data), validate_every=2))
    assert (tmp_path / "run" / "run.json").is_file()
    assert model.encode_document("tax").shape == (4, 64)
    assert find_pairs(tmp_path).pairs == []  # it has no outline
    write_pairs(find_pairs(tmp_path), tmp_path, tmp_path / "none.jsonl")


def test_a_row_without_text_is_bad(tmp_path):
    data = write_texts(tmp_path / "texts.jsonl", empty=True)
    pairs = load_pairs(str(data), "train", "query", "text", texts=True)
    with pytest.raises(RandSlotError, match="row 9: no text; fix it"):
        drop_bad_rows(pairs, "stop")
    good, bad = drop_bad_rows(pairs, "skip")
    assert (len(good), bad) == (8, ["row 9: no text"])
    assert good.locate(good.dataset[0]["page"]) == "tax tax tax"


def test_what_a_model_does_not_read_is_told(tmp_path):
    data = write_texts(tmp_path / "texts.jsonl")
    with pytest.raises(UsageError, match="page_texts is for models that read text, and a qwen3-vl model looks at"):
        train(small(data, tmp_path / "a", page_column="text", page_texts=True))
    options = {"page_column": "text", "page_texts": True}
    with pytest.raises(UsageError, match="a llama model has no vision tower to keep still"):
        train(text_recipe(data, tmp_path / "c", still_vision=True, **options))
