"""What a study file may say, in which order rows come, and how differences become verdicts; no model is trained."""

from __future__ import annotations

import json
import shutil
import tomllib
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from randslot.errors import RandSlotError, UsageError
from randslot.files import write_json
from randslot.training.data import in_windows
from research.study import beside as other
from research.study import report
from research.study.claims import CONFIRMED, CONTRADICTED, NOISE, judge_claims, judge_crossover, judge_extra
from research.study.conduct import Watch, choose, conduct, run_jobs
from research.study.measures import MEASURES, compute_measures, measure_rows
from research.study.plan import (
    CHOICE,
    STRATEGIES,
    Beside,
    Candidate,
    Extra,
    Job,
    Study,
    make_rule,
    make_set,
    read_choice,
    read_study,
)
from research.study.report import Report, write_report
from research.study.rows import COLUMNS, Inference, Record, Row, TaskSize, is_done, read_rows, write_row

ROOT = Path(__file__).parent.parent.parent
SMOKE = ROOT / "research" / "studies" / "smoke.toml"


def small_study(folder: Path, **changes: object) -> Study:
    """The smoke study with its files below a folder."""
    text = SMOKE.read_text().replace("runs/study-smoke", str(folder))
    values = tomllib.loads(text) | changes
    folder.mkdir(exist_ok=True)
    file = folder / "study.toml"
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items() if key not in ("set", "extra")]
    rest = text[text.index("[set]") :]
    file.write_text("\n".join(lines) + "\n\n" + rest)
    return read_study(file)


@pytest.fixture
def few_draws(monkeypatch):
    """Bootstrap with 200 samples, which is fast."""
    for module in (report, other):
        monkeypatch.setattr(module, "measure_rows", partial(measure_rows, draws=200))


# -- the file


def test_the_real_study_is_the_papers_five_strategies_under_one_recipe():
    study = read_study(ROOT / "research" / "studies" / "small.toml")
    assert study.seeds == [42, 123, 2024]
    assert len(study.layouts) >= 4
    assert study.range == [50, 80]
    recipes = {arm: study.make_recipe(Job(arm, 42, 600)) for arm in study.arms}
    assert [recipes[arm].slots for arm in STRATEGIES] == ["random", "zero", "fixed", "learned", "feedback"]
    assert recipes["nested"].prefixes == (1, 2, 4)
    settings = {arm: study.settings(Job(arm, 42, 600, 20)) for arm in study.arms}
    for arm in study.arms:
        differing = {name for name, value in settings[arm].items() if value != settings["random"][name]}
        assert differing <= {"slots", "prefixes"}
    assert {len(study.jobs(600, 20)), len(set(study.jobs(600, 20)))} == {18}
    assert [job.name for job in study.jobs(600, 20)[-4:]] == ["feedback-2024", "nested-42", "nested-123", "nested-2024"]


def test_the_study_on_pretrained_weights_is_the_papers_but_for_rate_and_batch():
    study = read_study(ROOT / "research" / "studies" / "smollm2.toml")
    (candidate, _), steps = study.candidates, 120
    values = {arm: study.values(Job(arm, 42, steps, candidate=candidate.name)) for arm in study.arms}
    paper = {"lora": True, "lora_rank": 16, "lora_alpha": 32, "lora_dropout": 0.05, "temperature": 0.07}
    paper |= {"query_vectors": 4, "page_vectors": 4, "rate_left": 0.5, "learning_rate": 1e-3, "batch": 16}
    for arm in STRATEGIES:
        assert {name: values[arm][name] for name in paper} == paper
        assert {name for name in values[arm] if values[arm][name] != values["random"][name]} <= {"slots"}
    assert (values["single"]["query_vectors"], values["single"]["page_vectors"]) == (1, 1)
    assert [values[arm]["lora"] for arm in ("random_full", "fixed_full")] == [False, False]
    assert len(study.jobs(steps, 0, candidate.name)) == 9 * 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": [42]}, "two seeds"),
        ({"seeds": ["a"]}, r"seeds\[0\]: input should be a valid integer"),
        ({"recipe": "teeny"}, "no recipe teeny"),
    ],
)
def test_a_wrong_study_is_one_line(changes, message, tmp_path):
    with pytest.raises(UsageError, match=message) as raised:
        small_study(tmp_path, **changes)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("shuffle = false", "so that seeds would hardly differ: set shuffle = true, and window for a curriculum"),
        ("bach = 4", "unknown key 'bach'; did you mean 'batch'"),
    ],
)
def test_a_wrong_value_for_the_recipe_is_one_line(change, message, tmp_path):
    (tmp_path / "study.toml").write_text(SMOKE.read_text().replace("window = 24", change))
    with pytest.raises(UsageError, match=message):
        read_study(tmp_path / "study.toml")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "nested"', 'name = "a/b"', "extra 'a/b' needs a name of its own, of letters, digits and _"),
        ('against = "random"', 'against = "bogus"', "against is one of random, .*, not 'bogus'"),
        ("better = [1]\nno_worse = [4]", "better = []\nno_worse = []", "says nothing to judge"),
    ],
)
def test_a_wrong_extra_is_one_line(old, new, message, tmp_path):
    (tmp_path / "study.toml").write_text(SMOKE.read_text().replace(old, new))
    with pytest.raises(UsageError, match=message):
        read_study(tmp_path / "study.toml")


