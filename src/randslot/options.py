"""Options of the command line that set how a model makes its vectors, the same in every command."""

from __future__ import annotations

from typing import Annotated

import typer

from .help import ADVANCED

Inference = Annotated[
    str | None, typer.Option(rich_help_panel=ADVANCED, help="What is appended when encoding: random, zero, ...")
]
QueryVectors = Annotated[int | None, typer.Option(metavar="N", rich_help_panel=ADVANCED, help="Vectors of a query.")]
PageVectors = Annotated[int | None, typer.Option(metavar="N", rich_help_panel=ADVANCED, help="Vectors of a page.")]
Reduction = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=ADVANCED,
        help="Of pages with a vector for every token, to --page-vectors: kmeans, semcluster, pool1d, random.",
    ),
]
TrustRemoteCode = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        rich_help_panel=ADVANCED,
        help="Let the model run Python files of its own, which you have read.",
    ),
]
Seed = Annotated[int | None, typer.Option(metavar="N", rich_help_panel=ADVANCED, help="For random slots.")]
