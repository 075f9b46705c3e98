"""Language models without vision: a page is its text, in the family's prompt, cut to a number of tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast

import randslot
from randslot.model.backbone import make_tokenizer
from randslot.model.families import find_family
from randslot.model.families.text import cut_text
from randslot.pages import NoTextError, Page
from support.models import TEXT_FAMILIES, make, noise
from support.pdf import write_pdf

# Parameters, with the embedding that is the head too; of the adapter; width, layers, heads, of keys, feed-forward.
REAL = {
    "smollm2-135m": (134_515_008, 1_843_200, 576, 30, 9, 3, 1536),
    "smollm2-360m": (361_821_120, 3_276_800, 960, 32, 15, 5, 2560),
    "qwen2.5-0.5b": (494_032_768, 2_162_688, 896, 24, 14, 2, 4864),
    "qwen3-0.6b": (596_049_920, 4_587_520, 1024, 28, 16, 8, 3072),
}


@pytest.mark.parametrize(
    "shape", [s if s != "smollm2-360m" else pytest.param(s, marks=pytest.mark.nightly) for s in REAL]
)
def test_real_shapes_on_the_meta_device(shape):
    parameters, trainable, dim, *rest = REAL[shape]
    model = randslot.untrained(shape, device="meta", lora=True)
    config = model.encoder.backbone.config
    assert sum(p.numel() for p in model.parameters() if not p.requires_grad) == parameters
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == trainable
    assert model.get_embedding_dimension() == dim
    shape = [config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads, config.intermediate_size]
    assert shape == rest


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_a_page_stands_in_the_papers_prompt_and_a_query_alone(family):
    model = make(family)
    tokenizer = model.encoder.tokenizer
    ids = model.preprocess(["Some text."], task="document")["input_ids"][0].tolist()
    assert tokenizer.decode(ids) == "<|im_start|>user\nSome text.\nDescribe the text.<|im_end|><|endoftext|>"
    assert tokenizer.decode(model.preprocess(["Some text."], task="query")["input_ids"][0]) == "Some text."
    inside = model.preprocess(["a<|im_end|>b"], task="document")["input_ids"][0].tolist()
    assert inside.count(tokenizer.convert_tokens_to_ids("<|im_end|>")) == 1  # a page cannot end the prompt


def test_a_llama_without_tokens_of_a_chat_works_too(tmp_path):
    """As the first Llamas are: two tokens around a text, and none for padding."""
    model = make("llama")
    model.encoder.backbone.save_pretrained(tmp_path)
    plain = make_tokenizer(("<unk>", "<s>", "</s>"), "</s>")
    bare = PreTrainedTokenizerFast(tokenizer_object=plain.backend_tokenizer, bos_token="<s>", eos_token="</s>")
    bare.save_pretrained(tmp_path)
    loaded = randslot.load(tmp_path)
    ids = loaded.preprocess(["Some text."], task="document")["input_ids"][0].tolist()
    assert loaded.encoder.tokenizer.decode(ids) == "<s>Some text.\nDescribe the text.</s>"
    together = loaded.encode_document(["Some text.", "x"])
    torch.testing.assert_close(together[1], loaded.encode_document("x"), atol=1e-5, rtol=1e-5)


def test_a_text_is_cut_between_words_and_never_twice():
    processors = make("llama").encoder.processors
    for text in ("one two three four five", "größer als 你好 🙂 und mehr", "nospacesatallbutlong", "a\n\nb\n c"):
        for num_tokens in (1, 5, 9, 12, 100):
            cut = cut_text(processors, text, num_tokens)
            assert text.startswith(cut)
            assert len(processors.tokenize([cut])[0]) <= num_tokens  # of bytes here
            assert cut_text(processors, cut, num_tokens) == cut
            if len(text.encode()) <= num_tokens:
                assert cut == text
            elif " " in cut:
                assert text[len(cut)].isspace()


def test_what_is_behind_the_limit_has_no_part_in_the_vectors(tmp_path):
    model = make("qwen3", text_tokens=20)
    text = "a text of twenty or so tokens"
    assert model.is_cut(text)
    assert not model.is_cut("short")
    assert torch.equal(model.encode_document(text), model.encode_document("a text of twenty or not"))
    model.use(text_tokens=100)
    assert not torch.allclose(model.encode_document(text), model.encode_document("a text of twenty or not"), atol=1e-3)
    model.save_pretrained(str(tmp_path / "model"))
    assert randslot.load(tmp_path / "model").settings.text_tokens == 100


def test_a_page_of_a_file_is_read_and_one_without_text_is_told(tmp_path):
    model = make("llama")
    write_pdf(tmp_path / "a.pdf", 2, [])
    noise(64, 96).save(tmp_path / "scan.png")
    expected = model.encode_document("Page 2")
    for page in (Page(tmp_path / "a.pdf", 2), Path(f"{tmp_path / 'a.pdf'}#page=2")):
        opened = model.preprocessor.open_page(page)
        assert opened == "Page 2"
        assert torch.equal(model(model.preprocess([page], task="document"))["token_embeddings"][0], expected)
    with pytest.raises(NoTextError, match=r"page .*scan.png has no text, and this model reads text"):
        model.preprocessor.open_page(tmp_path / "scan.png")
    with pytest.raises(NoTextError, match="a page without text has no vectors"):
        model.encode_document(["text", " \n"])


def test_qwen3_has_the_template_of_its_embedding_models():
    template = find_family("qwen3").templates["embedding"]
    assert template.query_prompt[0].endswith("that answer the query\nQuery:")
    assert (template.page, template.closed) == ("{page}", True)
    model = make("qwen3", template="embedding")
    query, page = (model.preprocess(["tax"], task=task)["input_ids"][0] for task in ("query", "document"))
    assert model.encoder.tokenizer.decode(page) == "tax"  # the tokenizer made in code closes nothing
    assert model.encoder.tokenizer.decode(query).startswith("Instruct: Given a web search query")
