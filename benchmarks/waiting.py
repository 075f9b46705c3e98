"""How long the model waits for pages, with a backbone of middle size (mid.json) with random weights.

    python benchmarks/waiting.py

Page images are compressed, twice as large as what the model looks at, 48 x 32 merged visual tokens each. The table says
how many pages a second are encoded, how long one takes to be made ready, and for what share of time the model waits.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from record import keep, print_table

import randslot
from randslot.lab.analysis.profile import Protocol, measure_waiting

SHAPE = str(Path(__file__).with_name("mid.json"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=16)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = randslot.untrained(SHAPE, device="cpu")
    rows: list[dict[str, Any]] = []
    for batch in (1, 4):
        table = measure_waiting(model, Protocol(samples=options.samples), batch)
        (row,) = table.rows
        rows.append({"pages at once": batch, **dict(zip(table.heads, row, strict=True))})
    print_table(rows)
    keep("waiting", rows)


if __name__ == "__main__":
    main()
