"""nDCG equals pytrec_eval's, ties and grades included."""

from __future__ import annotations

import numpy as np
import pytest
import pytrec_eval

from randslot.evaluation.metrics import ndcg, ndcg_of_each

PAGES = [f"page-{i}" for i in range(30)] + ["a", "Z", "10", "9"]


def test_ndcg_is_that_of_pytrec_eval_with_ties_and_grades():
    random = np.random.default_rng(0)
    scores = random.integers(0, 6, (50, len(PAGES))).astype(np.float32)  # many ties
    grades = {
        f"q{q}": {PAGES[p]: int(random.integers(0, 3)) for p in random.choice(len(PAGES), 6, replace=False)}
        for q in range(50)
    }
    run = {f"q{q}": {page: float(value) for page, value in zip(PAGES, scores[q], strict=True)} for q in range(50)}
    expected = pytrec_eval.RelevanceEvaluator(grades, {"ndcg_cut.5,10"}).evaluate(run)
    for k in (5, 10):
        found = ndcg_of_each(scores, PAGES, list(grades.values()), k)
        assert found == pytest.approx([expected[f"q{q}"][f"ndcg_cut_{k}"] for q in range(50)], abs=1e-9)


def test_a_perfect_ranking_is_one():
    assert ndcg(["a", "b", "c"], {"b": 1, "a": 2}, 5) == 1.0
    assert ndcg(["c", "b", "a"], {"b": 1, "a": 2}, 5) < 0.7
