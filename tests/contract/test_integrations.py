"""Retrievers of LangChain, LlamaIndex and Haystack, against the real frameworks, by the names of docs/serve.md."""

from __future__ import annotations

import asyncio
import base64
import importlib
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import randslot
from contract.conftest import make_environment
from contract.pdf import write_pdf
from contract.serving import command, serve
from randslot.integrations.pages import read_picture

pytestmark = [
    pytest.mark.xdist_group("contract-integrations"),
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
]
FRAMEWORKS = {"langchain": "langchain_core", "llamaindex": "llama_index.core", "haystack": "haystack"}
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("retrievers")
    pages = [["Deferred tax of the year", "is twelve million"], ["Wool and cotton"], ["Tax on wool"]]
    write_pdf(folder / "report.pdf", pages)
    command("index", folder / "report.pdf", "-l", folder / "lib", "--quiet", "--meta", "year=2023")
    return folder


@pytest.fixture(params=FRAMEWORKS)
def framework(request) -> str:
    pytest.importorskip(FRAMEWORKS[request.param])
    return request.param


def make(framework: str, library: Any, **options: Any) -> Any:
    retriever = importlib.import_module(f"randslot.integrations.{framework}").RandSlotRetriever
    if framework == "haystack" and "k" in options:
        options["top_k"] = options.pop("k")
    return retriever(library=library, **options)


def ask(retriever: Any, query: str, wait: bool = False) -> list[dict[str, Any]]:
    """Ask a retriever of any framework; return id, text, metadata, score and picture of each page."""
    name = type(retriever).__module__
    if "langchain" in name:
        found = asyncio.run(retriever.ainvoke(query)) if wait else retriever.invoke(query)
        rows = [(page.id, page.page_content, page.metadata, page.metadata["score"]) for page in found]
        pictures = [base64.b64decode(page.metadata.get("picture") or "") for page in found]
    elif "llamaindex" in name:
        found = asyncio.run(retriever.aretrieve(query)) if wait else retriever.retrieve(query)
        rows = [(one.node.node_id, one.node.text, one.node.metadata, one.score) for one in found]
        pictures = [base64.b64decode(getattr(one.node, "image", None) or "") for one in found]
    else:
        answer = asyncio.run(retriever.run_async(query=query)) if wait else retriever.run(query=query)
        rows = [(page.id, page.content, page.meta, page.score) for page in answer["documents"]]
        pictures = [page.blob.data if page.blob else b"" for page in answer["documents"]]
    keys = ("id", "text", "metadata", "score")
    return [
        {**dict(zip(keys, row, strict=True)), "picture": picture} for row, picture in zip(rows, pictures, strict=True)
    ]


@pytest.mark.parametrize("wait", [False, True], ids=["sync", "async"])
def test_pages_have_text_metadata_and_score(framework, folder, wait):
    retriever = make(framework, str(folder / "lib"), k=2, by="words")
    pages = ask(retriever, "deferred tax", wait)
    retriever.close()
    with randslot.Library(folder / "lib") as library:
        hits = library.search("deferred tax", 2, by="words")
    assert [page["id"] for page in pages] == [hit.id for hit in hits]
    assert [page["score"] for page in pages] == [hit.score for hit in hits]
    best = pages[0]
    assert best["text"] == "Deferred tax of the year\nis twelve million"
    assert set(best["metadata"]) >= {"source", "page", "document", "id", "score", "by", "snippet", "year"}
    assert (best["metadata"]["source"], best["metadata"]["page"]) == (str(folder / "report.pdf"), 1)
    assert not best["picture"]
    assert Image.open(BytesIO(read_picture(best["metadata"]))).format == "JPEG"


def test_pictures_come_on_request_and_filters_count(framework, folder):
    retriever = make(framework, str(folder / "lib"), pictures=True, filters={"year": 2023, "page": 3})
    (page,) = ask(retriever, "wool")
    retriever.close()
    assert page["metadata"]["page"] == 3
    assert Image.open(BytesIO(page["picture"])).format == "JPEG"
    retriever = make(framework, str(folder / "lib"), filters={"year": 1999})
    assert ask(retriever, "wool") == []
    retriever.close()


def test_open_and_served_libraries_are_used(framework, folder):
    with randslot.Library(folder / "lib") as library:
        retriever = make(framework, library)
        expected = [page["id"] for page in ask(retriever, "tax")]
        retriever.close()
        assert library.search("tax"), "it stays open"
    with serve(folder / "lib"):
        retriever = make(framework, str(folder / "lib"))
        assert [page["id"] for page in ask(retriever, "tax")] == expected
        retriever.close()


def test_a_library_that_does_not_exist_is_an_error(framework, tmp_path):
    with pytest.raises(randslot.RandSlotError, match="nowhere"):
        ask(make(framework, str(tmp_path / "nowhere")), "tax")


def test_the_example_writes_a_prompt(framework, folder):
    words = [sys.executable, str(EXAMPLES / f"{framework}_pages.py"), str(folder / "lib"), "deferred tax"]
    done = subprocess.run(words, capture_output=True, text=True, env=make_environment(folder), timeout=120)
    assert done.returncode == 0, done.stderr
    assert "deferred tax" in done.stdout
    assert "is twelve million" in done.stdout


def test_haystack_saves_and_loads_a_pipeline(folder):
    haystack = pytest.importorskip("haystack")
    pipeline = haystack.Pipeline()
    pipeline.add_component("pages", make("haystack", str(folder / "lib"), k=1))
    saved = pipeline.dumps()
    loaded = haystack.Pipeline.loads(saved, allowed_modules=["randslot.integrations.haystack"])
    (page,) = loaded.run({"pages": {"query": "cotton"}})["pages"]["documents"]
    assert page.meta["page"] == 2
    loaded.get_component("pages").close()


def test_a_missing_framework_is_one_line(framework):
    code = f"""
import sys
sys.modules[{FRAMEWORKS[framework]!r}] = sys.modules[{FRAMEWORKS[framework].partition(".")[0]!r}] = None
try:
    import randslot.integrations.{framework}
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"randslot[{framework}]" in done.stdout
    assert done.stdout.count("\n") == 1