def test_a_study_that_is_not_there_or_lacks_a_key(tmp_path):
    with pytest.raises(UsageError, match=r"^cannot read .*: Is a directory; name a TOML file"):
        read_study(tmp_path)
    with pytest.raises(UsageError, match="no study"):
        read_study(tmp_path / "no.toml")
    (tmp_path / "empty.toml").write_text("title = 'x'")
    with pytest.raises(UsageError, match=r"recipe: field required; folder: field required; .*; range: field required"):
        read_study(tmp_path / "empty.toml")


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
    make_set(folder, "order of layouts", **options)
    when = (folder / "qrels.jsonl").stat().st_mtime_ns
    make_set(folder, "order of layouts", **options)
    assert (folder / "qrels.jsonl").stat().st_mtime_ns == when
    with pytest.raises(UsageError, match="set was made with another order of layouts: put that back"):
        make_set(folder, "order of layouts", **options | {"seed": 4})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set"]


def test_a_study_without_its_preparations_says_so_at_once(tmp_path, monkeypatch):
    study = ROOT / "research" / "studies" / "small.toml"
    monkeypatch.chdir(tmp_path)
    Path("research").mkdir()
    Path("research/embedded.toml").write_text((ROOT / "research" / "embedded.toml").read_text())
    with pytest.raises(UsageError, match=r"no training pages 'data/train/lessons.jsonl': .*samples.*pretrain"):
        conduct(study, Console(quiet=True))
    Path("data/train").mkdir(parents=True)
    Path("data/train/lessons.jsonl").write_text("{}")
    with pytest.raises(UsageError, match=r"no backbone 'runs/embedded-reading': .*samples.*pretrain"):
        conduct(study, Console(quiet=True))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "research"]


# -- the choice


@pytest.fixture
def no_pages(monkeypatch):
    """Empty folders in place of pages."""
    monkeypatch.setattr("research.study.plan.write_set", lambda folder, **options: folder.mkdir(parents=True))


def test_the_choice_belongs_to_its_rule(tmp_path):
    study = small_study(tmp_path)
    assert read_choice(study) == {}
    in_vain = {"rule": make_rule(study), "tried": []}
    write_json(Path(study.results, CHOICE), in_vain)
    assert read_choice(study) == read_choice(small_study(tmp_path, range=[10, 20])) == in_vain
    write_json(Path(study.results, CHOICE), {"rule": make_rule(study), "steps": 3, "reports": 2})
    assert read_choice(study)["steps"] == 3
    with pytest.raises(UsageError, match="another rule"):
        read_choice(small_study(tmp_path, range=[10, 20]))


