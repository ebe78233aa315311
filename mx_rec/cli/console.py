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


class UnusableFile(click.ClickException):
    """Something cannot be read or written."""

    exit_code = ExitCode.USAGE


class BrokenGraph(click.ClickException):
    """A graph was read but does not hold together."""

    exit_code = ExitCode.REFUSED


class GraphFailed(click.ClickException):
    """A graph failed when it was run."""

    exit_code = ExitCode.REFUSED


class RewriteRefused(click.ClickException):
    """A pass failed, or refused something under `--strict`."""

    exit_code = ExitCode.REFUSED


def stdout() -> Console:
    """The console for results: as wide as the screen, or wide enough when there is none."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PLAIN_WIDTH)


def say(message: str) -> None:
    """A remark on stderr, so that stdout holds results alone."""
    click.echo(f"recgraph: {one_line(message)}", err=True)


def examples(*lines: str) -> str:
    """The epilog of a command's help; the marker keeps click from wrapping it."""
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines)))


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
