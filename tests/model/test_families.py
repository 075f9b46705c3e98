"""A new family touches its own file only: one that is defined here goes all the way, and reads text at that."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedModel

import randslot
from randslot.errors import RandSlotError, UsageError
from randslot.model import families
from randslot.model.families.base import Family
from randslot.model.preprocessing import Features, Processors, Template
from support.models import lively

TEXTS = ["Deferred tax is 12 in 2023.", "The fleet has seven ships", "x"]
SHAPE = {
    "config": {
        "model_type": "mistral",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
    }
}


class Toy(Family):
    """A small language model that reads the text of a page, between two tokens of its own."""

    name = "toy"
    model_type = "mistral"
    reads = "text"
    page_prompt = "<page>{}</page>"
    lora_targets = r".*\.(q_proj|k_proj|v_proj|o_proj)"
    templates: ClassVar = {
        "embedding": Template("{}", "Instruct: {instruction}\nQuery:{query}", "Given a question, find it", closed=True)
    }
    special_tokens = ("<pad>", "<page>", "</page>")
    end_token = "</page>"

    def open_page(self, processors: Processors, page: Any, num_tokens: int) -> str:
        if not isinstance(page, str) or not page.strip():
            raise RandSlotError(f"a page must be text, not {page!r}")
        return page

    def preprocess_pages(self, processors: Processors, pages: Sequence[Any], num_tokens: int) -> Features:
        before, after = processors.template.page_prompt.split("{}")
        return processors.pad(processors.tokenize_inside(before, after, pages))


@pytest.fixture
def shape(tmp_path, monkeypatch) -> str:
    monkeypatch.setitem(families.FAMILIES, "mistral", Toy())  # taken away after the test
    families.add_family(Toy())
    file = tmp_path / "toy.json"
    file.write_text(json.dumps(SHAPE))
    return str(file)


def states(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    """The states of the plain backbone, as transformers runs it."""
    with torch.no_grad():
        hidden = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
    return torch.nn.functional.normalize(hidden, dim=-1)


@pytest.mark.parametrize("slots", ["random", "tokens"])
def test_the_first_vector_is_the_state_of_the_plain_backbone_whatever_the_batch(shape, slots):
    model = lively(randslot.untrained(shape, slots=slots, seed=0))
    assert model.reads == "text"
    pages = model.encode_document(TEXTS)
    for text, vectors in zip(TEXTS, pages, strict=True):
        torch.testing.assert_close(vectors, model.encode_document(text), atol=1e-5, rtol=1e-5)
        ids = model.encoder.tokenizer(f"<page>{text}</page>")["input_ids"]
        expected = states(model.encoder.backbone, ids)
        own = vectors[-1] if slots == "tokens" else vectors[0]
        torch.testing.assert_close(own, expected[-1], atol=1e-5, rtol=1e-5)
    assert not torch.equal(model.encode_query(TEXTS[:1])[0], pages[0])  # the same text as a query has no prompt


def test_it_can_have_a_template_as_text_retrieval_models_have(shape):
    """An instruction before a query, pages as they are, and the token that the tokenizer ends every text with."""
    model = lively(randslot.untrained(shape, template="embedding", query_vectors=1, page_vectors=1, seed=0))
    tokenizer = model.encoder.tokenizer
    end = ("</page>", tokenizer.convert_tokens_to_ids("</page>"))
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A </page>", special_tokens=[end])
    for text in TEXTS:
        for task, given in (("Given a question, find it", {}), ("Find it", {"prompt": "Find it"})):
            expected = states(model.encoder.backbone, tokenizer(f"Instruct: {task}\nQuery:{text}")["input_ids"])
            torch.testing.assert_close(model.encode_query(text, **given)[0], expected[-1], atol=1e-5, rtol=1e-5)
        expected = states(model.encoder.backbone, tokenizer(text)["input_ids"])
        torch.testing.assert_close(model.encode_document(text)[0], expected[-1], atol=1e-5, rtol=1e-5)
    ids = model.preprocess(["a</page>b"], task="document")["input_ids"][0].tolist()
    assert ids.count(end[1]) == 1  # its own


def test_it_is_saved_and_loaded_and_bound_to_its_family(shape, tmp_path):
    model = randslot.untrained(shape, slots="learned", lora=True, seed=0)
    adapted = [name for name, _ in model.encoder.backbone.named_modules() if name.endswith("lora_A.default")]
    assert len(adapted) == 2 * 4
    model.save_pretrained(str(tmp_path / "model"))
    assert not (tmp_path / "model" / "preprocessor_config.json").exists()
    again = randslot.load(tmp_path / "model")
    assert again.identity.weights == model.weights_key
    assert torch.equal(again.encode_document(TEXTS[:1])[0], model.encode_document(TEXTS[:1])[0])
    assert json.loads((tmp_path / "model" / "randslot.json").read_text())["backbone"]["family"] == "toy"


def test_what_it_cannot_do_is_one_line(shape, tmp_path):
    from randslot.model.export import export_model

    model = randslot.untrained(shape, slots="zero")
    with pytest.raises(RandSlotError, match="a page must be text, not"):
        model.encode_document([Path("page.png"), ""])
    assert model.page_pixels == 0
    model.save_pretrained(str(tmp_path / "model"))
    with pytest.raises(UsageError, match="a toy model cannot be exported"):
        export_model(tmp_path / "model", tmp_path / "out")
