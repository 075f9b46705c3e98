"""What a study file may say, and how differences become verdicts; no model is trained."""

from __future__ import annotations

import json
import tomllib
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from randslot.errors import UsageError
from randslot.files import write_json
from randslot.training.data import in_windows
from research.study import report
from research.study.claims import (
    CONFIRMED,
    CONTRADICTED,
    MEASURES,
    NOISE,
    Row,
    ask_paper,
    compute_measures,
    judge_extra,
    judge_question,
    measure_rows,
    read_rows,
)
from research.study.plan import STRATEGIES, Extra, Study, make_set, read_study
from research.study.report import Report, write_report
from research.study.run import COLUMNS, is_done, write_lines

ROOT = Path(__file__).parent.parent.parent
SMOKE = ROOT / "research" / "studies" / "smoke.toml"


def small_study(folder: Path, **changes: object) -> Study:
    """The smoke study with its files below a folder."""
    text = SMOKE.read_text().replace("runs/study-smoke", str(folder))
    values = tomllib.loads(text) | changes
    folder.mkdir(exist_ok=True)
    file = folder / "study.toml"
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items() if key not in ("set", "extra")]
    file.write_text("\n".join(lines) + "\n\n" + text[text.index("[set]") :])
    return read_study(file)


def judge_claims(found):
    return [judge_question(question, found) for question in ask_paper()]


@pytest.fixture
def few_draws(monkeypatch):
    """Bootstrap with 200 samples, which is fast."""
    monkeypatch.setattr(report, "measure_rows", partial(measure_rows, draws=200))


# -- the file


def test_the_real_study_is_the_papers_five_strategies_under_one_recipe():
    study = read_study(ROOT / "research" / "studies" / "small.toml")
    assert study.seeds == [42, 123, 2024]
    recipes = {arm: study.make_recipe(arm, 42) for arm in study.arms}
    assert [recipes[arm].slots for arm in STRATEGIES] == ["random", "zero", "fixed", "learned", "feedback"]
    assert recipes["nested"].prefixes == (1, 2, 4)
    settings = {arm: study.settings(arm, 42) for arm in study.arms}
    for arm in study.arms:
        differing = {name for name, value in settings[arm].items() if value != settings["random"][name]}
        assert differing <= {"slots", "prefixes"}
    assert len(set(study.jobs)) == 18
    assert study.jobs[-4:] == [("feedback", 2024), ("nested", 42), ("nested", 123), ("nested", 2024)]


def test_the_study_on_pretrained_weights_is_the_papers_but_for_rate_and_batch():
    study = read_study(ROOT / "research" / "studies" / "smollm2.toml")
    values = {arm: study.settings(arm, 42, hashed=False) for arm in study.arms}
    paper = {"lora": True, "lora_rank": 16, "lora_alpha": 32, "lora_dropout": 0.05, "temperature": 0.07}
    paper |= {"query_vectors": 4, "page_vectors": 4, "rate_left": 0.5, "learning_rate": 1e-3, "batch": 16}
    for arm in STRATEGIES:
        assert {name: values[arm][name] for name in paper} == paper
        assert {name for name in values[arm] if values[arm][name] != values["random"][name]} <= {"slots"}
    assert (values["single"]["query_vectors"], values["single"]["page_vectors"]) == (1, 1)
    assert [values[arm]["lora"] for arm in ("random_full", "fixed_full")] == [False, False]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seeds = [42, 123]", "seeds = [42]", "two seeds"),
        ("seeds = [42, 123]", 'seeds = ["a"]', "seeds.0: Input should be a valid integer"),
        ('recipe = "tiny"', 'recipe = "teeny"', "no recipe teeny"),
        ("steps = 3", "steps = ", "Invalid value"),
        ("steps = 3", "stepps = 3", "steps: Field required"),
        ('against = "random"', "", "extra.0.against: Field required"),
        ("window = 24", "shuffle = false", "makes all seeds equal"),
        ("window = 24", "bach = 4", "unknown key 'bach'; did you mean 'batch'"),
    ],
)
def test_a_wrong_study_is_one_line(old, new, message, tmp_path):
    (tmp_path / "study.toml").write_text(SMOKE.read_text().replace(old, new))
    with pytest.raises(UsageError, match=message) as raised:
        read_study(tmp_path / "study.toml")
    assert "\n" not in str(raised.value)


