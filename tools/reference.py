"""Write docs/reference.md: commands from the command line, Python names from their docstrings.

python tools/reference.py              # rewrite it
python tools/reference.py --check      # fail if it is stale

Python code is parsed, not imported, except for the command line.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
from typer.main import get_command

from randslot.cli import app
from randslot.commands.options import ADVANCED

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference.md"
# Public names by heading, and what they return.
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
# Classes to list without members, and internal members to exclude.
WITHOUT_MEMBERS = ("Settings", "SlotEncoder", "Recipe")
INTERNAL = {
    "RandSlotModel": "prepare_page encode_prepared index search preprocessor mteb_model_meta",
    "Library": "write count_without_text list_gone forget find_files choose_by notes",
}
COMMON = 4  # number of commands that share an option before it is listed once
WIDTH = 100  # maximum length of a one-line signature
INTRO = """# Reference

Look up an option or a function. `make reference` writes this page from the command line and the docstrings.

## Commands

Exit codes: 0 success, 1 failure, 2 wrong usage. Errors are one line; `randslot --debug COMMAND` prints a traceback.
"""
PYTHON = """## Python

A model also has `encode_query`, `encode_document`, `similarity` and `save_pretrained` of sentence-transformers.
Examples: [models](models.md#in-python), [searching](search.md#filters-and-output), [training](training.md).
"""


def make_reference() -> str:
    return "\n".join([INTRO, *_describe_commands(), PYTHON, *_describe_package()])


# -- commands


def _describe_commands() -> Iterator[str]:
    commands = list(_list_commands(get_command(app), "randslot"))
    uses = Counter(_key(param) for _, command in commands for param in _list_params(command))
    common = {key for key, number in uses.items() if number >= COMMON}
    described = {_key(param): param for _, command in commands for param in _list_params(command)}
    yield "Options that several commands share:\n"
    yield _block([described[key] for key in uses if key in common])
    for path, command in commands:
        yield f"### {path}\n"
        examples = []
        for paragraph in filter(None, (command.help or "").split("\n\n")):
            if re.match(r"randslot |torchrun |RANDSLOT_", paragraph):
                examples.append(paragraph)
            else:
                yield f"{_escape(_join(paragraph))}\n"
        if examples:
            yield "```\n" + "\n".join(examples) + "\n```\n"
        params = list(_list_params(command))
        own = [param for param in params if _key(param) not in common]
        if own:
            yield _block(own)
        shared = [f"`{_names(param)}`" for param in params if _key(param) in common]
        if shared:
            yield f"Also {', '.join(shared)}.\n"


def _list_commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        if not command.hidden and hasattr(command, "commands"):
            yield from _list_commands(command, f"{path} {name}")
        elif not command.hidden:
            yield f"{path} {name}", command


def _list_params(command: Any) -> Iterator[Any]:
    for param in command.get_params(command.context_class(command)):
        if not getattr(param, "hidden", False) and "--help" not in param.opts:
            yield param


def _key(param: Any) -> tuple[str, str]:
    return _names(param), _describe_param(param)


def _names(param: Any) -> str:
    return ", ".join(sorted(param.opts, key=len))


def _block(params: list[Any]) -> str:
    """Return parameters and their help as two text columns, advanced ones last."""
    rows = [(_name_param(param), _describe_param(param)) for param in params if not _is_advanced(param)]
    advanced = [(_name_param(param), _describe_param(param)) for param in params if _is_advanced(param)]
    rows += [("", ""), *advanced] if rows and advanced else advanced
    width = max(len(name) for name, _ in rows) + 2
    return "\n".join(["```text", *(f"{name:{width}}{text}".rstrip() for name, text in rows), "```", ""])


def _is_advanced(param: Any) -> bool:
    return getattr(param, "rich_help_panel", None) == ADVANCED


def _name_param(param: Any) -> str:
    """Return an argument, or an option with its value, as in --help."""
    if param.param_type_name == "argument":
        name = f"{param.name.upper()}{'...' if param.nargs != 1 else ''}"
        return name if param.required else f"[{name}]"
    return _names(param) if param.is_flag else f"{_names(param)} {param.metavar or param.name.upper()}"


def _describe_param(param: Any) -> str:
    """Return the help of a parameter, with its default and environment variable."""
    notes = []
    default = param.default
    if isinstance(param.show_default, str):
        notes.append(f"default: {param.show_default}")
    elif not (callable(default) or param.required or default in (None, False, "", [], ())):
        notes.append(f"default: {getattr(default, 'value', default)}")
    if param.envvar:
        notes.append(f"or {param.envvar}")
    return " ".join([param.help or "", f"[{'; '.join(notes)}]" if notes else ""]).strip()


# -- Python


def _describe_package() -> Iterator[str]:
    package = griffe.load("randslot", search_paths=[ROOT / "src"])
    for title, names in PARTS.items():
        yield f"## {title}\n"
        for name in names:
            found = package[name]
            target = found.final_target if found.is_alias else found
            yield from _describe_class(name, target) if target.is_class else _describe_function(name, target, level=3)


def _describe_class(name: str, found: griffe.Class) -> Iterator[str]:
    yield f"### {found.name}\n"
    start = found.members.get("__init__")
    init = start if isinstance(start, griffe.Function) else None
    bases = ", ".join(str(base) for base in found.bases)
    fields = _list_fields(found)
    if any(comment for *_, comment in fields):
        yield f"```python\nrandslot.{name}(...)\n```\n"
    else:
        yield f"```python\n{_sign(f'randslot.{name}', init) if init else f'class randslot.{name}({bases})'}\n```\n"
    yield from _prose(found)
    if init and init.docstring:
        yield from _prose(init)
    if any(comment for *_, comment in fields):
        rows = [f"| `{key}` | `{_cell(default)}` | {_cell(comment)} |" for key, default, comment in fields]
        yield "\n".join(["| field | default | |", "|---|---|---|", *rows, ""])
    if found.name not in WITHOUT_MEMBERS:
        yield from _describe_members(found)


def _describe_members(found: griffe.Class) -> Iterator[str]:
    hidden = INTERNAL.get(found.name, "").split()
    members = [one for key, one in found.members.items() if not (key.startswith("_") or one.is_alias or key in hidden)]
    for one in members:
        if isinstance(one, griffe.Attribute) and one.docstring:
            yield f"- `{one.name}`: {_join(one.docstring.value)}"
    yield ""
    for one in members:
        if isinstance(one, griffe.Function) and one.docstring:
            yield from _describe_function(f"{found.name}.{one.name}", one, level=4)


def _list_fields(found: griffe.Class) -> list[tuple[str, str, str]]:
    """Return name, default and comment of each field of a dataclass."""
    fields = []
    for key, one in found.members.items() if "dataclass" in found.labels else ():
        if isinstance(one, griffe.Attribute) and one.annotation and "property" not in one.labels and key[0] != "_":
            line = one.source.splitlines()[0]
            fields.append((key, str(one.value), line.partition("  # ")[2]))
    return fields


def _describe_function(name: str, found: griffe.Function, level: int) -> Iterator[str]:
    yield f"{'#' * level} {name}\n"
    shown = f"randslot.{name}" if level == 3 else found.name
    yield f"```python\n{_sign(shown, found)}\n```\n"
    yield from _prose(found)


def _sign(name: str, found: griffe.Function) -> str:
    """Return a signature on one line, or with one parameter per line."""
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
    """Return the paragraphs of a docstring, with parameter names before a colon set as code."""
    for paragraph in (found.docstring.value if found.docstring else "").split("\n\n"):
        text = re.sub(r"(?:^|(?<=[.:] ))([a-z_]+(?:, [a-z_]+)*):(?= )", _as_code, _join(paragraph))
        yield re.sub(r"^Errors: ", "**Errors**: ", text) + "\n"


def _as_code(match: re.Match[str]) -> str:
    return ", ".join(f"`{name}`" for name in match[1].split(", ")) + ":"


def _join(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _escape(text: str) -> str:
    return re.sub(r"([|*_<\[\]])", r"\\\1", text)


def main() -> None:
    text = make_reference()
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text:
        return
    if "--check" in sys.argv[1:]:
        sys.exit(f"{PAGE.name} is stale: run make reference")
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
