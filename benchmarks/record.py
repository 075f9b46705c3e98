"""Shared by benchmarks and experiments: time alternatives in one run, print tables, write rows and their provenance."""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from randslot.machine import describe_machine

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
sys.path += [str(ROOT), str(ROOT / "tests")]  # benchmarks use research/ and tests/support/, which are not installed


def time_ways(ways: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Time each way `repeats` times, interleaved so that load affects all alike; return median seconds."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(repeats + 1):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if repeat:  # warmup round
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def time_command(command: Sequence[str], repeats: int = 5) -> dict[str, Any]:
    """Run Python with arguments `repeats` times after a warmup; return the times."""
    wall, cpu = [], []
    for _ in range(repeats + 1):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        start = time.perf_counter()
        subprocess.run([sys.executable, *command], check=True, capture_output=True)
        wall.append(time.perf_counter() - start)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return {
        "wall s": statistics.median(wall[1:]),
        "best wall s": min(wall[1:]),
        "CPU s": statistics.median(cpu[1:]),
        "load": os.getloadavg()[0],
    }


def check_found(command: Sequence[str]) -> None:
    """Exit if a search finds nothing: its time would be meaningless."""
    answer = subprocess.run([sys.executable, *command, "--json"], check=True, capture_output=True, text=True)
    if not json.loads(answer.stdout):
        sys.exit(f"nothing is found by {command}")


def list_heavy(command: Sequence[str]) -> str:
    """Return the heavy packages that a command imports."""
    heavy = {"torch", "transformers", "sentence_transformers", "sklearn", "scipy", "pandas", "pyarrow", "sympy", "peft"}
    heavy |= {"datasets", "accelerate", "torchvision", "matplotlib", "onnxruntime", "cv2"}
    found = {module.split(".")[0] for module in _read_import_times(command)}
    return ", ".join(sorted(found & heavy)) or "none"


def list_imports(command: Sequence[str]) -> list[dict[str, Any]]:
    """Return the five packages that take longest to import, by the self time of their modules.

    The time of a module is the best of five runs, to reduce noise.
    """
    runs = [_read_import_times(command) for _ in range(5)]
    spent: dict[str, float] = {}
    for module in runs[0]:
        package = module.split(".")[0]
        spent[package] = spent.get(package, 0.0) + min(run.get(module, runs[0][module]) for run in runs) / 1000
    most = sorted(spent, key=spent.__getitem__, reverse=True)[:5]
    rows: list[dict[str, Any]] = [{"package": name, "own ms of its imports": spent[name]} for name in most]
    return [*rows, {"package": "all", "own ms of its imports": sum(spent.values())}]


def _read_import_times(command: Sequence[str]) -> dict[str, int]:
    """Return the self time in microseconds of each module that a command imports."""
    words = [sys.executable, "-X", "importtime", *command]
    answer = subprocess.run(words, check=True, capture_output=True, text=True)
    lines = re.findall(r"^import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)$", answer.stderr, re.MULTILINE)
    return {module: int(own) for own, module in lines}


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print rows as Markdown, one table per set of columns."""
    for heads in dict.fromkeys(tuple(row) for row in rows):
        print("| " + " | ".join(heads) + " |")
        print("| " + " | ".join("---" for _ in heads) + " |")
        for row in rows:
            if tuple(row) == heads:
                print("| " + " | ".join(_show(row[head]) for head in heads) + " |")
        print()


def _show(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def read_rows(name: str) -> list[dict[str, Any]]:
    """Return the rows of results/NAME.json; none if the file does not exist."""
    file = RESULTS / f"{name}.json"
    return list(json.loads(file.read_text(encoding="utf-8"))["rows"]) if file.exists() else []


def keep(name: str, rows: list[dict[str, Any]]) -> None:
    """Write rows to results/NAME.json with the command, commit and machine that produced them."""
    script = Path(sys.argv[0]).resolve().relative_to(ROOT)
    if script.parts[0] == "research":
        command = ["python", "-m", ".".join(script.with_suffix("").parts)]
    else:
        command = ["python", script.as_posix()]
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT)
    record = {
        "command": shlex.join([*command, *sys.argv[1:]]),
        "date": datetime.now(UTC).date().isoformat(),
        "commit": git.stdout.strip() or "unknown",
        "machine": describe_machine(),
        "rows": rows,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(f"kept in results/{name}.json")
