"""Reference variables of a graph that only reads them become resource variables.

::

    w = VariableV2 -> reader

becomes, with a placeholder for the handle::

    w/frozen_handle -> w = ReadVariableOp -> reader

so that readers, and signatures, find the value under the name that they know. In a graph without a write it does not
matter when a value is read. What hands on a reference hands on the value.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mx_rec.errors import GraphRewriteError
from mx_rec.graph.attrs import is_ref
from mx_rec.graph.view import GraphView

_RESOURCE = "VarHandleOp"
_REFERENCES = ("Variable", "VariableV2")
_OF_VALUES = {
    "RefEnter": "Enter",
    "RefExit": "Exit",
    "RefIdentity": "Identity",
    "RefMerge": "Merge",
    "RefNextIteration": "NextIteration",
    "RefSwitch": "Switch",
}


@dataclass(frozen=True)
class FrozenVariable:
    """A variable of a frozen graph.

    Attributes:
        name: its node in the graph before: a handle, or a reference variable.
        handle: the node whose place the handle of the new variable takes.
    """

    name: str
    handle: str


def frozen_variables(view: GraphView) -> tuple[FrozenVariable, ...]:
    """The variables of a graph.

    Raises:
        GraphRewriteError: something needs the reference to a variable, such as an assignment; the message names both.
    """
    references = [node.name for node in view.nodes_of(*_REFERENCES)]
    for name in references:
        _check_only_read(view, name)
    return (
        *(FrozenVariable(node.name, node.name) for node in view.nodes_of(_RESOURCE)),
        *(FrozenVariable(name, view.unique_name(f"{name}/frozen_handle")) for name in references),
    )


def read_by_handle(nodes: Iterable[Any], variables: Iterable[FrozenVariable]) -> None:
    """Lets nodes read the handles of what were reference variables.

    Args:
        nodes: NodeDefs, which change.
        variables: what `frozen_variables` found among them.
    """
    handles = {variable.name: variable.handle for variable in variables if variable.handle != variable.name}
    for node in nodes if handles else ():
        if node.name in handles:
            controls = list(node.input)
            node.op = "ReadVariableOp"
            node.input[:] = [handles[node.name], *controls]
            for name in list(node.attr):
                if name != "dtype" and not name.startswith("_"):
                    del node.attr[name]
        elif node.op in _OF_VALUES:
            node.op = _OF_VALUES[node.op]


def _check_only_read(view: GraphView, variable: str) -> None:
    """GraphRewriteError if anything needs more of a reference than the value."""
    seen = {variable}
    pending = [variable]
    while pending:
        for edge in view.data_edges(pending.pop()):
            consumer = view.node(edge.consumer)
            types = view.types(consumer.name)
            if types is not None and not is_ref(types.inputs[edge.index]):
                continue
            if consumer.op not in _OF_VALUES:
                raise GraphRewriteError(
                    f"node {consumer.name!r} ({consumer.op}) needs the reference variable {variable!r} itself, which a "
                    "frozen model only reads: leave it out of the signatures and of what runs when the model is loaded"
                )
            if consumer.name not in seen:
                seen.add(consumer.name)
                pending.append(consumer.name)
