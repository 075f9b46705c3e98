"""Analysis through the real commands, on what the real evaluate left: no model, no data, nothing encoded again."""

from __future__ import annotations

import csv
import json
import shutil
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import randslot
from randslot.cli import app
from randslot.errors import RandSlotError, UsageError
from randslot.evaluation.analysis import PAPER, Budget, judge_budgets, list_costs, sweep_budgets
from randslot.evaluation.compare import compare_runs
from randslot.evaluation.evaluate import Evaluation
from randslot.evaluation.profile import Protocol, profile
from randslot.evaluation.result import Result, RunKey
from randslot.evaluation.runs import read_runs, run_names
from randslot.evaluation.tasks import own_task
from randslot.model.slots import Random
from randslot.tables import Table, write_table
from research.samples.sets import write_set
from support.models import STRATEGIES, make

pytestmark = pytest.mark.slow


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


def test_a_report_has_all_tables_and_figures_and_encodes_nothing(results, tmp_path, monkeypatch):
    monkeypatch.setattr(randslot.SlotEncoder, "forward", None)
    moved = shutil.copytree(results, tmp_path / "moved")  # vectors are found from where the results are
    printed = run("analyse", moved, "-o", tmp_path / "report")
    for name in ("budgets", "winners", "shares", "readouts", "gains", "cost", "files"):
        for suffix in (".md", ".csv", ".tex"):
            assert (tmp_path / "report" / f"{name}{suffix}").stat().st_size > 100
    page = (tmp_path / "report" / "index.html").read_text()
    for name in ("budgets", "budgets-sides", "winners", "readouts"):
        assert f'src="{name}.svg"' in page
        assert (tmp_path / "report" / f"{name}.svg").read_text().startswith("<?xml")
        assert np.asarray(Image.open(tmp_path / "report" / f"{name}.png")).std() > 5
    assert "zero, zero" in printed
    assert "random, random" in printed


def test_gains_beyond_four_vectors_have_intervals(results):
    """They are those of the sweep, and of compare's bootstrap."""
    runs = read_runs([results])
    swept = {row[0]: row[2:] for row in sweep_budgets(runs).rows if row[1] == "both"}
    table = judge_budgets(runs, draws=500)
    assert [row[1] for row in table.rows] == [5, 6, 7, 8] * 2
    for name, budget, difference, low, high, verdict in table.rows:
        assert difference == pytest.approx(swept[name][budget - 1] - swept[name][3], abs=1e-9)
        assert low <= difference <= high
        assert (verdict == "within noise") == (low <= 0 <= high)
    assert judge_budgets(runs, 8).rows == []


def test_the_same_results_give_the_same_figures(results, tmp_path):
    for name in ("one", "two"):
        run("analyse", "budgets", results, "-o", tmp_path / name)
    assert (tmp_path / "one" / "budgets.svg").read_bytes() == (tmp_path / "two" / "budgets.svg").read_bytes()


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


def test_a_model_is_evaluated_with_eight_vectors_first(sets, tmp_path, monkeypatch):
    make("qwen3-vl", visual_tokens=16).save_pretrained(str(tmp_path / "model"))
    printed = run("analyse", "budgets", tmp_path / "model", "--data", sets[0], "-o", tmp_path / "report")
    assert "| 7 | 8 |" in printed
    monkeypatch.setattr(randslot.SlotEncoder, "forward", None)
    assert "H" in run("analyse", "winners", tmp_path / "report" / "results")


# -- what cannot be analysed


def test_a_run_knows_whether_its_vectors_have_prefixes(results, monkeypatch):
    assert all(found.has_prefixes for found in read_runs([results]))
    monkeypatch.setattr(Random, "prefix_stable", False)
    zero, random = sorted(read_runs([results]), key=lambda found: found.name, reverse=True)
    assert zero.has_prefixes
    assert not random.has_prefixes
    assert not random.tasks["first"][0].has_prefixes  # vectors of a larger budget are not read for it
    assert "takes the first vectors of random, random" in run("analyse", "budgets", results, code=2)


