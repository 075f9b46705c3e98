"""Tasks: the paper's 22 names, copies of V1, V2 and V3 in their own layouts, and folders of one's own."""

from __future__ import annotations

import json

import pytest

from randslot.errors import RandSlotError, UsageError
from randslot.evaluation.published import TASKS
from randslot.evaluation.tasks import MTEB_NAMES, find_tasks, own_task
from research.samples.sets import write_set
from support.copies import LANGUAGES, write_v1, write_v2, write_v3


def test_all_22_tasks_are_those_of_mteb_with_pinned_revisions():
    tasks = find_tasks([], [])
    assert [task.name for task in tasks] == [name for names in TASKS.values() for name in names]
    assert len(tasks) == len(MTEB_NAMES) == 22
    assert all(len(task.revision) == 40 for task in tasks)
    assert {task.task.metadata.name for task in tasks} == set(MTEB_NAMES.values())


@pytest.mark.parametrize(
    ("name", "found"),
    [("hr", "HR"), ("finance_en", "Fin-E"), ("Fin-E", "Fin-E"), ("ind.", "Ind."), ("Vidore3HrRetrieval", "HR")],
)
def test_a_task_has_several_names(name, found):
    assert [task.name for task in find_tasks(["ViDoRe(v3)"], [name])] == [found]


def test_v1_has_one_language_and_drops_the_query_without_a_page(tmp_path):
    (task,) = find_tasks([], ["arxiv"], write_v1(tmp_path))
    (subset,) = task.subsets()
    assert subset.name == "default"
    assert subset.pages.ids[0] == "corpus-test-0"
    assert len(subset.pages.ids) == 12
    assert "nothing has this" not in subset.queries.values()
    assert set(subset.queries) == set(subset.grades)
    assert {grade for grades in subset.grades.values() for grade in grades.values()} == {1}


def test_v2_has_four_languages_over_the_same_pages(tmp_path):
    (task,) = find_tasks([], ["esg"], write_v2(tmp_path))
    subsets = list(task.subsets())
    assert {subset.name for subset in subsets} == {"french", "spanish", "english", "german"}
    assert len({subset.pages.key(3) for subset in subsets}) == 1
    assert all(len(subset.queries) == 20 for subset in subsets)
    assert len(list(task.subsets())) == 4  # again, as for a second way to infer


@pytest.mark.slow
def test_v3_has_six_languages_and_grades(tmp_path):
    (task,) = find_tasks(["ViDoRe(v3)"], ["hr"], write_v3(tmp_path))
    subsets = {subset.name: subset for subset in task.subsets()}
    assert set(subsets) == set(LANGUAGES)
    assert {grade for grades in subsets["french"].grades.values() for grade in grades.values()} == {1, 2}
    assert len({subset.pages.key(3) for subset in subsets.values()}) == 1
    assert all(text.endswith("(french)") for text in subsets["french"].queries.values())


def test_a_copy_that_is_missing_or_empty_is_said_in_one_line(tmp_path):
    with pytest.raises(UsageError, match="task HR: no copy of vidore/vidore_v3_hr_mteb_format in"):
        find_tasks([], ["hr"], tmp_path)
    (tmp_path / "vidore_v3_hr_mteb_format").mkdir()
    with pytest.raises(RandSlotError, match=r"cannot load .*vidore_v3_hr_mteb_format: "):
        list(find_tasks([], ["hr"], tmp_path)[0].subsets())


def test_a_folder_of_ones_own(tmp_path):
    write_set(tmp_path / "set", 3, split="test", seed=0)
    task = own_task(tmp_path / "set")
    (subset,) = task.subsets()
    assert task.name == "set"
    assert len(subset.pages.ids) == 9
    assert len(subset.queries) == 45
    assert len({subset.pages.key(i) for i in range(9)}) == 9
    assert subset.pages.open(0).endswith("#page=1")


def test_a_broken_folder_is_refused(tmp_path):
    write_set(tmp_path / "set", 1, split="test", seed=0)
    with pytest.raises(UsageError, match=r"pages does not exist. A set has pages/"):
        own_task(tmp_path)
    qrels = tmp_path / "set" / "qrels.jsonl"
    rows = qrels.read_text()
    queries = tmp_path / "set" / "queries.jsonl"
    page = json.loads(rows.splitlines()[0])["page"]
    queries.write_text(queries.read_text() + json.dumps({"id": "q", "query": "what?"}) + "\n")
    qrels.write_text(rows + json.dumps({"query": "q", "page": "gone.png", "grade": 1}) + "\n")
    with pytest.raises(RandSlotError, match=r"no page 'gone.png' in this set"):
        list(own_task(tmp_path / "set").subsets())
    for row, message in [
        ({"query": "x", "page": "y", "grade": 1}, "no query 'x' in this set"),
        ({"query": "q", "page": ["y"], "grade": 1}, r"page: .* valid string, not \['y'\]"),
        ({"query": "q", "page": page, "grade": "high"}, "grade: .* valid integer, not 'high'"),
        ({"query": "q", "page": page, "grade": 0.5}, "grade: .* valid integer, not 0.5"),
        ({"query": "q", "page": page, "grade": -1}, "grade: .* greater than or equal to 0, not -1"),
    ]:
        qrels.write_text(json.dumps(row))
        with pytest.raises(RandSlotError, match=rf"qrels.jsonl: row 1: {message}"):
            list(own_task(tmp_path / "set").subsets())
    qrels.write_text("{")
    with pytest.raises(RandSlotError, match=r"qrels.jsonl: row 1: Invalid JSON"):
        list(own_task(tmp_path / "set").subsets())
    qrels.write_text("{}")
    with pytest.raises(RandSlotError, match=r"row 1: query: Field required"):
        list(own_task(tmp_path / "set").subsets())
    for row, message in [
        ({"id": "q", "query": "again"}, "duplicate id 'q'"),
        ({"id": "r", "query": None}, "valid string, not None"),
        ({"id": "r", "query": " "}, "query: "),
    ]:
        before = queries.read_text()
        queries.write_text(before + json.dumps(row))
        with pytest.raises(RandSlotError, match=rf"queries.jsonl: row \d+: .*{message}"):
            list(own_task(tmp_path / "set").subsets())
        queries.write_text(before)
    qrels.write_text("")
    with pytest.raises(RandSlotError, match=r"has no query with a relevant page"):
        list(own_task(tmp_path / "set").subsets())
    for file in (tmp_path / "set" / "pages").iterdir():
        file.unlink()
    with pytest.raises(RandSlotError, match=r"has no pages"):
        list(own_task(tmp_path / "set").subsets())


def test_a_copy_that_changed_is_read_anew(tmp_path):
    """`datasets` alone would go on with what it read from a folder of that name before."""
    folder = write_v3(tmp_path / "a") / "vidore_v3_hr_mteb_format"
    before = [len(subset.queries) for subset in find_tasks([], ["hr"], tmp_path / "a")[0].subsets()]
    assert before == [20] * 6
    for file in folder.rglob("*.parquet"):
        file.write_bytes(b"junk")
    with pytest.raises(RandSlotError, match=r"cannot load .*vidore_v3_hr_mteb_format: "):
        list(find_tasks([], ["hr"], tmp_path / "a")[0].subsets())


def test_without_network_it_is_one_line(capfd):
    with pytest.raises(RandSlotError, match=r"cannot load vidore/vidore_v3_hr_mteb_format: .*Offline, pass copies"):
        list(find_tasks([], ["hr"])[0].subsets())
    assert not capfd.readouterr().err
