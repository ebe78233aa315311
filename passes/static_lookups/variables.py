"""Variables of a graph, and all that is done with one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from mx_rec.graph.attrs import DT_FLOAT
from mx_rec.graph.iterators import Obstacle
from mx_rec.graph.node import Node, TensorRef
from mx_rec.graph.view import GraphView
from mx_rec.passes.static_lookups.surroundings import SEGMENT_OPS
from mx_rec.passes.static_lookups.values import stripped, written_dims

RESOURCE_VARIABLE = "VarHandleOp"
REFERENCE_VARIABLES = ("VariableV2", "Variable")
ASSIGNS = frozenset({"Assign", "AssignVariableOp"})
RESTORES = frozenset({"RestoreV2", "Restore", "RestoreSlice"})
GATHERS = ("ResourceGather", "GatherV2", "Gather", "ResourceGatherNd", "GatherNd")
READS_ROWS = (*GATHERS, *SEGMENT_OPS)
_INITIALIZED = frozenset({"VarIsInitializedOp", "IsVariableInitialized"})
_SHAPES = frozenset({"VariableShape", "Shape"})
_SAVES = frozenset({"SaveV2"})
_NO_EFFECT = frozenset({"DisableCopyOnRead"})  # how a Saver reads
CONTROL_FLOW = frozenset({"Switch", "RefSwitch", "Enter", "RefEnter"})
_HANDS_ON = frozenset({"Identity", "Snapshot", "ReadVariableOp"})
MAX_DIM = 8192


@dataclass
class Uses:
    """What a graph does with a variable. Node names, each list in graph order.

    Attributes:
        gathers: read single rows, or sums of some.
        shapes: read nothing but its shape.
        initialized: ask whether it has a value.
        initial: the assignments of its initial value.
        restores: the assignments of a value from a checkpoint.
        saves: (SaveV2 node, index of the input).
        reads: hand its value on, to whatever is listed elsewhere or to nothing.
        writes: change it in another way.
        others: read all of it for another purpose.
    """

    gathers: list[str] = field(default_factory=list)
    shapes: list[str] = field(default_factory=list)
    initialized: list[str] = field(default_factory=list)
    initial: list[str] = field(default_factory=list)
    restores: list[str] = field(default_factory=list)
    saves: list[tuple[str, int]] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)

    def nodes(self) -> set[str]:
        """All of them but those that save and those that read all of it."""
        lists = (self.gathers, self.shapes, self.initialized, self.initial, self.restores, self.reads, self.writes)
        return {name for names in lists for name in names}


def variable_nodes(view: GraphView) -> list[Node]:
    """The nodes that stand for variables."""
    return view.nodes_of(RESOURCE_VARIABLE, *REFERENCE_VARIABLES)


def variable_behind(view: GraphView, ref: TensorRef) -> str | None:
    """The variable whose handle or whole value a tensor is, also inside a branch or a loop of TensorFlow 1."""
    node = view.node(ref.node)
    while (node.op in _HANDS_ON or node.op in CONTROL_FLOW) and node.inputs:
        node = view.node(node.inputs[0].node)
    return node.name if node.op == RESOURCE_VARIABLE or node.op in REFERENCE_VARIABLES else None


def uses_of(view: GraphView, variable: str) -> Uses:
    """All that is done with a variable."""
    found: Uses = view.cached(("uses_of", variable), lambda _: _uses_of(view, variable))
    return found


def _uses_of(view: GraphView, variable: str) -> Uses:
    uses = Uses()
    pending = [TensorRef(variable, 0)]
    while pending:
        source = pending.pop(0)
        is_value = source.node != variable
        for use in view.consumers(source):
            node = view.node(use.node)
            if node.op in _NO_EFFECT:
                uses.reads.append(node.name)
            elif node.op in _HANDS_ON:
                uses.reads.append(node.name)
                pending.append(TensorRef(node.name, 0))
            else:
                _sort(view, uses, node, use.index, is_value)
    return uses


def ancestors(view: GraphView, names: Iterable[str]) -> set[str]:
    """These nodes and all that they depend on."""
    found = set(names)
    stack = list(found)
    while stack:
        node = view.node(stack.pop())
        for source in (*(ref.node for ref in node.inputs), *node.controls):
            if source not in found:
                found.add(source)
                stack.append(source)
    return found


def reads_before(view: GraphView, ref: TensorRef) -> list[str]:
    """The nodes that hand a variable's value on to `ref`, the last first."""
    found: list[str] = []
    node = view.node(ref.node)
    while node.op in _HANDS_ON and node.inputs:
        found.append(node.name)
        node = view.node(node.inputs[0].node)
    return found


