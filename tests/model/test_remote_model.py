"""A model on a server is used like one at home, and gives its vectors; what a server does wrong is one line."""

from __future__ import annotations

import base64
import json
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import randslot
import randslot.model.client
from randslot.cli import app, main
from randslot.errors import RandSlotError, UsageError
from randslot.model.export import export_model
from research.samples.sets import write_set
from support.exports import adapted, far, follow, save
from support.models import make, noise
from support.pooling_server import TokenStates, serve

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("embedded") / "out"
    export_model("embedded", folder)
    return folder


@pytest.fixture(scope="module")
def states(embedded: Path) -> TokenStates:
    return TokenStates(embedded)


@pytest.fixture(scope="module")
def url(states: TokenStates) -> Iterator[str]:
    with serve(states.answer, states.folder) as url:
        yield url


@pytest.mark.parametrize("slots", ["zero", "learned"])
def test_a_server_gives_the_vectors_of_the_model(family, slots, pages, queries, tmp_path):
    model = adapted(family, slots=slots, query_vectors=3, page_vectors=5)
    export_model(save(model, tmp_path / "model"), tmp_path / "out")
    with serve(TokenStates(tmp_path / "out").answer, tmp_path / "out") as url:
        served = randslot.remote(url)
        assert far(served.encode_document(pages, batch_size=2), model.encode_document(pages)) < 1e-5
        assert far(served.encode_query(queries), model.encode_query(queries)) < 1e-5
        scores = served.similarity(served.encode_query(queries), served.encode_document(pages))
    expected = model.similarity(model.encode_query(queries), model.encode_document(pages))
    assert float((scores - expected).abs().max()) < 1e-4


