"""Which variables become tables, and all that has to be known before the graph is changed."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from mx_rec.graph.iterators import Obstacle
from mx_rec.graph.node import TensorRef
from mx_rec.graph.view import GraphView
from mx_rec.passes.static_lookups.initial_values import ByKey, by_key
from mx_rec.passes.static_lookups.lookups import StaticLookup, StaticVariable
from mx_rec.passes.static_lookups.modulo import Bound, bounds_of
from mx_rec.passes.static_lookups.rules import Update
from mx_rec.passes.static_lookups.saving import saved_apart, why_not_taken_out
from mx_rec.passes.static_lookups.sums import ids_summed_by, why_not_by_position
from mx_rec.passes.static_lookups.updates import Gradient, find_update, gradient_of
from mx_rec.passes.static_lookups.values import flat_origin, same_formula
from mx_rec.passes.static_lookups.variables import Uses, ancestors, reads_before, uses_of

FROM_VARIABLE = "variable"
BY_KEY = "by_key"
INITIAL_VALUES = (FROM_VARIABLE, BY_KEY)
_MAX_NAME = 100
_NAME = re.compile(r"[A-Za-z0-9_.]{1,100}")


@dataclass(frozen=True)
class TableChoice:
    """Variables that are to become tables, and how.

    Attributes:
        variable: a name, or a pattern of names with `*` and `?`; of a partitioned variable the common name.
        name: of the table; "" for one made of the variable's.
        initial_values: "variable": the initializer of the variable fills the table, row by row the same values;
            "by_key": a row gets its initial values when its key is first seen, from the same distribution.
        drop_modulo: take out a modulo or the bucket count of a hash that does nothing but keep the ids below the
            number of rows. Goes with initial values by key.
    """

    variable: str
    name: str = ""
    initial_values: str = FROM_VARIABLE
    drop_modulo: bool = False

    def __post_init__(self) -> None:
        if self.initial_values not in INITIAL_VALUES:
            raise ValueError(f"initial_values is {self.initial_values!r}; expected one of {', '.join(INITIAL_VALUES)}")
        if self.drop_modulo and self.initial_values != BY_KEY:
            raise ValueError("drop_modulo needs initial_values = 'by_key': the ids are no rows of the variable then")

        if self.name and (_NAME.fullmatch(self.name) is None or self.name in (".", "..")):
            raise ValueError(
                f"table name {self.name!r} must have 1..{_MAX_NAME} letters, digits, '_', '.', and not be '.' or '..'"
            )

    def matches(self, variable: StaticVariable) -> bool:
        """Whether the pattern is that of the variable or of one of its partitions."""
        return any(fnmatch.fnmatchcase(name, self.variable) for name in (variable.name, *variable.nodes))


@dataclass(frozen=True)
class Source:
    """What looked up the rows of some gradients.

    Attributes:
        lookup: the lookup.
        part: which part of it, if the variable is partitioned.
        summed_by: the op that gives one sum of gradients for each distinct id of a pooled lookup; "" if there is a
            gradient for each id.
    """

    lookup: StaticLookup
    part: int
    summed_by: str = ""


@dataclass(frozen=True)
class TrainedBy:
    """The update of a table.

    Attributes:
        updates: one for each node of the variable.
        gradients: of each.
        sources: for each what its segments belong to.
    """

    updates: tuple[Update, ...]
    gradients: tuple[Gradient, ...]
    sources: tuple[tuple[Source, ...], ...]

    @property
    def sums(self) -> tuple[str, ...]:
        """The ops that sum gradients of pooled lookups."""
        return tuple(source.summed_by for group in self.sources for source in group if source.summed_by)


@dataclass(frozen=True)
class TablePlan:
    """A variable that can become a table.

    Attributes:
        variable: the variable.
        table_name: the table.
        choice: what was asked for.
        initializer: of keys that come later than the initial values, or of all.
        imports: whether the initial value of the variable is imported.
        training: the update; `None` if the graph has none.
        trained: the nodes of the lookups that the update trains.
        bounds: what is taken out of the way of the ids.
        checks_ids: whether an id that is no row of the variable is an error, as it was.
    """

    variable: StaticVariable
    table_name: str
    choice: TableChoice
    initializer: ByKey
    imports: bool
    training: TrainedBy | None
    trained: frozenset[str]
    bounds: tuple[Bound, ...] = ()
    checks_ids: bool = True


def make_plan(
    view: GraphView,
    variable: StaticVariable,
    choice: TableChoice,
    table_name: str,
    keep: frozenset[str],
    readers: Collection[str] = (),
) -> TablePlan | Obstacle:
    """How the variable becomes a table, or why it cannot.

    Args:
        view: the graph.
        variable: the variable.
        choice: what is asked for.
        table_name: the table.
        keep: nodes that must stay.
        readers: the gathers and updates of other variables that lose the bound of their ids at the same time.
    """
    obstacle = variable.obstacle or _other_uses(view, variable)
    if obstacle is not None:
        return obstacle
    training = training_of(view, variable)
    if isinstance(training, Obstacle):
        return training
    updates = () if training is None else training.updates
    slots = [slot.variable for update in updates for slot in update.slots]
    obstacle = _kept(view, variable, slots, updates, keep)
    if obstacle is not None:
        return obstacle
    for name in (*variable.nodes, *slots):
        obstacle = why_not_taken_out(view, uses_of(view, name).saves, uses_of(view, name).restores)
        if obstacle is not None:
            return obstacle
    obstacle = _begin_apart(view, variable, slots) or saved_apart(view, [*variable.nodes, *slots])
    if obstacle is not None:
        return obstacle
    initial = [uses_of(view, name).initial for name in variable.nodes]
    value = view.node(initial[0][0]).inputs[1] if initial[0] else None
    recognised = None if value is None else by_key(view, value, table_name)
    if value is not None and recognised is None and choice.initial_values == BY_KEY:
        node = view.node(value.node)
        reason = f"op {node.op!r} gives initial values that a table cannot give key by key; let the variable give them"
        return Obstacle(node.name, reason)
    readers = {*readers, *readers_of_ids(view, variable)}
    bounds = bounds_of(view, variable, readers, keep) if choice.drop_modulo else []
    if isinstance(bounds, Obstacle):
        return bounds
    imports = value is not None and choice.initial_values == FROM_VARIABLE
    imports = imports and not (recognised is not None and recognised.is_constant)
    return TablePlan(
        variable=variable,
        table_name=table_name,
        choice=choice,
        initializer=recognised or ByKey("constant", 0.0, 0.0, 0),
        imports=imports,
        training=training,
        trained=frozenset() if training is None else _trained(view, variable, training),
        bounds=tuple(bounds),
        checks_ids=choice.initial_values == FROM_VARIABLE,
    )


def readers_of_ids(view: GraphView, variable: StaticVariable) -> set[str]:
    """The gathers of a variable and the nodes of its updates."""
    found = {name for lookup in variable.lookups for name in (lookup.node, *lookup.gathers)}
    training = training_of(view, variable)
    if isinstance(training, TrainedBy):
        found.update(name for update in training.updates for name in update.nodes)
        found.update(training.sums)
    return found


def table_name_of(variable: str, taken: Collection[str]) -> str:
    """A name for a table made of a variable's name, not among those taken."""
    base = re.sub(r"[^A-Za-z0-9_.]", ".", variable)[-_MAX_NAME:]
    if base in (".", ".."):
        base = "table"
    name, suffix = base, 0
    while name in taken:
        suffix += 1
        name = f"{base[: _MAX_NAME - 8]}_{suffix}"
    return name


