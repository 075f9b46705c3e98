"""Options of the command line that set how a model makes its vectors, the same in every command."""

from __future__ import annotations

from typing import Annotated

import typer

Inference = Annotated[str | None, typer.Option(help="What is appended when encoding: random, zero, ...")]
QueryVectors = Annotated[int | None, typer.Option(help="Vectors of a query.")]
PageVectors = Annotated[int | None, typer.Option(help="Vectors of a page.")]
Reduction = Annotated[
    str | None,
    typer.Option(help="Of pages with a vector for every token, to --page-vectors: kmeans, semcluster, pool1d, random."),
]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Let the model run Python files of its own, which you have read.")
]
Seed = Annotated[int | None, typer.Option(help="For random slots.")]