def test_what_is_missing_or_does_not_fit_is_one_line(sets, results, tmp_path):
    assert "name the folder of results, or one of budgets, winners, readouts, cost" in run("analyse", code=2)
    assert "no results in" in run("analyse", tmp_path, code=2)
    assert "'bogus' is not a folder here, nor one of the parts budgets, winners, readouts, cost" in run(
        "analyse", "bogus", results, code=2
    )
    assert "format 'html' is not one of md, csv, latex" in run("analyse", results, "--format", "html", code=2)
    assert "needs 12 vectors a side" in run("analyse", "winners", results, "--vectors", 12, code=2)
    broken = shutil.copytree(results, tmp_path / "broken")
    shutil.rmtree(next((broken / "vectors").glob("*/page-zero*")))
    assert "vectors are missing from" in run("analyse", "winners", broken, code=1)
    for file in (broken / "vectors" / "judged").iterdir():
        file.unlink()
    said = run("analyse", "winners", broken, code=1)
    assert f"{broken}/vectors/judged/" in said
    assert "is not there any more: evaluate again" in said
    evaluate("fixed", sets[:1], tmp_path / "other")
    assert "evaluate both on the same" in run("analyse", tmp_path / "other", results, code=2)
    tokens = make("qwen3-vl", slots="tokens", visual_tokens=16)
    Evaluation(tokens, "tokens", tmp_path / "tokens", tmp_path / "tokens/vectors").run([own_task(sets[0])])
    assert "has a vector for every token" in run("analyse", tmp_path / "tokens", code=2)


def test_runs_have_short_names_that_differ():
    one, two = RunKey("m", "zero", 42, "a" * 32), RunKey("m", "zero", 42, "b" * 32)
    three = RunKey("m", "zero", 7, "c" * 32)
    assert run_names([one]) == {one: "m, zero"}
    assert list(run_names([one, three]).values()) == ["m, zero, seed 42", "m, zero, seed 7"]
    assert list(run_names([one, two]).values()) == ["m, zero, seed 42, aaaaaaaa", "m, zero, seed 42, bbbbbbbb"]


# -- cost


def test_costs_are_those_of_the_paper():
    rows = {(row[1], row[2]): row for row in list_costs(PAPER).rows}
    shown = {key: [round(row[5], 2), round(row[6], 2), row[7]] for key, row in rows.items()}
    assert shown == {(4, 4): [16, 1.53, 16], (6, 6): [24, 2.29, 36], (16, 32): [128, 12.21, 512]}
    assert rows[4, 4][8] == 16 * 2048
    assert run("analyse", "cost").count("| RandSlot |") == 2
    assert "| yours | 8 | 8 | 1024 | int8 | 8.00 | 0.76 | 64 | 65536 |" in run(
        "analyse", "cost", "--vectors", 8, "--dim", 1024
    )
    assert "--dim goes with" in run("analyse", "winners", ".", "--dim", 4, code=2)


@pytest.mark.parametrize(("dtype", "size"), [("fp32", 4096), ("fp16", 2048), ("int8", 1024), ("1-bit", 128)])
def test_a_page_of_four_vectors_takes_so_many_bytes(dtype, size):
    assert Budget("mine", 2, 4, 256, dtype).page_bytes == size
    with pytest.raises(UsageError, match="type 'fp8' is not one of fp32, fp16, int8, 1-bit"):
        Budget("mine", 2, 4, 256, "fp8")
    with pytest.raises(UsageError, match="1 or more"):
        Budget("mine", 0, 4)


def test_files_take_little_more_than_their_vectors(results):
    rows = list(csv.reader(StringIO(run("analyse", "cost", results, "--format", "csv").split("run,")[1])))
    for row in filter(None, rows[1:]):
        theory, files = float(row[-2]), float(row[-1])
        assert theory < files < 1.5 * theory