class Scorer(Executor):
    """In place of a pool: it knows what Zero-Feedback scores, and remembers what it was asked to train."""

    def __init__(self, scores: dict[tuple[int, int], float]) -> None:
        self.scores = scores
        self.asked: list[Job] = []

    def submit(self, function, study: Study, job: Job) -> Future:
        self.asked.append(job)
        found = {reports: score for (steps, reports), score in self.scores.items() if steps == job.steps}
        future: Future = Future()
        if found:
            future.set_result(found)
        else:
            future.set_exception(RandSlotError("no such length"))
        return future


def test_the_first_in_range_is_chosen_and_nothing_longer_is_trained(tmp_path, no_pages):
    """Shortest first; for one length in the order of the file; only Zero-Feedback under the first seed."""
    study = small_study(tmp_path, lengths=[3, 6, 9], reports=[3, 2], range=[50, 80], side_by_side=1)
    scores = {(3, 3): 30.0, (3, 2): 45.0, (6, 3): 49.0, (6, 2): 55.0, (9, 3): 60.0, (9, 2): 70.0}
    scorer = Scorer(scores)
    choice = choose(study, scorer, Console(quiet=True))
    assert (choice["steps"], choice["reports"]) == (6, 2)
    assert scorer.asked == [Job("zero", 42, 3), Job("zero", 42, 6)]
    again = Scorer({})
    assert choose(study, again, Console(quiet=True)) == choice == read_choice(study)
    assert again.asked == []


def test_what_was_tried_in_vain_is_told_and_kept(tmp_path, no_pages):
    study = small_study(tmp_path, lengths=[3], reports=[3, 2], range=[50, 80])
    with pytest.raises(
        RandSlotError, match=r"nowhere between 50 and 80 .* 90.0 \(3 steps, 3 reports of each layout\), 95.0"
    ):
        choose(study, Scorer({(3, 3): 90.0, (3, 2): 95.0}), Console(quiet=True))
    assert "steps" not in read_choice(study)
    other = replace(study, set=study.set | {"batch": 6})
    for _ in range(2):  # the second time tells nothing new
        with pytest.raises(RandSlotError, match="nowhere"):
            choose(other, Scorer({(3, 3): 85.0, (3, 2): 99.0}), Console(quiet=True))
    harder = replace(study, reports=[9])
    choice = choose(harder, Scorer({(3, 9): 80.0}), Console(quiet=True))
    assert choice["reports"] == 9
    assert [[tried["ndcg@5"] for tried in before["tried"]] for before in choice["before"]] == [[90, 95], [85, 99]]
    with pytest.raises(RandSlotError, match="1 of 1 runs failed: zero-42"):
        choose(small_study(tmp_path / "other", lengths=[4]), Scorer({}), Console(quiet=True))


def test_runs_that_a_dead_process_leaves_unfinished_are_named(tmp_path):
    study = small_study(tmp_path)
    jobs = [Job("zero", seed, 3) for seed in study.seeds]

    class Dying(Scorer):
        def submit(self, function, study: Study, job: Job) -> Future:
            future: Future = Future()
            future.set_exception(BrokenProcessPool("killed"))
            return future

    with pytest.raises(RandSlotError, match="2 of 2 runs failed: zero-42, zero-123; see "):
        run_jobs(study, jobs, Dying({}), Watch(study, jobs, Console(quiet=True), "running"))


def test_pages_of_other_settings_are_not_used(tmp_path, no_pages):
    study = small_study(tmp_path, lengths=[3], reports=[3], range=[50, 80])
    with pytest.raises(RandSlotError, match="nowhere"):
        choose(study, Scorer({(3, 3): 90.0}), Console(quiet=True))
    with pytest.raises(UsageError, match="pages/train was made with another train_reports"):
        choose(replace(study, train_reports=9), Scorer({}), Console(quiet=True))
    with pytest.raises(UsageError, match="was made with another order of layouts"):
        choose(replace(study, layouts=study.layouts[::-1]), Scorer({}), Console(quiet=True))


