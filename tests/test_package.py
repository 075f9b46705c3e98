"""The shape of the project: public names, import direction, documentation that runs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import randslot
from randslot.model.reductions import REDUCTIONS
from randslot.model.slots import STRATEGIES

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "randslot"


def read_order() -> list[str]:
    """Return the modules in the order of the tables of the architecture page: imports point up them only."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    tables = page[page.index("## Files") : page.index("## Decisions")]
    order = []
    for line in tables.splitlines():
        first_cell = line.removeprefix("|").partition("|")[0]
        for file in re.findall(r"`([\w/]+)\.py`", first_cell):
            order.append(file.replace("/", "."))
    return order


def test_public_names():
    assert randslot.__all__ == [
        "Library",
        "RandSlotError",
        "Recipe",
        "Settings",
        "SlotEncoder",
        "UsageError",
        "__version__",
        "load",
        "open_model",
        "remote",
        "tiny",
        "train",
        "untrained",
    ]
    for name in randslot.__all__:
        assert getattr(randslot, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        _ = randslot.lode


def find_modules() -> dict[str, Path]:
    modules = {}
    for file in SOURCE.rglob("*.py"):
        if file.name != "__init__.py":
            modules[".".join(file.relative_to(SOURCE).with_suffix("").parts)] = file
    return modules


def imports(name: str, file: Path, modules: dict[str, Path]) -> set[str]:
    """Return the modules of ours that one imports, at its top or inside its functions; a package is its last one."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        parts = name.split(".")[: -node.level] + (node.module.split(".") if node.module else [])
        target = ".".join(parts)
        if target in modules:
            found.add(target)
        for alias in node.names:
            inner = ".".join([*parts, alias.name])
            if inner in modules:
                found.add(inner)
    return found


def test_every_file_has_its_place_and_imports_point_one_way():
    modules, order = find_modules(), read_order()
    assert sorted(modules) == sorted(order)
    for name, file in modules.items():
        for imported in imports(name, file, modules):
            assert order.index(imported) < order.index(name), f"{name} imports {imported}"


def test_packages_import_their_own_files_only():
    """So that importing a package instead of its files cannot hide a wrong direction."""
    for file in SOURCE.rglob("__init__.py"):
        if file.parent == SOURCE:
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level > 1:
                assert node.module in ("errors", "extras"), file


@pytest.mark.slow
def test_nothing_outside_the_model_package_looks_behind_its_face():
    """No inner module, no pixel keys, no family names: `RandSlotModel` and `PageReader` say all."""
    behind = re.compile(r"model\[0\]|pixel_values|image_grid_thw|qwen|isinstance\([^)]*SlotEncoder", re.IGNORECASE)
    for name, file in find_modules().items():
        if name.startswith(("model.", "encoder")):
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and ast.get_docstring(node):
                node.body[0] = ast.Pass()  # an example in a docstring may name a model
        found = behind.search(ast.unparse(tree))
        assert not found, f"{name}: {found}"


@pytest.mark.slow
def test_only_the_families_know_themselves_by_name():
    """In code: examples in docstrings and the texts of errors may name them."""
    for name, file in find_modules().items():
        code = ast.parse(file.read_text(encoding="utf-8"))
        names = [node.id for node in ast.walk(code) if isinstance(node, ast.Name)]
        names += [node.attr for node in ast.walk(code) if isinstance(node, ast.Attribute)]
        names += [alias.name for node in ast.walk(code) if isinstance(node, ast.ImportFrom) for alias in node.names]
        if not name.startswith("model.families."):
            assert not [found for found in names if "qwen" in found.lower()], file


def test_no_list_of_strategies_stands_outside_the_model_package():
    """Two names of strategies in one tuple, list, set or dictionary are a list; the paper's claims name some."""
    for name, file in find_modules().items():
        if name.startswith("model."):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            items = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [])
            values = [item.value for item in items if isinstance(item, ast.Constant)]
            named = [value for value in values if value in STRATEGIES and value not in REDUCTIONS]
            assert len(named) < 2, f"{name}, line {node.lineno}: {named}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "home"),
    [
        ("qdrant_edge", "library.stores.edge"),
        ("qdrant_client", ("library.stores.connection", "library.stores.server", "library.stores.server_location")),
        ("rapidocr", "pages.ocr"),
        ("ray", "library.reading.ray"),
        ("fastapi", ("serve.app", "serve.embedding_routes")),
        ("uvicorn", "serve.listen"),
        ("mcp.server.mcpserver", "agents.mcp_server"),
        ("langchain_core.retrievers", "integrations.langchain"),
        ("llama_index.core.schema", "integrations.llamaindex"),
        ("haystack", "integrations.haystack"),
    ],
)
def test_few_files_know_an_engine(package, home):
    homes = (home,) if isinstance(home, str) else home
    for file in SOURCE.rglob("*.py"):
        code = ast.parse(file.read_text(encoding="utf-8"))
        imported = [alias.name for node in ast.walk(code) if isinstance(node, ast.Import) for alias in node.names]
        imported += [node.module for node in ast.walk(code) if isinstance(node, ast.ImportFrom) and node.module]
        name = ".".join(file.relative_to(SOURCE).with_suffix("").parts)
        assert (package in imported) == (name in homes), file


def test_importing_the_package_loads_nothing_heavy():
    code = "import sys, randslot; print([m for m in ('torch', 'transformers', 'PIL') if m in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_what_runs_on_every_core_of_a_cluster_is_light():
    heavy = "[m for m in ('torch', 'transformers') if m in sys.modules]"
    code = f"import sys, randslot.library.ray; print({heavy})"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def python_blocks(file: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", file.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["../README", "guide", "training", "evaluation", "analysis", "library", "export", "agents", "light"],
)
def test_the_examples_in_the_docs_run(name, tmp_path, monkeypatch):
    """Each file's blocks run in order; a block that needs the hub or a server says so in its first line."""
    from support.models import noise

    monkeypatch.chdir(tmp_path)
    noise(100, 140).save("page.png")
    names: dict[str, object] = {}
    file = ROOT / "docs" / f"{name}.md"
    blocks = [block for block in python_blocks(file) if not block.startswith(("# needs the hub", "# needs a server"))]
    assert blocks
    for block in blocks:
        exec(compile(block, str(file), "exec"), names)


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
