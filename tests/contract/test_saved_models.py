"""Models that were saved before still load, and give the vectors that they gave then: data/README.md."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sentence_transformers import MultiVectorEncoder

import randslot

DATA = Path(__file__).parent / "data"
EXPECTED = json.loads((DATA / "saved_models.json").read_text(encoding="utf-8"))
QUERIES = ["tax", "revenue by region in 2023", "Größe der Flotte?"]
TEXTS = ["Deferred tax is 12 in 2023.", "The fleet has seven ships.\nOne of them is old."]


def draw(width: int, height: int) -> Image.Image:
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    return Image.fromarray(np.stack([x * 7 % 256, y * 5 % 256, x * y % 256], axis=-1).astype(np.uint8))


def far(vectors: list[Any], expected: list[Any]) -> float:
    assert [one.shape for one in vectors] == [np.shape(one) for one in expected]
    return max(float(np.abs(np.asarray(a) - b).max()) for a, b in zip(vectors, expected, strict=True))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    for name in EXPECTED:
        with tarfile.open(DATA / f"{name}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    return folder


@pytest.mark.parametrize("name", EXPECTED)
def test_a_saved_model_gives_the_vectors_of_then(name, saved):
    model = randslot.load(saved / name)
    expected = EXPECTED[name]
    assert far(model.encode_query(QUERIES), expected["queries"]) < 1e-5
    if "pages" in expected:
        pages = TEXTS if model.reads == "text" else [draw(60, 90), draw(130, 50)]
        assert far(model.encode_document(pages), expected["pages"]) < 1e-5
    if "random_queries" in expected:
        model.use(inference="random")
        assert far(model.encode_query(QUERIES), expected["random_queries"]) < 1e-5
        model.use(seed=7)
        assert far(model.encode_query(QUERIES), expected["random_queries"]) > 1e-2


def test_saved_settings_are_kept(saved):
    adapted, learned, text, student = (
        randslot.load(saved / name) for name in ("qwen3-vl-random-lora", "qwen2.5-vl-learned", "llama-fixed", "student")
    )
    assert [m.family.name for m in (adapted, learned, text, student)] == ["qwen3-vl", "qwen2.5-vl", "llama", "llama"]
    assert (adapted.settings.slots, adapted.settings.inference, adapted.settings.seed) == ("random", "zero", 3)
    assert (learned.settings.query_vectors, learned.settings.page_vectors) == (3, 5)
    assert (text.settings.slots, text.settings.text_tokens, text.dimension) == ("fixed", 1536, 32)
    assert student.dimension == adapted.dimension == 32
    assert student.teacher.weights == adapted.weights_key == "f5a4148f97be346bd759ecad"  # libraries are bound to it


def test_sentence_transformers_opens_a_saved_model_by_the_class_it_names(saved):
    modules = json.loads((saved / "llama-fixed" / "modules.json").read_text())
    assert modules[0]["type"] == "randslot.encoder.SlotEncoder"
    model = MultiVectorEncoder(str(saved / "llama-fixed"), trust_remote_code=True)
    assert far(model.encode_query(QUERIES), EXPECTED["llama-fixed"]["queries"]) < 1e-5


def test_a_saved_model_written_again_is_the_same_model(saved, tmp_path):
    for name, expected in EXPECTED.items():
        model = randslot.load(saved / name)
        model.save_pretrained(str(tmp_path / name))
        again = randslot.load(tmp_path / name)
        assert again.weights_key == model.weights_key
        assert far(again.encode_query(QUERIES), expected["queries"]) < 1e-5
        names = {file.name for file in (saved / name).iterdir()}
        assert names <= {file.name for file in (tmp_path / name).iterdir()}


def test_a_library_takes_a_saved_student_for_queries(saved, tmp_path):
    draw(60, 90).save(tmp_path / "first.png")
    draw(130, 50).save(tmp_path / "second.png")
    teacher, student = saved / "qwen3-vl-random-lora", saved / "student"
    with randslot.Library(tmp_path / "lib", teacher) as library:
        assert library.add(sorted(tmp_path.glob("*.png"))).pages == 2
    pages = EXPECTED["qwen3-vl-random-lora"]["pages"]
    for query_model, side in ((None, "qwen3-vl-random-lora"), (student, "student")):
        with randslot.Library(tmp_path / "lib", query_model=query_model) as library:
            assert library.has_student == (query_model is not None)
            hits = library.search("tax", by="vectors")
        query = np.array(EXPECTED[side]["queries"][0])
        scores = [float((query @ np.array(page).T).max(axis=1).sum()) for page in pages]
        found = {Path(hit.source).name: hit.score for hit in hits}
        assert found == pytest.approx({"first.png": scores[0], "second.png": scores[1]}, abs=5e-3)
    with pytest.raises(randslot.RandSlotError, match="llama-fixed"):
        randslot.Library(tmp_path / "lib", query_model=saved / "llama-fixed").search("tax", by="vectors")
    with pytest.raises(randslot.UsageError):
        randslot.load(student).encode_document(TEXTS)
