"""Record the versions that pyproject.toml allows and that the tests ran with, and write both to a table in the docs.

    python tools/versions.py oldest          # the lower bounds as a constraints file, for make oldest
    python tools/versions.py record oldest   # record this environment as the oldest tested versions
    python tools/versions.py table           # update docs/promises.md; --check: fail if it is stale

It does not import the package, so it runs before installation.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
import tomllib
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "promises.md"
RECORD = ROOT / "results" / "versions.json"
APART = ("dev", "benchmark", "docs", "gpu")  # extras for developers, or that need a GPU
MARKS = re.compile(r"(?<=<!-- versions -->\n).*(?=<!-- end versions -->)", re.DOTALL)


def read_needs() -> dict[str, tuple[Requirement, str]]:
    """Return each requirement in pyproject.toml, and its extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needs: dict[str, tuple[Requirement, str]] = {}
    for extra, lines in {"": project["dependencies"], **project["optional-dependencies"]}.items():
        for line in lines if extra not in APART else []:
            need = Requirement(line)
            if need.name != "randslot":  # an extra that includes another
                needs.setdefault(need.name, (need, extra))
    return needs


def find_lower_bound(need: Requirement) -> str:
    """Return the oldest version that a requirement allows."""
    (bound,) = (one.version for one in need.specifier if one.operator == ">=")
    return bound


def make_constraints() -> str:
    """Return the lower bounds as a constraints file."""
    return "".join(f"{name}=={find_lower_bound(need)}\n" for name, (need, _) in sorted(read_needs().items()))


def record(kind: str, tests: str) -> None:
    """Record the versions of this environment as the oldest or newest tested ones."""
    rows: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else {}
    versions = {name: metadata.version(name) for name in read_needs()}
    rows[kind] = {
        "tests": tests,
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "packages": versions,
    }
    RECORD.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def make_table() -> str:
    """Return the table for the docs."""
    rows = json.loads(RECORD.read_text(encoding="utf-8"))
    lines = ["| package | extra | allowed | oldest | newest |", "|---|---|---|---|---|"]
    for name, (need, extra) in read_needs().items():
        tried = [rows[kind]["packages"].get(name, "not tried") for kind in ("oldest", "newest")]
        allowed = ", ".join(sorted((str(one) for one in need.specifier), reverse=True))
        lines.append(f"| {' | '.join([name, extra or '', allowed, *tried])} |")
    lines.append("")
    for kind in ("oldest", "newest"):
        about = rows[kind]
        lines.append(f"- {kind.capitalize()}: {about['tests']}, with Python {about['python']} on {about['date']}.")
    return "\n".join(lines) + "\n"


def write_table(*, check: bool) -> None:
    page = PAGE.read_text(encoding="utf-8")
    new = MARKS.sub(lambda _: make_table(), page)
    if check and new != page:
        sys.exit("docs/promises.md is stale. Run make versions")
    PAGE.write_text(new, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["oldest", "record", "table"])
    parser.add_argument("kind", nargs="?", choices=["oldest", "newest"])
    parser.add_argument("--check", action="store_true", help="fail if the table is stale")
    parser.add_argument("--tests", default="all fast tests", help="the tests that ran, for record")
    arguments = parser.parse_args()
    if (arguments.what == "record") != (arguments.kind is not None):
        parser.error("only record takes oldest or newest")
    if arguments.what == "oldest":
        print(make_constraints(), end="")
    elif arguments.what == "record":
        record(arguments.kind, arguments.tests)
    else:
        write_table(check=arguments.check)


if __name__ == "__main__":
    main()
