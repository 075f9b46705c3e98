"""Experiments that are over: README.md of research/ has the question and the answer of each."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent.parent / "benchmarks"))  # what they share with benchmarks
