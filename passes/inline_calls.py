"""Brings lookups that functions do into the open."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from mx_rec.graph.edits import EditSet
from mx_rec.graph.inlining import CALLS, ControlFlowV1, called_function, inline_call
from mx_rec.graph.iterators import Obstacle
from mx_rec.graph.verify import colocated_with
from mx_rec.graph.view import GraphView
from mx_rec.passes.base import Pass, PassOutcome, Refusal
from mx_rec.passes.static_lookups.calls import callers, chosen_variables
from mx_rec.passes.static_lookups.lookups import static_variables
from mx_rec.passes.static_lookups.plans import TableChoice, why_it_stays
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
    the call nor its attributes; and one that would stay a variable all the same, such as one trained by a rule that
    tables do not have.
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
            stuck = inlining.run()
            notes = [] if stuck else [inlining.note()]
            if not stuck and self.entries is not None:
                dead = inlining.remove_dead(self.entries)
                if dead:
                    notes.append(f"{dead} nodes that read them, which no signature needs, removed")
            stuck = stuck or inlining.stay()
            if not stuck:
                return PassOutcome(inlining.edits, notes, refusals)
            for name, obstacle in stuck.items():
                refusals.append(Refusal(obstacle.node, f"{obstacle.reason} (its calls stay for variable {name!r})"))
            targets = [name for name in targets if name not in stuck]
        return PassOutcome(refusals=refusals)


class _Inlining:
    """The inlining of all calls that take one of some variables, call after call."""

    def __init__(self, view: GraphView, author: str, targets: list[str]) -> None:
        self.view = view
        self.targets = targets
        self.edits = EditSet(author=author)
        self._author = author
        self._chains: dict[str, tuple[str, ...]] = {}  # the functions that a call came out of
        self._control_flow = ControlFlowV1(view)  # calls that come out of others are where those were
        self._calls = 0
        self._added = 0

    def run(self) -> dict[str, Obstacle]:
        """Inline until no function takes a variable. Returns what is in the way, for the variables that it stops."""
        while names := self._waiting():
            edits = EditSet(author=self._author)
            for name in names:
                obstacle = self._inline(name, edits)
                if obstacle is not None:
                    return {name_: obstacle for name_ in self.targets if name in callers(self.view, name_)}
            self._apply(edits)
        return {}

    def remove_dead(self, entries: Iterable[str]) -> int:
        """Take out what depends on the variables and is needed by none of these nodes. Returns how many went."""
        needed = ancestors(self.view, [name for name in entries if name in self.view])
        dead = dict.fromkeys(name for name in _descendants(self.view, self.targets) if name not in needed)
        companions = {place for node in self.view if node.name not in dead for place in colocated_with(node)}
        if not companions.isdisjoint(dead):
            return 0
        edits = EditSet(author=self._author)
        for name in dead:
            edits.remove_node(name)
        self._apply(edits)
        return len(dead)

    def stay(self) -> dict[str, Obstacle]:
        """The variables that would stay although their lookups are in the open now, and why."""
        found: dict[str, Obstacle] = {}
        for variable in static_variables(self.view):
            names = [name for name in variable.nodes if name in self.targets]
            obstacle = why_it_stays(self.view, variable) if names else None
            if obstacle is not None:
                found.update(dict.fromkeys(names, obstacle))
        return found

    def _apply(self, edits: EditSet) -> None:
        self.view = self.view.edited(edits)
        self.edits = self.edits + edits

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
            obstacle = self._control_flow.around(name)
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
