"""Hard negatives: what a search takes for the right page and is not it; trained on like any other page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import randslot
from randslot.cli import app
from randslot.errors import UsageError
from randslot.library.library import Library
from support.pdf import write_pages

TOPICS = ["wool", "ships", "mining", "paper", "salt", "glass"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six reports of three pages, a library of their words, and a query for each page."""
    (tmp_path / "reports").mkdir()
    rows = []
    for topic in TOPICS:
        texts = [[f"sales of {topic} in {place}", f"were {topic} {place}"] for place in ("Oslo", "Lima", "Rome")]
        write_pages(tmp_path / "reports" / f"{topic}.pdf", texts)
        for number, place in enumerate(("Oslo", "Lima", "Rome"), start=1):
            rows.append({"query": f"{topic} sales {place}", "image": f"reports/{topic}.pdf#page={number}"})
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    with Library(tmp_path / "lib") as library:
        library.add(tmp_path / "reports", workers=1)
    return tmp_path


def mine(folder: Path, *options: str) -> list[dict]:
    output = folder / "mined" / "hard.jsonl"
    arguments = ["mine", str(folder / "pairs.jsonl"), "-o", str(output), "-l", str(folder / "lib"), "--by", "words"]
    result = CliRunner().invoke(app, [*arguments, *options])
    if result.exception:
        raise result.exception
    return [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]


def test_negatives_are_near_and_not_the_page(folder):
    rows = mine(folder, "--num", "2")
    assert len(rows) == 18
    for row in rows:
        assert row["image"] not in row["negatives"]
        assert len(set(row["negatives"])) == 2
        for page in (row["image"], *row["negatives"]):
            assert (folder / "mined" / page.partition("#")[0]).is_file()
    (wool,) = [row for row in rows if row["query"] == "wool sales Oslo"]
    assert all("wool.pdf" in page for page in wool["negatives"])  # the other pages of the report are the nearest


def test_ranks_and_margin_leave_pages_out(folder):
    first, later = (mine(folder, "--num", "1", "--ranks", rank, "17") for rank in ("1", "4"))
    assert [row["query"] for row in first] == [row["query"] for row in later]
    assert all(one["negatives"] != other["negatives"] for one, other in zip(first, later, strict=True))
    near, far = (mine(folder, "--num", "1", "--margin", margin) for margin in ("0.05", "0.7"))
    assert all("wool.pdf" in page for row in near if "wool" in row["query"] for page in row["negatives"])
    assert not any("wool.pdf" in page for row in far if "wool" in row["query"] for page in row["negatives"])


def test_wrong_options_are_refused(folder):
    with pytest.raises(UsageError, match="--ranks 5 3"):
        mine(folder, "--ranks", "5", "3")
    (folder / "pairs.jsonl").write_text('{"query": "a", "image": "other.pdf#page=1"}', encoding="utf-8")
    with pytest.raises(UsageError, match="not in library"):
        mine(folder)


@pytest.mark.parametrize("columns", ["list", "several"])
def test_training_takes_them(folder, columns):
    """From a list or from several columns; with a gradient cache as without."""
    rows = mine(folder, "--num", "3")
    if columns == "several":
        rows = [{f"negative_{n}": page for n, page in enumerate(row.pop("negatives"), 1)} | row for row in rows]
    data = folder / "mined" / "data.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    recipe = {
        "untrained": "qwen3-vl-tiny",
        "slots": "zero",
        "visual_tokens": 16,
        "data": str(data),
        "batch": 4,
        "negatives": 2,
        "steps": 2,
        "optimizer": "adamw",
        "precision": "fp32",
        "gradient_checkpointing": False,
        "lora": False,
        "save_every": 0,
    }
    losses = []
    for micro_batch, workers in ((0, 0), (3, 1)):
        output = folder / f"run-{micro_batch}"
        randslot.train({**recipe, "micro_batch": micro_batch, "workers": workers, "output": str(output)})
        lines = (output / "losses.csv").read_text(encoding="utf-8").splitlines()[1:]
        losses.append([float(line.split(",")[1]) for line in lines])
    assert losses[0] == pytest.approx(losses[1], abs=1e-3)
    assert losses[0][0] > 1.5  # the logarithm of four candidates is 1.4, of twelve 2.5
    with pytest.raises(randslot.RandSlotError, match="3 of 4 negatives" if columns == "list" else "negative_4"):
        randslot.train({**recipe, "negatives": 4, "output": str(folder / "more")})
