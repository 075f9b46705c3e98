"""The machine that a figure was measured on."""

from __future__ import annotations

import platform
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
