"""Vectors: one pass gives what plain transformers gives step by step; same input, same vectors; save and load."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sentence_transformers import MultiVectorEncoder
from torch import Tensor
from torch.nn.functional import normalize
from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

import randslot

STRATEGIES = ("random", "zero", "fixed", "learned", "feedback")
QWEN_VL = "<|im_start|>user\n<|vision_start|>{}<|vision_end|>Describe the image.<|im_end|><|endoftext|>"
TEXT = "<|im_start|>user\n{}\nDescribe the text.<|im_end|><|endoftext|>"
QUERIES = ["tax", "revenue by region in 2023", "Größe der Flotte?"]
TEXTS = ["Deferred tax is 12 in 2023.", "The fleet has seven ships.\nOne of them is old.", "x"]


def noise(width: int, height: int, seed: int) -> Image.Image:
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


IMAGES = [noise(100, 140, 1), noise(260, 90, 2), noise(64, 64, 3)]


def make(family: str, **options: Any) -> MultiVectorEncoder:
    """Make a tiny model with larger weights than fresh ones, so that a wrong position or mask shows."""
    model = randslot.tiny(family, **({"seed": 0} | options))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.05, generator=torch.Generator().manual_seed(1))
            elif parameter.ndim > 1 and "lora" not in name:
                parameter.mul_(3)
    return model


def pages_for(model: MultiVectorEncoder) -> list[Any]:
    return TEXTS if model.reads == "text" else IMAGES


def encode(model: MultiVectorEncoder, **options: Any) -> list[Tensor]:
    return model.encode_query(QUERIES, **options) + model.encode_document(pages_for(model), **options)


def far(a: list[Tensor], b: list[Tensor]) -> float:
    return max(float((x - y).abs().max()) for x, y in zip(a, b, strict=True))


class Reference:
    """The saved folder of a model in plain transformers: append one slot, run all again, read the last state."""

    def __init__(self, folder: Path) -> None:
        self.model = AutoModel.from_pretrained(folder)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.folder = folder

    def read_query(self, text: str) -> dict[str, Tensor]:
        return {"input_ids": torch.tensor([self.tokenizer.encode(text, add_special_tokens=False)])}

    def read_text(self, text: str) -> dict[str, Tensor]:
        return self.read_query(TEXT.format(text))

    def read_image(self, image: Image.Image) -> dict[str, Tensor]:
        processor = AutoImageProcessor.from_pretrained(self.folder, backend="pil")
        inputs = dict(processor(images=[image], return_tensors="pt"))
        num = int(inputs["image_grid_thw"].prod()) // 4
        inputs |= self.read_query(QWEN_VL.format("<|image_pad|>" * num))
        return inputs

    def encode(self, inputs: dict[str, Tensor], slots: Tensor | None, num: int = 4) -> Tensor:
        """Return num vectors (num, D); without slots, each is the readout before it."""
        ids = inputs["input_ids"]
        appended: list[Tensor] = []
        readouts: list[Tensor] = []

        def put(_module: object, _inputs: object, embeds: Tensor) -> Tensor:
            return torch.cat([embeds[:, : ids.shape[1]], *[slot[None, None] for slot in appended]], dim=1)

        hook = self.model.get_input_embeddings().register_forward_hook(put)
        for step in range(num):
            ids_now = torch.nn.functional.pad(ids, (0, step))
            now = inputs | {"input_ids": ids_now, "attention_mask": torch.ones_like(ids_now)}
            if "pixel_values" in inputs:
                now["mm_token_type_ids"] = (ids_now == self.model.config.image_token_id).int()
            state = self.model(**now, use_cache=False).last_hidden_state[0, -1]
            readouts.append(normalize(state, dim=-1))
            appended.append(readouts[-1] if slots is None else slots[min(step, len(slots) - 1)])
        hook.remove()
        return torch.stack(readouts)


@contextmanager
def watch_slots(model: MultiVectorEncoder, seen: list[Tensor], num: int = 3) -> Iterator[None]:
    """Collect the last embeddings that enter the language model, which are the slots in one pass."""
    (decoder,) = [m for m in model.modules() if hasattr(m, "embed_tokens") and hasattr(m, "layers")]

    def look(_module: object, _args: object, kwargs: dict[str, Any]) -> None:
        seen.append(kwargs["inputs_embeds"][0, -num:].detach().float())

    hook = decoder.register_forward_pre_hook(look, with_kwargs=True)
    yield
    hook.remove()


def check_against_loop(model: MultiVectorEncoder, folder: Path, inputs: list[tuple[str, Any]]) -> list[Tensor]:
    """Compare one pass with the loop, input by input; return the slots of each."""
    model.save_pretrained(str(folder))
    reference = Reference(folder)
    slots: list[Tensor] = []
    for kind, content in inputs:
        seen: list[Tensor] = []
        with watch_slots(model, seen):
            found = model.encode_query(content) if kind == "query" else model.encode_document([content])[0]
        given = None if model.settings.inference == "feedback" else seen[-1]
        with torch.no_grad():
            expected = reference.encode(getattr(reference, f"read_{kind}")(content), given)
        assert found.shape == (4, 64)
        assert float((found - expected).abs().max()) < 1e-5, (kind, content)
        slots.append(seen[-1])
    return slots


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("family", ["qwen2.5-vl", "qwen3-vl"])
def test_one_pass_equals_plain_transformers_step_by_step(family, strategy, tmp_path):
    model = make(family, slots=strategy, inference=strategy)
    inputs = [("query", QUERIES[1]), ("query", QUERIES[2]), ("image", IMAGES[0]), ("image", IMAGES[1])]
    first, second, page, other = check_against_loop(model, tmp_path / "model", inputs)
    if strategy == "zero":
        assert not torch.stack([first, second, page, other]).any()
    elif strategy != "feedback":
        assert torch.stack([first, second, page, other]).norm(dim=-1).sub(1).abs().max() < 1e-5
        assert torch.equal(first, second) == torch.equal(page, other) == (strategy != "random")
        assert not torch.equal(first, page)
        assert not torch.equal(first[0], first[1])


@pytest.mark.parametrize("family", ["qwen3.5", "smolvlm", "llama", "qwen2", "qwen3"])
def test_every_other_family_equals_plain_transformers_too(family, tmp_path):
    pages = {"qwen3.5": [("image", IMAGES[0])], "smolvlm": []}.get(family, [("text", text) for text in TEXTS])
    for strategy in ("random", "feedback"):
        model = make(family, slots=strategy, inference=strategy)
        check_against_loop(model, tmp_path / strategy, [("query", QUERIES[1]), ("query", QUERIES[0]), *pages])
    together = encode(model)
    assert (
        far(together, [model.encode_query(q) for q in QUERIES] + [model.encode_document(p) for p in pages_for(model)])
        < 1e-5
    )
    assert far(together[:1], together[1:2]) > 1e-2


@pytest.mark.parametrize("strategy", ["zero", "feedback"])
def test_gradients_equal_those_of_plain_transformers_step_by_step(strategy, tmp_path):
    model = make("qwen3-vl", slots=strategy).train()
    model.save_pretrained(str(tmp_path / "model"))
    reference = Reference(tmp_path / "model")
    reference.model.train()
    weight = torch.randn(4, 64, generator=torch.Generator().manual_seed(1))
    (found,) = model(model.preprocess([IMAGES[0]], task="document"))["token_embeddings"]
    expected = reference.encode(reference.read_image(IMAGES[0]), None if strategy == "feedback" else torch.zeros(3, 64))
    for vectors in (found, expected):
        (vectors * weight).sum().backward()
    wanted = {name: p.grad for name, p in reference.model.named_parameters() if p.grad is not None}
    ours = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert len(wanted) > 30
    for name, gradient in wanted.items():
        (found_gradient,) = [value for key, value in ours.items() if key.endswith(f".{name}")]
        assert (found_gradient - gradient).norm() < 1e-4 * gradient.norm() + 1e-6, name


def test_training_draws_new_slots_for_every_encoding():
    model = make("qwen3-vl", slots="random").train()
    features = model.preprocess(IMAGES, task="document")
    torch.manual_seed(5)
    first, second = (model(features)["token_embeddings"] for _ in range(2))
    assert (first[:, 0] - second[:, 0]).abs().max() < 1e-5
    assert (first[:, 1:] - second[:, 1:]).abs().amax(dim=(1, 2)).min() > 1e-3
    torch.manual_seed(5)
    assert torch.equal(model(features)["token_embeddings"], first)


@pytest.mark.parametrize(
    ("family", "strategy"), [("qwen2.5-vl", "random"), *(("qwen3-vl", strategy) for strategy in STRATEGIES)]
)
def test_vectors_do_not_depend_on_the_batch(family, strategy):
    model = make(family, slots=strategy, inference=strategy)
    together = encode(model, batch_size=8)
    assert far(together, encode(model, batch_size=1)) < 1e-5
    assert far(together, encode(model, batch_size=2)) < 1e-5
    assert far(together[3:], model.encode_document(IMAGES[::-1])[::-1]) < 1e-5
    assert far(together, encode(make(family, slots=strategy, inference=strategy))) < 1e-6
    assert max(float((one.norm(dim=-1) - 1).abs().max()) for one in together) < 1e-5


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_large_budget_contains_the_smaller_ones(strategy):
    model = make("qwen3-vl", slots=strategy, inference=strategy, query_vectors=8, page_vectors=8)
    eight = encode(model)
    for num in (1, 2, 4):
        model.use(query_vectors=num, page_vectors=num)
        few = encode(model)
        assert {tuple(one.shape) for one in few} == {(num, 64)}
        assert far(few, [one[:num] for one in eight]) < 1e-5
    model.use(query_vectors=2, page_vectors=6)
    assert [tuple(one.shape) for one in encode(model)] == [(2, 64)] * 3 + [(6, 64)] * 3
    assert model.similarity(model.encode_query(QUERIES), model.encode_document(IMAGES)).shape == (3, 3)


def test_seeds_decide_weights_tables_and_random_slots():
    make_random = partial(make, "qwen3-vl", slots="random", inference="random")
    assert far(encode(make_random(seed=7)), encode(make_random(seed=7))) == 0
    assert far(encode(make_random(seed=7)), encode(make_random(seed=8))) > 1e-2
    model = make_random()
    before = encode(model)
    model.use(seed=9)
    after = encode(model)
    assert far([one[:1] for one in before], [one[:1] for one in after]) < 1e-6  # the content has no slot before it
    assert far([one[1:] for one in before], [one[1:] for one in after]) > 1e-3
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    make("qwen3-vl", slots="learned", lora=True)
    assert torch.equal(torch.rand(1), expected)


def test_zeros_replace_random_slots_after_training():
    model = make("qwen3-vl", slots="random")
    assert model.settings.inference == "zero"
    assert far(encode(model), encode(make("qwen3-vl", slots="zero"))) < 1e-6
    model.use(inference="random")
    assert far(encode(model), encode(make("qwen3-vl", slots="zero"))) > 1e-3


def test_similarity_is_maxsim():
    model = make("qwen3-vl", query_vectors=3)
    queries, pages = model.encode_query(QUERIES), model.encode_document(IMAGES)
    scores = model.similarity(queries, pages)
    assert scores.dtype == torch.float32
    for i, query in enumerate(queries):
        for j, page in enumerate(pages):
            expected = sum(max(float(a @ b) for b in page) for a in query)
            assert scores[i, j].item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("reduction", ["random", "kmeans", "semcluster", "pool1d"])
def test_reductions_bring_pages_to_their_budget(reduction):
    model = make("qwen3-vl", slots="tokens")
    every = model.encode_document(IMAGES)
    queries = model.encode_query(QUERIES)
    assert [len(query) for query in queries] == [len(text.encode()) for text in QUERIES]
    model.use(reduction=reduction, page_vectors=4)
    few = model.encode_document(IMAGES)
    assert [tuple(page.shape) for page in few] == [(4, 64)] * 3
    assert far(model.encode_query(QUERIES), queries) < 1e-6
    assert far(few, model.encode_document(IMAGES, batch_size=1)) < 1e-4
    if reduction == "random":
        for page, tokens in zip(few, every, strict=True):
            assert torch.cdist(page, tokens).min(dim=1).values.max() < 1e-3
    if reduction == "pool1d":
        runs = np.array_split(np.arange(len(every[0])), 4)
        means = torch.stack([every[0][run].mean(dim=0) for run in runs])
        lengths = sorted(len(run) for run in runs)
        assert lengths[-1] - lengths[0] <= 1
        assert normalize(means, dim=-1).mul(few[0]).sum(dim=-1).min() > 0.9
    model.use(page_vectors=4096)
    if reduction == "random":  # of the patches of an image
        assert all(len(page) < len(tokens) for page, tokens in zip(model.encode_document(IMAGES), every, strict=True))
    else:
        assert far(model.encode_document(IMAGES), every) < 1e-5


@pytest.mark.parametrize(
    "family",
    [
        "qwen2.5-vl",
        "qwen3-vl",
        "llama",
        *(pytest.param(family, marks=pytest.mark.nightly) for family in ("qwen3.5", "smolvlm", "qwen2", "qwen3")),
    ],
)
def test_adapters_and_tables_survive_saving(family, tmp_path):
    model = make(family, slots="learned", lora=True, page_vectors=6)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    assert any("lora" in name for name in trained)
    assert frozen
    expected = encode(model)
    assert far(expected, encode(make(family, slots="learned", page_vectors=6))) > 1e-4
    model.save_pretrained(str(tmp_path / "model"))
    assert {"randslot.json", "modules.json", "adapter_config.json", "adapter_model.safetensors"} <= {
        file.name for file in (tmp_path / "model").iterdir()
    }
    again = randslot.load(tmp_path / "model")
    assert far(encode(again), expected) < 1e-6
    assert again.settings == model.settings
    assert again.weights_key == model.weights_key
    fewer = randslot.load(tmp_path / "model", page_vectors=2, inference="zero")
    assert (fewer.settings.page_vectors, fewer.settings.inference) == (2, "zero")


def test_an_adapter_of_another_rank_and_a_backbone_that_has_moved(tmp_path):
    model = randslot.tiny("qwen3-vl", lora=True)
    ranks = {p.shape[0] for name, p in model.named_parameters() if "lora_A" in name}
    assert ranks == {16}
    make("qwen3-vl").save_pretrained(str(tmp_path / "backbone"))
    for name in ("randslot.json", "modules.json"):
        (tmp_path / "backbone" / name).unlink()
    adapted = randslot.load(tmp_path / "backbone", lora={"rank": 2, "alpha": 4}, slots="fixed")
    assert {p.shape[0] for name, p in adapted.named_parameters() if "lora_A" in name} == {2}
    adapted.save_pretrained(str(tmp_path / "adapter"))
    assert not (tmp_path / "adapter" / "backbone").exists()
    (tmp_path / "backbone").rename(tmp_path / "moved")
    with pytest.raises(randslot.RandSlotError, match=str(tmp_path / "backbone")):
        randslot.load(tmp_path / "adapter")
    again = randslot.load(tmp_path / "adapter", backbone=tmp_path / "moved")
    assert far(encode(again), encode(adapted)) < 1e-6


def test_a_damaged_checkpoint_is_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    make("qwen3-vl").save_pretrained(str(tmp_path / "model"))
    file = tmp_path / "model" / "model.safetensors"
    weights = load_file(file)
    name = next(name for name in weights if name.endswith("layers.0.mlp.up_proj.weight"))
    for damaged in (
        {key: value for key, value in weights.items() if key != name},
        weights | {"extra.weight": torch.zeros(2)},
        weights | {name: weights[name][:3].clone()},
    ):
        save_file(damaged, file, metadata={"format": "pt"})
        with pytest.raises(randslot.RandSlotError) as caught:
            randslot.load(tmp_path / "model")
        assert "\n" not in str(caught.value)
    file.unlink()
    torch.save(weights, tmp_path / "model" / "pytorch_model.bin")  # pickles are never read
    with pytest.raises(randslot.RandSlotError):
        randslot.load(tmp_path / "model")


def test_pages_come_as_images_paths_bytes_and_pages_of_files(tmp_path):
    model = make("qwen3-vl")
    expected = model.encode_document([IMAGES[0]])
    file = tmp_path / "Seite 1.png"
    IMAGES[0].copy().save(file)
    for page in (str(file), file, file.read_bytes()):
        assert far(model.encode_document([page]), expected) < 1e-6
    IMAGES[1].save(tmp_path / "both.tiff", save_all=True, append_images=[IMAGES[0].copy()])
    assert far(model.encode_document([f"{tmp_path}/both.tiff#page=2"]), expected) < 1e-6
    clear = Image.new("RGBA", (100, 140), (0, 0, 0, 0))
    white = Image.new("RGB", (100, 140), "white")
    assert far(model.encode_document([clear]), model.encode_document([white])) < 1e-6
    model.use(visual_tokens=4)
    assert far(model.encode_document([file]), expected) > 1e-3


def test_the_embedded_model_and_real_shapes():
    model = randslot.load("embedded", device="cpu")
    vectors = model.encode_query("revenue by region")
    assert vectors.shape == (4, model.dimension)
    assert far([randslot.open_model("embedded").encode_query("revenue by region")], [vectors]) < 1e-6
    for name, family, dimension in (
        ("qwen2.5-vl-3b", "qwen2.5-vl", 2048),
        ("qwen3-vl-2b", "qwen3-vl", 2048),
        ("qwen3-vl-4b", "qwen3-vl", 2560),
        ("qwen3.5-0.8b", "qwen3.5", 1024),
        ("smolvlm-256m", "smolvlm", 576),
        ("smollm2-135m", "llama", 576),
        ("qwen2.5-0.5b", "qwen2", 896),
        ("qwen3-0.6b", "qwen3", 1024),
    ):
        shape = randslot.untrained(name, device="meta", lora=True)
        assert (shape.family.name, shape.dimension) == (family, dimension)


def test_the_embedding_template_keeps_the_vector_of_a_retrieval_model(tmp_path):
    """The first vector is the last state of the published prompt in plain transformers, whatever the slots."""
    model = make("qwen3-vl", template="embedding")
    model.save_pretrained(str(tmp_path / "model"))
    reference = Reference(tmp_path / "model")
    chat = "<|im_start|>system\n{}<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    task = "Find the page that answers."
    for instruction, options in (("Represent the user's input.", {}), (task, {"prompt": task})):
        for query, vectors in zip(QUERIES, model.encode_query(QUERIES, **options), strict=True):
            with torch.no_grad():
                expected = reference.encode(reference.read_query(chat.format(instruction, query)), torch.zeros(3, 64))
            assert float((vectors - expected).abs().max()) < 1e-5
    assert randslot.load(tmp_path / "model").settings.template == "embedding"
