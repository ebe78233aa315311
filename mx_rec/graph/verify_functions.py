"""Checks the bodies of library functions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from mx_rec.graph.attrs import base_dtype, dtype_name

if TYPE_CHECKING:
    from mx_rec.graph.view import GraphView


class _Outputs(NamedTuple):
    """What a body node takes and gives: all `None` when its op is unknown."""

    args: dict[str, tuple[int, ...]] | None  # dtypes of each output argument
    inputs: tuple[int, ...] | None


def function_problems(view: GraphView, function: Any) -> Iterator[str]:
    """What is wrong with a function: duplicate names, inputs that nothing gives, dtypes, missing functions."""
    arguments = {arg.name: arg for arg in function.signature.input_arg}
    outputs: dict[str, _Outputs] = {}
    for node in function.node_def:
        if node.name in outputs or node.name in arguments:
            yield f"two things in its body are called {node.name!r}"
        outputs[node.name] = _outputs(view, node)
    for node in function.node_def:
        yield from _node_problems(node, arguments, outputs)
    for arg in function.signature.output_arg:
        if arg.name not in function.ret:
            yield f"output {arg.name!r} is not returned"
            continue
        yield from _return_problems(arg, function.ret[arg.name], arguments, outputs)


def _types(view: GraphView, node: Any) -> Any:
    schema = view.schema(node.op)
    if schema is None:
        return None
    attrs = node.attr
    return schema.types(lambda name: attrs.get(name, None))


def _outputs(view: GraphView, node: Any) -> _Outputs:
    types, schema = _types(view, node), view.schema(node.op)
    if types is None or schema is None:
        return _Outputs(None, None)
    groups: dict[str, tuple[int, ...]] = {}
    first = 0
    for spec, count in zip(schema.outputs, types.output_counts):
        groups[spec.name] = types.outputs[first : first + count]
        first += count
    return _Outputs(groups, types.inputs)


def _node_problems(node: Any, arguments: Any, outputs: dict[str, _Outputs]) -> Iterator[str]:
    given: list[int | None] = []
    is_complete = True
    for text in node.input:
        if text[:1] == "^":
            if text[1:] not in outputs and text[1:] not in arguments:
                yield f"body node {node.name!r} waits for {text[1:]!r}, which does not exist"
            continue
        dtypes, what = _resolve(text, arguments, outputs)
        if what:
            yield f"body node {node.name!r}: input {what}"
        is_complete &= dtypes is not None
        given.extend(dtypes or ())
    wanted = outputs[node.name].inputs
    if wanted is None or not is_complete:
        return
    if len(given) != len(wanted):
        yield f"body node {node.name!r} has {len(given)} inputs; op {node.op!r} takes {len(wanted)}"
        return
    for index, (has, wants) in enumerate(zip(given, wanted)):
        if has is not None and base_dtype(has) != base_dtype(wants):
            yield (f"body node {node.name!r}: input {index} has dtype {dtype_name(has)}; expected {dtype_name(wants)}")


def _return_problems(arg: Any, text: str, arguments: Any, outputs: dict[str, _Outputs]) -> Iterator[str]:
    dtypes, what = _resolve(text, arguments, outputs)
    if what:
        yield f"output {arg.name!r}: {what}"
    is_plain = not (arg.type_attr or arg.type_list_attr or arg.number_attr)
    if dtypes is None or not is_plain or len(dtypes) != 1 or dtypes[0] is None:
        return
    if base_dtype(dtypes[0]) != arg.type:
        yield f"output {arg.name!r} returns dtype {dtype_name(dtypes[0])}; expected {dtype_name(arg.type)}"


def _resolve(text: str, arguments: Any, outputs: dict[str, _Outputs]) -> tuple[tuple[int | None, ...] | None, str]:
    """(dtypes of what `text` names, what is wrong). Dtypes are `None` when their number is not known."""
    name, *rest = text.split(":")
    if name in arguments:
        return _argument_types(arguments[name]), ""
    if name not in outputs:
        return None, f"{text!r} names nothing in the body"
    groups = outputs[name].args
    if groups is None:
        return None, ""
    if not rest or rest[0] not in groups:
        return None, f"{text!r}: node {name!r} has no such output; it has {sorted(groups)}"
    group = groups[rest[0]]
    if len(rest) == 1:
        return group, ""
    if not rest[1].isdigit() or int(rest[1]) >= len(group):
        return None, f"{text!r}: output {rest[0]!r} of node {name!r} has {len(group)} tensors"
    return (group[int(rest[1])],), ""


def _argument_types(arg: Any) -> tuple[int | None, ...] | None:
    if arg.number_attr or arg.type_list_attr:
        return None
    return (arg.type or None,)
