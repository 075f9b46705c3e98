"""Libraries on the command line: index, search and randslot library, by words or with the embedded model."""

from __future__ import annotations


def test_a_library_is_indexed_and_searched(run, library):
    answer = run("search", "deferred", "tax", "-l", library)
    assert answer.code == 0
    assert "report.pdf" in answer.out