def test_a_hypothesis_is_kept_with_the_choice_and_cannot_change_later(tmp_path, no_pages, few_draws):
    study = small_study(tmp_path, lengths=[3], reports=[2], range=[50, 80])
    [extra] = study.extra
    choice = choose(study, Scorer({(3, 2): 60.0}), Console(quiet=True))
    assert choice["hypotheses"] == {"nested": extra.promise()}
    for key, value in {"hypothesis": "It is worse.", "against": "zero", "better": [2], "no_worse": []}.items():
        changed = replace(study, extra=[replace(extra, **{key: value})])
        with pytest.raises(UsageError, match=f"another {key} of extra 'nested'"):
            choose(changed, Scorer({}), Console(quiet=True))
    write_rows(study, {})
    late = replace(study, extra=[*study.extra, replace(extra, name="late", better=[2])])
    assert list(choose(late, Scorer({}), Console(quiet=True))["hypotheses"]) == ["nested", "late"]
    Path(study.results, CHOICE).unlink()  # with it goes the proof
    again = choose(study, Scorer({(3, 2): 60.0}), Console(quiet=True))
    assert "hypotheses" not in again
    assert "No record says that this was written before the runs: *With" in Report(study).make_text()
    write_json(Path(study.results, CHOICE), choice)
    assert "Written down before the runs: *With" in Report(study).make_text()
    assert "in the study no more: nested." in Report(replace(study, extra=[])).make_text()


def test_the_time_left_is_never_none(tmp_path):
    study = small_study(tmp_path)
    jobs = [Job("zero", seed, 3) for seed in study.seeds]
    watch = Watch(study, jobs, Console(quiet=True), "running")
    assert watch.describe() == "0 of 2 runs, no time known yet"
    watch.count(jobs[0], "done")
    assert watch.describe() == "1 of 2 runs, less than a minute left"
    watch.started -= 600
    assert watch.describe() == "1 of 2 runs, about 10 min left"
    watch.count(jobs[1], "done")
    assert watch.describe() == "2 of 2 runs"


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
    tasks = {task: TaskSize(num, 9, "x") for task in study.layouts}
    only, without = ({"query": [score] * 4, "page": [score] * 4} for score in (40.0, 45.0))
    inference = Inference({"query": [50.0] * 8, "page": [50.0] * 8}, 50.0, only, without, [[1, 2, 3, 4]] * 4, 0)
    machine = {"processor": "x", "threads": 1, "torch": "2"}
    rows = []
    for seed in study.seeds:
        for arm in study.arms:
            queries = {}
            for name in study.inferences(arm):
                effect = effects.get((arm, name), {})
                queries[name] = {
                    task: make_lines(effect, num, np.random.default_rng([seed, place]))
                    for place, task in enumerate(study.layouts)
                }
            job = Job(arm, seed, 3, 2)
            record = Record(
                run=job.name,
                arm=arm,
                seed=seed,
                steps=3,
                settings=study.settings(job),
                tasks=tasks,
                loss=1.0,
                training_seconds=60.0,
                evaluation_seconds=6.0,
                inference=dict.fromkeys(queries, inference),
                commit=None,
                versions={},
                machine=machine,
                date="2026-01-01",
            )
            rows.append(Row(record, queries))
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
    assert verdicts["with 1 vector a side RandSlot is behind Zero-Feedback"] == CONFIRMED
    assert verdicts["with 2 vectors a side RandSlot is behind Zero-Feedback"] == NOISE
    assert verdicts["with 8 vectors a side RandSlot is ahead of Zero-Feedback"] == CONFIRMED
    assert judge_crossover(claims) == CONFIRMED
    assert verdicts["wins are spread more evenly (H) than in Zero-Feedback"] == CONFIRMED
    assert verdicts["wins are spread more evenly (H) than in Fixed-Random"] == NOISE
    assert verdicts["page readouts gain more together than in Zero-Feedback"] == CONFIRMED
    assert judge_extra(study, study.extra[0], found)[1] == "it holds"
    by_text = {claim.question.text: claim for claim in claims}
    first = by_text["RandSlot is better than Zero-Feedback"]
    assert first.question.paper == {"Qwen2.5-VL-3B": 1.5, "Qwen3-VL-4B": 1.0}
    assert first.low < first.difference < first.high
    assert by_text["page readouts gain more together than in Fixed-Random"].question.paper["Qwen2.5-VL-3B"] == 3.17


