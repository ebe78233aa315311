"""Damages graph files: parsed messages, their bytes and their text. Everything is drawn from one `random.Random`."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf import text_format
from google.protobuf.message import EncodeError
from tensorflow.core.framework import attr_value_pb2, graph_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

_OPS = (
    *("Identity", "Const", "NoOp", "GatherV2", "IdentityN", "Placeholder", "Switch", "Merge", "Enter", "Exit"),
    *("NextIteration", "LoopCond", "IteratorV2", "IteratorGetNext", "MakeIterator", "OneShotIterator"),
    *("IteratorFromStringHandleV2", "IteratorToStringHandle", "MapDataset", "TensorSliceDataset", "RangeDataset"),
    *("PartitionedCall", "StatefulPartitionedCall", "If", "While", "Case", "SymbolicGradient", "VarHandleOp"),
    *("VariableV2", "ResourceGather", "ReadVariableOp", "HashTableV2", "LookupTableFindV2", "DeserializeSparse"),
    *("MxRecTable", "MxRecUnique", "MxRecFind", "MxRecFindOrInsert", "MxRecGatherByAddress", "MxRecLookUpMany"),
    *("MxRecForward", "MxRecPool", "MxRecOffsets", "MxRecApplySgdByAddress", "MxRecSumGradientsMany", "MxRecLookAhead"),
    *("NoSuchOp", "", "Reshape", "ExpandDims", "Shape", "StridedSlice", "AddV2", "Cast"),
)
_NAMES = (
    "",
    ":",
    "a:b",
    "^",
    "^^x",
    "x:-1",
    "x:99999999999999999999",
    "no_such",
    "a b",
    "\u00e9",
    "/",
    "_x",
    "%s{}[bold]",
)
_BYTES = (b"", b"\xff\xfe", b"loc:@", b"loc:@no_such", b"loc:@\xff", b"x" * 300, b"loc:@a:1", b"0", b"train", b"mean")
_INTS = (0, 1, -1, 2, 7, 63, 64, 2**31 - 1, 2**31, -(2**31), 2**62, -(2**63), 2**63 - 1)
_DTYPES = (0, 1, 3, 7, 9, 10, 20, 21, 23, 101, 103, 109, 120, 99, 200, 2**31 - 1, -1)
_KINDS = ("s", "i", "f", "b", "type", "shape", "tensor", "list", "func", "placeholder", "none")
_OWN_ATTRS = (
    *("_mx_rec_collections", "_mx_rec_lookup", "_mx_rec_replaces", "_mx_rec_fused_finds", "_mx_rec_fused_lookups"),
    *("_mx_rec_fused_gathers", "_mx_rec_merged_into", "_mx_rec_pass", "_mx_rec_update", "_class", "_output_shapes"),
    *("_kernel", "_op_impl_mode", "shared_name", "container", "table_name", "dim", "N", "C", "f", "dataset_factory"),
)


def mutated_graph(random_: random.Random, graph_def: Any, count: int) -> None:
    """Changes `count` things of a GraphDef."""
    for _ in range(count):
        _weighted(random_, _GRAPH_MUTATIONS)(random_, graph_def)


def mutated_meta(random_: random.Random, meta: Any, count: int) -> None:
    """Changes `count` things of a MetaGraphDef or of its graph."""
    for _ in range(count):
        if random_.random() < 0.5:
            mutated_graph(random_, meta.graph_def, 1)
        else:
            random_.choice(_META_MUTATIONS)(random_, meta)


def mutated_bytes(random_: random.Random, data: bytes, count: int) -> bytes:
    """Changes `count` places of a file."""
    result = bytearray(data)
    for _ in range(count):
        if result:
            random_.choice(_BYTE_MUTATIONS)(random_, result)
    return bytes(result)


def mutated_text(random_: random.Random, text: str, count: int) -> str:
    """Changes `count` lines of a text."""
    lines = text.splitlines()
    for _ in range(count):
        if lines:
            random_.choice(_TEXT_MUTATIONS)(random_, lines)
    return "\n".join(lines)


def damaged_file(random_: random.Random, graph_def: Any) -> tuple[str, bytes]:
    """A damaged file made of a sound graph: its name, and what is in it."""
    graph = graph_pb2.GraphDef()
    graph.CopyFrom(graph_def)
    count = random_.choice((1, 1, 1, 2, 3, 8))
    form = random_.choice(("pb",) * 6 + ("bytes",) * 2 + ("pbtxt", "pbtxt", "meta", "meta", "meta", "metatxt", "saved"))
    if form == "bytes":
        return "in.pb", mutated_bytes(random_, graph.SerializeToString(), count)
    if form == "pbtxt":
        mutated_graph(random_, graph, random_.choice((0, 1, 2)))
        return "in.pbtxt", mutated_text(random_, _text(graph), random_.choice((0, 1, 2))).encode(errors="replace")
    if form in ("meta", "metatxt"):
        meta = _meta_of(random_, graph)
        mutated_meta(random_, meta, count)
        if form == "metatxt":
            return "in.meta", mutated_text(random_, _text(meta), random_.choice((0, 1))).encode(errors="replace")
        data = _serialized(meta)
        return "in.meta", mutated_bytes(random_, data, 1) if random_.random() < 0.1 else data
    if form == "saved":
        saved = saved_model_pb2.SavedModel(saved_model_schema_version=1)
        for tag in random_.choice((["serve"], ["serve", "train"])):
            meta = saved.meta_graphs.add()
            meta.CopyFrom(_meta_of(random_, graph))
            meta.meta_info_def.tags.append(tag)
        if random_.random() < 0.9:
            mutated_meta(random_, saved.meta_graphs[0], 1)
        return "saved_model.pb", mutated_bytes(random_, _serialized(saved), random_.choice((0, 0, 0, 1, 2)))
    mutated_graph(random_, graph, count)
    return "in.pb", _serialized(graph)


def _serialized(message: Any) -> bytes:
    try:
        return message.SerializeToString()
    except EncodeError:  # nested deeper than protobuf goes
        return b""


def _text(message: Any) -> str:
    return text_format.MessageToString(message)


def _meta_of(random_: random.Random, graph: Any) -> Any:
    meta = meta_graph_pb2.MetaGraphDef()
    meta.graph_def.CopyFrom(graph)
    meta.meta_info_def.tensorflow_version = "2.15.1"
    for name in random_.sample(["train_op", "LOSSES", "ASCEND_SPARSE_LOOKUP_LOCAL_EMB", "variables", "own"], 3):
        for node in _some(random_, graph.node, 2):
            meta.collection_def[name].node_list.value.append(node.name)
    if random_.random() < 0.5:
        for name in sorted({node.op for node in graph.node}):
            meta.meta_info_def.stripped_op_list.op.add(name=name)
    return meta


def _some(random_: random.Random, items: Sequence[Any], count: int) -> list[Any]:
    return [random_.choice(items) for _ in range(count)] if items else []


def _weighted(random_: random.Random, table: Sequence[tuple[int, Callable[..., None]]]) -> Callable[..., None]:
    return random_.choices([item for _, item in table], [weight for weight, _ in table])[0]


def _node(random_: random.Random, graph: Any) -> Any:
    """A node; our own ops and iterators, which the passes look at, more often than others."""
    if not graph.node:
        return graph.node.add(name="added", op="NoOp")
    if random_.random() < 0.5:
        special = [node for node in graph.node if "MxRec" in node.op or "terator" in node.op or "Dataset" in node.op]
        if special:
            return random_.choice(special)
    return random_.choice(graph.node)


def _drop_node(random_: random.Random, graph: Any) -> None:
    if graph.node:
        del graph.node[random_.randrange(len(graph.node))]


def _cut_off(random_: random.Random, graph: Any) -> None:
    del graph.node[random_.randrange(len(graph.node) + 1) :]


def _rename_node(random_: random.Random, graph: Any) -> None:
    node = _node(random_, graph)
    old = node.name
    node.name = random_.choice([*_NAMES, random_.choice(graph.node).name, old + "_x", old.upper(), old + ":0"])
    if random_.random() < 0.7:  # everywhere, so that the rest stays sound
        for other in graph.node:
            for index, text in enumerate(other.input):
                head, _, port = text.partition(":")
                if head.lstrip("^") == old:
                    renamed = ("^" if head.startswith("^") else "") + node.name
                    other.input[index] = f"{renamed}:{port}" if port else renamed


def _duplicate_node(random_: random.Random, graph: Any) -> None:
    node = _node(random_, graph)
    copy = graph.node.add()
    copy.CopyFrom(node)
    if random_.random() < 0.8:
        copy.name = f"{copy.name}_copy_{random_.randrange(1000)}"


def _shuffle(random_: random.Random, graph: Any) -> None:
    nodes = list(graph.node)
    random_.shuffle(nodes)
    copies = [type(node).FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def _an_input(random_: random.Random, names: Sequence[str]) -> str:
    name = random_.choice(names) if names else "x"
    ports = ("", "", "", ":0", ":1", ":2", ":3", ":7", ":-1", ":x", ":", ":1:0", ":00", ":9999999", ":1_0", ":\u0663")
    form = random_.random()
    if form < 0.1:
        return random_.choice(_NAMES)
    return f"^{name}" if form < 0.3 else name + random_.choice(ports)


def _rewire(random_: random.Random, graph: Any) -> None:
    node = _node(random_, graph)
    text = _an_input(random_, [other.name for other in graph.node])
    how = random_.random()
    if node.input and how < 0.6:
        node.input[random_.randrange(len(node.input))] = text
    elif node.input and how < 0.75:
        del node.input[random_.randrange(len(node.input))]
    elif node.input and how < 0.85:
        inputs = list(node.input)
        random_.shuffle(inputs)
        node.input[:] = inputs
    else:
        node.input.append(text)


def _same_type_rewire(random_: random.Random, graph: Any) -> None:
    """Takes an input of another node of the same op: mostly still sound, and in the way of a pass."""
    node = _node(random_, graph)
    others = [other for other in graph.node if other.op == node.op and other.input]
    if node.input and others:
        index = random_.randrange(len(node.input))
        other = random_.choice(others)
        node.input[index] = other.input[min(index, len(other.input) - 1)]


def _cycle(random_: random.Random, graph: Any) -> None:
    """Lets something that a node needs read or wait for that node."""
    by_name = {node.name: node for node in graph.node}
    last = node = _node(random_, graph)
    for _ in range(random_.randrange(6)):
        sources = [by_name[name] for text in node.input if (name := text.lstrip("^").partition(":")[0]) in by_name]
        if not sources:
            break
        node = random_.choice(sources)
    text = last.name if random_.random() < 0.6 else f"^{last.name}"
    if node.input and random_.random() < 0.6:
        node.input[random_.randrange(len(node.input))] = text
    else:
        node.input.append(text)


def _control(random_: random.Random, graph: Any) -> None:
    node = _node(random_, graph)
    node.input.append("^" + _node(random_, graph).name)


def _change_op(random_: random.Random, graph: Any) -> None:
    functions = [function.signature.name for function in graph.library.function]
    _node(random_, graph).op = random_.choice([*_OPS, _node(random_, graph).op, *_some(random_, functions, 2)])


def _device(random_: random.Random, graph: Any) -> None:
    _node(random_, graph).device = random_.choice(
        ("", "/cpu:0", "/device:GPU:7", "/job:x/task:-1", "nonsense", "\u00e9")
    )


def _versions(random_: random.Random, graph: Any) -> None:
    if random_.random() < 0.3:
        graph.ClearField("versions")
    else:
        graph.versions.producer = random_.choice((0, 1, 21, 27, 1645, 2**31 - 1, -5))
        graph.versions.min_consumer = random_.choice((0, 0, 12, 10**6))


def _attribute(random_: random.Random, graph: Any) -> None:
    node = _node(random_, graph)
    _change_attr(random_, node.attr, graph)


def _change_attr(random_: random.Random, attrs: Any, graph: Any) -> None:
    names = sorted(attrs)
    how = random_.random()
    name = random_.choice(names) if names and how < 0.85 else random_.choice(_OWN_ATTRS)
    if how < 0.25 and names:
        del attrs[name]
    elif how < 0.45:
        attrs[name].CopyFrom(_some_value(random_, graph))
    elif how < 0.6 and names:
        other = _node(random_, graph)
        if name in other.attr:
            attrs[name].CopyFrom(other.attr[name])
    else:
        _perturb(random_, attrs[name], graph)


def _some_value(random_: random.Random, graph: Any) -> Any:
    value = attr_value_pb2.AttrValue()
    kind = random_.choice(_KINDS)
    if kind == "none":
        return value
    if kind == "list":
        value.list.SetInParent()
        inner = random_.choice(("s", "i", "type", "shape", "func", "none"))
        if inner == "s":
            value.list.s.extend(random_.choice(_BYTES) for _ in range(random_.randrange(4)))
        elif inner == "i":
            value.list.i.extend(random_.choice(_INTS) for _ in range(random_.randrange(4)))
        elif inner == "type":
            value.list.type.extend(random_.choice(_DTYPES) for _ in range(random_.randrange(4)))
        elif inner == "shape":
            value.list.shape.add().dim.add(size=random_.choice(_INTS))
        elif inner == "func":
            value.list.func.add(name=_function_name(random_, graph))
        return value
    if kind == "placeholder":
        value.placeholder = random_.choice(("T", ""))
        return value
    _set_kind(random_, value, kind, graph)
    return value


def _set_kind(random_: random.Random, value: Any, kind: str, graph: Any) -> None:
    if kind == "s":
        names = [node.name.encode() for node in _some(random_, graph.node, 2)]
        value.s = random_.choice([*_BYTES, *names])
    elif kind == "i":
        value.i = random_.choice(_INTS)
    elif kind == "f":
        value.f = random_.choice((0.0, float("nan"), float("inf"), -1.5))
    elif kind == "b":
        value.b = random_.random() < 0.5
    elif kind == "type":
        value.type = random_.choice(_DTYPES)
    elif kind == "shape":
        value.shape.unknown_rank = random_.random() < 0.3
        for _ in range(random_.randrange(3)):
            value.shape.dim.add(size=random_.choice(_INTS))
    elif kind == "func":
        value.func.name = _function_name(random_, graph)
    elif kind == "tensor":
        _perturb_tensor(random_, value.tensor)


def _perturb(random_: random.Random, value: Any, graph: Any) -> None:
    kind = value.WhichOneof("value")
    if kind == "list":
        fields = value.list.ListFields()
        if not fields:
            value.list.i.append(random_.choice(_INTS))
            return
        field, items = random_.choice(fields)
        how = random_.random()
        if how < 0.35:
            del items[random_.randrange(len(items))]
        elif field.name == "s":
            names = [node.name.encode() for node in _some(random_, graph.node, 2)]
            items[random_.randrange(len(items))] = random_.choice([*_BYTES, *names])
            items.extend(names[: how > 0.7])
        elif field.name == "i":
            items[random_.randrange(len(items))] = random_.choice(_INTS)
        elif field.name == "type":
            items[random_.randrange(len(items))] = random_.choice(_DTYPES)
        elif field.name == "shape":
            shape = items.add() if how < 0.6 else random_.choice(items)
            shape.dim.add(size=random_.choice(_INTS))
        elif field.name == "func":
            random_.choice(items).name = _function_name(random_, graph)
    elif kind == "placeholder" or kind is None:
        value.i = 1
    else:
        _set_kind(random_, value, kind, graph)


def _perturb_tensor(random_: random.Random, tensor: Any) -> None:
    how = random_.randrange(7)
    if how == 0:
        tensor.dtype = random_.choice(_DTYPES)
    elif how == 1:
        tensor.tensor_shape.dim.add(size=random_.choice(_INTS))
    elif how == 2:
        del tensor.tensor_shape.dim[:]
    elif how == 3:
        tensor.tensor_shape.unknown_rank = True
    elif how == 4:
        tensor.tensor_content = tensor.tensor_content[: random_.randrange(len(tensor.tensor_content) + 1)] + b"abc"
    elif how == 5:
        for field in ("int_val", "float_val", "int64_val", "string_val", "tensor_content"):
            tensor.ClearField(field)
    else:
        tensor.int64_val.append(random_.choice(_INTS))
        tensor.int_val.append(3)
        tensor.string_val.append(random_.choice(_BYTES))


def _function_name(random_: random.Random, graph: Any) -> str:
    names = [function.signature.name for function in graph.library.function]
    return random_.choice(["no_such_function", "", "Identity", *_some(random_, names, 3)])


def _function(random_: random.Random, graph: Any) -> None:
    library = graph.library
    if not library.function:
        return
    function = random_.choice(library.function)
    random_.choice(_FUNCTION_MUTATIONS)(random_, function, graph)


def _drop_function(random_: random.Random, function: Any, graph: Any) -> None:
    graph.library.function.remove(function)


def _duplicate_function(random_: random.Random, function: Any, graph: Any) -> None:
    copy = graph.library.function.add()
    copy.CopyFrom(function)
    if random_.random() < 0.5:
        copy.signature.name += "_copy"


def _rename_function(random_: random.Random, function: Any, graph: Any) -> None:
    function.signature.name = random_.choice([*_NAMES, "Identity", "MapDataset", _function_name(random_, graph)])


def _function_body(random_: random.Random, function: Any, graph: Any) -> None:
    if not function.node_def:
        function.node_def.add(name="added", op=random_.choice(_OPS))
        return
    node = random_.choice(function.node_def)
    how = random_.randrange(6)
    if how == 0:
        function.node_def.remove(node)
    elif how == 1:
        node.name = random_.choice([*_NAMES, random_.choice(function.node_def).name])
    elif how == 2:
        names = [other.name for other in function.node_def] + [arg.name for arg in function.signature.input_arg]
        text = _an_input(random_, [*names, f"{random_.choice(names)}:output", f"{random_.choice(names)}:y"])
        if node.input and random_.random() < 0.7:
            node.input[random_.randrange(len(node.input))] = text
        else:
            node.input.append(text)
    elif how == 3:
        node.op = random_.choice([*_OPS, function.signature.name])
    else:
        _change_attr(random_, node.attr, graph)


def _function_signature(random_: random.Random, function: Any, graph: Any) -> None:
    how = random_.randrange(7)
    args = function.signature.input_arg if random_.random() < 0.5 else function.signature.output_arg
    if how == 0 and args:
        del args[random_.randrange(len(args))]
    elif how == 1:
        args.add(name=random_.choice((*_NAMES, "added")), type=random_.choice(_DTYPES))
    elif how == 2 and args:
        arg = random_.choice(args)
        arg.type = random_.choice(_DTYPES)
    elif how == 3 and args:
        arg = random_.choice(args)
        setattr(arg, random_.choice(("type_attr", "number_attr", "type_list_attr")), random_.choice(("T", "N", "no")))
    elif how == 4 and function.ret:
        function.ret[random_.choice(sorted(function.ret))] = _an_input(
            random_, [node.name for node in function.node_def]
        )
    elif how == 5 and function.ret:
        del function.ret[random_.choice(sorted(function.ret))]
    else:
        function.control_ret["added"] = random_.choice([*_NAMES, *(node.name for node in function.node_def)])


def _function_attr(random_: random.Random, function: Any, graph: Any) -> None:
    _change_attr(random_, function.attr, graph)


def _recursion(random_: random.Random, function: Any, graph: Any) -> None:
    call = function.node_def.add(name="recursion", op=random_.choice(("PartitionedCall", function.signature.name)))
    call.attr["f"].func.name = function.signature.name


def _empty_body(random_: random.Random, function: Any, graph: Any) -> None:
    del function.node_def[:]


def _gradient(random_: random.Random, function: Any, graph: Any) -> None:
    graph.library.gradient.add(function_name=function.signature.name, gradient_func=_function_name(random_, graph))


_FUNCTION_MUTATIONS = (
    *(_drop_function, _duplicate_function, _rename_function, _function_body, _function_body, _function_body),
    *(_function_signature, _function_signature, _function_attr, _recursion, _empty_body, _gradient),
)
_GRAPH_MUTATIONS = (
    (3, _drop_node),
    (1, _cut_off),
    (3, _rename_node),
    (3, _duplicate_node),
    (1, _shuffle),
    (6, _rewire),
    (6, _same_type_rewire),
    (4, _cycle),
    (3, _control),
    (4, _change_op),
    (1, _device),
    (1, _versions),
    (14, _attribute),
    (10, _function),
)


def _collection(random_: random.Random, meta: Any) -> None:
    name = random_.choice([*sorted(meta.collection_def), "train_op", "ASCEND_SPARSE_LOOKUP_ID_OFFSET", "cond_context"])
    collection = meta.collection_def[name]
    kind = random_.choice(("node_list", "bytes_list", "int64_list", "float_list", "any_list"))
    values = getattr(collection, kind).value
    if kind == "node_list":
        values.append(_an_input(random_, [node.name for node in meta.graph_def.node]))
    elif kind == "bytes_list":
        values.append(random_.choice((*_BYTES, b"\n\x05v/w:0\x12\x08v/Assign")))
    elif kind == "any_list":
        values.add(type_url="x/no.such", value=b"abc")
    else:
        values.append(3)


def _saver(random_: random.Random, meta: Any) -> None:
    meta.saver_def.filename_tensor_name = random_.choice(
        [*_NAMES, *(n.name for n in _some(random_, meta.graph_def.node, 2))]
    )
    meta.saver_def.version = random_.choice((0, 1, 2))


def _signature(random_: random.Random, meta: Any) -> None:
    info = meta.signature_def["serving"].inputs["x"]
    info.name = _an_input(random_, [node.name for node in meta.graph_def.node])
    info.dtype = random_.choice((0, 1, 9))


def _op_list(random_: random.Random, meta: Any) -> None:
    ops = meta.meta_info_def.stripped_op_list.op
    if ops and random_.random() < 0.5:
        del ops[random_.randrange(len(ops))]
    else:
        ops.add(name=random_.choice(_OPS))


_META_MUTATIONS = (_collection, _collection, _saver, _signature, _op_list)


def _flip(random_: random.Random, data: bytearray) -> None:
    data[random_.randrange(len(data))] ^= 1 << random_.randrange(8)


def _truncate(random_: random.Random, data: bytearray) -> None:
    del data[random_.randrange(len(data)) :]


def _remove(random_: random.Random, data: bytearray) -> None:
    start = random_.randrange(len(data))
    del data[start : start + random_.choice((1, 2, 8, 100))]


def _insert(random_: random.Random, data: bytearray) -> None:
    start = random_.randrange(len(data))
    data[start:start] = bytes(random_.randrange(256) for _ in range(random_.choice((1, 2, 9))))


def _repeat(random_: random.Random, data: bytearray) -> None:
    start = random_.randrange(len(data))
    piece = data[start : start + random_.choice((1, 20, 500))]
    data[start:start] = piece


def _zero(random_: random.Random, data: bytearray) -> None:
    start = random_.randrange(len(data))
    end = min(len(data), start + random_.choice((1, 4, 64)))
    data[start:end] = bytes(end - start)


_BYTE_MUTATIONS = (_flip, _flip, _flip, _truncate, _remove, _insert, _repeat, _zero)


def _drop_line(random_: random.Random, lines: list[str]) -> None:
    del lines[random_.randrange(len(lines))]


def _repeat_line(random_: random.Random, lines: list[str]) -> None:
    index = random_.randrange(len(lines))
    lines.insert(index, lines[index])


def _cut_text(random_: random.Random, lines: list[str]) -> None:
    del lines[random_.randrange(len(lines)) :]


def _change_character(random_: random.Random, lines: list[str]) -> None:
    index = random_.randrange(len(lines))
    line = lines[index]
    position = random_.randrange(len(line) + 1)
    lines[index] = line[:position] + random_.choice('{}":\\<[x0-. \u00e9\t') + line[position + 1 :]


def _swap_lines(random_: random.Random, lines: list[str]) -> None:
    one, other = random_.randrange(len(lines)), random_.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]


_TEXT_MUTATIONS = (_drop_line, _repeat_line, _cut_text, _change_character, _change_character, _swap_lines)
