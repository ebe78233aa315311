"""The table of our ops' signatures says what the library says."""

from __future__ import annotations

import pytest
from google.protobuf import text_format

from mx_rec import ops, tf_compat
from mx_rec.graph.attrs import attr_type
from mx_rec.graph.op_schema import OpSchema, op_schema
from mx_rec.graph.op_signatures import SIGNATURES, signature_op_def


@pytest.mark.parametrize("op", SIGNATURES)
def test_signature_equals_the_registered_op(op: str) -> None:
    ops.load_library()
    real, table = tf_compat.registered_op_def(op), signature_op_def(op)
    assert real is not None, f"the library has no op {op}"

    def args(values):
        return [(arg.name, arg.type, arg.type_attr, arg.number_attr, arg.type_list_attr, arg.is_ref) for arg in values]

    def attrs(values):
        return {
            attr.name: (
                attr.type,
                attr.HasField("default_value"),
                text_format.MessageToString(attr.default_value),
            )
            for attr in values
        }

    assert args(table.input_arg) == args(real.input_arg)
    assert args(table.output_arg) == args(real.output_arg)
    assert attrs(table.attr) == attrs(real.attr)
    assert table.is_stateful == real.is_stateful


def test_every_op_of_the_library_is_in_the_table() -> None:
    module = ops.load_library()
    registered = {op.name for op in module.OP_LIST.op} if hasattr(module, "OP_LIST") else set()
    assert registered <= set(SIGNATURES)


def test_unknown_ops_have_no_signature() -> None:
    assert signature_op_def("Neg") is None
    assert op_schema("OpOfSomebodyElse") is None


def test_effects() -> None:
    assert not op_schema("Assert").has_effects
    assert op_schema("RandomUniform").has_effects
    assert not op_schema("FloorMod").has_effects
    assert OpSchema(signature_op_def("MxRecLookAhead")).has_effects
    assert not OpSchema(signature_op_def("MxRecUnique")).has_effects


def test_a_symbolic_dtype_is_never_known() -> None:
    """Also after a node of the same op whose dtype is 0, as damaged graphs have it."""
    schema = op_schema("Identity")
    assert schema is not None
    invalid = attr_type(0)
    symbolic = type(invalid)(placeholder="T")
    schema.types({"T": invalid}.get)
    assert schema.types({"T": symbolic}.get) is None
