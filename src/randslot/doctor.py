"""`randslot doctor`: what is installed and what is missing on this machine, with a line of advice for each.

It reads the metadata of packages and imports none of the heavy ones, so it answers at once.
"""

from __future__ import annotations

import glob
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import tomllib
import webbrowser
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, Literal

from . import __version__
from .errors import RandSlotError, first_line
from .extras import MODEL
from .library.address import default_library, is_address

State = Literal["ok", "missing", "broken"]
LEAST_PYTHON = (3, 11)
LEAST_DISK = 5 * 10**9  # bytes: below it, advice
SECONDS = 5.0  # for a program or a service to answer
DEVELOPMENT = ("dev", "benchmark", "docs")  # extras that nobody needs who uses the package
FONT_FOLDERS = (
    *("/usr/share/fonts", "/usr/local/share/fonts", "~/.local/share/fonts", "~/.fonts"),
    *("/Library/Fonts", "/System/Library/Fonts", "C:/Windows/Fonts"),
)
USES = {
    "model": "find pages by meaning, with a model",
    "train": "train models",
    "evaluate": "evaluate models",
    "gpu": "train in less memory, and faster",
    "qdrant": "keep libraries on a Qdrant server",
    "ray": "index on many machines",
    "ocr": "read scans with the best engine",
    "reader": "find pages by meaning, in 16 languages, without a hub",
    "serve": "search in a browser, and serve an API",
    "mcp": "let agents search",
    "langchain": "use a library in LangChain",
    "llamaindex": "use a library in LlamaIndex",
    "haystack": "use a library in Haystack",
}

ADVICE = f'to {USES[MODEL]}: pip install "randslot[{MODEL}]"'


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: "ok", "missing" if one can do without it, "broken" if not; and what to do."""

    name: str
    state: State
    found: str
    advice: str = ""


@dataclass(frozen=True)
class Need:
    """A package that is needed, in which versions, and by which extra; none for the package itself."""

    package: str
    versions: str
    extra: str = ""

    def check(self) -> str:
        """Return what is wrong with it in a few words; nothing if it is installed and new enough."""
        from packaging.specifiers import SpecifierSet

        version = find_version(self.package)
        if version is None:
            return f"{self.package} is not installed"
        if not SpecifierSet(self.versions).contains(version, prereleases=True):
            return f"{self.package} is {version}, and {self.versions} is needed"
        return ""


def examine(*, with_torch: bool = False) -> list[Finding]:
    """Look at everything; with_torch: import torch, too, and ask it what it can use."""
    gpu = _check_gpu()
    packages = [finding for finding in _check_packages() if gpu.state == "ok" or finding.name != "extra gpu"]
    findings = [_check_python(), *packages, _check_engine(), gpu]
    if with_torch:
        findings.append(_check_torch())
    findings += [_check_ocr(), _check_fonts(), _check_browser(), *_check_disk(), *_check_libraries()]
    return findings


def show(findings: list[Finding]) -> str:
    """Return findings as lines: a mark, what it is, what was found, and advice below it."""
    marks = {"ok": "ok     ", "missing": "missing", "broken": "BROKEN "}
    width = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{marks[finding.state]}  {finding.name:{width}}  {finding.found}".rstrip())
        if finding.advice:
            lines.append(f"{' ' * (11 + width)}{finding.advice}")
    return "\n".join(lines)


def as_json(findings: list[Finding]) -> list[dict[str, Any]]:
    """Return findings as JSON has them."""
    return [asdict(finding) for finding in findings]


def is_working(findings: list[Finding]) -> bool:
    """Whether nothing that is needed is broken."""
    return all(finding.state != "broken" for finding in findings)


# -- packages


def find_version(package: str) -> str | None:
    """Return the version of an installed package, by its metadata alone."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def list_needs() -> list[Need]:
    """Return what the package needs on this machine.

    An extra may include the one for models, whose packages are listed there alone.
    """
    from packaging.requirements import Requirement

    needs = []
    for line, extra in _read_requirements():
        requirement = Requirement(line)
        is_here = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        if is_here and requirement.name != "randslot":
            needs.append(Need(requirement.name, str(requirement.specifier), extra))
    of_models = {need.package for need in needs if need.extra == MODEL}
    return [need for need in needs if need.extra in ("", MODEL) or need.package not in of_models]


def _read_requirements() -> Iterator[tuple[str, str]]:
    """Give each requirement and its extra, as the package's own metadata say; in a source tree, as it says now."""
    project = Path(__file__).parents[2] / "pyproject.toml"
    if project.is_file():
        content = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
        for extra, lines in {"": content["dependencies"], **content["optional-dependencies"]}.items():
            for line in lines:
                yield line, extra
        return
    for line in metadata.requires("randslot") or []:
        extra_marker = re.search(r"""extra == ['"]([\w-]+)['"]""", line)
        yield line, extra_marker[1] if extra_marker else ""


def _check_python() -> Finding:
    found = f"randslot {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    if sys.version_info < LEAST_PYTHON:
        return Finding("python", "broken", found, "randslot needs Python 3.11 or newer")
    return Finding("python", "ok", found)


def _check_packages() -> Iterator[Finding]:
    extras: dict[str, list[Need]] = {}
    for need in list_needs():
        if need.extra not in DEVELOPMENT:
            extras.setdefault(need.extra, []).append(need)
    for extra, needs in extras.items():
        problems = [problem for problem in (need.check() for need in needs) if problem]
        versions = ", ".join(f"{need.package} {find_version(need.package)}" for need in needs)
        name = f"extra {extra}" if extra else "packages"
        if not problems:
            yield Finding(name, "ok", versions)
        elif extra:
            advice = f'to {USES.get(extra, "use it")}: pip install "randslot[{extra}]"'
            yield Finding(name, "missing", "; ".join(problems), advice)
        else:
            yield Finding(name, "broken", "; ".join(problems), "pip install --upgrade randslot")


