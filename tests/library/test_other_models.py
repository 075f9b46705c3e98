"""Libraries of other people's models: stored, searched, copied, verified and shown as those of RandSlot are."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from randslot.cli import app
from randslot.errors import RandSlotError, UsageError
from randslot.library.library import Library
from randslot.library.stores.edge import EdgeStore
from randslot.library.stores.points import StoredPage, measure_page, split_by_size
from randslot.library.stores.qdrant import split_pages
from randslot.library.stores.store import MAX_NUMBERS, StoreQuery, Where, pages_at_once
from randslot.model import open_model
from randslot.pages import open_page, read_page_text
from support import others
from support.pdf import write_pdf

FILE = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"


def nightly(*names: str) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.nightly) for name in names]


HALF = 2e-3  # half precision, over a query of some thirty vectors


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("others")
    return {
        "colqwen2": others.save_colqwen2(root / "colqwen2"),
        "qwen3-vl": others.save_qwen3_vl_embedding(root / "qwen3-vl"),
        "minilm": others.save_minilm(root / "minilm"),
        "colbert": others.save_colbert(root / "colbert"),
        "dot": others.save_minilm(root / "dot", normalize=False, similarity="dot"),
        "mean": others.save_colbert(root / "mean", similarity="meanmaxsim"),
    }


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("papers")
    write_pdf(folder / "alpha.pdf", 3, [])
    write_pdf(folder / "beta.pdf", 2, [], size=(280, 200))
    return folder


def test_a_library_remembers_that_pages_are_read_in_windows(
    folders: dict[str, Path], papers: Path, tmp_path: Path
) -> None:
    options = ["-l", str(tmp_path / "lib"), "--no-ocr", "-q"]
    answer = CliRunner().invoke(
        app, ["index", str(papers), *options, "--model", str(folders["minilm"]), "--page-vectors", "3"]
    )
    assert answer.exit_code == 0, answer.output
    with Library(tmp_path / "lib") as library:
        assert (library.status().with_vectors, library.models.model.num_vectors("page")) == (5, 3)
        assert len(library.search("page", by="vectors")) == 5
    with pytest.raises(UsageError, match="was indexed with page_vectors=3, not 1"):
        Library(tmp_path / "lib", open_model(str(folders["minilm"]), device="cpu"))


@pytest.mark.parametrize("name", ["colqwen2", "dot", *nightly("qwen3-vl", "minilm", "colbert", "mean")])
def test_a_search_scores_as_sentence_transformers_does(
    folders: dict[str, Path], papers: Path, tmp_path: Path, name: str
) -> None:
    with Library(tmp_path / "lib", folders[name]) as library:
        library.add(papers, workers=1)
        hits = library.search("page 2", 10, by="vectors", exact=True)
        assert library.verify() == []
        model = library.models.model
        names = [f"{hit.source}#page={hit.page}" for hit in hits]
        pages = [
            read_page_text(page) if model.reads == "text" else open_page(page, model.page_pixels) for page in names
        ]
        expected = model.similarity(model.encode_query(["page 2"]), model.encode_document(pages))[0]
        assert len(hits) == 5
        scale = float(expected.abs().max())
        np.testing.assert_allclose([hit.score for hit in hits], expected, atol=HALF * max(scale, 1))
        score = library.compare("page 2", hits[0].id).max(1).sum()
        assert score == pytest.approx(hits[0].score, abs=HALF * max(scale, 1))
        if name == "dot":  # damage is found in vectors of any length
            file = library.files()[0]
            library.store.add([StoredPage(file.id, 1, "x", np.zeros((1, 32), np.float32))])
            assert library.verify() == [f"{file.source}: 1 of {file.num_pages} pages are damaged"]


def test_pages_are_reduced(folders: dict[str, Path], papers: Path, tmp_path: Path) -> None:
    model = open_model(str(folders["colqwen2"]), reduction="pool1d", page_vectors=5)
    with Library(tmp_path / "lib", model) as library:
        library.add(papers, workers=1)
        assert library.status().vector_bytes_per_page == 2 * 5 * 16
        first = library.search("page", exact=True, by="vectors")
    with Library(tmp_path / "lib") as library:  # the model is loaded with the settings of the library
        assert library.models.model.settings.reduction == "pooling"
        again = library.search("page", exact=True, by="vectors")
    assert [hit.score for hit in again] == pytest.approx([hit.score for hit in first])
    with pytest.raises(UsageError, match="reduction='pooling', not 'kmeans'"):
        Library(tmp_path / "lib", open_model(str(folders["colqwen2"]), reduction="kmeans", page_vectors=5))


def test_a_library_keeps_to_its_model_and_prompts(folders: dict[str, Path], papers: Path, tmp_path: Path) -> None:
    own = others.save_minilm(tmp_path / "own", query="query: ", document="passage: ")
    with Library(tmp_path / "lib", own) as library:
        library.add(papers, workers=1)
        before = library.search("page 2", by="vectors", exact=True)
    others.change(own, "config_sentence_transformers.json", prompts={"query": "other: ", "document": ""})
    with Library(tmp_path / "lib") as library:  # the prompts that its pages were encoded with
        after = library.search("page 2", by="vectors", exact=True)
    assert [hit.score for hit in after] == [hit.score for hit in before]
    with pytest.raises(UsageError, match=r"was indexed with .*own"):
        Library(tmp_path / "lib", folders["dot"])


@pytest.mark.parametrize(("num", "dim"), [(4096, 128), (1, 4096)])
def test_the_largest_pages_are_stored_found_and_read(tmp_path: Path, num: int, dim: int) -> None:
    random = np.random.default_rng(0)
    pages = []
    for number in range(1, 4):
        vectors = random.normal(size=(num, dim)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        pages.append(StoredPage(FILE, number, "", vectors))
    store = EdgeStore(tmp_path / "pages", dim)
    store.add(pages)
    query = pages[1].vectors[:20]
    (hits,) = store.search([StoreQuery(query)], 3, Where(), exact=True)
    found = store.read([page.id for page in pages])
    assert hits[0].number == 2
    assert hits[0].score == pytest.approx(len(query), abs=0.01)
    np.testing.assert_allclose(found[pages[2].id].vectors, pages[2].vectors, atol=1e-3)
    assert pages_at_once(store, 256) == min(256, 2 * MAX_NUMBERS // (num * dim))
    store.close()


def test_pages_go_in_by_their_size() -> None:
    large = [StoredPage(FILE, number, "", np.zeros((3000, 512), np.float32)) for number in range(1, 6)]
    small = [StoredPage(FILE, number, "", np.zeros((1, 64), np.float32)) for number in range(6, 11)]
    for pages, max_num, wanted in (([*large, *small], 64, [2, 2, 6]), (small, 2, [2, 2, 1])):
        assert [len(some) for some in split_by_size(pages, measure_page, 4 * MAX_NUMBERS, max_num)] == wanted


def test_a_page_that_no_request_can_hold_is_told() -> None:
    page = StoredPage(FILE, 1, "", np.zeros((8192, 1024), np.float32))
    with pytest.raises(RandSlotError, match=r"a page of 8,192 vectors of 1,024 takes 34 MB, .* --reduction kmeans"):
        list(split_pages([page]))


def test_a_library_made_with_code_asks_for_it_on_another_machine(
    folders: dict[str, Path], papers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "here"))
    model = Path(shutil.copytree(folders["minilm"], tmp_path / "model"))
    modules = json.loads((model / "modules.json").read_text())
    modules[-1]["type"] = "unit.Unit"
    (model / "modules.json").write_text(json.dumps(modules))
    (model / "unit.py").write_text("from sentence_transformers.base.modules import Normalize\nclass Unit(Normalize): 1")
    with pytest.raises(UsageError, match="then pass --trust-remote-code"):
        Library(tmp_path / "lib", model)
    shutil.rmtree(tmp_path / "lib", ignore_errors=True)
    with Library(tmp_path / "lib", model, trust_remote_code=True) as library:
        library.add(papers, workers=1)
    with Library(tmp_path / "lib") as library:  # the same user, the same code: nobody is asked again
        assert library.search("page", by="vectors")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "elsewhere"))
    line = r"model, contains Python code\. .* pass --trust-remote-code"
    with Library(tmp_path / "lib") as library, pytest.raises(UsageError, match=line):
        library.search("page", by="vectors")
    answer = CliRunner().invoke(app, ["search", "page", "-l", str(tmp_path / "lib"), "--by", "vectors"])
    assert isinstance(answer.exception, UsageError)
    options = ["--by", "vectors", "--trust-remote-code"]
    assert CliRunner().invoke(app, ["search", "page", "-l", str(tmp_path / "lib"), *options]).exit_code == 0


def test_the_commands_take_any_model(folders: dict[str, Path], papers: Path, tmp_path: Path) -> None:
    place = ["-l", str(tmp_path / "lib")]
    options = ["--model", str(folders["colqwen2"]), "--reduction", "kmeans", "--page-vectors", "6", "--no-ocr"]
    answer = CliRunner().invoke(app, ["index", str(papers), *place, *options])
    assert answer.exit_code == 0, answer.output
    shown = CliRunner().invoke(app, ["library", "status", *place])
    assert "6 per page, several per query, 16 dimensions" in " ".join(shown.output.split())
    found = CliRunner().invoke(app, ["search", "page 2", *place, "--by", "vectors", "--explain", "-k", "1"])
    assert "less similar" in found.output
    assert CliRunner().invoke(app, ["library", "verify", *place]).exit_code == 0
