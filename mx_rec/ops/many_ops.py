"""One function per C++ op that does the work of several ops of `table_ops`. Shapes: n_i keys of table i.

The rewrite puts these ops in; a script has no need of them. Results, errors and formulae are those of the single
ops, and an error names the table that it comes from.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Callable, NamedTuple, Optional

import tensorflow as tf

from mx_rec.ops import table_ops
from mx_rec.ops.library import load_library
from mx_rec.ops.table_ops import TensorLike

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec

    P = ParamSpec("P")


class PreparedKeys(NamedTuple):
    """Result of `prepare_many`, one element per lookup."""

    keys: list[tf.Tensor]
    restores: list[tf.Tensor]
    counts: list[tf.Tensor]
    hints: list[tf.Tensor]


class LookedUp(NamedTuple):
    """Result of `look_up_many`; addresses and embeddings have one element per lookup."""

    addresses: list[tf.Tensor]
    embeddings: list[tf.Tensor]
    restored: list[tf.Tensor]


def prepare_many(
    handles: Sequence[tf.Tensor], ids: Sequence[TensorLike], reserve: bool = False, name: Optional[str] = None
) -> PreparedKeys:
    """`unique` and `look_ahead` for several lookups.

    Args:
        handles: of the tables; one may occur several times.
        ids: int32 or int64, all of one dtype, any shapes.
        reserve: also prepare rows of missing keys; nothing observes them early.
        name: of the node.
    """
    return PreparedKeys(*load_library().mx_rec_prepare_many(handles=handles, ids=ids, reserve=reserve, name=name))


def look_up_many(
    handles: Sequence[tf.Tensor],
    keys: Sequence[TensorLike],
    hints: Sequence[TensorLike],
    counts: Sequence[TensorLike],
    default_rows: Sequence[TensorLike],
    dim: int,
    restores: Sequence[TensorLike] = (),
    restore_of: Sequence[int] = (),
    max_keys: Sequence[int] = (),
    timestamps: Sequence[TensorLike] = (),
    coefficients: Sequence[int] = (),
    name: Optional[str] = None,
) -> LookedUp:
    """`find_or_insert` (or `find`) and `gather_by_address` for several lookups.

    A lookup none of whose results is read in a run does not take place in it.

    Args:
        handles: of the tables, all of `dim` columns; one may occur several times.
        keys: int64 [n_i].
        hints: int64 [n_i] or [0].
        counts: int32 [n_i] or [0] each, and missing keys are inserted; or none at all, and they are not.
        default_rows: float32 [dim] or [0] (zeros), given where a table has no row.
        dim: columns of an embedding.
        restores: int32 of any shapes, positions in the keys of a lookup.
        restore_of: for each of `restores` the index of its lookup.
        max_keys: for each lookup the largest n_i, 0 for any; or none at all.
        timestamps: for each of `counts` int64 [n_i], [1] or [0]; or none at all. See `find_or_insert`.
        coefficients: for each of `counts` what an occurrence counts; or none at all: 1.
        name: of the node.

    Returns:
        addresses int64 [n_i]; embeddings float32 [n_i, dim]; restored float32, `restores[r].shape + [dim]`.

    Raises:
        tf.errors.InvalidArgumentError: at run time, for lengths that do not fit, a position out of range, or more keys
            than `max_keys`.
    """
    result = load_library().mx_rec_look_up_many(
        handles=handles,
        keys=keys,
        hints=hints,
        counts=counts,
        timestamps=timestamps,
        default_rows=default_rows,
        restores=restores,
        restore_of=restore_of,
        dim=dim,
        max_keys=max_keys,
        coefficients=coefficients,
        name=name,
    )
    return LookedUp(*result)


def sum_gradients_many(
    gradients: Sequence[TensorLike],
    restores: Sequence[TensorLike],
    keys: Sequence[TensorLike],
    dim: int,
    name: Optional[str] = None,
) -> list[tf.Tensor]:
    """Sums float32 [n_i, dim] of the gradients of each row: what `unsorted_segment_sum` gives.

    Args:
        gradients: float32, `restores[i].shape + [dim]` or any other shape of as many elements.
        restores: int32 of any shapes, the row of each gradient; negative: none.
        keys: int64 [n_i]; only the number matters.
        dim: columns of a gradient.
        name: of the node.

    Raises:
        tf.errors.InvalidArgumentError: at run time, for a position out of range or a wrong number of gradients.
    """
    sums: list[tf.Tensor] = load_library().mx_rec_sum_gradients_many(
        gradients=gradients, restores=restores, keys=keys, dim=dim, name=name
    )
    return sums


def _for_several(
    single: Callable[Concatenate[tf.Tensor, TensorLike, TensorLike, P], tf.Operation],
) -> Callable[Concatenate[Sequence[tf.Tensor], Sequence[TensorLike], Sequence[TensorLike], P], tf.Operation]:
    """The function of the op that does the update `single` of several tables; it has all parameters of `single`."""
    after_gradients = inspect.Signature(list(inspect.signature(single).parameters.values())[3:])
    name = f"{single.__name__}_many"

    def many(
        handles: Sequence[tf.Tensor],
        addresses: Sequence[TensorLike],
        gradients: Sequence[TensorLike],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> tf.Operation:
        rest = after_gradients.bind(*args, **kwargs)
        rest.apply_defaults()
        op = getattr(load_library(), f"mx_rec_{name}")
        return op(handles=handles, addresses=addresses, gradients=gradients, **rest.arguments)

    own = inspect.signature(many)
    first = list(own.parameters.values())[:3]
    many.__signature__ = own.replace(  # type: ignore[attr-defined]
        parameters=[*first, *after_gradients.parameters.values()]
    )
    many.__name__ = many.__qualname__ = name
    many.__doc__ = f"""`{single.__name__}` for several tables, each of which is updated as a whole or not at all.

    Args:
        handles: of distinct tables.
        addresses: int64 [n_i].
        gradients: float32 [n_i, d_i].

    The others, and the errors, are those of `{single.__name__}`.
    """
    return many


apply_sgd_by_address_many = _for_several(table_ops.apply_sgd_by_address)
apply_lazy_adam_by_address_many = _for_several(table_ops.apply_lazy_adam_by_address)
apply_adagrad_by_address_many = _for_several(table_ops.apply_adagrad_by_address)
apply_adam_by_address_many = _for_several(table_ops.apply_adam_by_address)
apply_ftrl_by_address_many = _for_several(table_ops.apply_ftrl_by_address)