def _trained(view: GraphView, variable: StaticVariable, training: TrainedBy) -> frozenset[str]:
    """The lookups of ids whose rows are updated: the others of the same ids must find what one of them inserts."""
    segments = [segment for gradient in training.gradients for segment in gradient.segments]
    updated = {ids_summed_by(view, segment) or segment for segment in segments}
    return frozenset(
        lookup.node
        for lookup in variable.lookups
        if any(flat_origin(view, view.node(gather).inputs[1]) in updated for gather in lookup.gathers)
    )


def _kept(
    view: GraphView, variable: StaticVariable, slots: Sequence[str], updates: Sequence[Update], keep: frozenset[str]
) -> Obstacle | None:
    """A node that must stay but would go with the variable."""
    staying = {lookup.node for lookup in variable.lookups if lookup.is_pooled}
    going = [name for lookup in variable.lookups for name in (lookup.node, *lookup.gathers)]
    going.extend(name for update in updates for name in update.nodes)
    for name in (*variable.nodes, *slots):
        going.extend([name, *sorted(uses_of(view, name).nodes())])
    for name in going:
        if name in keep and name not in staying:
            return Obstacle(name, "is named outside the graph, so it must stay, but it would go with the variable")
    return None


def _other_uses(view: GraphView, variable: StaticVariable) -> Obstacle | None:
    for name in variable.nodes:
        uses = uses_of(view, name)
        if len(uses.initial) > 1:
            return Obstacle(uses.initial[1], f"gives variable {name!r} a second initial value")
        for assign in (*uses.initial, *uses.restores):
            if view.data_edges(assign):
                return Obstacle(view.data_edges(assign)[0].consumer, f"reads the result of {assign!r}")
    obstacle = _reads_awaited(view, variable) or _read_early(view, variable)
    if obstacle is not None:
        return obstacle
    initial = {bool(uses_of(view, name).initial) for name in variable.nodes}
    if len(initial) > 1:
        return Obstacle(variable.nodes[0], "has an initial value for some of its partitions only")
    return None


