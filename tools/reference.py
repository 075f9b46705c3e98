"""The reference: docs/reference.md from the docstrings of public names, docs/commands.md from the command line.

python tools/reference.py              # rewrite both
python tools/reference.py --check      # fail if one is not what the code says

The code is read, not run, but for the command line, so nothing heavy is imported.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
from typer.main import get_command

from randslot.cli import app
from randslot.commands.options import ADVANCED

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
# What is described, by heading: the public names of the package, and what they return.
PARTS = {
    "Models": ("load", "open_model", "remote", "tiny", "untrained", "model.RandSlotModel", "Settings", "SlotEncoder"),
    "Libraries": (
        "Library",
        "library.results.Hit",
        "library.results.Match",
        "library.results.Summary",
        "library.results.Status",
        "library.results.Progress",
    ),
    "Pages": ("pages.Page", "pages.PageText"),
    "Training": ("train", "Recipe"),
    "Errors": ("RandSlotError", "UsageError"),
}
WIDTH = 100  # of a signature in one line
INTRO = """# Python reference

The public names of `randslot`, and what they return. Examples are in [Models in Python](guide.md), [The
library](library.md) and [Training](training.md). A model also has `encode_query`, `encode_document`, `similarity` and
`save_pretrained` of sentence-transformers. This page is made from the docstrings by `make reference`.
"""
COMMANDS_INTRO = """# Commands