@pytest.mark.parametrize(
    ("shares", "verdict"),
    [
        ({"k1": 0.9, "k4": 0.5}, "it holds"),
        ({"k1": 0.9, "k4": 0.49}, "it is not decided: within noise"),  # no worse by luck
        ({"k1": 0.9, "k4": 0.2}, "it does not hold"),
        ({"k1": 0.5, "k4": 0.9}, "it is not decided: within noise"),
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
    rows = [a if a.seed == study.seeds[0] else b for a, b in zip(up, down, strict=True)]
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
        write_row(Path(study.results), row)


def test_a_report_from_rows_alone(tmp_path, few_draws):
    """No model, no pages, no backbone; twice the same bytes; the numbers are those of the rows."""
    study = small_study(tmp_path)
    effects = {("random", "random"): {"k4": 0.8}, ("random", "zero"): {"k4": 0.8}, ("zero", "zero"): {"k4": 0.6}}
    write_rows(study, effects)
    write_json(
        Path(study.results, CHOICE),
        {
            "rule": make_rule(study),
            "steps": 3,
            "reports": 2,
            "tried": [{"steps": 3, "reports": 2, "ndcg@5": 61.25}],
            "before": [{"rule": {"reports": [1]}, "tried": [{"steps": 1, "reports": 1, "ndcg@5": 9.5}]}],
        },
    )
    rows = [row for row in read_rows(study) if row.arm == "random"]
    scores = [
        100 * np.mean([by[:, COLUMNS.index("k4")].mean() for by in row.queries["random"].values()]) for row in rows
    ]
    text = write_report(study).read_text()
    assert f"{np.mean(scores):.1f} ± {np.std(scores, ddof=1):.1f}" in text
    assert "| 3 | 2 | 61.2 | chosen |\n| 1 | 1 | 9.5 | before, with reports = [1] |" in text
    assert "| RandSlot is better than Zero-Feedback | +1.5 | +1.0 |" in text
    assert max(map(len, [line for line in text.splitlines() if not line.startswith("|")])) <= 120
    pictures = {
        name: (tmp_path / "images" / f"report-{name}.svg").read_bytes() for name in ("budgets", "winners", "readouts")
    }
    assert all(picture.startswith(b"<?xml") for picture in pictures.values())
    assert pictures["budgets"].count(b'id="FillBetween') == 2 * 7  # bands of all lines here, none in the paper's panel
    assert write_report(study).read_text() == text
    assert (tmp_path / "images" / "report-winners.svg").read_bytes() == pictures["winners"]


def test_another_study_stands_beside_the_papers_figures(tmp_path, few_draws):
    """Its differences, verdicts, averages, sweeps and extras; an arm that it lacks is left empty."""
    before = small_study(tmp_path / "before")
    write_rows(before, {("random", "random"): {"k4": 0.5}, ("zero", "zero"): {"k4": 0.8}})
    study = small_study(tmp_path / "after")
    single = replace(study.extra[0], name="single", title="Single")
    beside = Beside(str(tmp_path / "before" / "study.toml"), "the miniature")
    study = replace(study, extra=[*study.extra, single], beside=beside, note="It began warm.")
    write_rows(study, {("random", "random"): {"k4": 0.8}, ("zero", "zero"): {"k4": 0.6}})
    text = Report(study).make_text()
    found = measure_rows(read_rows(before), draws=2)
    there = {key: np.mean(measured.seeds("k4")) for key, measured in found.items()}
    difference = there["random", "random"] - there["zero", "zero"]
    claimed = f"| RandSlot is better than Zero-Feedback | +1.5 | +1.0 | {difference:+.2f} | contradicted | +"
    assert claimed in text
    (average,) = [line for line in text.splitlines() if line.startswith("| Zero-Feedback |") and "43.9" in line]
    assert average.endswith(f"| 45.1 | {there['zero', 'zero']:.1f} |")
    (single_line,) = [line for line in text.splitlines() if line.startswith("| Single |") and "±" in line][:1]
    assert single_line.endswith("| - |")
    assert "| the miniature: RandSlot |" in text
    assert "In the miniature: it " in text
    assert "In [the miniature](../before/report.md) these were" in " ".join(text.split())
    assert "\n\nIt began warm.\n\n**Of " in text
    assert "the miniature" not in Report(replace(study, beside=None)).make_text()


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["small", "smollm2"])
def test_the_committed_report_says_what_its_rows_say(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    text = Report(read_study(Path(f"research/studies/{name}.toml"))).make_text()
    assert text == Path(f"research/study-{name}.md").read_text(encoding="utf-8")


def test_rows_that_are_missing_broken_or_of_other_settings(tmp_path, few_draws):
    study = small_study(tmp_path)
    with pytest.raises(UsageError, match=r"no rows of 12 of 12 runs \(random-42, zero-42, fixed-42 and others\)"):
        read_rows(study)
    write_rows(study, {})
    assert len(read_rows(study)) == 12
    assert is_done(study, Job("zero", 42, 3, 2))
    with pytest.raises(UsageError, match=r"zero-42.json was made with another steps \(3, not 4\)"):
        is_done(study, Job("zero", 42, 4, 2))
    with pytest.raises(UsageError, match=r"random-42.json was made with another batch \(4, not 6\)"):
        write_report(replace(study, set=study.set | {"batch": 6}))
    Path(study.results, "nested-123.json").unlink()  # an extra may wait, a strategy may not
    assert {row.arm for row in read_rows(study)} == set(STRATEGIES)
    assert "Its runs are not finished." in Report(study).make_text()
    file = Path(study.results, "zero-42-zero.csv")
    whole = file.read_text()
    file.write_text(whole[: len(whole) // 2])
    with pytest.raises(RandSlotError, match="zero-42"):
        read_rows(study)
    heads, first, rest = whole.split("\n", 2)
    task, _, others = first.split(",", 2)
    file.write_text("\n".join([heads, f"{task},7.5,{others}", rest]))
    with pytest.raises(RandSlotError, match=r"zero-42-zero.csv has scores that are not between 0 and 1"):
        read_rows(study)
    file.write_text(whole)
    record = Path(study.results, "zero-42.json")
    record.write_text(record.read_text().replace('"steps": 3,', '"steps": 5,', 1))
    with pytest.raises(UsageError, match="not one study"):
        read_rows(study)


# -- sets of one's own, and candidates


def own_sets(folder: Path) -> Path:
    """Two sets for each split, without pages: what they are asked for here is their names and their content."""
    for split in ("validation", "test"):
        for name in ("alpha", "beta"):
            place = folder / split / name
            (place / "pages").mkdir(parents=True)
            for file in ("queries.jsonl", "qrels.jsonl"):
                (place / file).write_text(f'{{"id": "{split} {name}"}}\n')
    return folder


def own_study(folder: Path, **changes: object) -> Study:
    own = {"layouts": [], "reports": [], "train_reports": 0, "sets": str(own_sets(folder / "sets"))}
    return small_study(folder, **own | changes)


def test_a_study_on_sets_of_ones_own_has_them_as_tasks_and_knows_their_content(tmp_path):
    study = own_study(tmp_path)
    assert [task.name for task in study.tasks("test", 0)] == ["alpha", "beta"]
    before = study.settings(Job("zero", 42, 3))
    assert "reports" not in before
    Path(study.sets, "test", "alpha", "queries.jsonl").write_text('{"id": "another"}\n')
    assert study.settings(Job("zero", 42, 3))["sets"] != before["sets"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layouts": ["text-table-chart", "table-chart-text"]}, "either layouts of sample pages, or sets"),
        ({"candidates": [{"name": "a b", "set": {}}]}, "candidates need names of their own"),
    ],
)
def test_a_wrong_study_on_sets_is_one_line(changes, message, tmp_path):
    study = own_study(tmp_path)
    with pytest.raises(UsageError, match=message):
        replace(study, **{**changes, "candidates": [Candidate(**one) for one in changes.get("candidates", [])]})


def test_a_split_with_one_set_is_refused(tmp_path):
    study = own_study(tmp_path)
    shutil.rmtree(Path(study.sets, "test", "beta"))
    with pytest.raises(UsageError, match="has 1 sets, and a study needs two tasks or more"):
        study.tasks("test", 0)


class CandidateScorer(Executor):
    """Answers with scores by candidate and length."""

    def __init__(self, scores: dict[tuple[str, int], float]) -> None:
        self.scores = scores

    def submit(self, function, study: Study, job: Job) -> Future:
        future: Future = Future()
        future.set_result({0: self.scores[job.candidate, job.steps]})
        return future


def test_candidates_are_tried_in_order_until_one_is_in_range_and_rises_slowly(tmp_path):
    """Too low, rising too fast, falling, and then one that rises by two points."""
    candidates = [Candidate("deep", {"batch": 6}), Candidate("flat", {"batch": 8})]
    study = replace(
        own_study(tmp_path), candidates=candidates, lengths=[2, 4, 6], range=[40, 80], most_rise=5.0, side_by_side=1
    )
    scores = {("deep", 2): 30.0, ("deep", 4): 50.0, ("deep", 6): 49.0}
    scores |= {("flat", 2): 60.0, ("flat", 4): 62.0}  # nothing longer is asked for
    choice = choose(study, CandidateScorer(scores), Console(quiet=True))
    assert (choice["candidate"], choice["steps"]) == ("flat", 4)
    assert choice["settings"]["batch"] == 8
    assert [tried["ndcg@5"] for tried in choice["tried"]] == [30, 50, 49, 60, 62]
    assert choose(study, CandidateScorer({}), Console(quiet=True)) == choice
    (job, *_) = study.jobs(choice["steps"], 0, choice["candidate"])
    assert study.make_recipe(job).batch == 8


def test_an_extra_may_be_trained_with_one_vector_and_judged_against_four(tmp_path):
    study = small_study(tmp_path)
    single = Extra("single", "K = 1", "One is not enough.", "random", {"slots": "zero"}, below=[1], budget=1)
    study = replace(study, extra=[single])
    recipe = study.make_recipe(Job("single", 42, 3))
    assert (recipe.query_vectors, recipe.page_vectors) == (1, 1)
    rows = make_rows(study, {("random", "random"): {"k1": 0.2, "k4": 0.8}, ("single", "zero"): {"k1": 0.5}})
    (claim,), verdict = judge_extra(study, single, measure_rows(rows, draws=500))
    assert verdict == "it holds"
    assert claim.question.text == "1 vector a side: below RandSlot with 4"
    assert claim.difference == pytest.approx(-30, abs=6)


def test_an_extra_may_be_judged_against_one_that_is_named_before_it(tmp_path):
    study = small_study(tmp_path)
    (nested,) = study.extra
    fixed = Extra("fixed_nested", "F", "Fixed is better.", "nested", {"slots": "fixed"}, better=[4])
    with pytest.raises(UsageError, match=r"extra 'fixed_nested': against is one of random, .*feedback, not 'nested'"):
        replace(study, extra=[fixed, nested])
    study = replace(study, extra=[nested, fixed])
    rows = make_rows(study, {("nested", "random"): {"k4": 0.2}, ("fixed_nested", "fixed"): {"k4": 0.5}})
    found = measure_rows(rows, draws=500)
    (claim,), verdict = judge_extra(study, fixed, found)
    assert (verdict, claim.question.text) == ("it holds", "4 vectors a side: better than RandSlot, nested budgets")
    assert claim.difference == pytest.approx(30, abs=6)
    assert judge_extra(study, fixed, {key: found[key] for key in found if key[0] != "nested"}) is None


def test_rows_from_before_a_new_key_of_recipes_are_still_good(tmp_path):
    study = small_study(tmp_path)
    row = make_rows(study, {})[0]
    job = Job(row.arm, row.seed, 3, 2)
    write_row(Path(study.results), row)
    file = Path(study.results, f"{job.name}.json")
    record = json.loads(file.read_text())
    del record["settings"]["repeated_pages"]
    file.write_text(json.dumps(record))
    assert is_done(study, job)
    del record["settings"]["batch"]  # which the study has another value of than recipes have
    file.write_text(json.dumps(record))
    with pytest.raises(UsageError, match="another batch"):
        is_done(study, job)
