"""What differs between TensorFlow versions, or is reached by a private name, in one place."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Optional

import tensorflow as tf
from google.protobuf import wrappers_pb2
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.framework import op_def_registry, ops
from tensorflow.python.saved_model.loader_impl import SavedModelLoader
from tensorflow.python.training.saving.saveable_object import SaveableObject as SaveableObject
from tensorflow.python.training.saving.saveable_object import SaveSpec as SaveSpec


def registered_op_def(op: str) -> Optional[Any]:
    """The `OpDef` the running TensorFlow has for an op type, or `None`."""
    return op_def_registry.get(op)


def collection_proto_type(name: str) -> Optional[Any]:
    """The message class that a collection's members are stored as in a MetaGraphDef, or `None`."""
    return ops.get_collection_proto_type(name)


def register_collection_proto(
    name: str,
    to_text: Callable[[Any, Optional[str]], Optional[str]],
    from_text: Callable[[str, Optional[str]], Any],
) -> bool:
    """Says how a MetaGraphDef carries the members of a collection: as texts.

    Args:
        name: of the collection.
        to_text: from a member and the scope that is exported; None leaves the member out.
        from_text: from a text and the scope that is imported into.

    Returns:
        False if somebody has said so before, who then keeps the last word.
    """
    if ops.get_to_proto_function(name) is not None:
        return False

    def to_proto(member: Any, export_scope: Optional[str] = None) -> Optional[Any]:
        text = to_text(member, export_scope)
        return None if text is None else wrappers_pb2.StringValue(value=text)

    def from_proto(proto: Any, import_scope: Optional[str] = None) -> Any:
        return from_text(proto.value, import_scope)

    ops.register_proto_function(name, proto_type=wrappers_pb2.StringValue, to_proto=to_proto, from_proto=from_proto)
    return True


def load_into_session(session: tf.compat.v1.Session, tags: Iterable[str], directory: str) -> Any:
    """What `tf.compat.v1.saved_model.load` does and returns, which asks for an API that knows no sessions."""
    return SavedModelLoader(directory).load(session, list(tags))


def saver_prefix(saver: Any, save_path: str, global_step: Optional[int]) -> str:
    """The prefix that `saver.save(session, save_path, global_step)` hands to its ops."""
    if global_step is None:
        return save_path
    padded = getattr(saver, "_pad_step_number", False)
    return f"{save_path}-{global_step:08d}" if padded else f"{save_path}-{global_step}"


def update_input(op: tf.Operation, index: int, tensor: tf.Tensor) -> None:
    """Make `tensor` the data input `index` of `op`. Checks neither dtype nor cycles."""
    op._update_input(index, tensor)


def set_control_inputs(op: tf.Operation, controls: Iterable[tf.Operation]) -> None:
    """Make `controls` the only control inputs of `op`."""
    op._remove_all_control_inputs()
    op._add_control_inputs(list(controls))


def add_control_inputs(op: tf.Operation, controls: Iterable[tf.Operation]) -> None:
    """Lets `op` wait for `controls` too."""
    op._add_control_inputs(list(controls))


def set_attr(op: tf.Operation, name: str, value: Any) -> None:
    """Set one attribute (an `AttrValue`) of a live op."""
    op._set_attr(name, value)


def clear_attr(op: tf.Operation, name: str) -> None:
    """Remove one attribute of a live op."""
    op._clear_attr(name)


def is_open_session_of(session: Any, graph: tf.Graph) -> bool:
    """Whether a session belongs to a graph and has not been closed."""
    return getattr(session, "_graph", None) is graph and not getattr(session, "_closed", False)


def outermost_graph(graph: tf.Graph) -> tf.Graph:
    """The graph in which the function is made whose body `graph` is; `graph` itself if it is no body."""
    while True:
        # The first is of tf.function, the second of the functions of TensorFlow 1.
        outer = getattr(graph, "outer_graph", None) or getattr(graph, "_outer_graph", None)
        if outer is None:
            return graph
        graph = outer


def set_string_attr(op: tf.Operation, name: str, value: str) -> None:
    """Set a string attribute of a live op."""
    set_attr(op, name, attr_value_pb2.AttrValue(s=value.encode()))


def given_seed(initializer: Any) -> Optional[Any]:
    """The seed that an initializer was made with, `None` if it was made without.

    Keras 3 sets the attribute `seed` of an initializer without one to a random number; its config keeps what was given.
    """
    config = _config(initializer) if _is_of_keras(initializer) else {}
    seed = config["seed"] if "seed" in config else getattr(initializer, "seed", None)
    if isinstance(seed, dict):  # of a Keras 3 SeedGenerator
        return seed.get("config", {}).get("seed")
    return seed


def with_seed(initializer: Any, seed: int) -> Any:
    """The initializer itself, or a copy with `seed` of a Keras initializer made without one.

    All versions of Keras draw the seed that is missing from Python's random numbers; a graph's seed has no say.
    """
    if not _is_of_keras(initializer):
        return initializer
    config = _config(initializer)
    if "seed" not in config or given_seed(initializer) is not None:
        return initializer
    try:
        return type(initializer).from_config({**config, "seed": seed})
    except TypeError:  # a subclass of user code whose constructor takes other parameters
        return initializer


def _is_of_keras(initializer: Any) -> bool:
    return any(base.__module__.split(".")[0] in ("keras", "tf_keras") for base in type(initializer).__mro__)


def _config(initializer: Any) -> dict[str, Any]:
    try:
        return dict(initializer.get_config())
    except (AttributeError, NotImplementedError):
        return {}
