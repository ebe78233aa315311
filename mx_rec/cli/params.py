"""Parameter types of the commands."""

from __future__ import annotations

from typing import Any

import click


class GraphPath(click.ParamType):
    """Path of a graph file; standard input and output are none, since they cannot be replaced in one step."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The path as given; `-` and the empty string are refused."""
        path = str(value)
        if path == "-":
            self.fail("'-' (standard input or output) is not supported: give a file", param, ctx)
        if not path:
            self.fail("the path is empty: give a file", param, ctx)
        return path


class NameList(click.ParamType):
    """Names separated by commas."""

    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """The names in their order."""
        if isinstance(value, tuple):
            return value
        names = tuple(part.strip() for part in str(value).split(","))
        if not all(names):
            self.fail(f"expected names separated by commas, got {value!r}", param, ctx)
        return names


class Feed(click.ParamType):
    """`NAME=FILE.npy`, split at the first `=`, which no name of a node holds."""

    name = "feed"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """(name, path)."""
        if isinstance(value, tuple):
            return value
        name, separator, path = str(value).partition("=")
        if not (name and separator and path):
            self.fail(f"expected NAME=FILE.npy, got {value!r}", param, ctx)
        return name, path


FEED = Feed()
GRAPH_PATH = GraphPath()
NAME_LIST = NameList()
