"""Views, winners and readouts against slow loops, and analyses of what an evaluation left, without the model."""

from __future__ import annotations

import csv
import json
import math
import shutil
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import pytrec_eval
import torch
from torch.nn.functional import normalize
from typer.testing import CliRunner

from randslot.cli import app
from randslot.errors import RandSlotError, UsageError
from randslot.evaluation.analysis import (
    CachedRun,
    CachedSubset,
    View,
    count_winners,
    find_winners,
    full_view,
    intervene,
    judge_budgets,
    list_gains,
    list_readouts,
    list_winners,
    read_runs,
    score_subset,
    score_views,
    sweep_budgets,
)
from randslot.evaluation.analysis_report import PAPER, list_costs
from randslot.evaluation.evaluate import Evaluation
from randslot.evaluation.result_files import Result
from randslot.evaluation.tasks import find_tasks, own_task
from research.samples.sets import write_set
from support.cached import make_subset
from support.copies import write_v3
from support.models import make


def random_run(folder: Path, num_vectors: int = 5, name: str = "mine") -> CachedRun:
    generator = torch.Generator().manual_seed(3)
    tasks = {}
    for task in ("one", "two", "three"):
        queries = normalize(torch.randn(7, num_vectors, 8, generator=generator), dim=-1)
        pages = normalize(torch.randn(9, num_vectors, 8, generator=generator), dim=-1)
        grades = [{f"p{i}": 2, f"p{i + 1}": 1} for i in range(7)]
        tasks[task] = [make_subset(folder / task, queries, pages, grades)]
    return CachedRun(name, "own", num_vectors, tasks)


def slow_score(part: CachedSubset, query_readouts: list[int], page_readouts: list[int]) -> float:
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
    whole = score_subset(part, [full_view(4)])
    monkeypatch.setattr("randslot.evaluation.analysis.BLOCK_BYTES", 1)
    np.testing.assert_array_equal(score_subset(part, [full_view(4)])[full_view(4)], whole[full_view(4)])


def test_a_task_of_several_subsets_has_their_mean(tmp_path):
    run = random_run(tmp_path)
    both = CachedRun("mine", "own", 5, {"all": [part for parts in run.tasks.values() for part in parts]})
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
    with pytest.raises(UsageError, match="mine was evaluated with 5 vectors per side, but needs 6"):
        sweep_budgets([run], num_vectors=6)


def test_budgets_are_not_taken_from_vectors_that_have_no_prefixes(tmp_path):
    """All of them can be analysed; fewer would be others than those of a smaller budget."""
    run = replace(random_run(tmp_path), has_prefixes=False)
    assert count_winners(run, 5).pairs > 0
    for analyse in (lambda: sweep_budgets([run]), lambda: judge_budgets([run]), lambda: intervene(run, 4)):
        with pytest.raises(UsageError, match="mine does not contain the vectors of smaller budgets"):
            analyse()


# -- winners

E4 = torch.eye(4)


def test_known_winners_give_known_h_and_u(tmp_path):
    """First pair: d1 wins for all. Second: each query readout has a page readout of its own."""
    same, each = E4[0].repeat(4, 1), E4
    queries, pages = torch.stack([same, each]), torch.stack([torch.stack([E4[0], -E4[0], -E4[0], -E4[0]]), each])
    part = make_subset(tmp_path, queries, pages, [{"p0": 1, "p1": 0}, {"p1": 2}])
    found = count_winners(CachedRun("mine", "own", 4, {"task": [part]}))
    assert (found.pairs, found.ties) == (2, 0)
    assert found.counts.sum(0).tolist() == [5, 1, 1, 1]
    assert found.spread == (1 + 4) / 2
    shares = [5 / 8, 1 / 8, 1 / 8, 1 / 8]
    assert found.entropy == pytest.approx(-sum(share * math.log(share) for share in shares) / math.log(4))
    assert found.shares.sum(0).tolist() == [1, 1, 1, 1]
    assert found.shares[:, 0].tolist() == [1, 0, 0, 0]  # d1 wins both times for q1
    assert found.shares[:, 1].tolist() == [0.5, 0.5, 0, 0]
    assert list_winners([found]).rows[0][1:5] == [found.entropy, 2.5, 2, 0]


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
def test_more_readouts_than_were_evaluated_are_refused(analysis, tmp_path):
    with pytest.raises(UsageError, match=r"mine was evaluated with 5 vectors per side, but needs 6. Evaluate with"):
        analysis(random_run(tmp_path), 6)


# -- the command, on what an evaluation left


def evaluate(strategy: str, data: list[Path], output: Path, **options: object) -> list[Result]:
    settings = {"slots": strategy, "query_vectors": 8, "page_vectors": 8, "visual_tokens": 16} | options
    model = make("qwen3-vl", **settings)
    return Evaluation(model, strategy, output, output / "vectors").run([own_task(folder) for folder in data])


