"""A read view over a GraphDef and its function library."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from tensorflow.core.framework import graph_pb2

from mx_rec.errors import GraphRewriteError
from mx_rec.graph._messages import GraphParts, graph_rest
from mx_rec.graph.attrs import Shape
from mx_rec.graph.draft import Delta, Draft
from mx_rec.graph.edits import EditSet
from mx_rec.graph.node import Node, TensorRef, parse_ref
from mx_rec.graph.op_schema import NodeTypes, OpSchema, op_schema
from mx_rec.graph.shapes import ShapeRules

GraphDef = Any  # tensorflow.GraphDef; protobuf classes carry no static types
FunctionDef = Any  # tensorflow.FunctionDef

_MISSING = object()
CONTROL = -1  # output and input index of a control edge


class Edge(NamedTuple):
    """`consumer` reads output `output` as its input `index`; both are `CONTROL` for a control edge."""

    output: int
    consumer: str
    index: int  # type: ignore[assignment]


class Use(NamedTuple):
    """Data input `index` of `node`."""

    node: str
    index: int  # type: ignore[assignment]


class GraphView:
    """A GraphDef, read-only: nodes by name, edges both ways, dtypes, shapes where known, functions.

    The GraphDef must not change while the view lives; the view never writes to it. `edited` makes a new
    view that shares what did not change. Building a view, an edit and every question about the whole graph
    is linear in nodes plus edges.

    Args:
        graph_def: the graph.

    Raises:
        GraphRewriteError: an input that is not spelled as TensorFlow spells inputs.
    """

    def __init__(self, graph_def: GraphDef) -> None:
        self._graph_def = graph_def
        self._nodes, self.duplicate_names = _read_nodes(graph_def)
        self._functions: dict[str, FunctionDef] = {f.signature.name: f for f in graph_def.library.function}
        self._is_original = True
        self.delta = Delta()
        self._reset()

    def _reset(self) -> None:
        self._fan_out: dict[str, list[Edge]] | None = None
        self._by_op: dict[str, list[str]] | None = None
        self._types: dict[str, NodeTypes | None] = {}
        self._schemas: dict[str, OpSchema | None] = {}
        self._taken: set[str] = set()
        self._shape_rules: ShapeRules | None = None
        self._cache: dict[Any, Any] = {}

    # Nodes

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, name: object) -> bool:
        return name in self._nodes

    def __iter__(self) -> Iterator[Node]:
        """The nodes, in graph order."""
        return iter(self._nodes.values())

    def get(self, name: str) -> Node | None:
        """The node of this name, or `None`."""
        return self._nodes.get(name)

    def node(self, name: str) -> Node:
        """The node of this name.

        Raises:
            GraphRewriteError: there is none.
        """
        try:
            return self._nodes[name]
        except KeyError:
            raise GraphRewriteError(f"the graph has no node {name!r}") from None

    def nodes_of(self, *ops: str) -> list[Node]:
        """All nodes of these op types: by type in the order given, in graph order within a type."""
        if self._by_op is None:
            self._by_op = {}
            for node in self:
                self._by_op.setdefault(node.op, []).append(node.name)
        return [self._nodes[name] for op in ops for name in self._by_op.get(op, ())]

    def producer(self, node: Node, index: int) -> Node | None:
        """The node behind data input `index`, or `None` when `node` has fewer inputs."""
        return self._nodes.get(node.inputs[index].node) if index < len(node.inputs) else None

    # Edges

    def edges(self, name: str) -> list[Edge]:
        """Every use of a node's outputs, control edges included. Not to be changed by the caller."""
        if self._fan_out is None:
            self._fan_out = _fan_out(self._nodes.values())
        return self._fan_out.get(name, [])

    def consumers(self, ref: TensorRef) -> list[Use]:
        """The data inputs that read this tensor."""
        output = ref.index
        return [Use(edge.consumer, edge.index) for edge in self.edges(ref.node) if edge.output == output]

    def data_edges(self, name: str) -> list[Edge]:
        """The uses of a node's outputs as data."""
        return [edge for edge in self.edges(name) if edge.output != CONTROL]

    def control_consumers(self, name: str) -> list[str]:
        """The nodes that wait for this one."""
        return [edge.consumer for edge in self.edges(name) if edge.output == CONTROL]

    # Types and shapes

    def schema(self, op: str) -> OpSchema | None:
        """What an op type, or a function of the library used as one, takes and gives; `None` if unknown."""
        if op not in self._schemas:
            function = self._functions.get(op)
            self._schemas[op] = op_schema(op) if function is None else OpSchema(function.signature)
        return self._schemas[op]

    def types(self, name: str) -> NodeTypes | None:
        """Flat input and output dtypes of a node, or `None` when it, its op or an attribute is not known."""
        known = self._types.get(name, _MISSING)
        if known is not _MISSING:
            return known  # type: ignore[return-value]
        node = self._nodes.get(name)
        schema = None if node is None else self.schema(node.op)
        found = self._types[name] = None if node is None or schema is None else schema.types(node.attr)
        return found

    @property
    def known_types(self) -> Mapping[str, NodeTypes | None]:
        """What `types` has answered so far, by name."""
        return self._types

    def dtype(self, ref: TensorRef) -> int | None:
        """The `DataType` of a tensor, or `None` when unknown or out of range."""
        types = self.types(ref.node)
        if types is None or ref.index >= len(types.outputs):
            return None
        return types.outputs[ref.index]

    def output_arg(self, ref: TensorRef) -> tuple[str, int]:
        """The (output argument name, index within it) of a tensor: the spelling used in function bodies.

        Raises:
            GraphRewriteError: the op is unknown or has no such output.
        """
        node = self.node(ref.node)
        types, schema = self.types(ref.node), self.schema(node.op)
        if types is None or schema is None:
            raise GraphRewriteError(f"node {node.name!r}: the outputs of op {node.op!r} are not known")
        index = ref.index
        if len(schema.outputs) == 1 and index < len(types.outputs):
            return schema.outputs[0].name, index
        for arg, count in zip(schema.outputs, types.output_counts):
            if index < count:
                return arg.name, index
            index -= count
        raise GraphRewriteError(f"node {node.name!r} has {len(types.outputs)} outputs, not {ref.index + 1}")

    def shape(self, ref: TensorRef) -> Shape | None:
        """The static shape of a tensor, if known: from attributes, or by rule."""
        if self._shape_rules is None:
            self._shape_rules = ShapeRules(self.node)
        return self._shape_rules.shape(ref)

    # Functions

    @property
    def functions(self) -> Iterable[FunctionDef]:
        """The functions of the library, in order. Not to be written to."""
        return self._functions.values()

    def function(self, name: str) -> FunctionDef | None:
        """The function of the library with this name. Not to be written to."""
        return self._functions.get(name)

    @property
    def functions_with_gradient(self) -> frozenset[str]:
        """The functions of the library for which it names another function as the gradient."""
        return frozenset(entry.function_name for entry in self._graph_def.library.gradient)

    @property
    def versions(self) -> Any:
        """The `VersionDef` of the graph."""
        return self._graph_def.versions

    # Names and derived facts

    def unique_name(self, hint: str) -> str:
        """`hint`, or `hint_1`, ...: free in this graph, not given out before by this view.

        TensorFlow tells names apart without regard to case, so this does too.
        """
        if not self._taken:
            self._taken = {name.lower() for name in self._nodes}
            self._taken.update(name.lower() for name in self._functions)
        name, suffix = hint, 0
        while name.lower() in self._taken:
            suffix += 1
            name = f"{hint}_{suffix}"
        self._taken.add(name.lower())
        return name

    def cached(self, key: Any, compute: Callable[[GraphView], Any]) -> Any:
        """`compute(self)`, computed once per key. The result must not be changed.

        It is kept over edits that touch private attributes ("_...") only, so it must not depend on those that
        the passes set.
        """
        if key not in self._cache:
            self._cache[key] = compute(self)
        return self._cache[key]

    # Edits

    def edited(self, edits: EditSet) -> GraphView:
        """The view after these edits; its `delta` says what they touched. This view stays as it is.

        Raises:
            GraphRewriteError: an edit names a node that is not there, or adds one that is.
        """
        draft = Draft(self._nodes, self._functions)
        for edit in edits:
            draft.apply(edit)
        view = GraphView.__new__(GraphView)
        view._graph_def = self._graph_def
        view._nodes, view._functions, view.delta = draft.finish()
        view.duplicate_names = self.duplicate_names
        view._is_original = self._is_original and not edits
        view._reset()
        view._inherit(self)
        return view

    def _inherit(self, before: GraphView) -> None:
        """Take over what the edits did not touch."""
        delta = self.delta
        if not delta.functions:
            self._schemas = before._schemas
        self._types = dict(before._types)
        for name in delta.touched:
            self._types.pop(name, None)
        if before._by_op is not None:
            self._by_op = _edited_by_op(before, self)
        if before._fan_out is not None:
            self._fan_out = _edited_fan_out(before, self) if delta.rewired else before._fan_out
        if delta.is_private:
            self._shape_rules, self._cache = before._shape_rules, before._cache

    def release(self) -> None:
        """Forget what was worked out about this view, and with it the references of that back to the view.

        For a view that is not used any more: it is then freed at once, not by the next run of the collector.
        """
        self._shape_rules = None
        self._cache.clear()

    def closure(self, names: Iterable[str]) -> GraphDef:
        """A new GraphDef of these nodes and all that they need, in graph order, with the function library.

        No node of it is colocated with one that is not in it.
        """
        needed: set[str] = set()
        stack = list(names)
        while stack:
            name = stack.pop()
            if name not in needed:
                needed.add(name)
                node = self.node(name)
                stack.extend([*(ref.node for ref in node.inputs), *node.controls])
        result = graph_rest(self._graph_def)
        result.library.function.extend(self._functions.values())
        kept = [node for node in self if node.name in needed]
        result.node.extend([node.proto for node in kept])
        for node, target in zip(kept, result.node):
            if node.is_edited:
                node.write(target)
            places = target.attr["_class"].list.s if "_class" in target.attr else ()
            if any(place.decode().partition("@")[2] not in needed for place in places):
                del target.attr["_class"]
        return result

    def to_graph_def(self) -> GraphDef:
        """A new GraphDef of this view. The graph that the view was made from is copied once."""
        if self._is_original:
            result = graph_pb2.GraphDef()
            result.CopyFrom(self._graph_def)
            return result
        result = graph_rest(self._graph_def)
        result.library.function.extend(self._functions.values())
        result.node.extend([node.proto for node in self])
        for node, target in zip(self, result.node):
            if node.is_edited:
                node.write(target)
        return result

    def parts(self) -> GraphParts:
        """The graph of this view in parts, which it shares with the graph that the view was made from."""
        nodes = [node.written() for node in self]
        return GraphParts(nodes, list(self._functions.values()), graph_rest(self._graph_def))


