"""Questions about a shelf of similar documents: whole and consistent, fetched once, written as sets to evaluate on."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

from randslot.errors import RandSlotError
from randslot.evaluation.tasks import own_task
from research import shelf
from research.debian import SPLITS
from research.shelf import STYLES, fetch_shelf, list_documents, list_questions
from support.pdf import write_pdf


def test_the_questions_are_about_pages_of_known_documents():
    known = {document.file: document for document in list_documents()}
    questions = list_questions()
    assert len(known) == len(list_documents()) == 153
    assert len(questions) == len({one["id"] for one in questions}) == len({one["query"] for one in questions}) == 231
    for one in questions:
        assert one["style"] in STYLES
        assert max(one["pages"].values()) == 2, one
        for page, grade in one["pages"].items():
            file, _, number = page.partition("#page=")
            assert (known[file].split, grade) in ((one["split"], 1), (one["split"], 2)), one
            assert 1 <= int(number) <= known[file].pages, one


def test_the_halves_share_no_group_of_twins_and_have_all_styles():
    groups = {split: {one.group for one in list_documents() if one.split == split} for split in SPLITS}
    assert not groups["dev"] & groups["test"]
    counts = Counter((one["split"], one["style"]) for one in list_questions())
    assert min(counts[split, style] for split in SPLITS for style in STYLES) >= 15


def test_documents_are_fetched_once_and_become_sets(tmp_path, monkeypatch):
    write_pdf(tmp_path / "real.pdf", 200, [])
    content = (tmp_path / "real.pdf").read_bytes()
    hash = blake2b(content, digest_size=16).hexdigest()
    twins = [one for one in list_documents() if one.package == "installation-guide-s390x"]
    first, second = (replace(one, hash=hash, source="a.pdf") for one in twins)
    lost = replace(next(one for one in list_documents() if one.group == "simh"), package="lost")
    monkeypatch.setattr(shelf, "list_documents", lambda: (first, second, lost))
    asked: list[tuple[str, str]] = []

    def unpack(package: str, release: str, folder: Path) -> None:
        asked.append((package, release))
        if package == "lost":
            raise RandSlotError("no such package")
        (folder / "a.pdf").write_bytes(content)

    assert fetch_shelf(tmp_path / "shelf", unpack) == ["lost of bookworm: no such package"]
    assert asked == [(one.package, one.release) for one in (first, second, lost)]
    (subset,) = own_task(tmp_path / "shelf" / "dev").subsets()
    assert len(subset.pages.ids) == 400
    assert subset.grades["dev-twin-18"] == {f"{second.file}#page=77": 2}
    fetch_shelf(tmp_path / "shelf", unpack)
    assert asked[3:] == [("lost", "bookworm")]
