"""Iterators that draw by handle: which iterators they may draw from, and what keeps all of them as they are."""

from __future__ import annotations

from typing import Any

import pytest
from golden_cases import by_handle, dataset_factory, feedable, graph_shape, source
from lookup_graphs import FEATURES, LookupGraph
from tensorflow.core.framework import function_pb2

from mx_rec.graph.attrs import (
    DT_FLOAT,
    DT_INT64,
    DT_RESOURCE,
    DT_STRING,
    attr_bytes,
    attr_func,
    attr_int,
    attr_shapes,
    attr_type,
    attr_types,
    known_shape,
    shape_dims,
    unknown_shape,
)
from mx_rec.graph.datasets import merged_shape
from mx_rec.graph.iterator_groups import iterator_group
from mx_rec.graph.node import TensorRef
from mx_rec.graph.view import GraphView
from mx_rec.passes import PassManager, find_lookups
from mx_rec.passes.hoist_lookups import HoistLookups


def members(graph: LookupGraph, name: str) -> list[str]:
    return [member.node for member in iterator_group(GraphView(graph.graph_def()), name).members]


def refusals(graph: LookupGraph) -> list[str]:
    return [str(refusal) for refusal in PassManager([HoistLookups()]).run(graph.graph_def()).reports[0].refusals]


def one_source() -> tuple[LookupGraph, TensorRef]:
    """A lookup by handle and one iterator. Returns the iterator."""
    graph = LookupGraph()
    ids = by_handle(graph)
    iterator = source(graph, "iterator")
    graph.lookup("first", graph.table(), ids)
    return graph, iterator


ELEMENT_TYPES = tuple(FEATURES.values())


def element(shapes: list[Any], types: tuple[int, ...] = ELEMENT_TYPES) -> dict[str, Any]:
    return {"output_types": attr_types(types), "output_shapes": attr_shapes(shapes)}


def iterator_of(graph: LookupGraph, name: str, attrs: dict[str, Any]) -> TensorRef:
    iterator = graph.add(name, "IteratorV2", (), {**attrs, "container": attr_bytes(""), "shared_name": attr_bytes("")})
    graph.add(f"{name}/string_handle", "IteratorToStringHandle", [iterator])
    return iterator


def test_a_group_is_what_may_be_drawn_from_one_another() -> None:
    graph, _ = one_source()
    fixed = [known_shape([2, 3]), known_shape([2]), known_shape([2])]
    loose = [unknown_shape(), known_shape([None]), known_shape([2])]
    iterator_of(graph, "loose", element(loose))
    iterator_of(graph, "other_rank", element([known_shape([2]), *fixed[1:]]))
    iterator_of(graph, "other_size", element([known_shape([3, 3]), *fixed[1:]]))
    iterator_of(graph, "other_types", element(fixed, (DT_INT64, DT_INT64, DT_INT64)))
    iterator_of(graph, "fewer", element(fixed[:2], (DT_INT64, DT_INT64)))
    graph.iterator("without_handle", graph.dataset("without_handle/data"))
    by_handle(graph, "second")
    together = ["feedable", "iterator", "loose", "second"]
    for name in together:
        assert members(graph, name) == together
    for name in ("other_rank", "other_size", "other_types", "fewer", "without_handle"):
        assert members(graph, name) == [name]


def test_a_handle_iterator_without_element_types_may_draw_from_any() -> None:
    graph = LookupGraph()
    handle = graph.add("handle", "Placeholder", (), {"dtype": attr_type(DT_STRING), "shape": graph_shape([])})
    ids = graph.get_next("batch", graph.add("feedable", "IteratorFromStringHandleV2", [handle]))[0]
    graph.lookup("first", graph.table(), ids)
    source(graph, "iterator")
    assert not refusals(graph)
    iterator_of(graph, "other", element([known_shape([])], (DT_FLOAT,)))
    assert members(graph, "other") == ["feedable", "iterator", "other"]
    (refusal,) = refusals(graph)
    assert "other: has elements of other dtypes than 'iterator', and 'feedable' may draw from both" in refusal


def test_groups_that_share_a_source_are_one() -> None:
    graph = LookupGraph()
    by_handle(graph, "a")
    handle = graph.add("handle", "Placeholder", (), {"dtype": attr_type(DT_STRING), "shape": graph_shape([])})
    narrow = element([known_shape([2, 3]), known_shape([9]), known_shape([2])])
    graph.get_next("batch", graph.add("b", "IteratorFromStringHandleV2", [handle], narrow))
    iterator_of(graph, "of_a", element([known_shape([2, 3]), known_shape([2]), known_shape([2])]))
    iterator_of(graph, "of_b", narrow)
    assert members(graph, "a") == ["a", "of_a"]
    assert members(graph, "b") == ["b", "of_b"]
    iterator_of(graph, "of_both", element([known_shape([2, 3]), known_shape([None]), known_shape([2])]))
    assert members(graph, "a") == members(graph, "b") == ["a", "b", "of_a", "of_b", "of_both"]


