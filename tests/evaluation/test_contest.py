"""Models side by side: what is told of each is what its library and its evaluation say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from randslot.cli import app
from randslot.errors import UsageError
from randslot.evaluation.contest import Standing, compare_models, find_frontier, make_table
from randslot.evaluation.evaluate import evaluate_model
from randslot.evaluation.tasks import find_tasks, own_task
from research.samples.sets import write_set
from support import others
from support.copies import write_v2

SOME = Standing("a", 50.0, 0.0, 0.0, 0.0, "base", 4.0, 128, 1000, 0.1, 3.0)


def test_the_frontier_is_what_no_other_beats_for_less() -> None:
    rows = [
        SOME,
        replace(SOME, search="b", ndcg=40.0, bytes=2000),
        replace(SOME, search="c", ndcg=60.0, bytes=3000),
        replace(SOME, search="d", ndcg=55.0, bytes=1000),
        replace(SOME, search="e", ndcg=60.0, bytes=9000),
    ]
    assert [one.search for one in find_frontier(rows)] == ["d", "c"]


@pytest.mark.slow
def test_models_are_compared_on_the_same_pages(tmp_path: Path) -> None:
    write_set(tmp_path / "own", 3, split="test", seed=0)
    colqwen2, minilm = others.save_colqwen2(tmp_path / "colqwen2"), others.save_minilm(tmp_path / "minilm")
    task = own_task(tmp_path / "own")
    words, image, text, both = (
        compare_models(["words", str(colqwen2), str(minilm)], task, tmp_path / "out", draws=200)[:3]
        + compare_models(["words", str(minilm)], task, tmp_path / "out", both=True, draws=200)[2:]
    )
    assert [one.search for one in (words, image, text, both)] == ["words", "colqwen2", "minilm", "minilm and words"]
    assert words.verdict == "base"
    assert words.ndcg > 90  # sample reports are full of words of their own
    assert image.difference == pytest.approx(image.ndcg - words.ndcg)
    assert image.low <= image.difference <= image.high
    assert image.verdict == "worse"
    assert (text.vectors, text.dimension, text.bytes) == (1, 32, 64)
    assert image.bytes == pytest.approx(2 * 16 * image.vectors, abs=32)
    assert image.vectors > 20
    assert words.encode_seconds is None
    assert all(one.encode_seconds > 0 and one.search_ms > 0 for one in (image, text, both))
    assert both.bytes > words.bytes
    (result,) = evaluate_model(str(colqwen2), [task], tmp_path / "results", settings={})
    assert image.ndcg == pytest.approx(100 * result.ndcg[5], abs=3)  # in half precision, some pages change places
    assert make_table([words, image]).rows[0][:6] == ["words", words.ndcg, None, None, None, "base"]


@pytest.mark.slow
def test_the_command_prints_a_table_and_draws_a_figure(tmp_path: Path) -> None:
    write_set(tmp_path / "own", 2, split="test", seed=0)
    minilm = others.save_minilm(tmp_path / "minilm")
    options = ["--data", str(tmp_path / "own"), "-o", str(tmp_path / "out"), "--both"]
    answer = CliRunner().invoke(app, ["compare", "words", str(minilm), *options])
    assert answer.exit_code == 0, answer.output
    for name in ("words", "minilm", "minilm and words"):
        assert f"| {name} |" in answer.output
    assert len(json.loads((tmp_path / "out" / "compare.json").read_text())) == 3
    assert (tmp_path / "out" / "compare.svg").stat().st_size > 1000


def test_what_cannot_be_compared_is_told(tmp_path: Path) -> None:
    write_set(tmp_path / "own", 1, split="test", seed=0)
    with pytest.raises(UsageError, match="name two or more to compare"):
        compare_models(["words"], own_task(tmp_path / "own"), tmp_path / "out")
    write_v2(tmp_path / "copies")
    (task,) = find_tasks([], ["esg"], tmp_path / "copies")
    with pytest.raises(UsageError, match="models are compared on a set of your own"):
        compare_models(["words", "embedded"], task, tmp_path / "out")
    arguments = ["compare", "words", "embedded", "--data", str(tmp_path / "own"), "--base", "words"]
    assert isinstance(CliRunner().invoke(app, arguments).exception, UsageError)
