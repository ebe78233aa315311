"""`tf.nn.embedding_lookup` of a partitioned variable: ids divided among parts, gathered, and stitched together."""

from __future__ import annotations

from dataclasses import dataclass

from mx_rec.graph.iterators import Obstacle
from mx_rec.graph.node import Node, TensorRef
from mx_rec.graph.view import GraphView
from mx_rec.passes.static_lookups.values import flat_origin, same_formula, small_number, stripped, written_dims
from mx_rec.passes.static_lookups.variables import GATHERS, variable_behind

STITCHES = ("ParallelDynamicStitch", "DynamicStitch")
MOD = "mod"
DIV = "div"


@dataclass(frozen=True)
class Parts:
    """A lookup of a partitioned variable.

    Attributes:
        stitch: the node whose result the rows are.
        variables: the partitions, in order.
        gathers: the gather of each.
        positions: for each the positions in the flat ids.
        ids: the flat ids; of nothing, if they could not be told.
        strategy: "mod" or "div"; "" if it could not be told.
        obstacle: why it is neither; `None` if it is one.
    """

    stitch: str
    variables: tuple[str, ...]
    gathers: tuple[str, ...]
    positions: tuple[TensorRef, ...]
    ids: TensorRef
    strategy: str
    obstacle: Obstacle | None


def parts_of(view: GraphView, stitch: Node) -> Parts | None:
    """The lookup whose rows `stitch` puts together; `None` if it does not stitch gathers of variables."""
    n = stitch.int_attr("N")
    positions, data = stitch.inputs[:n], stitch.inputs[n : 2 * n]
    gathers = [view.node(stripped(view, ref).node) for ref in data]
    if n < 2 or len(data) != n or any(node.op not in GATHERS for node in gathers):
        return None
    variables = [variable_behind(view, node.inputs[0]) for node in gathers]
    if any(name is None for name in variables) or len(set(variables)) != n:
        return None
    local_ids = [node.inputs[1] for node in gathers]
    ids, strategy, obstacle = _rule(view, stitch, list(positions), local_ids, [str(name) for name in variables])
    return Parts(
        stitch=stitch.name,
        variables=tuple(str(name) for name in variables),
        gathers=tuple(node.name for node in gathers),
        positions=tuple(positions),
        ids=ids,
        strategy=strategy,
        obstacle=obstacle,
    )


def _rule(
    view: GraphView, stitch: Node, positions: list[TensorRef], local_ids: list[TensorRef], variables: list[str]
) -> tuple[TensorRef, str, Obstacle | None]:
    """(the flat ids, the strategy, what is not as `embedding_lookup` builds it)."""
    n = len(variables)
    divide = _partition(view, local_ids, n)
    divide_positions = _partition(view, positions, n)
    if divide is None or divide_positions is None or divide.inputs[1] != divide_positions.inputs[1]:
        reason = "stitches rows of several variables, but not by one DynamicPartition of their ids"
        return local_ids[0], "", Obstacle(stitch.name, reason)
    part_of = flat_origin(view, divide.inputs[1])
    local = flat_origin(view, divide.inputs[0])
    ids = _mod_ids(view, part_of, local, n)
    if ids is not None:
        return _checked_positions(view, stitch, divide_positions, ids, MOD)
    sizes = [(written_dims(view.node(name)) or (None,))[0] for name in variables]
    ids = _div_ids(view, part_of, local, n, sizes)
    if ids is not None:
        return _checked_positions(view, stitch, divide_positions, ids, DIV)
    return divide.inputs[0], "", Obstacle(divide.name, "divides ids neither by 'mod' nor by 'div' of embedding_lookup")


def _checked_positions(
    view: GraphView, stitch: Node, divide: Node, ids: TensorRef, strategy: str
) -> tuple[TensorRef, str, Obstacle | None]:
    """The positions must be those of the flat ids: a range from 0 of their number."""
    counted = view.node(stripped(view, divide.inputs[0]).node)
    is_range = (
        counted.op == "Range"
        and small_number(view, counted.inputs[0]) == 0
        and small_number(view, counted.inputs[2]) == 1
        and _is_size_of(view, counted.inputs[1], ids)
    )
    obstacle = None if is_range else Obstacle(counted.name, "does not number the ids that are looked up")
    return ids, strategy, obstacle


