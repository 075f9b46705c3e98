"""evaluate, report, analyse, compare and profile on a set of one's own, from few sessions of real commands."""

from __future__ import annotations

import csv
import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

import randslot
from contract.pdf import write_pdf
from contract.session import Counted, Session, open_session
from support.pooling_server import TokenStates, serve

PAGES = [["Deferred tax rose in 2023."], ["The fleet has seven ships."], ["Wool was sold in Oslo."]]
IDS = [*[f"report.pdf#page={number}" for number in (1, 2, 3)], "scans/paper.png", "scans/steel.png"]
QUERIES = {"q0": "deferred tax", "q1": "ships of the fleet", "q2": "wool in Oslo", "q3": "steel", "q4": "nothing"}
GRADES = {
    "q0": {"report.pdf#page=1": 2},
    "q1": {"report.pdf#page=2": 2, "report.pdf#page=3": 1},
    "q2": {"report.pdf#page=3": 1},
    "q3": {"scans/steel.png": 1},
}

LINES = {
    "first": "evaluate model --data set -o results --query-vectors 8 --page-vectors 8",
    "again": "evaluate model --data set -o results --query-vectors 8 --page-vectors 8",
    "fewer": "evaluate model --data set -o results/few --cache results/vectors --query-vectors 2 --page-vectors 3",
    "random": "evaluate model --data set -o results --inference random --seed 1 --query-vectors 8 --page-vectors 8",
    "named": "evaluate model --data set -o named --name mine --batch 2",
    "reduced": "evaluate tokens --data set -o tokens-results --reduction kmeans --page-vectors 3 --seed 5",
    "text": "evaluate text --data set -o text-results",
    "embedded": "evaluate embedded --data set -o embedded-results",
    "words": "evaluate --by words --data set -o words",
    "words again": "evaluate --by words --data set -o words",
    "exported": "export model exported",
    "both": "evaluate model --by both --data set -o words",
}


def write_set(folder: Path) -> Path:
    """Write a set: three pages of a PDF, two images, five queries of which one has no relevant page."""
    (folder / "pages" / "scans").mkdir(parents=True)
    write_pdf(folder / "pages" / "report.pdf", PAGES)
    for word in ("steel", "paper"):
        page = Image.new("RGB", (96, 96), "white")
        ImageDraw.Draw(page).text((8, 30), word, fill="black", font_size=26)
        page.save(folder / "pages" / "scans" / f"{word}.png")
    queries = [json.dumps({"id": id, "query": text}) for id, text in QUERIES.items()]
    (folder / "queries.jsonl").write_text("\n".join(queries) + "\n")
    qrels = [
        json.dumps({"query": id, "page": page, "grade": grade})
        for id, grades in GRADES.items()
        for page, grade in grades.items()
    ]
    (folder / "qrels.jsonl").write_text("\n".join(qrels) + "\n")
    return folder


def measure_ndcg(folder: Path, model: randslot.SlotEncoder, k: int = 5) -> float:
    """Compute the mean nDCG by loops; equal scores do not occur here."""
    pages = [model.encode_document(str(folder / "pages" / id)) for id in IDS]
    values = []
    for id, grades in GRADES.items():
        query = model.encode_query(QUERIES[id])
        scores = {}
        for page, vectors in zip(IDS, pages, strict=True):
            scores[page] = sum(max(float(a @ b) for b in vectors) for a in query)
        ranked = sorted(scores, key=lambda page: -scores[page])[:k]
        gain = sum(grades.get(page, 0) / math.log2(rank + 2) for rank, page in enumerate(ranked))
        best = sum(grade / math.log2(rank + 2) for rank, grade in enumerate(sorted(grades.values(), reverse=True)))
        values.append(gain / best)
    return float(np.mean(values))


def read_tables(text: str) -> list[list[dict[str, str]]]:
    """Read tables of CSV with an empty line after each."""
    return [list(csv.DictReader(part.splitlines())) for part in text.strip().split("\n\n")]


def read_result(output: Path, model: str) -> list[dict]:
    return [json.loads(file.read_text()) for file in sorted((output / model).rglob("*.json"))]


