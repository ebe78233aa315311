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
    """Lists the passes in pipeline order; with names, shows what those passes do and refuse."""
    from mx_rec.passes import PASSES

    unknown = [name for name in names if name not in PASSES]
    if unknown:
        raise click.UsageError(f"no pass '{unknown[0]}'; the passes are {', '.join(PASSES)}")
    if not names:
        click.echo(_overview())
        return
    click.echo("\n\n".join(f"{name}\n\n{inspect.getdoc(PASSES[name])}" for name in names))


def _overview() -> str:
    from mx_rec.passes import PipelineOptions, default_pipeline

    steps = [(step.name, _first_line(type(step))) for step in default_pipeline(PipelineOptions(adopt_orphans=True))]
    width = max(len(name) for name, _ in steps)
    digits = len(str(len(steps)))
    lines = [f"{number:>{digits}}. {name:<{width}}  {text}" for number, (name, text) in enumerate(steps, start=1)]
    return "\n".join(lines)


def _first_line(step: type) -> str:
    return (inspect.getdoc(step) or "").partition("\n")[0]
