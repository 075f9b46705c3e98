"""Shared by the benchmarks: time several ways in one run, print one table, keep the rows with what made them."""

from __future__ import annotations

import json
import os
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

RESULTS = Path(__file__).resolve().parent.parent / "results"
sys.path.append(str(RESULTS.parent))  # some benchmarks use research/, which is not installed


def time_ways(ways: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Time each way `repeats` times, in turns so that a busy moment hits all of them; return median seconds."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(repeats + 1):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if repeat:  # the first round warms up
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def time_command(command: Sequence[str], repeats: int = 5) -> dict[str, Any]:
    """Run Python with some arguments once more than `repeats`; return the times of all runs but the first."""
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


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print rows as a Markdown table."""
    heads = list(rows[0])
    lines = [heads, ["---"] * len(heads), *[[_show(row[head]) for head in heads] for row in rows]]
    for line in lines:
        print("| " + " | ".join(line) + " |")


def _show(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def keep(name: str, rows: list[dict[str, Any]]) -> None:
    """Write rows to results/NAME.json with the command, commit and machine that made them."""
    record = {
        "command": shlex.join(["python", _script(), *sys.argv[1:]]),
        "date": datetime.now(UTC).date().isoformat(),
        "commit": _commit(),
        "machine": describe_machine(),
        "rows": rows,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(f"\nkept in results/{name}.json")


def _script() -> str:
    """Return the path of the script, counted from the project's folder."""
    return Path(sys.argv[0]).resolve().relative_to(RESULTS.parent).as_posix()


def _commit() -> str:
    answer = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=RESULTS.parent)
    return answer.stdout.strip() or "unknown"
