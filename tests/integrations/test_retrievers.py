"""What retrievers do beyond tests/contract/test_integrations.py."""

from __future__ import annotations

import asyncio
import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from randslot.errors import UsageError
from randslot.integrations.pages import PICTURE_BYTES, Finder, encode_picture, read_picture
from randslot.library.library import Library
from support.pdf import write_pages

pytestmark = [pytest.mark.xdist_group("retrievers"), pytest.mark.filterwarnings("ignore")]
ROOT = Path(__file__).parents[2]
FRAMEWORKS = {"langchain": "langchain_core", "llamaindex": "llama_index.core", "haystack": "haystack"}


@pytest.fixture(scope="module")
def lib(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("retrievers")
    for name in ("report.pdf", "same.pdf"):
        write_pages(folder / name, [["Deferred tax of the year", "is twelve million"], ["Wool and cotton"]])
    with Library(folder / "lib") as library:
        library.add(folder, workers=1, metadata={"year": 2023, "score": "of the user"})
    return str(folder / "lib")


@pytest.fixture(params=FRAMEWORKS)
def framework(request) -> str:
    pytest.importorskip(FRAMEWORKS[request.param])
    return request.param


def make(framework: str, library: Any, **options: Any) -> Any:
    return importlib.import_module(f"randslot.integrations.{framework}").RandSlotRetriever(library=library, **options)


def test_identical_pages_are_one_and_our_metadata_wins(lib):
    finder = Finder(lib)
    ((text, metadata),) = finder.find("deferred")
    assert "twelve million" in text
    assert metadata["score"] > 0
    assert metadata["year"] == 2023
    assert len(read_picture(metadata)) <= PICTURE_BYTES
    assert encode_picture(metadata, 10_000).startswith("/9j/")
    assert finder.find("wool", 1, {"page": 1}) == []
    finder.close()


def test_wrong_values_are_refused(lib):
    with pytest.raises(UsageError, match="k must be from 1 to 1,000,000, not 0"):
        Finder(lib, 0).find("tax")
    with pytest.raises(UsageError, match="vibes"):
        Finder(lib, by="vibes").find("tax")
    for filters in ({"field": "meta.page", "operator": "==", "value": 1}, {"operator": "AND", "conditions": []}):
        with pytest.raises(UsageError, match="operators are not supported"):
            Finder(lib, filters=filters).find("tax")


def test_a_misspelled_option_is_refused(framework, lib):
    with pytest.raises((ValueError, TypeError), match="picture"):
        make(framework, lib, picture=True)


def test_many_tasks_may_ask_one_retriever(framework, lib):
    retriever = make(framework, lib)

    async def ask() -> list:
        one = {"langchain": "ainvoke", "llamaindex": "aretrieve"}.get(framework)
        calls = [getattr(retriever, one)("tax") if one else retriever.run_async(query="tax") for _ in range(8)]
        return await asyncio.gather(*calls)

    assert len(asyncio.run(ask())) == 8
    retriever.close()


def test_haystack_takes_filters_of_a_run(lib):
    pytest.importorskip("haystack")
    retriever = make("haystack", lib, filters={"page": 2})
    assert retriever.run(query="tax")["documents"] == []
    (page,) = retriever.run(query="tax", filters={"page": 1})["documents"]
    assert page.meta["page"] == 1
    retriever.close()


def test_a_language_model_sees_the_page_and_not_our_bookkeeping(lib):
    schema = pytest.importorskip("llama_index.core.schema")
    retriever = make("llamaindex", lib)
    shown = retriever.retrieve("deferred tax")[0].node.get_content(schema.MetadataMode.LLM)
    retriever.close()
    assert "page: 1" in shown
    assert "snippet" not in shown


def test_a_broken_framework_raises_its_own_error_and_breaks_nothing_else(tmp_path):
    (tmp_path / "haystack.py").write_text("raise TypeError('metaclass conflict')")
    script = (
        "import randslot, randslot.cli, randslot.library.library, randslot.integrations.pages\n"
        "try:\n"
        "    import randslot.integrations.haystack\n"
        "except TypeError as error:\n"
        "    print(error)\n"
    )
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", ""), str(ROOT / "src")])
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == "metaclass conflict\n"


def test_neither_the_package_nor_its_commands_import_a_framework():
    names = ("langchain_core", "llama_index", "haystack", "mcp", "pydantic")
    code = f"import sys, randslot, randslot.cli; print([name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_example_says_how_it_is_run():
    pytest.importorskip("langchain_core")
    command = [sys.executable, str(ROOT / "examples" / "langchain_pages.py")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "python examples/langchain_pages.py mylib" in done.stderr
    assert "Traceback" not in done.stderr
