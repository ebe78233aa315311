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
_MAIN_OPS = ("saved_model_main_op", "legacy_init_op")
_INIT_SIGNATURE = "__saved_model_init_op"
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


@dataclass(frozen=True)
class SavedModelStart:
    """What brings a MetaGraph of a SavedModel to its state, as TensorFlow's loader does.

    Attributes:
        restore: the op that reads the variables, "" for none.
        initialize: the ops that fill lookup tables and the like after that.
        feeds: texts by tensor: the prefix of the variables, paths of assets.
    """

    restore: str
    initialize: tuple[str, ...]
    feeds: dict[str, str]


def saved_model_start(loaded: LoadedGraph, view: GraphView) -> SavedModelStart:
    """How a MetaGraph that was read from a SavedModel begins."""
    message, saver = loaded.message, loaded.message.saver_def
    restore = saver.restore_op_name if saver.restore_op_name.partition(":")[0] in view else ""
    feeds = {saver.filename_tensor_name: str(loaded.path / "variables" / "variables")} if restore else {}
    for asset in message.asset_file_def:
        feeds[asset.tensor_info.name] = str(loaded.path / "assets" / asset.filename)
    named = next((names for name in _MAIN_OPS if (names := loaded.collection(name))), ())
    if not named and _INIT_SIGNATURE in message.signature_def:
        named = tuple(info.name for info in message.signature_def[_INIT_SIGNATURE].outputs.values())
    nodes = (name.partition(":")[0] for name in named)
    return SavedModelStart(restore.partition(":")[0], tuple(name for name in nodes if name in view), feeds)


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
