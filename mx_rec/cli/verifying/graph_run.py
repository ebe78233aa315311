"""A graph file in a session of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

import click

from mx_rec.cli.console import GraphFailed, UnusableFile
from mx_rec.cli.verifying.feeds import PLACEHOLDERS
from mx_rec.cli.verifying.fetches import Side, resolve_nodes

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf

_REFERENCE_VARIABLES = ("VariableV2", "Variable")
_NODE = re.compile(r"\{\{node (?P<name>[^}]+)\}\}")
_NOISE = re.compile(r"\[\[.*?\]\]|\{\{.*?\}\}|^\s*\(\d\) \w+: ")
_AFTER_TRACEBACK = "\nNode: '"
_HEADINGS = ("Graph execution error:", "Node: '", "Detected at node", "Original stack trace")


@dataclass(frozen=True)
class RunOptions:
    """How the graphs are run.

    Attributes:
        initializers: names of what fills the iterators, instead of what the graph has; of nodes or collections.
        feeds: values of placeholders by node name.
        seed: of random ops that have none.
        threads: of an op, and ops at the same time.
        timeout: seconds that one run may take.
    """

    initializers: tuple[str, ...]
    feeds: Mapping[str, np.ndarray]
    seed: int
    threads: int
    timeout: int


class GraphRun:
    """Imports one graph and runs it. The op library is loaded already.

    Args:
        side: the graph.
        fetches: its tensors and ops, by name.
        options: how to run it.

    Raises:
        UnusableFile: this TensorFlow cannot import the graph.
        click.UsageError: an initializer is not there, or a placeholder is not fed.
    """

    def __init__(self, side: Side, fetches: Sequence[str], options: RunOptions) -> None:
        self.side = side
        self.remarks: list[str] = []
        self._options = options
        self._startup_feeds: dict[str, Any] = {}
        self._phases = self._startup(fetches)
        self._check_fed([*fetches, *(name for phase in self._phases for name in phase)])
        self._graph = self._imported()
        with self._graph.as_default():
            self._tables = self._export_ops()
            self._variables = self._variable_reads()
        self._fetches = [self._element(name) for name in fetches]
        self._feeds = {f"{name}:0": value for name, value in options.feeds.items()}
        self._session = self._new_session()

    def start(self) -> None:
        """Runs the initializers: of variables, tables, iterators."""
        for phase in self._phases:
            if phase:
                operations = [self._graph.get_operation_by_name(name) for name in phase]
                self._run(operations, "its initialization", feeds=self._startup_feeds)

    def step(self, number: int) -> Optional[list[Any]]:
        """Runs the fetches once; values in their order, `None` for an op. `None` when the input has ended."""
        import tensorflow as tf

        try:
            return list(self._run(self._fetches, f"step {number}", passed_on=tf.errors.OutOfRangeError))
        except tf.errors.OutOfRangeError:
            return None

    @property
    def tables(self) -> list[str]:
        """Names of the dynamic tables."""
        return list(self._tables)

    @property
    def converted(self) -> set[str]:
        """Names of the tables that have the place of variables of another graph."""
        from mx_rec.graph.origins import table_origins

        return {origin.table_name for origin in table_origins(self.side.loaded.graph_def.node)}

    def table(self, name: str) -> tuple[Any, Any, Any]:
        """Keys, rows and counts of a table, sorted by key."""
        keys, rows, counts = self._run(self._tables[name], f"the export of table '{name}'")
        return keys, rows, counts

    @property
    def variables(self) -> list[str]:
        """Names of the variables."""
        return list(self._variables)

    def variable(self, name: str) -> Any:
        """The value of a variable, `None` if it was not initialized."""
        import numpy as np

        value, is_initialized = self._variables[name]
        if not self._run(is_initialized, f"variable '{name}'"):
            return None
        result = self._run(value, f"variable '{name}'")
        return np.array(result, np.object_) if isinstance(result, bytes) else result  # a text alone comes without array

    def close(self) -> None:
        """Gives up the session and what it holds."""
        self._session.close()

    def _startup(self, fetches: Sequence[str]) -> list[list[str]]:
        """What to run before the first step, phase by phase."""
        from mx_rec.graph.startup import needed_by, saved_model_start, table_initializers, variable_initializers

        loaded, view = self.side.loaded, self.side.view
        if loaded.tags is None:
            phases = [variable_initializers(loaded, view), table_initializers(loaded, view)]
        else:
            start = saved_model_start(loaded, view)
            self._startup_feeds.update(start.feeds)
            phases = [[start.restore] if start.restore else [], list(start.initialize)]
        if self._options.initializers:
            named = resolve_nodes(self.side, "--init", self._options.initializers)
            return [*phases, *([name] for name in named)]
        needed = needed_by(view, {name.partition(":")[0] for name in fetches})
        return [*phases, list(self._makers(needed))]

    def _makers(self, needed: Mapping[str, None]) -> Iterator[str]:
        from mx_rec.graph.startup import iterator_starts

        for start in iterator_starts(self.side.view, needed):
            if len(start.makers) > 1:
                others = ", ".join(f"'{name}'" for name in start.makers[1:])
                self.remarks.append(
                    f"{self.side}: iterator '{start.iterator}' is filled by '{start.makers[0]}', the first of its "
                    f"initializers; --init chooses another ({others})"
                )
            yield start.makers[0]

    def _check_fed(self, targets: Sequence[str]) -> None:
        from mx_rec.graph.startup import needed_by

        view = self.side.view
        for name in needed_by(view, {target.partition(":")[0] for target in targets}):
            if view.node(name).op in PLACEHOLDERS and name not in self._options.feeds and not self._is_given(name):
                raise click.UsageError(f"placeholder '{name}' of {self.side} needs a value: --feed {name}=FILE.npy")

    def _is_given(self, name: str) -> bool:
        return f"{name}:0" in self._startup_feeds

    def _imported(self) -> tf.Graph:
        import tensorflow as tf

        from mx_rec.graph.seeds import seed_random_ops

        graph_def = self.side.view.to_graph_def()
        seed_random_ops(graph_def, self._options.seed)
        graph = tf.Graph()
        try:
            with graph.as_default():
                tf.import_graph_def(graph_def, name="")
        except (ValueError, TypeError, tf.errors.OpError) as error:
            raise UnusableFile(f"{self.side} cannot be imported: {_reason(str(error))}") from error
        return graph

    def _export_ops(self) -> dict[str, Any]:
        """The export of every table, by the name of the table."""
        from mx_rec.graph.op_signatures import OP_TABLE
        from mx_rec.ops import table_export

        found: dict[str, Any] = {}
        for node in self.side.view.nodes_of(OP_TABLE):
            name = node.str_attr("table_name")
            if name not in found:
                found[name] = tuple(table_export(self._graph.get_tensor_by_name(f"{node.name}:0")))
        return found

    def _variable_reads(self) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        """(value, whether it is initialized) of each variable, by node, but of those that hold the path of an asset."""
        import tensorflow as tf

        raw = tf.raw_ops
        found = {}
        for node in self.side.view.nodes_of("VarHandleOp", *_REFERENCE_VARIABLES):
            if self._is_path(node.name):
                continue
            operation = self._graph.get_operation_by_name(node.name)
            handle, dtype = operation.outputs[0], operation.get_attr("dtype")
            if node.op in _REFERENCE_VARIABLES:
                found[node.name] = tf.identity(handle), raw.IsVariableInitialized(ref=handle)
            else:
                value = raw.ReadVariableOp(resource=handle, dtype=dtype)
                found[node.name] = value, raw.VarIsInitializedOp(resource=handle)
        return found

    def _is_path(self, variable: str) -> bool:
        """Whether a variable is given a text of the start: SavedModels have other paths, in other directories."""
        view = self.side.view
        readers = [view.node(edge.consumer) for edge in view.data_edges(variable)]
        return any(node.op == "AssignVariableOp" and self._is_given(node.inputs[1].node) for node in readers)

    def _element(self, name: str) -> Any:
        return self._graph.as_graph_element(name, allow_tensor=True, allow_operation=True)

    def _new_session(self) -> tf.compat.v1.Session:
        import tensorflow as tf

        threads = self._options.threads
        config = tf.compat.v1.ConfigProto(
            intra_op_parallelism_threads=threads,
            inter_op_parallelism_threads=threads,
            allow_soft_placement=True,
            device_count={"GPU": 0},
        )
        return tf.compat.v1.Session(graph=self._graph, config=config)

    def _run(
        self,
        fetches: Any,
        what: str,
        passed_on: tuple[type[Exception], ...] | type[Exception] = (),
        feeds: Mapping[str, Any] | None = None,
    ) -> Any:
        import tensorflow as tf

        options = tf.compat.v1.RunOptions(timeout_in_ms=self._options.timeout * 1000)
        with self._failing(what, passed_on):
            return self._session.run(fetches, {**self._feeds, **(feeds or {})}, options=options)

    @contextmanager
    def _failing(self, what: str, passed_on: tuple[type[Exception], ...] | type[Exception]) -> Iterator[None]:
        import tensorflow as tf

        try:
            yield
        except passed_on:
            raise
        except tf.errors.DeadlineExceededError as error:
            raise GraphFailed(f"{self.side}: {what} took more than {self._options.timeout} s (--timeout)") from error
        except tf.errors.OpError as error:
            node = _failed_node(error)
            place = f" at node '{node}'" if node else ""
            raise GraphFailed(f"{self.side}: {what} failed{place}: {_reason(error.message)}") from error


def _failed_node(error: tf.errors.OpError) -> str:
    """The node that failed, as far as TensorFlow says; that of a function too."""
    if error.op is not None:
        return str(error.op.name)
    match = _NODE.search(error.message)
    return match["name"] if match else ""


def _reason(message: str) -> str:
    """The part of an error's message that says what is wrong, in one line.

    TensorFlow writes where the node was made before it and which nodes were running after it.
    """
    text = message[message.rfind(_AFTER_TRACEBACK) :] if _AFTER_TRACEBACK in message else message
    lines = (_NOISE.sub("", line).strip() for line in text.splitlines())
    return " ".join(line for line in lines if line and not line.startswith(_HEADINGS))