def _read_nodes(graph_def: GraphDef) -> tuple[dict[str, Node], tuple[str, ...]]:
    nodes: dict[str, Node] = {}
    duplicates: list[str] = []
    refs: dict[str, TensorRef] = {}
    for proto in graph_def.node:
        name = proto.name
        data: list[TensorRef] = []
        controls: list[str] = []
        for text in proto.input:
            ref = refs.get(text)
            if ref is None:
                if text[:1] == "^":
                    controls.append(text[1:])
                    continue
                ref = refs[text] = _parse_input(name, text) if ":" in text else TensorRef(text, 0)
            data.append(ref)
        if name in nodes:
            duplicates.append(name)
        nodes[name] = Node(name, proto.op, tuple(data), tuple(controls), proto)
    return nodes, tuple(duplicates)


def _parse_input(name: str, text: str) -> TensorRef:
    try:
        return parse_ref(text)
    except ValueError as error:
        raise GraphRewriteError(f"node {name!r}: {text!r} is not an input; expected name or name:index") from error


def _fan_out(nodes: Iterable[Node]) -> dict[str, list[Edge]]:
    edges: dict[str, list[Edge]] = {}
    for node in nodes:
        name = node.name
        for index, (source, output) in enumerate(node.inputs):
            edges.setdefault(source, []).append(Edge(output, name, index))
        for source in node.controls:
            edges.setdefault(source, []).append(Edge(CONTROL, name, CONTROL))
    return edges


