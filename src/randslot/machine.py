"""The provenance of a run: machine, versions and commit."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch


def describe_machine() -> dict[str, Any]:
    """Describe this machine: processor, threads, GPU, versions."""
    cpu_info = Path("/proc/cpuinfo")
    lines = cpu_info.read_text().splitlines() if cpu_info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def describe_checkout(package: Path = Path(__file__).parent) -> dict[str, Any]:
    """Return the commit of a package's checkout, and whether its files have changed.

    Both are None for an installed package, even inside another repository.
    """

    def git(*words: str) -> str | None:
        try:
            answer = subprocess.run(["git", "-C", str(package), *words], capture_output=True, text=True, check=False)
        except OSError:  # no git
            return None
        return answer.stdout.strip() if answer.returncode == 0 else None

    if git("ls-files", "--error-unmatch", "__init__.py") is None:
        return {"commit": None, "changed": None}
    return {"commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain", "--", "."))}


def list_versions() -> dict[str, str]:
    """Return the versions of Python and the training packages."""
    names = ("randslot", "torch", "transformers", "sentence-transformers", "peft", "accelerate", "datasets")
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in names}