def test_a_library_shows_what_its_pages_really_take(sets, tmp_path):
    with randslot.Library(tmp_path / "mylib", make("qwen3-vl", visual_tokens=16)) as library:
        library.add([sets[0] / "pages"])
    rows = list(
        csv.reader(StringIO(run("analyse", "cost", tmp_path / "mylib", "--format", "csv").split("library,")[1]))
    )
    assert rows[1][:4] == ["mylib", "4", "64", "9"]
    assert float(rows[1][4]) == 4 * 64 * 2 < float(rows[1][5])
    assert "is a library: only its cost" in run("analyse", tmp_path / "mylib", code=2)


# -- compare


def make_results(folder: Path, name: str, each: dict[str, list[float]], judged: str = "same") -> Path:
    (folder / name).mkdir(parents=True)
    for task, values in each.items():
        mean = float(np.mean(values))
        result = {
            "model": name,
            "weights": name,
            "settings": {"seed": 42},
            "how": "zero",
            "counts": {"query": 4, "page": 4},
            "benchmark": "own",
            "task": task,
            "ndcg@5": mean,
            "ndcg@10": mean,
            "cache": "",
            "vectors": {},
            "subsets": {"default": {"ndcg@5": mean, "ndcg@10": mean, "queries": 1, "pages": 1, "each": values}},
        }
        result["subsets"]["default"]["judged"] = judged
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


def test_pairing_makes_intervals_narrow(tmp_path):
    """Queries differ far more than runs do: unpaired, this gain would drown."""
    base = np.random.default_rng(0).uniform(0, 0.9, 50)
    first = make_results(tmp_path, "first", {"task": base.tolist()})
    second = make_results(tmp_path, "second", {"task": (base + 0.01).tolist()})
    _, (*_, difference, low, high, verdict) = compare_runs([first, second]).rows
    assert (round(difference, 6), round(low, 6), round(high, 6), verdict) == (1, 1, 1, "better")


def test_compare_refuses_what_cannot_be_paired(tmp_path):
    first = make_results(tmp_path, "first", {"task": [0.5, 0.5]})
    other = make_results(tmp_path, "other", {"task": [0.5, 0.5]}, judged="another")
    tasks = make_results(tmp_path, "tasks", {"one": [0.5], "two": [0.5]})
    assert "only one run found, first, zero" in run("compare", first, code=2)
    assert "not judged on the same queries and pages of task" in run("compare", first, other, code=2)
    assert "compare the same tasks" in run("compare", first, tasks, code=2)


def test_compare_works_on_what_evaluate_left(results):
    _, *rows = filter(None, csv.reader(StringIO(run("compare", results, "--format", "csv"))))
    assert [row[1] for row in rows] == ["first", "second", "all tasks"] * 2
    assert [row[-1] for row in rows[:3]] == ["base"] * 3
    assert all(row[-1] in ("better", "worse", "within noise") for row in rows[3:])


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
    assert "| second, zero | task | 70.00 | - | - | - | base |" in run("compare", tmp_path, "--base", "second, zero")
    runs = "the runs are first, zero; second, zero; third, zero"
    assert f"--base 'zero' names several runs; {runs}" in run("compare", tmp_path, "--base", "zero", code=2)
    assert f"--base 'none' names no run; {runs}" in run("compare", tmp_path, "--base", "none", code=2)


def test_a_seed_that_nothing_draws_from_makes_no_second_run(sets, tmp_path):
    model = make("qwen3-vl", slots="zero", visual_tokens=16)
    for seed in (1, 2):
        model.use(seed=seed)
        Evaluation(model, "zero", tmp_path / str(seed), tmp_path / "vectors").run([own_task(sets[0])])
    assert "only one run found, zero, zero" in run("compare", tmp_path / "1", tmp_path / "2", code=2)
    assert len(read_runs([tmp_path])) == 1


# -- profile


def test_every_strategy_and_budget_is_timed_both_ways():
    model = randslot.tiny("qwen3-vl", visual_tokens=64)
    protocol = Protocol(rows=3, columns=2, warmup=1, samples=2, budgets=(1, 3))
    table = profile(model, protocol)
    ways = {tuple(row[:3]) for row in table.rows}
    for strategy in STRATEGIES:
        for num in (1, 3):
            assert (strategy, num, "step by step") in ways
            assert ((strategy, num, "one pass") in ways) == (strategy != "feedback")
    assert all(value > 0 for row in table.rows for value in row[3:])
    assert model.settings.visual_tokens == 64


