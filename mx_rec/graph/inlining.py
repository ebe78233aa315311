"""Puts the body of a library function in the place of a node that calls it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from mx_rec.graph.attrs import DT_INVALID, AttrValue, attr_strings, attr_type, attr_types, base_dtype
from mx_rec.graph.conditionals import Branches
from mx_rec.graph.devices import merged_device
from mx_rec.graph.edits import EditSet
from mx_rec.graph.iterators import Obstacle
from mx_rec.graph.node import Node, NodeDef, TensorRef
from mx_rec.graph.op_schema import NodeTypes, OpSchema
from mx_rec.graph.view import FunctionDef, GraphView

CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_CONTROL_FLOW_V1 = frozenset(
    prefix + op
    for prefix in ("", "Ref")
    for op in ("Switch", "Merge", "Enter", "Exit", "NextIteration", "LoopCond", "ControlTrigger")
)
_LOOP = frozenset({"Enter", "RefEnter", "NextIteration", "RefNextIteration", "LoopCond"})
_LEFT_OUT = frozenset({"_output_shapes", "_class"})  # of the body: shapes may be closer known here
_LOCATION = "loc:@"
_COMPILED = ("_XlaMustCompile", "_XlaCompile")


class _BodyNode(NamedTuple):
    """A node of a function with the attributes that one call gives it."""

    name: str
    proto: NodeDef
    attrs: Mapping[str, AttrValue]
    schema: OpSchema
    types: NodeTypes
    device: str


class _Refused(Exception):
    """Why a call stays: carries an `Obstacle`."""

    def __init__(self, node: str, reason: str) -> None:
        super().__init__(reason)
        self.obstacle = Obstacle(node, reason)


class Inlined(NamedTuple):
    """What inlining a call has done.

    Attributes:
        added: how many nodes there are now in the place of the call.
        calls: those of them that are calls, by name, with the function that each calls.
    """

    added: int
    calls: Mapping[str, str]


def called_function(call: Node) -> str:
    """The function that a PartitionedCall or StatefulPartitionedCall runs."""
    return call.func_attr("f")


def inline_call(view: GraphView, call: Node, edits: EditSet) -> Inlined | Obstacle:
    """Writes the edits that replace a call by the nodes of the function.

    A node `body` becomes `call/body`. Arguments become what the call reads, and a node of the call's own name hands
    the results on: Identity, IdentityN, or NoOp if there are none. Nodes that read an argument, have no input or are
    calls wait for what the call waited for, and the node of the call's name waits for whatever the function does
    beside its results. What a node's device leaves open is as in the call's.

    Args:
        view: the graph, in which the call is in no branch or loop of TensorFlow 1 (see `ControlFlowV1`).
        call: a node of one of `CALLS`.
        edits: to add to; nothing is added if the call stays.

    Returns:
        What was done, or why the call stays, with the node.
    """
    try:
        return _Inlining(view, call).write(edits)
    except _Refused as refused:
        return refused.obstacle


class ControlFlowV1:
    """Finds nodes that branches or loops of TensorFlow 1 run; every node is visited once, whatever the questions."""

    def __init__(self, view: GraphView) -> None:
        self._view = view
        self._branches = Branches(view)
        self._done: set[str] = set()

    def around(self, name: str) -> Obstacle | None:
        """Why a node may run never, or more than once, in a step; `None` if it runs once when it is needed."""
        view = self._view
        stack: list[tuple[str, bool]] = [(name, False)]
        while stack:
            current, is_open = stack.pop()
            if current in self._done:
                continue
            node = view.node(current)
            if node.op in _LOOP:
                return Obstacle(current, f"is of a loop of TensorFlow 1, on which {name!r} depends")
            if is_open:
                obstacle = self._branches.visit(node)
                if obstacle is not None:
                    return obstacle
                self._done.add(current)
                continue
            stack.append((current, True))
            stack.extend((source, False) for source in (*(ref.node for ref in node.inputs), *node.controls))
        switch = self._branches.switch_of(name)
        reason = f"decides whether {name!r} runs: a conditional of TensorFlow 1"
        return None if switch is None else Obstacle(switch, reason)


class _Inlining:
    """One call."""

    def __init__(self, view: GraphView, call: Node) -> None:
        self._view = view
        self._call = call
        value = call.attr("f")
        self._function = self._checked(value)
        self._given: Mapping[str, AttrValue] = {} if value is None else dict(value.func.attr)
        self._check_settings()
        self._results = self._check_signature()
        self._nodes = [self._body_node(proto) for proto in self._function.node_def]
        self._names = {node.name: view.unique_name(f"{call.name}/{node.name}") for node in self._nodes}
        self._arguments = {arg.name: ref for arg, ref in zip(self._function.signature.input_arg, call.inputs)}
        self._first_output = {node.name: _first_outputs(node) for node in self._nodes}
        self._leaders: dict[str, str] = {}

    def write(self, edits: EditSet) -> Inlined:
        # Everything that can be refused comes before the first edit.
        inputs = [self._inputs(node) for node in self._nodes]
        results = [self._tensor(self._function.ret.get(name, "")) for name in self._results]
        kept = [self._names[name] for name in self._kept(results)]
        before = self._before(edits)
        for node, (tensors, controls, is_first) in zip(self._nodes, inputs):
            attrs = dict(node.attrs)
            places = self._places(node)
            if places:
                attrs["_class"] = attr_strings(places)
            waits = [*controls, *(before if is_first else ())]
            edits.add_node(
                self._names[node.name],
                node.proto.op,
                tensors,
                attrs,
                controls=list(dict.fromkeys(waits)),
                device=node.device,
            )
        self._hand_on(edits, results, [*kept, *before])
        calls = {
            self._names[node.name]: node.attrs["f"].func.name
            for node in self._nodes
            if node.proto.op in CALLS and "f" in node.attrs
        }
        return Inlined(len(self._nodes) + 1, calls)

    # What stands in the way

    def _refuse(self, reason: str, node: str = "") -> _Refused:
        return _Refused(node or self._call.name, reason)

    def _checked(self, value: AttrValue | None) -> FunctionDef:
        name = "" if value is None else value.func.name
        function = self._view.function(name)
        if function is None:
            raise self._refuse(f"calls function {name!r}, which the library does not have")
        return function

    def _check_settings(self) -> None:
        call, function = self._call, self._function
        name = function.signature.name
        if call.str_attr("executor_type"):
            raise self._refuse(f"runs function {name!r} by an executor of its own, {call.str_attr('executor_type')!r}")
        for attr in _COMPILED:
            value = call.attr(attr)
            if (value is not None and value.b) or (attr in function.attr and function.attr[attr].b):
                raise self._refuse(f"calls function {name!r}, which XLA compiles as a whole ({attr})")
        value = call.attr("_noinline")
        if (value is not None and value.b) or ("_noinline" in function.attr and function.attr["_noinline"].b):
            raise self._refuse(f"calls function {name!r}, which is not to be inlined (_noinline)")
        if "api_implements" in function.attr:
            raise self._refuse(f"calls function {name!r}, for which TensorFlow may choose another (api_implements)")
        if name in self._view.functions_with_gradient:
            raise self._refuse(f"calls function {name!r}, which has a gradient of its own")

    def _check_signature(self) -> list[str]:
        """The names of the results."""
        call, signature = self._call, self._function.signature
        types = self._view.types(call.name)
        if types is None:
            raise self._refuse("has no sound dtypes")
        for arg in (*signature.input_arg, *signature.output_arg):
            if arg.number_attr or arg.type_list_attr or arg.is_ref:
                raise self._refuse(f"calls function {signature.name!r}, whose argument {arg.name!r} is no plain tensor")
        for what, args, dtypes in (
            ("arguments", signature.input_arg, types.inputs),
            ("results", signature.output_arg, types.outputs),
        ):
            wanted = [self._dtype(arg) for arg in args]
            if wanted != [base_dtype(dtype) for dtype in dtypes]:
                raise self._refuse(f"does not fit the {what} of function {signature.name!r}")
        return [arg.name for arg in signature.output_arg]

    def _dtype(self, arg: Any) -> int:
        if not arg.type_attr:
            return int(arg.type)
        value = self._given.get(arg.type_attr)
        return DT_INVALID if value is None else int(value.type)

    def _body_node(self, proto: NodeDef) -> _BodyNode:
        view, place = self._view, f"{self._function.signature.name}/{proto.name}"
        op = proto.op
        if view.function(op) is not None:
            raise self._refuse(f"calls function {op!r} by its name, as TensorFlow 1 does", place)
        schema = view.schema(op)
        if schema is None or op[:1] == "_":
            raise self._refuse(f"op {op!r} is not known to this TensorFlow; load the library that defines it", place)
        if op in _CONTROL_FLOW_V1:
            raise self._refuse(f"op {op!r} is of a conditional or a loop of TensorFlow 1", place)
        attrs = {name: self._resolved(value, place) for name, value in proto.attr.items() if name not in _LEFT_OUT}
        types = schema.types(attrs.get)
        if types is None:
            raise self._refuse(f"op {op!r} lacks attributes that say its dtypes", place)
        device = merged_device(proto.device, self._call.device)
        if device is None:
            raise self._refuse(f"device {proto.device or self._call.device!r} is none that TensorFlow can read", place)
        return _BodyNode(proto.name, proto, attrs, schema, types, device)

    # Attributes that a call gives to its function

    def _resolved(self, value: AttrValue, place: str) -> AttrValue:
        if value.placeholder:
            given = self._given.get(value.placeholder)
            if given is None or given.placeholder:
                raise self._refuse(f"needs attribute {value.placeholder!r}, which the call does not give", place)
            return given
        functions = [value.func] if value.HasField("func") else list(value.list.func)
        if not any(inner.placeholder for function in functions for inner in function.attr.values()):
            return value
        result = type(value)()
        result.CopyFrom(value)
        for function in [result.func] if result.HasField("func") else result.list.func:
            for name, inner in list(function.attr.items()):
                function.attr[name].CopyFrom(self._resolved(inner, place))
        return result

    # Edges

    def _inputs(self, node: _BodyNode) -> tuple[list[TensorRef], list[str], bool]:
        """(data inputs, control inputs, whether the node is among the first that run)."""
        tensors: list[TensorRef] = []
        controls: list[str] = []
        is_first = not node.proto.input or bool(node.schema.function_attrs)
        for text in node.proto.input:
            if text[:1] == "^":
                name = text[1:]
                is_first = is_first or name in self._arguments
                controls.append(self._node_of(name))
                continue
            is_first = is_first or text.partition(":")[0] in self._arguments
            tensors.append(self._tensor(text))
        if len(tensors) != len(node.types.inputs):
            place = f"{self._function.signature.name}/{node.name}"
            raise self._refuse(f"has {len(tensors)} inputs; op {node.proto.op!r} takes {len(node.types.inputs)}", place)
        return tensors, controls, is_first

    def _node_of(self, name: str) -> str:
        if name in self._arguments:
            return self._arguments[name].node
        if name not in self._names:
            raise self._refuse(f"calls function {self._function.signature.name!r}, which has no node {name!r}")
        return self._names[name]

    def _tensor(self, text: str) -> TensorRef:
        name, _, rest = text.partition(":")
        if name in self._arguments and rest in ("", "0"):
            return self._arguments[name]
        arg, _, index = rest.partition(":")
        outputs = self._first_output.get(name)
        if outputs is None or arg not in outputs or not (index or "0").isdecimal():
            raise self._refuse(f"calls function {self._function.signature.name!r}, which has no tensor {text!r}")
        first, count = outputs[arg]
        if int(index or 0) >= count:
            raise self._refuse(f"calls function {self._function.signature.name!r}, which has no tensor {text!r}")
        return TensorRef(self._names[name], first + int(index or 0))

    def _before(self, edits: EditSet) -> list[str]:
        """What the first nodes wait for."""
        controls = self._call.controls
        if len(controls) < 2:
            return list(controls)
        name = self._view.unique_name(f"{self._call.name}/before")
        return [edits.add_node(name, "NoOp", (), controls=controls, device=self._call.device).node]

    def _kept(self, results: Sequence[TensorRef]) -> list[str]:
        """The nodes of the body that run whenever the call does, although its results may not need them."""
        function = self._function
        effects: dict[str, None] = {}
        for name in function.signature.control_output:
            node = function.control_ret.get(name, "")
            if node not in self._names:
                raise self._refuse(f"calls function {function.signature.name!r}, which has no node {node!r}")
            effects[node] = None
        back = {new: old for old, new in self._names.items()}
        needed = self._ancestors([*effects, *(back[ref.node] for ref in results if ref.node in back)])
        # As TensorFlow does when it runs a function: what has state is not left out.
        effects.update((node.name, None) for node in self._nodes if node.schema.is_stateful and node.name not in needed)
        return list(effects)

    def _ancestors(self, names: Iterable[str]) -> set[str]:
        sources = {node.name: node.proto.input for node in self._nodes}
        found: set[str] = set()
        stack = list(names)
        while stack:
            name = stack.pop()
            if name in found or name not in sources:
                continue
            found.add(name)
            stack.extend(text.lstrip("^").partition(":")[0] for text in sources[name])
        return found

    def _hand_on(self, edits: EditSet, results: Sequence[TensorRef], controls: Sequence[str]) -> None:
        """The node that has the call's name from now on."""
        types = self._view.types(self._call.name)
        assert types is not None
        dtypes = [base_dtype(dtype) for dtype in types.outputs]
        put = edits.replace_node
        waits = list(dict.fromkeys(controls))
        name, device = self._call.name, self._call.device
        if not results:
            put(name, "NoOp", (), controls=waits, device=device)
        elif len(results) == 1:
            put(name, "Identity", results, {"T": attr_type(dtypes[0])}, controls=waits, device=device)
        else:
            put(name, "IdentityN", results, {"T": attr_types(dtypes)}, controls=waits, device=device)

    # Places

    def _places(self, node: _BodyNode) -> list[str]:
        """Where the node is to be: with nodes of the body, what arguments come from, or others of one place."""
        value = node.proto.attr.get("_class", None)
        found: dict[str, None] = {}
        for item in () if value is None else value.list.s:
            text = item.decode(errors="replace")
            if not text.startswith(_LOCATION):
                continue
            name = text[len(_LOCATION) :]
            if name in self._arguments:
                place = self._arguments[name].node
            elif name in self._names:
                place = self._names[name]
            else:  # a node of the graph in which the function was made: the nodes that name it stay together
                place = self._leaders.setdefault(name, self._names[node.name])
            if place != self._names[node.name]:
                found[f"{_LOCATION}{place}"] = None
        return list(found)


def _first_outputs(node: _BodyNode) -> dict[str, tuple[int, int]]:
    """(index of the first tensor, number of tensors) of each output argument."""
    found: dict[str, tuple[int, int]] = {}
    first = 0
    for arg, count in zip(node.schema.outputs, node.types.output_counts):
        found[arg.name] = (first, count)
        first += count
    return found
