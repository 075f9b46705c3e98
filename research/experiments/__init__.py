"""Finished experiments: research/README.md has the question and answer of each."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent.parent / "benchmarks"))  # what they share with benchmarks
