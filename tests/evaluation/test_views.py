"""Views, winners and readouts on hand-made vectors with known answers, and against slow loops."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import pytrec_eval
import torch
from torch.nn.functional import normalize

from randslot.errors import UsageError
from randslot.evaluation.analysis import (
    count_winners,
    find_winners,
    intervene,
    judge_budgets,
    list_gains,
    list_readouts,
    list_winners,
    sweep_budgets,
)
from randslot.evaluation.cache import Judged, VectorCache
from randslot.evaluation.runs import Part, Run, View, full_view, score_part, score_views


def make_part(folder: Path, queries: torch.Tensor, pages: torch.Tensor, grades: list[dict[str, int]]) -> Part:
    """Keep vectors as an evaluation does."""
    folders = {"query": folder / f"query-zero-k{queries.shape[1]}", "page": folder / f"page-zero-k{pages.shape[1]}"}
    keys = {"query": [f"q{i}" for i in range(len(queries))], "page": [f"p{i}" for i in range(len(pages))]}
    for side, vectors in (("query", queries), ("page", pages)):
        cache = VectorCache(folders[side])
        cache.add(keys[side], list(vectors))
        cache.flush()
    return Part(Judged(keys["page"], keys["page"], keys["query"], keys["query"], grades), folders)


def random_run(folder: Path, num_vectors: int = 5, name: str = "mine") -> Run:
    generator = torch.Generator().manual_seed(3)
    tasks = {}
    for task in ("one", "two", "three"):
        queries = normalize(torch.randn(7, num_vectors, 8, generator=generator), dim=-1)
        pages = normalize(torch.randn(9, num_vectors, 8, generator=generator), dim=-1)
        grades = [{f"p{i}": 2, f"p{i + 1}": 1} for i in range(7)]
        tasks[task] = [make_part(folder / task, queries, pages, grades)]
    return Run(name, "own", num_vectors, tasks)


def slow_score(part: Part, query_readouts: list[int], page_readouts: list[int]) -> float:
    """Return mean nDCG@5 by three loops and pytrec_eval."""
    queries, pages = part.load()
    run = {
        query: {
            page: sum(max(float(queries[i, a] @ pages[j, b]) for b in page_readouts) for a in query_readouts)
            for j, page in enumerate(part.judged.page_ids)
        }
        for i, query in enumerate(part.judged.query_ids)
    }
    grades = dict(zip(part.judged.query_ids, part.judged.grades, strict=True))
    found = pytrec_eval.RelevanceEvaluator(grades, {"ndcg_cut.5"}).evaluate(run)
    return float(np.mean([row["ndcg_cut_5"] for row in found.values()]))


def test_views_score_as_three_loops_do(tmp_path):
    run = random_run(tmp_path)
    views = [View((0, 1, 2), (0, 1, 2)), View((2,), (0, 1, 3)), View((0, 1, 4), (1,)), full_view(5), full_view(2, 4)]
    for view, scores in score_views(run, views).items():
        for task, (part,) in run.tasks.items():
            assert scores[task] == pytest.approx(100 * slow_score(part, list(view.query), list(view.page)), abs=1e-4)


def test_many_queries_are_scored_in_blocks(tmp_path, monkeypatch):
    (part,) = random_run(tmp_path).tasks["one"]
    whole = score_part(part, [full_view(4)])
    monkeypatch.setattr("randslot.evaluation.runs.BLOCK_BYTES", 1)
    np.testing.assert_array_equal(score_part(part, [full_view(4)])[full_view(4)], whole[full_view(4)])


def test_a_task_of_several_subsets_has_their_mean(tmp_path):
    run = random_run(tmp_path)
    both = Run("mine", "own", 5, {"all": [part for parts in run.tasks.values() for part in parts]})
    view = full_view(4)
    assert score_views(both, [view])[view]["all"] == pytest.approx(
        np.mean(list(score_views(run, [view])[view].values()))
    )


def test_a_sweep_varies_both_sides_and_each_alone(tmp_path):
    run = random_run(tmp_path)
    table = sweep_budgets([run], num_vectors=3)
    assert table.heads == ["run", "side", "1", "2", "3", "4", "5"]
    parts = [part for parts in run.tasks.values() for part in parts]
    for _, side, *scores in table.rows:
        for num, score in enumerate(scores, start=1):
            query, page = {"both": (num, num), "query": (num, 3), "page": (3, num)}[side]
            slow = np.mean([slow_score(part, list(range(query)), list(range(page))) for part in parts])
            assert score == pytest.approx(100 * slow, abs=1e-4)
    with pytest.raises(UsageError, match="the budget sweep needs 6 vectors a side, and mine was evaluated with 5"):
        sweep_budgets([run], num_vectors=6)


def test_budgets_are_not_taken_from_vectors_that_have_no_prefixes(tmp_path):
    """All of them can be analysed; fewer would be others than those of a smaller budget."""
    run = replace(random_run(tmp_path), has_prefixes=False)
    assert count_winners(run, 5).pairs > 0
    for analyse in (lambda: sweep_budgets([run]), lambda: judge_budgets([run]), lambda: intervene(run, 4)):
        with pytest.raises(UsageError, match="takes the first vectors of mine for those of a smaller budget") as raised:
            analyse()
        assert "\n" not in str(raised.value)


# -- winners

E4 = torch.eye(4)


def test_known_winners_give_known_h_and_u(tmp_path):
    """First pair: d1 wins for all. Second: each query readout has a page readout of its own."""
    same, each = E4[0].repeat(4, 1), E4
    queries, pages = torch.stack([same, each]), torch.stack([torch.stack([E4[0], -E4[0], -E4[0], -E4[0]]), each])
    part = make_part(tmp_path, queries, pages, [{"p0": 1, "p1": 0}, {"p1": 2}])
    found = count_winners(Run("mine", "own", 4, {"task": [part]}))
    assert (found.pairs, found.ties) == (2, 0)
    assert found.counts.sum(0).tolist() == [5, 1, 1, 1]
    assert found.spread == (1 + 4) / 2
    shares = [5 / 8, 1 / 8, 1 / 8, 1 / 8]
    assert found.entropy == pytest.approx(-sum(share * math.log(share) for share in shares) / math.log(4))
    assert found.shares.sum(0).tolist() == [1, 1, 1, 1]
    assert found.shares[:, 0].tolist() == [1, 0, 0, 0]  # d1 wins both times for q1
    assert found.shares[:, 1].tolist() == [0.5, 0.5, 0, 0]
    assert list_winners([found]).rows[0][1:5] == [found.entropy, 2.5, 2, 0]


def test_evenly_spread_winners_have_h_one_and_a_single_one_h_zero(tmp_path):
    grades = [{"p0": 1}]
    even = make_part(tmp_path / "even", E4[None], E4[None], grades)
    assert count_winners(Run("even", "own", 4, {"task": [even]})).entropy == pytest.approx(1)
    single = make_part(tmp_path / "one", E4[:1].repeat(1, 4, 1).view(1, 4, 4), E4[None], grades)
    found = count_winners(Run("single", "own", 4, {"task": [single]}))
    assert (found.entropy, found.spread) == (0, 1)


def test_ties_go_to_the_lowest_index_and_are_counted():
    query = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]], dtype=torch.float64)
    page = torch.tensor([[[0.6, 0.8], [0.6 + 5e-9, 0.8 - 1e-4]]], dtype=torch.float64)
    winners, ties = find_winners(query, page)
    assert winners.tolist() == [[0, 0]]
    assert ties == 1  # the second is better by 5e-9 for the first query readout: within the tolerance
    page[0, 1, 0] = 0.6 + 5e-8
    winners, ties = find_winners(query, page)
    assert winners.tolist() == [[1, 0]]
    assert ties == 0


def test_winners_are_pooled_over_tasks_by_pairs(tmp_path):
    run = random_run(tmp_path)
    found = count_winners(run)
    parts = [count_winners(Run("part", "own", 5, {task: parts})) for task, parts in run.tasks.items()]
    assert found.pairs == sum(part.pairs for part in parts) == 3 * 14
    assert found.spread == pytest.approx(sum(part.spread * part.pairs for part in parts) / found.pairs)
    torch.testing.assert_close(found.counts, sum(part.counts for part in parts))


def test_winners_are_those_of_a_loop(tmp_path):
    run = random_run(tmp_path)
    counts = torch.zeros(4, 4, dtype=torch.int64)
    for (part,) in run.tasks.values():
        queries, pages = part.load()
        for i, grades in enumerate(part.judged.grades):
            for page in grades:
                for a in range(4):
                    scores = [float(queries[i, a] @ pages[int(page[1:]), b]) for b in range(4)]
                    counts[a, scores.index(max(scores))] += 1
    assert count_winners(run).counts.tolist() == counts.tolist()


# -- readouts


def test_interventions_are_those_of_slow_loops(tmp_path):
    run = random_run(tmp_path)
    readouts = intervene(run)
    parts = [part for parts in run.tasks.values() for part in parts]
    everything = [0, 1, 2, 3]

    def mean(query: list[int], page: list[int]) -> float:
        return 100 * float(np.mean([slow_score(part, query, page) for part in parts]))

    full = mean(everything, everything)
    table = list_readouts([readouts])
    for row in table.rows:
        _, side, shown, *numbers = row
        assert shown == pytest.approx(full, abs=1e-4)
        for place in everything:
            others = [k for k in everything if k != place]
            single = mean([place], everything) if side == "query" else mean(everything, [place])
            removed = mean(others, everything) if side == "query" else mean(everything, others)
            assert numbers[place] == pytest.approx(single, abs=1e-4)
            assert numbers[4 + place] == pytest.approx(full - removed, abs=1e-4)


def test_joint_use_tells_a_tasks_own_best_from_one_fixed_readout(tmp_path):
    run = random_run(tmp_path)
    readouts = intervene(run)
    singles = {task: [slow_score(part, [0, 1, 2, 3], [k]) for k in range(4)] for task, (part,) in run.tasks.items()}
    full = {task: slow_score(part, [0, 1, 2, 3], [0, 1, 2, 3]) for task, (part,) in run.tasks.items()}
    own = [100 * (full[task] - max(singles[task])) for task in full]
    means = np.mean(list(singles.values()), axis=0)
    fixed = 100 * (np.mean(list(full.values())) - means.max())
    ((_, *gains, joint, best, mean),) = list_gains([readouts]).rows
    assert gains == pytest.approx(own, abs=1e-4)
    assert joint == pytest.approx(fixed, abs=1e-4)
    assert best == f"r{means.argmax() + 1}"
    assert mean == pytest.approx(np.mean(own), abs=1e-4)
    assert joint > mean  # one fixed readout cannot be better than each task's own


@pytest.mark.parametrize("analysis", [count_winners, intervene])
def test_fewer_than_two_readouts_are_refused(analysis, tmp_path):
    with pytest.raises(UsageError, match="at least 2 vectors a side, not 1"):
        analysis(random_run(tmp_path), 1)
    with pytest.raises(
        UsageError, match=r"needs 6 vectors a side, and mine was evaluated with 5: evaluate with --query"
    ):
        analysis(random_run(tmp_path / "again"), 6)