Every command with its options, as `--help` prints them. This page is made from the command line by `make reference`.
Exit codes: 0 done, 1 failed, 2 wrong usage. An error is one line; `randslot --debug COMMAND` shows where it comes from.
"""


def make_reference() -> str:
    package = griffe.load("randslot", search_paths=[ROOT / "src"])
    parts = [INTRO]
    for title, names in PARTS.items():
        parts.append(f"## {title}\n")
        for name in names:
            found = package[name]
            target = found.final_target if found.is_alias else found
            parts += _describe_class(name, target) if target.is_class else _describe_function(name, target, level=3)
    return "\n".join(parts)


def _describe_class(name: str, found: griffe.Class) -> Iterator[str]:
    yield f"### {name.split('.')[-1]}\n"
    start = found.members.get("__init__")
    init = start if isinstance(start, griffe.Function) else None
    bases = ", ".join(str(base) for base in found.bases)
    yield f"```python\n{_sign(_path(name), init) if init else f'class {_path(name)}({bases})'}\n```\n"
    yield from _prose(found)
    if init and init.docstring:
        yield from _prose(init)
    members = [one for key, one in found.members.items() if not key.startswith("_") and not one.is_alias]
    attributes = [one for one in members if isinstance(one, griffe.Attribute)]
    fields = [one for one in attributes if one.annotation and "property" not in one.labels]
    if "dataclass" in found.labels and fields:
        yield _table_of_fields(fields)
    told = {one.name: _join(one.docstring.value) for one in attributes if one.docstring}
    rows = [f"| `{key}` | {_cell(text)} |" for key, text in told.items()]
    if rows:
        yield "\n".join(["| property | |", "|---|---|", *rows, ""])
    for one in members:
        if isinstance(one, griffe.Function) and one.docstring:
            yield from _describe_function(f"{found.name}.{one.name}", one, level=4)


def _path(name: str) -> str:
    return f"randslot.{name}"


def _describe_function(name: str, found: griffe.Function, level: int) -> Iterator[str]:
    yield f"{'#' * level} {name}\n"
    shown = _path(name) if level == 3 else found.name
    yield f"```python\n{_sign(shown, found)}\n```\n"
    yield from _prose(found)


def _sign(name: str, found: griffe.Function) -> str:
    """Return a signature on one line, or a parameter on each."""
    pieces, marked = [], False
    for one in found.parameters:
        if one.name in ("self", "cls"):
            continue
        if one.kind is griffe.ParameterKind.var_positional:
            marked = True
        if one.kind is griffe.ParameterKind.keyword_only and not marked:
            pieces.append("*")
            marked = True
        star = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(one.kind, "")
        piece = f"{star}{one.name}: {one.annotation}" if one.annotation else f"{star}{one.name}"
        has_default = one.default is not None and not star
        pieces.append(f"{piece}{' = ' if one.annotation else '='}{one.default}" if has_default else piece)
    returns = f" -> {found.returns}" if found.returns and found.name != "__init__" else ""
    line = f"{name}({', '.join(pieces)}){returns}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {piece}," for piece in pieces), f"){returns}"])


def _prose(found: griffe.Object) -> Iterator[str]:
    """Return a docstring by paragraphs; names of parameters before a colon, alone or several, are set as code."""
    for paragraph in (found.docstring.value if found.docstring else "").split("\n\n"):
        text = re.sub(r"(?:^|(?<=[.:] ))([a-z_]+(?:, [a-z_]+)*):(?= )", _as_code, _join(paragraph))
        yield re.sub(r"^Errors: ", "**Errors**: ", text) + "\n"


def _as_code(match: re.Match[str]) -> str:
    return ", ".join(f"`{name}`" for name in match[1].split(", ")) + ":"


def _table_of_fields(fields: list[Any]) -> str:
    rows = ["| field | type | default | |", "|---|---|---|---|"]
    for one in fields:
        line = one.filepath.read_text(encoding="utf-8").splitlines()[one.lineno - 1]
        comment = line.partition("  # ")[2]
        default = "" if one.value is None else f"`{_cell(str(one.value))}`"
        rows.append(f"| `{one.name}` | `{_cell(str(one.annotation))}` | {default} | {_cell(comment)} |")
    return "\n".join([*rows, ""])


def _join(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def make_commands() -> str:
    group: Any = get_command(app)
    parts = [COMMANDS_INTRO]
    for name in group.list_commands(group.context_class(group)):
        command = group.commands[name]
        if not command.hidden:
            parts += _describe_command(command, f"randslot {name}")
    return "\n".join(parts)


def _describe_command(command: Any, path: str, level: int = 2) -> Iterator[str]:
    yield f"{'#' * level} {path}\n"
    for paragraph in filter(None, (command.help or "").split("\n\n")):
        is_example = paragraph.startswith(("randslot ", "RANDSLOT_"))
        yield f"```\n{paragraph}\n```\n" if is_example else f"{_escape(_join(paragraph))}\n"
    panels: dict[str, list[str]] = {}
    context = command.context_class(command)
    for param in command.get_params(context):
        if getattr(param, "hidden", False) or "--help" in param.opts:
            continue
        is_argument = param.param_type_name == "argument"
        panel = getattr(param, "rich_help_panel", None)
        panel = panel if isinstance(panel, str) else "Arguments" if is_argument else "Options"
        name = _name_argument(param) if is_argument else _name_option(param)
        panels.setdefault(panel, []).append(f"| `{_cell(name)}` | {_escape(_describe_param(param))} |")
    for panel in sorted(panels, key=lambda one: (one == ADVANCED, one != "Arguments")):
        yield "\n".join([f"| {panel.lower()} | |", "|---|---|", *panels[panel], ""])
    for name, part in getattr(command, "commands", {}).items():
        if not part.hidden:
            yield from _describe_command(part, f"{path} {name}", level + 1)


def _name_argument(param: Any) -> str:
    more = "..." if param.nargs != 1 else ""
    return f"{param.name.upper()}{more}" if param.required else f"[{param.name.upper()}]{more}"


def _name_option(param: Any) -> str:
    """Return the short and long form of an option, and its value."""
    names = ", ".join(sorted(param.opts, key=len))
    return names if param.is_flag else f"{names} {param.metavar or param.name.upper()}"


def _describe_param(param: Any) -> str:
    """Return the help of a parameter, with its default and environment variable."""
    notes = []
    default = param.default
    if isinstance(param.show_default, str):
        notes.append(f"default: {param.show_default}")
    elif not (callable(default) or param.required or default in (None, False, "", [], ())):
        notes.append(f"default: {getattr(default, 'value', default)}")
    if param.envvar:
        notes.append(f"or by {param.envvar}")
    return " ".join([param.help or "", f"[{'; '.join(notes)}]" if notes else ""]).strip()


def _escape(text: str) -> str:
    return re.sub(r"([|*_<\[\]])", r"\\\1", text)


def main() -> None:
    stale = []
    for file, text in ((DOCS / "reference.md", make_reference()), (DOCS / "commands.md", make_commands())):
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            stale.append(file.name)
            if "--check" not in sys.argv[1:]:
                file.write_text(text, encoding="utf-8")
    if stale and "--check" in sys.argv[1:]:
        sys.exit(f"not what the code says: {', '.join(stale)}; run make reference")


if __name__ == "__main__":
    main()