def training_of(view: GraphView, variable: StaticVariable) -> TrainedBy | Obstacle | None:
    """The update of all nodes of a variable; why it cannot be that of a table; `None` if nothing trains it."""
    updates: list[Update] = []
    for name in variable.nodes:
        found = find_update(view, name)
        if isinstance(found, Obstacle):
            return found
        if found is not None:
            updates.append(found)
    if not updates:
        return None
    if len(updates) < len(variable.nodes):
        return Obstacle(updates[0].nodes[0], "updates some partitions of the variable only")
    obstacle = next((found for other in updates[1:] if (found := _differs(view, updates[0], other))), None)
    if obstacle is not None:
        return obstacle
    gradients: list[Gradient] = []
    sources: list[tuple[Source, ...]] = []
    looked_up = [ids for ids in _ids_of_lookups(view, variable.lookups) if ids is not None]
    for update in updates:
        gradient = gradient_of(view, update, looked_up)
        if isinstance(gradient, Obstacle):
            return gradient
        group = _sources(view, variable, gradient, update)
        if isinstance(group, Obstacle):
            return group
        gradients.append(gradient)
        sources.append(group)
    return TrainedBy(tuple(updates), tuple(gradients), tuple(sources))


def _differs(view: GraphView, first: Update, other: Update) -> Obstacle | None:
    """Why the updates of two partitions are not one."""
    equal = (
        first.rule.op == other.rule.op
        and first.rule.constants == other.rule.constants
        and first.rule.attrs == other.rule.attrs
        and [slot.initial_value for slot in first.slots] == [slot.initial_value for slot in other.slots]
        and all(same_formula(view, a[1], b[1], waiting=True) for a, b in zip(first.rule.scalars, other.rule.scalars))
    )
    return None if equal else Obstacle(other.nodes[0], f"updates a partition otherwise than {first.nodes[0]!r}")


def _begin_apart(view: GraphView, variable: StaticVariable, slots: Sequence[str]) -> Obstacle | None:
    """An initial value that something asks for without the others: a table gives all rows and slots theirs at once."""
    assigns = [assign for name in (*variable.nodes, *slots) for assign in uses_of(view, name).initial]
    first: tuple[str, frozenset[str]] | None = None
    for assign in assigns:
        asking = frozenset(_whole_group(view, name) for name in view.control_consumers(assign))
        first = first or (assign, asking)
        if asking != first[1]:
            one = sorted(asking ^ first[1])[0]
            reason = (
                f"asks for one of the initial values {assign!r} and {first[0]!r} without the other; the rows of a "
                "table and their slots begin together"
            )
            return Obstacle(one, reason)
    return None


def _whole_group(view: GraphView, name: str) -> str:
    """The group that a node is the part of one device of, as `tf.group` makes them; else the node."""
    if view.node(name).op == "NoOp":
        for waiting in view.control_consumers(name):
            if view.node(waiting).op == "NoOp" and re.fullmatch(re.escape(waiting) + r"/NoOp(_\d+)?", name):
                return waiting
    return name


