"""The file of a result: read as it was written, to the byte, and refused in one line if something is wrong in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from randslot.errors import RandSlotError
from randslot.evaluation.result import read_results

SUBSET = {"ndcg@5": 0.5, "ndcg@10": 0.75, "queries": 2, "pages": 9, "judged": "abc", "each": [1.0, 0.0]}
RESULT: dict[str, Any] = {
    "model": "mine",
    "weights": "0123456789",
    "settings": {"slots": "tokens", "inference": "tokens", "seed": 7, "reduction": "kmeans"},
    "how": "tokens by kmeans",
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
    before = file.read_bytes()
    (result,) = read_results(tmp_path)
    file.unlink()
    result.write()
    assert file.read_bytes() == before
    assert result.counts_text == "all/3"
    assert result.run_key == ("mine", "tokens by kmeans", 7, "0123456789")
    assert result.cache_folder == tmp_path / "vectors"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": 3}, "own-pages.json: task must be text, not 3: evaluate again"),
        ({"ndcg@5": "0.5"}, "ndcg@5 must be a number, not '0.5'"),
        ({"settings": {}}, "own-pages.json, settings lacks seed: evaluate again"),
        ({"subsets": {"default": {"each": []}}}, "subset default lacks judged, ndcg@10, ndcg@5, pages, queries"),
        ({"subsets": {"default": SUBSET | {"pages": None}}}, "subset default: pages must be a whole number, not None"),
        ({"subsets": {"default": 0.5}}, "subset default is not a table"),
    ],
)
def test_a_wrong_value_is_one_line_that_names_the_file(changes, message, tmp_path):
    write(tmp_path, **changes)
    with pytest.raises(RandSlotError, match=message) as raised:
        read_results(tmp_path)
    assert str(raised.value).startswith(str(tmp_path))
    assert "\n" not in str(raised.value)


def test_settings_that_are_not_known_here_are_one_line(tmp_path):
    """They are looked at only where two seeds may be one run."""
    write(tmp_path / "one")
    write(tmp_path / "two", settings=RESULT["settings"] | {"seed": 8, "bogus": 1})
    assert len(read_results(tmp_path / "two")) == 1
    with pytest.raises(RandSlotError, match=r"own-pages.json has settings that are not known here \(.*bogus.*\)"):
        read_results(tmp_path)