def test_a_window_shuffles_by_seed_and_keeps_stages():
    def shuffle(seed: int) -> list[int]:
        return [row for batch in in_windows(60, seed, range(200), 10, drop_last=False) for row in batch]

    orders = {seed: shuffle(seed) for seed in (1, 2)}
    assert orders[1] == shuffle(1) != orders[2]
    for order in orders.values():
        assert sorted(order) == list(range(200)) != order
        for start in range(0, 200, 60):
            assert sorted(order[start : start + 60]) == list(range(start, min(start + 60, 200)))


def test_pages_are_made_once_and_whole(tmp_path):
    folder = tmp_path / "set"
    (tmp_path / "set.part").mkdir()
    (tmp_path / "set.part" / "half").write_text("of a killed run")
    options = {"num_reports": 1, "split": "test", "seed": 3, "layout": "chart-text-table"}
    make_set(folder, **options)
    when = (folder / "qrels.jsonl").stat().st_mtime_ns
    make_set(folder, **options)
    assert (folder / "qrels.jsonl").stat().st_mtime_ns == when
    with pytest.raises(UsageError, match="set was made with other options"):
        make_set(folder, **options | {"seed": 4})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set"]


def test_a_study_on_own_sets_has_them_as_tasks_and_knows_their_content(tmp_path):
    for name in ("alpha", "beta"):
        place = tmp_path / "sets" / "test" / name
        (place / "pages").mkdir(parents=True)
        for file in ("queries.jsonl", "qrels.jsonl"):
            (place / file).write_text(f'{{"id": "{name}"}}\n')
    study = small_study(tmp_path, layouts=[], reports=0, sets=str(tmp_path / "sets"))
    assert [task.name for task in study.tasks()] == ["alpha", "beta"]
    before = study.settings("zero", 42)
    (tmp_path / "sets" / "test" / "alpha" / "queries.jsonl").write_text('{"id": "another"}\n')
    assert study.settings("zero", 42)["sets"] != before["sets"]


# -- measures


def test_measures_by_hand():
    """Two tasks of different size: scores count tasks alike, H and U count pairs alike."""
    random = np.random.default_rng(0)
    tasks = [random.random((num, len(COLUMNS))) for num in (3, 5)]
    found = dict(
        zip(MEASURES, compute_measures(np.stack([t.sum(0) for t in tasks]), np.array([3.0, 5.0])), strict=True)
    )
    column = {name: [task[:, i] for task in tasks] for i, name in enumerate(COLUMNS)}

    def score(name: str) -> float:
        return 50 * (column[name][0].mean() + column[name][1].mean())

    wins = [sum(part.sum() for part in column[f"w{k}"]) for k in range(1, 5)]
    shares = [won / sum(wins) for won in wins]
    assert found["k3"] == pytest.approx(score("k3"))
    assert found["gain"] == pytest.approx(score("k4") - max(score(f"d{k}") for k in range(1, 5)))
    assert found["H"] == pytest.approx(-sum(share * np.log(share) for share in shares) / np.log(4))
    assert found["U"] == pytest.approx(np.concatenate(column["distinct"]).sum() / np.concatenate(column["pairs"]).sum())


def make_lines(scores: dict[str, float], num: int, random: np.random.Generator) -> np.ndarray:
    """Lines of queries: right or wrong with the probability that a column has, the same luck for all columns."""
    luck = random.random((num, 1))
    lines = np.zeros((num, len(COLUMNS)))
    for name in (f"{kind}{k}" for kind, most in (("k", 8), ("d", 4)) for k in range(1, most + 1)):
        lines[:, COLUMNS.index(name)] = (luck[:, 0] < scores.get(name, 0.5)).astype(float)
    lines[:, COLUMNS.index("w1") : COLUMNS.index("w4") + 1] = [scores.get(f"w{k}", 1.0) for k in range(1, 5)]
    lines[:, COLUMNS.index("pairs")] = 1
    lines[:, COLUMNS.index("distinct")] = scores.get("U", 1.0)
    return lines


