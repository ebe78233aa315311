"""Lets the step draw the prepared batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from mx_rec.constants.constants import ASCEND_CUTTING_POINT_INITIALIZER, ATTR_COLLECTIONS
from mx_rec.errors import GraphRewriteError
from mx_rec.graph import marks
from mx_rec.graph.attrs import (
    DT_BOOL,
    DT_STRING,
    AttrValue,
    attr_bytes,
    attr_func,
    attr_strings,
    attr_tensor,
    attr_type,
    attr_types,
)
from mx_rec.graph.datasets import ElementSpec, iterator_attrs
from mx_rec.graph.edits import EditSet
from mx_rec.graph.iterators import (
    BY_HANDLE,
    FILLED,
    GET_NEXT,
    MAKE_ITERATOR,
    ONE_SHOT,
    TO_STRING_HANDLE,
    iterator_info,
)
from mx_rec.graph.node import Node, TensorRef, parse_ref
from mx_rec.graph.op_signatures import OP_FIND, OP_FIND_OR_INSERT
from mx_rec.graph.view import GraphView
from mx_rec.passes.base import Pass, PassOutcome

_HINTS_INPUT = 2  # of MxRecFindOrInsert and MxRecFind


@dataclass(frozen=True)
class SwapIterators(Pass):
    """Replaces the iterators whose lookups were hoisted.

    Before::

        dataset, iterator -> MakeIterator;  dataset -> MapDataset -> PrefetchDataset
        iterator -> get_next -> ... -> MxRecUnique -> MxRecFindOrInsert(table, keys, hints=[])

    After::

        PrefetchDataset, new iterator -> MakeIterator
        new iterator -> new get_next -> MxRecFindOrInsert(table, keys, hints)
        stand-in iterator -> get_next     (fails with a message when fetched)

    Everything that read the old batch, waited for it, or read a moved tensor reads the new batch, so the same
    MakeIterator op still starts the training and every other tensor keeps its value. The old get_next would
    draw from an iterator that nothing fills: it is given a stand-in that fails and says what to fetch instead.
    The MakeIterator ops join the collection of rebuilt iterators' initializers. An iterator that draws by handle draws
    by the same handle afterwards, and the handles that a script fetches are those of the new iterators.

    Preconditions: the marks that `hoist_lookups` leaves; without them it changes nothing. Refuses nothing, and fails
    when the marks contradict each other or the graph.
    """

    name: ClassVar[str] = "swap_iterators"

    def run(self, view: GraphView) -> PassOutcome:
        """See `Pass.run`."""
        edits = EditSet(author=self.name)
        # In graph order, so that the new iterators come in the order of the old ones.
        hoisted = [n for n in view if n.op in (*FILLED, *BY_HANDLE) and n.has_attr(marks.HOIST_TYPES)]
        names = {
            get_next: view.unique_name(f"mx_rec/{get_next}/get_next")
            for iterator in hoisted
            for get_next in iterator_info(view, iterator.name).get_nexts
        }
        for iterator in hoisted:
            _check_marks(view, iterator, names)
        return PassOutcome(edits, [_Swap(view, edits, iterator, names).apply() for iterator in hoisted])


def _check_marks(view: GraphView, iterator: Node, names: Mapping[str, str]) -> None:
    """Attributes that start with an underscore pass through TensorFlow unseen, so they may be from anywhere."""
    types = iterator.types_attr(marks.HOIST_TYPES)
    lists = [
        (iterator.strings_attr(marks.HOIST_TENSORS), marks.HOIST_TENSOR_SOURCES, marks.HOIST_TENSOR_COMPONENTS),
        (iterator.strings_attr(marks.HOIST_FINDS), marks.HOIST_FIND_SOURCES, marks.HOIST_FIND_COMPONENTS),
    ]
    is_sound = 0 < len(types) == len(iterator.shapes_attr(marks.HOIST_SHAPES))
    for things, sources_attr, components_attr in lists:
        sources, components = iterator.strings_attr(sources_attr), iterator.ints_attr(components_attr)
        is_sound &= len(things) == len(sources) == len(components)
        is_sound &= all(source in names for source in sources)
        is_sound &= all(component >= 0 for component in components)  # too large ones: the verifier names the reader
    finds = [view.get(name) for name in iterator.strings_attr(marks.HOIST_FINDS)]
    is_sound &= all(find is not None and find.op in (OP_FIND, OP_FIND_OR_INSERT) for find in finds)
    is_sound &= all(_is_tensor(view, text) for text in iterator.strings_attr(marks.HOIST_TENSORS))
    if not is_sound:
        raise GraphRewriteError(
            f"node {iterator.name!r}: its attributes '_mx_rec_hoist_...' contradict each other or the graph; "
            "rewrite the graph as it was before any pass"
        )


def _is_tensor(view: GraphView, text: str) -> bool:
    try:
        return parse_ref(text).node in view
    except ValueError:
        return False


class _Swap:
    """The swap of one iterator."""

    def __init__(self, view: GraphView, edits: EditSet, old: Node, new_get_next: Mapping[str, str]) -> None:
        self._view = view
        self._edits = edits
        self._old = old
        self._spec = ElementSpec(old.types_attr(marks.HOIST_TYPES), old.shapes_attr(marks.HOIST_SHAPES))
        self._new_get_next = new_get_next  # of every iterator that is swapped: they may wait for one another
        self._disconnected: dict[str, None] = {}

    def apply(self) -> str:
        """Write the edits. Returns a note for the report."""
        new = self._add_iterator()
        users = [self._view.node(edge.consumer) for edge in self._view.data_edges(self._old.name)]
        for user in dict.fromkeys(users):
            if user.op == GET_NEXT:
                self._replace_get_next(user, new)
            elif user.op == MAKE_ITERATOR:
                self._refill(user, new)
            elif user.op == TO_STRING_HANDLE:
                self._edits.set_input(user.name, 0, new)
        self._redirect_moved_tensors()
        self._connect_hints()
        self._settle_marks()
        return f"iterator {self._old.name!r} replaced by {new.node!r}"

    def _add_iterator(self) -> TensorRef:
        name = self._view.unique_name(f"mx_rec/{self._old.name}/iterator")
        if self._old.op in BY_HANDLE:
            handle, attrs = self._old.inputs, self._spec.attrs()
            return self._edits.add_node(name, self._old.op, handle, attrs, device=self._old.device)
        shared_name = self._old.str_attr("shared_name")
        new_shared_name = f"{shared_name}_mx_rec" if shared_name else ""
        op, attrs = "IteratorV2", iterator_attrs(self._spec, new_shared_name)
        if self._old.op == ONE_SHOT:
            op = ONE_SHOT
            attrs["dataset_factory"] = attr_func(self._old.str_attr(marks.HOIST_FACTORY))
        if self._old.has_attr("container"):
            attrs["container"] = attr_bytes(self._old.str_attr("container"))
        return self._edits.add_node(name, op, (), attrs, device=self._old.device)

    def _replace_get_next(self, old: Node, iterator: TensorRef) -> None:
        name = self._new_get_next[old.name]
        attrs = {**self._spec_of_get_next(old).attrs(), marks.REPLACES: attr_bytes(old.name)}
        controls = [self._new_get_next.get(control, control) for control in old.controls]
        self._edits.add_node(name, GET_NEXT, [iterator], attrs, controls=controls, device=old.device)
        for index in range(len(old.types_attr("output_types"))):
            self._edits.redirect(self._view, TensorRef(old.name, index), TensorRef(name, index))
        self._edits.redirect_controls(self._view, old.name, name)
        self._edits.set_input(old.name, 0, self._add_stand_in(old, name))
        self._disconnected[old.name] = None

    def _spec_of_get_next(self, old: Node) -> ElementSpec:
        """The old components with the shapes that this get_next knows, which may be more than others know."""
        known = old.shapes_attr("output_shapes")
        return ElementSpec(self._spec.types, (*known, *self._spec.shapes[len(known) :]))

    def _add_stand_in(self, old: Node, new: str) -> TensorRef:
        """An iterator that fails before anyone can wait for it, with a message that helps.

        An iterator that is never filled would fail too, but TensorFlow's message would tell the user to run
        the initializer, which does not help.
        """
        message = (
            f"The batch of {old.name!r} is now prepared ahead of the step and drawn by {new!r}. "
            "Fetch get_target_batch(is_training), or tensors computed from the batch, instead of the old batch."
        )
        scope = f"mx_rec/{old.name}/moved"
        condition = self._add_const(f"{scope}/never", DT_BOOL, False, old.device)
        text = self._add_const(f"{scope}/message", DT_STRING, message, old.device)
        fail = self._view.unique_name(f"{scope}/use_get_target_batch")
        self._edits.add_node(fail, "Assert", [condition, text], {"T": attr_types([DT_STRING])}, device=old.device)
        spec = ElementSpec(old.types_attr("output_types"), old.shapes_attr("output_shapes"))
        name = self._view.unique_name(f"{scope}/iterator")
        return self._edits.add_node(
            name, "IteratorV2", (), iterator_attrs(spec), controls=[fail], device=self._old.device
        )

    def _add_const(self, hint: str, dtype: int, value: object, device: str) -> TensorRef:
        attrs: dict[str, AttrValue] = {"dtype": attr_type(dtype), "value": attr_tensor(value, dtype)}
        return self._edits.add_node(self._view.unique_name(hint), "Const", (), attrs, device=device)

    def _refill(self, maker: Node, iterator: TensorRef) -> None:
        """Let the user's own initializer op fill the new iterator."""
        self._edits.set_input(maker.name, 0, TensorRef(maker.str_attr(marks.HOIST_DATASET), 0))
        self._edits.set_input(maker.name, 1, iterator)
        self._edits.clear_attr(maker.name, marks.HOIST_DATASET)
        collections = dict.fromkeys((*maker.strings_attr(ATTR_COLLECTIONS), ASCEND_CUTTING_POINT_INITIALIZER))
        self._edits.set_attr(maker.name, ATTR_COLLECTIONS, attr_strings(collections))

    def _redirect_moved_tensors(self) -> None:
        for text, source, component in zip(
            self._old.strings_attr(marks.HOIST_TENSORS),
            self._old.strings_attr(marks.HOIST_TENSOR_SOURCES),
            self._old.ints_attr(marks.HOIST_TENSOR_COMPONENTS),
        ):
            tensor = parse_ref(text)
            self._edits.redirect(self._view, tensor, TensorRef(self._new_get_next[source], component))
            self._disconnected[tensor.node] = None

    def _connect_hints(self) -> None:
        for find, source, component in zip(
            self._old.strings_attr(marks.HOIST_FINDS),
            self._old.strings_attr(marks.HOIST_FIND_SOURCES),
            self._old.ints_attr(marks.HOIST_FIND_COMPONENTS),
        ):
            self._disconnected[self._view.node(find).inputs[_HINTS_INPUT].node] = None
            self._edits.set_input(find, _HINTS_INPUT, TensorRef(self._new_get_next[source], component))

    def _settle_marks(self) -> None:
        """The old iterator keeps one mark: what `prune` may begin with."""
        for attr in marks.HOIST_ALL:
            if self._old.has_attr(attr):
                self._edits.clear_attr(self._old.name, attr)
        names = dict.fromkeys((*self._disconnected, self._old.name))
        self._edits.set_attr(self._old.name, marks.DISCONNECTED, attr_strings(names))
