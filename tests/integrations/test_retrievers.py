"""Retrievers against the real frameworks: pages with text, source, page, score and picture, sync and async."""

from __future__ import annotations

import asyncio
import base64
import importlib
import os
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from randslot.errors import RandSlotError, UsageError
from randslot.integrations.pages import PICTURE_BYTES, Finder, read_picture
from randslot.library.library import Library
from randslot.library.sharing import LibraryServer
from support.pdf import write_pages

pytestmark = [pytest.mark.xdist_group("retrievers"), pytest.mark.filterwarnings("ignore")]
ROOT = Path(__file__).parents[2]
FRAMEWORKS = {"langchain": "langchain_core", "llamaindex": "llama_index.core", "haystack": "haystack"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("retrievers")
    pages = [["Deferred tax of the year", "is twelve million"], ["Wool and cotton"], ["Tax on wool"]]
    write_pages(folder / "report.pdf", pages)
    with Library(folder / "lib") as library:
        library.add(folder / "report.pdf", workers=1, metadata={"year": 2023, "score": "of the user"})
    return folder


@pytest.fixture
def lib(folder) -> str:
    return str(folder / "lib")


class Asked:
    """What each framework gives, in one form: (id, text, metadata, score, picture) of each page."""

    @staticmethod
    def langchain(retriever: Any, query: str, wait: bool) -> list[tuple]:
        found = asyncio.run(retriever.ainvoke(query)) if wait else retriever.invoke(query)
        pages = []
        for page in found:
            picture = page.metadata.get("picture")
            decoded = base64.b64decode(picture) if picture else None
            pages.append((page.id, page.page_content, page.metadata, page.metadata["score"], decoded))
        return pages

    @staticmethod
    def llamaindex(retriever: Any, query: str, wait: bool) -> list[tuple]:
        found = asyncio.run(retriever.aretrieve(query)) if wait else retriever.retrieve(query)
        pages = []
        for one in found:
            picture = getattr(one.node, "image", None)
            decoded = base64.b64decode(picture) if picture else None
            pages.append((one.node.node_id, one.node.text, one.node.metadata, one.score, decoded))
        return pages

    @staticmethod
    def haystack(retriever: Any, query: str, wait: bool) -> list[tuple]:
        found = asyncio.run(retriever.run_async(query=query)) if wait else retriever.run(query=query)
        pages = []
        for page in found["documents"]:
            pages.append((page.id, page.content, page.meta, page.score, page.blob and page.blob.data))
        return pages


@pytest.fixture(params=FRAMEWORKS)
def framework(request) -> str:
    pytest.importorskip(FRAMEWORKS[request.param])
    return request.param


def make(framework: str, library: Any, **options: Any) -> Any:
    retriever = importlib.import_module(f"randslot.integrations.{framework}").RandSlotRetriever
    if framework == "haystack" and "k" in options:
        options["top_k"] = options.pop("k")
    return retriever(library=library, **options)


@pytest.mark.parametrize("wait", [False, True], ids=["sync", "async"])
def test_pages_have_text_source_page_and_score(framework, lib, folder, wait):
    retriever = make(framework, lib, k=2, by="words")
    pages = getattr(Asked, framework)(retriever, "deferred tax", wait)
    retriever.close()
    with Library(lib) as library:
        hits = library.search("deferred tax", 2, by="words")
    assert [page[0] for page in pages] == [hit.id for hit in hits]
    _, text, metadata, score, picture = pages[0]
    assert text == "Deferred tax of the year\nis twelve million"
    assert (metadata["source"], metadata["page"], metadata["year"]) == (str(folder / "report.pdf"), 1, 2023)
    assert "twelve million" in metadata["snippet"]
    assert score == hits[0].score
    assert picture is None, "drawn when it is asked for"
    with Image.open(BytesIO(read_picture(metadata))) as image:
        assert image.format == "JPEG"


def test_pictures_come_with_the_pages_on_request(framework, lib):
    retriever = make(framework, lib, pictures=True)
    pages = getattr(Asked, framework)(retriever, "wool", True)
    retriever.close()
    assert len(pages) == 2
    for *_, picture in pages:
        assert len(picture) <= PICTURE_BYTES
        with Image.open(BytesIO(picture)) as image:
            assert image.width > 500


def test_filters_count(framework, lib):
    retriever = make(framework, lib, filters={"page": 3})
    pages = getattr(Asked, framework)(retriever, "wool", False)
    assert [page[2]["page"] for page in pages] == [3]
    retriever.close()
    retriever = make(framework, lib, filters={"year": 1999})
    assert getattr(Asked, framework)(retriever, "wool", False) == []
    retriever.close()


def test_an_open_library_and_one_that_is_served_are_used(framework, lib):
    with Library(lib) as library:
        retriever = make(framework, library)
        expected = [page[0] for page in getattr(Asked, framework)(retriever, "tax", False)]
        retriever.close()
        assert library.search("tax"), "it stays open"
        with LibraryServer(library):
            retriever = make(framework, lib)
            assert [page[0] for page in getattr(Asked, framework)(retriever, "tax", False)] == expected


def test_many_threads_may_ask_one_retriever(framework, lib):
    retriever = make(framework, lib)

    async def ask() -> list:
        one = {"langchain": "ainvoke", "llamaindex": "aretrieve"}.get(framework)
        calls = [getattr(retriever, one)("tax") if one else retriever.run_async(query="tax") for _ in range(8)]
        return await asyncio.gather(*calls)

    assert len(asyncio.run(ask())) == 8
    retriever.close()


def test_wrong_values_are_told_in_one_line(lib, tmp_path):
    with pytest.raises(UsageError, match="k must be at least 1, not 0"):
        Finder(lib, 0)
    with pytest.raises(UsageError, match="by='vibes' is not one of words, vectors, both"):
        Finder(lib, by="vibes")
    with pytest.raises(RandSlotError, match="no library at"):
        Finder(tmp_path / "nowhere").find("tax")
    assert not (tmp_path / "nowhere").exists()
    for filters in ({"field": "meta.page", "operator": "==", "value": 1}, {"operator": "AND", "conditions": []}):
        with pytest.raises(UsageError, match="filters are names and values"):
            Finder(lib, filters=filters).find("tax")


def test_an_option_that_is_misspelled_is_refused(framework, lib):
    with pytest.raises((ValueError, TypeError), match="picture"):
        make(framework, lib, picture=True)


def test_a_page_that_is_there_twice_is_returned_once(framework, tmp_path):
    files = [tmp_path / "a.pdf", tmp_path / "b.pdf"]
    for file in files:
        write_pages(file, [["Wool and cotton"]])
    with Library(tmp_path / "lib") as library:
        library.add(files, workers=1)
        (page,) = getattr(Asked, framework)(make(framework, library), "wool", False)
    assert page[1] == "Wool and cotton"


def test_a_haystack_pipeline_is_saved_and_loaded(lib):
    haystack = pytest.importorskip("haystack")
    retriever = make("haystack", lib, k=1, filters={"page": 3})
    pipeline = haystack.Pipeline()
    pipeline.add_component("retriever", retriever)
    again = haystack.Pipeline.loads(pipeline.dumps(), allowed_modules=["randslot.integrations.haystack"])
    (page,) = again.run({"retriever": {"query": "wool"}})["retriever"]["documents"]
    assert page.meta["page"] == 3
    (page,) = again.run({"retriever": {"query": "tax", "filters": {"page": 1}}})["retriever"]["documents"]
    assert page.meta["page"] == 1
    again.get_component("retriever").close()
    with Library(lib) as library, pytest.raises(UsageError, match="give the retriever a folder or address"):
        make("haystack", library).to_dict()


def test_a_language_model_sees_the_page_and_not_our_bookkeeping(lib):
    schema = pytest.importorskip("llama_index.core.schema")
    retriever = make("llamaindex", lib)
    node = retriever.retrieve("deferred tax")[0].node
    retriever.close()
    shown = node.get_content(schema.MetadataMode.LLM)
    assert "page: 1" in shown
    assert "snippet" not in shown
    assert lib not in shown


@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("raise ModuleNotFoundError(\"No module named 'x'\", name='x')", 'pip install "randslot[{}]"'),
        ("raise TypeError('metaclass conflict')", "does not work here: TypeError: metaclass conflict"),
    ],
    ids=["missing", "broken"],
)
def test_a_missing_or_broken_framework_is_one_line_and_breaks_nothing_else(name, code, line, tmp_path):
    package = tmp_path / FRAMEWORKS[name].partition(".")[0]
    package.mkdir()
    (package / "__init__.py").write_text(code)
    script = (
        "import randslot, randslot.cli, randslot.library.library, randslot.integrations.pages\n"
        "try:\n"
        f"    import randslot.integrations.{name}\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", ""), str(ROOT / "src")])
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths}
    )
    assert done.returncode == 0, done.stderr
    assert line.format(name) in done.stdout
    assert done.stdout.count("\n") == 1


def test_neither_the_package_nor_its_commands_import_a_framework():
    names = ("langchain_core", "llama_index", "haystack", "mcp", "pydantic")
    code = f"import sys, randslot, randslot.cli; print([name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_examples_run(name, lib):
    """As a reader runs them: from a question to a prompt that holds the text and the pictures of pages."""
    pytest.importorskip(FRAMEWORKS[name])
    command = [sys.executable, str(ROOT / "examples" / f"{name}_pages.py"), lib, "deferred tax"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("deferred tax\n")
    assert "report.pdf, page 1:\nDeferred tax of the year" in done.stdout
    assert done.stdout.count("[picture, ") == 2


def test_an_example_says_how_it_is_run():
    pytest.importorskip("langchain_core")
    command = [sys.executable, str(ROOT / "examples" / "langchain_pages.py")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "python examples/langchain_pages.py mylib" in done.stderr
    assert "Traceback" not in done.stderr
