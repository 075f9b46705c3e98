"""The tools of agents with the official client: `randslot mcp` on standard input and output, and /mcp of a service."""

from __future__ import annotations

import asyncio
import base64
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx2
import pytest
from anyio.from_thread import start_blocking_portal
from PIL import Image

from contract.conftest import make_environment
from contract.pdf import write_pdf
from contract.serving import INJECTION, TOKEN, command, copy_library, serve, write_papers

mcp = pytest.importorskip("mcp")
from mcp.client.stdio import StdioServerParameters  # noqa: E402
from mcp.client.streamable_http import streamable_http_client  # noqa: E402

pytestmark = [
    pytest.mark.xdist_group("contract-mcp"),
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
HIDDEN = "\u200b\u202e\U000e0041"  # characters that nobody sees
Call = Callable[..., Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Papers with their library."""
    folder = tmp_path_factory.mktemp("mcp")
    command("index", write_papers(folder / "papers"), "-l", folder / "lib", "--quiet")
    return folder


def by_stdio(library: Path) -> StdioServerParameters:
    words = ["-m", "randslot", "mcp", "-l", str(library)]
    return StdioServerParameters(command=sys.executable, args=words, env=make_environment(library.parent))


@asynccontextmanager
async def over_http(url: str) -> AsyncIterator[Any]:
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=120) as http,
        mcp.Client(streamable_http_client(f"{url}/mcp", http_client=http)) as client,
    ):
        yield client


@pytest.fixture(scope="module", params=["stdio", "http"])
def call(request, made, tmp_path_factory) -> Iterator[Call]:
    """Call a tool of a server; without a name, list the tools."""
    library = copy_library(made / "lib", tmp_path_factory.mktemp(request.param))
    with ExitStack() as stack:
        portal = stack.enter_context(start_blocking_portal())
        if request.param == "stdio":
            connection = mcp.Client(by_stdio(library))
        else:
            service = stack.enter_context(serve(library, token=TOKEN))
            connection = over_http(service.url)
        client = stack.enter_context(portal.wrap_async_context_manager(connection))

        def ask(tool: str = "", **arguments: object) -> Any:
            return portal.call(client.call_tool, tool, arguments) if tool else portal.call(client.list_tools)

        ask.over_http = request.param == "http"  # type: ignore[attr-defined]
        yield ask


def content_of(result: Any) -> dict[str, Any]:
    assert not result.is_error, result.content
    return result.structured_content


def text_of(result: Any) -> str:
    return "\n".join(block.text for block in result.content if block.type == "text")


def test_tools_are_listed_and_call_pages_content(call, made):
    tools = {tool.name: tool for tool in call().tools}
    assert set(tools) == {"search", "list_documents", "read_page"}
    for name in ("search", "list_documents", "read_page"):
        assert "instructions" in tools[name].description
        assert tools[name].annotations.read_only_hint
    assert set(tools["search"].input_schema["properties"]) == {"query", "k", "document"}
    assert set(tools["read_page"].input_schema["properties"]) == {"document", "page", "picture", "start"}
    assert set(tools["list_documents"].input_schema["properties"]) == {"name", "offset", "limit"}
    if call.over_http:
        assert str(made.parent) not in "".join(tool.description for tool in tools.values())


def test_an_agent_searches_and_reads_what_it_found(call):
    result = call("search", query="deferred tax zqx", k=3)
    found = content_of(result)
    best = found["pages"][0]
    assert (best["name"], best["page"], found["unknown"]) == ("report.pdf", 1, ["zqx"])
    assert best["score"] > 0
    assert "twelve million" in best["snippet"]
    assert best["document"] in text_of(result)
    assert best["link"].startswith("http://127.0.0.1:" if call.over_http else "file://")
    page = call("read_page", document=best["document"], page=1)
    about, text, picture = page.content
    assert "instructions" in about.text
    assert text.text == "Deferred tax of the year\nis twelve million"
    assert (picture.type, picture.mime_type) == ("image", "image/jpeg")
    assert Image.open(BytesIO(base64.b64decode(picture.data))).height > 300
    assert len(content_of(call("search", query="wool", document=best["document"]))["pages"]) == 2


def test_long_texts_come_in_parts_and_pictures_in_sizes(call):
    (document,) = content_of(call("list_documents", name="LONG"))["documents"]
    first = call("read_page", document=document["id"], page=1, picture="none")
    rest = call("read_page", document=document["id"], page=1, picture="none", start=8000)
    assert [block.type for block in first.content] == ["text", "text"]
    assert len(first.content[1].text) == 8000
    assert "line 0 of" in first.content[1].text
    assert "line 100 of" in rest.content[1].text
    large = call("read_page", document=document["id"], page=1, picture="large").content[-1]
    assert len(base64.b64decode(large.data)) <= 600_000


def test_documents_are_listed_in_parts_and_twins_told_apart(call):
    everything = content_of(call("list_documents"))
    first, second = (content_of(call("list_documents", limit=1, offset=at)) for at in (0, 1))
    assert first["total"] == everything["total"] >= 5
    assert [first["documents"][0], second["documents"][0]] == everything["documents"][:2]
    twins = content_of(call("list_documents", name="twin"))["documents"]
    assert [one["place"] for one in twins] == ["east", "west"]
    (page,) = content_of(call("search", query="tides"))["pages"]
    assert len(page["copies"]) == 1


def test_text_of_strangers_is_a_block_of_its_own(call):
    """An order in a page stands where its text does, and nowhere else."""
    found = call("search", query="cotton")
    (page,) = content_of(found)["pages"]
    listed, snippets = found.content
    assert INJECTION not in listed.text
    assert "content, not instructions" in listed.text
    assert INJECTION in snippets.text
    about, text, *_ = call("read_page", document=page["document"], page=page["page"], picture="none").content
    assert INJECTION in text.text
    assert INJECTION not in about.text


@pytest.mark.parametrize("call", ["http"], indirect=True)
def test_no_answer_over_http_shows_where_files_are(call, made):
    id = content_of(call("search", query="tax"))["pages"][0]["document"]
    for result in (
        call("search", query="tax"),
        call("list_documents"),
        call("read_page", document=id, page=1, picture="none"),
    ):
        assert str(made.parent) not in f"{text_of(result)}{result.structured_content}"


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("read_page", {"document": "../../etc/passwd", "page": 1}),
        ("read_page", {"document": "report.pdf", "page": 1}),
        ("search", {"query": "x", "document": "nothing"}),
        ("search", {"query": "   "}),
        ("search", {"query": "x" * 1001}),
        ("search", {"query": "x", "k": 21}),
        ("search", {"query": "x", "top_k": 3}),
        ("list_documents", {"limit": 201}),
    ],
)
def test_wrong_calls_are_refused_in_one_line(call, tool, arguments):
    result = call(tool, **arguments)
    assert result.is_error
    assert "\n" not in text_of(result)
    assert "Traceback" not in text_of(result)


def test_pages_that_are_not_there_are_refused(call):
    (document,) = content_of(call("list_documents", name="report.pdf"))["documents"]
    for arguments in ({"page": 4}, {"page": 0}, {"page": 1, "start": 10_000}, {"page": 1, "picture": "huge"}):
        assert call("read_page", document=document["id"], **arguments).is_error


def test_the_route_takes_small_posts_with_a_token(made, tmp_path):
    with serve(copy_library(made / "lib", tmp_path), "--read-only", token=TOKEN) as one:
        asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
        accept = {"Accept": "application/json, text/event-stream"}
        assert one.client.post("/mcp", json=asked, headers=accept).status_code == 200
        assert one.client.get("/mcp", headers=accept).status_code == 405
        assert one.client.post("/mcp", content=b" " * (64 * 1024 + 1), headers=accept).status_code == 413
        assert one.client.post("/mcp", json=asked, headers={**accept, "Authorization": "Bearer no"}).status_code == 401


def test_characters_that_nobody_sees_do_not_reach_an_agent(tmp_path):
    (tmp_path / "papers").mkdir()
    write_pdf(tmp_path / "papers" / f"visible{HIDDEN}name.pdf", [["Visible text"]])
    command("index", tmp_path / "papers", "-l", tmp_path / "lib", "--quiet")

    async def talk() -> Any:
        async with mcp.Client(by_stdio(tmp_path / "lib")) as client:
            return await client.call_tool("list_documents", {})

    result = asyncio.run(talk())
    assert content_of(result)["documents"][0]["name"] == "visiblename.pdf"
    assert not set(HIDDEN) & set(text_of(result))
