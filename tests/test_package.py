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

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "randslot"

# Imports point up this list only, wherever they stand in a file.
ORDER = [
    "errors",
    "moved",
    "machine",
    "tables",
    "samples.words",
    "samples.reports",
    "samples.drawing",
    "samples.sets",
    "pages",
    "model.slots",
    "model.reductions",
    "model.hub",
    "model.backbone",
    "model.readout",
    "model.card",
    "model.checkpoint",
    "model.encoder",
    "encoder",
    "model.model",
    "model.export",
    "model.remote_model",
    "library.stores.store",
    "library.stores.memory",
    "library.stores.edge",
    "library.manifest",
    "library.location",
    "library.address",
    "library.records",
    "library.stores.server",
    "library.binding",
    "library.sources",
    "library.folder",
    "library.reading.worker",
    "library.reading.workers",
    "library.reading.ray_tasks",
    "library.reading.local",
    "library.reading.ray",
    "library.ingest",
    "library.library",
    "library.copy",
    "library.show",
    "library.commands",
    "serve.limits",
    "serve.guard",
    "serve.searches",
    "serve.uploads",
    "serve.service",
    "serve.app",
    "serve.listen",
    "demo",
    "lab.evaluation.metrics",
    "lab.evaluation.published",
    "lab.evaluation.vectors",
    "lab.evaluation.judged",
    "lab.evaluation.tasks",
    "lab.evaluation.evaluate",
    "lab.evaluation.report",
    "figures",
    "lab.analysis.runs",
    "lab.analysis.views",
    "lab.analysis.compare",
    "lab.analysis.budgets",
    "lab.analysis.winners",
    "lab.analysis.readouts",
    "lab.analysis.cost",
    "lab.analysis.profile",
    "lab.analysis.report",
    "training.recipe",
    "training.pairs",
    "training.arguments",
    "training.outlines",
    "training.loss",
    "training.reading_loss",
    "training.still_vision",
    "training.watch",
    "training.train",
    "lab.study.plan",
    "lab.study.rows",
    "lab.study.work",
    "lab.study.measures",
    "lab.study.claims",
    "lab.study.report",
    "lab.study.conduct",
    "cli",
    "__main__",
]


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
        "remote",
        "tiny",
        "train",
        "untrained",
    ]
    for name in randslot.__all__:
        assert getattr(randslot, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        _ = randslot.lode


def imports(name: str, file: Path) -> set[str]:
    """Return the files of ours that one imports, at its top or inside its functions."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            package = name.split(".")[: -node.level]
            found.add(".".join([*package, *(node.module or "__init__").split(".")]))
    return found - {"__init__"}


def test_every_file_has_its_place_and_imports_point_one_way():
    files = {".".join(file.relative_to(SOURCE).with_suffix("").parts): file for file in SOURCE.rglob("*.py")}
    files = {name: file for name, file in files.items() if not name.endswith("__init__")}
    assert set(files) == set(ORDER)
    for name, file in files.items():
        for imported in imports(name, file):
            assert ORDER.index(imported) < ORDER.index(name), f"{name} imports {imported}"


def test_only_one_file_knows_the_backbones_by_name():
    """In code: examples in docstrings and the texts of errors may name them."""
    for file in SOURCE.rglob("*.py"):
        code = ast.parse(file.read_text(encoding="utf-8"))
        names = [node.id for node in ast.walk(code) if isinstance(node, ast.Name)]
        names += [node.attr for node in ast.walk(code) if isinstance(node, ast.Attribute)]
        names += [alias.name for node in ast.walk(code) if isinstance(node, ast.ImportFrom) for alias in node.names]
        if file.stem != "backbone":
            assert not [name for name in names if "qwen" in name.lower()], file


@pytest.mark.parametrize(
    ("package", "home"),
    [
        ("qdrant_edge", "library.stores.edge"),
        ("qdrant_client", "library.stores.server"),
        ("ray", "library.reading.ray"),
        ("numkong", "library.stores.memory"),
        ("fastapi", "serve.app"),
        ("uvicorn", "serve.listen"),
    ],
)
def test_only_one_file_knows_an_engine(package, home):
    for file in SOURCE.rglob("*.py"):
        code = ast.parse(file.read_text(encoding="utf-8"))
        imported = [alias.name for node in ast.walk(code) if isinstance(node, ast.Import) for alias in node.names]
        imported += [node.module for node in ast.walk(code) if isinstance(node, ast.ImportFrom) and node.module]
        name = ".".join(file.relative_to(SOURCE).with_suffix("").parts)
        assert (package in imported) == (name == home), file


def test_importing_the_package_loads_nothing_heavy():
    code = "import sys, randslot; print([m for m in ('torch', 'transformers', 'PIL') if m in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_what_runs_on_every_core_of_a_cluster_is_light():
    heavy = "[m for m in ('torch', 'transformers') if m in sys.modules]"
    code = f"import sys, randslot.library.reading.ray_tasks; print({heavy})"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def python_blocks(file: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", file.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize(
    "name", ["../README", "guide", "training", "embedded", "evaluation", "analysis", "library", "serving"]
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


def test_tables_in_the_docs_are_what_the_results_say():
    subprocess.run([sys.executable, str(ROOT / "benchmarks" / "tables.py"), "--check"], check=True)
