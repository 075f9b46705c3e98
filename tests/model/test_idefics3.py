"""SmolVLM: tiles as transformers' own processor lays them out, how many of them a page takes, and blank ones."""

from __future__ import annotations

import pytest
import torch
from PIL import Image
from transformers import Idefics3Processor

import randslot
from randslot.errors import RandSlotError, UsageError
from randslot.model.families.idefics3 import SmolVLM, longest_edge
from support.models import count_visual, make, noise

SIZES = [(100, 140), (260, 90), (64, 64), (1, 5000), (5000, 3), (31, 32), (700, 500), (33, 128), (1654, 2339)]


@pytest.mark.parametrize("visual_tokens", [20, 1536])
def test_pages_are_laid_out_as_by_the_processor_of_transformers(visual_tokens):
    model = make("smolvlm", visual_tokens=visual_tokens)
    encoder = model.encoder
    size = {"longest_edge": longest_edge(encoder.image_processor, visual_tokens)}
    processor = Idefics3Processor(encoder.image_processor, encoder.tokenizer, image_seq_len=4)
    for width, height in SIZES:
        page = noise(width, height)
        ours = encoder.family.preprocess_pages(encoder.processors, [page], visual_tokens)
        theirs = processor(
            text=[SmolVLM.page_prompt], images=[[page]], images_kwargs={"size": size}, return_tensors="pt"
        )
        assert torch.equal(ours["input_ids"], theirs["input_ids"]), (width, height)
        assert torch.equal(ours["pixel_values"], theirs["pixel_values"])
        assert ours["num_tiles"].item() == ours["pixel_values"].shape[1]


@pytest.mark.parametrize(
    ("visual_tokens", "letter", "a4", "banner"),
    [(1536, 17, 13, 5), (1087, 10, 10, 4), (319, 1, 1, 1)],
)
def test_the_tiles_of_real_pages(visual_tokens, letter, a4, banner):
    """Of 64 tokens each: a page at the default takes 832 (A4) or 1,088 (Letter)."""
    model = randslot.untrained("smolvlm-256m", device="meta", visual_tokens=visual_tokens)
    for size, tiles in (((850, 1100), letter), ((827, 1169), a4), ((2000, 400), banner)):
        features = model.encoder.preprocess([Image.new("RGB", size)], task="document")
        assert count_visual(model, features) == [64 * tiles]
        assert features["pixel_values"].shape == (1, tiles, 3, 512, 512)


def test_fewer_tokens_than_one_tile_are_refused():
    with pytest.raises(UsageError, match="visual_tokens=63: a smolvlm page takes at least 64"):
        randslot.untrained("smolvlm-256m", device="meta", visual_tokens=63)
    model = make("smolvlm")
    model.use(visual_tokens=4)
    assert count_visual(model, model.preprocess([noise(90, 90)], task="document")) == [4]


def test_blank_tiles_are_tiles():
    """Transformers takes tiles of zeros for padding; where black is zero, a black page would lose them."""
    model = make("smolvlm")
    model.encoder.image_processor.image_mean = [0.0, 0.0, 0.0]
    black, noisy = Image.new("RGB", (64, 64)), noise(260, 90)
    together = model.encode_document([black, noisy], batch_size=2)
    assert not model.preprocess([black], task="document")["pixel_values"].any()
    for page, vectors in zip((black, noisy), together, strict=True):
        torch.testing.assert_close(model.encode_document(page), vectors, atol=1e-5, rtol=0)


def test_the_size_of_a_tile_is_known_beside_a_backbone_and_beside_an_adapter(tmp_path):
    make("smolvlm").save_pretrained(str(tmp_path / "model"))
    backbone = tmp_path / "backbone"
    make("smolvlm").encoder.backbone.save_pretrained(backbone)
    for name in ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"):
        text = (tmp_path / "model" / name).read_text()
        (backbone / name).write_text(text.replace('"tokens_per_tile": 4', '"unknown": 4'))
    model = randslot.load(backbone, lora=True)  # as it is on the hub
    assert model.encoder.image_processor.tokens_per_tile == 4
    model.save_pretrained(str(tmp_path / "adapter"))
    assert randslot.load(tmp_path / "adapter").encoder.image_processor.tokens_per_tile == 4
    file = tmp_path / "adapter" / "preprocessor_config.json"
    file.write_text(file.read_text().replace("tokens_per_tile", "unknown"))
    with pytest.raises(RandSlotError, match=r"it lacks config\.json, which says how many tokens"):
        randslot.load(tmp_path / "adapter")
