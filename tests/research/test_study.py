"""The smoke study through the real command: killed, gone on with although one run cannot be done, and finished."""

from __future__ import annotations

import multiprocessing
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from randslot.errors import RandSlotError
from randslot.evaluation.analysis import count_winners, intervene, read_runs
from randslot.evaluation.result_files import read_results
from research.study.__main__ import study as study_command
from research.study.claims import FULL, measure_rows, read_rows
from research.study.plan import Study, read_study

pytestmark = [pytest.mark.xdist_group("study"), pytest.mark.nightly]

ROOT = Path(__file__).parent.parent.parent
SMOKE = ROOT / "research" / "studies" / "smoke.toml"
RUNS = 12
app = typer.Typer()
app.command()(study_command)


def children(parent: int) -> list[int]:
    """The processes that a process has started."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            state = (process / "stat").read_text()
        except OSError:
            continue
        if int(state.rpartition(")")[2].split()[1]) == parent:
            found.append(int(process.name))
    return found


def alive(processes: list[int]) -> list[int]:
    return [process for process in processes if Path("/proc", str(process)).exists()]


def wait(condition, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def run(*arguments: object):
    return CliRunner().invoke(app, [*map(str, arguments)])


@pytest.fixture(scope="module")
def conducted(tmp_path_factory) -> dict[str, object]:
    """What happened to the study, with its file."""
    folder = tmp_path_factory.mktemp("study")
    file = folder / "smoke.toml"
    file.write_text(SMOKE.read_text().replace("runs/study-smoke", str(folder / "out")))
    study = read_study(file)
    rows = Path(study.results)
    found: dict[str, object] = {"file": file, "study": study}

    command = [sys.executable, "-m", "research.study", str(file)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    wait(lambda: any(Path(study.folder, "runs").glob("*/losses.csv")), 300)
    started = children(process.pid)
    process.send_signal(signal.SIGINT)
    found["stopped"] = (process.communicate(timeout=10)[1], process.returncode)
    wait(lambda: not alive(started), 10)

    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        wait(lambda: len(list(rows.glob("*.csv"))) >= 2, 300)
        found["second"] = str(run(file).exception)
        started = children(process.pid)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert len(started) >= study.side_by_side
    wait(lambda: not alive(started), 30)
    before = {path.name: path.stat().st_mtime_ns for path in rows.glob("*.json")}
    found["before"] = before

    obstacle = Path(study.make_recipe(*study.jobs[-1]).output)  # a file where a folder should be
    obstacle.parent.mkdir(parents=True, exist_ok=True)
    obstacle.write_text("")
    found["failing"] = run(file)
    found["after failure"] = sorted(path.stem for path in rows.glob("*-*.json"))
    obstacle.unlink()
    found["last"] = run(file)
    found["after"] = {path.name: path.stat().st_mtime_ns for path in rows.glob("*.json")}
    return found


def test_it_goes_on_after_a_kill_and_repeats_nothing(conducted):
    assert conducted["last"].exit_code == 0, conducted["last"].output
    before, after = conducted["before"], conducted["after"]
    assert 1 <= len(before) < RUNS
    assert len(after) == RUNS
    assert {name: after[name] for name in before} == before
    assert not multiprocessing.active_children()


def test_ctrl_c_stops_it_with_one_line(conducted):
    said, code = conducted["stopped"]
    assert code == 130
    assert said.endswith("stopped: run the command again to resume\n")


def test_a_second_command_is_refused(conducted):
    assert "another process runs the study" in conducted["second"]


def test_one_run_that_fails_does_not_stop_the_others(conducted):
    failing = conducted["failing"]
    assert isinstance(failing.exception, RandSlotError)
    assert "1 runs failed: nested-123" in str(failing.exception)
    assert len(conducted["after failure"]) == RUNS - 1
    assert "nested-123 failed: cannot write into output" in failing.output


def test_arms_of_a_seed_differ_in_their_strategy_only(conducted):
    rows = read_rows(conducted["study"])
    for seed in (42, 123):
        settings = [row.record["settings"] for row in rows if row.record["seed"] == seed]
        for one in settings:
            assert {key for key in one if one[key] != settings[0][key]} <= {"slots", "prefixes"}
    assert len({str(row.record["tasks"]) for row in rows}) == 1


@pytest.mark.parametrize("arm", ["random", "feedback"])
def test_rows_say_what_the_analysis_says(conducted, arm):
    """Budgets, H, U and the joint-use gain from the rows are those of `randslot analyse` on the kept vectors."""
    study: Study = conducted["study"]
    measured = measure_rows(read_rows(study), draws=2)
    folder = Path(study.folder, "evaluations", f"{arm}-123")
    for result in read_results(folder):
        assert result.counts == {"query": 8, "page": 8}
    for run in read_runs([folder]):
        found = measured[arm, run.name.rpartition(", ")[2]]
        winners, readouts = count_winners(run), intervene(run)
        assert found.seeds("H")[1] == pytest.approx(winners.entropy)
        assert found.seeds("U")[1] == pytest.approx(winners.spread)
        assert found.seeds("gain")[1] == pytest.approx(readouts.joint_gain(), abs=0.01)
        assert found.seeds(FULL)[1] == pytest.approx(sum(readouts.full.values()) / len(readouts.full), abs=0.01)
        results = [one for one in read_results(folder) if one.how == run.name.rpartition(", ")[2]]
        scores = [100 * result.ndcg[5] for result in results]
        assert found.seeds("k8")[1] == pytest.approx(sum(scores) / len(scores), abs=0.01)


def test_the_report_is_there_and_is_made_again_from_rows(conducted):
    study: Study = conducted["study"]
    text = Path(study.report).read_text()
    for part in ("RandSlot is better than Direct-Feedback", "RS-Z", "Extra: RandSlot, nested budgets"):
        assert part in text
    Path(study.report).unlink()
    done = run(conducted["file"], "--report")
    assert done.exit_code == 0, done.output
    assert Path(study.report).read_text() == text
