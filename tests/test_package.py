"""The shape of the project: import direction, few files that know an engine, tables that match their rows."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "randslot"


def find_modules() -> dict[str, Path]:
    modules = {}
    for file in SOURCE.rglob("*.py"):
        if file.name != "__init__.py":
            modules[".".join(file.relative_to(SOURCE).with_suffix("").parts)] = file
    return modules


# Each room may import those before it, and no other.
ROOMS = (
    "",
    "pages",
    "words",
    "model",
    "library",
    "integrations",
    "serve",
    "training",
    "evaluation",
    "commands",
)


def test_imports_point_one_way():
    for name, file in find_modules().items():
        room = name.rpartition(".")[0].partition(".")[0]
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if room and isinstance(node, ast.ImportFrom) and node.level:
                target = ".".join([*name.split(".")[: -node.level], node.module or ""]).partition(".")[0]
                other = target if target in ROOMS else ""
                assert ROOMS.index(other) <= ROOMS.index(room), f"{name} imports {target}"


def test_few_files_know_an_engine():
    homes = {
        "qdrant_edge": {"library.stores.edge"},
        "qdrant_client": {
            "library.stores.qdrant_connection",
            "library.stores.qdrant_records",
            "library.stores.qdrant",
        },
        "rapidocr": {"pages.ocr"},
        "ray": {"library.ray_reader"},
        "fastapi": {"serve.app", "serve.documents", "serve.embeddings", "serve.searches"},
        "uvicorn": {"serve.run"},
        "mcp.server.mcpserver": {"serve.mcp_server"},
        "langchain_core.retrievers": {"integrations.langchain"},
        "llama_index.core.schema": {"integrations.llamaindex"},
        "haystack": {"integrations.haystack"},
    }
    found: dict[str, set[str]] = {package: set() for package in homes}
    for name, file in find_modules().items():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                imported.append(node.module)
            for package in homes.keys() & set(imported):
                found[package].add(name)
    assert found == homes


def test_what_runs_on_every_core_of_a_cluster_is_light():
    heavy = "[m for m in ('torch', 'transformers') if m in sys.modules]"
    code = f"import sys, randslot.library.ray_reader; print({heavy})"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_the_compose_file_starts_three_nodes_that_know_each_other():
    compose = yaml.safe_load((ROOT / "docs" / "qdrant-cluster.yaml").read_text(encoding="utf-8"))
    nodes = compose["services"]
    assert len(nodes) == 3
    for name, node in nodes.items():
        options = dict(zip(node["command"][1::2], node["command"][2::2], strict=True))
        assert options["--uri"] == f"http://{name}:6335"
        first = options.get("--bootstrap", options["--uri"])
        assert first == "http://qdrant-1:6335"
        assert node["environment"]["QDRANT__CLUSTER__ENABLED"] == "true"
        assert "QDRANT_API_KEY" in node["environment"]["QDRANT__SERVICE__API_KEY"]
        assert all(port.startswith("127.0.0.1:") for port in node["ports"])
        (volume,) = node["volumes"]
        assert volume.split(":")[0] in compose["volumes"]
    ports = [port.split(":")[1] for node in nodes.values() for port in node["ports"]]
    volumes = [node["volumes"][0] for node in nodes.values()]
    assert len(set(ports)) == len(ports)
    assert len(set(volumes)) == 3


@pytest.mark.slow
def test_tables_in_the_docs_are_what_the_results_say():
    subprocess.run([sys.executable, str(ROOT / "benchmarks" / "tables.py"), "--check"], check=True)
