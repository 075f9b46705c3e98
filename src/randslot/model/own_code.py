"""Your own strategies and families: from a Python file (`my_slots.py:Noisy`) or by an entry point of a package.

A model keeps the file that it was made with, under its name. Like any code of a model it runs only if you trust it.
What you trained with yourself, or trusted once, is trusted on this machine from then on.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import RandSlotError, UsageError, in_one_line
from ..files import read_json
from .families import FAMILIES, add_family
from .families.base import Family
from .hub import Source
from .slots import STRATEGIES, Strategy
from .trust import hash_code, is_code_trusted, remember_code

SOURCES: dict[str, str] = {}  # the files of strategies and families, by "file:Class"


def use_strategy(name: str) -> str:
    """Make a strategy known and return its name in settings; a name that is known or unknown comes back unchanged.

    name: FILE.py:CLASS, which becomes "file:Class", or the name of an entry point in the group "randslot.strategies".
    """
    known = _load_file(name, Strategy) if ".py:" in name else _load_entry_point(name, "randslot.strategies", STRATEGIES)
    if known is None:
        return name
    label, strategy = known
    STRATEGIES[label] = strategy
    return label


def use_family(name: str) -> None:
    """Make a family of backbones known: FILE.py:CLASS, or an entry point in the group "randslot.families"."""
    names = {family.name: family for family in FAMILIES.values()}
    known = _load_file(name, Family) if ".py:" in name else _load_entry_point(name, "randslot.families", names)
    if known is not None:
        add_family(known[1]())
    elif name not in names:
        raise UsageError(f"unknown family {name!r}: name FILE.py:CLASS, or one of {', '.join(names)}")


def _load_entry_point(name: str, group: str, known: Any) -> tuple[str, Any] | None:
    for entry in entry_points(group=group):
        if entry.name == name and name not in known:
            with in_one_line(f"load {name} of {entry.value}", UsageError):
                return name, entry.load()
    return None


def _load_file(name: str, kind: type) -> tuple[str, Any]:
    """Run FILE.py and return "file:Class" and its class."""
    place, _, class_name = name.rpartition(":")
    with in_one_line(f"read {place}", UsageError):
        source = Path(place).read_text(encoding="utf-8")
    label = f"{Path(place).stem}:{class_name}"
    if not re.fullmatch(r"\w+:\w+", label):
        raise UsageError(f"{name!r} is not FILE.py:CLASS with a file name of letters, digits and _")
    return label, _run_source(label, source, kind)


def _run_source(label: str, source: str, kind: type) -> Any:
    """Run the source of a file and return the class that its label names."""
    stem, _, class_name = label.partition(":")
    module = ModuleType(f"randslot_own_{stem}")
    sys.modules[module.__name__] = module
    with in_one_line(f"run {stem}.py", UsageError):
        exec(compile(source, f"{stem}.py", "exec"), module.__dict__)
    found = getattr(module, class_name, None)
    if not (isinstance(found, type) and issubclass(found, kind)):
        raise UsageError(f"{stem}.py has no class {class_name} that is a {kind.__name__}")
    found.own_code = label  # type: ignore[attr-defined]
    if issubclass(found, Family):  # worker processes get it by its source
        found.__reduce__ = lambda family: (_restore_family, (label, source))  # type: ignore[method-assign, assignment]
    SOURCES[label] = source
    return found


def _restore_family(label: str, source: str) -> Family:
    family: Family = _run_source(label, source, Family)()
    return family


# -- with a model


def list_code(strategies: list[str], family: Family) -> dict[str, str]:
    """Return the files that a model needs, by name."""
    labels = [*strategies, getattr(family, "own_code", "")]
    return {f"{label.partition(':')[0]}.py": SOURCES[label] for label in labels if label in SOURCES}


def load_code(source: Source, *, trust_remote_code: bool = False) -> None:
    """Run the strategy and family of a saved model, if they are its own files; UsageError if they are not trusted."""
    config = read_json(source.file("randslot.json"))
    for name, kind in ((config.get("slots"), Strategy), (config.get("inference"), Strategy)):
        _load_saved(source, str(name), kind, trust_remote_code)
    backbone = config.get("backbone")
    if isinstance(backbone, dict) and "code" in backbone:
        found = _load_saved(source, str(backbone["code"]), Family, trust_remote_code)
        if found is not None:
            add_family(found())


def _load_saved(source: Source, label: str, kind: type, trust_remote_code: bool) -> Any:
    """Run the file of a model that a label names; None if the label is none, or known already."""
    if not re.fullmatch(r"\w+:\w+", label) or label in SOURCES:
        return None
    file = source.file(f"{label.partition(':')[0]}.py")
    if not file.is_file():
        raise RandSlotError(f"{source.name} needs {label}, and lacks {file.name}: name it, as --strategy FILE.py:CLASS")
    text = file.read_text(encoding="utf-8")
    if trust_remote_code:
        remember_code(hash_code(text), source.name)
    elif not is_code_trusted(hash_code(text)):
        raise UsageError(
            f"{source.name} runs code of its own, {file.name}: read it, and if you trust it say so by "
            "--trust-remote-code (in Python trust_remote_code=True)"
        )
    found = _run_source(label, text, kind)
    if issubclass(found, Strategy):
        STRATEGIES[label] = found
    return found
