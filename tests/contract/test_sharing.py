"""One library, several processes: commands, agents and a service that use it at the same time."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import randslot
from contract.conftest import make_environment
from contract.pdf import write_pdf
from contract.serving import RANDSLOT, command, serve

pytestmark = [
    pytest.mark.xdist_group("contract-sharing"),
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def found(library: Path, query: str) -> list[tuple[str, int]]:
    """Search by the command; return names and pages."""
    hits = json.loads(command("search", query, "-l", library, "--json"))
    return [(Path(hit["source"]).name, hit["page"]) for hit in hits]


def test_commands_print_the_same_with_and_without_a_service(library):
    commands = [
        ("search", "battery", "-l", library),
        ("search", "tax", "-l", library, "--json", "--explain"),
        ("search", "tax", "-l", library, "--filter", "page=1"),
        ("library", "list", "-l", library, "--json"),
        ("library", "status", "-l", library, "--json"),
        ("library", "verify", "-l", library),
    ]
    alone = [command(*words) for words in commands]
    with serve(library):
        assert [command(*words) for words in commands] == alone


@pytest.mark.parametrize("options", [(), ("--read-only",)])
def test_files_are_added_and_removed_through_a_service(library, tmp_path, options):
    """Also through one that is read-only for visitors: the owner may change it."""
    (tmp_path / "new").mkdir()
    write_pdf(tmp_path / "new" / "solar.pdf", [["Solar panels on the roof"]])
    with serve(library, *options) as one:
        command("index", tmp_path / "new", "-l", library, "--quiet")
        assert one.names("solar") == found(library, "solar") == [("solar.pdf", 1)]
        assert json.loads(command("library", "status", "-l", library, "--json"))["files"] == 5
        command("library", "remove", "solar.pdf", "-l", library, "--yes")
        assert one.names("solar") == found(library, "solar") == []
        (tmp_path / "new" / "solar.pdf").unlink()
        assert one.client.get("/api/status").json()["documents"] == 4
    assert found(library, "battery")


def test_errors_through_a_service_are_one_line(library, tmp_path):
    with serve(library):
        for words, code, offending in [
            (["search", "x", "-l", library, "--by", "vectors"], 2, "vectors"),
            (["library", "remove", "gone.pdf", "-l", library, "--yes"], 2, "gone.pdf"),
            (["index", tmp_path, "-l", library, "--model", "embedded"], 2, "model"),
        ]:
            error = command(*words, code=code)
            assert offending in error
            assert error.count("\n") == 1


def test_a_second_service_is_refused_and_copies_are_made_through_the_first(library, tmp_path):
    with serve(library) as one:
        error = command("serve", "-l", library, "--port", "0", code=1)
        assert str(one.process.pid) in error
        command("library", "copy", library, tmp_path / "copied")
        assert found(tmp_path / "copied", "tax") == found(library, "tax") == one.names("tax", collapse=True)


def test_a_library_that_a_program_has_open_is_refused_in_one_line(library):
    with randslot.Library(library) as opened:
        assert opened.search("tax")
        error = command("search", "tax", "-l", library, code=1)
        assert str(library) in error
        assert error.count("\n") == 1
    assert found(library, "tax")


def test_many_commands_at_once_all_answer(library):
    words = [*RANDSLOT, "search", "battery", "-l", str(library)]
    env = make_environment(library.parent)
    started = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env) for _ in range(4)]
    answers = [(*process.communicate(timeout=60), process.returncode) for process in started]
    assert [code for *_, code in answers] == [0] * 4, answers
    assert len({out for out, *_ in answers}) == 1


def test_a_killed_owner_frees_the_library(library, tmp_path):
    with serve(library) as one:
        before = one.names("battery", collapse=True)
        one.process.send_signal(signal.SIGKILL)
        one.process.wait(30)
        assert found(library, "battery") == before
    write_pdf(tmp_path / "solar.pdf", [["Solar panels on the roof"]])
    command("index", tmp_path / "solar.pdf", "-l", library, "--quiet")
    command("library", "verify", "-l", library)
    with serve(library) as one:
        assert one.names("solar") == [("solar.pdf", 1)]


def test_a_service_takes_over_from_an_agent_and_back(library):
    """The agent has the library open, then asks the service, and opens it again when the service is gone."""
    mcp = pytest.importorskip("mcp")
    from mcp.client.stdio import StdioServerParameters

    agent = StdioServerParameters(
        command=sys.executable, args=["-m", "randslot", "mcp", "-l", str(library)], env=make_environment(library.parent)
    )

    async def talk() -> list[Any]:
        answers = []
        async with mcp.Client(agent) as client, mcp.Client(agent) as second:
            answers.append(await client.call_tool("search", {"query": "deferred tax"}))
            answers.append(await second.call_tool("search", {"query": "deferred tax"}))
            assert await asyncio.to_thread(found, library, "deferred tax"), "a command asks the agent"
            with serve(library) as one:
                assert one.names("deferred tax")
                answers.append(await client.call_tool("search", {"query": "deferred tax"}))
                one.process.send_signal(signal.SIGKILL)
                one.process.wait(30)
            for _ in range(50):
                answer = await client.call_tool("search", {"query": "deferred tax"})
                if not answer.is_error:
                    break
                await asyncio.sleep(0.1)
            return [*answers, answer]

    pages = [answer.structured_content["pages"] for answer in asyncio.run(talk())]
    assert pages[0]
    assert pages.count(pages[0]) == 4
