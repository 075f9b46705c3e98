"""Load users' strategies from Python files (`my_slots.py:Noisy`), and record which model code this user trusts.

A saved model includes the file of its strategy. Model code runs only if the user trusts it; code that the user trained
with, or trusted once, stays trusted on this machine.
"""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from types import ModuleType

from ..errors import UsageError, in_one_line
from ..files import data_folder, read_json, write_json
from .hub import Source
from .settings import Settings
from .slots import STRATEGIES, Strategy

SOURCES: dict[str, str] = {}  # the source of each strategy, by "file:Class"
LABEL = re.compile(r"\w+:\w+")


def use_strategy(name: str) -> str:
    """Register FILE.py:CLASS and return its name in settings, "file:Class"; return other names unchanged."""
    if ".py:" not in name:
        return name
    place, _, class_name = name.rpartition(":")
    label = f"{Path(place).stem}:{class_name}"
    if not LABEL.fullmatch(label):
        raise UsageError(f"{name!r} is not FILE.py:CLASS with a file name of letters, digits and _")
    with in_one_line(f"read {place}", UsageError):
        source = Path(place).read_text(encoding="utf-8")
    _run_source(label, source)
    return label


def _run_source(label: str, source: str) -> None:
    """Run the source of a file, and register the strategy that its label names."""
    stem, _, class_name = label.partition(":")
    module = ModuleType(f"randslot_own_{stem}")
    sys.modules[module.__name__] = module
    with in_one_line(f"run {stem}.py", UsageError):
        exec(compile(source, f"{stem}.py", "exec"), module.__dict__)
    found = getattr(module, class_name, None)
    if not (isinstance(found, type) and issubclass(found, Strategy)):
        raise UsageError(f"{stem}.py has no class {class_name} that is a Strategy")
    SOURCES[label], STRATEGIES[label] = source, found


def list_code(settings: Settings) -> dict[str, str]:
    """Return the files that a model needs, by name."""
    labels = [label for label in (settings.slots, settings.inference) if label in SOURCES]
    return {f"{label.partition(':')[0]}.py": SOURCES[label] for label in labels}


def load_code(source: Source, *, trust_remote_code: bool = False) -> None:
    """Load the strategy files saved with a model; UsageError if their code is not trusted."""
    config = read_json(source.file("randslot.json"))
    for label in (str(config.get("slots")), str(config.get("inference"))):
        if not LABEL.fullmatch(label) or label in SOURCES:
            continue
        file = source.file(f"{label.partition(':')[0]}.py")
        with in_one_line(f"read {file}", hint="; pass --strategy FILE.py:CLASS"):
            text = file.read_text(encoding="utf-8")
        if trust_remote_code:
            trust_code(hash_code(text), source.name)
        elif not is_code_trusted(hash_code(text)):
            raise refuse_code(source, f" ({file.name})")
        _run_source(label, text)


# -- trusted code


def hash_code(text: str) -> str:
    """Return a hash of a Python file by its text."""
    return blake2b(text.encode(), digest_size=12).hexdigest()


def trust_code(code: str, name: str | None) -> None:
    """Record the hash of code that this user trusts, so that libraries made with it open without the flag."""
    file = data_folder() / "trusted.json"
    with suppress(OSError):  # without a writable home, the flag is needed each time
        write_json(file, (read_json(file) if file.is_file() else {}) | {code: name})


def is_code_trusted(code: str) -> bool:
    """Whether this user trusts the code with this hash."""
    file = data_folder() / "trusted.json"
    return file.is_file() and code in read_json(file)


def refuse_code(source: Source, file: str = "") -> UsageError:
    """Return the error for code that is not trusted."""
    return UsageError(
        f"{source.name} contains Python code{file}. Review it, then pass --trust-remote-code (Python: "
        "trust_remote_code=True)."
    )