def make_rows(study: Study, effects: dict[tuple[str, str], dict[str, float]], num: int = 200) -> list[Row]:
    """Rows of a study in which arms differ as told; the luck of a query is the same in all arms."""
    only, without = ({"query": [score] * 4, "page": [score] * 4} for score in (40.0, 45.0))
    inference = {"budgets": {"query": [50.0] * 8, "page": [50.0] * 8}, "full": 50.0, "only": only, "without": without}
    inference |= {"winners": [[1, 2, 3, 4]] * 4, "ties": 0}
    rows = []
    for seed in study.seeds:
        for arm in study.arms:
            lines: dict[str, dict[str, np.ndarray]] = {}
            for name in study.inferences(arm):
                lines[name] = {}
                for place, task in enumerate(study.layouts):
                    random = np.random.default_rng([seed, place])
                    lines[name][task] = make_lines(effects.get((arm, name), {}), num, random)
            record = {
                "run": f"{arm}-{seed}",
                "arm": arm,
                "seed": seed,
                "steps": 3,
                "settings": study.settings(arm, seed),
                "tasks": {task: {"queries": num, "pages": 9, "judged": "x"} for task in study.layouts},
                "loss": 1.0,
                "training_seconds": 60.0,
                "evaluation_seconds": 6.0,
                "inference": dict.fromkeys(lines, inference),
                "commit": None,
                "machine": {"processor": "x", "threads": 1, "torch": "2"},
                "date": "2026-01-01",
            }
            rows.append(Row(record, lines))
    return rows


def test_verdicts_follow_what_the_rows_say(tmp_path):
    """A crossover as in the paper, one strategy as good, one better, and one that differs in some seeds only."""
    study = small_study(tmp_path)
    high = {f"k{num}": 0.7 for num in range(3, 9)} | {"k1": 0.3, "k2": 0.5} | {f"d{k}": 0.4 for k in range(1, 5)}
    effects = {
        ("random", "random"): high,
        ("random", "zero"): high,
        ("zero", "zero"): {"w1": 4.0, "w2": 0.1},
        ("learned", "learned"): high,
        ("feedback", "feedback"): {"k4": 0.9},
        ("nested", "random"): high | {"k1": 0.5},
        ("nested", "zero"): high,
    }
    found = measure_rows(make_rows(study, effects), draws=500)
    claims = judge_claims(found)
    verdicts = {claim.question.text: claim.verdict for claim in claims}
    assert verdicts["RandSlot is better than Zero-Feedback"] == CONFIRMED
    assert verdicts["RandSlot is better than Fixed-Random"] == CONFIRMED
    assert verdicts["RandSlot is better than Learned-Feedback"] == NOISE
    assert verdicts["RandSlot is better than Direct-Feedback"] == CONTRADICTED
    assert verdicts["zeros at inference are as good as random slots (RS-Z minus RS-R)"] == CONFIRMED
    assert verdicts["with 1 vector per side, RandSlot is behind Zero-Feedback"] == CONFIRMED
    assert verdicts["with 2 vectors per side, RandSlot is behind Zero-Feedback"] == NOISE
    assert verdicts["with 8 vectors per side, RandSlot is ahead of Zero-Feedback"] == CONFIRMED
    assert verdicts["wins are more even (H) than with Zero-Feedback"] == CONFIRMED
    assert verdicts["wins are more even (H) than with Fixed-Random"] == NOISE
    assert verdicts["joint use of page readouts gains more than with Zero-Feedback"] == CONFIRMED
    assert judge_extra(study, study.extra[0], found)[1] == "it holds"
    by_text = {claim.question.text: claim for claim in claims}
    first = by_text["RandSlot is better than Zero-Feedback"]
    assert first.question.paper == (1.5, 1.0)
    assert first.low < first.difference < first.high
    assert by_text["joint use of page readouts gains more than with Fixed-Random"].question.paper[0] == 3.17


@pytest.mark.parametrize(
    ("shares", "verdict"),
    [
        ({"k1": 0.9, "k4": 0.5}, "it holds"),
        ({"k1": 0.9, "k4": 0.49}, "it is undecided (within noise)"),  # no worse by luck
        ({"k1": 0.9, "k4": 0.2}, "it does not hold"),
        ({"k1": 0.5, "k4": 0.9}, "it is undecided (within noise)"),
        ({"k1": 0.2, "k4": 0.9}, "it does not hold"),
    ],
)
def test_no_worse_needs_the_whole_interval_above_the_margin(shares, verdict, tmp_path):
    study = small_study(tmp_path)
    found = measure_rows(make_rows(study, {("nested", "random"): shares}), draws=500)
    assert judge_extra(study, study.extra[0], found)[1] == verdict


def test_one_seed_that_disagrees_is_noise(tmp_path):
    """The difference of one seed is large and that of the other slightly the other way."""
    study = small_study(tmp_path)
    up, down = (make_rows(study, {("random", "random"): {"k4": share}}) for share in (0.95, 0.45))
    rows = [a if a.record["seed"] == study.seeds[0] else b for a, b in zip(up, down, strict=True)]
    claim = judge_claims(measure_rows(rows, draws=500))[0]
    assert claim.difference > 10
    assert claim.agreeing == 1
    assert claim.verdict == NOISE
    assert claim.low < 0  # seeds are drawn too


