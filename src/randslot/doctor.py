"""`randslot doctor`: check the installation, without heavy imports."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, Literal

from . import __version__
from .errors import RandSlotError, first_line
from .extras import describe_missing
from .library.address import default_library, is_address

USES = {
    "model": "search by meaning with a model",
    "train": "train models",
    "evaluate": "evaluate models",
    "gpu": "train in less memory",
    "qdrant": "keep libraries on a Qdrant server",
    "ray": "index on many machines",
    "ocr": "read scans with the best engine",
    "reader": "search by meaning in 16 languages, offline",
    "serve": "search in a browser, and serve an API",
    "mcp": "let agents search",
    "office": "read Office files",
    "watch": "keep a library in sync with folders",
    "langchain": "use a library in LangChain",
    "llamaindex": "use a library in LlamaIndex",
    "haystack": "use a library in Haystack",
}


@dataclass(frozen=True)
class Finding:
    """The result of one check. advice: what to do."""

    name: str
    state: Literal["ok", "optional", "low", "broken"]
    found: str
    advice: str = ""


def examine(*, with_torch: bool = False) -> list[Finding]:
    """Run all checks. with_torch: also import torch and show its device."""
    python = f"randslot {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    findings = [Finding("python", "ok", python), *_check_packages()]
    findings.append(_check_import("engine", "qdrant_edge", lambda _: f"Qdrant Edge {find_version('qdrant-edge-py')}"))
    findings.append(_check_gpu())
    if with_torch:
        findings.append(_check_import("torch", "torch", _describe_torch))
    return [*findings, _check_ocr(), _check_disk(), _check_library()]


def show(findings: list[Finding]) -> str:
    """Format findings, one per line, with advice below."""
    width = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        state = finding.state.upper() if finding.state == "broken" else finding.state
        lines.append(f"{state:8}  {finding.name:{width}}  {finding.found}")
        if finding.advice:
            lines.append(f"{'':{width + 12}}{finding.advice}")
    return "\n".join(lines)


def find_version(package: str) -> str | None:
    """Return the installed version of a package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _check_packages() -> Iterator[Finding]:
    """Compare installed versions with the package's requirements, per extra."""
    from packaging.requirements import Requirement

    installed: dict[str, list[str]] = {}
    problems: dict[str, list[str]] = {}
    for line in metadata.requires("randslot") or []:
        requirement = Requirement(line)
        marker = re.search(r"""extra == ['"]([\w-]+)['"]""", line)
        extra = marker[1] if marker else ""
        if (extra and extra not in USES) or requirement.name == "randslot":
            continue
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        version = find_version(requirement.name)
        installed.setdefault(extra, []).append(f"{requirement.name} {version}")
        if version is None:
            problems.setdefault(extra, []).append(f"{requirement.name} is not installed")
        elif not requirement.specifier.contains(version, prereleases=True):
            problem = f"{requirement.name} is {version}, {requirement.specifier} is required"
            problems.setdefault(extra, []).append(problem)
    for extra, versions in installed.items():
        name = f"extra {extra}" if extra else "packages"
        if extra not in problems:
            yield Finding(name, "ok", ", ".join(versions))
        elif extra:
            advice = f'to {USES[extra]}: pip install "randslot[{extra}]"'
            yield Finding(name, "optional", "; ".join(problems[extra]), advice)
        else:
            yield Finding(name, "broken", "; ".join(problems[extra]), "pip install --upgrade randslot")


def _check_import(name: str, package: str, describe: Callable[[Any], str]) -> Finding:
    """Import a compiled package, to check that it runs on this machine."""
    try:
        return Finding(name, "ok", describe(import_module(package)))
    except Exception as error:  # a broken binary can raise anything
        if isinstance(error, ModuleNotFoundError) and (advice := describe_missing(error)):
            return Finding(name, "optional", "not installed", advice)
        return Finding(name, "broken", first_line(error), "pip install --force-reinstall randslot")


def _check_gpu() -> Finding:
    torch = find_version("torch") or "is not installed"
    cards = ""
    if shutil.which("nvidia-smi"):
        command = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
        cards = "; ".join(done.stdout.split("\n")).strip("; ")
    elif os.path.exists("/dev/kfd"):
        cards = "an AMD GPU"
    elif platform.system() == "Darwin" and platform.machine() == "arm64":
        cards = "Apple silicon"
    if not cards:
        advice = "keyword search needs no GPU; encoding many pages does"
        return Finding("gpu", "optional", f"none found; {os.cpu_count()} cores, torch {torch}", advice)
    if "+cpu" in torch:
        return Finding("gpu", "optional", f"{cards}, torch {torch}", "install a build of torch with CUDA")
    return Finding("gpu", "ok", f"{cards}, torch {torch}")


def _describe_torch(torch: Any) -> str:
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu"
    return f"{torch.__version__} on {device}, {torch.get_num_threads()} threads"


def _check_ocr() -> Finding:
    from .pages.ocr import find_engine

    try:
        engine = find_engine()
    except RandSlotError as error:
        return Finding("ocr", "broken", str(error), "unset RANDSLOT_OCR")
    if engine is None:
        advice = 'to search scans: pip install "randslot[ocr]", or install tesseract (RANDSLOT_OCR)'
        return Finding("ocr", "optional", "no engine", advice)
    return Finding("ocr", "ok", engine)


def _check_disk() -> Finding:
    folder = default_library().expanduser().absolute()
    while not folder.is_dir():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    found = f"{free / 1e9:.1f} GB free at {folder}"
    if free < 5e9:
        return Finding("disk", "low", found, "less than 5 GB free: a page takes about 15 KB, plus its vectors")
    return Finding("disk", "ok", found)


def _check_library() -> Finding:
    named = os.environ.get("RANDSLOT_LIBRARY")
    if named and is_address(named):
        return Finding("library", "ok", f"{named} (not checked: run randslot library status)")
    place = Path(named or default_library()).expanduser()
    if (place / "library.json").is_file():
        return Finding("library", "ok", str(place))
    return Finding("library", "optional", f"none at {place}", "randslot index FOLDER creates one")