@dataclass
class Lab:
    """A set, two models, and what was evaluated."""

    session: Session
    folder: Path
    answers: dict[str, Counted]

    def run(self, *lines: str) -> list[Counted]:
        return self.session.run([line.split() for line in lines], self.folder)

    def model(self, **settings: object) -> randslot.SlotEncoder:
        return randslot.load(self.folder / "model", **settings)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("lab")
    write_set(folder / "set")
    randslot.tiny("qwen3-vl", seed=0, visual_tokens=16).save_pretrained(str(folder / "model"))
    randslot.tiny("qwen3-vl", seed=0, visual_tokens=16, slots="tokens").save_pretrained(str(folder / "tokens"))
    randslot.tiny("llama", seed=0).save_pretrained(str(folder / "text"))
    with open_session(tmp_path_factory.mktemp("home")) as session:
        made = Lab(session, folder, {})
        made.answers = dict(zip(LINES, made.run(*LINES.values()), strict=True))
        yield made


def test_all_evaluations_end_well(lab):
    assert {name: answer.code for name, answer in lab.answers.items()} == dict.fromkeys(lab.answers, 0)


def test_scores_are_those_of_three_loops(lab):
    by_how = {result["how"]: result for result in read_result(lab.folder / "results", "model")}
    assert set(by_how) == {"zero", "random"}
    for how, settings in {"zero": {}, "random": {"inference": "random", "seed": 1}}.items():
        result = by_how[how]
        expected = measure_ndcg(lab.folder / "set", lab.model(query_vectors=8, page_vectors=8, **settings))
        assert result["ndcg@5"] == pytest.approx(expected, abs=1e-5)
        assert result["ndcg@10"] >= result["ndcg@5"]
        (subset,) = result["subsets"].values()
        assert (subset["queries"], subset["pages"], len(subset["each"])) == (4, 5, 4)  # q4 has no relevant page
        assert (result["benchmark"], result["task"], result["model"]) == ("own", "set", "model")
        assert result["counts"] == {"query": 8, "page": 8}
        assert result["weights"] == lab.model().weights_key
    assert f"{100 * by_how['zero']['ndcg@5']:.2f}" in lab.answers["first"].out
    (few,) = read_result(lab.folder / "results" / "few", "model")
    expected = measure_ndcg(lab.folder / "set", lab.model(query_vectors=2, page_vectors=3))
    assert few["ndcg@5"] == pytest.approx(expected, abs=1e-5)
    (named,) = read_result(lab.folder / "named", "mine")
    assert named["ndcg@5"] == pytest.approx(measure_ndcg(lab.folder / "set", lab.model()), abs=1e-5)
    (reduced,) = read_result(lab.folder / "tokens-results", "tokens")
    assert (reduced["counts"]["page"], reduced["settings"]["reduction"]) == (3, "kmeans")
    (text,) = read_result(lab.folder / "text-results", "text")
    assert text["subsets"]["default"]["each"][3] == 0  # an image has no text
    assert read_result(lab.folder / "embedded-results", "embedded")[0]["counts"] == {"query": 4, "page": 4}


def test_every_page_is_encoded_once(lab):
    assert lab.answers["first"].passes > 0
    assert lab.answers["again"].passes == lab.answers["fewer"].passes == 0
    assert lab.answers["again"].out == lab.answers["first"].out
    assert lab.answers["random"].passes > 0


def test_words_and_both(lab):
    (words,) = read_result(lab.folder / "words", "words")
    (both,) = read_result(lab.folder / "words", "model")
    each = words["subsets"]["default"]["each"]
    assert each[0] == each[2] == 1
    assert each[3] == 0  # the scan has no text
    assert (words["how"], both["how"]) == ("by words", "by both")
    assert both["ndcg@5"] > words["ndcg@5"]
    assert lab.answers["words again"].out == lab.answers["words"].out
    assert lab.answers["words"].passes == 0


def test_reports_in_three_formats(lab):
    md, text, latex, words = lab.run(
        "report results", "report results --format csv", "report results --format latex", "report words --format csv"
    )
    assert [answer.code for answer in (md, text, latex, words)] == [0] * 4
    rows = read_tables(text.out)[0]
    assert list(rows[0]) == [
        *["benchmark", "metric", "method", "vectors", "source", "task", "mean", "deviation", "runs"]
    ]
    found = {(row["metric"], row["method"], row["vectors"]): float(row["mean"]) for row in rows if row["task"] == "set"}
    for result in read_result(lab.folder / "results", "model"):
        for metric in ("nDCG@5", "nDCG@10"):
            assert found[metric, f"model, {result['how']}", "8/8"] == pytest.approx(100 * result[metric.lower()])
    assert len(found) == 6  # and those of few
    for name in ("model, zero", "model, random"):
        assert f"| {name} | 8/8 | yours |" in md.out
        assert f"{name} & 8/8 & yours" in latex.out
    assert r"\begin{tabular}" in latex.out
    assert {row["method"] for row in read_tables(words.out)[0]} == {"words, by words", "model, by both"}


