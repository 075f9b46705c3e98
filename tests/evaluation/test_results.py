"""Files of results and reports of them: read as written, ranked among published rows, in three formats."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from randslot.errors import RandSlotError, UsageError
from randslot.evaluation.published import TASKS
from randslot.evaluation.report import make_report, make_tables
from randslot.evaluation.result_files import RunKey, name_runs, read_results
from randslot.tables import Table, write_table

V3 = TASKS["ViDoRe(v3)"]
SUBSET = {"ndcg@5": 0.5, "ndcg@10": 0.75, "queries": 2, "pages": 9, "judged": "abc", "each": [1.0, 0.0], "asked": "def"}
RESULT: dict[str, Any] = {
    "model": "mine",
    "weights": "0123456789",
    "settings": {"slots": "tokens", "inference": "tokens", "seed": 7, "reduction": "kmeans"},
    "how": "tokens by kmeans",
    "is_drawn": True,
    "has_prefixes": False,
    "counts": {"query": None, "page": 3},
    "benchmark": "own",
    "task": "pages",
    "dataset": "data/test",
    "revision": None,
    "ndcg@5": 0.5,
    "ndcg@10": 0.75,
    "subsets": {"default": SUBSET},
    "vectors": {"query": "w/query", "page": "w/page"},
    "randslot": "0.1.0",
    "date": "2026-01-01",
    "cache": "../../vectors",
}


def write(folder: Path, **changes: Any) -> Path:
    file = folder / "mine" / "setting" / "own-pages.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(RESULT | changes, indent=2) + "\n")
    return file


def test_a_result_is_written_as_it_was_read(tmp_path):
    file = write(tmp_path)
    before = json.loads(file.read_text())
    (result,) = read_results(tmp_path)
    file.unlink()
    result.write()
    assert json.loads(file.read_text()) == before
    assert result.counts_text == "all/3"
    assert result.run_key == ("mine", "tokens by kmeans", 7, "0123456789")
    assert result.cache_folder == tmp_path / "vectors"


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"ndcg@5": "high"}, "high"),
        ({"settings": {}}, "seed"),
        ({"subsets": {"default": {"ndcg@5": 0.5}}}, "ndcg@10"),
        ({"subsets": 0.5}, "float"),
    ],
)
def test_a_wrong_value_names_the_file_and_what_is_wrong(changes, key, tmp_path):
    file = write(tmp_path, **changes)
    with pytest.raises(RandSlotError, match=rf"cannot read {file} as a result of this version: .*{key}"):
        read_results(tmp_path)


def test_runs_have_short_names_that_differ():
    one, two = RunKey("m", "zero", 42, "a" * 32), RunKey("m", "zero", 42, "b" * 32)
    three = RunKey("m", "zero", 7, "c" * 32)
    assert name_runs([one]) == {one: "m, zero"}
    assert list(name_runs([one, three]).values()) == ["m, zero, seed 42", "m, zero, seed 7"]
    assert list(name_runs([one, two]).values()) == ["m, zero, seed 42, aaaaaaaa", "m, zero, seed 42, bbbbbbbb"]


def write_results(
    folder: Path, model: str, scores: list[float], seed: int = 42, how: str = "zero", weights: str = "w"
) -> None:
    """Write the results of one model on V3 as `evaluate` does; scores are shares of one."""
    folder.mkdir(parents=True, exist_ok=True)
    for task, score in zip(V3, scores, strict=False):
        inference, _, reduction = how.partition(" by ")
        settings = {"slots": inference, "inference": inference, "reduction": reduction or "none", "seed": seed}
        result = {"model": model, "benchmark": "ViDoRe(v3)", "task": task, "settings": settings}
        result |= {
            "how": how,
            "is_drawn": inference == "random" or reduction == "kmeans",
            "has_prefixes": True,
            "weights": weights,
            "cache": "",
            "vectors": {},
            "subsets": {},
            "counts": {"query": 4, "page": 4},
            "ndcg@5": score,
            "ndcg@10": score + 0.02,
        }
        (folder / f"{model}-{seed}-{how}-{task}.json").write_text(json.dumps(result))


def test_ndcg_at_10_stands_alone_since_nothing_was_published(tmp_path):
    write_results(tmp_path, "mine", [0.48] * 8)
    table = make_tables(read_results(tmp_path))[1]
    assert table.title == "ViDoRe(v3), nDCG@10"
    assert [row[4] for row in table.rows] == ["50.0"]


def test_some_tasks_only_have_no_rank_and_no_average(tmp_path):
    write_results(tmp_path, "mine", [0.4, 0.5])
    table, second = make_tables(read_results(tmp_path))
    assert table.rows[-1] == ["-", "mine, zero", "4/4", "yours", "40.0", "50.0", *"------", "-", "-"]
    assert second.heads == ["method", "vectors", "source", "HR", "Fin-E"]  # nothing else has a value
    assert "avg" not in [line.split(",")[-4] for line in make_report(tmp_path, "csv").splitlines() if "yours" in line]


def test_seeds_give_mean_and_sample_standard_deviation_and_differences(tmp_path):
    for seed, score in ((42, 0.40), (123, 0.42), (2024, 0.47)):
        write_results(tmp_path, "rs", [score] * 8, seed, how="random")
        write_results(tmp_path, "zf", [score - 0.05] * 7 + [score], seed, weights=f"trained with {seed}")
    first, differences, *_ = make_tables(read_results(tmp_path))
    row = next(row for row in first.rows if row[1] == "rs, random")
    assert row[4] == f"43.00 ± {statistics.stdev([40, 42, 47]):.2f}"
    assert differences.title.endswith("minus zf, zero (4/4)")  # as in the paper: random minus zero
    assert differences.rows == [["rs, random (4/4)", *["+5.00"] * 7, "+0.00", "+4.38"]]
    named = make_tables(read_results(tmp_path), base="rs")[1]
    assert named.title.endswith("minus rs, random (4/4)")
    assert named.rows == [["zf, zero (4/4)", *["-5.00"] * 7, "+0.00", "-4.38"]]
    with pytest.raises(UsageError, match=r"--base 'x' names no run. The runs: zf, zero \(4/4\); rs, random"):
        make_tables(read_results(tmp_path), base="x")


def test_a_model_trained_with_zeros_is_the_base_before_one_that_gets_them(tmp_path):
    for seed in (42, 123):
        for model, how in (("a", "random"), ("a", "zero"), ("b", "zero")):
            write_results(tmp_path, model, [0.40] * 8, seed, how, weights=f"{model} {seed}")
    for file in tmp_path.glob("a-*-zero-*.json"):
        result = json.loads(file.read_text())
        file.write_text(json.dumps(result | {"settings": result["settings"] | {"slots": "random"}}))
    assert make_tables(read_results(tmp_path))[1].title.endswith("minus b, zero (4/4)")
    for file in tmp_path.glob("b-*"):
        file.unlink()
    assert make_tables(read_results(tmp_path))[1].title.endswith("minus a, zero (4/4)")
    for file in tmp_path.glob("*-123-*"):
        file.unlink()
    with pytest.raises(UsageError, match="differences need two settings with several runs"):
        make_tables(read_results(tmp_path), base="zero")


def test_a_seed_that_was_stopped_counts_for_nothing(tmp_path):
    write_results(tmp_path, "mine", [0.40] * 8, 1, how="random")
    write_results(tmp_path, "mine", [0.50] * 8, 2, how="random")
    write_results(tmp_path, "mine", [0.99], 3, how="random")
    table = make_tables(read_results(tmp_path))[0]
    (row,) = [row for row in table.rows if row[3] == "yours"]
    assert row[4] == row[12] == "45.00 ± 7.07"


@pytest.mark.parametrize("how", ["zero", "tokens by pooling"])
def test_a_seed_that_nothing_draws_from_is_no_second_run(how, tmp_path):
    """Not even where the second one was asked for other tasks: they are parts of one run."""
    write_results(tmp_path, "mine", [0.48] * 5, 42, how)
    write_results(tmp_path, "mine", [0.48] * 8, 2, how)
    table, second = make_tables(read_results(tmp_path))  # no table of differences
    (row,) = [row for row in table.rows if row[3] == "yours"]
    assert row[4:13] == ["48.0"] * 9
    assert len(second.rows) == 1


def test_wrong_input_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no results in"):
        make_report(tmp_path)
    write_results(tmp_path, "mine", [0.48] * 8)
    (tmp_path / "other.json").write_text(json.dumps({"rows": []}))
    make_report(tmp_path)  # something else is passed over
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(RandSlotError, match=r"cannot read .*broken.json as a result"):
        make_report(tmp_path)


def test_tables_round_for_people_and_not_for_programs():
    table = Table("T", ["name", "value"], [["a_b", 1.23456], ["c|d", None]], digits=2)
    assert write_table(table, "md") == "## T\n\n| name | value |\n| --- | --- |\n| a_b | 1.23 |\n| c\\|d | - |\n"
    assert write_table(table, "csv") == "name,value\na_b,1.23456\nc|d,\n"
    assert r"a\_b & 1.23 \\" in write_table(table, "latex")
    assert r"\begin{tabular}{lr}" in write_table(table, "latex")
