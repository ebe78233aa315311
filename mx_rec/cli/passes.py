"""`recgraph passes`."""

from __future__ import annotations

import inspect

import click

from mx_rec.cli.console import examples


@click.command(
    "passes",
    short_help="List the passes and their order.",
    epilog=examples("recgraph passes", "recgraph passes hoist_lookups"),
)
@click.argument("names", nargs=-1, metavar="[NAME]...")
def passes_command(names: tuple[str, ...]) -> None:
    """Lists the passes in pipeline order, each with the reason for its place; with names, shows what those
    passes do and refuse.
    """
    from mx_rec.passes import PASSES

    unknown = [name for name in names if name not in PASSES]
    if unknown:
        raise click.UsageError(f"no pass '{unknown[0]}'; the passes are {', '.join(PASSES)}")
    click.echo("\n\n".join(map(_description, names)) if names else _overview())


def _overview() -> str:
    from mx_rec.passes import PIPELINE

    width = max(len(stage.step.name) for stage in PIPELINE)
    digits = len(str(len(PIPELINE)))
    lines = []
    for number, stage in enumerate(PIPELINE, start=1):
        lines.append(f"{number:>{digits}}. {stage.step.name:<{width}}  {_first_line(stage.step)}")
        lines.append(f"{'':<{digits}}  {'':<{width}}  {stage.reason}")
    return "\n".join(lines)


def _description(name: str) -> str:
    from mx_rec.passes import PIPELINE

    number, stage = next((n, s) for n, s in enumerate(PIPELINE, start=1) if s.step.name == name)
    place = f"Place: {number} of {len(PIPELINE)}, {stage.reason}."
    return f"{name}\n\n{inspect.getdoc(stage.step)}\n\n{place}"


def _first_line(step: type) -> str:
    return (inspect.getdoc(step) or "").partition("\n")[0]
