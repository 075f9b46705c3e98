"""Measure the import time of a vector search from the shell: which modules, and who imports them.

    python -m research.experiments.imports                               # about a minute

"CPU s" is the best of three processes; imports are cumulative over the lines. The second table is of a search on a
Qdrant server, each line by itself. The third lists what imports a package when only sentence-transformers is imported.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from typing import Any

from record import keep, print_table

REPEATS = 3
STEPS = {
    "nothing": "pass",
    "torch": "import torch",
    "transformers, with a backbone and a tokenizer": "from transformers import AutoTokenizer, Qwen2_5_VLModel",
    "sentence_transformers": "from transformers import AutoTokenizer, Qwen2_5_VLModel; import sentence_transformers",
    "randslot.model.model, which is all that a query needs": "import randslot.model.model",
}
# Only the protocol messages, bypassing the package's __init__.py.
MESSAGES = """
import importlib.util, sys, types
package = types.ModuleType("qdrant_client")
package.__path__ = importlib.util.find_spec("qdrant_client").submodule_search_locations
sys.modules["qdrant_client"] = package
import qdrant_client.grpc
"""
SERVER_STEPS = {
    "nothing": "pass",
    "randslot.library.library, all that a search of words in a folder needs": "import randslot.library.library",
    "grpc": "import grpc",
    "the messages of qdrant_client, without its first file": MESSAGES,
    "qdrant_client": "import qdrant_client",
    "the library and qdrant_client": "import randslot.library.library, randslot.library.stores.qdrant",
}
PACKAGES = ("torch", "transformers", "sklearn", "scipy", "pandas", "datasets", "accelerate", "peft")


def measure(code: str) -> float:
    """Return the CPU seconds of the fastest of several processes that run Python code."""
    took = []
    for _ in range(REPEATS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(took)


def find_importers(code: str) -> dict[str, list[str]]:
    """Return the importers of each imported module, nearest first."""
    command = [sys.executable, "-X", "importtime", "-c", code]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    rows = []
    for indent, module in re.findall(r"^import time:\s+\d+ \|\s+\d+ \|( +)(\S+)$", answer.stderr, re.MULTILINE):
        rows.append((len(indent) // 2, module))
    above: dict[int, str] = {}
    importers: dict[str, list[str]] = {}
    for depth, module in reversed(rows):  # a module is listed after those that it imports
        above[depth] = module
        importers.setdefault(module, [above[one] for one in range(depth - 1, -1, -1) if one in above])
    return importers


def shorten(chain: list[str]) -> str:
    """Return the nearest importers of a chain, and the root."""
    return " < ".join([*chain[:3], *(["..."] if len(chain) > 4 else []), *chain[3:][-1:]])


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    rows: list[dict[str, Any]] = []
    for what, code in STEPS.items():
        rows.append({"imports": what, "CPU s": measure(code), "load": os.getloadavg()[0]})
        print(rows[-1], flush=True)
    for what, code in SERVER_STEPS.items():
        rows.append({"imports, on a server": what, "CPU s": measure(code), "load": os.getloadavg()[0]})
        print(rows[-1], flush=True)
    importers = find_importers("import sentence_transformers")
    for package in PACKAGES:
        rows.append({"package": package, "imported by": shorten(importers.get(package, []))})
    for kind in dict.fromkeys(tuple(row) for row in rows):
        print_table([row for row in rows if tuple(row) == kind])
        print()
    keep("imports", rows)


if __name__ == "__main__":
    main()