def _is_size_of(view: GraphView, size: TensorRef, ids: TensorRef) -> bool:
    node = view.node(flat_origin(view, size).node)
    if node.op == "Size":
        return flat_origin(view, node.inputs[0]) == flat_origin(view, ids)
    known = small_number(view, size)
    if known is None:
        return False
    for ref in (ids, stripped(view, ids), flat_origin(view, ids)):  # a Reshape to [-1] says less than what it reads
        dims = view.shape(ref)
        if dims is not None and not dims.unknown_rank and all(dim.size >= 0 for dim in dims.dim):
            total = 1
            for dim in dims.dim:
                total *= dim.size
            return bool(total == known)
    return False


def _partition(view: GraphView, outputs: list[TensorRef], n: int) -> Node | None:
    """The DynamicPartition whose n outputs these are, in order."""
    node = view.node(outputs[0].node)
    if node.op != "DynamicPartition" or node.int_attr("num_partitions") != n:
        return None
    return node if outputs == [TensorRef(node.name, index) for index in range(n)] else None


def _mod_ids(view: GraphView, part_of: TensorRef, local: TensorRef, n: int) -> TensorRef | None:
    """The ids of `ids % n` and `ids // n`."""
    mod, div = view.node(part_of.node), view.node(local.node)
    if mod.op != "FloorMod" or div.op != "FloorDiv" or not same_formula(view, mod.inputs[0], div.inputs[0]):
        return None
    if small_number(view, mod.inputs[1]) != n or small_number(view, div.inputs[1]) != n:
        return None
    return mod.inputs[0]


def _div_ids(
    view: GraphView, part_of: TensorRef, local: TensorRef, n: int, sizes: list[int | None]
) -> TensorRef | None:
    """The ids of `max(ids // (s + 1), (ids - e) // s)`, the first e of n parts of s + 1 rows, the others of s."""
    if any(size is None for size in sizes):
        return None
    rows = sum(size or 0 for size in sizes)
    small, extras = divmod(rows, n)
    if sizes != [small + (index < extras) for index in range(n)]:
        return None
    part, row = view.node(part_of.node), view.node(local.node)
    if part.op != "Maximum" or row.op not in ("Select", "SelectV2"):
        return None
    in_large, in_small = (view.node(ref.node) for ref in part.inputs)
    ids = in_large.inputs[0] if in_large.op == "FloorDiv" else None
    if ids is None or small_number(view, in_large.inputs[1]) != small + 1:
        return None
    if in_small.op != "FloorDiv" or not _is_shifted(view, in_small.inputs[0], ids, extras):
        return None
    if small_number(view, in_small.inputs[1]) != small:
        return None
    return ids if _is_local_row(view, row, part, ids, small, extras) else None


def _is_local_row(view: GraphView, row: Node, part: Node, ids: TensorRef, small: int, extras: int) -> bool:
    """Whether `row` is `ids % (s + 1)` in the first e parts and `(ids - e) % s` in the others."""
    first, large, rest = (view.node(stripped(view, ref).node) for ref in row.inputs)
    return (
        first.op == "Less"
        and stripped(view, first.inputs[0]).node == part.name
        and small_number(view, first.inputs[1]) == extras
        and large.op == "FloorMod"
        and stripped(view, large.inputs[0]) == stripped(view, ids)
        and small_number(view, large.inputs[1]) == small + 1
        and rest.op == "FloorMod"
        and _is_shifted(view, rest.inputs[0], ids, extras)
        and small_number(view, rest.inputs[1]) == small
    )


def _is_shifted(view: GraphView, ref: TensorRef, ids: TensorRef, shift: int) -> bool:
    node = view.node(stripped(view, ref).node)
    return (
        node.op == "Sub"
        and stripped(view, node.inputs[0]) == stripped(view, ids)
        and small_number(view, node.inputs[1]) == shift
    )