def test_reports_rank_rows_among_the_published_ones(lab, tmp_path):
    """As on the paper's benchmark: 45.4 of RandSlot with 3B, seeds together with mean and deviation."""
    result = read_result(lab.folder / "results", "model")[0]
    tasks = ("HR", "Fin-E", "Ind", "Pharm", "CS", "Energy", "Phys", "Fin-F")
    for seed, score in ((1, 0.40), (2, 0.44)):
        for task in tasks:
            changed = {"model": "mine", "benchmark": "ViDoRe(v3)", "task": task, "ndcg@5": score, "ndcg@10": score}
            settings = result["settings"] | {"seed": seed, "inference": "random"}
            row = result | changed | {"how": "random", "settings": settings}
            (tmp_path / f"{seed}-{task}.json").write_text(json.dumps(row))
    (answer,) = lab.run(f"report {tmp_path} --format csv")
    rows = [row for row in read_tables(answer.out)[0] if row["metric"] == "nDCG@5"]
    (mine,) = [row for row in rows if row["source"] == "yours" and row["task"] == "HR"]
    assert (float(mine["mean"]), mine["runs"]) == (pytest.approx(42), "2")
    assert float(mine["deviation"]) == pytest.approx(np.std([40, 44], ddof=1))
    published = {float(row["mean"]) for row in rows if row["source"] != "yours" and row["task"] == "avg"}
    assert any(round(value, 1) == 45.4 for value in published)


