"""One function per C++ op. Shapes: n keys of a batch, d = dim of the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Optional, Union

import numpy as np
import tensorflow as tf

from mx_rec.ops.library import load_library

TensorLike = Union[tf.Tensor, np.ndarray, list, float, int]


class UniqueKeys(NamedTuple):
    """Result of `unique`."""

    keys: tf.Tensor
    restore: tf.Tensor
    counts: tf.Tensor


class TableContent(NamedTuple):
    """Result of `table_export`."""

    keys: tf.Tensor
    rows: tf.Tensor
    counts: tf.Tensor


class TableHistory(NamedTuple):
    """Result of `table_history`."""

    keys: tf.Tensor
    counts: tf.Tensor
    times: tf.Tensor
    has_row: tf.Tensor


class Evicted(NamedTuple):
    """Result of `evict`."""

    keys: tf.Tensor
    candidates: tf.Tensor


def table_handle(
    table_name: str,
    dim: int,
    *,
    initializer: str = "constant",
    initializer_a: float = 0.0,
    initializer_b: float = 0.0,
    initializer_scale: float = 1.0,
    initializer_pool: Optional[np.ndarray] = None,
    seed: int = 0,
    record_counts: bool = False,
    fixed_capacity: int = 0,
    padding_keys: Sequence[int] = (),
    access_threshold: int = -1,
    eviction_threshold: int = -1,
    record_times: bool = False,
    use_lookup_clock: bool = False,
    max_keys: int = 0,
    evict_policy: str = "lru",
    shared_counts: str = "",
    name: Optional[str] = None,
) -> tf.Tensor:
    """Handle (scalar resource) of a table that is created on first use in a session.

    Args:
        table_name: also the shared name: handles of one session and name are one table.
        dim: columns of an embedding, 1..8192.
        initializer: `constant` (a), `uniform` [a, b), `normal` or `truncated_normal` (mean a,
            standard deviation b), `pool` (a row of `initializer_pool`, chosen by key).
        initializer_a: see above.
        initializer_b: see above.
        initializer_scale: multiplies every initial value.
        initializer_pool: float32 [rows, dim], for `pool` only.
        seed: with the key and the column it determines every initial value.
        record_counts: whether to keep an occurrence count per key.
        fixed_capacity: 0 for a table that grows and keeps its rows; else it keeps at most so many keys,
            and `offsets` leads to the rows of a variable.
        padding_keys: keys whose rows are never updated.
        access_threshold: the count from which on a key has a row; 0: counts stay as they are; -1: every key has
            one when it is first seen.
        eviction_threshold: seconds, what `evict` goes by unless told otherwise; -1: nothing.
        record_times: whether to keep when each key was last seen. Comes with an eviction_threshold and `max_keys`.
        use_lookup_clock: times are those of a clock that each `find_or_insert` moves on by 1, not given ones.
        max_keys: 0, or a number of keys that the table comes down from by itself.
        evict_policy: which keys go first then: those seen longest ago (`lru`) or least often (`lfu`).
        shared_counts: a name; tables of one name in a session count keys together.
        name: of the node.
    """
    pool = np.zeros([], np.float32) if initializer_pool is None else initializer_pool
    return load_library().mx_rec_table(
        table_name=table_name,
        dim=dim,
        initializer=initializer,
        initializer_a=initializer_a,
        initializer_b=initializer_b,
        initializer_scale=initializer_scale,
        initializer_pool=tf.make_tensor_proto(pool, tf.float32),
        seed=seed,
        record_counts=record_counts,
        fixed_capacity=fixed_capacity,
        padding_keys=list(padding_keys),
        access_threshold=access_threshold,
        eviction_threshold=eviction_threshold,
        record_times=record_times,
        use_lookup_clock=use_lookup_clock,
        max_keys=max_keys,
        evict_policy=evict_policy,
        shared_counts=shared_counts,
        shared_name=table_name,
        name=name,
    )


def unique(ids: TensorLike, name: Optional[str] = None) -> UniqueKeys:
    """Distinct ids in order of first occurrence.

    Args:
        ids: int32 or int64, any shape.
        name: of the node.

    Returns:
        keys int64 [n]; restore int32 of the shape of `ids`, the position of each id in `keys`;
        counts int32 [n].
    """
    return UniqueKeys(*load_library().mx_rec_unique(ids=ids, name=name))


def look_ahead(handle: tf.Tensor, keys: TensorLike, reserve: bool = False, name: Optional[str] = None) -> tf.Tensor:
    """Address hints int64 [n] for `find_or_insert` and `find` at a later step.

    Args:
        handle: of the table.
        keys: int64 [n].
        reserve: also prepare rows of missing keys; nothing observes them early.
        name: of the node.
    """
    return load_library().mx_rec_look_ahead(handle=handle, keys=keys, reserve=reserve, name=name)


def find_or_insert(
    handle: tf.Tensor,
    keys: TensorLike,
    hints: Optional[TensorLike] = None,
    counts: Optional[TensorLike] = None,
    max_keys: int = 0,
    timestamps: Optional[TensorLike] = None,
    coefficient: int = 1,
    name: Optional[str] = None,
) -> tf.Tensor:
    """Addresses int64 [n] of keys int64 [n]; missing keys are inserted.

    In a table with admission a key is inserted once its count has reached the threshold; its address is 0 before.

    Args:
        handle: of the table.
        keys: int64 [n].
        hints: int64 [n] from `look_ahead`; a wrong hint costs time only.
        counts: int32 [n], occurrences to add to the keys' counts; 1 each by default.
        max_keys: the largest n, 0 for any.
        timestamps: int64 [n], [1] (for all keys) or [0], seconds of at least 0: when the keys occurred. Without any
            it is the newest time the table has seen.
        coefficient: 1..2147483647, what an occurrence counts.
        name: of the node.

    Raises:
        tf.errors.InvalidArgumentError: at run time, for more keys than `max_keys`, and for a negative timestamp; names
            the table and the numbers.
    """
    return load_library().mx_rec_find_or_insert(
        handle=handle,
        keys=keys,
        hints=_or_empty(hints, tf.int64),
        counts=_or_empty(counts, tf.int32),
        timestamps=[] if timestamps is None else [timestamps],
        max_keys=max_keys,
        coefficient=coefficient,
        name=name,
    )


def find(
    handle: tf.Tensor,
    keys: TensorLike,
    hints: Optional[TensorLike] = None,
    max_keys: int = 0,
    name: Optional[str] = None,
) -> tf.Tensor:
    """Addresses int64 [n] of keys int64 [n], 0 where the table has none. Inserts nothing. See `find_or_insert`."""
    return load_library().mx_rec_find(
        handle=handle, keys=keys, hints=_or_empty(hints, tf.int64), max_keys=max_keys, name=name
    )


def gather_by_address(
    handle: tf.Tensor,
    addresses: TensorLike,
    dim: int,
    default_row: Optional[TensorLike] = None,
    name: Optional[str] = None,
) -> tf.Tensor:
    """Embeddings float32 [n, d] at addresses int64 [n].

    Args:
        handle: of the table.
        addresses: int64 [n]; 0 means no row.
        dim: d of the table.
        default_row: float32 [d], given where the address is 0; zeros by default.
        name: of the node.

    Raises:
        tf.errors.InvalidArgumentError: at run time, for an address this table did not hand out,
            naming table, position and value.
    """
    return load_library().mx_rec_gather_by_address(
        handle=handle,
        addresses=addresses,
        default_row=_or_empty(default_row, tf.float32),
        dim=dim,
        name=name,
    )


def offsets(handle: tf.Tensor, rows: tf.Tensor, addresses: TensorLike, name: Optional[str] = None) -> tf.Tensor:
    """Rows int64 [n] that addresses of a table of fixed capacity lead to, -1 where the address is 0.

    A row met for the first time is written with its key's initial values.

    Args:
        handle: of the table.
        rows: resource handle of a float32 variable [capacity, d].
        addresses: int64 [n].
        name: of the node.
    """
    return load_library().mx_rec_offsets(handle=handle, rows=rows, addresses=addresses, name=name)


def trained_positions(handle: tf.Tensor, offsets: TensorLike, name: Optional[str] = None) -> tf.Tensor:
    """Positions int64 [m] of the `offsets` int64 [n] whose rows an update may change, ascending.

    Left out are -1 and the rows of padding keys.

    Raises:
        tf.errors.InvalidArgumentError: at run time, for an offset below -1 or not below the capacity.
    """
    return load_library().mx_rec_trained_positions(handle=handle, offsets=offsets, name=name)


def fresh_rows(handle: tf.Tensor, capacity: int, dim: int, name: Optional[str] = None) -> tf.Tensor:
    """Initial value float32 [capacity, d] of the variable of a table of fixed capacity.

    Zeros; `offsets` writes a key's initial values when it meets the key's row.
    """
    return load_library().mx_rec_fresh_rows(handle=handle, capacity=capacity, dim=dim, name=name)


def apply_sgd_by_address(
    handle: tf.Tensor,
    addresses: TensorLike,
    gradients: TensorLike,
    learning_rate: TensorLike,
    weight_decay: float = 0.0,
    name: Optional[str] = None,
) -> tf.Operation:
    """`row -= learning_rate * (gradient + weight_decay * row)`.

    Args:
        handle: of the table.
        addresses: int64 [n]; 0 is skipped, gradients of a repeated one are summed first.
        gradients: float32 [n, d].
        learning_rate: scalar.
        weight_decay: see the formula.
        name: of the node.

    Raises:
        ValueError: when the graph is built, if rows of gradients and addresses are known to differ.
        tf.errors.InvalidArgumentError: at run time, for the same or an illegal address; then
            nothing has been applied.
    """
    return load_library().mx_rec_apply_sgd_by_address(
        handle=handle,
        addresses=addresses,
        gradients=gradients,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        name=name,
    )


def apply_lazy_adam_by_address(
    handle: tf.Tensor,
    addresses: TensorLike,
    gradients: TensorLike,
    learning_rate: TensorLike,
    beta1: TensorLike = 0.9,
    beta2: TensorLike = 0.999,
    epsilon: TensorLike = 1e-8,
    name: Optional[str] = None,
) -> tf.Operation:
    """Adam for the rows of this batch alone; shapes and errors as `apply_sgd_by_address`.

    With t the number of updates of the table, this one included:
    `lr_t = learning_rate * sqrt(1 - beta2^t) / (1 - beta1^t)`, `m = beta1 m + (1 - beta1) g`,
    `v = beta2 v + (1 - beta2) g^2`, `row -= lr_t m / (sqrt(v) + epsilon)` (Kingma and Ba,
    "Adam", 2014, in the form TensorFlow applies to sparse gradients).
    """
    return load_library().mx_rec_apply_lazy_adam_by_address(
        handle=handle,
        addresses=addresses,
        gradients=gradients,
        learning_rate=learning_rate,
        beta1=beta1,
        beta2=beta2,
        epsilon=epsilon,
        name=name,
    )


def apply_adam_by_address(
    handle: tf.Tensor,
    addresses: TensorLike,
    gradients: TensorLike,
    step_size: TensorLike,
    beta1: TensorLike = 0.9,
    beta2: TensorLike = 0.999,
    epsilon: TensorLike = 1e-8,
    name: Optional[str] = None,
) -> tf.Operation:
    """Adam whose moments decay in all rows and move all rows; shapes and errors as `apply_sgd_by_address`.

    All rows: `m *= beta1`, `v *= beta2`; those of `addresses`: `m += g (1 - beta1)`, `v += g^2 (1 - beta2)`; all rows:
    `row -= step_size m / (sqrt(v) + epsilon)` (Kingma and Ba, "Adam", 2014, in the form of
    `tf.compat.v1.train.AdamOptimizer` for sparse gradients). `step_size` of step t is
    `learning_rate * sqrt(1 - beta2^t) / (1 - beta1^t)`.
    """
    return load_library().mx_rec_apply_adam_by_address(
        handle=handle,
        addresses=addresses,
        gradients=gradients,
        step_size=step_size,
        beta1=beta1,
        beta2=beta2,
        epsilon=epsilon,
        name=name,
    )


def apply_adagrad_by_address(
    handle: tf.Tensor,
    addresses: TensorLike,
    gradients: TensorLike,
    learning_rate: TensorLike,
    initial_accumulator_value: float = 0.9,
    epsilon: float = 1e-7,
    root_epsilon: float = 0.0,
    name: Optional[str] = None,
) -> tf.Operation:
    """Adagrad; shapes and errors as `apply_sgd_by_address`.

    `s += g^2`, `row -= learning_rate * g / (sqrt(s + epsilon) + root_epsilon)`, where s begins at
    `initial_accumulator_value` in every row of the table (Duchi et al., "Adaptive subgradient methods", 2011, with
    an epsilon; `root_epsilon` is that of TensorFlow's SparseApplyAdagradV2).
    """
    return load_library().mx_rec_apply_adagrad_by_address(
        handle=handle,
        addresses=addresses,
        gradients=gradients,
        learning_rate=learning_rate,
        initial_accumulator_value=initial_accumulator_value,
        epsilon=epsilon,
        root_epsilon=root_epsilon,
        name=name,
    )


def apply_ftrl_by_address(
    handle: tf.Tensor,
    addresses: TensorLike,
    gradients: TensorLike,
    learning_rate: TensorLike,
    learning_rate_power: float = -0.5,
    initial_accumulator_value: float = 0.1,
    l1: float = 0.0,
    l2: float = 0.0,
    l2_shrinkage: float = 0.0,
    name: Optional[str] = None,
) -> tf.Operation:
    """FTRL-proximal; shapes and errors as `apply_sgd_by_address`.

    With `p = -learning_rate_power`: `new_accum = accum + g^2`,
    `linear += g + 2 l2_shrinkage row - (new_accum^p - accum^p) / learning_rate * row`,
    `row = (clip(linear, -l1, l1) - linear) / (new_accum^p / learning_rate + 2 l2)`, where accum begins at
    `initial_accumulator_value` and linear at 0 (McMahan et al., "Ad click prediction", 2013, in the form of
    TensorFlow's sparse FtrlV2). `learning_rate` must be positive.
    """
    return load_library().mx_rec_apply_ftrl_by_address(
        handle=handle,
        addresses=addresses,
        gradients=gradients,
        learning_rate=learning_rate,
        learning_rate_power=learning_rate_power,
        initial_accumulator_value=initial_accumulator_value,
        l1=l1,
        l2=l2,
        l2_shrinkage=l2_shrinkage,
        name=name,
    )


def table_size(handle: tf.Tensor, name: Optional[str] = None) -> tf.Tensor:
    """Number of keys, int64 scalar."""
    return load_library().mx_rec_table_size(handle=handle, name=name)


def table_capacity(handle: tf.Tensor, name: Optional[str] = None) -> tf.Tensor:
    """Number of rows that fit without new memory, int64 scalar."""
    return load_library().mx_rec_table_capacity(handle=handle, name=name)


def table_import(handle: tf.Tensor, keys: TensorLike, rows: TensorLike, name: Optional[str] = None) -> tf.Operation:
    """Gives `keys` int64 [n] the `rows` float32 [n, d], whatever they had.

    Missing keys are inserted, and counted 0 times; optimizer slots begin anew.

    Raises:
        tf.errors.InvalidArgumentError: at run time, for rows of another shape.
    """
    return load_library().mx_rec_table_import(handle=handle, keys=keys, rows=rows, name=name)


def table_export(handle: tf.Tensor, name: Optional[str] = None) -> TableContent:
    """Content of one instant, sorted by key.

    Returns:
        keys int64 [n]; rows float32 [n, stride], the embedding and then the slots;
        counts int64 [n], 0 where the table does not record them.
    """
    return TableContent(*load_library().mx_rec_table_export(handle=handle, name=name))


def table_save(
    handle: tf.Tensor,
    prefix: TensorLike,
    variables: Sequence[tf.Tensor] = (),
    steps: Sequence[tf.Tensor] = (),
    *,
    file_number: int,
    key_dtype: str = "int64",
    optimizer: str = "",
    slot_initials: Sequence[float] = (),
    name: Optional[str] = None,
) -> tf.Tensor:
    """Writes the state of one instant of a table to files beside a checkpoint.

    Args:
        handle: of the table.
        prefix: string scalar, of the checkpoint.
        variables: resource handles of rows and slots, float32 [capacity, d] each, of a table of fixed capacity.
        steps: resource handle of the int64 step count of the slots' optimizer, if there is one.
        file_number: different for the tables of a checkpoint.
        key_dtype: `int64` or `int32`.
        optimizer: whose slots they are.
        slot_initials: what each slot begins with.
        name: of the node.

    Returns:
        A string scalar, which the checkpoint must hold for `table_restore`.

    Raises:
        tf.errors.OpError: at run time; the message names the file that could not be written.
    """
    return load_library().mx_rec_table_save(
        handle=handle,
        prefix=prefix,
        variables=list(variables),
        steps=list(steps),
        file_number=file_number,
        key_dtype=key_dtype,
        optimizer=optimizer,
        slot_initials=list(slot_initials),
        name=name,
    )


def checkpoint_folder(prefix: TensorLike, manifests: Sequence[tf.Tensor], name: Optional[str] = None) -> tf.Operation:
    """Makes the folder beside a checkpoint that names its tables, and removes those of checkpoints that are gone.

    Args:
        prefix: string scalar, of the checkpoint, which must be complete.
        manifests: string scalars, results of `table_save`, at least one.
        name: of the node.

    Returns:
        The op; if the folder cannot be made it logs a warning.
    """
    return load_library().mx_rec_checkpoint_folder(prefix=prefix, manifests=list(manifests), name=name)


def table_restore(
    handle: tf.Tensor,
    prefix: TensorLike,
    manifest: TensorLike,
    variables: Sequence[tf.Tensor] = (),
    steps: Sequence[tf.Tensor] = (),
    *,
    key_dtype: str = "int64",
    optimizer: str = "",
    slot_initials: Sequence[float] = (),
    with_slots: bool = True,
    part: int = 0,
    parts: int = 1,
    name: Optional[str] = None,
) -> tf.Operation:
    """Replaces the content of a table by what `table_save` saved, of a table of any name.

    Args:
        handle: of the table.
        prefix: string scalar, of the checkpoint.
        manifest: string scalar, the result of `table_save`, from the checkpoint.
        variables: see `table_save`; variables without a value get one.
        steps: see `table_save`.
        key_dtype: of the table; the saved one must be equal.
        optimizer: see `table_save`; for a table that grows, the optimizer that trains it, if that is known.
        slot_initials: the same, of its slots.
        with_slots: else the rows alone are restored, and slots and steps begin anew.
        part: see `parts`.
        parts: if above 1, only the keys whose hash belongs to `part` are taken.
        name: of the node.

    Raises:
        tf.errors.DataLossError: at run time, if a file is missing or damaged; names it.
        tf.errors.InvalidArgumentError: the saved table has another dim, key_dtype or optimizer.
        tf.errors.ResourceExhaustedError: more keys than the capacity. After any error the table is as it was.
    """
    return load_library().mx_rec_table_restore(
        handle=handle,
        prefix=prefix,
        manifest=manifest,
        variables=list(variables),
        steps=list(steps),
        key_dtype=key_dtype,
        optimizer=optimizer,
        slot_initials=list(slot_initials),
        with_slots=with_slots,
        part=part,
        parts=parts,
        name=name,
    )


def ready_slots(
    handle: tf.Tensor,
    slots: Sequence[tf.Tensor],
    steps: Sequence[tf.Tensor] = (),
    slot_initials: Sequence[float] = (),
    name: Optional[str] = None,
) -> tf.Operation:
    """Gives slot variables of a table of fixed capacity their initial values where they have none.

    Args:
        handle: of the table.
        slots: resource handles, float32 [capacity, d] each.
        steps: resource handle of an int64 step count, or none.
        slot_initials: what each slot begins with.
        name: of the node.
    """
    return load_library().mx_rec_ready_slots(
        handle=handle, slots=list(slots), steps=list(steps), slot_initials=list(slot_initials), name=name
    )


def key_times(keys: TensorLike, restore: TensorLike, timestamps: TensorLike, name: Optional[str] = None) -> tf.Tensor:
    """When the keys of a batch were last seen in it: int64 [n], or [1] for a single timestamp.

    Args:
        keys: int64 [n], from `unique`.
        restore: int32 of any shape, from `unique`.
        timestamps: int64 of any shape: one, or one for each equally long part of `restore`, such as a sample.
        name: of the node.

    Raises:
        tf.errors.InvalidArgumentError: at run time, for a number of timestamps that does not divide the ids.
    """
    return load_library().mx_rec_key_times(keys=keys, restore=restore, timestamps=timestamps, name=name)


def evict(handle: tf.Tensor, threshold: TensorLike = -1, name: Optional[str] = None) -> Evicted:
    """Evicts keys of which the newest time is at least `threshold` later than the time they were last seen.

    Args:
        handle: of the table.
        threshold: int64 scalar, seconds; -1: the table's `eviction_threshold`.
        name: of the node.

    Returns:
        How many keys lost their rows, and how many were forgotten that had none; int64 scalars.

    Raises:
        tf.errors.FailedPreconditionError: at run time, for a table that has no threshold or keeps no times.
    """
    return Evicted(*load_library().mx_rec_evict(handle=handle, threshold=tf.cast(threshold, tf.int64), name=name))


def set_threshold(handle: tf.Tensor, threshold: TensorLike, name: Optional[str] = None) -> tf.Tensor:
    """Changes the count from which on keys of a table have a row. Returns the threshold in force, an int32 scalar.

    Args:
        handle: of the table.
        threshold: int32, of which the first element is taken. 0: counts stay as they are, the threshold too; greater:
            the new threshold, and counts go on.
        name: of the node.

    Raises:
        tf.errors.InvalidArgumentError: at run time, for a negative threshold.
        tf.errors.FailedPreconditionError: at run time, for a table without admission.
    """
    return load_library().mx_rec_set_threshold(handle=handle, threshold=threshold, name=name)


def reset_slots(
    handle: tf.Tensor,
    slots: Sequence[tf.Tensor],
    offsets: TensorLike,
    initial_values: Sequence[float],
    name: Optional[str] = None,
) -> tf.Operation:
    """Writes initial values into the slots of rows that have come from evicted keys, once per row.

    Args:
        handle: of a table of fixed capacity.
        slots: resource handles of float32 variables [capacity, d].
        offsets: int64 [n], rows of the table; -1 is skipped.
        initial_values: one per slot.
        name: of the node.
    """
    return load_library().mx_rec_reset_slots(
        handle=handle, slots=list(slots), offsets=offsets, initial_values=list(initial_values), name=name
    )


def table_history(handle: tf.Tensor, name: Optional[str] = None) -> TableHistory:
    """What the table knows of all keys it counts, sorted: also of those that have no row yet.

    Returns:
        keys, counts and times int64 [n]; has_row bool [n]. Counts and times are 0 where they are not recorded.
    """
    return TableHistory(*load_library().mx_rec_table_history(handle=handle, name=name))


def _or_empty(value: Optional[TensorLike], dtype: tf.DType) -> Any:
    return tf.constant([], dtype) if value is None else value
