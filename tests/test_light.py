"""The light install: words, PDFs and the library without the packages of models, and one line where they are needed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from packaging.requirements import Requirement

from randslot.extras import EXTRAS
from randslot.library.library import Library
from support.environments import need_index
from support.libraries import ToyReader
from support.pdf import write_pages

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# What needs a model, and the extra that has all of it. FILE is a PDF, and OUT a place that is not there.
COMMANDS = {
    "index FILE -l OUT --model embedded": "model",
    "index FILE -l OUT --model embedded --page-vectors 2": "model",
    "export embedded OUT": "model",
    "profile embedded": "model",
    "train tiny -o OUT": "train",
    "train qwen2.5-vl-3b --dry-run": "train",
    "distill embedded -o OUT --student tiny --queries FILE": "train",
    "evaluate embedded --tasks arxiv": "evaluate",
    "compare words embedded --data OUT": "evaluate",
}


def test_every_package_of_an_extra_is_known_by_its_module():
    """So that the one line names the right extra. What frameworks need is said by their adapters."""
    modules = {"huggingface-hub": "huggingface_hub", "scikit-learn": "sklearn", "qdrant-client": "qdrant_client"}
    for extra in ("model", "train", "evaluate", "qdrant", "ray", "serve", "mcp"):
        for line in PROJECT["optional-dependencies"][extra]:
            name = Requirement(line).name
            module = modules.get(name, name.replace("-", "_"))
            if name != "randslot" and module not in ("matplotlib", "datasets"):  # in two of them
                assert EXTRAS[module] == extra


@pytest.fixture(scope="module")
def shadows(tmp_path_factory) -> Path:
    """A folder that hides the packages of models."""
    folder = tmp_path_factory.mktemp("shadows")
    for name, extra in EXTRAS.items():
        if extra == "model":
            (folder / f"{name}.py").write_text(
                f'raise ModuleNotFoundError("No module named {name!r}", name="{name}")\n'
            )
    return folder


class Light:
    """Runs Python and the command line in a folder of its own, where no package of models is found."""

    def __init__(self, folder: Path, python: str, paths: Sequence[Path] = ()) -> None:
        self.folder, self.python = folder, python
        self.file = folder / "report.pdf"
        write_pages(self.file, [["Wool and cotton"], ["Deferred tax is twelve million"]])
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "RANDSLOT_OCR": "none"}

    def start(self, *words: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [self.python, *words], stdout=pipe, stderr=pipe, text=True, cwd=self.folder, env=self.environment
        )

    def run_python(self, *words: str) -> tuple[int, str, str]:
        process = self.start(*words)
        said, error = process.communicate(timeout=300)
        return process.returncode, said, error

    def run(self, *words: str) -> tuple[int, str, str]:
        return self.run_python("-m", "randslot", *words)

    def check_refused(self, command: str, extra: str) -> None:
        """A command says what is missing in one line, and leaves nothing behind."""
        before = sorted(self.folder.iterdir())
        words = [{"FILE": str(self.file), "OUT": "out"}.get(word, word) for word in command.split()]
        code, said, error = self.run(*words)
        assert (code, said) == (1, "")
        assert error.startswith("randslot: ")
        assert error.endswith(f': pip install "randslot[{extra}]"\n')
        assert error.count("\n") == 1
        assert sorted(self.folder.iterdir()) == before


@pytest.fixture
def light(tmp_path, shadows) -> Light:
    (tmp_path / "light").mkdir()
    return Light(tmp_path / "light", sys.executable, [shadows, ROOT / "src"])


@pytest.mark.parametrize(
    "command", ["index FILE -l OUT --model embedded", "train tiny -o OUT", "evaluate embedded --tasks arxiv"]
)
def test_a_command_that_needs_a_model_says_so_in_one_line(light, command):
    light.check_refused(command, COMMANDS[command])


def test_pages_are_found_by_words(light):
    assert "1 added" in light.run("index", str(light.file), "-l", "lib")[1]
    code, said, error = light.run("search", "deferred", "tax", "-l", "lib", "-k", "1", "--json")
    assert (code, error) == (0, "")
    assert json.loads(said)[0]["page"] == 2


def test_python_imports_the_package_and_says_what_a_model_needs(light):
    code = (
        "import randslot\n"
        "from randslot import Library, RandSlotError, UsageError\n"
        "for name in ('load', 'tiny', 'remote', 'open_model', 'SlotEncoder', 'Settings', 'train', 'Recipe'):\n"
        "    try:\n"
        "        found = getattr(randslot, name)\n"
        "        if name == 'open_model':  # the small reader needs none of it\n"
        "            found('embedded')\n"
        "    except RandSlotError as error:\n"
        "        assert isinstance(error, ImportError), error\n"
        "        print(name, error)\n"
    )
    code, said, error = light.run_python("-c", code)
    assert (code, error) == (0, "")
    lines = dict(line.split(" ", 1) for line in said.splitlines())
    assert len(lines) == 8
    assert lines.pop("train") == 'this needs torch: pip install "randslot[train]"'
    assert lines.pop("Recipe") == 'this needs huggingface_hub: pip install "randslot[train]"'
    assert set(lines.values()) == {'models need torch: pip install "randslot[model]"'}


@pytest.fixture
def bound(light) -> Light:
    """With a library "lib" that belongs to a model."""
    with Library(light.folder / "lib", ToyReader()) as library:
        library.add(light.file, workers=1)
    file = light.folder / "lib" / "library.json"
    about = json.loads(file.read_text())
    about["model"]["name"] = "runs/toy"  # as if it had been loaded from there
    file.write_text(json.dumps(about))
    return light


BOUND = (
    "library lib needs runs/toy (weights toy), and models need torch: "
    'pip install "randslot[model]"; --by words searches without a model\n'
)


def test_a_library_of_a_model_is_searched_by_words_and_nothing_of_it_is_lost(bound):
    other = bound.folder / "other.pdf"
    write_pages(other, [["The other report"]])
    commands = [
        ("search", "tax"),
        ("search", "tax", "--by", "vectors"),
        ("index", str(other)),
        ("serve", "--port", "0"),
    ]
    for command in commands:
        assert bound.run(*command, "-l", "lib") == (1, "", f"randslot: {BOUND}"), command
    assert json.loads(bound.run("search", "tax", "-l", "lib", "--by", "words", "--json")[1])[0]["page"] == 2
    assert "2 pages" in bound.run("library", "verify", "-l", "lib")[1]
    assert "toy" in bound.run("library", "status", "-l", "lib")[1]
    code, said, _ = bound.run("library", "copy", "lib", "copy")
    assert code == 0
    assert "1 file with 2 pages copied" in said
    with Library(bound.folder / "copy", ToyReader()) as library:
        library.add(other, workers=1)
        assert {hit.page for hit in library.search("tax", by="vectors")} == {1, 2}


def test_an_agent_is_told_by_its_first_search(bound):
    pytest.importorskip("mcp")
    code = (
        "from randslot.serve.mcp_server import LocalTools\n"
        "from randslot.errors import RandSlotError\n"
        "from contextlib import closing\n"
        "from threading import enumerate\n"
        "if __name__ == '__main__':\n"
        "    with closing(LocalTools('lib')) as library:\n"
        "        [thread.join() for thread in enumerate() if thread.name == 'model']\n"
        "        try: library.search('tax', 1, None)\n"
        "        except RandSlotError as error: print(error)\n"
    )
    (bound.folder / "agent.py").write_text(code)
    code, said, error = bound.run_python("agent.py")
    assert (code, error) == (0, "")
    assert said.endswith(BOUND.partition(" belongs")[2])


@pytest.mark.nightly
def test_the_demo_shows_words_and_says_what_the_extra_adds(light):
    code, said, error = light.run("demo")
    assert (code, error) == (0, "")
    assert "answers it" in said
    assert "a small embedded model computes four per page from its image.\n" in said
    assert 'models need torch: pip install "randslot[model]"\n' in said
    page = (light.folder / "randslot-demo" / "demo.html").read_text(encoding="utf-8")
    assert "pip install &quot;randslot[model]&quot;" in page
    assert not (light.folder / "randslot-demo" / "library").exists()


# -- the same in an environment of its own, with what pip installs


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Iterator[Light]:
    """The package with the extra serve alone, in a fresh environment."""
    need_index()
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "venv", with_pip=True)
    python = str(folder / "venv" / "bin" / "python")
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, f"{ROOT}[serve]"], check=True)
    (folder / "work").mkdir()
    yield Light(folder / "work", python)
    shutil.rmtree(folder)


@pytest.mark.nightly
@pytest.mark.xdist_group("installed")
def test_a_fresh_install_has_no_torch_and_finds_pages_of_a_real_document(installed):
    code, said, error = installed.run_python("-m", "pip", "list", "--format", "json")
    assert code == 0, error
    names = {one["name"].lower() for one in json.loads(said)}
    assert {"randslot", "pypdfium2", "fastapi"} <= names
    assert not names & {"torch", "transformers", "sentence-transformers", "scikit-learn", "huggingface-hub"}
    handbook = ROOT / "src" / "randslot" / "handbook.pdf"
    assert "1 added" in installed.run("index", str(handbook), "-l", "real")[1]
    code, said, error = installed.run("search", "which", "keys", "zoom", "-l", "real")
    assert (code, error) == (0, "")
    assert "handbook.pdf" in said
    assert installed.run("doctor")[0] == 0


@pytest.mark.nightly
@pytest.mark.xdist_group("installed")
def test_a_fresh_install_serves(installed):
    installed.run("index", str(installed.file), "-l", "served")
    service = installed.start("-m", "randslot", "serve", "-l", "served", "--port", "0")
    try:
        address = service.stdout.readline().split(" at ")[1].split()[0]
        body, headers = json.dumps({"query": "deferred tax"}).encode(), {"Content-Type": "application/json"}
        with urlopen(Request(f"{address}/api/search", body, headers), timeout=60) as answer:
            assert [hit["page"] for hit in json.loads(answer.read())["hits"]] == [2]
    finally:
        service.terminate()
        error = service.communicate(timeout=60)[1]
    assert (service.returncode, error.strip()) == (0, "stopped")


@pytest.mark.nightly
@pytest.mark.xdist_group("installed")
def test_a_fresh_install_says_what_models_need(installed):
    for command, extra in COMMANDS.items():
        installed.check_refused(command, extra)


@pytest.mark.nightly
@pytest.mark.xdist_group("installed")
def test_types_are_known_without_the_extra(installed):
    (installed.folder / "use.py").write_text(
        "import randslot\n"
        "with randslot.Library('lib') as library:\n"
        "    reveal_type(library.search('tax'))\n"
        "reveal_type(randslot.load)\n"
    )
    words = ["--python-executable", installed.python, "--config-file", os.devnull, "use.py"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *words], cwd=installed.folder, capture_output=True, text=True, env=os.environ
    )
    assert done.returncode == 0, done.stdout
    assert "list[randslot.library.results.Hit]" in done.stdout
    assert "randslot.model.model.RandSlotModel" in done.stdout
