"""Runs many commands in one process: importing torch for each of them would take seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from contract.conftest import Answer, make_environment

SCRIPT = """
import json, os, runpy, signal, sys, tempfile, traceback
from torch.nn.modules.module import register_module_forward_pre_hook

questions, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
passes = []
register_module_forward_pre_hook(lambda m, _: passes.append(1) if hasattr(m, "embed_tokens") else None)
for line in questions:
    signal.alarm(240)
    folder, words = json.loads(line)
    os.chdir(folder)
    passes.clear()
    sys.argv = ["randslot", *words]
    code, texts = 0, []
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        os.dup2(out.fileno(), 1), os.dup2(err.fileno(), 2)
        try:
            runpy.run_module("randslot", run_name="__main__")
        except SystemExit as end:
            code = end.code or 0
        except BaseException:
            code = 70
            traceback.print_exc()
        sys.stdout.flush(), sys.stderr.flush()
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
    print(json.dumps([*texts, code, len(passes)]), file=answers, flush=True)
"""


@dataclass
class Counted(Answer):
    """What a command printed, its exit code, and how often it ran a language model."""

    passes: int

    def assert_one_line(self, code: int, value: str) -> None:
        """Check that it failed in one line, after perhaps some of progress, that names what was wrong."""
        assert (self.code, self.out) == (code, ""), self
        *_, line = self.err.splitlines()
        assert line.startswith("randslot: "), self.err
        assert value in line, (value, line)
        assert "Traceback" not in self.err


@dataclass
class Session:
    """A process that runs `randslot words...` as often as it is told to."""

    process: subprocess.Popen[str]

    def run(self, commands: Sequence[Sequence[str | Path]], cwd: Path) -> list[Counted]:
        """Run commands one after another in a folder."""
        answers = []
        for words in commands:
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            print(json.dumps([str(cwd), [str(word) for word in words]]), file=self.process.stdin, flush=True)
            answers.append(Counted(*json.loads(self.process.stdout.readline())))
        return answers


@contextmanager
def open_session(home: Path) -> Iterator[Session]:
    """Start a session, and end it."""
    command = [sys.executable, "-c", SCRIPT]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=make_environment(home), stdin=pipe, stdout=pipe, text=True) as process:
        yield Session(process)
        process.stdin.close()
        process.wait()
