"""Brings lookups that functions do into the open."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from mx_rec.graph.edits import EditSet
from mx_rec.graph.inlining import CALLS, called_function, in_control_flow_v1, inline_call
from mx_rec.graph.iterators import Obstacle
from mx_rec.graph.node import TensorRef
from mx_rec.graph.verify import colocated_with
from mx_rec.graph.view import GraphView
from mx_rec.passes.base import Pass, PassOutcome, Refusal
from mx_rec.passes.static_lookups.calls import callers, chosen_variables
from mx_rec.passes.static_lookups.plans import TableChoice
from mx_rec.passes.static_lookups.variables import ancestors

_MAX_NODES = 1_000_000  # that calls of calls of ... may become


@dataclass(frozen=True)
class InlineCalls(Pass):
    """Inlines the calls that take a variable which is to become a table, and which only functions look up.

    Before::

        ids, variable -> StatefulPartitionedCall "call" -> model
          function: argument -> ResourceGather "lookup" -> Identity -> result; the result waits for an Assert

    After::

        ids, variable -> ResourceGather "call/lookup" -> Identity "call/Identity" -> Identity "call" -> model
                         Assert "call/Assert" - - - - - - - - - - - - - - - - - - - - ^

    The serving graph of a SavedModel of TensorFlow 2 is such: signatures, and what saves and restores, are calls.
    Calls in functions that are inlined follow if they take the variable; others stay calls, and so do all that take
    none. The functions stay in the library, where an object graph may name them.

    As TensorFlow inlines a call when it runs a graph: see `mx_rec.graph.inlining`. A node of the name of the call
    hands its results on, so that names of signatures hold.

    Attributes:
        tables: which variables are to become tables; without any the pass changes nothing.
        entries: the nodes by which the graph is used, as far as they are known: those that signatures, collections
            and the Saver of a SavedModel name. What depends on a variable in question and is needed by none of
            them, such as assignments of copies that nothing runs, is taken out. `None`: everything stays.

    Preconditions: none.

    Refused, with the node in the way: a variable that goes into branches or loops, or into a call that TensorFlow
    must not inline (`_noinline`, XLA, an executor or a gradient of its own), that is in a branch or a loop of
    TensorFlow 1, or whose function holds unknown ops or control flow of TensorFlow 1, calls itself, or fits neither
    the call nor its attributes.
    """

    name: ClassVar[str] = "inline_calls"
    tables: tuple[TableChoice, ...] = ()
    entries: frozenset[str] | None = None

    def run(self, view: GraphView) -> PassOutcome:
        """See `Pass.run`."""
        targets = chosen_variables(view, self.tables) if self.tables else []
        refusals: list[Refusal] = []
        while targets:
            inlining = _Inlining(view, self.name, targets)
            obstacle = inlining.run()
            if obstacle is None:
                notes = [inlining.note()]
                edits, dead = self._dead(inlining)
                if dead:
                    notes.append(f"{dead} nodes that read them, which no signature needs, removed")
                return PassOutcome(edits, notes, refusals)
            left = [name for name in targets if name not in inlining.stuck]
            for name in inlining.stuck:
                reason = f"{obstacle.reason} (variable {name!r}, which it takes, stays)"
                refusals.append(Refusal(obstacle.node, reason))
            targets = left
        return PassOutcome(refusals=refusals)

    def _dead(self, inlining: _Inlining) -> tuple[EditSet, int]:
        """All edits, with those that take out what no entry needs, and how many nodes these are."""
        view = inlining.view
        if self.entries is None:
            return inlining.edits, 0
        needed = ancestors(view, [name for name in self.entries if name in view])
        dead = [name for name in _descendants(view, inlining.targets) if name not in needed]
        companions = {place for node in view if node.name not in set(dead) for place in colocated_with(node)}
        if not companions.isdisjoint(dead):
            return inlining.edits, 0
        edits = EditSet(author=self.name)
        for name in dead:
            edits.remove_node(name)
        return inlining.edits + edits, len(dead)


class _Inlining:
    """The inlining of all calls that take one of some variables, call after call."""

    def __init__(self, view: GraphView, author: str, targets: list[str]) -> None:
        self.view = view
        self.targets = targets
        self.edits = EditSet(author=author)
        self.stuck: list[str] = []  # the variables that the call in the way takes
        self._author = author
        self._chains: dict[str, tuple[str, ...]] = {}  # the functions that a call came out of
        self._calls = 0
        self._added = 0

    def run(self) -> Obstacle | None:
        """Inline until no function takes a variable. Returns what is in the way."""
        while names := self._waiting():
            edits = EditSet(author=self._author)
            for name in names:
                obstacle = self._inline(name, edits)
                if obstacle is not None:
                    self.stuck = [target for target in self.targets if name in callers(self.view, target)]
                    return obstacle
            self.view = self.view.edited(edits)
            self.edits = self.edits + edits
        return None

    def note(self) -> str:
        """For the report."""
        names = ", ".join(map(repr, self.targets))
        return f"{self._calls} calls that take variables {names} inlined: {self._added} nodes"

    def _waiting(self) -> list[str]:
        return list(dict.fromkeys(name for target in self.targets for name in callers(self.view, target)))

    def _inline(self, name: str, edits: EditSet) -> Obstacle | None:
        call = self.view.node(name)
        if call.op not in CALLS:
            return Obstacle(
                name, f"op {call.op!r} takes a variable into a function that is not inlined: a branch, a loop or such"
            )
        chain = self._chains.get(name)
        if chain is None:
            obstacle = in_control_flow_v1(self.view, name)
            if obstacle is not None:
                return obstacle
            chain = ()
        function = called_function(call)
        if function in chain:
            return Obstacle(name, f"calls function {function!r}, which calls itself")
        inlined = inline_call(self.view, call, edits)
        if isinstance(inlined, Obstacle):
            return inlined
        self._calls += 1
        self._added += inlined.added
        if self._added > _MAX_NODES:
            return Obstacle(name, f"calls function {function!r}, whose calls would become more than {_MAX_NODES} nodes")
        for inner in inlined.calls:
            self._chains[inner] = (*chain, function)
        return None


def _descendants(view: GraphView, names: Iterable[str]) -> list[str]:
    """All that depends on these nodes, without themselves."""
    found: dict[str, None] = {}
    stack = [edge.consumer for name in names for edge in view.edges(name)]
    while stack:
        name = stack.pop()
        if name not in found:
            found[name] = None
            stack.extend(edge.consumer for edge in view.edges(name))
    return list(found)
