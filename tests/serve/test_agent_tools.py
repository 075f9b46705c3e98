"""What the tools of agents answer, and /mcp of a service; tests/contract/test_mcp.py talks to them by the protocol."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from randslot.library.library import Library
from randslot.serve import agent_tools
from randslot.serve.access import Access
from support.models import noise
from support.pdf import write_drawings, write_pages
from support.services import TOKEN, client_of, serving

pytest.importorskip("mcp")
from randslot.serve.mcp_server import LocalTools, make_server

LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
HEADERS = {"Accept": "application/json, text/event-stream"}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A library of words."""
    folder = tmp_path_factory.mktemp("agents")
    (folder / "papers").mkdir()
    plain = "BT /F1 12 Tf 14 TL 50 550 Td (Deferred tax of the year) Tj T* (is twelve million) Tj ET"
    lines = [f"(line {number} of the small print {'word ' * 15}) Tj T*" for number in range(200)]
    write_drawings(folder / "papers" / "report.pdf", [plain, f"BT /F1 1 Tf 2 TL 20 590 Td {' '.join(lines)} ET"])
    noise(400, 300, 1).save(folder / "papers" / "photo.png")
    for name in ("east", "west"):
        (folder / "papers" / name).mkdir()
        write_pages(folder / "papers" / name / "twin.pdf", [["The tides turn"]])
    with Library(folder / "lib") as library:
        library.add(folder / "papers", workers=1)
    return folder


@pytest.fixture
def tools(place) -> Iterator[LocalTools]:
    with closing(LocalTools(str(place / "lib"))) as made:
        yield made


def find_id(tools: LocalTools, name: str) -> str:
    (document,) = tools.list_documents(name, 0, 50).documents
    return document.id


def test_a_search_says_what_it_did_not_find(tools):
    found = tools.search("deferred zqx", 5, None)
    assert ([page.name for page in found.pages], found.unknown, found.without_text) == (["report.pdf"], ["zqx"], 0)
    about, snippets = found.show()
    assert about.startswith("1. report.pdf, page 1 (document ")
    assert "\non no page: zqx\n" in about
    assert "twelve million" not in about
    assert snippets.startswith("1. Deferred tax of the year is twelve million")
    nothing = tools.search("zqx", 5, None)
    assert nothing.without_text == 1
    (about,) = nothing.show()
    assert about.startswith("no page was found\non no page: zqx\nkeyword search cannot find 1 page without text")


def test_a_page_whose_file_is_gone_keeps_its_text_and_shows_no_path(tools, place):
    west = place / "papers" / "west"
    os.rename(west, place / "gone")
    try:
        _, gone = tools.list_documents("twin", 0, 50).documents
        about, text, picture = tools.read_page(gone.id, 1, "small", 0, "")
    finally:
        os.rename(place / "gone", west)
    assert (text, picture) == ("The tides turn", None)
    assert "cannot be rendered" in about


def test_invisible_characters_do_not_reach_an_agent():
    hidden = "visible\u202e\U000e0041\U000e0042\u200b text\u200c\x07"
    assert agent_tools.clean(hidden) == "visible text\u200c"
    assert agent_tools.clean_line("two\nlines " + "x" * 50, 12) == "two lines x…"


def test_making_a_server_leaves_logging_alone(tools):
    before = logging.root.handlers[:], logging.root.level
    make_server(tools)
    assert (logging.root.handlers, logging.root.level) == before


def test_the_guard_stands_before_it(place):
    with serving(place / "lib", None) as service, client_of(service, Access(TOKEN)) as client:
        assert client.post("/mcp", json=LIST, headers=HEADERS).status_code == 401
        known = HEADERS | {"Authorization": f"Bearer {TOKEN}"}
        assert client.post("/mcp", json=LIST, headers=known).status_code == 200
        assert client.post("/mcp", json=LIST, headers=known | {"Origin": "https://evil.example"}).status_code == 403
    with serving(place / "lib", None) as service, client_of(service) as client:
        assert client.post("/mcp", json=LIST, headers=HEADERS | {"Host": "evil.example"}).status_code == 400


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ModuleNotFoundError("No module named 'mcp'", name="mcp"), 'pip install "randslot[mcp]"'),
        (ImportError("cannot import name 'x'"), "the package mcp does not work here: cannot import name 'x'"),
    ],
)
def test_a_missing_or_broken_package_breaks_only_this_address(place, monkeypatch, error, reason):
    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise error

    monkeypatch.setitem(sys.modules, "randslot.serve.mcp_server", Broken())
    with serving(place / "lib", None) as service, client_of(service) as client:
        answer = client.post("/mcp", json={})
        assert answer.status_code == 501
        assert reason in answer.json()["error"]
        assert client.post("/api/search", json={"query": "tax"}).status_code == 200


def test_a_service_does_not_import_mcp_before_an_agent_comes():
    code = "import sys, randslot.serve.app; print('mcp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
