"""Values of placeholders, read from `.npy` files and checked against both graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Optional

import click

from mx_rec.cli.console import UnusableFile

if TYPE_CHECKING:
    import numpy as np

    from mx_rec.cli.verifying.fetches import Side

PLACEHOLDERS = ("Placeholder", "PlaceholderV2")


def load_feeds(
    sides: tuple[Side, Side], feeds: Sequence[tuple[str, str]], signature: Optional[str] = None
) -> dict[str, np.ndarray]:
    """Arrays by the name of the placeholder that takes them in both graphs.

    Args:
        sides: the graphs.
        feeds: (name, path of an .npy file).
        signature: of SavedModels, whose inputs may be named; `None` for the default.

    Raises:
        UnusableFile: a file cannot be read.
        click.UsageError: a name is no placeholder of both graphs, or does not take this array.
    """
    values = {}
    for name, path in feeds:
        node = _input_of_signature(sides[0], signature, name)
        node = node[:-2] if node.endswith(":0") else node
        if node in values:
            raise click.UsageError(f"--feed: '{node}' is given twice")
        values[node] = _load_array(path)
        for side in sides:
            _check_feed(side, node, path, values[node])
    return values


def _input_of_signature(side: Side, signature: Optional[str], name: str) -> str:
    """The tensor behind an input of a signature; any other name as it is."""
    from mx_rec.cli.verifying.fetches import signature_of

    if name.partition(":")[0] in side.view:
        return name
    found = signature_of(side, signature)
    return str(found.inputs[name].name) if found is not None and name in found.inputs else name


def _load_array(path: str) -> Any:
    import numpy as np

    try:
        array = np.load(path, allow_pickle=False)
    except OSError as error:
        raise UnusableFile(f"--feed: cannot read '{path}': {error.strerror or 'not an .npy file'}") from error
    except (ValueError, EOFError) as error:
        if "Object arrays" in str(error):
            raise UnusableFile(
                f"--feed: '{path}' holds Python objects; expected plain numbers or strings: save strings as "
                "np.array(x, 'S')"
            ) from error
        raise UnusableFile(f"--feed: '{path}' is no .npy file of plain numbers or strings: {error}") from error
    if not isinstance(array, np.ndarray):
        raise UnusableFile(f"--feed: '{path}' holds several arrays; expected one (numpy.save)")
    return array


def _check_feed(side: Side, name: str, path: str, array: Any) -> None:
    import tensorflow as tf

    node = side.view.get(name)
    if node is None:
        raise click.UsageError(f"--feed: {side} has no placeholder '{name}'")
    if node.op not in (*PLACEHOLDERS, "PlaceholderWithDefault"):
        raise click.UsageError(f"--feed: '{name}' of {side} is no placeholder but a {node.op}")
    attr = node.attr("dtype")
    expected = tf.as_dtype(attr.type) if attr is not None else tf.float32
    shape = _static_shape(node)
    is_string = expected == tf.string and array.dtype.kind in "US"
    if (is_string or array.dtype == expected.as_numpy_dtype) and shape.is_compatible_with(array.shape):
        return
    raise click.UsageError(
        f"--feed: '{path}' holds {array.dtype.name} {list(array.shape)}, but placeholder '{name}' of {side} takes "
        f"{expected.name} {shape}"
    )


def _static_shape(node: Any) -> Any:
    import tensorflow as tf

    attr = node.attr("shape")
    # A scalar without unknown_rank was how the first versions spelled an unknown shape.
    if attr is None or (node.op == "Placeholder" and not attr.shape.dim and attr.shape.unknown_rank):
        return tf.TensorShape(None)
    return tf.TensorShape(attr.shape)
