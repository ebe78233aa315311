"""Brings lookups that functions do into the open."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from mx_rec.graph.edits import EditSet
from mx_rec.graph.inlining import CALLS, ControlFlowV1, called_function, inline_call
from mx_rec.graph.iterators import Obstacle
from mx_rec.graph.verify import colocated_with
from mx_rec.graph.view import GraphView
from mx_rec.passes.base import Pass, PassOutcome, Refusal
from mx_rec.passes.static_lookups.calls import callers, chosen_variables
from mx_rec.passes.static_lookups.planning import plan_tables
from mx_rec.passes.static_lookups.plans import TableChoice
from mx_rec.passes.static_lookups.updates import calls_of_gradients
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
    Calls in functions that are inlined follow if they take the variable, or if the gradients of its updates come out
    of them; others stay calls, and so do all that take none. The functions stay in the library, where an
    object graph may name them.

    As TensorFlow inlines a call when it runs a graph: see `mx_rec.graph.inlining`. A node of the name of the call
    hands its results on, so that names of signatures hold.

    Attributes:
        tables: which variables are to become tables; without any the pass changes nothing.
        entries: the nodes by which the graph is used, as far as they are known: those that signatures, collections
            and the Saver of a SavedModel name. What depends on a variable in question and is needed by none of
            them, such as assignments of copies that nothing runs, is taken out. `None`: everything stays.
        keep: names of nodes that a variable must not take with it; as those of `convert_static_tables`.

    Preconditions: none.

    Refused, with the node in the way: a variable that goes into branches or loops, or into a call that TensorFlow
    must not inline (`_noinline`, XLA, an executor or a gradient of its own), that is in a branch or a loop of
    TensorFlow 1, or whose function holds unknown ops or control flow of TensorFlow 1, calls itself, or fits neither
    the call nor its attributes; and one that would stay a variable all the same, for any reason that
    `convert_static_tables` has, such as a rule of training that tables do not have.
    """

    name: ClassVar[str] = "inline_calls"
    tables: tuple[TableChoice, ...] = ()
    entries: frozenset[str] | None = None
    keep: frozenset[str] = field(default_factory=frozenset)

    def run(self, view: GraphView) -> PassOutcome:
        """See `Pass.run`."""
        targets = chosen_variables(view, self.tables) if self.tables else []
        refusals: list[Refusal] = []
        while targets:
            # A view of its own: names of nodes that a round before has made are free again.
            inlining = _Inlining(view.edited(EditSet()), self.name, targets)
            stuck = inlining.run()
            notes = [] if stuck else [inlining.note()]
            if not stuck and self.entries is not None:
                dead = inlining.remove_dead(self.entries)
                if dead:
                    notes.append(f"{dead} nodes that read them, which no signature needs, removed")
            stuck = stuck or inlining.stay(self.tables, self.keep)
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
        self._left: set[str] = set()  # calls on the way of gradients that are not inlined
        self._calls = 0
        self._added = 0

    def run(self) -> dict[str, Obstacle]:
        """Inline until no function takes a variable. Returns what is in the way, for each variable that it stops."""
        stuck: dict[str, Obstacle] = {}
        while waiting := self._waiting(stuck):
            edits = EditSet(author=self._author)
            for call, names in waiting.items():
                if names and stuck.keys() >= set(names):
                    continue
                obstacle = self._inline(call, edits)
                if obstacle is not None and not names:
                    self._left.add(call)
                elif obstacle is not None:
                    stuck.update((name, obstacle) for name in names if name not in stuck)
                if self._added > _MAX_NODES:  # of which the variables that are left may need few
                    return stuck
            self._apply(edits)
        return stuck

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

    def stay(self, tables: Sequence[TableChoice], keep: frozenset[str]) -> dict[str, Obstacle]:
        """The variables that would stay although their lookups are in the open now, and why."""
        planned = plan_tables(self.view, tables, keep)
        found = {name: obstacle for variable, obstacle in planned.stay for name in variable.nodes}
        becoming = {name for plan in planned.plans for name in plan.variable.nodes}
        unseen = "is looked up in functions, but no lookup of it that could be of a table is left when they are inlined"
        return {name: found.get(name) or Obstacle(name, unseen) for name in self.targets if name not in becoming}

    def _apply(self, edits: EditSet) -> None:
        self.view = self.view.edited(edits)
        self.edits = self.edits + edits

    def note(self) -> str:
        """For the report."""
        names = ", ".join(map(repr, self.targets))
        return f"{self._calls} calls that take variables {names} inlined: {self._added} nodes"

    def _waiting(self, stuck: Collection[str]) -> dict[str, list[str]]:
        """The nodes that give a variable to a function, each with its variables; of variables not stuck.

        Of variables that none takes any more, the calls that give gradients to their updates; if one of these is not
        inlined, whether that matters is seen in the end.
        """
        found: dict[str, list[str]] = {}
        for target in self.targets:
            if target in stuck:
                continue
            taking = callers(self.view, target)
            for name in taking:
                found.setdefault(name, []).append(target)
            for name in calls_of_gradients(self.view, target) if not taking else ():
                if name not in self._left:
                    found.setdefault(name, [])
        return found

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
