"""Evaluations through the real command: equal to mteb's own, each page encoded once, resumed after a kill."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
import warnings
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import randslot
from randslot.cli import app, main
from randslot.errors import RandSlotError, UsageError
from randslot.evaluation.cache import VectorCache
from randslot.evaluation.compare import compare_runs
from randslot.evaluation.evaluate import Evaluation
from randslot.evaluation.result_files import read_results
from randslot.evaluation.tasks import find_tasks, own_task
from randslot.pages import open_page
from research.samples.sets import write_set
from support.copies import write_v1, write_v2, write_v3
from support.models import make
from support.pdf import write_pages

pytestmark = [pytest.mark.xdist_group("evaluate"), pytest.mark.slow]


@pytest.fixture(scope="module")
def copies(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("copies")
    write_v1(root)
    write_v2(root)
    write_v3(root)
    return root


def evaluate(model, tasks, folder: Path, **options):
    return Evaluation(model, "mine", folder, folder / "vectors", **options).run(tasks)


@pytest.mark.parametrize("name", ["arxiv", "esg", pytest.param("hr", marks=pytest.mark.nightly)])
def test_scores_are_those_of_mteb_itself(name, copies, tmp_path):
    """mteb gets the model as it is, as a user would pass it."""
    import mteb

    model = make("qwen3-vl", visual_tokens=64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (task,) = find_tasks([], [name], copies)
        options = {"cache": None, "show_progress_bar": False, "encode_kwargs": {"batch_size": 4}}
        found = mteb.evaluate(model, task.task, **options).task_results[0].scores["test"]
    (ours,) = evaluate(model, find_tasks([], [name], copies), tmp_path)
    assert {row["hf_subset"] for row in found} == set(ours.subsets)
    for row in found:
        for k in (5, 10):
            assert ours.subsets[row["hf_subset"]].ndcg[k] == pytest.approx(row[f"ndcg_at_{k}"], abs=1e-5)
    assert ours.ndcg[5] == pytest.approx(sum(row["ndcg_at_5"] for row in found) / len(found), abs=1e-5)


def test_each_page_is_encoded_once_whatever_asks_for_it(copies, tmp_path, monkeypatch):
    model = make("qwen3-vl", visual_tokens=64)
    counted: list[int] = []
    encode = type(model).encode_prepared
    monkeypatch.setattr(type(model), "encode_prepared", lambda *a, **k: counted.append(len(a[1])) or encode(*a, **k))
    evaluate(model, find_tasks([], ["hr", "esg"], copies), tmp_path, batch=5)
    assert sum(counted) == 12  # six and four languages over the same pages
    model.use(page_vectors=2, query_vectors=1)
    evaluate(model, find_tasks([], ["hr"], copies), tmp_path)
    assert sum(counted) == 12
    model.use(page_vectors=5)
    evaluate(model, find_tasks([], ["hr"], copies), tmp_path)
    assert sum(counted) == 24


def test_a_model_that_reads_text_cannot_find_pages_without(tmp_path, capsys):
    """They are left out of its ranking, and count as pages that it should have found."""
    (tmp_path / "set" / "pages").mkdir(parents=True)
    write_pages(tmp_path / "set" / "pages" / "a.pdf", [["deferred tax"], [], ["the fleet"]])
    queries = [{"id": "q1", "query": "tax"}, {"id": "q2", "query": "blank"}]
    grades = [{"query": "q1", "page": "a.pdf#page=1", "grade": 1}, {"query": "q2", "page": "a.pdf#page=2", "grade": 1}]
    for name, rows in (("queries", queries), ("qrels", grades)):
        (tmp_path / "set" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = make("llama")
    (result,) = evaluate(model, [own_task(tmp_path / "set")], tmp_path / "out")
    assert "1 pages have no text and cannot be found" in capsys.readouterr().err
    (subset,) = result.subsets.values()
    assert subset.pages == 3
    found = model.similarity(model.encode_query(["tax"]), model.encode_document(["deferred tax", "the fleet"]))[0]
    assert subset.each == [1.0 if found[0] > found[1] else round(1 / math.log2(3), 6), 0.0]


def test_a_broken_page_is_named_and_what_was_encoded_is_kept(tmp_path):
    write_set(tmp_path / "own", 4, split="test", seed=0)
    (tmp_path / "own" / "pages" / "zz.png").write_bytes(b"broken")
    model = make("qwen3-vl", visual_tokens=64)
    with pytest.raises(RandSlotError, match=r"page zz.png: not an image that can be read"):
        evaluate(model, [own_task(tmp_path / "own")], tmp_path / "out", batch=4)
    assert len(list((tmp_path / "out").rglob("page-*/*.safetensors"))) == 1


def test_a_prefix_from_the_cache_scores_like_a_model_of_that_budget(copies, tmp_path):
    model = make("qwen3-vl", visual_tokens=64, query_vectors=6, page_vectors=6)
    evaluate(model, find_tasks([], ["arxiv"], copies), tmp_path / "a")
    model.use(query_vectors=2, page_vectors=3)
    (cached,) = evaluate(model, find_tasks([], ["arxiv"], copies), tmp_path / "a")
    (fresh,) = evaluate(model, find_tasks([], ["arxiv"], copies), tmp_path / "b")
    assert cached.ndcg[10] == pytest.approx(fresh.ndcg[10], abs=1e-9)
    assert not list((tmp_path / "a").rglob("page-*-k3/*.safetensors"))
    assert list((tmp_path / "b").rglob("page-*-k3/*.safetensors"))


def test_the_command_on_v3_and_on_a_set_of_ones_own(tmp_path):
    write_v3(tmp_path / "copies")
    common = ["-o", str(tmp_path / "results")]
    roots = ["-b", "ViDoRe(v3)", "--tasks", "hr", "--data-root", str(tmp_path / "copies")]
    answer = CliRunner().invoke(app, ["evaluate", "embedded", *roots, *common])
    assert answer.exit_code == 0, answer.output
    (file,) = (tmp_path / "results" / "embedded").glob("zero-q4-p4-seed42-*/ViDoRe(v3)-HR.json")
    result = json.loads(file.read_text())
    assert len(result["subsets"]) == 6
    assert result["subsets"]["english"]["ndcg@5"] > 0.6
    # Trained with random slots: the paper's tables have it with zeros in their place, and with them.
    assert list((tmp_path / "results" / "embedded").glob("random-q4-p4-seed42-*/ViDoRe(v3)-HR.json"))
    assert [line for line in answer.output.splitlines() if line.startswith("with ")] == [
        "with zero slots:",
        "with random slots:",
    ]
    write_set(tmp_path / "own", 5, split="test", seed=3)
    answer = CliRunner().invoke(app, ["evaluate", "embedded", "--data", str(tmp_path / "own"), *common])
    assert answer.exit_code == 0, answer.output
    assert "own: nDCG@5" in answer.output
    assert "with random slots" not in answer.output
    answer = CliRunner().invoke(app, ["report", str(tmp_path / "results")])
    assert answer.exit_code == 0, answer.output
    assert "| embedded, zero | 4/4 | yours |" in answer.output


@pytest.mark.nightly
def test_a_killed_evaluation_goes_on(tmp_path):
    write_set(tmp_path / "own", 12, split="test", seed=5)
    script = (
        "import sys, time; from pathlib import Path; import randslot\n"
        "from randslot.evaluation import cache; from randslot.evaluation.evaluate import Evaluation\n"
        "from randslot.evaluation.tasks import own_task\n"
        "cache.SHARD_SECONDS = 0.0\n"
        "root = Path(sys.argv[1]); model = randslot.tiny('qwen3-vl', seed=0, visual_tokens=64)\n"
        "encode = type(model).encode_prepared\n"
        "type(model).encode_prepared = lambda *a, **k: (time.sleep(0.2), encode(*a, **k))[1]\n"
        "Evaluation(model, 'm', root / 'out', root / 'vectors', batch=1).run([own_task(root / 'own')])\n"
    )
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], env=environment)
    deadline = time.monotonic() + 120
    while (
        process.poll() is None
        and len(list((tmp_path / "vectors").rglob("page-*/*.safetensors"))) < 3
        and time.monotonic() < deadline
    ):
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (folder,) = (tmp_path / "vectors").rglob("page-*")
    kept = len(VectorCache(folder).rows)
    assert 3 <= kept < 36
    model = randslot.tiny("qwen3-vl", seed=0, visual_tokens=64)
    counted: list[int] = []
    encode = model.encode_prepared
    model.encode_prepared = lambda pages, batch: counted.append(len(pages)) or encode(pages, batch)
    (result,) = Evaluation(model, "m", tmp_path / "out", tmp_path / "vectors").run([own_task(tmp_path / "own")])
    assert sum(counted) == 36 - kept
    del model.encode_prepared
    (whole,) = Evaluation(model, "m", tmp_path / "out2", tmp_path / "fresh").run([own_task(tmp_path / "own")])
    assert result.ndcg[10] == pytest.approx(whole.ndcg[10], abs=1e-9)


def test_two_processes_give_the_result_of_one_to_the_last_bit(tmp_path):
    """Pages and queries are shared by groups that one process would encode together; a damaged page stops both."""
    write_set(tmp_path / "own", 7, split="test", seed=5)
    make("qwen3-vl", visual_tokens=64).save_pretrained(str(tmp_path / "model"))
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

    def run(*start: str, output: str) -> subprocess.CompletedProcess[str]:
        words = ["evaluate", "model", "--data", "own", "--inference", "random", "--batch", "2", "-o", output]
        command = [sys.executable, *start, "-m", "randslot", *words]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300)

    one, two = run(output="one"), run(*torchrun, output="two")
    assert (one.returncode, two.returncode) == (0, 0), two.stderr[-3000:]
    assert two.stdout == one.stdout
    assert two.stderr.count("evaluating on own") == 1
    (first,), (second,) = (list((tmp_path / name / "model").rglob("*.json")) for name in ("one", "two"))
    assert json.loads(first.read_text()) == json.loads(second.read_text())
    for side in ("query", "page"):
        (whole,), (shared,) = (list((tmp_path / name).rglob(f"{side}-random*")) for name in ("one", "two"))
        assert len(list(shared.iterdir())) == 2  # a file of each process
        assert len(list(whole.iterdir())) == 1
        caches = VectorCache(whole), VectorCache(shared)
        keys = sorted(caches[0].rows)
        assert keys == sorted(caches[1].rows)
        assert all(torch.equal(a, b) for a, b in zip(caches[0].read(keys), caches[1].read(keys), strict=True))
    (tmp_path / "own" / "pages" / "zz.png").write_bytes(b"broken")  # in the last group, which the second process has
    broken = run(*torchrun, output="broken")
    assert broken.returncode
    assert broken.stderr.count("page zz.png: not an image that can be read") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tasks", "hr", "-o", "/proc/nothing"], "cannot write into /proc/nothing"),
        (["--tasks", "hr", "--data-root", "nowhere"], "no copy of vidore/vidore_v3_hr_mteb_format in nowhere"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["randslot", "evaluate", "embedded", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr().err
    assert end.value.code == 2
    assert message in said
    assert len(said.strip().splitlines()) == 1


def test_averages_go_over_the_tasks_of_one_version_and_logs_have_no_empty_lines(copies, tmp_path):
    write_v1(copies, "docvqa_test_subsampled_beir")
    make("qwen3-vl", visual_tokens=16).save_pretrained(str(tmp_path / "model"))
    words = ["evaluate", str(tmp_path / "model"), "--tasks", "arxiv,doc,hr", "--data-root", str(copies)]
    done = CliRunner().invoke(app, [*words, "--inference", "feedback", "-o", str(tmp_path / "results")])
    assert done.exit_code == 0, done.exception
    scores = {line.split(":")[0]: float(line.split()[2]) for line in done.stdout.splitlines() if line[0] in "ADH"}
    assert set(scores) == {"Arxiv", "Doc", "HR"}
    (mean,) = [line for line in done.stdout.splitlines() if "mean of" in line]
    assert mean.startswith("ViDoRe(v1), mean of 2 tasks: nDCG@5 ")
    assert float(mean.split()[6]) == pytest.approx((scores["Arxiv"] + scores["Doc"]) / 2, abs=0.02)
    assert all(line.strip() for line in done.stderr.splitlines())


def test_documents_are_ranked_by_their_best_page(tmp_path):
    """The right page is third and its document second, behind two pages of one other document."""
    (tmp_path / "set" / "pages").mkdir(parents=True)
    write_pages(tmp_path / "set" / "pages" / "a.pdf", [["tax tax tax"], ["tax tax"], ["the fleet"]])
    write_pages(tmp_path / "set" / "pages" / "b.pdf", [["tax and a long line of other words about ships"], ["wool"]])
    (tmp_path / "set" / "queries.jsonl").write_text(json.dumps({"id": "q", "query": "tax"}) + "\n")
    grades = [{"query": "q", "page": f"b.pdf#page={page}", "grade": grade} for page, grade in ((1, 2), (2, 1))]
    (tmp_path / "set" / "qrels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in grades))
    scores = {}
    for group in ("page", "document"):
        words = ["evaluate", "--by", "words", "--data", str(tmp_path / "set"), "--group", group]
        answer = CliRunner().invoke(app, [*words, "-o", str(tmp_path / "out")])
        assert answer.exit_code == 0, answer.output
        scores[group] = float(answer.stdout.split()[2])
    ideal = 2 + 1 / math.log2(3)  # both relevant pages first
    assert scores == {
        "page": pytest.approx(100 * (2 / math.log2(4)) / ideal, abs=0.01),
        "document": pytest.approx(100 / math.log2(3), abs=0.01),
    }
    with pytest.raises(UsageError, match="differ in queries or pages"):
        compare_runs([tmp_path / "out"])


def test_windows_of_a_page_are_encoded_each_by_itself(tmp_path):
    """A control of the paper's kind: as many vectors as windows, from a model of one vector."""
    write_set(tmp_path / "own", 1, split="test", seed=0)
    make("qwen3-vl", visual_tokens=16, query_vectors=1, page_vectors=1).save_pretrained(str(tmp_path / "model"))
    words = ["evaluate", str(tmp_path / "model"), "--data", str(tmp_path / "own"), "-o", str(tmp_path / "out")]
    answer = CliRunner().invoke(app, [*words, "--windows", "3"])
    assert answer.exit_code == 0, answer.output
    (result,) = read_results(tmp_path / "out")
    assert (result.how, result.counts_text, result.has_prefixes) == ("zero, 3 windows", "1/3", False)
    model = randslot.load(tmp_path / "model")
    (subset,) = own_task(tmp_path / "own").subsets()
    image = open_page(subset.pages.open(0), 3 * model.page_pixels)
    edges = [0, image.height // 3, 2 * image.height // 3, image.height]
    crops = [image.crop((0, top, image.width, bottom)) for top, bottom in pairwise(edges)]
    found = VectorCache(result.cache_folder / result.vectors["page"]).read([subset.pages.key(0)])[0]
    assert (found - torch.cat(list(model.encode_document(crops)))).abs().max() < 1e-5