def _check_engine() -> Finding:
    """The engine is small, and compiled: importing it is the only way to know that it runs here."""
    try:
        import_module("qdrant_edge")
    except Exception as error:  # a broken binary fails in its own ways
        return Finding("engine", "broken", first_line(error), "pip install --force-reinstall qdrant-edge-py")
    return Finding("engine", "ok", f"Qdrant Edge {find_version('qdrant-edge-py')}")


# -- hardware


def _check_gpu() -> Finding:
    cards = _ask_program("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")
    build = find_version("torch") or "is not installed"
    if cards:
        found = "; ".join(cards.splitlines())
        if find_version("torch") is None:
            return Finding("gpu", "missing", f"{found}, and torch {build}", ADVICE)
        if "+cpu" in build:
            return Finding("gpu", "missing", f"{found}, and torch {build}", "pip install a build of torch with CUDA")
        return Finding("gpu", "ok", f"{found}, torch {build}")
    if os.path.exists("/dev/kfd"):
        return Finding("gpu", "ok", f"an AMD GPU, torch {build}")
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        return Finding("gpu", "ok", f"Apple silicon, torch {build}")
    advice = "words need none; for vectors of many pages use a machine with a GPU, or a model on a server"
    return Finding("gpu", "missing", f"none found; {os.cpu_count()} cores, torch {build}", advice)


def _check_torch() -> Finding:
    if find_version("torch") is None:
        return Finding("torch", "missing", "it is not installed", ADVICE)
    try:
        torch = import_module("torch")
        device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu"
    except Exception as error:  # a broken build fails in its own ways
        return Finding("torch", "broken", first_line(error), "pip install --force-reinstall torch")
    return Finding("torch", "ok", f"{torch.__version__} computes on {device}, {torch.get_num_threads()} threads")


def _ask_program(name: str, *arguments: str) -> str:
    """Return what a program prints; nothing if it is not there, or fails."""
    program = shutil.which(name)
    if program is None:
        return ""
    try:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


# -- what else documents need


def _check_ocr() -> Finding:
    from .pages.ocr import CHOICE, find_engine

    advice = f'scans are found once their text is read: pip install "randslot[ocr]", or install tesseract ({CHOICE})'
    try:
        engine = find_engine()
    except RandSlotError as error:
        return Finding("ocr", "broken", str(error), f"unset {CHOICE}")
    return Finding("ocr", "ok", engine) if engine else Finding("ocr", "missing", "no engine", advice)


def _check_fonts() -> Finding:
    num = 0
    for folder in FONT_FOLDERS:
        for _, _, files in os.walk(os.path.expanduser(folder)):
            num += sum(name.lower().endswith((".ttf", ".otf", ".ttc", ".pfb")) for name in files)
    if num:
        return Finding("fonts", "ok", f"{num} files")
    advice = "PDFs without fonts of their own may be drawn wrong: install fonts-dejavu, and fonts-noto-cjk for Chinese"
    return Finding("fonts", "missing", "none found", advice)


def _check_browser() -> Finding:
    from .library.terminal import BROWSERS, has_screen

    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        advice = "--open needs one; open the addresses that are printed yourself"
        installed = [name for name in (*BROWSERS, "chromium-browser") if shutil.which(name)]
        if installed and not has_screen():
            return Finding("browser", "missing", f"{installed[0]} is installed, but there is no screen", advice)
        return Finding("browser", "missing", "none found", advice)
    return Finding("browser", "ok", str(getattr(browser, "name", None) or type(browser).__name__))


def _check_disk() -> Iterator[Finding]:
    places = {"disk": default_library().expanduser(), "temporary": Path(tempfile.gettempdir())}
    for name, place in places.items():
        there = next(folder for folder in (place, *place.absolute().parents) if folder.is_dir())
        free = shutil.disk_usage(there).free
        found = f"{free / 1e9:.1f} GB free at {there}"
        if free < LEAST_DISK:
            advice = (
                "a library takes a few KB a page for words, 20 KB with vectors; models take gigabytes: free some space"
            )
            yield Finding(name, "missing", found, advice)
        else:
            yield Finding(name, "ok", found)


# -- libraries


def _check_libraries() -> Iterator[Finding]:
    named = os.environ.get("RANDSLOT_LIBRARY")
    place = Path(named or default_library()).expanduser()
    if named and is_address(named):
        yield Finding("library", "ok", f"{named}, which is not asked here: randslot library status does")
    elif (place / "library.json").is_file():
        yield Finding("library", "ok", str(place))
    else:
        yield Finding("library", "missing", f"none at {place} yet", "randslot index FOLDER makes one")
    for path in sorted(glob.glob(os.path.join(tempfile.gettempdir(), "randslot-*", "library"))):
        if _is_own_socket(path):
            yield _ask_service(path)


def _is_own_socket(path: str) -> bool:
    try:
        about = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISSOCK(about.st_mode) and about.st_uid == os.getuid()


def _ask_service(path: str) -> Finding:
    """Ask a process that has a library open what it is."""
    from .library.sharing import LibraryClient

    try:
        with LibraryClient(path, path) as library:
            library.socket.settimeout(SECONDS)
            status = library.status()
    except (RandSlotError, OSError) as error:
        if isinstance(error.__cause__, ConnectionRefusedError):
            advice = f"a process has ended without removing it: rm -r {os.path.dirname(path)}"
            return Finding("open library", "missing", f"nobody listens at {path}", advice)
        return Finding("open library", "missing", f"no answer at {path}", "its process is busy, or ends: wait for it")
    return Finding("open library", "ok", f"{status.folder}: {status.files} files, {status.pages} pages")
