"""The command group and the entry point."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

import mx_rec
from mx_rec.cli.checkpoint import checkpoint_command
from mx_rec.cli.console import ExitCode, examples, one_line
from mx_rec.cli.convert_checkpoint import convert_checkpoint_command
from mx_rec.cli.diff import diff_command
from mx_rec.cli.freeze import freeze_command
from mx_rec.cli.inspect import inspect_command
from mx_rec.cli.passes import passes_command
from mx_rec.cli.plot import plot_command
from mx_rec.cli.rewrite import rewrite_command
from mx_rec.cli.verify import verify_command
from mx_rec.errors import CheckpointError, GraphFileError, GraphRewriteError


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    invoke_without_command=True,
    epilog=examples(
        "recgraph inspect train.meta",
        "recgraph rewrite train.meta train.rewritten.meta",
        "recgraph diff train.meta train.rewritten.meta",
        "recgraph plot train.meta lookups.svg --rewritten",
        "recgraph verify train.meta train.rewritten.meta",
        "recgraph freeze export/1700000000 frozen/1",
        "recgraph checkpoint verify model.ckpt-100",
        "recgraph convert-checkpoint converted.meta old/model.ckpt-100 new/model.ckpt-100",
        "recgraph passes",
    ),
)
@click.version_option(mx_rec.__version__, prog_name="recgraph")
@click.pass_context
def recgraph(context: click.Context) -> None:
    """Rewrites, inspects, draws and compares graphs of TensorFlow recommenders.

    Files are GraphDefs (.pb, .pbtxt) or MetaGraphDefs (.meta), told apart by what they hold; freeze takes the
    directory of a SavedModel. The op library is needed by verify and freeze alone.

    Exit codes: 0 done (diff, verify: equal), 1 diff or verify found a difference, 2 bad usage or a file that
    cannot be read or written, 3 a graph is broken or failed to run, or a pass failed, or refused under --strict.
    Problems are one line on stderr.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


recgraph.add_command(rewrite_command)
recgraph.add_command(inspect_command)
recgraph.add_command(diff_command)
recgraph.add_command(passes_command)
recgraph.add_command(plot_command)
recgraph.add_command(verify_command)
recgraph.add_command(freeze_command)
recgraph.add_command(checkpoint_command)
recgraph.add_command(convert_checkpoint_command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs `recgraph` and exits with its code.

    Args:
        arguments: of the command line; those of the process if not given.
    """
    _silence_tensorflow()
    sys.exit(int(_run(arguments)))


def _run(arguments: Sequence[str] | None) -> int:
    try:
        result = recgraph.main(args=arguments, prog_name="recgraph", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else ExitCode.OK
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", ExitCode.INTERRUPTED)
    except click.UsageError as error:
        return _fail(_usage_message(error), ExitCode.USAGE)
    except click.ClickException as error:
        return _fail(error.format_message(), error.exit_code)
    except (GraphFileError, CheckpointError) as error:
        return _fail(str(error), ExitCode.USAGE)
    except GraphRewriteError as error:
        return _fail(str(error), ExitCode.REFUSED)
    except BrokenPipeError:
        # The reader has left; keep the interpreter from flushing into the closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK


def _usage_message(error: click.UsageError) -> str:
    command = error.ctx.command_path if error.ctx else "recgraph"
    return f"{error.format_message()} (see '{command} --help')"


def _fail(message: str, code: int) -> int:
    click.echo(f"recgraph: {one_line(message)}", err=True)
    return code


def _silence_tensorflow() -> None:
    """Before TensorFlow is imported: its notices would drown the one line that matters.

    The oneDNN switch keeps newer versions from writing a notice before they read their log level. For
    `verify` it means that both graphs run TensorFlow's own kernels.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
