"""Pairs on disk for training tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.pairs import write_pairs


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_pairs(tmp_path / "data")
