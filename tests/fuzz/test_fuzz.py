"""`recgraph` on damaged and made-up graph files: it never crashes, hangs or writes what TensorFlow refuses.

Few cases here, for many see `tools/fuzz_recgraph.py`. `MX_REC_FUZZ_CASES` sets the number of damaged files.
"""

from __future__ import annotations

import os
import random
import time

import pytest
from fuzz_case import CONVERT, options_of, run_case
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import damaged_file
from seed_graphs import seed_graphs, training_graph
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import saved_model_pb2

from mx_rec.ops import load_library
from mx_rec.tf_compat import registered_op_def

CASES = int(os.environ.get("MX_REC_FUZZ_CASES", "150"))
CPU_SECONDS = 15 if CASES == 150 else None  # a slow machine does fewer
LEAST_CASES = 20

OPS = (
    *("Const", "Identity", "Placeholder", "GatherV2", "AddV2", "Reshape", "Switch", "Merge", "NextIteration", "Enter"),
    *("IteratorV2", "IteratorGetNext", "MakeIterator", "OneShotIterator", "RangeDataset", "MapDataset", "If"),
    *("IteratorToStringHandle", "IteratorFromStringHandleV2", "HashTableV2", "LookupTableFindV2", "VarHandleOp"),
    *("MxRecTable", "MxRecUnique", "MxRecFind", "MxRecFindOrInsert", "MxRecGatherByAddress", "MxRecLookUpMany"),
    *("MxRecOffsets", "MxRecPool", "MxRecForward", "MxRecApplySgdByAddress", "PartitionedCall"),
)
NAMES = [f"n{index}" for index in range(12)]
DTYPES = st.sampled_from([1, 3, 7, 9, 10, 20, 21])


@pytest.fixture(scope="module", autouse=True)
def library() -> None:
    load_library()


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


def test_the_graphs_that_are_damaged_are_rewritten_when_sound(directory) -> None:
    """Else the other tests would test little."""
    verdict = run_case("in.pb", training_graph().SerializeToString(), directory)
    assert (verdict.code, verdict.modified, verdict.accepted) == (0, True, True)


def test_a_sound_saved_model_is_rewritten_too(directory) -> None:
    saved = saved_model_pb2.SavedModel(saved_model_schema_version=1)
    saved.meta_graphs.add().graph_def.CopyFrom(training_graph())
    verdict = run_case("saved_model.pb", saved.SerializeToString(), directory)
    assert (verdict.code, verdict.modified, verdict.accepted) == (0, True, True)


def test_the_variables_of_a_damaged_graph_become_tables_when_it_is_sound(directory) -> None:
    graph_def = seed_graphs()["golden/convert_static_tables/positive"]
    verdict = run_case("in.pb", graph_def.SerializeToString(), directory, CONVERT)
    assert (verdict.code, verdict.modified) == (0, True)


def test_a_device_that_cannot_be_read_is_not_given_to_new_nodes(directory) -> None:
    """TensorFlow does not look at it where a node is colocated, so it accepts the input."""
    graph_def = training_graph()
    for node in graph_def.node:
        if node.op in ("MakeIterator", "IteratorV2", "IteratorGetNext"):
            node.device = "\u00e9"
            node.attr["_class"].list.s.append(b"loc:@IteratorV2")
    verdict = run_case("in.pb", graph_def.SerializeToString(), directory)
    assert (verdict.code, verdict.modified, verdict.accepted) == (0, True, True)


def test_damaged_files(directory) -> None:
    graphs = list(seed_graphs().items())
    start, done = time.process_time(), 0
    for seed in range(CASES):
        if CPU_SECONDS is not None and time.process_time() - start > CPU_SECONDS:
            break
        random_ = random.Random(seed)
        _, graph_def = random_.choice(graphs)
        name, data = damaged_file(random_, graph_def)
        run_case(name, data, directory, options_of(seed, name))
        done += 1
    assert done >= min(CASES, LEAST_CASES)


def attr_value(draw, attr, value) -> None:
    """A value of the kind that the op takes, mostly."""
    kind = attr.type if draw(st.integers(0, 19)) else "int"
    is_list, inner = kind.startswith("list("), kind[5:-1] if kind.startswith("list(") else kind
    if is_list:
        value.list.SetInParent()
    for _ in range(draw(st.integers(0, 3)) if is_list else 1):
        if inner == "type":
            dtype = draw(DTYPES)
            value.list.type.append(dtype) if is_list else setattr(value, "type", dtype)
        elif inner == "int":
            number = draw(st.sampled_from([0, 1, 2, 4, -1, 2**40]))
            value.list.i.append(number) if is_list else setattr(value, "i", number)
        elif inner == "string":
            text = draw(st.sampled_from([b"", b"a", b"mean", b"\xff"]))
            value.list.s.append(text) if is_list else setattr(value, "s", text)
        elif inner == "shape":
            shape = value.list.shape.add() if is_list else value.shape
            shape.unknown_rank = draw(st.booleans())
        elif inner == "func":
            (value.list.func.add() if is_list else value.func).name = draw(st.sampled_from(["f", "no_such"]))
        elif inner == "bool":
            value.b = draw(st.booleans())
        elif inner == "tensor":
            value.tensor.dtype = draw(DTYPES)
            value.tensor.int64_val.extend(draw(st.lists(st.integers(-1, 3), max_size=2)))


@st.composite
def graphs(draw):
    graph = graph_pb2.GraphDef()
    graph.versions.producer = 1645
    for name in NAMES[: draw(st.integers(2, len(NAMES)))]:
        node = graph.node.add(name=name, op=draw(st.sampled_from(OPS)))
        op_def = registered_op_def(node.op)
        for _ in op_def.input_arg if draw(st.integers(0, 9)) else range(draw(st.integers(0, 3))):
            port = draw(st.sampled_from(["", "", ":1", ":2"]))
            node.input.append(draw(st.sampled_from([other.name for other in graph.node])) + port)
        if not draw(st.integers(0, 5)):
            node.input.append("^" + draw(st.sampled_from(NAMES)))
        for attr in op_def.attr:
            if draw(st.integers(0, 9)):
                attr_value(draw, attr, node.attr[attr.name])
    for name in draw(st.lists(st.sampled_from(["f", "g"]), max_size=2)):
        function = graph.library.function.add()
        function.signature.name = name
        function.signature.output_arg.add(name="out", type=draw(DTYPES))
        function.node_def.add(name="inner", op=draw(st.sampled_from([*OPS, "f", "g"])))
        function.ret["out"] = draw(st.sampled_from(["inner:output:0", "inner:handle", "no_such"]))
    return graph


@settings(max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(graph=graphs())
def test_made_up_graphs(directory, graph) -> None:
    run_case("made.pb", graph.SerializeToString(), directory)
