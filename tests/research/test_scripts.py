"""What a study on real pages is prepared with: the scripts in research/studies/."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import randslot
from randslot.errors import UsageError
from randslot.training.recipe import make_recipe
from research.studies import manual_pages, warm_start
from support.pdf import write_drawings

ROOT = Path(__file__).parent.parent.parent


def test_every_experiment_has_a_paragraph():
    text = (ROOT / "research" / "README.md").read_text(encoding="utf-8")
    names = {file.stem for file in (ROOT / "research" / "experiments").glob("*.py")} - {"__init__"}
    assert [name for name in sorted(names) if f"**{name}**" not in text] == []


def test_the_same_pages_are_the_same_file(tmp_path):
    script = manual_pages
    for name in ("one.pdf", "two.pdf"):
        script.copy_pages(ROOT / "src" / "randslot" / "handbook.pdf", [1, 3], tmp_path / name)
    assert (tmp_path / "one.pdf").read_bytes() == (tmp_path / "two.pdf").read_bytes()


def test_spans_are_words_of_the_beginning_of_their_page():
    script = manual_pages
    rows = [{"query": "Title", "page": "some words that stand here " * 40}, {"query": "Other", "page": "short page"}]
    mixed = script.cut_spans(rows)
    assert len(mixed) == 2 + 2 * script.SPANS
    assert mixed == script.cut_spans(rows)
    assert all(row in mixed for row in rows)
    for row in mixed:
        if row not in rows:
            assert row["query"]
            assert row["query"] in row["page"][: script.SPAN_SEEN]


def test_queries_for_a_student_are_titles_and_words_of_training_manuals_alone(tmp_path, monkeypatch):
    script = manual_pages
    for package, name in (("one", "kept.pdf"), ("one", "left.pdf"), ("two", "test.pdf")):
        (tmp_path / package).mkdir(exist_ok=True)
        write_drawings(tmp_path / package / name, [f"BT /F1 12 Tf 20 500 Td ({name} has words of its own) Tj ET"])
    monkeypatch.setattr(script, "TRAINING", {"one": ("left.pdf",)})
    num = script.write_queries(tmp_path, tmp_path, 5)
    queries = [json.loads(line)["query"] for line in (tmp_path / "queries.jsonl").read_text().splitlines()]
    assert len(queries) == len(set(queries)) == num > 1
    assert all(query in "kept.pdf has words of its own" for query in queries)


def test_a_shared_start_is_a_backbone_with_its_embeddings_as_they_were(tmp_path):
    script = warm_start
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("".join(json.dumps({"query": f"word{i}", "page": f"text word{i}"}) + "\n" for i in range(8)))
    values = {
        "untrained": "llama-tiny",
        "lora": False,
        "slots": "zero",
        "query_vectors": 1,
        "page_vectors": 1,
        "data": str(pairs),
        "page_column": "page",
        "page_texts": True,
        "text_tokens": 16,
        "batch": 4,
        "micro_batch": 0,
        "steps": 2,
        "optimizer": "adamw",
        "precision": "fp32",
        "gradient_checkpointing": False,
        "workers": 0,
        "save_every": 0,
        "output": str(tmp_path / "start"),
    }
    folder = script.warm_start(make_recipe(values))
    before = randslot.untrained("llama-tiny", seed=make_recipe(values).seed).backbone.model
    after = randslot.load(folder, slots="fixed", lora=True).backbone.model
    assert torch.equal(after.get_input_embeddings().weight, before.get_input_embeddings().weight)
    assert not torch.equal(after.norm.weight, before.norm.weight)
    with pytest.raises(UsageError, match="no slots and no adapter"):
        script.warm_start(make_recipe(values | {"query_vectors": 4, "page_vectors": 4}))
