"""What may run ahead of the step: the nodes between a batch and the keys, judged one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from mx_rec.graph.attrs import DT_RESOURCE, is_ref
from mx_rec.graph.conditionals import Branches
from mx_rec.graph.iterators import GET_NEXT, Obstacle
from mx_rec.graph.node import Node, TensorRef
from mx_rec.graph.resources import IMMUTABLE_TABLES, called_functions, resources_read, why_it_may_change
from mx_rec.graph.view import GraphView

_PLACEHOLDERS = frozenset({"Placeholder", "PlaceholderV2", "PlaceholderWithDefault", "_Arg"})
_CONDITIONAL_V1 = frozenset({"Switch", "Merge"})
_CONTROL_FLOW_V1 = frozenset(
    prefix + op
    for prefix in ("", "Ref")
    for op in ("Switch", "Merge", "Enter", "Exit", "NextIteration", "LoopCond", "ControlTrigger")
)
# Ops that have no state but what the functions they call have, although TensorFlow calls them stateful.
_CALLS = frozenset({"Case", "If", "StatefulPartitionedCall", "While"})
_VARIABLE_READS = frozenset({"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarHandleOp"})
_RANDOM_OPS = frozenset({"Multinomial", "ParameterizedTruncatedNormal", "StatefulUniformInt"})
_MAX_GET_NEXTS = 2  # two are enough to refuse, and to say which


class Origin(NamedTuple):
    """Where a node's values come from.

    Attributes:
        get_nexts: the batches it depends on; at most two are kept.
        obstacle: the first thing upstream, or the node itself, that may not run ahead.
    """

    get_nexts: tuple[str, ...]
    obstacle: Obstacle | None


class SliceAnalysis:
    """Judges nodes of one view; every node is visited once, whatever the number of lookups."""

    def __init__(self, view: GraphView) -> None:
        self._view = view
        self._origins: dict[str, Origin] = {}
        self._pure_functions: dict[str, str | None] = {}
        self._plain_ops: dict[str, bool] = {}
        self._branches = Branches(view)

    def origin(self, name: str) -> Origin:
        """Where the values of the node `name` come from."""
        self._visit(name)
        origin = self._origins[name]
        switch = self._branches.switch_of(name)
        if origin.obstacle is None and switch is not None:
            reason = (
                f"only one branch of a conditional of TensorFlow 1 runs {name!r}; lookups in branches are not moved"
            )
            return Origin(origin.get_nexts, Obstacle(switch, reason))
        return origin

    def is_in_branch(self, tensor: TensorRef) -> bool:
        """Whether a tensor of a visited node has a value in one branch of a TensorFlow 1 conditional alone."""
        return bool(self._branches.of(tensor))

    def nodes(self, roots: Iterable[str]) -> list[Node]:
        """The nodes that `roots` need, themselves included, inputs first; without get_nexts and captured tables."""
        order: dict[str, Node] = {}
        for root in roots:
            for name in self._inputs_first(root, order):
                node = self._view.node(name)
                if not _is_leaf(node):
                    order[name] = node
        return list(order.values())

    def _inputs_first(self, root: str, done: Any) -> Iterator[str]:
        opened: set[str] = set()
        stack = [root]
        while stack:
            name = stack[-1]
            missing = [] if name in opened else [s for s in self._sources(name) if s not in done and s not in opened]
            opened.add(name)
            if missing:
                stack.extend(reversed(missing))
                continue
            stack.pop()
            if name not in done:
                yield name

    def _sources(self, name: str) -> list[str]:
        node = self._view.node(name)
        if _is_leaf(node):
            return []
        return [*dict.fromkeys([ref.node for ref in node.inputs] + list(node.controls))]

    def _visit(self, root: str) -> None:
        open_nodes: set[str] = set()
        stack = [root]
        while stack:
            name = stack[-1]
            if name in self._origins:
                stack.pop()
                continue
            missing = [] if name in open_nodes else [s for s in self._sources(name) if s not in self._origins]
            open_nodes.add(name)
            in_loop = [source for source in missing if source in open_nodes]
            if in_loop:
                self._origins[name] = Origin((), Obstacle(name, "is in a loop; lookups in loops are not moved"))
                stack.pop()
                continue
            if missing:
                stack.extend(reversed(missing))
                continue
            self._origins[name] = self._judge(self._view.node(name))
            stack.pop()

    def _judge(self, node: Node) -> Origin:
        if node.op == GET_NEXT:
            return Origin((node.name,), None)
        if _is_leaf(node):
            return Origin((), None)
        obstacle = self._own_obstacle(node)
        get_nexts: dict[str, None] = {}
        for source in self._sources(node.name):
            origin = self._origins.get(source, Origin((), None))
            obstacle = obstacle or origin.obstacle
            get_nexts.update(dict.fromkeys(origin.get_nexts))
        unclosed = self._branches.visit(node)
        return Origin(tuple(get_nexts)[:_MAX_GET_NEXTS], obstacle or unclosed)

    def _own_obstacle(self, node: Node) -> Obstacle | None:
        if self._is_plain(node):
            return None
        reason = self._op_reason(node) or self._resource_reason(node) or self._function_reason(node)
        return None if reason is None else Obstacle(node.name, reason)

    def _is_plain(self, node: Node) -> bool:
        """A quick look that settles nearly every node: a known op without state, resources or functions."""
        op = node.op
        if op not in self._plain_ops:
            schema = self._view.schema(op)
            self._plain_ops[op] = (
                op not in _PLACEHOLDERS
                and op not in _CONTROL_FLOW_V1
                and schema is not None
                and not (schema.has_effects or schema.function_attrs or self._view.function(op))
                and not any(arg.is_ref for arg in schema.outputs)
            )
        types = self._view.types(node.name)
        return self._plain_ops[op] and types is not None and DT_RESOURCE not in types.inputs

    def _op_reason(self, node: Node) -> str | None:
        op = node.op
        if op in _PLACEHOLDERS:
            return "is fed at the step, so its value is not known ahead of it"
        if op in _CONTROL_FLOW_V1 - _CONDITIONAL_V1:
            return f"op {op!r} is a loop of TensorFlow 1, which a dataset function cannot hold"
        if op in _VARIABLE_READS:
            return f"reads variable {_variable_name(node)!r}, whose value ahead of the step may be another"
        schema, types = self._view.schema(op), self._view.types(node.name)
        if schema is None or types is None:
            return f"op {op!r} is not known to this TensorFlow; load the library that defines it"
        if any(is_ref(dtype) for dtype in types.outputs):
            return f"op {op!r} gives a reference to a variable, whose value ahead of the step may be another"
        if not schema.has_effects or op in _CALLS:
            return None
        if "Random" in op or op in _RANDOM_OPS:
            return f"op {op!r} draws random numbers, which would come in another order ahead of the step"
        return f"op {op!r} has state or side effects"

    def _resource_reason(self, node: Node) -> str | None:
        for source in resources_read(self._view, node):
            if source.op not in IMMUTABLE_TABLES:
                return why_it_may_change(source)
        return None

    def _function_reason(self, node: Node) -> str | None:
        schema = self._view.schema(node.op)
        names = [node.op] if self._view.function(node.op) is not None else []
        if schema is not None and schema.function_attrs:
            names.extend(called_functions(node.proto, schema))
        for name in names:
            what = self._function_impurity(name)
            if what:
                return f"calls function {name!r}, which {what}"
        return None

    def _function_impurity(self, name: str) -> str | None:
        """What keeps a function from running ahead, or `None`."""
        if name in self._pure_functions:
            return self._pure_functions[name]
        self._pure_functions[name] = None  # a recursive call adds nothing of its own
        self._pure_functions[name] = self._body_impurity(name)
        return self._pure_functions[name]

    def _body_impurity(self, name: str) -> str | None:
        function = self._view.function(name)
        if function is None:
            return "the graph does not have"
        for body_node in function.node_def:
            schema = self._view.schema(body_node.op)
            if schema is None:
                return f"has op {body_node.op!r}, which is not known to this TensorFlow"
            if schema.has_effects and body_node.op not in _CALLS:
                return f"has op {body_node.op!r} with state or side effects"
            for inner in called_functions(body_node, schema):
                what = self._function_impurity(inner)
                if what:
                    return what
        return None


def slice_analysis(view: GraphView) -> SliceAnalysis:
    """The analysis of this view; shared by all who ask."""
    analysis: SliceAnalysis = view.cached("slice_analysis", SliceAnalysis)
    return analysis


def captured_tables(view: GraphView, nodes: Iterable[Node]) -> list[TensorRef]:
    """The handles of tables that slice nodes read, each once, in order."""
    handles = (ref for node in nodes for ref in node.inputs if view.node(ref.node).op in IMMUTABLE_TABLES)
    return list(dict.fromkeys(handles))


def _is_leaf(node: Node) -> bool:
    return node.op == GET_NEXT or node.op in IMMUTABLE_TABLES


def _variable_name(node: Node) -> str:
    return node.inputs[0].node if node.inputs else node.name