def _edges_of(node: Node) -> Iterator[tuple[str, Edge]]:
    for index, (source, output) in enumerate(node.inputs):
        yield source, Edge(output, node.name, index)
    for source in node.controls:
        yield source, Edge(CONTROL, node.name, CONTROL)


def _edited_by_op(before: GraphView, after: GraphView) -> dict[str, list[str]]:
    """Names by op of `after`, sharing the lists that did not change."""
    result = dict(before._by_op or {})
    delta = after.delta
    removed = {*delta.removed, *delta.replaced}
    for op in {before.node(name).op for name in removed}:
        result[op] = [name for name in result[op] if name not in removed]
    owned: set[str] = set()
    for name in (*delta.added, *delta.replaced):
        op = after.node(name).op
        if op not in owned:
            owned.add(op)
            result[op] = list(result.get(op, ()))
        result[op].append(name)
    return result


def _edited_fan_out(before: GraphView, after: GraphView) -> dict[str, list[Edge]]:
    """The fan-out of `after`, sharing the lists of the producers whose consumers did not change."""
    rewired = dict.fromkeys(after.delta.rewired)
    old_edges = before._fan_out or {}
    result = dict(old_edges)
    stale = {source for name in rewired if (node := before.get(name)) for source, _ in _edges_of(node)}
    for source in stale:
        result[source] = [edge for edge in old_edges[source] if edge.consumer not in rewired]
    owned = set(stale)
    for name in rewired:
        node = after.get(name)
        if node is None:
            continue
        for source, edge in _edges_of(node):
            if source not in owned:
                owned.add(source)
                result[source] = list(result.get(source, ()))
            result[source].append(edge)
    return result
