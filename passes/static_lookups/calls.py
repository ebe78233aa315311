"""Library functions that are given a variable, and what they do with it."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mx_rec.graph.node import TensorRef
from mx_rec.graph.view import GraphView
from mx_rec.passes.static_lookups.plans import TableChoice
from mx_rec.passes.static_lookups.variables import RESOURCE_VARIABLE, calls_function

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
    readers = _readers(view, function)
    stack = [(definition.signature.input_arg[argument].name, True)]
    followed = set(stack)
    while stack:
        tensor, is_handle = stack.pop()
        for node, position in readers.get(tensor, ()):
            if position == 0 and node.op in (_GATHERS_OF_HANDLE if is_handle else _GATHERS_OF_VALUE):
                return True
            if node.op in _HANDED_ON:
                result = (f"{node.name}:{_HANDED_ON[node.op]}:0", is_handle and node.op == "Identity")
                if result not in followed:
                    followed.add(result)
                    stack.append(result)
            for called, first in _functions(view, node.op, node.attr) if is_handle else ():
                if _is_looked_up(view, called, position - first, seen):
                    return True
    return False


def _readers(view: GraphView, function: str) -> dict[str, list[tuple[Any, int]]]:
    """The nodes of a function that read each tensor, with the input that does."""
    found: dict[str, list[tuple[Any, int]]] = view.cached(("readers_in", function), lambda _: _index(view, function))
    return found


def _index(view: GraphView, function: str) -> dict[str, list[tuple[Any, int]]]:
    definition = view.function(function)
    found: dict[str, list[tuple[Any, int]]] = {}
    for node in () if definition is None else definition.node_def:
        for position, source in enumerate(node.input):
            found.setdefault(source, []).append((node, position))
    return found
