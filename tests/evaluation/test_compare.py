"""Runs and models side by side: steady gains are told from noise, and every figure is that of a library."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from randslot.cli import app
from randslot.errors import UsageError
from randslot.evaluation.compare import compare_runs, describe_interval, find_frontier
from randslot.evaluation.evaluate import evaluate_model
from randslot.evaluation.evaluate_search import ComparedSearch, compare_models, list_compared
from randslot.evaluation.result_files import read_results
from randslot.evaluation.tasks import find_tasks, own_task
from research.samples.sets import write_set
from support import others

SOME = ComparedSearch("a", 50.0, 0.0, 0.0, 0.0, "base", 4.0, 128, 1000, 0.1, 3.0)


def make_results(folder: Path, name: str, each: dict[str, list[float]], asked: str = "same") -> Path:
    (folder / name).mkdir(parents=True)
    for task, values in each.items():
        mean = float(np.mean(values))
        result = {
            "model": name,
            "weights": name,
            "settings": {"seed": 42},
            "how": "zero",
            "is_drawn": False,
            "has_prefixes": True,
            "counts": {"query": 4, "page": 4},
            "benchmark": "own",
            "task": task,
            "ndcg@5": mean,
            "ndcg@10": mean,
            "cache": "",
            "vectors": {},
            "subsets": {"default": {"ndcg@5": mean, "ndcg@10": mean, "queries": 1, "pages": 1, "each": values}},
        }
        result["subsets"]["default"] |= {"judged": "", "asked": asked}
        (folder / name / f"{task}.json").write_text(json.dumps(result))
    return folder / name


def test_a_steady_gain_is_told_from_noise(tmp_path):
    generator = np.random.default_rng(0)
    base = generator.uniform(0, 0.5, 400)
    noise = generator.normal(0, 0.2, 400)
    noise -= noise.mean()
    tasks = {"noise": noise, "gain": noise + 0.05, "loss": noise - 0.05}
    first = make_results(tmp_path, "first", dict.fromkeys(tasks, base.tolist()))
    second = make_results(tmp_path, "second", {task: (base + change).tolist() for task, change in tasks.items()})
    rows = {row[1]: row for row in compare_runs([first, second]).rows if row[0] == "second, zero"}
    assert {task: row[-1] for task, row in rows.items()} == {
        "noise": "within noise",
        "gain": "better",
        "loss": "worse",
        "all tasks": "within noise",
    }
    error = 100 * 0.2 / np.sqrt(400)  # the known one
    _, _, _, difference, low, high, _ = rows["gain"]
    assert difference == pytest.approx(5, abs=1e-6)
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.1)
    narrower = rows["all tasks"][5] - rows["all tasks"][4]
    assert narrower == pytest.approx((high - low) / np.sqrt(3), rel=0.1)


def test_a_score_has_an_interval_over_its_queries(tmp_path):
    """As wide as the normal approximation says."""
    values = np.random.default_rng(1).uniform(0, 1, 400)
    (result,) = read_results(make_results(tmp_path, "first", {"task": values.tolist()}))
    words = describe_interval(result).split()
    low, high = float(words[3]), float(words[5])
    error = 100 * values.std() / np.sqrt(400)
    assert (low + high) / 2 == pytest.approx(100 * values.mean(), abs=0.2)
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.05)
    assert words[-2:] == ["400", "queries)"]


def test_pairing_makes_intervals_narrow(tmp_path):
    """Queries differ far more than runs do: unpaired, this gain would drown."""
    base = np.random.default_rng(0).uniform(0, 0.9, 50)
    first = make_results(tmp_path, "first", {"task": base.tolist()})
    second = make_results(tmp_path, "second", {"task": (base + 0.01).tolist()})
    _, (*_, difference, low, high, verdict) = compare_runs([first, second]).rows
    assert (round(difference, 6), round(low, 6), round(high, 6), verdict) == (1, 1, 1, "better")


def test_compare_refuses_what_cannot_be_paired(tmp_path):
    first = make_results(tmp_path, "first", {"task": [0.5, 0.5]})
    other = make_results(tmp_path, "other", {"task": [0.5, 0.5]}, asked="another")
    tasks = make_results(tmp_path, "tasks", {"one": [0.5], "two": [0.5]})
    for folders, message in [
        ([first], "only one run found: first, zero"),
        ([first, other], "differ in queries or pages of task"),
        ([first, tasks], "Evaluate both on the same tasks"),
    ]:
        with pytest.raises(UsageError, match=message):
            compare_runs(folders)


def test_the_base_can_be_chosen_and_its_scores_are_shown(tmp_path):
    for name, score in (("first", 0.5), ("second", 0.7), ("third", 0.6)):
        make_results(tmp_path, name, {"task": [score, score]})
    table = compare_runs([tmp_path], base="second")
    assert table.title.startswith("nDCG@5 minus that of second, zero,")
    assert table.rows[0] == ["second, zero", "task", pytest.approx(70), None, None, None, "base"]
    assert [(row[0], row[2], row[3]) for row in table.rows[1:]] == [
        ("first, zero", pytest.approx(50), pytest.approx(-20)),
        ("third, zero", pytest.approx(60), pytest.approx(-10)),
    ]
    for wrong in ("zero", "none"):
        with pytest.raises(UsageError, match=rf"--base '{wrong}' names .*The runs: first, zero; second, zero"):
            compare_runs([tmp_path], base=wrong)


def test_the_frontier_is_what_no_other_beats_for_less() -> None:
    rows = [
        SOME,
        replace(SOME, search="b", ndcg=40.0, bytes=2000),
        replace(SOME, search="c", ndcg=60.0, bytes=3000),
        replace(SOME, search="d", ndcg=55.0, bytes=1000),
        replace(SOME, search="e", ndcg=60.0, bytes=9000),
    ]
    assert [one.search for one in find_frontier(rows)] == ["d", "c"]


@pytest.mark.nightly
def test_models_are_compared_on_the_same_pages(tmp_path: Path) -> None:
    write_set(tmp_path / "own", 3, split="test", seed=0)
    colqwen2, minilm = others.save_colqwen2(tmp_path / "colqwen2"), others.save_minilm(tmp_path / "minilm")
    task = own_task(tmp_path / "own")
    words, image, text, both = (
        compare_models(["words", str(colqwen2), str(minilm)], task, tmp_path / "out")[:3]
        + compare_models(["words", str(minilm)], task, tmp_path / "out", both=True)[2:]
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
    assert list_compared([words, image]).rows[0][:6] == ["words", words.ndcg, None, None, None, "base"]


def test_what_cannot_be_compared_is_told(tmp_path: Path) -> None:
    write_set(tmp_path / "own", 1, split="test", seed=0)
    with pytest.raises(UsageError, match="pass at least two to compare"):
        compare_models(["words"], own_task(tmp_path / "own"), tmp_path / "out")
    (vidore,) = find_tasks([], ["esg"])
    with pytest.raises(UsageError, match="need a local set"):
        compare_models(["words", "embedded"], vidore, tmp_path / "out")
    arguments = ["compare", "words", "embedded", "--data", str(tmp_path / "own"), "--base", "words"]
    assert isinstance(CliRunner().invoke(app, arguments).exception, UsageError)
