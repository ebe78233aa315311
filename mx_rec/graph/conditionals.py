"""Conditionals of TensorFlow 1 (Switch and Merge): which tensors may have no value.

A tensor behind a Switch has a value only if its branch is taken; a Merge takes whichever of its inputs has one.
"""

from __future__ import annotations

from typing import NamedTuple

from mx_rec.graph.iterators import Obstacle
from mx_rec.graph.node import Node, TensorRef
from mx_rec.graph.view import GraphView


class Branch(NamedTuple):
    """One side of the conditionals that a predicate decides."""

    predicate: TensorRef
    side: int


NO_BRANCH: frozenset[Branch] = frozenset()


class Branches:
    """The branches that nodes are in. Nodes are visited after all that they read and wait for."""

    def __init__(self, view: GraphView) -> None:
        self._view = view
        self._of: dict[str, frozenset[Branch]] = {}  # nodes in no branch are left out
        self._switches: dict[TensorRef, str] = {}  # the first Switch by predicate, for messages

    def of(self, tensor: TensorRef) -> frozenset[Branch]:
        """The branches that must be taken for this tensor to have a value."""
        branches = self._of.get(tensor.node, NO_BRANCH)
        node = self._view.node(tensor.node)
        return branches | {Branch(self._predicate(node), tensor.index)} if node.op == "Switch" else branches

    def switch_of(self, name: str) -> str | None:
        """A Switch that decides whether the node `name` runs, or `None` if it always does."""
        branches = self._of.get(name)
        return self._switches[min(branches).predicate] if branches else None

    def visit(self, node: Node) -> Obstacle | None:
        """Find the branches of one node. Returns why its conditional cannot be understood."""
        if node.op == "Switch":
            self._switches.setdefault(self._predicate(node), node.name)
        elif not self._switches:
            return None  # nearly every graph
        inputs = [self.of(ref) for ref in node.inputs]
        waits = NO_BRANCH.union(*(self._of.get(name, NO_BRANCH) for name in node.controls))
        if node.op != "Merge":
            self._set(node, waits.union(*inputs))
            return None
        merged = _merged(inputs)
        if merged is None:
            return Obstacle(node.name, "merges other than the two branches of one conditional of TensorFlow 1")
        self._set(node, waits | merged)
        return None

    def _set(self, node: Node, branches: frozenset[Branch]) -> None:
        if branches:
            self._of[node.name] = branches

    def _predicate(self, switch: Node) -> TensorRef:
        ref = switch.inputs[1]
        while (node := self._view.node(ref.node)).op == "Identity":
            ref = node.inputs[0]
        return ref


def _merged(inputs: list[frozenset[Branch]]) -> frozenset[Branch] | None:
    """The branches of a Merge: those that both sides share, once the two sides of one predicate are taken off."""
    if len(inputs) != 2:
        return None
    both = inputs[0] & inputs[1]
    first, second = inputs[0] - both, inputs[1] - both
    if len(first) != 1 or len(second) != 1:
        return None
    (one,), (other,) = first, second
    return both if one.predicate == other.predicate and one.side != other.side else None
