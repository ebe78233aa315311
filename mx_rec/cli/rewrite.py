"""`recgraph rewrite`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mx_rec.cli.console import RewriteRefused, UnusableFile, examples, say
from mx_rec.cli.params import GRAPH_PATH, NAME_LIST

if TYPE_CHECKING:
    from mx_rec.graph.files import LoadedGraph
    from mx_rec.graph.saved_model_files import AnyGraphFile
    from mx_rec.passes import Pass, PipelineResult, Refusal
    from mx_rec.passes.static_lookups.plans import TableChoice

_MAX_AHEAD = 1024


@dataclass(frozen=True)
class RewriteOptions:
    """The options of the command, as given.

    Attributes:
        passes: names of the passes to run, None for all.
        report: `text` or `json`.
        dump_dir: where each pass leaves the graph as text.
        time_passes: whether the text report shows times.
        strict: whether a refused lookup fails the command.
        prefetch: batches prepared ahead of the step.
        parallel_calls: batches prepared at the same time.
        merge: whether to make one of the evaluation lookups of one table.
        fuse: whether to do the work of lookups, and of updates, of equal settings in one op each.
        hot_embedding: whether to mark gathers with a hint for kernels.
        op_impl_mode: an `op_impl_mode.ini`.
        keep: nodes that stay though nothing reads them.
        convert: patterns of names of variables that become tables.
        config: a `tables.toml`.
        drop_modulo: whether to take out what keeps ids below the number of rows.
        initial_values: where the rows of those tables come from, `None` for the default.
    """

    passes: tuple[str, ...] | None
    report: str
    dump_dir: str | None
    time_passes: bool
    strict: bool
    prefetch: int
    parallel_calls: int
    merge: bool
    fuse: bool
    hot_embedding: bool
    op_impl_mode: str | None
    keep: tuple[str, ...]
    convert: tuple[str, ...]
    config: str | None
    drop_modulo: bool
    initial_values: str | None


@click.command(
    "rewrite",
    short_help="Move the lookups of a graph into its input pipeline.",
    epilog=examples(
        "recgraph rewrite train.pb train.rewritten.pb",
        "recgraph rewrite train.meta train.meta --prefetch 4 --time-passes",
        "recgraph rewrite train.pbtxt out.pbtxt --report json --strict",
        "recgraph rewrite export/1700000000 rewritten/1",
        "recgraph rewrite train.meta out.meta --convert 'user_emb*' --convert item_emb",
        "recgraph rewrite train.pb out.pb --passes find_lookups,insert_collections --dump-dir d",
    ),
)
@click.argument("source", metavar="IN", type=GRAPH_PATH)
@click.argument("target", metavar="OUT", type=GRAPH_PATH)
@click.option("--passes", type=NAME_LIST, metavar="A,B", help="Run only these passes, in pipeline order.")
@click.option(
    "--report",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Form of the report.",
)
@click.option("--dump-dir", metavar="DIR", help="Write the graph before and after each pass there, as text.")
@click.option("--time-passes", is_flag=True, help="Show the time of each pass (JSON always has it).")
@click.option("--strict", is_flag=True, help="Exit with 3 and write nothing when anything was refused.")
@click.option(
    "--prefetch",
    type=click.IntRange(1, _MAX_AHEAD),
    default=1,
    show_default=True,
    metavar="N",
    help="Batches prepared ahead of the step.",
)
@click.option(
    "--parallel-calls",
    type=click.IntRange(1, _MAX_AHEAD),
    default=1,
    show_default=True,
    metavar="N",
    help="Batches prepared at the same time.",
)
@click.option("--no-merge", "merge", flag_value=False, default=True, help="Leave evaluation lookups of a table apart.")
@click.option("--no-fuse", "fuse", flag_value=False, default=True, help="Leave every lookup and update its own ops.")
@click.option("--no-hot-embedding", "hot_embedding", flag_value=False, default=True, help="Leave out hot_embedding.")
@click.option("--op-impl-mode", metavar="FILE", help="An op_impl_mode.ini (lines like GatherV2=high_performance).")
@click.option("--convert", multiple=True, metavar="PATTERN", help="Make tables of these variables; may be repeated.")
@click.option("--config", metavar="FILE", help="A tables.toml that says which variables become tables, and how.")
@click.option(
    "--initial-values",
    type=click.Choice(["variable", "by_key"]),
    help="With --convert: rows from the variable's initializer (default), or one by one when a key is first seen.",
)
@click.option("--drop-modulo", is_flag=True, help="With --convert: take out a modulo that only bounds the ids.")
@click.option("--keep", multiple=True, metavar="NODE", help="Never remove this node; may be repeated.")
def rewrite_command(source: str, target: str, **options: Any) -> None:
    """Moves the id-to-address work of each lookup in IN into the dataset that feeds it, and writes OUT.

    OUT is the same kind of file as IN, and may be IN itself. It is written only on success and replaced in
    one step. A MetaGraphDef gets the collections of the lookups, and keeps every node that its collections,
    saver and signatures name. For a SavedModel OUT is a directory that does not exist yet; each MetaGraph is
    rewritten on its own, variables and assets are copied.

    When there is nothing to do, OUT is a copy of IN and a remark says so. A lookup that cannot be moved
    stays where it is and is reported with node and reason; that is no failure unless --strict is given.

    The report goes to stdout. Exit codes: 0 written, 2 bad usage or a file that cannot be read or written,
    3 a pass failed, or refused under --strict.
    """
    _rewrite(source, target, RewriteOptions(**options))


def _rewrite(source: str, target: str, options: RewriteOptions) -> None:
    from mx_rec.graph import files
    from mx_rec.graph.saved_model_files import LoadedSavedModel, load_graphs

    loaded = load_graphs(source)
    for warning in loaded.warnings:
        say(f"warning: '{source}': {warning}")
    _check_kept_nodes(loaded, options.keep)
    if isinstance(loaded, LoadedSavedModel):
        from mx_rec.cli.rewrite_saved_model import rewrite_saved_model

        rewrite_saved_model(loaded, target, options)
        return
    passes = passes_for(loaded, options)
    files.check_writable(target)
    result = run_passes(loaded, passes, options.dump_dir)
    click.echo(report_of(result, options), nl=False)
    stop_if_refused(result, options)
    warn_of_patterns([result])
    if result.modified:
        files.save_graph(loaded, result.view, target)
    elif files.copy_graph(loaded, target):
        say(f"nothing to do: no pass changed the graph; '{target}' is a copy of '{source}'")
    else:
        say(f"nothing to do: no pass changed the graph; '{target}' stays as it is")


def passes_for(loaded: LoadedGraph, options: RewriteOptions) -> list[Pass]:
    """The passes to run. A pass that was asked for but is switched off is bad usage."""
    from mx_rec.passes import PASSES, PipelineOptions, default_pipeline

    pipeline = default_pipeline(
        PipelineOptions(
            static_tables=_static_tables(options),
            static_keep=loaded.referenced_nodes(variables=False, objects=False).union(options.keep),
            inline_calls=options.passes is None or "inline_calls" in options.passes,
            entries=_entries(loaded, options),
            prefetch=options.prefetch,
            parallel_calls=options.parallel_calls,
            adopt_orphans="adopt_orphans" in (options.passes or ()),
            merge=options.merge,
            fuse=options.fuse,
            hot_embedding=options.hot_embedding,
            op_impl_mode=_op_impl_mode(options.op_impl_mode),
            keep=loaded.referenced_nodes().union(options.keep),
        )
    )
    if options.passes is None:
        return pipeline
    for name in options.passes:
        if name not in PASSES:
            raise click.UsageError(f"--passes: no pass '{name}'; the passes are {', '.join(PASSES)}")
        if name not in {step.name for step in pipeline}:
            raise click.UsageError(f"--passes: '{name}' is switched off by another option")
    return [step for step in pipeline if step.name in options.passes]


def _entries(loaded: LoadedGraph, options: RewriteOptions) -> frozenset[str] | None:
    """The nodes by which a MetaGraph of a SavedModel is used; of other files a script may use any."""
    return None if loaded.tags is None else loaded.referenced_nodes(objects=False).union(options.keep)


def _static_tables(options: RewriteOptions) -> tuple[TableChoice, ...]:
    """The variables that become tables: those of the command line, then those of the file."""
    from mx_rec.passes.static_lookups.config import read_tables
    from mx_rec.passes.static_lookups.plans import BY_KEY, FROM_VARIABLE, TableChoice

    if not options.convert and (options.drop_modulo or options.initial_values):
        given = "--drop-modulo" if options.drop_modulo else "--initial-values"
        raise click.UsageError(f"{given} goes with --convert; in a tables.toml it is a key of a table")
    if options.drop_modulo and options.initial_values == FROM_VARIABLE:
        raise click.UsageError("--drop-modulo needs --initial-values by_key: the ids are no rows of the variable then")
    initial = options.initial_values or (BY_KEY if options.drop_modulo else FROM_VARIABLE)
    given_here = tuple(TableChoice(pattern, "", initial, options.drop_modulo) for pattern in options.convert)
    return given_here + (() if options.config is None else read_tables(options.config))


def _check_kept_nodes(loaded: AnyGraphFile, keep: Sequence[str]) -> None:
    if not keep:
        return
    names = {node.name for graph in loaded.graphs for node in graph.graph_def.node}
    for name in keep:
        if name not in names:
            raise click.UsageError(f"--keep: '{loaded.path}' has no node '{name}'")


def _op_impl_mode(path: str | None) -> dict[str, str] | None:
    if path is None:
        return None
    from mx_rec.graph.op_impl_mode import read_op_impl_mode

    return dict(read_op_impl_mode(path))


def run_passes(loaded: LoadedGraph, passes: Sequence[Pass], dump_dir: str | None) -> PipelineResult:
    """Runs passes on a graph.

    Raises:
        RewriteRefused: one failed.
    """
    from mx_rec.passes import PassFailed, PassManager

    directory = None if dump_dir is None else Path(dump_dir)
    try:
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
        return PassManager(passes, directory).run(loaded.graph_def)
    except PassFailed as error:
        node = f" at node '{error.node}'" if error.node else ""
        raise RewriteRefused(f"pass {error.pass_name} failed{node}: {error.reason}; nothing was written") from error
    except OSError as error:
        raise UnusableFile(f"--dump-dir: cannot write '{error.filename or dump_dir}': {error.strerror}") from error


def report_of(result: PipelineResult, options: RewriteOptions) -> str:
    """What the command says of a graph."""
    from mx_rec.passes import report_json, report_text

    if options.report == "text":
        return report_text(result.reports, with_times=options.time_passes)
    content = {"modified": result.modified, "passes": report_json(result.reports)}
    return json.dumps(content, indent=2) + "\n"


def stop_if_refused(result: PipelineResult, options: RewriteOptions) -> None:
    """RewriteRefused if a pass refused something and the options ask for none of it."""
    refusals = [(report.name, refusal) for report in result.reports for refusal in report.refusals]
    if refusals and options.strict:
        raise RewriteRefused(_refusal_message(*refusals[0], others=len(refusals) - 1))


def warn_of_patterns(results: Sequence[PipelineResult]) -> None:
    """Remarks on what was asked for and is in no graph, which is easily overlooked in a report."""
    of_graphs = [
        {refusal.node: refusal for report in result.reports for refusal in report.refusals if refusal.is_pattern}
        for result in results
    ]
    for pattern, refusal in of_graphs[0].items():
        if all(pattern in refusals for refusals in of_graphs):
            say(f"warning: '{pattern}' {refusal.reason}")


def _refusal_message(name: str, refusal: Refusal, others: int) -> str:
    more = f" (and {others} more refusals)" if others else ""
    return f"pass {name} refused node '{refusal.node}': {refusal.reason}{more}; nothing was written (--strict)"
