"""`recgraph rewrite` of a SavedModel."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Callable

import click

from mx_rec.cli.console import RewriteRefused, UnusableFile, say
from mx_rec.cli.rewrite import RewriteOptions, passes_for, report_of, run_passes, stop_if_refused, warn_of_patterns

if TYPE_CHECKING:
    from mx_rec.graph.files import LoadedGraph
    from mx_rec.graph.origins import TableOrigin
    from mx_rec.graph.saved_model_files import LoadedSavedModel, VariablesWriter
    from mx_rec.passes import PipelineResult


def rewrite_saved_model(loaded: LoadedSavedModel, target: str, options: RewriteOptions) -> None:
    """Rewrites each MetaGraph of a SavedModel on its own and writes a new SavedModel.

    Args:
        loaded: the SavedModel.
        target: a directory that does not exist.
        options: those of the command.

    Raises:
        GraphFileError, UnusableFile: it cannot be written, or tables cannot be filled from its variables.
        RewriteRefused: a pass failed, or refused something under `--strict`.
    """
    from mx_rec.graph.saved_model_files import check_new_directory, save_saved_model

    check_new_directory(loaded, target)
    steps = [passes_for(graph, options) for graph in loaded.graphs]
    results = [
        run_passes(graph, passes, _dump_dir(graph, index, options))
        for index, (graph, passes) in enumerate(zip(loaded.graphs, steps))
    ]
    click.echo(_report(loaded, results, options), nl=False)
    for result in results:
        stop_if_refused(result, options)
    warn_of_patterns(results)
    origins = _new_origins(loaded, results)
    writer = _filler(origins, click.echo if options.report == "text" else say) if origins else None
    save_saved_model(loaded, [result.view if result.modified else None for result in results], target, writer)
    if not any(result.modified for result in results):
        say(f"nothing to do: no pass changed the graphs; '{target}' is a copy of '{loaded.path}'")


def _dump_dir(graph: LoadedGraph, index: int, options: RewriteOptions) -> str | None:
    """A directory for each MetaGraph."""
    if options.dump_dir is None:
        return None
    return str(Path(options.dump_dir) / re.sub(r"[^A-Za-z0-9_-]+", "_", f"{index}_{'_'.join(graph.tags or ())}"))


def _report(loaded: LoadedSavedModel, results: Sequence[PipelineResult], options: RewriteOptions) -> str:
    reports = [report_of(result, options) for result in results]
    if options.report == "text":
        heads = [f"MetaGraph of tags {', '.join(graph.tags or ()) or '-'}:\n" for graph in loaded.graphs]
        return "".join(head + report for head, report in zip(heads, reports))
    parts = [{"tags": list(graph.tags or ()), **json.loads(text)} for graph, text in zip(loaded.graphs, reports)]
    content = {"modified": any(result.modified for result in results), "meta_graphs": parts}
    return json.dumps(content, indent=2) + "\n"


def _new_origins(loaded: LoadedSavedModel, results: Sequence[PipelineResult]) -> list[TableOrigin]:
    """The variables of which tables were made.

    Raises:
        RewriteRefused: the MetaGraphs share one checkpoint, which cannot be that of all of them then.
    """
    from mx_rec.graph.op_signatures import OP_TABLE
    from mx_rec.graph.origins import table_origins

    before = [{node.name for node in graph.graph_def.node if node.op == OP_TABLE} for graph in loaded.graphs]
    made = [
        table_origins(node.written() for node in result.view.nodes_of(OP_TABLE) if node.name not in names)
        for result, names in zip(results, before)
    ]
    if not any(made):
        return []
    if any(before):
        raise RewriteRefused(
            f"--convert: '{loaded.path}' has tables already, whose files the checkpoint of its variables would lose: "
            "convert all variables in one run, from the SavedModel of before; nothing was written"
        )
    first = made[0]
    for graph, origins in zip(loaded.graphs, made):
        if sorted(origin.encode() for origin in origins) != sorted(origin.encode() for origin in first):
            raise RewriteRefused(
                f"--convert: the MetaGraphs of '{loaded.path}' share one checkpoint, but other tables would be made in "
                f"that of tags {', '.join(graph.tags or ())} than in that of tags "
                f"{', '.join(loaded.graphs[0].tags or ())}: export each as a SavedModel; nothing was written"
            )
    return first


def _filler(origins: Sequence[TableOrigin], tell: Callable[[str], None]) -> VariablesWriter:
    def fill(source: Path, target: Path) -> None:
        from mx_rec.cli.convert_checkpoint import convert_checkpoint
        from mx_rec.errors import CheckpointError

        try:
            for line in convert_checkpoint(str(source), str(target), origins):
                tell(line)
        except UnusableFile as error:
            raise UnusableFile(f"--convert: {error.message.removeprefix('OLD: ')}; nothing was written") from error
        except CheckpointError as error:
            raise UnusableFile(str(error)) from error

    return fill
