"""Whether the batches of a dataset may be drawn earlier: not if they depend on state that a step may change."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mx_rec.graph.attrs import DT_RESOURCE, DT_VARIANT
from mx_rec.graph.node import Node
from mx_rec.graph.op_schema import OpSchema
from mx_rec.graph.op_signatures import OP_LOOK_AHEAD, OP_PREPARE_MANY, OP_TABLE, SIGNATURES
from mx_rec.graph.resources import (
    IMMUTABLE_TABLES,
    VARIABLE_HANDLES,
    called_functions,
    resources_read,
    why_it_may_change,
)
from mx_rec.graph.view import GraphView

# Resources that belong to the pipeline or to one call of a function: nothing outside writes to them.
_OF_THE_PIPELINE = frozenset(
    {
        "AnonymousIterator",
        "AnonymousIteratorV2",
        "AnonymousIteratorV3",
        "AnonymousMemoryCache",
        "AnonymousRandomSeedGenerator",
        "AnonymousSeedGenerator",
        "DummyIterationCounter",
        "DummyMemoryCache",
        "DummySeedGenerator",
        "ExperimentalThreadPoolHandle",
        "StackV2",
        "TensorArrayGradV3",
        "TensorArrayGradWithShape",
        "TensorArrayV3",
        "ThreadPoolHandle",
    }
)
# Ops of ours that a dataset function may hold: they give hints, which the step checks.
_GIVE_HINTS = frozenset({OP_TABLE, OP_LOOK_AHEAD, OP_PREPARE_MANY})
_HARMLESS = IMMUTABLE_TABLES | _OF_THE_PIPELINE | _GIVE_HINTS
_NOT_AHEAD = "its batches are not prepared ahead of the step"


class DatasetState:
    """Looks for state in the datasets of one view; every function is read once."""

    def __init__(self, view: GraphView) -> None:
        self._view = view
        self._functions: dict[str, str | None] = {}

    def reader(self, datasets: Iterable[str]) -> tuple[str, str] | None:
        """(The first of these datasets, or of those they draw from, that reads such state; what it reads)."""
        seen: set[str] = set()
        stack = list(datasets)
        while stack:
            name = stack.pop()
            if name in seen:
                continue
            seen.add(name)
            node = self._view.node(name)
            reason = self._reason(node)
            if reason is not None:
                return name, f"{reason}; {_NOT_AHEAD}"
            types = self._view.types(name)
            stack.extend(ref.node for ref, dtype in zip(node.inputs, types.inputs) if dtype == DT_VARIANT)  # type: ignore[union-attr]
        return None

    def reader_in(self, factory: str) -> str | None:
        """What the dataset that a one-shot iterator's function makes reads of such state."""
        reason = self._function_reason(factory)
        return None if reason is None else f"{reason}; {_NOT_AHEAD}"

    def _reason(self, node: Node) -> str | None:
        schema = self._view.schema(node.op)
        if schema is None or self._view.types(node.name) is None:
            return f"op {node.op!r} is not known to this TensorFlow; load the library that defines it"
        for source in resources_read(self._view, node):
            if source.op not in _HARMLESS:
                return why_it_may_change(source)
        return self._reason_of_calls(node.proto, schema)

    def _reason_of_calls(self, proto: Any, schema: OpSchema) -> str | None:
        names = called_functions(proto, schema)
        if self._view.function(proto.op) is not None:
            names.append(proto.op)
        for name in names:
            reason = self._function_reason(name)
            if reason is not None:
                return reason
        return None

    def _function_reason(self, name: str) -> str | None:
        if name not in self._functions:
            self._functions[name] = None  # a recursive call adds nothing of its own
            self._functions[name] = self._body_reason(name)
        return self._functions[name]

    def _body_reason(self, name: str) -> str | None:
        function = self._view.function(name)
        for node in () if function is None else function.node_def:
            schema = self._view.schema(node.op)
            if schema is None:
                return f"function {name!r} has op {node.op!r}, which is not known to this TensorFlow"
            if _holds_shared_state(schema):
                if node.op in VARIABLE_HANDLES:
                    return f"function {name!r} reads variable {node.name!r}, which a step may change"
                return f"function {name!r} has {node.name!r} (op {node.op!r}), whose state a step may change"
            reason = self._reason_of_calls(node, schema)
            if reason is not None:
                return reason
        return None


def dataset_state(view: GraphView) -> DatasetState:
    """The answers for this view; shared by all who ask."""
    state: DatasetState = view.cached("dataset_state", DatasetState)
    return state


def _holds_shared_state(schema: OpSchema) -> bool:
    """Whether a node of this op in a function reaches state without an argument of the function."""
    op = schema.name
    if op in _HARMLESS:
        return False
    if op in SIGNATURES:
        return schema.is_stateful
    return "shared_name" in schema.defaults or any(arg.is_ref or arg.dtype == DT_RESOURCE for arg in schema.outputs)
