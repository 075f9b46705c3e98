"""Other people's models are evaluated as mteb evaluates them, under their own settings."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from randslot.cli import app
from randslot.errors import UsageError
from randslot.evaluation.compare import compare_runs
from randslot.evaluation.evaluate import Evaluation
from randslot.evaluation.result_files import read_results
from randslot.evaluation.tasks import find_tasks
from randslot.model import open_model
from research.samples.sets import write_set
from support import others
from support.copies import write_v2


@pytest.mark.parametrize("name", ["colqwen2", pytest.param("qwen3_vl_embedding", marks=pytest.mark.nightly)])
def test_scores_are_those_of_mteb_for_the_same_model(name: str, tmp_path: Path) -> None:
    import mteb
    from mteb.models import MultiVectorWrapper
    from mteb.models.sentence_transformer_wrapper import SentenceTransformerMultimodalEncoderWrapper

    write_v2(tmp_path / "copies")
    model = open_model(str(getattr(others, f"save_{name}")(tmp_path / "model")), device="cpu")
    wrap = MultiVectorWrapper if model.settings.is_multi_vector else SentenceTransformerMultimodalEncoderWrapper
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (task,) = find_tasks([], ["esg"], tmp_path / "copies")
        theirs = wrap(model.model)
        theirs.mteb_model_meta = theirs.mteb_model_meta.model_copy(update={"modalities": ["text", "image"]})
        options = {"cache": None, "show_progress_bar": False, "encode_kwargs": {"batch_size": 4}}
        found = mteb.evaluate(theirs, task.task, **options).task_results[0].scores["test"]
    tasks = find_tasks([], ["esg"], tmp_path / "copies")
    (ours,) = Evaluation(model, "other", tmp_path / "out", tmp_path / "out" / "vectors").run(tasks)
    for row in found:
        for k in (5, 10):
            assert ours.subsets[row["hf_subset"]].ndcg[k] == pytest.approx(row[f"ndcg_at_{k}"], abs=1e-5)
    assert 0 < ours.ndcg[10] < 1


@pytest.mark.slow
def test_the_command_evaluates_any_model(tmp_path: Path) -> None:
    write_set(tmp_path / "own", 2, split="test", seed=0)
    colqwen2, minilm = others.save_colqwen2(tmp_path / "colqwen2"), others.save_minilm(tmp_path / "minilm")
    common = ["--data", str(tmp_path / "own"), "-o", str(tmp_path / "out")]
    reduced = ["--reduction", "semcluster", "--page-vectors", "4"]
    for arguments in ([str(colqwen2)], [str(colqwen2), *reduced], [str(minilm)], [str(minilm), "--by", "both"]):
        answer = CliRunner().invoke(app, ["evaluate", *arguments, *common])
        assert answer.exit_code == 0, answer.output
    found = {(Path(one.model).name, one.how, one.counts_text) for one in read_results(tmp_path / "out")}
    assert found == {
        ("colqwen2", "tokens", "all/all"),
        ("colqwen2", "tokens by cluster", "all/4"),
        ("minilm", "one vector", "1/1"),
        ("minilm", "by both", "1/1"),
    }


@pytest.mark.nightly
def test_runs_of_words_images_and_texts_are_compared_query_by_query(tmp_path: Path) -> None:
    write_set(tmp_path / "own", 2, split="test", seed=0)
    Image.new("RGB", (60, 80), "white").save(tmp_path / "own" / "pages" / "without-text.png")
    colqwen2, minilm = others.save_colqwen2(tmp_path / "colqwen2"), others.save_minilm(tmp_path / "minilm")
    common = ["--data", str(tmp_path / "own"), "-o", str(tmp_path / "out")]
    for arguments in ([str(colqwen2)], [str(minilm)], ["--by", "words"]):
        answer = CliRunner().invoke(app, ["evaluate", *arguments, *common])
        assert answer.exit_code == 0, answer.output
    table = compare_runs([tmp_path / "out"], base="words, by words")
    assert [row[6] for row in table.rows].count("base") == 1
    assert len(table.rows) == 3
    for name in ("minilm", "colqwen2"):
        (folder,) = [path for path in (tmp_path / "out").iterdir() if path.name.endswith(name)]
        answer = CliRunner().invoke(app, ["analyse", str(folder)])
        assert isinstance(answer.exception, UsageError)
        assert "no slots to analyse" in str(answer.exception)
