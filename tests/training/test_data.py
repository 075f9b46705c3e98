"""Pairs from JSONL, parquet and datasets folders; bad rows stop with their number, or are skipped; text models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict, Features, Image, Value
from PIL import Image as Pictures

from randslot.errors import RandSlotError, UsageError
from randslot.training.data import PageOpener, count_queries, drop_bad_rows, held_out, load_pairs
from randslot.training.train import train
from support.pairs import WORDS, small


def load(path, split="train", query="query", page="image"):
    return load_pairs(str(path), split, query, page)


def opened(pairs, log, on_bad_row="stop"):
    return pairs.dataset.with_transform(PageOpener(pairs, on_bad_row, log))


@pytest.fixture
def encoded(data):
    """The pairs of `data` with their images inside, as on the hub."""
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    features = Features({"query": Value("string"), "image": Image(), "source": Value("string")})
    columns = {
        "query": [row["query"] for row in rows],
        "image": [{"bytes": (data.parent / row["image"]).read_bytes(), "path": None} for row in rows],
        "source": ["x"] * len(rows),
    }
    return Dataset.from_dict(columns, features=features)


def test_every_source_gives_the_same_pairs(data, encoded, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    encoded.to_parquet(tmp_path / "pairs.parquet")
    encoded.save_to_disk(tmp_path / "saved")
    DatasetDict({"train": encoded, "dev": encoded.select(range(2))}).save_to_disk(tmp_path / "splits")
    (tmp_path / "copy").mkdir()
    encoded.to_parquet(tmp_path / "copy" / "train-00000-of-00001.parquet")
    reference = opened(load(data), tmp_path / "log")[:]
    for place in ("pairs.parquet", "saved", "splits", "copy"):
        pairs = load(tmp_path / place)
        assert pairs.dataset.column_names == ["query", "page", "row"]
        assert not isinstance(pairs.dataset[0]["page"], Pictures.Image)  # still encoded
        rows = opened(pairs, tmp_path / "log")[:]
        assert rows["query"] == reference["query"]
        assert [page.tobytes() for page in rows["page"]] == [page.tobytes() for page in reference["page"]]
    assert len(load(tmp_path / "splits", split="dev")) == 2


def test_columns_are_named_by_the_recipe(tmp_path, data):
    lines = [json.loads(line) for line in data.read_text().splitlines()]
    renamed = data.with_name("other.jsonl")
    renamed.write_text("".join(json.dumps({"frage": row["query"], "seite": row["image"]}) + "\n" for row in lines))
    assert len(load(renamed, query="frage", page="seite")) == 8
    with pytest.raises(UsageError, match="has no column 'query'; it has frage, seite"):
        load(renamed)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"query": " ", "image": "tax.png"}, "empty query"),
        ({"query": "x", "image": ""}, "no image"),
        ({"query": "x", "image": "n" * 300}, "page image not found"),
        ({"query": "x", "image": "gone.pdf#page=2"}, "page image not found: .*gone.pdf"),
    ],
)
def test_bad_rows_that_are_cheap_to_see_stop_before_training(data, row, reason):
    with data.open("a") as lines:
        lines.write(json.dumps(row) + "\n")
    with pytest.raises(RandSlotError, match=rf"pairs\.jsonl: row 9: {reason}.*\. Fix it, or set") as caught:
        drop_bad_rows(load(data), "stop")
    assert "\n" not in str(caught.value)
    good, lines = drop_bad_rows(load(data), "skip")
    assert len(good) == 8
    assert len(lines) == 1


def test_missing_images_inside_a_dataset_are_seen_without_decoding(encoded, tmp_path):
    rows = encoded.to_list()
    rows[3]["image"] = None
    rows[5]["image"] = {"bytes": b"", "path": None}
    Dataset.from_list(rows, features=encoded.features).save_to_disk(tmp_path / "saved")
    with pytest.raises(RandSlotError, match=r"row 4: no image \(and 1 more\)"):
        drop_bad_rows(load(tmp_path / "saved"), "stop")
    good, _ = drop_bad_rows(load(tmp_path / "saved"), "skip")
    assert len(good) == 6


def test_a_broken_image_stops_with_its_row_or_the_next_row_stands_in(data, tmp_path):
    (data.parent / "staff.png").write_bytes(b"not an image")
    (data.parent / "sales.png").write_bytes(b"nor this")
    pairs, lines = drop_bad_rows(load(data), "stop")  # not cheap to see
    assert not lines
    with pytest.raises(RandSlotError, match=r"row 3: not an image that can be read: .*staff\.png"):
        opened(pairs, tmp_path / "log")[:4]
    rows = opened(pairs, tmp_path / "log", "skip")[:4]
    assert rows["query"] == ["about tax", "about fleet", "about water", "about water"]
    assert [line.split(":")[0] for line in (tmp_path / "log").read_text().splitlines()] == ["row 3", "row 4", "row 4"]


def test_held_out_pairs_share_their_pages(data):
    with data.open("a") as lines:
        lines.write(json.dumps({"query": "more on tax", "image": "tax.png"}) + "\n")
    queries, pages, relevant = held_out(load(data))
    assert (len(queries), len(pages)) == (9, 8)
    assert relevant["query 9 0"] == relevant["query 1 0"]


def with_lists(data, *queries: object) -> Path:
    images = [json.loads(line)["image"] for line in data.read_text().splitlines()]
    rows = [{"query": query, "image": image} for query, image in zip(queries, images, strict=False)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return data


def test_a_page_may_have_several_queries(data):
    pairs = load(with_lists(data, ["a", "b"], ["c", "d"]))
    assert count_queries(pairs) == 2
    queries, pages, relevant = held_out(pairs)
    assert list(queries.values()) == ["a", "b", "c", "d"]
    assert [len(relevant[id]) for id in queries] == [1] * 4
    assert relevant["query 1 0"] == relevant["query 1 1"] != relevant["query 2 0"]
    assert len(pages) == 2


def test_lists_of_queries_have_texts_and_one_length(data):
    _, bad = drop_bad_rows(load(with_lists(data, ["a", "b"], ["c", " "], [], ["d", "e"])), "skip")
    assert bad == ["row 2: empty query", "row 3: empty query"]
    with pytest.raises(UsageError, match=r"pairs\.jsonl: every page needs the same number of queries, not 1-2"):
        count_queries(load(with_lists(data, ["a", "b"], ["c"])))
    with pytest.raises(RandSlotError, match="cannot mix list and non-list"):
        load(with_lists(data, ["a", "b"], "c"))


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("nowhere.jsonl", "no pairs at nowhere.jsonl"),
        ("nowhere.csv", "no pairs at nowhere.csv"),
        pytest.param(
            "owner/nothing", r"cannot load pairs from owner/nothing \(split train\)", marks=pytest.mark.nightly
        ),  # tries the hub for long
    ],
)
def test_missing_places_are_one_line(place, message):
    with pytest.raises(RandSlotError, match=message) as caught:
        load(place)
    assert "\n" not in str(caught.value)


def test_torn_files_are_one_line(tmp_path, encoded):
    (tmp_path / "torn.jsonl").write_text('{"query": "a", "image": "b"}\n{"query": \n')
    with pytest.raises(RandSlotError, match=r"row 2 of .*torn\.jsonl"):
        load(tmp_path / "torn.jsonl")
    (tmp_path / "list.jsonl").write_text("[1]\n")
    with pytest.raises(RandSlotError, match="row 1"):
        load(tmp_path / "list.jsonl")
    (tmp_path / "latin.jsonl").write_bytes('{"query": "Größe", "image": "b"}'.encode("latin-1"))
    with pytest.raises(RandSlotError, match=r"latin\.jsonl.*'utf-8' codec"):
        load(tmp_path / "latin.jsonl")
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(UsageError, match=r"empty\.jsonl has no column 'query'"):
        load(tmp_path / "empty.jsonl")
    Dataset.from_dict({"query": ["a"], "image": [1]}).save_to_disk(tmp_path / "numbers")
    with pytest.raises(UsageError, match="column 'image' holds no images or paths"):
        load(tmp_path / "numbers")
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(RandSlotError, match=r"cannot load pairs from .*torn\.parquet"):
        load(tmp_path / "torn.parquet")
    DatasetDict({"dev": encoded}).save_to_disk(tmp_path / "splits")
    with pytest.raises(RandSlotError, match=r"splits \(split train\)"):
        load(tmp_path / "splits")


@pytest.mark.parametrize("empty", ["", "  ", None])
def test_empty_queries_stop_are_skipped_or_are_kept_and_counted(empty, data, tmp_path, capsys):
    """Kept, such a row trains: its query is one padding token, and its page is a candidate like any other."""
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    rows[2]["query"] = empty
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(RandSlotError, match="row 3: empty query"):
        train(small(data, tmp_path / "stopped", batch=8))
    counts = {}
    for name, changes in {"skipped": {"on_bad_row": "skip"}, "kept": {"keep_empty_queries": True, "batch": 8}}.items():
        model = train(small(data, tmp_path / name, steps=1, **changes))
        record = json.loads((tmp_path / name / "run.json").read_text())
        counts[name] = [record[key] for key in ("pairs", "skipped_rows", "empty_queries")]
    assert counts == {"skipped": [7, 1, 1], "kept": [8, 0, 1]}
    shown = capsys.readouterr().err
    assert "skipped 1 of 8 rows: row 3: empty query" in shown
    assert "1 of 8 rows have an empty query, and are kept" in shown
    pairs, _ = drop_bad_rows(load(data), "stop", keep_empty=True)
    opener = PageOpener(pairs, "stop", tmp_path / "log", empty_query=model.encoder.tokenizer.pad_token)
    (query,) = pairs.dataset.with_transform(opener)[2:3]["query"]
    assert model.preprocess([query], task="query")["input_ids"].tolist() == [[model.encoder.tokenizer.pad_token_id]]


# -- models that read text


def text_recipe(data: Path, output: Path, **changes: object) -> dict[str, object]:
    return small(data, output, untrained="llama-tiny", text_tokens=32, **changes)


def write_texts(file: Path, *, empty: bool = False) -> Path:
    rows = [{"query": f"about {word}", "text": f"{word} {word} {word}"} for word in WORDS.split()]
    if empty:
        rows.append({"query": "nothing", "text": " "})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_texts_train_and_are_searched_meanwhile(tmp_path):
    data = write_texts(tmp_path / "texts.jsonl")
    recipe = text_recipe(data, tmp_path / "run", page_column="text", page_texts=True, steps=60, learning_rate=3e-3)
    model = train(recipe | {"validation": str(data), "validate_every": 30, "batch": 8})
    assert model.reads == "text"
    losses = [float(line.split(",")[1]) for line in (tmp_path / "run" / "losses.csv").read_text().splitlines()[1:]]
    assert losses[-1] < losses[0] / 2


def test_a_row_without_text_is_bad(tmp_path):
    data = write_texts(tmp_path / "texts.jsonl", empty=True)
    pairs = load_pairs(str(data), "train", "query", "text", texts=True)
    with pytest.raises(RandSlotError, match=r"row 9: no text\. Fix it"):
        drop_bad_rows(pairs, "stop")
    good, bad = drop_bad_rows(pairs, "skip")
    assert (len(good), bad) == (8, ["row 9: no text"])
    assert good.locate(good.dataset[0]["page"]) == "tax tax tax"