@pytest.fixture(scope="module")
def sets(tmp_path_factory) -> list[Path]:
    folders = [tmp_path_factory.mktemp("data") / name for name in ("first", "second")]
    for seed, folder in enumerate(folders):
        write_set(folder, 3, split="test", seed=seed)
    return folders


@pytest.fixture(scope="module")
def results(sets, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("results")
    evaluate("zero", sets, output)
    evaluate("random", sets, output, inference="random")
    return output


def run(*arguments: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if code:
        assert isinstance(done.exception, UsageError if code == 2 else RandSlotError), done.output
        return str(done.exception)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_gains_beyond_four_vectors_have_intervals(results):
    """They are those of the sweep, and of compare's bootstrap."""
    runs = read_runs([results])
    swept = {row[0]: row[2:] for row in sweep_budgets(runs).rows if row[1] == "both"}
    table = judge_budgets(runs)
    assert [row[1] for row in table.rows] == [5, 6, 7, 8] * 2
    for name, budget, difference, low, high, verdict in table.rows:
        assert difference == pytest.approx(swept[name][budget - 1] - swept[name][3], abs=1e-9)
        assert low <= difference <= high
        assert (verdict == "within noise") == (low <= 0 <= high)
    assert judge_budgets(runs, 8).rows == []


def test_one_encoding_with_eight_gives_what_each_budget_gives_alone(sets, results, tmp_path):
    """The sweep's scores are those of evaluations that really encode with fewer vectors."""
    table = list(csv.reader(StringIO(run("analyse", "budgets", results, "--format", "csv").split("\n\n")[0])))
    swept = {(row[0], row[1]): dict(zip(table[0][2:], map(float, row[2:]), strict=True)) for row in table[1:] if row}
    for strategy in ("zero", "random"):
        for query, page, side in ((2, 2, "both"), (1, 4, "query"), (4, 3, "page")):
            options = {"query_vectors": query, "page_vectors": page, "inference": strategy}
            alone = evaluate(strategy, sets, tmp_path / f"{strategy}{query}{page}", **options)
            expected = 100 * np.mean([result.ndcg[5] for result in alone])
            num = str(query if side == "query" else page)
            assert swept[f"{strategy}, {strategy}", side][num] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("strategy", ["fixed", "learned", "feedback"])
def test_strategies_follow_their_rule_beyond_their_budget(strategy, sets, tmp_path):
    """A model made for four vectors is swept to eight: stored slots repeat the last, feedback goes on."""
    model = make("qwen3-vl", slots=strategy, visual_tokens=16)
    model.use(query_vectors=8, page_vectors=8)
    Evaluation(model, strategy, tmp_path, tmp_path / "vectors").run([own_task(sets[0])])
    (row, *_) = csv.reader(StringIO(run("analyse", "budgets", tmp_path, "--format", "csv")))
    assert row[-1] == "8"


def test_runs_on_vidore_v3_have_the_papers_numbers_beside_theirs(results, tmp_path):
    for file in shutil.copytree(results, tmp_path / "v3").rglob("*.json"):
        file.write_text(file.read_text().replace('"benchmark": "own"', '"benchmark": "ViDoRe(v3)"'))
    printed = run("analyse", tmp_path / "v3")
    assert "| RandSlot | both | 4 | 4 | 0.909 | 1.376 |" in printed
    assert "| Zero-Feedback | both | 1 | 1 | 36.400 |" in printed
    assert printed.count("## The paper: ") == 5
    assert "The paper" not in run("analyse", results)


def test_a_model_is_analysed_with_both_inferences_on_the_papers_benchmark(tmp_path, monkeypatch):
    """The paper's rows of RandSlot have random slots at inference: they must not stand beside zeros alone."""
    make("qwen3-vl", visual_tokens=16).save_pretrained(str(tmp_path / "model"))
    tasks = find_tasks([], ["hr"], write_v3(tmp_path / "copies"))
    monkeypatch.setattr("randslot.evaluation.tasks.choose_tasks", lambda *_: tasks)
    monkeypatch.chdir(tmp_path)
    printed = run("analyse", "winners", "model", "-b", "ViDoRe(v3)")
    assert "| model, zero |" in printed
    assert "| model, random |" in printed
    assert "RandSlot has random slots at inference (RS-R), like your runs that end in random" in printed


def test_a_run_without_prefixes_is_analysed_but_for_its_budgets(results, tmp_path):
    """As of your own strategy, which need not be known here."""
    own = shutil.copytree(results, tmp_path / "own")
    for file in (own / "zero").rglob("*.json"):
        row = json.loads(file.read_text())
        row["settings"] |= {"slots": "my_slots:Noisy", "inference": "my_slots:Noisy"}
        file.write_text(json.dumps(row | {"how": "my_slots:Noisy", "has_prefixes": False}))
    (mine,) = [found for found in read_runs([own]) if not found.has_prefixes]
    assert not mine.tasks["first"][0].has_prefixes  # vectors of a larger budget are not read for it
    assert "does not contain the vectors of smaller budgets" in run("analyse", "budgets", own, code=2)
    done = CliRunner().invoke(app, ["analyse", str(own / "zero"), "--vectors", "8"])
    assert done.exit_code == 0, done.exception
    assert "skipped: budgets" in done.stderr
    assert "| zero, my_slots:Noisy |" in done.stdout


def test_every_benchmark_is_analysed_by_itself(results, tmp_path):
    both = shutil.copytree(results, tmp_path / "both")
    for file in both.rglob("own-second.json"):
        text = file.read_text().replace('"benchmark": "own"', '"benchmark": "ViDoRe(v3)"')
        file.with_name("ViDoRe(v3)-second.json").write_text(text)
    printed = run("analyse", both, "-o", tmp_path / "report")
    assert printed.count("## Budgets: nDCG@5 by the number") == 2
    assert printed.count("## The paper: ") == 5
    page = (tmp_path / "report" / "index.html").read_text()
    for place in ("own", "ViDoRe(v3)"):
        assert (tmp_path / "report" / place / "winners.svg").is_file()
        assert f'src="{place}/winners.svg"' in page


def test_the_same_results_give_the_same_figures_and_comparison(results, tmp_path):
    for name in ("one", "two"):
        run("analyse", "budgets", results, "-o", tmp_path / name)
    assert (tmp_path / "one" / "budgets.svg").read_bytes() == (tmp_path / "two" / "budgets.svg").read_bytes()
    _, *rows = filter(None, csv.reader(StringIO(run("compare", results, "--format", "csv"))))
    assert [row[1] for row in rows] == ["first", "second", "all tasks"] * 2
    assert [row[-1] for row in rows[:3]] == ["base"] * 3


def test_what_is_missing_or_does_not_fit_is_refused(sets, results, tmp_path):
    for arguments in ([], [tmp_path], ["bogus", results], ["winners", ".", "--dim", 4]):
        run("analyse", *arguments, code=2)
    assert "2 or more, not 1" in run("analyse", "winners", results, "--vectors", 1, code=2)
    assert "but needs 12" in run("analyse", "winners", results, "--vectors", 12, code=2)
    broken = shutil.copytree(results, tmp_path / "broken")
    shutil.rmtree(next((broken / "vectors").glob("*/page-zero*")))
    assert "vectors are missing from" in run("analyse", "winners", broken, code=1)
    for file in (broken / "vectors" / "judged").iterdir():
        file.unlink()
    assert f"cannot read {broken}/vectors/judged/" in run("analyse", "winners", broken, code=1)
    evaluate("fixed", sets[:1], tmp_path / "other")
    assert "evaluate both on the same" in run("analyse", tmp_path / "other", results, code=2)
    tokens = make("qwen3-vl", slots="tokens", visual_tokens=16)
    Evaluation(tokens, "tokens", tmp_path / "tokens", tmp_path / "tokens/vectors").run([own_task(sets[0])])
    assert "has no slots to analyse" in run("analyse", tmp_path / "tokens", code=2)


def test_results_with_a_smaller_budget_do_not_mix_with_others(sets, tmp_path):
    evaluate("zero", sets[:1], tmp_path / "large")
    evaluate("random", sets[:1], tmp_path / "large", inference="random")
    evaluate("zero", sets[1:], tmp_path / "small", query_vectors=3, page_vectors=2)
    words = ["analyse", "winners", str(tmp_path / "large"), str(tmp_path / "small")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.exception
    assert done.stderr == "skipped: zero, zero, 3/2 vectors (second): 8/8 are analysed\n"


def test_costs_are_those_of_the_paper():
    rows = {(row[1], row[2]): row for row in list_costs(PAPER).rows}
    shown = {key: [round(row[5], 2), round(row[6], 2), row[7]] for key, row in rows.items()}
    assert shown == {(4, 4): [16, 1.53, 16], (6, 6): [24, 2.29, 36], (16, 32): [128, 12.21, 512]}
    assert rows[4, 4][8] == 16 * 2048
    assert run("analyse", "cost").count("| RandSlot |") == 2
    assert "| yours | 8 | 8 | 1024 | int8 | 8.00 | 0.76 | 64 | 65536 |" in run(
        "analyse", "cost", "--vectors", 8, "--dim", 1024
    )