def test_the_client_cuts_vectors_to_a_width(url, queries):
    model, served = randslot.load("embedded", device="cpu", width=32), randslot.remote(url, width=32)
    assert served.dimension == served.identity.dimension == 32
    for one, other in zip(served.embed_queries(queries), model.embed_queries(queries), strict=True):
        assert one.shape == (4, 32)
        assert abs(one - other).max() < 2e-3  # half precision
    for wrong in ({"width": 4096}, {"slots": "zero"}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            served.use(**wrong)


def test_inputs_of_every_kind(url, tmp_path):
    model, served = randslot.load("embedded", device="cpu"), randslot.remote(url)
    noise(90, 700).save(tmp_path / "tall.png")
    write_set(tmp_path / "samples", 1, split="test", seed=0)
    (pdf,) = (tmp_path / "samples" / "pages").iterdir()
    extreme = Image.new("RGB", (3, 2000), "black")
    pages = [str(tmp_path / "tall.png"), f"{pdf}#page=2", extreme, {"image": noise(1200, 1000, 5)}]
    for page in pages:
        assert far([served.encode_document(page)], [model.encode_document(page)]) < 1e-5
    assert served.encode_query("sales of wool").shape == (4, 128)
    assert far([served.encode(noise(64, 64))], [model.encode(noise(64, 64))]) < 1e-5
    with pytest.raises(RandSlotError, match="page image not found"):
        served.encode_document("nowhere.png")
    with pytest.raises(RandSlotError, match="empty query"):
        served.encode_query(" ")
    with pytest.raises(RandSlotError, match="a query to a server cannot contain the special token"):
        served.encode_query("what is <|randslot_zero|>?")


@pytest.mark.parametrize("size", [(100, 140), (1654, 2339), (7, 5), (30, 3000), (33, 32)])
def test_a_page_is_sent_in_the_size_that_the_model_reads(vision_family, size):
    """The server's image processor finds nothing to resize, so its library does not matter."""
    encoder = make(vision_family).encoder
    limits = encoder.family.image_limits(encoder.processors, encoder.settings.visual_tokens)
    page = noise(*size)
    fitted, num = encoder.family.fit_page(page, **limits)
    once, twice = (
        encoder.family.preprocess_pages(encoder.processors, [image], encoder.settings.visual_tokens)
        for image in (page, fitted)
    )
    assert torch.equal(once["pixel_values"], twice["pixel_values"])
    prompt = len(encoder.tokenizer(encoder.family.page_prompt.replace(encoder.family.image_token, ""))["input_ids"])
    assert num == once["input_ids"].shape[1] - prompt
    assert encoder.family.fit_page(fitted, **limits) == (fitted, num)


def test_the_client_in_serving_md_works(url, embedded, monkeypatch, tmp_path):
    file = embedded / "SERVING.md"
    (tmp_path / "SERVING.md").write_text(file.read_text().replace("http://localhost:8000", url))
    client = follow(tmp_path, monkeypatch, block=0)
    model = randslot.load("embedded", device="cpu")
    noise(256, 352).save("page.png")
    page = torch.from_numpy(client["encode_page"](Path("page.png").read_bytes()))
    assert far([page], [model.encode_document("page.png")]) < 1e-5
    query = torch.from_numpy(client["encode_query"]("sales of wool"))
    assert far([query], [model.encode_query("sales of wool")]) < 1e-5


def test_a_library_takes_a_server_for_a_model(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_set(Path("set"), 2, split="test", seed=0)
    with randslot.Library("home", "embedded") as library:
        library.add(["set/pages"])
        expected = [(Path(hit.source).name, hit.page) for hit in library.search("sales of wool", 3, by="vectors")]
    done = CliRunner().invoke(app, ["index", "set/pages", "-l", "mylib", "--model", url, "--quiet"])
    assert done.exit_code == 0, done.output
    hits = json.loads(
        CliRunner()
        .invoke(app, ["search", "sales of wool", "-l", "mylib", "-k", "3", "--json", "--by", "vectors"])
        .stdout
    )
    assert [(Path(hit["source"]).name, hit["page"]) for hit in hits] == expected
    with pytest.raises(RandSlotError, match="was indexed with"):
        randslot.Library("home", url)


def test_evaluate_takes_a_server_for_a_model(url, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_set(Path("set"), 2, split="test", seed=0)

    def evaluate(model: str, *words: str) -> dict[str, Any]:
        monkeypatch.setattr(sys, "argv", ["randslot", "evaluate", model, "--data", "set", "-o", "results", *words])
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code, capsys.readouterr().err
        newest = max(Path("results").rglob("own-*.json"), key=lambda file: file.stat().st_mtime_ns)
        return dict(json.loads(newest.read_text()))

    home, served = evaluate("embedded"), evaluate(url, "--name", "served")
    assert served["subsets"]["default"]["each"] == pytest.approx(home["subsets"]["default"]["each"], abs=1e-6)
    assert served["counts"] == {"query": 4, "page": 4}
    assert served["weights"] != home["weights"]  # the vectors of a server are kept apart
    assert evaluate(url, "--page-vectors", "2")["counts"] == {"query": 4, "page": 2}


def test_fewer_vectors_are_the_first_ones(url, states, tmp_path):
    page = noise(200, 300)
    all_four = randslot.remote(url).encode_document(page)
    few = randslot.remote(url, states.folder / "serving.json", page_vectors=2, query_vectors=1)
    assert torch.equal(few.encode_document(page), all_four[:2])
    assert few.encode_query("tax").shape == (1, 128)
    with pytest.raises(UsageError, match="page_vectors=8: the server has 4"):
        randslot.remote(url, page_vectors=8)
    with pytest.raises(UsageError, match="page_vectors must be a whole number from 1"):
        randslot.remote(url, page_vectors=0)
    with pytest.raises(UsageError, match="seed=1: the server has 42"):
        few.use(seed=1)
    with pytest.raises(RandSlotError, match="cannot save the model of"):
        few.save_pretrained(str(tmp_path / "saved"))


@contextmanager
def met(states: TokenStates, later: Any, **options: Any) -> Iterator[tuple[str, Any]]:
    """A model on a server that starts well, and then answers as `later` does."""
    answers = iter([states.answer])
    with serve(lambda body: next(answers, later)(body), states.folder) as url:
        yield url, randslot.remote(url, **options)


def pack(rows: torch.Tensor) -> str:
    return base64.b64encode(rows.numpy().tobytes()).decode()


def reply(*items: str, tokens: int) -> dict[str, Any]:
    return {"data": [{"index": i, "data": item} for i, item in enumerate(items)], "usage": {"prompt_tokens": tokens}}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (reply(pack(torch.ones(9, 64)), tokens=9), "cannot read vectors of dimension 128"),
        (
            reply(pack(torch.ones(1, 128)), tokens=9),
            r"returned \[1\] vectors of dimension 128, but reports 9",
        ),  # one for all
        (reply(pack(torch.ones(3, 128)), tokens=3), "returned 3 states: too few for 4 vectors"),
        (reply(pack(torch.full((9, 128), torch.nan)), tokens=9), "not finite"),
        (reply(pack(torch.ones(5, 128)), pack(torch.ones(5, 128)), tokens=10), r"returned \[5, 5\] vectors"),
        (reply("no base64!", tokens=9), "cannot read vectors"),
        ({"data": [{"index": 0, "data": [[1.0, 2.0]]}], "usage": {"prompt_tokens": 1}}, "cannot read vectors"),
        ({"hello": "world"}, "cannot read vectors of dimension 128 from .*: 'data'"),
        ([1, 2, 3], "cannot read vectors of dimension 128"),
        (b"<html>", "did not return JSON"),
    ],
)
def test_a_wrong_answer_is_one_line(answer, message, states):
    with met(states, lambda body: answer) as (url, model), pytest.raises(RandSlotError, match=message) as caught:
        model.encode_query("tax")
    assert "\n" not in str(caught.value)
    assert url in str(caught.value)


def test_the_words_of_the_server_are_passed_on(states):
    def refuse(body: dict[str, Any]) -> Any:
        raise ValueError("This model's maximum length\nis 512 tokens.")

    message = r"/pooling returned 400: This model's maximum length is 512 tokens\."
    with met(states, refuse) as (_, model), pytest.raises(RandSlotError, match=message):
        model.encode_query("tax")


def test_a_slow_server_is_given_up(states):
    done = threading.Event()
    with met(states, lambda body: done.wait(30) and {}) as (_, model):
        model.encoder.server.timeout = 0.2
        with pytest.raises(RandSlotError, match=r"cannot reach .*/pooling: no answer within 0.2 seconds"):
            model.encode_query("tax")
        done.set()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as place:
        return int(place.getsockname()[1])


def test_a_server_that_is_not_there_is_asked_again_and_then_named(monkeypatch):
    pauses: list[float] = []
    monkeypatch.setattr(randslot.model.client, "pause", pauses.append)
    with pytest.raises(RandSlotError, match=r"cannot reach http://.*: .*refused. Is the server running\?"):
        randslot.remote(f"http://127.0.0.1:{free_port()}")
    assert pauses == [0.5, 1.0, 2.0, 4.0]


def test_a_server_that_comes_up_late_is_waited_for(embedded, states, monkeypatch):
    """The first connection is refused; during the pause it starts."""
    port, pauses = free_port(), []
    with ExitStack() as later:

        def start(seconds: float) -> None:
            pauses.append(seconds)
            later.enter_context(serve(states.answer, embedded, port=port))

        monkeypatch.setattr(randslot.model.client, "pause", start)
        assert randslot.remote(f"http://127.0.0.1:{port}").encode_query("tax").shape == (4, 128)
    assert pauses == [0.5]


def test_where_the_model_is_must_be_known(embedded, states, tmp_path, monkeypatch):
    with serve(states.answer, "owner/on-another-machine") as url:
        with pytest.raises(UsageError, match=r"and owner/on-another-machine has no serving.json"):
            randslot.remote(url)
        with pytest.raises(UsageError, match=r"has no serving.json: pass the export"):
            randslot.remote(url, tmp_path)
        assert randslot.remote(url, embedded).get_embedding_dimension() == 128
        (tmp_path / "serving.json").write_text('{"format": 7}')
        with pytest.raises(RandSlotError, match="has format 7, but this version reads 1"):
            randslot.remote(url, tmp_path)
        (tmp_path / "serving.json").write_text('{"format": 1}')
        with pytest.raises(RandSlotError, match=r"cannot read .*serving.json: 'settings'; export the model again"):
            randslot.remote(url, tmp_path)
    monkeypatch.chdir(embedded)
    with (
        serve(states.answer, ".") as url,
        pytest.raises(UsageError, match=r"and \. has no serving.json"),
    ):
        randslot.remote(url)  # where the server stands is not where we are
    with pytest.raises(RandSlotError, match=r"cannot reach localhost:8000/v1/models: .*unknown url type"):
        randslot.remote("localhost:8000", embedded)


def test_another_service_is_asked_whether_it_is_vllm(tmp_path):
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        message = r"/v1/models returned 404: .*; is it a vLLM server, started as SERVING.md says, or randslot serve\?"
        with pytest.raises(RandSlotError, match=message):
            randslot.remote(f"http://127.0.0.1:{server.server_port}")
        server.shutdown()


def test_a_token_is_sent_along(embedded, states):
    with serve(states.answer, embedded, wanted="secret") as url:
        with pytest.raises(RandSlotError, match="returned 401: Unauthorized"):
            randslot.remote(url)
        assert randslot.remote(url, token="secret").get_embedding_dimension() == 128


def test_another_model_than_the_folder_has_is_noticed(states, tmp_path):
    """Of the same dimension: its tokenizer takes slots for text, or its image settings or template differ."""
    slots = {"query_slots": "<|randslot_query_1|><|randslot_query_2|><|randslot_query_3|>"}
    serving = json.loads((states.folder / "serving.json").read_text())
    with serve(states.answer, states.folder) as url:
        (tmp_path / "serving.json").write_text(json.dumps(serving | slots))
        with pytest.raises(RandSlotError, match="does not know the slot tokens: does it run the exported folder"):
            randslot.remote(url, tmp_path)
        larger = {"image": serving["image"] | {"longest_edge": 4 * serving["image"]["longest_edge"]}}
        (tmp_path / "serving.json").write_text(json.dumps(serving | larger))
        with pytest.raises(RandSlotError, match=r"reads pages of \[\d+\] tokens as \[\d+\]. Does it use the chat"):
            randslot.remote(url, tmp_path).encode_document(noise(600, 800))
        (tmp_path / "serving.json").write_text(json.dumps(serving | {"page_prompt": serving["page_prompt"] + "."}))
        with pytest.raises(RandSlotError, match="Does it use the chat template"):
            randslot.remote(url, tmp_path).encode_document(noise(60, 80))


def test_options_that_the_export_has_set(url, tmp_path, monkeypatch, capsys):
    write_set(tmp_path / "set", 1, split="test", seed=0)
    words = ["randslot", "evaluate", url, "--data", str(tmp_path / "set"), "-o", str(tmp_path), "--inference", "random"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert "randslot: inference='random' cannot be set for a server: its export fixes it\n" in capsys.readouterr().err
