"""`recgraph verify`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

import click

from mx_rec.cli.console import ExitCode, UnusableFile, add_row, examples, plain_table, say, stdout
from mx_rec.cli.params import FEED, GRAPH_PATH
from mx_rec.cli.soundness import sound_view

if TYPE_CHECKING:
    from mx_rec.cli.verifying.fetches import Fetch, Side
    from mx_rec.cli.verifying.verdict import Compared, Verdict

_MAX_SEED = (1 << 31) - 1
_SHOWN_VARIABLES = 5  # that are equal
_UPDATE_PREFIX = "MxRecApply"


@dataclass(frozen=True)
class VerifyOptions:
    """The options of the command, as given."""

    steps: int
    tags: Optional[str]
    signature: Optional[str]
    fetches: tuple[str, ...]
    feeds: tuple[tuple[str, str], ...]
    initializers: tuple[str, ...]
    seed: int
    tolerance: Optional[float]
    threads: int
    timeout: int
    as_json: bool


@click.command(
    "verify",
    short_help="Run two graph files and compare what they compute.",
    epilog=examples(
        "recgraph verify train.meta train.rewritten.meta",
        "recgraph verify a.pb b.pb --fetch loss:0 --fetch train --steps 100",
        "recgraph verify a.meta b.meta --feed rate=rate.npy --tolerance 1e-6 --json",
        "recgraph verify export/1700000000 rewritten/1 --feed ids=ids.npy",
    ),
)
@click.argument("before", metavar="A", type=GRAPH_PATH)
@click.argument("after", metavar="B", type=GRAPH_PATH)
@click.option("--steps", type=click.IntRange(1), default=10, show_default=True, metavar="N", help="Steps to run.")
@click.option(
    "--fetch",
    "fetches",
    multiple=True,
    metavar="NAME",
    help="A tensor, node or collection to run and compare; may be repeated. Default: losses and train op.",
)
@click.option("--tags", metavar="A,B", help="Of a SavedModel with several MetaGraphs: which to run.")
@click.option("--signature", metavar="KEY", help="Of SavedModels: whose results to fetch. Default: serving_default.")
@click.option(
    "--feed",
    "feeds",
    multiple=True,
    type=FEED,
    metavar="NAME=FILE.npy",
    help="Value of a placeholder, or of an input of the signature, the same in every step; may be repeated.",
)
@click.option(
    "--init",
    "initializers",
    multiple=True,
    metavar="NAME",
    help="A node or collection to run instead of the iterators' initializers; may be repeated.",
)
@click.option(
    "--seed",
    type=click.IntRange(1, _MAX_SEED),
    default=1,
    show_default=True,
    metavar="N",
    help="Seed of random ops that have none.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0),
    metavar="T",
    help="Let floats differ by T * (1 + |b|). Default: bit for bit.",
)
@click.option(
    "--threads",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="Threads of a run; with several, sums may come in another order.",
)
@click.option(
    "--timeout",
    type=click.IntRange(1),
    default=600,
    show_default=True,
    metavar="SECONDS",
    help="For one run.",
)
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def verify_command(before: str, after: str, **options: Any) -> int:
    """Runs the graphs of two files side by side on the same input, and compares what they compute.

    Both start anew: variables, tables and the iterators that the fetches draw from are initialized, random ops
    without seed get the same one. Each step runs the fetches in A and in B. At the end the dynamic tables (keys,
    rows with their optimizer slots, counts) and the variables are compared. A table that has the place of a
    variable of the other graph is compared by what it does to the fetches alone.

    Without --fetch it runs what the collections (train_op, losses, ...) of a MetaGraphDef hold, and nodes called
    loss or train_op. SavedModels begin with their own variables and assets, and without --fetch the results of a
    signature are compared. A name that the rewrite has replaced is found by what replaced it, which is said on stderr.

    Needs the op library. Exit codes: 0 equal, 1 different (the first difference is named), 2 bad usage or a file
    that cannot be read or run here, 3 a graph failed to run.
    """
    given = VerifyOptions(**options)
    sides = _load(before, after, given.tags)
    _load_library()
    verdict = _verify(sides, given)
    for remark in verdict.remarks:
        say(remark)
    if given.as_json:
        click.echo(json.dumps({"a": before, "b": after, **verdict.to_json()}, indent=2))
    else:
        _show(sides, verdict)
    return ExitCode.OK if verdict.first_difference is None else ExitCode.DIFFERENT


def _load(before: str, after: str, tags: Optional[str]) -> tuple[Side, Side]:
    from mx_rec.cli.verifying.fetches import Side
    from mx_rec.graph.saved_model_files import load_graphs, meta_graph_of

    first, second = (meta_graph_of(load_graphs(path), tags) for path in (before, after))
    for loaded in (first, second):
        for warning in loaded.warnings:
            say(f"warning: '{loaded.path}': {warning}")
    return Side("A", first, sound_view(first)), Side("B", second, sound_view(second))


def _load_library() -> None:
    """Without the op library the kernels of a graph are not known."""
    import tensorflow as tf

    from mx_rec.errors import LibraryNotLoadedError
    from mx_rec.ops.library import load_library

    tf.get_logger().setLevel("ERROR")
    try:
        load_library()
    except LibraryNotLoadedError as error:
        raise UnusableFile(f"verify runs the graphs and needs the op library: {error}") from error


def _verify(sides: tuple[Side, Side], options: VerifyOptions) -> Verdict:
    from mx_rec.cli.verifying.feeds import load_feeds
    from mx_rec.cli.verifying.fetches import choose_fetches
    from mx_rec.cli.verifying.graph_run import GraphRun, RunOptions
    from mx_rec.cli.verifying.verdict import Verdict, compare_steps, compare_tables, compare_variables

    fetches = choose_fetches(sides, options.fetches, options.signature)
    run_options = RunOptions(
        initializers=options.initializers,
        feeds=load_feeds(sides, options.feeds, options.signature),
        seed=options.seed,
        threads=options.threads,
        timeout=options.timeout,
    )
    verdict = Verdict(tolerance=options.tolerance, remarks=[*_replaced(fetches), *_untrained(sides, fetches)])
    with contextlib.ExitStack() as stack:
        runs = []
        for index, side in enumerate(sides):
            run = GraphRun(side, [fetch.targets[index] for fetch in fetches], run_options)
            stack.callback(run.close)
            verdict.remarks.extend(run.remarks)
            runs.append(run)
        for run in runs:
            run.start()
        compare_steps(runs, fetches, options.steps, verdict)
        compare_tables(runs, verdict)
        compare_variables(runs, verdict)
    return verdict


def _replaced(fetches: Sequence[Fetch]) -> Iterator[str]:
    for fetch in fetches:
        first, second = fetch.targets
        if first != second:
            yield f"fetch '{fetch.name}' is '{first}' in A and '{second}' in B"


def _untrained(sides: tuple[Side, Side], fetches: Sequence[Fetch]) -> Iterator[str]:
    from mx_rec.graph.startup import needed_by

    for index, side in enumerate(sides):
        needed = needed_by(side.view, {fetch.nodes[index] for fetch in fetches})
        updates = [node.name for node in side.view if node.op.startswith(_UPDATE_PREFIX)]
        if updates and not any(name in needed for name in updates):
            yield f"{side}: no fetch updates a table (as '{updates[0]}' would): name the train op with --fetch"


def _show(sides: tuple[Side, Side], verdict: Verdict) -> None:
    console = stdout()
    for side in sides:
        title = f"{side.label}: {side.loaded.path}, {side.loaded.title}, {len(side.view):,} nodes"
        console.print(title, markup=False, soft_wrap=True)
    console.print()
    table = plain_table("", "kind", "name", "compared", "result")
    table.title = None
    same = [row for row in verdict.compared if row.kind == "variable" and row.is_equal]
    for row in verdict.compared:
        if row not in same[_SHOWN_VARIABLES:]:
            add_row(table, row.kind, row.name, row.extent, _result(row))
    if len(same) > _SHOWN_VARIABLES:
        add_row(table, "variable", f"and {len(same) - _SHOWN_VARIABLES} more", "", "equal")
    console.print(table)
    console.print()
    how = "bit for bit" if verdict.tolerance is None else f"within {verdict.tolerance:g}"
    if verdict.first_difference is None:
        verdict_line = f"equal {how}: {verdict.steps} steps"
    else:
        verdict_line = f"different: {verdict.first_difference}"
    console.print(verdict_line, markup=False, soft_wrap=True)


def _result(row: Compared) -> str:
    if row.is_equal:
        return "ran" if row.kind == "op" else "equal"
    largest = "" if row.largest is None else f", by up to {row.largest:g}"
    unit = "steps" if row.kind == "fetch" else "keys or elements" if row.kind == "table" else "elements"
    return f"differs ({row.differing:,} {unit}{largest})" if row.differing else "differs"
