"""What has to run before the first step of a graph: found in collections of the file, and in the graph itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError
from tensorflow.core.framework import variable_pb2

from mx_rec.graph.files import LoadedGraph
from mx_rec.graph.iterators import GET_NEXT, iterator_of
from mx_rec.graph.op_signatures import OP_TABLE_CLEAR, OP_TABLE_IMPORT
from mx_rec.graph.view import GraphView

_VARIABLE_COLLECTIONS = ("variables", "local_variables", "trainable_variables", "model_variables", "metric_variables")
_TABLE_COLLECTION = "table_initializer"
_VARIABLE_OPS = ("VarHandleOp", "VariableV2", "Variable")
_ASSIGN_OPS = frozenset({"Assign", "AssignVariableOp"})
_TABLE_INITIALIZER_OPS = (
    "InitializeTable",
    "InitializeTableV2",
    "InitializeTableFromTextFile",
    "InitializeTableFromTextFileV2",
    "InitializeTableFromDataset",
)


@dataclass(frozen=True)
class IteratorStart:
    """An iterator that must be filled before it is drawn from.

    Attributes:
        iterator: its node.
        makers: the MakeIterator nodes that fill it, in graph order; running one is enough.
    """

    iterator: str
    makers: tuple[str, ...]


def variable_initializers(loaded: LoadedGraph, view: GraphView) -> list[str]:
    """The nodes that give the variables their first values.

    They are those that the variables of a MetaGraphDef name; for other variables the assignment that TensorFlow
    names after them, `<variable>/Assign`; and what fills the tables that have the place of variables.
    """
    names = dict.fromkeys(name for name in _named_initializers(loaded) if name in view)
    for variable in view.nodes_of(*_VARIABLE_OPS):
        edges = [edge.consumer for edge in view.data_edges(variable.name) if edge.index == 0]
        assigns = [name for name in edges if view.node(name).op in _ASSIGN_OPS]
        if not any(name in names for name in assigns):
            names.update(dict.fromkeys(name for name in assigns if name == f"{variable.name}/Assign"))
    names.update(dict.fromkeys(node.name for node in view.nodes_of(OP_TABLE_IMPORT, OP_TABLE_CLEAR)))
    return list(names)


def table_initializers(loaded: LoadedGraph, view: GraphView) -> list[str]:
    """The nodes that fill lookup tables of TensorFlow."""
    named = (name for name in loaded.collection(_TABLE_COLLECTION) if name in view)
    return list(dict.fromkeys([*named, *(node.name for node in view.nodes_of(*_TABLE_INITIALIZER_OPS))]))


def iterator_starts(view: GraphView, needed: Iterable[str]) -> list[IteratorStart]:
    """The iterators that these nodes draw from and that an op of the graph fills."""
    starts: dict[str, IteratorStart] = {}
    for name in needed:
        if view.node(name).op == GET_NEXT:
            info = iterator_of(view, name)
            if info is not None and info.makers:
                starts[info.node] = IteratorStart(info.node, info.makers)
    return list(starts.values())


def needed_by(view: GraphView, roots: Iterable[str]) -> dict[str, None]:
    """The nodes that run when `roots` are fetched, themselves included."""
    found = dict.fromkeys(roots)
    stack = list(found)
    while stack:
        node = view.node(stack.pop())
        for source in (*(ref.node for ref in node.inputs), *node.controls):
            if source not in found:
                found[source] = None
                stack.append(source)
    return found


def _named_initializers(loaded: LoadedGraph) -> Iterable[str]:
    for collection in _VARIABLE_COLLECTIONS:
        for data in loaded.collection_bytes(collection):
            variable: Any = variable_pb2.VariableDef()
            try:
                variable.ParseFromString(data)
            except DecodeError:
                continue
            yield variable.initializer_name