def test_handles_through_the_graph() -> None:
    graph = LookupGraph()
    iterators = [source(graph, name) for name in ("one", "two")]
    default = graph.add(
        "default",
        "PlaceholderWithDefault",
        ["one/string_handle"],
        {"dtype": attr_type(DT_STRING), "shape": graph_shape([])},
    )
    which = graph.const("which", True, 10)
    chosen = graph.add("chosen", "SelectV2", [which, default, "two/string_handle"], {"T": attr_type(DT_STRING)})
    feedable_iterator = graph.add("feedable", "IteratorFromStringHandleV2", [chosen], graph.element_attrs())
    graph.lookup("first", graph.table(), graph.get_next("batch", feedable_iterator)[0])
    assert not refusals(graph)
    (lookup,) = find_lookups(GraphView(graph.graph_def()))
    assert lookup.iterator_kind == "string_handle"
    assert lookup.initializers == tuple(f"{iterator.node}/make" for iterator in iterators)


def test_handle_of_an_iterator_with_other_elements() -> None:
    graph, _ = one_source()
    iterator_of(graph, "other", element([known_shape([])], (DT_FLOAT,)))
    wrong = graph.add("wrong", "IteratorFromStringHandleV2", ["other/string_handle"], graph.element_attrs())
    graph.get_next("wrong/batch", wrong)
    (refusal,) = refusals(graph)
    assert refusal.startswith("other/string_handle: gives 'wrong' the handle of 'other', which has other elements")


def test_handle_that_the_graph_computes() -> None:
    graph, _ = one_source()
    joined = graph.add("joined", "StringJoin", ["iterator/string_handle"], {"N": attr_int(1)})
    graph.get_next("late", graph.add("late_iterator", "IteratorFromStringHandleV2", [joined], graph.element_attrs()))
    (refusal,) = refusals(graph)
    assert "joined: op 'StringJoin' gives the handle that 'late_iterator' draws by" in refusal


def test_handle_that_goes_elsewhere() -> None:
    graph, _ = one_source()
    graph.add("joined", "StringJoin", ["iterator/string_handle"], {"N": attr_int(1)})
    (refusal,) = refusals(graph)
    assert refusal.startswith("joined: op 'StringJoin' takes the handle of iterator 'iterator', and may draw by it")


def test_handle_of_an_unknown_iterator() -> None:
    graph, _ = one_source()
    unknown = graph.add("given", "Placeholder", (), {"dtype": attr_type(DT_RESOURCE), "shape": graph_shape([])})
    graph.add("given/string_handle", "IteratorToStringHandle", [unknown])
    (refusal,) = refusals(graph)
    assert "given/string_handle: gives the handle of an iterator from op 'Placeholder'" in refusal


@pytest.mark.parametrize("user", ["feedable", "iterator"])
def test_other_uses_of_a_member(user: str) -> None:
    graph, _ = one_source()
    graph.add("optional", "IteratorGetNextAsOptional", [user], graph.element_attrs())
    (refusal,) = refusals(graph)
    assert f"optional: op 'IteratorGetNextAsOptional' uses the iterator '{user}'" in refusal


@pytest.mark.parametrize("types", [(), ELEMENT_TYPES, (DT_FLOAT,)])
def test_a_function_that_draws_by_handle(types: tuple[int, ...]) -> None:
    """It would draw elements it does not expect; one with other elements does not matter."""
    graph, _ = one_source()
    function = function_pb2.FunctionDef()
    function.signature.name = "draws"
    function.signature.input_arg.add(name="handle", type=DT_STRING)
    node = function.node_def.add(name="iterator", op="IteratorFromStringHandleV2", input=["handle"])
    node.attr["output_types"].CopyFrom(attr_types(types))
    graph.add_function(function)
    found = refusals(graph)
    if types == (DT_FLOAT,):
        assert not found
    else:
        assert found[0].startswith("draws/iterator: draws by handle inside a function")


