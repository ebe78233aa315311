"""Exit codes and output: results go to stdout, one line per problem to stderr."""

from __future__ import annotations

import enum
from typing import Any

import click
from rich.console import Console
from rich.table import Table

_PLAIN_WIDTH = 200  # Of tables in a file or a pipe, where there is no screen to fit.


class ExitCode(enum.IntEnum):
    """What the process returns."""

    OK = 0
    DIFFERENT = 1
    USAGE = 2
    REFUSED = 3
    INTERRUPTED = 130


class CommandFailed(click.ClickException):
    """A command ends with one line on stderr and this code."""

    def __init__(self, message: str, code: ExitCode) -> None:
        super().__init__(one_line(message))
        self.exit_code = code


def stdout() -> Console:
    """The console for results: as wide as the screen, or wide enough when there is none."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PLAIN_WIDTH)


def say(message: str) -> None:
    """A remark on stderr, so that stdout holds results alone."""
    click.echo(f"recgraph: {one_line(message)}", err=True)


def one_line(message: str) -> str:
    """The message without line breaks."""
    return " ".join(message.split())


def plain_table(title: str, *columns: str) -> Table:
    """A table whose cells wrap rather than being cut off."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def add_row(table: Table, *cells: Any) -> None:
    """Adds a row; names may hold brackets, so cells are text, never markup."""
    from rich.text import Text

    table.add_row(*(Text(str(cell)) for cell in cells))