def test_profiled_inputs_have_the_size_of_the_protocol(qwen_family, monkeypatch):
    """And both ways give the same vectors: what is compared is the same work."""
    from randslot.evaluate import profile as module

    seen: list[tuple[object, ...]] = []

    def spy(functions, samples, warmup, advance):
        for features in samples:
            seen.append((features["input_ids"].shape[1], "pixel_values" in features))
        for strategy in ("random", "zero", "fixed", "learned"):
            one, step = (functions[module.Way(strategy, 3, flag)](samples[0]) for flag in (True, False))
            assert (one - step).abs().max() < 1e-5
        return {way: [1.0] for way in functions}

    monkeypatch.setattr(module, "_time", spy)
    profile(make(qwen_family), Protocol(rows=3, columns=2, warmup=1, samples=2, budgets=(3,), query_tokens=9))
    assert seen[:3] == [(9, False)] * 3
    lengths = {length for length, is_page in seen if is_page}
    assert len(seen) == 6
    assert len(lengths) == 1
    assert lengths.pop() > 6


@pytest.mark.parametrize(
    ("family", "size"), [("smolvlm", "92 positions"), ("llama", "91 positions"), ("qwen3.5", "8 x 8 merged")]
)
def test_every_family_can_be_timed(family, size):
    """Tiles have no grid, nor has a text: then the title says how many positions a page takes."""
    model = make(family, slots="tokens")
    table = profile(model, Protocol(rows=8, columns=8, warmup=1, samples=1, budgets=(2,), strategies=("zero",)))
    assert [row[:3] for row in table.rows] == [["zero", 2, "one pass"], ["zero", 2, "step by step"]]
    assert f"pages of {size}" in table.title
    assert model.settings == make(family, slots="tokens").settings


def test_a_wrong_protocol_is_one_line():
    assert run("profile", "embedded", "--page", "big", code=2) == "--page is like 48x32, not 'big'"
    assert run("profile", "embedded", "--vectors", "1;4", code=2) == "--vectors is like 1,4,6, not '1;4'"
    with pytest.raises(UsageError, match="strategy 'tokens' is not one of random"):
        Protocol(strategies=("tokens",))
    with pytest.raises(UsageError, match="samples must be 1 or more, not 0"):
        Protocol(samples=0)


# -- tables


def test_tables_round_for_people_and_not_for_programs():
    table = Table("T", ["name", "value"], [["a_b", 1.23456], ["c|d", None]], digits=2)
    assert write_table(table, "md") == "## T\n\n| name | value |\n| --- | --- |\n| a_b | 1.23 |\n| c\\|d | - |\n"
    assert write_table(table, "csv") == "name,value\na_b,1.23456\nc|d,\n"
    assert r"a\_b & 1.23 \\" in write_table(table, "latex")
    assert r"\begin{tabular}{lr}" in write_table(table, "latex")


def test_the_largest_budget_of_a_run_is_analysed(sets, tmp_path):
    evaluate("zero", sets[:1], tmp_path, query_vectors=2, page_vectors=2)
    evaluate("zero", sets[:1], tmp_path)
    (found,) = read_runs([tmp_path])
    assert found.num_vectors == 8
    assert found.left_out == ("zero, zero, 2/2 vectors (first): 8/8 are analysed",)


def test_results_with_a_smaller_budget_do_not_mix_with_others(sets, tmp_path):
    evaluate("zero", sets[:1], tmp_path / "large")
    evaluate("random", sets[:1], tmp_path / "large", inference="random")
    evaluate("zero", sets[1:], tmp_path / "small", query_vectors=3, page_vectors=2)
    words = ["analyse", "winners", str(tmp_path / "large"), str(tmp_path / "small")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.exception
    assert done.stderr == "left out: zero, zero, 3/2 vectors (second): 8/8 are analysed\n"
