"""Quality for every byte: each cut against slow loops, its bytes, the paper's points, and the commands."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize
from typer.testing import CliRunner

from randslot.cli import app
from randslot.evaluation.analysis import CachedRun
from randslot.evaluation.frontier import published_points, quantise, score_frontier, show_frontier
from randslot.evaluation.published import TASKS
from research.samples.sets import write_set
from support import others
from support.cached import make_subset
from support.models import make

GRADES = [{f"p{i}": 2, f"p{i + 1}": 1} for i in range(7)]


def make_run(folder: Path, num_vectors: int = 4, dim: int = 128) -> CachedRun:
    generator = torch.Generator().manual_seed(3)
    queries = normalize(torch.randn(7, num_vectors, dim, generator=generator), dim=-1)
    pages = normalize(torch.randn(9, num_vectors, dim, generator=generator), dim=-1)
    return CachedRun("mine", "own", num_vectors, {"task": [make_subset(folder, queries, pages, GRADES)]})


def slow_score(run: CachedRun, num: int, width: int, storage: str) -> float:
    """Return nDCG@5 in percent by loops over stored numbers."""
    queries, pages = run.tasks["task"][0].load()
    total = 0.0
    for query, grades in zip(queries.numpy(), GRADES, strict=True):
        scores = {}
        for index, page in enumerate(pages.numpy()):
            score = 0.0
            for wanted in query:
                best = -math.inf
                for vector in page[:num]:
                    cut = vector[:width] / np.linalg.norm(vector[:width])
                    if storage == "int8":
                        scale = np.abs(cut).max() / 127
                        cut = np.round(cut / scale) * scale
                    elif storage == "1-bit":
                        cut = np.where(cut >= 0, 1.0, -1.0)
                    best = max(best, float(wanted[:width] @ cut))
                score += best / float(np.linalg.norm(wanted[:width]))
            scores[f"p{index}"] = score
        ranked = sorted(scores, key=lambda page: -scores[page])[:5]
        gain = sum(grades.get(page, 0) / math.log2(rank + 2) for rank, page in enumerate(ranked))
        total += gain / (2 + 1 / math.log2(3))
    return 100 * total / len(GRADES)


def test_every_cut_scores_as_slow_loops_do_and_has_its_bytes(tmp_path):
    run = make_run(tmp_path)
    points = score_frontier(run)
    assert len(points) == 3 * 3 * 3  # 1, 2, 4 vectors; 32, 64, 128 numbers; three types
    for point in points:
        expected = slow_score(run, int(point.vectors), point.width, point.storage)
        assert point.ndcg == pytest.approx(expected, abs=1e-3), point
        size = {"fp16": 2 * point.width, "int8": point.width + 2, "1-bit": point.width / 8}[point.storage]
        assert point.bytes == point.vectors * size


def test_the_figure_tells_the_storage_types_of_one_run_apart(tmp_path):
    run = make_run(tmp_path)
    for runs, names in (([run], ["mine, fp16", "mine, int8", "mine, 1-bit"]), ([run, run], ["mine"])):
        draw = show_frontier(runs, "mine").figures["frontier"]
        assert list(draw.args[0]) == names
        draw(tmp_path / "frontier.svg")
    assert (tmp_path / "frontier.svg").is_file()


def test_pages_of_several_lengths_are_not_padded(tmp_path):
    """As of a model with a vector for every token: a page that is shorter wins or loses by its own vectors."""
    run = make_run(tmp_path)
    (subset,) = run.tasks["task"]
    _, pages = subset.load()
    cache, keys = subset.open("page")
    for file in cache.folder.iterdir():
        file.unlink()
    cache.add(keys, [page[: 1 + i % 4] for i, page in enumerate(pages)])
    cache.flush()
    tokens = CachedRun("mine", "own", 0, {"task": [type(subset)(subset.judged, subset.folders, has_prefixes=False)]})
    points = score_frontier(tokens)
    assert {(point.width, point.storage) for point in points} == {
        (width, storage) for width in (32, 64, 128) for storage in ("fp16", "int8", "1-bit")
    }
    assert all(point.vectors == pytest.approx(np.mean([1 + i % 4 for i in range(9)])) for point in points)


@pytest.mark.parametrize(("storage", "most"), [("fp16", 1e-3), ("int8", 0.01), ("1-bit", 0.3)])
def test_what_is_stored_is_near(storage, most):
    vectors = normalize(torch.randn(50, 4, 128, generator=torch.Generator().manual_seed(0)), dim=-1)
    cosines = torch.cosine_similarity(vectors, quantise(vectors, storage), dim=-1)
    assert 1 - float(cosines.min()) < most


def test_the_papers_points_have_its_bytes():
    points = published_points("ViDoRe(v3)")
    assert (16 * 1024, 45.4) in points["the paper: RandSlot (Qwen2.5-VL-3B)"]
    assert (4 * 1024, 32.5) in points["the paper: RandSlot (Qwen2.5-VL-3B)"]  # one vector
    assert points["the paper: CausalEmbed"] == [(128 * 1024, 42.6)]
    assert points["the paper: BiQwen2"] == [(4 * 1024, 36.2)]
    assert set(TASKS) == {name for name in TASKS if published_points(name)}


def test_the_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_set(tmp_path / "set", 2, split="test", seed=0)
    make("qwen3-vl", visual_tokens=16).save_pretrained("model")
    make("qwen3-vl", visual_tokens=16, slots="tokens").save_pretrained("tokens")
    done = CliRunner().invoke(app, ["evaluate", "model", "--data", "set", "--frontier"])
    assert done.exit_code == 0, done.exception
    assert "| model, zero | 4 | 64 | fp16 | 512 |" in Path("results/frontier/all-cuts.md").read_text()
    assert Path("results/frontier/frontier.svg").is_file()
    narrow = CliRunner().invoke(app, ["evaluate", "model", "--data", "set", "--width", "32", "--page-vectors", "2"])
    assert narrow.exit_code == 0, narrow.exception
    score = f"{float(narrow.stdout.split()[2]):.1f}"  # of pages that were encoded narrow
    assert f"| model, zero | 2 | 32 | fp16 | 128 | {score} |" in Path("results/frontier/all-cuts.md").read_text()
    others.save_qwen3_vl_embedding(tmp_path / "dense")  # one vector; below, the hidden states of all its tokens
    named = ["model", "model,page_vectors=1,windows=4", "tokens,reduction=semcluster,page_vectors=4,width=32", "dense"]
    named.append("dense,template=embedding,slots=tokens,visual_tokens=16")
    done = CliRunner().invoke(app, ["compare", *named, "--data", "set", "--frontier", "--format", "csv"])
    assert done.exit_code == 0, done.exception
    with Path("comparison/all-cuts.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    counts = {row["run"].split(", ")[0]: float(row["vectors per page"]) for row in rows}  # the last is the full budget
    assert [counts[name] for name in named[:4]] == [4, 4, 4, 1]
    assert counts[named[4]] > 16
    clustered = [row for row in rows if "cluster" in row["run"]]
    assert {(row["vectors per page"], row["width"]) for row in clustered} == {("4", "32")}
    assert {row["bytes per page"] for row in clustered} == {"256", "136", "16"}
