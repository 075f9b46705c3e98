"""Sample reports: reproducible, splits that share no fact, questions that need several parts of a page."""

from __future__ import annotations

from random import Random

import pytest

from randslot.errors import UsageError
from research.samples.reports import ANSWERS, RELATED, SPLITS, ask, make_reports
from research.samples.sets import ask_all, page_ids
from research.samples.words import WORDS


def facts(split: str, num: int = 60) -> set[tuple[str, ...]]:
    return {fact for report in make_reports(num, split=split) for page in report.pages for fact in page.facts()}


def test_the_vocabulary_is_large_and_no_word_has_two_roles():
    assert len(WORDS) > 300
    assert len({word.lower() for word in WORDS}) == len(WORDS)


def test_the_same_seed_gives_the_same_reports_and_more_of_them_begin_alike():
    assert list(make_reports(5, seed=3)) == list(make_reports(9, seed=3))[:5]
    assert list(make_reports(5, seed=3)) != list(make_reports(5, seed=4))


def test_splits_share_no_fact():
    train, validation, test = (facts(split) for split in SPLITS)
    assert len(train) > 1000
    assert not train & validation
    assert not train & test
    assert not validation & test


def test_pages_of_one_report_share_their_title_only():
    first, second, third = next(make_reports(1)).pages
    assert first.facts() & second.facts() & third.facts() == {("title", first.place, first.theme)}
    assert {page.title for page in (first, second, third)} == {first.title}


def test_each_question_needs_evidence_from_two_parts_or_more():
    for report in make_reports(20):
        for page in report.pages:
            for question in ask(page, Random(0)):
                assert len({part for part, _ in question.needs}) >= 2
                assert question.needs <= page.evidence()
                assert all(word in question.text for _, item in question.needs for word in item.split())


def test_grades_are_those_of_a_slow_look_at_every_page():
    reports = list(make_reports(40, split="test"))
    pages = {id: page for report in reports for id, page in zip(page_ids(report), report.pages, strict=True)}
    asked = ask_all(reports)
    assert len(asked) == 5 * len(pages)
    for one in asked[::7]:
        missing = {id: len(one.question.needs - page.evidence()) for id, page in pages.items()}
        expected = {id: {0: ANSWERS, 1: RELATED}[num] for id, num in missing.items() if num <= 1}
        assert one.grades == expected
    assert {grade for one in asked for grade in one.grades.values()} == {ANSWERS, RELATED}


def test_an_unknown_split_is_refused():
    with pytest.raises(UsageError, match="split 'dev' is not one of train, validation, test"):
        make_reports(1, split="dev")