def test_one_source_that_cannot_be_replaced_keeps_the_whole_group_but_no_other_iterator() -> None:
    graph, _ = one_source()
    iterator_of(graph, "empty", graph.element_attrs())
    alone = graph.iterator("alone", graph.dataset("alone/data"))
    graph.lookup("alone", graph.table("alone"), graph.get_next("alone/batch", alone)[0])
    assert refusals(graph) == ["empty: no MakeIterator in this graph fills it (lookup 'first' stays at the step)"]


def test_one_shot_sources_need_tables_with_names() -> None:
    graph_def = feedable()
    next(node for node in graph_def.node if node.op == "MxRecTable").attr["shared_name"].s = b""
    next(node for node in graph_def.node if node.op == "MxRecTable").attr["table_name"].s = b""
    found = PassManager([HoistLookups()]).run(graph_def).reports[0].refusals
    assert len(found) == 2 and "a one-shot iterator cannot reach the same table" in found[0].reason


@pytest.mark.parametrize("bounds", [(0, 0), (0, 1)])
def test_two_draws_of_a_group_must_do_the_same_work(bounds: tuple[int, int]) -> None:
    """An assert that is made of the batches of one draw could fail on those of the other."""
    graph = LookupGraph()
    table = graph.table()
    draws = [by_handle(graph), graph.get_next("direct", source(graph, "iterator"))[0]]
    for index, ids in enumerate(draws):
        ok = graph.binary(f"ok_{index}", "GreaterEqual", ids, graph.const(f"bound_{index}", bounds[index]))
        axes = graph.const(f"axes_{index}", [0, 1], 3)
        all_ok = graph.add(f"all_ok_{index}", "All", [ok, axes], {"Tidx": attr_type(3)})
        graph.add(f"assert_{index}", "Assert", [all_ok, ids], {"T": attr_types([DT_INT64])})
        graph.lookup(
            f"lookup_{index}", table, graph.unary(f"ids_{index}", "Identity", ids, controls=[f"assert_{index}"])
        )
    if bounds == (0, 0):
        assert not refusals(graph)
        return
    assert len(refusals(graph)) == 2
    assert "direct: may draw the same batches as 'feedable/batch'" in refusals(graph)[0]


def test_elements_of_a_group_have_the_shapes_that_all_members_have() -> None:
    graph = LookupGraph()
    handle = graph.add("handle", "Placeholder", (), {"dtype": attr_type(DT_STRING), "shape": graph_shape([])})
    loose = element([known_shape([None, 3]), known_shape([None]), known_shape([None])])
    feedable_iterator = graph.add("feedable", "IteratorFromStringHandleV2", [handle], loose)
    batch = graph.add("batch", "IteratorGetNext", [feedable_iterator], loose)
    direct = graph.get_next("direct", source(graph, "iterator"))[0]
    table = graph.table()
    for index, ids in enumerate([direct, batch]):
        graph.lookup(f"lookup_{index}", table, graph.unary(f"negative_{index}", "Neg", ids))
        graph.unary(f"summary_{index}", "Abs", f"negative_{index}")
    result = PassManager([HoistLookups()]).run(graph.graph_def())
    assert not result.reports[0].refusals
    (mapped,) = GraphView(result.graph_def).nodes_of("MapDataset")
    shapes = [shape_dims(shape) for shape in mapped.shapes_attr("output_shapes")]
    assert shapes[:3] == [(None, 3), (None,), (None,)]
    assert (2, 3) not in shapes and (2,) not in shapes


def test_factory_of_a_one_shot_source_is_looked_into() -> None:
    graph, _ = one_source()
    factory = dataset_factory()
    node = factory.node_def.add(name="step", op="VarHandleOp")
    node.attr["dtype"].type = DT_INT64
    node.attr["shape"].shape.SetInParent()
    graph.add_function(factory)
    attrs = {**graph.element_attrs(), "dataset_factory": attr_func("make_dataset")}
    graph.add("one_shot/string_handle", "IteratorToStringHandle", [graph.add("one_shot", "OneShotIterator", (), attrs)])
    (refusal,) = refusals(graph)
    assert refusal.startswith("one_shot: function 'make_dataset' reads variable 'step'")


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (known_shape([2, 3]), known_shape([2, None]), (2, None)),
        (known_shape([2, 3]), known_shape([2, 3]), (2, 3)),
        (known_shape([]), known_shape([]), ()),
        (known_shape([2]), known_shape([2, 2]), None),
        (unknown_shape(), known_shape([2]), None),
        (known_shape([2]), None, None),
    ],
)
def test_merged_shape(one: Any, other: Any, expected: Any) -> None:
    assert shape_dims(merged_shape(one, other)) == expected