def in_control_flow(view: GraphView, ref: TensorRef) -> bool:
    """Whether a tensor that is a variable comes into a branch or a loop of TensorFlow 1."""
    node = view.node(ref.node)
    while node.op in _HANDS_ON and node.inputs:
        node = view.node(node.inputs[0].node)
    return node.op in CONTROL_FLOW


def _sort(view: GraphView, uses: Uses, node: Node, index: int, is_value: bool) -> None:
    if node.op in READS_ROWS and index == 0:
        uses.gathers.append(node.name)
    elif node.op in _SHAPES:
        uses.shapes.append(node.name)
    elif node.op in _SAVES and index > 2:
        uses.saves.append((node.name, index))
    elif is_value or calls_function(view, node):
        uses.others.append(node.name)
    elif node.op in _INITIALIZED:
        uses.initialized.append(node.name)
    elif node.op in ASSIGNS and index == 0:
        if view.node(stripped(view, node.inputs[1]).node).op in RESTORES:
            uses.restores.append(node.name)
        elif _depends_on_nothing_stored(view, node.inputs[1]):
            uses.initial.append(node.name)
        else:
            uses.writes.append(node.name)
    else:
        uses.writes.append(node.name)


def _depends_on_nothing_stored(view: GraphView, value: TensorRef) -> bool:
    """Whether a value comes from constants and random numbers alone: it is an initial value."""
    seen: set[str] = set()
    stack = [value.node]
    while stack:
        name = stack.pop()
        if name in seen:
            continue
        seen.add(name)
        node = view.node(name)
        if node.op in (RESOURCE_VARIABLE, *REFERENCE_VARIABLES, "IteratorGetNext", "Placeholder"):
            return False
        stack.extend(ref.node for ref in node.inputs)
    return True


def why_no_table(view: GraphView, variable: str) -> Obstacle | None:
    """Why the rows of a variable cannot be those of a table, as far as its shape and type say."""
    node = view.node(variable)
    dtype, dims = node.attr("dtype"), written_dims(node)
    if dtype is None or dtype.type != DT_FLOAT:
        return Obstacle(variable, "is not float32; tables hold float32")
    if dims is None or len(dims) != 2 or None in dims:
        shape = "unknown" if dims is None else list(dims)
        return Obstacle(variable, f"has shape {shape}; a table stands for a variable of known shape [rows, columns]")
    if dims[1] is None or not 1 <= dims[1] <= MAX_DIM:
        return Obstacle(variable, f"has {dims[1]} columns; a table has 1..{MAX_DIM}")
    if len(_namesakes(view, node)) > 1:
        return Obstacle(variable, f"shares its name {node.str_attr('shared_name')!r} with another node")
    return None


def _namesakes(view: GraphView, node: Node) -> list[str]:
    shared = node.str_attr("shared_name")
    if not shared:
        return [node.name]
    by_name: dict[str, list[str]] = view.cached("variables_by_shared_name", _by_shared_name)
    return by_name[shared]


def _by_shared_name(view: GraphView) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for node in variable_nodes(view):
        found.setdefault(node.str_attr("shared_name"), []).append(node.name)
    return found


def calls_function(view: GraphView, node: Node) -> bool:
    """Whether a node runs a function of the library."""
    schema = view.schema(node.op)
    return view.function(node.op) is not None or (schema is not None and bool(schema.function_attrs))
