"""Write container.lock: the container's packages, with the hashes of all files that pip may install.

    python tools/lock.py

Versions come from constraints.txt. Run it after changing that, or the extras in the Dockerfile.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.13")  # the oldest, used by tests, and the container's
MACHINES = ("x86_64", "aarch64")
GLIBC = (39, 34, 31, 28, 27, 26, 24, 17)  # versions 2.x that wheels are built for, and Debian has


def list_requirements() -> list[str]:
    """Return the requirements of the package, of the container's extras, and of the build."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = re.search(r"ARG EXTRAS=(\S+)", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
    assert extras is not None
    wanted = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    for name in extras[1].split(","):
        wanted += project["project"]["optional-dependencies"][name]
    return wanted


def resolve(python: str, machine: str) -> dict[str, str]:
    """Return the hash of each package for a version of Python and a machine, by name==version."""
    platforms = [f"manylinux_2_{version}_{machine}" for version in GLIBC] + [f"manylinux2014_{machine}"]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        command += ["--only-binary=:all:", "--target", folder, "--python-version", python]
        command += [word for platform in platforms for word in ("--platform", platform)]
        command += ["--report", str(report), "-c", str(ROOT / "constraints.txt"), *list_requirements()]
        subprocess.run(command, check=True)
        found = json.loads(report.read_text(encoding="utf-8"))["install"]
    hashes = {}
    for one in found:
        name = re.sub(r"[-_.]+", "-", one["metadata"]["name"]).lower()
        hashes[f"{name}=={one['metadata']['version']}"] = one["download_info"]["archive_info"]["hashes"]["sha256"]
    return hashes


def main() -> None:
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").lower()
    locked: dict[str, set[str]] = {}
    for python in PYTHONS:
        for machine in MACHINES:
            for name, digest in resolve(python, machine).items():
                locked.setdefault(name, set()).add(digest)
    lines = ["# Made by tools/lock.py from constraints.txt; pip install --require-hashes -r container.lock"]
    for name, digests in sorted(locked.items()):
        if not re.search(rf"^{re.escape(name)}$", pinned.replace("_", "-"), re.MULTILINE):
            print(f"not in constraints.txt: {name}", file=sys.stderr)
        lines.append(" \\\n    ".join([name, *(f"--hash=sha256:{digest}" for digest in sorted(digests))]))
    (ROOT / "container.lock").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
