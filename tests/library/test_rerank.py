"""Reranking: the first hits in the order of a cross-encoder or a server, or their first order in doubt."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from randslot.cli import app
from randslot.errors import RandSlotError, UsageError
from randslot.library.library import Library
from randslot.library.rerank import open_reranker
from randslot.library.results import Hit
from randslot.model.reader import Reads
from support import others
from support.pdf import write_pages
from support.services import client_of
from support.services import serving as serving_library

TEXTS = [
    ["Deferred tax is twelve million"],
    ["The tax office of the city, tax forms and tax returns, all about tax"],
    ["Wool and cotton"],
    ["A page about the fleet and its tax"],
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("reranked")
    write_pages(place / "report.pdf", TEXTS)
    with Library(place / "library") as library:
        library.add(place / "report.pdf", workers=1)
    return place


@pytest.fixture
def library(folder: Path) -> Iterator[Library]:
    with Library(folder / "library") as library:
        yield library


def pages(hits: Sequence[Hit]) -> list[int]:
    return [hit.page for hit in hits]


class Backwards:
    """Orders the first hits the other way round, and notes what it was asked."""

    name, reads, seconds = "backwards", "text", 10.0

    def __init__(self, pages: int = 20, reads: Reads = "text") -> None:
        self.pages, self.reads = pages, reads  # type: ignore[assignment]
        self.asked: list[tuple[str, list[Any]]] = []

    def score(self, query: str, pages: Sequence[Any], deadline: float) -> list[float]:
        self.asked.append((query, list(pages)))
        return [float(number) for number in range(len(pages))]


# -- the order of hits


def test_the_first_hits_get_the_order_of_the_reranker(library: Library) -> None:
    first = library.search("tax", 3)
    reranker = Backwards()
    again = library.search("tax", 3, rerank=reranker)
    assert pages(again) == pages(first)[::-1]
    assert [hit.rerank for hit in again] == [2.0, 1.0, 0.0]
    assert [hit.score for hit in again] == [hit.score for hit in first][::-1]
    assert all(hit.snippet is not None for hit in again)
    ((query, texts),) = reranker.asked
    assert query == "tax"
    assert all("report.pdf\n" in text for text in texts)  # the name tells twins apart
    assert {text.partition("\n")[2].split()[0] for text in texts} == {"Deferred", "The", "A"}


def test_only_so_many_hits_are_read_whatever_the_offset(library: Library) -> None:
    first = pages(library.search("tax", 3))
    assert pages(library.search("tax", 3, rerank=Backwards(pages=2))) == [first[1], first[0], first[2]]
    parts = []
    for offset in range(3):
        (result,) = library.search_results(["tax"], 1, offset=offset, rerank=Backwards(pages=2))
        parts += pages(result.hits)
    assert parts == [first[1], first[0], first[2]]
    assert pages(library.search("tax", 1, rerank=Backwards())) == [first[2]]  # from behind the first k


def test_a_reranker_of_images_sees_the_pages(library: Library) -> None:
    reranker = Backwards(reads="image")
    assert len(library.search("tax", 3, rerank=reranker)) == 3
    assert all(image.width > 100 for image in reranker.asked[0][1])


def test_a_library_remembers_its_reranker_until_told_otherwise(tmp_path: Path, reranker: Path) -> None:
    write_pages(tmp_path / "report.pdf", TEXTS)
    with Library(tmp_path / "library") as library:
        library.add(tmp_path / "report.pdf", workers=1)
        first = library.search("tax", 3)
        library.remember_reranker(str(reranker))
        hits = library.search("tax", 3)
        assert None not in [hit.rerank for hit in hits]
        assert library.search("tax", 3, rerank=False) == first
    with Library(tmp_path / "library") as library:
        assert library.search("tax", 3) == hits
        library.remember_reranker(None)
        assert library.search("tax", 3) == first
        with pytest.raises(UsageError, match="no model found at 'nowhere'"):
            library.remember_reranker("nowhere")


# -- cross-encoders


def save_reranker(folder: Path, num_labels: int = 1) -> Path:
    """A cross-encoder as on the hub: BERT with a head for pairs, tiny and random."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(3)
    tokenizer = others.word_piece()
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, num_labels=num_labels, **others.TEXT)
    model = BertForSequenceClassification(config).eval()
    others.lively(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_reranker(tmp_path_factory.mktemp("models") / "reranker")


def test_scores_are_those_of_the_cross_encoder(reranker: Path, library: Library) -> None:
    from sentence_transformers import CrossEncoder

    plain = CrossEncoder(str(reranker), device="cpu")
    texts = ["short", "tax of the city"]
    expected = plain.predict([("tax", text) for text in texts])
    ours = open_reranker(str(reranker))
    np.testing.assert_allclose(ours.score("tax", texts, math.inf), expected, atol=1e-6)
    hits = library.search("tax", 3, rerank=str(reranker))
    scores = [hit.rerank for hit in hits]
    assert scores == sorted(scores, key=lambda score: -(score or 0.0))
    assert sorted(pages(hits)) == [1, 2, 4]


def test_a_long_page_is_read_in_windows_and_its_best_one_counts(reranker: Path) -> None:
    ours: Any = open_reranker(str(reranker))
    long = " ".join(f"word{number} and so on" for number in range(30))
    windows = ours._cut("tax", long)
    assert len(windows) > 2
    assert " ".join(windows) == long
    (score,) = ours.score("tax", [long], math.inf)
    assert score == pytest.approx(max(ours.score("tax", windows, math.inf)), abs=1e-6)


def test_a_vision_reranker_reads_images_and_text(tmp_path: Path, library: Library) -> None:
    """As Qwen3-VL-Reranker: the odds of "yes" after a chat with the query and the page."""
    folder = save_vision_reranker(tmp_path / "reranker")
    ours = open_reranker(str(folder))
    assert ours.reads == "image"
    hits = library.search("tax", 3, rerank=ours)
    scores = [hit.rerank for hit in hits]
    assert None not in scores
    assert len(set(scores)) == 3
    assert sorted(pages(hits)) == [1, 2, 4]


def save_vision_reranker(folder: Path) -> Path:
    from transformers import Qwen3VLForConditionalGeneration

    folder = others._save_qwen3_vl(folder)
    inner = Qwen3VLForConditionalGeneration.from_pretrained(folder)
    inner.save_pretrained(folder)
    template = (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n"
        "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
        "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
        "{% elif part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    forward = {"method": "forward", "method_output_name": "logits", "format": "structured"}
    transformer = {
        "transformer_task": "any-to-any",
        "modality_config": dict.fromkeys(("text", "image", "message"), forward),
        "module_output_name": "causal_logits",
        "processing_kwargs": {"chat_template": {"add_generation_prompt": True}},
    }
    scores = {"true_token_id": 65, "false_token_id": 66, "module_input_name": "causal_logits"}
    others.write_modules(
        folder,
        "CrossEncoder",
        {
            "Transformer": (others.TRANSFORMER, transformer),
            "LogitScore": ("sentence_transformers.cross_encoder.modules.logit_score.LogitScore", scores),
        },
        prompts={},
        default_prompt_name=None,
    )
    return folder


def test_what_is_no_reranker_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RandSlotError, match="has missing weights, such as classifier"):  # an embedding model
        open_reranker(str(others.save_minilm(tmp_path / "minilm-for-vectors")) + "-inner")
    with pytest.raises(RandSlotError, match="returns 3 scores per page: choose"):
        open_reranker(str(save_reranker(tmp_path / "labels", num_labels=3)))


def test_neither_pickles_nor_code_run(tmp_path: Path) -> None:
    folder = save_reranker(tmp_path / "model")
    others.change(
        folder, "config.json", auto_map={"AutoConfig": "trap.C", "AutoModelForSequenceClassification": "trap.M"}
    )
    others.change(folder, "config.json", model_type="strange")
    (folder / "trap.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\n")
    with pytest.raises(UsageError, match="contains Python code"):
        open_reranker(str(folder))
    pickled = save_reranker(tmp_path / "pickled")
    torch.save({}, pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()
    with pytest.raises(RandSlotError, match="is a pickle, which can run code"):
        open_reranker(str(pickled))
    assert not (tmp_path / "sprung").exists()


# -- the time limit


def test_after_the_time_limit_the_first_order_stands_and_is_said(reranker: Path, library: Library) -> None:
    first = library.search("tax", 3)
    slow = open_reranker(str(reranker), seconds=-1.0)
    (result,) = library.search_results(["tax"], 3, rerank=slow)
    assert result.hits == first
    assert "took longer than -1 s; hits are not reranked" in result.rerank_note


# -- servers


@contextmanager
def serving(answer: Callable[[dict[str, Any]], tuple[int, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server with a /rerank route; it records its requests."""
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append({"path": self.path, "token": self.headers["Authorization"], **body})
            status, content = answer(body) if self.path.endswith("/rerank") else (404, {"detail": "Not Found"})
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


def like_vllm(body: dict[str, Any]) -> tuple[int, Any]:
    """vLLM and Jina: best first, with the documents; the page about the fleet is best."""
    results = []
    for index, text in enumerate(body["documents"]):
        results.append({"index": index, "document": {"text": text}, "relevance_score": float("fleet" in text)})
    return 200, {"id": "rerank-1", "results": sorted(results, key=lambda item: -item["relevance_score"])}


def like_tei(body: dict[str, Any]) -> tuple[int, Any]:
    """Text Embeddings Inference: a list, and a field of another name."""
    if "texts" not in body:
        return 422, "Failed to deserialize the JSON body into the target type: missing field `texts`"
    found = [{"index": index, "score": float("fleet" in text)} for index, text in enumerate(body["texts"])]
    return 200, sorted(found, key=lambda item: -item["score"])


@pytest.mark.parametrize(("answer", "field"), [(like_vllm, "documents"), (like_tei, "texts")])
def test_a_server_reranks(library: Library, monkeypatch: pytest.MonkeyPatch, answer: Any, field: str) -> None:
    monkeypatch.setenv("RANDSLOT_RERANK_TOKEN", "secret")
    with serving(answer) as (url, asked):
        hits = library.search("tax", 3, rerank=f"{url}/v1/rerank#some-model")
        assert (hits[0].page, hits[0].rerank, hits[1].rerank) == (4, 1.0, 0.0)
        assert pages(library.search("tax", 1, rerank=f"{url}/v1/rerank#some-model")) == [4]
    assert asked[-1]["path"] == "/v1/rerank"
    assert (asked[-1]["query"], asked[-1]["model"], asked[-1]["token"]) == ("tax", "some-model", "Bearer secret")
    assert len(asked[-1][field]) == 3


@pytest.mark.parametrize(
    ("answer", "note"),
    [
        (lambda body: (500, {"error": {"message": "out of memory"}}), "returned 500: out of memory; hits are not"),
        (lambda body: (200, {"results": []}), "cannot rerank with http://.*; hits are not reranked"),
        (lambda body: (200, {"hello": "world"}), "cannot rerank with http://.*: 'results'"),
        (lambda body: (time.sleep(1.0), (200, {}))[1], "took longer than 0.3 s; hits are not reranked"),
    ],
)
def test_a_server_that_fails_leaves_the_first_order(library: Library, answer: Any, note: str) -> None:
    first = library.search("tax", 3)
    with serving(answer) as (url, _):
        (result,) = library.search_results(["tax"], 3, rerank=open_reranker(url, seconds=0.3))
    assert result.hits == first
    with pytest.raises(AssertionError, match=note):
        raise AssertionError(result.rerank_note)


def test_long_pages_are_sent_in_windows() -> None:
    with serving(like_vllm) as (url, asked):
        scores = open_reranker(url).score("tax", ["a " * 900 + "fleet", "b"] * 8, math.inf)
    assert scores == [1.0, 0.0] * 8
    assert [len(body["documents"]) for body in asked] == [32, 16]
    assert max(len(text.split()) for body in asked for text in body["documents"]) <= 200


# -- commands


def test_commands_rerank(folder: Path, reranker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Any:
        done = CliRunner().invoke(app, list(words), catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done

    place = str(folder / "library")
    with serving(like_vllm) as (url, _):
        hits = json.loads(run("search", "tax", "-l", place, "--json", "--rerank", url).stdout)
        assert hits[0]["page"] == 4
        assert hits[0]["rerank"] == 1.0
        assert f"all searches are now reranked by {url}" in run("library", "rerank", url, "-l", place).stdout
        assert json.loads(run("search", "tax", "-l", place, "--json").stdout)[0]["page"] == 4
        assert "rerank" not in json.loads(run("search", "tax", "-l", place, "--json", "--rerank", "none").stdout)[0]
    done = run("search", "tax", "-l", place)
    assert "hits are not reranked" in done.stderr
    run("library", "rerank", "none", "-l", place)
    assert "note" not in run("search", "tax", "-l", place).stderr


def test_a_service_reranks_and_says_if_it_could_not(tmp_path: Path) -> None:
    write_pages(tmp_path / "report.pdf", TEXTS)
    with serving_library(tmp_path / "library", None) as service:
        service.library.add(tmp_path / "report.pdf", workers=1)
        client = client_of(service)
        with serving(like_vllm) as (url, _):
            service.library.models.reranker = url
            answer = client.post("/api/search", json={"query": "tax", "k": 3}).json()
            assert (answer["hits"][0]["page"], answer["note"]) == (4, None)
        answer = client.post("/api/search", json={"query": "tax", "k": 3}).json()
        assert answer["hits"][0]["page"] != 4
        assert "hits are not reranked" in answer["note"]


def test_evaluate_and_compare_rerank(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "set"
    (data / "pages").mkdir(parents=True)
    write_pages(data / "pages" / "report.pdf", TEXTS)
    (data / "queries.jsonl").write_text('{"id": "q", "query": "tax"}\n')
    (data / "qrels.jsonl").write_text('{"query": "q", "page": "report.pdf#page=4", "grade": 1}\n')
    with serving(like_vllm) as (url, _):
        words = ["evaluate", "--by", "words", "--data", str(data), "--rerank", url]
        done = CliRunner().invoke(app, words, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        assert "100.0" in done.stdout
        done = CliRunner().invoke(app, ["compare", "words", "--data", str(data), "--rerank", url])
        assert done.exit_code == 0, done.output
        assert "words, reranked" in done.stdout
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, RandSlotError)  # no figure for a server that does not answer