def _read_early(view: GraphView, variable: StaticVariable) -> Obstacle | None:
    """A lookup of a value that a resource variable had earlier than a table would be looked up."""
    writes = {write for name in variable.nodes for write in uses_of(view, name).writes}
    for lookup in variable.lookups:
        for name in lookup.gathers:
            gather = view.node(name)
            segments = [ref.node for ref in gather.inputs[2:]] if lookup.is_pooled else []
            if segments and not writes.isdisjoint(ancestors(view, segments)):
                reason = (
                    f"waits for the update of variable {variable.name!r} with what it adds up, and reads rows then; "
                    "those of a table are read when the ids are there"
                )
                return Obstacle(name, reason)
            reads = reads_before(view, gather.inputs[0])
            if not any(view.node(read).op == "ReadVariableOp" for read in reads):
                continue
            before = ancestors(view, [*lookup.controls, gather.inputs[1].node])
            if not writes.isdisjoint(before):
                reason = (
                    f"gathers after the update of variable {variable.name!r} what {reads[-1]!r} may have read before; "
                    "a table is looked up when the gather runs"
                )
                return Obstacle(name, reason)
    return None


def _reads_awaited(view: GraphView, variable: StaticVariable) -> Obstacle | None:
    """A node that waits for a read of the variable, not for a lookup."""
    for name in variable.nodes:
        uses = uses_of(view, name)
        going = {*uses.nodes(), *(save for save, _ in uses.saves)}
        for read in uses.reads:
            waiting = next(_waiting_for(view, read, uses, going), None)
            if waiting is not None:
                return Obstacle(waiting, f"waits for {read!r}, which reads all of variable {name!r}")
    return None


def _waiting_for(view: GraphView, read: str, uses: Uses, going: Collection[str]) -> Iterator[str]:
    """The nodes that wait for a read of a variable and can wait neither for the lookup nor for what saves the table.

    A function lets its results wait for all that it reads. For what nobody looks at, or for a shape, nobody need wait.
    """
    readers = _readers(view, read, uses)
    if not readers:
        return
    for name in view.control_consumers(read):
        if name in going:
            continue
        node = view.node(name)
        others = [source for source in (*(ref.node for ref in node.inputs), *node.controls) if source not in going]
        left = readers - ancestors(view, others)
        # Where the lookup does not depend on it, it waits for the lookup instead.
        if not left <= set(uses.gathers) or name in ancestors(view, left):
            yield name


def _readers(view: GraphView, read: str, uses: Uses) -> set[str]:
    """What is done with a value that was read, but for asking its shape."""
    found: set[str] = set()
    stack = [read]
    while stack:
        for edge in view.data_edges(stack.pop()):
            if edge.consumer in uses.reads:
                stack.append(edge.consumer)
            elif edge.consumer not in uses.shapes:
                found.add(edge.consumer)
    return found


def _sources(
    view: GraphView, variable: StaticVariable, gradient: Gradient, update: Update
) -> tuple[Source, ...] | Obstacle:
    whole = _ids_of_lookups(view, variable.lookups)
    pooled = _ids_of_lookups(view, (lookup for lookup in variable.lookups if lookup.is_pooled))
    found: list[Source] = []
    for segment in gradient.segments:
        ids = ids_summed_by(view, segment)
        source = whole.get(segment)
        if source is None and ids in pooled:
            source = replace(pooled[ids], summed_by=segment.node)
            obstacle = why_not_by_position(view, segment.node, update, gradient)
            if obstacle is not None:
                return obstacle
        if source is None and view.node(segment.node).op == "Unique":
            reason = f"updates rows of the ids that {segment.node!r} has made distinct, not of those of a lookup"
            return Obstacle(update.nodes[0], f"{reason}; give the optimizer the gradient as tf.gradients gives it")
        if source is None:
            reason = f"updates rows of {segment.node!r}, which are not those of a lookup of the variable"
            return Obstacle(update.nodes[0], reason)
        if not ancestors(view, source.lookup.controls).isdisjoint(update.nodes):
            reason = f"updates rows that {source.lookup.node!r} looks up after it"
            return Obstacle(update.nodes[0], reason)
        found.append(source)
    return tuple(found)


def _ids_of_lookups(view: GraphView, lookups: Iterable[StaticLookup]) -> dict[TensorRef | None, Source]:
    """Lookup and part by the tensor that holds the ids of each gather."""
    found: dict[TensorRef | None, Source] = {}
    for lookup in sorted(lookups, key=lambda lookup: bool(lookup.controls)):
        for part, gather in enumerate(lookup.gathers):
            found.setdefault(flat_origin(view, view.node(gather).inputs[1]), Source(lookup, part))
    return found
