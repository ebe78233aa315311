"""Plain TensorFlow lookups: gathers of rows of a variable, alone or of one that is partitioned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from mx_rec.constants.constants import ATTR_LOOKUP
from mx_rec.graph.attrs import DT_INT32, DT_INT64, DT_RESOURCE, const_value
from mx_rec.graph.functions import functions_called
from mx_rec.graph.iterators import Obstacle
from mx_rec.graph.node import Node, TensorRef
from mx_rec.graph.view import GraphView
from mx_rec.passes.static_lookups.partitions import STITCHES, Parts, parts_of
from mx_rec.passes.static_lookups.surroundings import SEGMENT_OPS, pattern_of
from mx_rec.passes.static_lookups.values import small_number, written_dims
from mx_rec.passes.static_lookups.variables import (
    READS_ROWS,
    RESOURCE_VARIABLE,
    in_control_flow,
    reads_before,
    uses_of,
    variable_behind,
    variable_nodes,
    why_no_table,
)

_INDEX_TYPES = (DT_INT32, DT_INT64)
_ND = ("ResourceGatherNd", "GatherNd")


@dataclass(frozen=True)
class StaticLookup:
    """One lookup of rows of a variable.

    Attributes:
        node: the node whose result the rows are: a gather, the stitch of the gathers of a partitioned variable, or an
            op that gathers rows and adds them up in one.
        op: its type.
        pattern: what it is part of, in the words of TensorFlow's API: "embedding_lookup",
            "embedding_lookup_sparse (mean)", "safe_embedding_lookup_sparse (sum, weighted)".
        variable: the variable, or the common name of the partitions.
        variables: the nodes of the variable, in the order of the partitions.
        strategy: "mod" or "div" if it is partitioned, else "".
        ids: the ids, in the numbering of the whole variable.
        is_nd: whether `ids` have a last dimension of size 1, which the rows do not.
        gathers: the gathers, one for each of `variables`.
        positions: of a partitioned variable, for each part the positions in the flat ids.
        controls: what its rows are read after: nodes that the gathers, and what they read, wait for.
        obstacle: why it cannot become a lookup of a table; `None` if it can.
    """

    node: str
    op: str
    pattern: str
    variable: str
    variables: tuple[str, ...]
    strategy: str
    ids: TensorRef | None
    is_nd: bool
    gathers: tuple[str, ...]
    positions: tuple[TensorRef, ...]
    controls: tuple[str, ...]
    obstacle: Obstacle | None

    @property
    def is_pooled(self) -> bool:
        """Whether `node` gives sums of rows: `embedding_lookup_sparse` without weights on a reference variable."""
        return self.op in SEGMENT_OPS


@dataclass(frozen=True)
class StaticVariable:
    """A variable, whole or partitioned, of which some rows are looked up.

    Attributes:
        name: its name; of a partitioned variable the common part of the names.
        nodes: its nodes, in the order of the partitions.
        rows: rows of each node.
        dim: columns.
        strategy: "mod" or "div" if it is partitioned, else "".
        lookups: in graph order.
        obstacle: why it cannot become a table for what is read of it; `None` if it can. Updates are judged elsewhere.
    """

    name: str
    nodes: tuple[str, ...]
    rows: tuple[int, ...]
    dim: int
    strategy: str
    lookups: tuple[StaticLookup, ...]
    obstacle: Obstacle | None


def static_variables(view: GraphView) -> list[StaticVariable]:
    """The variables of which some rows are looked up outside functions, in graph order."""
    found: list[StaticVariable] = view.cached("static_variables", _static_variables)
    return found


def static_lookups(view: GraphView) -> list[StaticLookup]:
    """All lookups of rows of variables outside functions, by variable."""
    return [lookup for variable in static_variables(view) for lookup in variable.lookups]


def lookups_in_functions(view: GraphView) -> list[Obstacle]:
    """The gathers, of an argument, inside library functions that the graph calls."""
    found: list[Obstacle] = []
    for function in functions_called(view.functions, (node.proto for node in view if _calls(view, node))):
        arguments = {arg.name for arg in function.signature.input_arg if arg.type == DT_RESOURCE}
        for node in function.node_def:
            if node.op in ("ResourceGather", "ResourceGatherNd") and node.input[0] in arguments:
                name = function.signature.name
                reason = (
                    f"looks up argument {node.input[0]!r} inside function {name!r}; it is converted only where the "
                    "calls of that can be inlined, so not in branches and loops"
                )
                found.append(Obstacle(f"{name}/{node.name}", reason))
    return found


def _calls(view: GraphView, node: Node) -> bool:
    schema = view.schema(node.op)
    return schema is not None and (bool(schema.function_attrs) or view.function(node.op) is not None)


def _static_variables(view: GraphView) -> list[StaticVariable]:
    stitched = _stitched(view)
    in_parts = {name for parts in stitched for name in parts.variables}
    whole: dict[str, list[StaticLookup]] = {}
    for node in view.nodes_of(*READS_ROWS):
        variable = variable_behind(view, node.inputs[0]) if node.inputs else None
        if variable is not None and not node.has_attr(ATTR_LOOKUP):  # else of a table of fixed capacity
            whole.setdefault(variable, []).append(_whole_lookup(view, node, variable))
    result: list[StaticVariable] = []
    groups = _by_variables(stitched)
    times = Counter(name for names in groups for name in names)
    for names, group in groups.items():
        twice = next((name for name in names if times[name] > 1), None)
        if twice is not None:
            reason = f"stitches partition {twice!r} with others than another lookup does"
            group = [replace(parts, obstacle=Obstacle(parts.stitch, reason)) for parts in group]
        lookups = [_stitched_lookup(view, parts) for parts in group]
        covered = {gather for parts in group for gather in parts.gathers}
        apart = [lookup for name in names for lookup in whole.get(name, ()) if lookup.node not in covered]
        result.append(_variable(view, names, group[0].strategy, lookups, apart))
    result.extend(_variable(view, (name,), "", lookups, ()) for name, lookups in whole.items() if name not in in_parts)
    order = {node.name: index for index, node in enumerate(variable_nodes(view))}
    return sorted(result, key=lambda variable: order[variable.nodes[0]])


def _stitched(view: GraphView) -> list[Parts]:
    found = (parts_of(view, node) for node in view.nodes_of(*STITCHES))
    return [parts for parts in found if parts is not None]


def _by_variables(stitched: Iterable[Parts]) -> dict[tuple[str, ...], list[Parts]]:
    groups: dict[tuple[str, ...], list[Parts]] = {}
    for parts in stitched:
        groups.setdefault(parts.variables, []).append(parts)
    return groups


def _variable(
    view: GraphView,
    nodes: tuple[str, ...],
    strategy: str,
    lookups: list[StaticLookup],
    apart: Iterable[StaticLookup],
) -> StaticVariable:
    dims: list[tuple[int | None, ...]] = [written_dims(view.node(name)) or () for name in nodes]
    obstacle = next((found for found in (why_no_table(view, name) for name in nodes) if found is not None), None)
    if obstacle is None:
        obstacle = next((lookup.obstacle for lookup in lookups if lookup.obstacle is not None), None)
    if obstacle is None:
        obstacle = next((Obstacle(lookup.node, "gathers of one partition alone") for lookup in apart), None)
    if obstacle is None:
        other = (lookup for lookup in lookups if lookup.strategy != strategy)
        reason = f"divides ids otherwise than {lookups[0].node!r}, so one id has two rows"
        obstacle = next((Obstacle(lookup.node, reason) for lookup in other), None)
    if obstacle is None:
        obstacle = next((found for found in (_read_whole(view, name) for name in nodes) if found is not None), None)
    return StaticVariable(
        name=common_name(nodes),
        nodes=nodes,
        rows=tuple((size[0] or 0) if len(size) == 2 else 0 for size in dims),
        dim=(dims[0][1] or 0) if len(dims[0]) == 2 else 0,
        strategy=strategy,
        lookups=tuple([*lookups, *apart]),
        obstacle=obstacle,
    )


def common_name(nodes: tuple[str, ...]) -> str:
    """`emb` for `emb/part_0`, `emb/part_1`; the name itself for one."""
    parents = {name.rpartition("/part_")[0] for name in nodes}
    if len(nodes) > 1 and len(parents) == 1 and "" not in parents:
        return parents.pop()
    return nodes[0]


def _read_whole(view: GraphView, variable: str) -> Obstacle | None:
    others = uses_of(view, variable).others
    if not others:
        return None
    node = view.node(others[0])
    return Obstacle(node.name, f"op {node.op!r} reads all of variable {variable!r}, not rows of it")


def _whole_lookup(view: GraphView, node: Node, variable: str) -> StaticLookup:
    return StaticLookup(
        node=node.name,
        op=node.op,
        pattern=pattern_of(view, TensorRef(node.name, 0), node.inputs[1]),
        variable=variable,
        variables=(variable,),
        strategy="",
        ids=node.inputs[1],
        is_nd=node.op in _ND,
        gathers=(node.name,),
        positions=(),
        controls=_controls(view, (node.name,)),
        obstacle=_gather_obstacle(view, node, variable),
    )


def _gather_obstacle(view: GraphView, node: Node, variable: str) -> Obstacle | None:
    is_resource = view.node(variable).op == RESOURCE_VARIABLE
    if in_control_flow(view, node.inputs[0]):
        return Obstacle(node.name, "is in a branch or a loop of TensorFlow 1, where lookups are not converted")
    if node.op in ("ResourceGather", "ResourceGatherNd") and node.inputs[0].node != variable:
        return Obstacle(node.name, f"does not read the handle of variable {variable!r} itself")
    if node.int_attr("batch_dims"):
        return Obstacle(node.name, "gathers row by row of a batch (batch_dims is not 0)")
    if node.op == "GatherV2" and not _is_zero(view, node.inputs[2]):
        return Obstacle(node.name, "gathers along another axis than 0, or one that is not constant")
    if view.dtype(node.inputs[1]) not in _INDEX_TYPES:
        return Obstacle(node.name, "takes ids that are neither int32 nor int64")
    if node.op in _ND:
        dims = view.shape(node.inputs[1])
        if dims is None or dims.unknown_rank or not dims.dim or dims.dim[-1].size != 1:
            return Obstacle(node.name, "takes indices whose last dimension is not known to be 1, so they name no rows")
    if not is_resource and node.op in ("ResourceGather", "ResourceGatherNd"):
        return Obstacle(node.name, "reads a reference variable as a resource")
    return None


def _is_zero(view: GraphView, axis: TensorRef) -> bool:
    """Whether an axis is 0, also a constant that waits for something: the lookup then waits for that."""
    node = view.node(axis.node)
    value = node.attr("value")
    if node.op != "Const" or value is None:
        return bool(small_number(view, axis) == 0)
    return bool((const_value(value) == 0).all())


def _controls(view: GraphView, nodes: Iterable[str]) -> tuple[str, ...]:
    """What these nodes of a lookup wait for, with the axes of the gathers and the reads before them."""
    found: dict[str, None] = {}
    own = set(nodes)
    for name in nodes:
        node = view.node(name)
        found.update(dict.fromkeys(node.controls))
        if node.op not in READS_ROWS:
            continue
        own.update(chain := reads_before(view, node.inputs[0]))
        read_after = [*chain, node.inputs[2].node] if node.op == "GatherV2" else chain
        for source in read_after:
            found.update(dict.fromkeys(view.node(source).controls))
    return tuple(name for name in found if name not in own)


def _stitched_lookup(view: GraphView, parts: Parts) -> StaticLookup:
    obstacle = parts.obstacle
    for gather, variable in zip(parts.gathers, parts.variables):
        obstacle = obstacle or _gather_obstacle(view, view.node(gather), variable)
    return StaticLookup(
        node=parts.stitch,
        op=view.node(parts.stitch).op,
        pattern=pattern_of(view, TensorRef(parts.stitch, 0), parts.ids),
        variable=common_name(parts.variables),
        variables=parts.variables,
        strategy=parts.strategy,
        ids=parts.ids,
        is_nd=False,
        gathers=parts.gathers,
        positions=parts.positions,
        controls=_controls(view, (*parts.gathers, parts.stitch)),
        obstacle=obstacle,
    )
