"""Library functions that are given a variable, and what they do with it."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mx_rec.graph.node import Node, TensorRef
from mx_rec.graph.view import GraphView
from mx_rec.passes.static_lookups.plans import TableChoice
from mx_rec.passes.static_lookups.variables import RESOURCE_VARIABLE

_GATHERS_OF_HANDLE = ("ResourceGather", "ResourceGatherNd")
_GATHERS_OF_VALUE = ("GatherV2", "Gather", "GatherNd")
_HANDED_ON = {"Identity": "output", "ReadVariableOp": "value", "Snapshot": "output"}
_WITH_PREDICATE = ("If", "StatelessIf", "Case", "StatelessCase")


def is_named(choice: TableChoice, variable: str) -> bool:
    """Whether a choice names a variable by its node, or by the name that it has in common with other partitions."""
    names = {variable, variable.rpartition("/part_")[0] or variable}
    return any(fnmatch.fnmatchcase(name, choice.variable) for name in names)


def callers(view: GraphView, variable: str) -> list[str]:
    """The nodes that give the handle of a variable to a function, in graph order."""
    if view.node(variable).op != RESOURCE_VARIABLE:
        return []
    found = (use.node for use in view.consumers(TensorRef(variable, 0)) if calls_function(view, view.node(use.node)))
    return list(dict.fromkeys(found))


def calls_function(view: GraphView, node: Node) -> bool:
    """Whether a node runs a function of the library."""
    schema = view.schema(node.op)
    return view.function(node.op) is not None or (schema is not None and bool(schema.function_attrs))


def caller_that_looks_up(view: GraphView, variable: str) -> str | None:
    """A node that gives the variable to a function in which rows of it are looked up."""
    names = dict.fromkeys(callers(view, variable))
    for use in view.consumers(TensorRef(variable, 0)):
        if use.node not in names:
            continue
        node = view.node(use.node)
        for name, first in _functions(view, node.op, node.attrs()):
            if _is_looked_up(view, name, use.index - first, set()):
                return node.name
    return None


def chosen_variables(view: GraphView, choices: Iterable[TableChoice]) -> list[str]:
    """The variables that choices name and that functions look up, in graph order."""
    tables = list(choices)
    return [
        node.name
        for node in view.nodes_of(RESOURCE_VARIABLE)
        if any(is_named(choice, node.name) for choice in tables) and caller_that_looks_up(view, node.name) is not None
    ]


def _functions(view: GraphView, op: str, attrs: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """(a function that a node calls, the input of the node that is its first argument)."""
    if view.function(op) is not None:
        yield op, 0
    first = 1 if op in _WITH_PREDICATE else 0
    for value in attrs.values():
        names = [value.func.name] if value.HasField("func") else [func.name for func in value.list.func]
        yield from ((name, first) for name in names)


def _is_looked_up(view: GraphView, function: str, argument: int, seen: set[tuple[str, int]]) -> bool:
    definition = view.function(function)
    if definition is None or not 0 <= argument < len(definition.signature.input_arg) or (function, argument) in seen:
        return False
    seen.add((function, argument))
    handles, values = {definition.signature.input_arg[argument].name}, set[str]()
    pending = True
    while pending:  # once more after each tensor that was found to be the variable or its value
        pending = False
        for node in definition.node_def:
            positions = [index for index, source in enumerate(node.input) if source in handles]
            read = [index for index, source in enumerate(node.input) if source in values]
            if (node.op in _GATHERS_OF_HANDLE and 0 in positions) or (node.op in _GATHERS_OF_VALUE and 0 in read):
                return True
            if node.op in _HANDED_ON and (positions or read):
                result = f"{node.name}:{_HANDED_ON[node.op]}:0"
                known = handles if positions and node.op == "Identity" else values
                pending = pending or result not in known
                known.add(result)
            for called, first in _functions(view, node.op, node.attr) if positions else ():
                if any(_is_looked_up(view, called, index - first, seen) for index in positions):
                    return True
    return False
