"""Which tensors and ops `recgraph verify` runs in two graphs, found by name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

import click

if TYPE_CHECKING:
    from mx_rec.graph.files import LoadedGraph
    from mx_rec.graph.node import TensorRef
    from mx_rec.graph.view import GraphView

_DEFAULT_NAMES = ("loss", "losses", "total_loss", "train_op", "train")  # of collections in any case, and of nodes
_HINTS_INPUT = 2  # of MxRecFind and MxRecFindOrInsert
_NOT_FETCHED = ("resource", "variant")
_SERVING = "serving_default"


@dataclass(frozen=True)
class Side:
    """One of the two graphs.

    Attributes:
        label: "A" or "B".
        loaded: its file.
        view: its graph.
    """

    label: str
    loaded: LoadedGraph
    view: GraphView

    def __str__(self) -> str:
        return f"{self.label} ('{self.loaded.path}')"


@dataclass(frozen=True)
class Fetch:
    """What is run in both graphs.

    Attributes:
        name: what it is called in the report.
        targets: its name in A and in B: `node:index` of a tensor, `node` of an op without outputs.
        is_op: whether it has no outputs.
    """

    name: str
    targets: tuple[str, str]
    is_op: bool

    @property
    def nodes(self) -> tuple[str, str]:
        """The nodes behind the targets."""
        first, second = (target.partition(":")[0] for target in self.targets)
        return first, second


def choose_fetches(sides: tuple[Side, Side], names: Sequence[str], signature: Optional[str] = None) -> list[Fetch]:
    """The fetches by name; without names, the results of a signature of SavedModels, else what trains and how well.

    A name is a tensor (`loss:0`), a node (`loss`: its first output, or the op if it has none) or a collection of
    a MetaGraphDef. What a rewrite has replaced is looked up by what replaced it.

    Raises:
        click.UsageError: a name is in neither graph, or one graph has nothing for it.
    """
    if signature is not None or (not names and all(side.loaded.tags is not None for side in sides)):
        served = _served(sides, signature)
        if served and not names:
            return served
    if not names:
        names = _default_names(sides)
        if not names:
            raise click.UsageError(
                "no fetch was given, and the graphs have no collection or node named "
                f"{', '.join(_DEFAULT_NAMES)}: name the loss and the train op with --fetch"
            )
    fetches: dict[tuple[str, str], Fetch] = {}
    for member in (member for name in names for member in _members(sides, name)):
        fetch = _fetch(sides, member)
        fetches.setdefault(fetch.targets, fetch)
    return list(fetches.values())


def signature_of(side: Side, key: Optional[str]) -> Any:
    """A signature of a SavedModel: of this key, else serving_default, else the only one; `None` if there is none."""
    if side.loaded.tags is None:
        return None
    there = {name: value for name, value in side.loaded.message.signature_def.items() if value.outputs}
    there = {name: value for name, value in there.items() if not name.startswith("__")}
    if key is not None or _SERVING in there:
        return there.get(key or _SERVING)
    return next(iter(there.values())) if len(there) == 1 else None


def _served(sides: tuple[Side, Side], key: Optional[str]) -> list[Fetch]:
    found = [signature_of(side, key) for side in sides]
    for side, signature in zip(sides, found):
        if signature is None and key is not None:
            there = ", ".join(side.loaded.signatures()) or "none"
            raise click.UsageError(f"--signature: {side} is no SavedModel with a signature '{key}'; it has {there}")
    if found[0] is None or found[1] is None:
        return []
    fetches = []
    for name in sorted({*found[0].outputs, *found[1].outputs}):
        for side, signature in zip(sides, found):
            if name not in signature.outputs:
                raise click.UsageError(f"the signature of {side} has no result '{name}', which that of the other has")
        fetches.append(Fetch(name, (found[0].outputs[name].name, found[1].outputs[name].name), is_op=False))
    return fetches


def resolve_nodes(side: Side, option: str, names: Iterable[str]) -> list[str]:
    """Nodes of one graph by the name of a node, a tensor or a collection.

    Raises:
        click.UsageError: a name is none of these.
    """
    found: dict[str, None] = {}
    for name in names:
        members = [name] if _node(name) in side.view else side.loaded.collection(name)
        if not members:
            raise click.UsageError(f"{option}: {side} has no node or collection '{name}'{_similar([side], name)}")
        found.update(dict.fromkeys(_node(member) for member in members if _node(member) in side.view))
    return list(found)


def _default_names(sides: tuple[Side, Side]) -> list[str]:
    for side in sides:
        named = [name for name in side.loaded.collections() if name.lower() in _DEFAULT_NAMES]
        names = [member for name in named for member in side.loaded.collection(name)]
        names.extend(name for name in _DEFAULT_NAMES if name in side.view)
        if names:
            return list(dict.fromkeys(names))
    return []


def _members(sides: tuple[Side, Side], name: str) -> Sequence[str]:
    """The name itself if it is of a node, or what its collection holds."""
    if any(_node(name) in side.view for side in sides):
        return [name]
    for side in sides:
        members = side.loaded.collection(name)
        if members:
            return members
    raise click.UsageError(f"--fetch: neither graph has a node or collection '{name}'{_similar(sides, name)}")


def _fetch(sides: tuple[Side, Side], name: str) -> Fetch:
    targets = tuple(_target(side, other, name) for side, other in (sides, sides[::-1]))
    kinds = [":" not in target for target in targets]
    if kinds[0] != kinds[1]:
        raise click.UsageError(f"--fetch: '{name}' is an op without outputs in one graph and a tensor in the other")
    return Fetch(name, (targets[0], targets[1]), kinds[0])


def _target(side: Side, other: Side, name: str) -> str:
    from mx_rec.graph.attrs import base_dtype, dtype_name

    ref = _parsed(name)
    found = _present(side.view, ref) or _stand_in(side.view, other.view, ref)
    if found is None:
        raise click.UsageError(f"--fetch: {side} has no '{name}'{_waiting(side.view, other.view, ref.node)}")
    types = side.view.types(found.node)
    outputs = types.outputs if types else ()
    if not outputs and found.index == 0:
        return found.node
    if found.index >= len(outputs):
        raise click.UsageError(
            f"--fetch: '{name}': node '{found.node}' of {side} has {len(outputs)} outputs, not {found.index + 1}"
        )
    kind = dtype_name(base_dtype(outputs[found.index]))
    if kind in _NOT_FETCHED:
        raise click.UsageError(f"--fetch: '{name}' of {side} is a {kind}, which has no value to compare")
    return str(found)


def _parsed(name: str) -> TensorRef:
    from mx_rec.graph.node import parse_ref

    try:
        return parse_ref(name)
    except ValueError as error:
        raise click.UsageError(f"--fetch: expected NAME or NAME:INDEX, got '{name}'") from error


def _present(view: GraphView, ref: TensorRef) -> Optional[TensorRef]:
    """The tensor of this name. A batch that the rewrite replaced fails when fetched: then the new batch."""
    from mx_rec.graph.iterators import replaced_get_nexts
    from mx_rec.graph.node import TensorRef

    new = replaced_get_nexts(view).get(ref.node)
    if new is not None:
        return TensorRef(new, ref.index)
    return ref if ref.node in view else None


def _stand_in(view: GraphView, other: GraphView, ref: TensorRef) -> Optional[TensorRef]:
    """What replaced a tensor of the other graph: what its readers read here, else what a fused op gives for it."""
    from mx_rec.graph.node import TensorRef
    from mx_rec.graph.op_signatures import OP_FIND, OP_FIND_OR_INSERT, OP_FORWARD

    if ref.node not in other:
        return None
    read_here = set()
    for use in other.consumers(ref):
        reader = view.get(use.node)
        if use.index >= _HINTS_INPUT and other.node(use.node).op in (OP_FIND, OP_FIND_OR_INSERT):
            continue  # hints and counts are not replaced by their equals
        if reader is not None and reader.op == other.node(use.node).op and use.index < len(reader.inputs):
            read_here.add(reader.inputs[use.index])
    if len(read_here) == 1:
        return read_here.pop()
    forward = view.get(f"{ref.node}/fused")
    return TensorRef(forward.name, 0) if forward is not None and forward.op == OP_FORWARD else None


def _waiting(view: GraphView, other: GraphView, name: str) -> str:
    """Advice for a node that only the other graph has."""
    waiting = [reader for reader in other.control_consumers(name) if reader in view]
    if waiting:
        return f", which it replaced: fetch what waits for it, such as '{waiting[0]}'"
    return ", and nothing in it stands for it"


def _node(name: str) -> str:
    return name.partition(":")[0]


def _similar(sides: Iterable[Side], name: str) -> str:
    known = {node.name for side in sides for node in side.view}
    known.update(collection for side in sides for collection in side.loaded.collections())
    close = difflib.get_close_matches(_node(name), known, n=3) if len(known) < 20_000 else []
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