def test_equal_arms_have_no_difference_in_any_draw(tmp_path):
    """The same queries are drawn for all arms."""
    found = measure_rows(make_rows(small_study(tmp_path), {}), draws=50)
    assert (found["random", "random"].drawn_NM == found["zero", "zero"].drawn_NM).all()
    assert found["zero", "zero"].drawn_NM[:, 0].std() > 0


# -- rows and report


def write_rows(study: Study, effects: dict[tuple[str, str], dict[str, float]], num: int = 40) -> None:
    for row in make_rows(study, effects, num):
        for inference, by_task in row.lines.items():
            write_lines(Path(study.results, f"{row.record['run']}-{inference}.csv"), by_task)
        write_json(Path(study.results, f"{row.record['run']}.json"), row.record)


def test_a_report_from_rows_alone(tmp_path, few_draws):
    """No model, no pages, no backbone; twice the same bytes; the numbers are those of the rows."""
    study = small_study(tmp_path)
    effects = {("random", "random"): {"k4": 0.8}, ("random", "zero"): {"k4": 0.8}, ("zero", "zero"): {"k4": 0.6}}
    write_rows(study, effects)
    scores = []
    for row in read_rows(study):
        if row.record["arm"] == "random":
            by_task = [lines[:, COLUMNS.index("k4")].mean() for lines in row.lines["random"].values()]
            scores.append(100 * np.mean(by_task))
    text = write_report(study).read_text()
    assert f"{np.mean(scores):.1f} ± {np.std(scores, ddof=1):.1f}" in text
    assert "| RandSlot is better than Zero-Feedback | +1.5 | +1.0 |" in text
    assert max(map(len, [line for line in text.splitlines() if not line.startswith("|")])) <= 120
    pictures = {
        name: (tmp_path / "images" / f"report-{name}.svg").read_bytes() for name in ("budgets", "winners", "readouts")
    }
    assert all(picture.startswith(b"<?xml") for picture in pictures.values())
    assert pictures["budgets"].count(b'id="FillBetween') == 2 * 7  # bands of all lines here, none in the paper's panel
    assert write_report(study).read_text() == text
    assert (tmp_path / "images" / "report-winners.svg").read_bytes() == pictures["winners"]


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["small", "smollm2"])
def test_the_committed_report_says_what_its_rows_say(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    text = Report(read_study(Path(f"research/studies/{name}.toml"))).make_text()
    assert text == Path(f"research/study-{name}.md").read_text(encoding="utf-8")


def test_rows_that_are_missing_broken_or_of_other_settings(tmp_path, few_draws):
    study = small_study(tmp_path)
    with pytest.raises(UsageError, match="lacks the rows of 12 runs, such as random-42"):
        read_rows(study)
    write_rows(study, {})
    assert len(read_rows(study)) == 12
    assert is_done(study, "zero", 42)
    with pytest.raises(UsageError, match=r"zero-42.json was made with steps = 3, not 4"):
        is_done(small_study(tmp_path, steps=4), "zero", 42)
    Path(study.results, "nested-123.json").unlink()  # an extra may wait, a strategy may not
    assert {row.record["arm"] for row in read_rows(study)} == set(STRATEGIES)
    assert "Its runs are not finished." in " ".join(Report(study).make_text().split())
    file = Path(study.results, "zero-42-zero.csv")
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:30]))
    with pytest.raises(UsageError, match="zero-42"):
        read_rows(study)


def test_an_extra_may_be_trained_with_one_vector_and_judged_against_four(tmp_path):
    study = small_study(tmp_path)
    single = Extra("single", "K = 1", "One is not enough.", "random", {"slots": "zero"}, below=[1], budget=1)
    study.extra[:] = [single]
    recipe = study.make_recipe("single", 42)
    assert (recipe.query_vectors, recipe.page_vectors) == (1, 1)
    rows = make_rows(study, {("random", "random"): {"k1": 0.2, "k4": 0.8}, ("single", "zero"): {"k1": 0.5}})
    (claim,), verdict = judge_extra(study, single, measure_rows(rows, draws=500))
    assert verdict == "it holds"
    assert claim.question.text == "1 vector per side: below RandSlot with 4"
    assert claim.difference == pytest.approx(-30, abs=6)
