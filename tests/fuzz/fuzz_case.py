"""Runs `recgraph` on one damaged file and judges what it did."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import signal
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from mx_rec.cli import main
from mx_rec.errors import GraphFileError
from mx_rec.graph.saved_model_files import load_graphs

tf1 = tf.compat.v1
SAVED_MODEL = "saved_model.pb"
SECONDS_ALLOWED = 60  # no case takes one; a machine may be busy
_BUG_IN_A_PASS = re.compile(
    r"failed[^:]*: (?!GraphRewriteError)[A-Z]\w*(Error|Exception|Warning|Interrupt|Iteration): "
)


class Bug(AssertionError):
    """What `recgraph` must never do."""


@dataclass(frozen=True)
class Verdict:
    """How `rewrite` ended, and whether TensorFlow's importer was asked about what it wrote."""

    code: int
    modified: bool
    accepted: bool


CONVERT = ("--convert", "*")
_ONE_IN = 4


def options_of(seed: int, name: str) -> tuple[str, ...]:
    """The options of `rewrite` for a case: one in four has its variables made tables, SavedModels excepted.

    A SavedModel is converted with its checkpoint, which a damaged graph alone has not.
    """
    return CONVERT if seed % _ONE_IN == 0 and name != SAVED_MODEL else ()


def run_case(name: str, data: bytes, directory: Path, options: Sequence[str] = ()) -> Verdict:
    """Puts a file through rewrite (twice, with these options), inspect, diff and plot.

    Raises:
        Bug: one of them crashed, hung, wrote something after a failure, or wrote what TensorFlow refuses
            although it accepts the input; or the second rewrite changed something.
    """
    source, target, again = _paths(name, data, directory)
    code, err = _recgraph("rewrite", source, target, *options)
    modified = accepted = False
    if code:
        _expect(not target.exists(), "something was written after a failure")
    else:
        _expect(target.exists(), "nothing was written")
        modified = _content(target) != data
        if modified:
            accepted = _check_import(source, target)
            code_again, err = _recgraph("rewrite", target, again, *options)
            _expect(code_again == 0, f"what was written cannot be rewritten again: {err}")
            _expect(_content(again) == _content(target), "the second rewrite changed something")
        _recgraph("diff", source, target)
    _recgraph("inspect", source)
    _recgraph("plot", source, directory / "out.svg")
    return Verdict(code, modified, accepted)


def _paths(name: str, data: bytes, directory: Path) -> tuple[Path, Path, Path]:
    """(what is rewritten, where to, where to again): files, or directories of SavedModels."""
    if name != SAVED_MODEL:
        source, target, again = directory / name, directory / f"out_{name}", directory / f"again_{name}"
        source.write_bytes(data)
        for path in (target, again):
            path.unlink(missing_ok=True)
        return source, target, again
    source, target, again = (directory / f"{place}_saved" for place in ("in", "out", "again"))
    for path in (source, target, again):
        shutil.rmtree(path, ignore_errors=True)
    source.mkdir()
    (source / SAVED_MODEL).write_bytes(data)
    return source, target, again


def _content(path: Path) -> bytes:
    return (path / SAVED_MODEL if path.is_dir() else path).read_bytes()


def _recgraph(*arguments: Any) -> tuple[int, str]:
    out, err = io.StringIO(), io.StringIO()
    command = arguments[0]
    try:
        with _limit(SECONDS_ALLOWED, command), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main([str(argument) for argument in arguments])
    except SystemExit as ended:
        code = int(ended.code or 0)
    except Bug:
        raise
    except BaseException as error:
        raise Bug(f"recgraph {command} crashed: {''.join(traceback.format_exception(error))}") from error
    text = err.getvalue()
    allowed = {0, 1, 2, 3} if command == "diff" else {0, 2, 3}
    _expect(code in allowed, f"recgraph {command} returned {code}: {text}")
    _expect("Traceback" not in text, text)
    _expect(not _BUG_IN_A_PASS.search(text), f"recgraph {command}: a pass crashed: {text}")
    if code > 1:
        lines = [line for line in text.splitlines() if " warning: " not in line]
        _expect(len(lines) == 1 and lines[0].startswith("recgraph: "), f"recgraph {command} said {text!r}")
    return code, text


def _check_import(source: Path, target: Path) -> bool:
    """Whether TensorFlow accepts the input; it must then accept the output."""
    if _import_problem(source) is not None:
        return False
    problem = _import_problem(target)
    _expect(problem is None, f"TensorFlow accepts the input and refuses the output: {problem}")
    return True


def _import_problem(path: Path) -> str | None:
    try:
        loaded = load_graphs(path)
    except GraphFileError as error:
        return str(error)
    for part in loaded.graphs:
        with tf.Graph().as_default():
            try:
                tf.import_graph_def(part.graph_def, name="")
            except Exception as error:  # whatever TensorFlow has against it
                return f"{type(error).__name__}: {error}"
    return None


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise Bug(what)


@contextlib.contextmanager
def _limit(seconds: int, what: str) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise Bug(f"recgraph {what} took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
