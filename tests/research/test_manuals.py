"""Questions about real manuals: whole and consistent, fetched once, checked by hash, written as sets to evaluate on."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import pytest

from randslot.errors import RandSlotError
from randslot.evaluation.tasks import own_task
from research import manuals
from research.debian import SPLITS, unpack_debian
from research.manuals import fetch_manuals, list_manuals, list_questions
from support.pdf import write_pdf


def test_the_questions_are_about_pages_of_known_manuals():
    known = {manual.key: manual for manual in list_manuals()}
    questions = list_questions()
    assert len(known) == 14
    assert len(questions) == len({one["id"] for one in questions}) == len({one["query"] for one in questions}) == 252
    for one in questions:
        manual = known[one["manual"]]
        assert one["kind"] in ("text", "table", "figure", "identifier")
        assert max(one["pages"].values()) == 2, one
        assert all(1 <= int(number) <= manual.pages and grade in (1, 2) for number, grade in one["pages"].items()), one


def test_the_halves_share_no_manual_and_no_translation():
    halves = {split: {m.package.rpartition("-")[0] for m in list_manuals() if m.split == split} for split in SPLITS}
    assert not halves["dev"] & halves["test"]
    counts = Counter(manual.split for manual in list_manuals())
    assert counts == {"dev": 7, "test": 7}
    assert {m.language for m in list_manuals() if m.split == "test"} >= {"en", "es"}


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Two manuals of our own in place of the real ones, one of them compressed; unpacks them, and lists who asked."""
    write_pdf(tmp_path / "real.pdf", 200, [])
    content = (tmp_path / "real.pdf").read_bytes()
    hash = blake2b(content, digest_size=16).hexdigest()
    first, second = (one for one in list_manuals() if one.key in ("r-intro", "pyxplot"))
    chosen = (
        replace(first, hash=hash, file="doc/a.pdf"),
        replace(second, hash=hash, file="doc/b.pdf.gz", pages=200),
    )
    asked: list[str] = []

    def unpack(package: str, folder: Path) -> None:
        asked.append(package)
        (folder / "doc").mkdir()
        (folder / "doc" / "a.pdf").write_bytes(content)
        (folder / "doc" / "b.pdf.gz").write_bytes(gzip.compress(content))

    monkeypatch.setattr(manuals, "list_manuals", lambda: chosen)
    unpack.asked = asked
    return unpack


def test_they_are_fetched_once_and_become_sets(packages, tmp_path):
    assert fetch_manuals(tmp_path / "manuals", packages) == []
    assert packages.asked == ["r-doc-pdf", "pyxplot-doc"]
    (subset,) = own_task(tmp_path / "manuals" / "dev").subsets()
    assert (subset.name, len(subset.queries), len(subset.pages.ids)) == ("en", 18, 200)
    assert subset.grades["r-intro-12"] == {"r-intro.pdf#page=73": 2}
    (row, *_) = (tmp_path / "manuals" / "test" / "queries.jsonl").read_text().splitlines()
    assert json.loads(row)["language"] == "en"
    assert fetch_manuals(tmp_path / "manuals", packages) == []
    assert len(packages.asked) == 2


def test_another_version_is_named_and_its_questions_are_left_out(packages, tmp_path, monkeypatch):
    first, second = manuals.list_manuals()
    monkeypatch.setattr(manuals, "list_manuals", lambda: (replace(first, hash="x"), replace(second, file="doc/c.pdf")))
    assert fetch_manuals(tmp_path / "manuals", packages) == [
        "r-intro of r-doc-pdf 4.2.2.20221110-2: the package has a different a.pdf",
        "pyxplot of pyxplot-doc 0.9.2-13: the package has no c.pdf",
    ]
    assert (tmp_path / "manuals" / "dev" / "queries.jsonl").read_text() == ""


def test_what_cannot_be_had_is_one_line(packages, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RandSlotError, match="cannot get package r-doc-pdf: this system has no apt-get"):
        unpack_debian("r-doc-pdf", tmp_path)
    with pytest.raises(SystemExit, match=r"r-intro of .* no apt-get\npyxplot of"):
        manuals.manuals(tmp_path / "manuals")
