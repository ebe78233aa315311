"""Gives the random ops of a graph seeds, so that two runs, or two graphs, draw the same numbers."""

from __future__ import annotations

import zlib
from typing import Any

from tensorflow.core.framework import types_pb2

from mx_rec.graph.attrs import attr_tensor, attr_type
from mx_rec.graph.op_schema import OpSchema, op_schema
from mx_rec.graph.view import GraphDef

_SEEDS = ("seed", "seed2")
_LOW_31_BITS = (1 << 31) - 1


def seed_random_ops(graph_def: GraphDef, seed: int) -> int:
    """Seeds every random op that has no seed of its own; returns how many there were.

    An op without seed draws different numbers in every run. Each such op gets `seed` and a number made from its
    name, so the op of that name draws the same numbers in every graph. Attributes (random ops) and inputs (shuffles
    and other datasets) count, in the graph and in its functions; ops with a seed stay as they are.

    Args:
        graph_def: written to.
        seed: any integer.
    """
    taken = {node.name for node in graph_def.node}
    seeded = _seed(graph_def.node, taken, seed, in_function=False)
    for function in graph_def.library.function:
        names = {node.name for node in function.node_def}
        names.update(arg.name for arg in function.signature.input_arg)
        seeded += _seed(function.node_def, names, seed, in_function=True)
    return seeded


def _seed(nodes: Any, taken: set[str], seed: int, *, in_function: bool) -> int:
    zeros = {node.name for node in nodes if _is_zero(node)}
    count = 0
    for node in list(nodes):
        schema = op_schema(node.op)
        if schema is None:
            continue
        values = seed & _LOW_31_BITS, zlib.crc32(node.name.encode()) & _LOW_31_BITS or 1
        if all(name in schema.defaults for name in _SEEDS):
            if any(node.attr[name].i for name in _SEEDS if name in node.attr):
                continue
            for name, value in zip(_SEEDS, values):
                node.attr[name].i = value
            count += 1
            continue
        places = _seed_inputs(schema)
        if not places or not all(_source(node.input[place]) in zeros for place in places):
            continue
        for place, name, value in zip(places, _SEEDS, values):
            const = _add_const(nodes, taken, f"{node.name}/{name}_of_run", value)
            node.input[place] = f"{const}:output:0" if in_function else const
        count += 1
    return count


def _seed_inputs(schema: OpSchema) -> tuple[int, ...]:
    """Where an op takes its two seeds as inputs; none if it does not, or behind an input that is a list."""
    names = [arg.name for arg in schema.inputs]
    if not all(name in names for name in _SEEDS):
        return ()
    places = tuple(names.index(name) for name in _SEEDS)
    before = schema.inputs[: max(places)]
    return () if any(arg.number_attr or arg.type_list_attr for arg in before) else places


def _source(text: str) -> str:
    return text.partition(":")[0]


def _is_zero(node: Any) -> bool:
    """Whether it is a constant int64 scalar of 0."""
    if node.op != "Const" or node.attr["dtype"].type != types_pb2.DT_INT64:
        return False
    tensor = node.attr["value"].tensor
    if tensor.tensor_shape.dim or tensor.tensor_shape.unknown_rank:
        return False
    return not any(tensor.tensor_content) and not any(tensor.int64_val)


def _add_const(nodes: Any, taken: set[str], hint: str, value: int) -> str:
    name, suffix = hint, 0
    while name in taken:
        suffix += 1
        name = f"{hint}_{suffix}"
    taken.add(name)
    node = nodes.add(name=name, op="Const")
    node.attr["dtype"].CopyFrom(attr_type(types_pb2.DT_INT64))
    node.attr["value"].CopyFrom(attr_tensor(value, types_pb2.DT_INT64))
    return name
