"""Measure the disk use of an install: the bare package, with extras, and with the default torch of the package index.

    python benchmarks/install.py                 # downloads gigabytes: the last row has torch with CUDA, on Linux

Each row is a fresh environment; an empty one (pip) is not counted.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

from record import keep, print_table

ROOT = Path(__file__).resolve().parent.parent
INSTALLS = (  # extras, and whether versions are pinned, including a torch without CUDA
    ("", True),
    ("serve,ocr,mcp,qdrant", True),
    ("model", True),
    ("model", False),
)


def measure(extras: str, pinned: bool, folder: Path) -> dict[str, Any]:
    """Install the package with extras into a fresh environment; return its size."""
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    before, empty = count_bytes(folder), list_packages(python).keys()
    pip = [python, "-m", "pip", "install", "-q", "--no-cache-dir", "--disable-pip-version-check"]
    if pinned:
        pip += ["-c", str(ROOT / "constraints.txt")]
    if pinned and "model" in extras:
        subprocess.run([*pip, "torch"], check=True)  # first, as in the Makefile
    wanted = f"[{extras}]" if extras else ""
    subprocess.run([*pip, f"{ROOT}{wanted}"], check=True)
    packages = list_packages(python)
    return {
        "install": f"randslot{wanted}",
        "versions": "pinned" if pinned else "as pip chooses",
        "packages": len(packages.keys() - empty),
        "torch": packages.get("torch", "none"),
        "MB on disk": (count_bytes(folder) - before) / 1e6,
    }


def count_bytes(folder: Path) -> int:
    """Return the total bytes of the files in a folder, without following links."""
    return sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file() and not file.is_symlink())


def list_packages(python: str) -> dict[str, str]:
    """Return the packages of an environment and their versions."""
    command = [python, "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"]
    listed = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {one["name"]: one["version"] for one in listed}


def main() -> None:
    rows = []
    for extras, pinned in INSTALLS:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(extras, pinned, Path(folder)))
            print(rows[-1], file=sys.stderr)
    print_table(rows)
    keep("install", rows)


if __name__ == "__main__":
    main()