def test_analyses_have_all_parts_without_a_model(lab, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(lab.folder / "results", moved)
    shutil.rmtree(moved / "few")
    whole, budgets, winners, readouts, cost = lab.run(
        f"analyse {moved} -o {tmp_path}/report",
        *[f"analyse {part} {moved} --format csv" for part in ("budgets", "winners", "readouts", "cost")],
    )
    answers = (whole, budgets, winners, readouts, cost)
    assert [(answer.code, answer.passes) for answer in answers] == [(0, 0)] * 5
    names = {file.name for file in (tmp_path / "report").iterdir()}
    for name in ("budgets", "winners", "shares", "readouts", "gains", "cost"):
        assert {f"{name}.md", f"{name}.csv", f"{name}.tex"} <= names
    for name in ("budgets", "budgets-sides", "winners", "readouts"):
        assert (tmp_path / "report" / f"{name}.svg").read_text().startswith("<?xml")
        assert np.asarray(Image.open(tmp_path / "report" / f"{name}.png")).std() > 5
        assert f"{name}.svg" in (tmp_path / "report" / "index.html").read_text()

    swept, noise = read_tables(budgets.out)
    rows = {(row["run"], row["side"]): row for row in swept}
    for num in (1, 2, 4, 8):
        expected = measure_ndcg(lab.folder / "set", lab.model(query_vectors=num, page_vectors=num))
        assert float(rows["model, zero", "both"][str(num)]) == pytest.approx(100 * expected, abs=1e-3)
    expected = measure_ndcg(lab.folder / "set", lab.model(query_vectors=1, page_vectors=4))
    assert float(rows["model, zero", "query"]["1"]) == pytest.approx(100 * expected, abs=1e-3)
    for row in noise:
        both = rows[row["run"], "both"]
        difference = float(both[row["vectors"]]) - float(both["4"])
        assert float(row["difference"]) == pytest.approx(difference, abs=1e-6)
        assert float(row["from"]) <= difference <= float(row["to"])

    entropy, shares = read_tables(winners.out)
    assert {row["run"]: (row["pairs"], 0 <= float(row["H"]) <= 1) for row in entropy} == {
        "model, zero": ("5", True),
        "model, random": ("5", True),
    }
    model = lab.model()
    wins = np.zeros((4, 4))
    for id, grades in GRADES.items():
        for page in grades:
            (vectors,) = model.encode_document([str(lab.folder / "set" / "pages" / page)])
            best = (model.encode_query(QUERIES[id]) @ vectors.T).argmax(dim=1)
            for query, winner in enumerate(best.tolist()):
                wins[winner, query] += 100 / 5
    found = [[float(row[f"for q{i}"]) for i in range(1, 5)] for row in shares if row["run"] == "model, zero"]
    assert np.abs(np.array(found) - wins).max() < 1e-3

    alone, gains = read_tables(readouts.out)
    (row,) = [row for row in alone if (row["run"], row["side"]) == ("model, zero", "page")]
    assert float(row["full"]) == pytest.approx(100 * measure_ndcg(lab.folder / "set", model), abs=1e-3)
    assert {f"only r{i}" for i in range(1, 5)} | {f"removal of r{i}" for i in range(1, 5)} <= row.keys()
    assert {row["run"] for row in gains} == {"model, zero", "model, random"}

    (sizes,) = read_tables(cost.out)
    assert {(row["method"], row["Kd"], row["KiB per page"]) for row in sizes} >= {
        ("RandSlot", "4", "16.0"),
        ("CausalEmbed", "32", "128.0"),
    }
    assert {(row["Kd"], row["dimensions"]) for row in sizes if row["method"] == "yours"} == {("4", "64")}


def test_analyses_of_models(lab):
    model, own, winners, *refused = lab.run(
        "analyse budgets model --data set -o report --format csv",
        "analyse cost --vectors 8 --dim 1024 --format csv",
        "analyse winners report/results --vectors 3 --format csv",
        "analyse set",
        "analyse tokens-results",
        "analyse bogus results",
        "analyse winners results --vectors 12",
    )
    assert [answer.code for answer in (model, own, winners)] == [0] * 3, model.err
    row = read_tables(model.out)[0][0]
    expected = measure_ndcg(lab.folder / "set", lab.model(query_vectors=8, page_vectors=8))
    assert (row["run"], row["side"]) == ("model, zero", "both")
    assert float(row["8"]) == pytest.approx(100 * expected, abs=1e-3)
    yours = {row["type"]: row for row in read_tables(own.out)[0] if row["method"] == "yours"}
    assert {name: float(row["KiB per page"]) for name, row in yours.items()} == {
        "fp32": 32,
        "fp16": 16,
        "int8": 8,
        "1-bit": 1,
    }
    assert yours["int8"]["multiply-adds"] == "65536"
    assert "for q3" in winners.out
    assert "for q4" not in winners.out
    for answer, value in zip(refused, ("set", "tokens", "bogus", "12"), strict=True):
        answer.assert_one_line(2, value)


def test_runs_and_models_are_compared(lab, tmp_path):
    shutil.copytree(lab.folder / "results", tmp_path / "results")
    shutil.rmtree(tmp_path / "results" / "few")
    zero, random = (next((tmp_path / "results" / "model").glob(f"{how}*")) for how in ("zero", "random"))
    based, two, table, same = lab.run(
        f"compare {tmp_path}/results --base zero --format csv",
        f"compare {zero} {random} --format csv --seed 7",
        "compare words model text --data set --both --format csv -o comparison",
        f"compare {tmp_path}/results --base zero --format csv",
    )
    assert [answer.code for answer in (based, two, table)] == [0] * 3, table.err
    assert same.out == based.out
    scores = {result["how"]: 100 * result["ndcg@5"] for result in read_result(tmp_path / "results", "model")}
    for answer in (based, two):
        base, other = read_tables(answer.out)[0]
        assert (base["run"], base["verdict"], other["run"]) == ("model, zero", "base", "model, random")
        assert float(base["score"]) == pytest.approx(scores["zero"], abs=1e-3)
        assert float(other["difference"]) == pytest.approx(scores["random"] - scores["zero"], abs=1e-3)
        assert float(other["from"]) <= float(other["difference"]) <= float(other["to"])
        assert other["verdict"] in ("better", "worse", "within noise")
    rows = {row["search"]: row for row in read_tables(table.out)[0]}
    assert list(rows) == ["words", "model", "model and words", "text", "text and words"]
    assert (rows["words"]["verdict"], rows["model"]["vectors per page"], rows["model"]["dimension"]) == (
        "base",
        "4",
        "64",
    )
    assert rows["model"]["bytes per page"] == "512"
    (words,) = read_result(lab.folder / "words", "words")
    assert float(rows["words"]["nDCG@5"]) == pytest.approx(100 * words["ndcg@5"], abs=1e-3)
    folder = lab.folder / "comparison"
    assert {"compare.json", "compare.svg", "compare.png", "libraries"} <= {file.name for file in folder.iterdir()}


def test_a_profile_times_every_strategy_and_budget(lab):
    table, embedded = lab.run(
        "profile model --page 2x2 --vectors 1,3 --samples 1 --format csv",
        "profile embedded --page 10x9 --vectors 1 --samples 1",
    )
    assert (table.code, embedded.code) == (0, 0)
    rows = read_tables(table.out)[0]
    ways = {(row["strategy"], row["vectors"], row["way"]) for row in rows}
    for strategy in ("random", "zero", "fixed", "learned", "feedback"):
        for num in ("1", "3"):
            assert (strategy, num, "step by step") in ways
            assert ((strategy, num, "one pass") in ways) == (strategy != "feedback")
    assert all(float(row["query ms (median)"]) > 0 and float(row["pages/s"]) > 0 for row in rows)
    assert "10 x 9" in embedded.out


def test_a_server_is_evaluated_like_a_model(lab):
    folder = lab.folder / "exported"
    with serve(TokenStates(folder).answer, folder) as url:
        (answer,) = lab.run(f"evaluate {url} --data set -o served --name served")
    assert (answer.code, answer.passes) == (0, 0), answer.err
    (result,) = read_result(lab.folder / "served", "served")
    assert result["ndcg@5"] == pytest.approx(measure_ndcg(lab.folder / "set", lab.model()), abs=1e-5)


def test_what_is_wrong_is_one_line(lab, tmp_path):
    torn = write_set(tmp_path / "torn")
    (torn / "pages" / "scans" / "steel.png").write_bytes(b"not an image")
    lost = write_set(tmp_path / "lost")
    (lost / "qrels.jsonl").write_text(json.dumps({"query": "q0", "page": "gone.pdf#page=1", "grade": 1}) + "\n")
    bare = write_set(tmp_path / "bare")
    (bare / "queries.jsonl").unlink()
    (tmp_path / "empty").mkdir()
    refused = {
        "evaluate": (2, "--data"),
        "evaluate --data set": (2, "MODEL"),
        "evaluate nowhere --data set": (2, "nowhere"),
        "evaluate model --data nowhere": (2, "nowhere"),
        f"evaluate model --data {bare}": (2, "queries.jsonl"),
        f"evaluate model --data {torn} -o {tmp_path}/out": (1, "steel.png"),
        f"evaluate model --data {lost} -o {tmp_path}/out": (1, "gone.pdf#page=1"),
        "evaluate model --data set --inference rnd": (2, "rnd"),
        "evaluate model --data set --page-vectors 0": (2, "0"),
        "evaluate model --data set --by magic": (2, "magic"),
        "evaluate model -b ViDoRe(v9)": (2, "ViDoRe(v9)"),
        "evaluate model -b ViDoRe(v3) --tasks bogus": (2, "bogus"),
        f"evaluate model -b ViDoRe(v3) --tasks hr,finance_en -o {tmp_path}/out": (1, "vidore_v3_hr"),
        f"evaluate owner/model --data set -o {tmp_path}/out": (1, "owner/model"),
        f"report {tmp_path}/empty": (2, "empty"),
        "report results --format html": (2, "html"),
        "analyse": (2, "budgets"),
        f"analyse {tmp_path}/empty": (2, "empty"),
        "analyse results --format html": (2, "html"),
        f"compare {tmp_path}/empty results": (2, "empty"),
        "compare results --base bogus": (2, "bogus"),
        "compare named": (2, "mine"),
        f"compare words owner/model --data set -o {tmp_path}/out": (1, "owner/model"),
        "compare words nowhere --data set": (2, "nowhere"),
        "profile embedded --page big": (2, "big"),
        "profile embedded --vectors 1;4": (2, "1;4"),
        "profile nowhere": (2, "nowhere"),
        "export vidore/colqwen2.5-v0.2 out": (1, "vidore/colqwen2.5-v0.2"),
    }
    wrong = []
    for line, answer in zip(refused, lab.run(*refused), strict=True):
        try:
            answer.assert_one_line(*refused[line])
        except AssertionError as error:
            wrong.append(f"{line}: {answer.code} {answer.out[-80:]} {answer.err[-160:]} {error!s:.40}")
    assert not wrong, "\n".join(wrong)
