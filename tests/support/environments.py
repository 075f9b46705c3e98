"""Fresh environments, with what pip fetches."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache

import pytest

# What pip may be told by the environment: which index, and how to get there.
PIP = {
    name: value
    for name, value in os.environ.items()
    if name.startswith("PIP_") or name.lower().endswith("_proxy") or name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
}


@cache
def _ask_index() -> str:
    """Return why no package can be fetched here; nothing if one can."""
    pip = [sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--no-deps", "--ignore-installed", "filelock"]
    done = subprocess.run(pip, capture_output=True, text=True)
    return (done.stderr.strip().splitlines() or ["pip failed"])[-1] if done.returncode else ""


def need_index() -> None:
    """Skip a test where no package can be fetched."""
    if reason := _ask_index():
        pytest.skip(f"no package index can be reached here: {reason}")
