"""How commands describe themselves: examples first, everyday options, then advanced ones; no types of a programmer."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

ADVANCED = "Advanced"  # the panel of options that few people need
OPTIONS, ARGUMENTS, COMMANDS = "Options", "Arguments", "Commands"
WIDEST = 100  # columns: longer lines are hard to read
HEADING, NAME = "bold", "cyan"


class PlainCommand(TyperCommand):
    """A command whose help is for people."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        console = make_console()
        print_head(self, ctx, console)
        print_params(self, ctx, console)


class PlainGroup(TyperGroup):
    """Commands in groups, the everyday ones first."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        console = make_console()
        print_head(self, ctx, console)
        panels: dict[str, Table] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            if not command.hidden:
                panel = _text(getattr(command, "rich_help_panel", None)) or COMMANDS
                first = " ".join((command.help or "").split("\n\n")[0].split())
                panels.setdefault(panel, make_table()).add_row(Text(name, NAME), Text(first))
        width = max(len(name) for name in self.list_commands(ctx))
        for panel, table in panels.items():
            table.columns[0].min_width = width
            print_section(panel, table, console)
        print_params(self, ctx, console)


def make_console() -> Console:
    console = Console(highlight=False)
    console.width = min(console.width, WIDEST)
    return console


def print_head(command: Any, ctx: Any, console: Console) -> None:
    """Print how the command is called, what it does, and examples."""
    pieces = ["[OPTIONS]"] if isinstance(command, TyperCommand) else ["COMMAND"]
    pieces += [name_argument(param) for param in command.params if param.param_type_name == "argument"]
    console.print(Text.assemble(("Usage: ", HEADING), " ".join([ctx.command_path, *pieces])))
    prose, examples = split_examples(command.help or "")
    for paragraph in prose:
        console.print()
        console.print(Text(paragraph))
    if examples:
        console.print()
    for example in examples:
        console.print(Padding(Text(example, "green"), (0, 0, 0, 2), expand=False))


def split_examples(text: str) -> tuple[list[str], list[str]]:
    """Return what a text says, a paragraph each, and its examples: paragraphs with a command of ours in one line."""
    prose: list[str] = []
    examples: list[str] = []
    for paragraph in text.split("\n\n"):
        line = " ".join(paragraph.split())
        if not line:
            continue
        is_example = "\n" not in paragraph.strip() and ("randslot " in line) and not line.endswith(".")
        (examples if is_example else prose).append(line)
    return prose, examples


def print_params(command: Any, ctx: Any, console: Console) -> None:
    """Print arguments, then options by their panels, the advanced ones last."""
    panels: dict[str, Table] = {}
    for param in command.get_params(ctx):
        if getattr(param, "hidden", False):
            continue
        is_argument = param.param_type_name == "argument"
        panel = _text(getattr(param, "rich_help_panel", None)) or (ARGUMENTS if is_argument else OPTIONS)
        name = Text(name_argument(param), NAME) if is_argument else name_option(param)
        panels.setdefault(panel, make_table()).add_row(name, Text(describe(param)))
    width = min(max((_widest(table) for table in panels.values()), default=0), 30)
    for panel in sorted(panels, key=lambda one: (one == ADVANCED, one != ARGUMENTS)):
        panels[panel].columns[0].min_width = width
        print_section(panel, panels[panel], console)


def name_argument(param: Any) -> str:
    name = param.metavar or param.name.upper()
    more = "..." if param.nargs != 1 else ""
    return f"{name}{more}" if param.required else f"[{name}]{more}"


def name_option(param: Any) -> Text:
    """Return the short and long form of an option, and what follows it."""
    short = [one for one in param.opts if not one.startswith("--")]
    long = [one for one in param.opts if one.startswith("--")]
    text = Text("    " if long and not short else "")
    text.append(", ".join([*short, *long]), NAME)
    if not param.is_flag:
        text.append(f" {param.metavar or param.name.upper()}")
    return text


def describe(param: Any) -> str:
    """Return what a parameter does, with its default and the variable of the environment that sets it."""
    notes = []
    default = param.default
    if isinstance(param.show_default, str):
        notes.append(f"default: {param.show_default}")
    elif not (callable(default) or param.required or default in (None, False, "", [], ())):
        notes.append(f"default: {getattr(default, 'value', default)}")
    if param.envvar:
        notes.append(f"or by {param.envvar}")
    return " ".join([param.help or "", f"[{'; '.join(notes)}]" if notes else ""]).strip()


def make_table() -> Table:
    table = Table(show_header=False, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    return table


def print_section(name: str, table: Table, console: Console) -> None:
    console.print()
    console.print(Text(name, HEADING))
    console.print(Padding(table, (0, 0, 0, 2), expand=False))


def _widest(table: Table) -> int:
    return max(cell.cell_len for cell in table.columns[0].cells if isinstance(cell, Text))


def _text(value: Any) -> str:
    """Return a text that was given, and nothing for typer's mark of a value that was not."""
    return value if isinstance(value, str) else ""
