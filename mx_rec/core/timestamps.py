"""Which time belongs to the keys of a training lookup."""

from __future__ import annotations

from typing import Any, Optional

import tensorflow as tf

from mx_rec import ops
from mx_rec.constants.constants import ASCEND_TIMESTAMP
from mx_rec.core import graph_state, pooling
from mx_rec.core.asc.batch import check_timestamp, component
from mx_rec.tf_compat import update_input

_TIMESTAMPS_INPUT = 4  # of MxRecFindOrInsert
_GET_NEXT = "IteratorGetNext"


def times_of_keys(
    state: graph_state.GraphState,
    owner: str,
    ids: pooling.Ids,
    keys: ops.table_ops.UniqueKeys,
    batch: Any,
    is_of_feature: bool,
) -> Optional[tf.Tensor]:
    """The times of the keys of a training lookup as `find_or_insert` takes them; None if none is known yet.

    A lookup of a feature has the time that its FeatureSpec with `is_timestamp=True` names in the batch. Else the time
    is the member of the collection ASCEND_TIMESTAMP that comes from the same batch as the ids.

    Args:
        state: of the graph.
        owner: the lookup and its table, for messages.
        ids: that were looked up.
        keys: what `unique` made of them.
        batch: that was given to the lookup.
        is_of_feature: whether it was called with a FeatureSpec.

    Raises:
        EnvironmentError: several timestamps belong to the batch.
        TypeError, ValueError: the timestamp is not as `mx_rec.core.asc.batch.check_timestamp` says, or has no place
            in the batch.
    """
    time = _time_of_feature(state, owner, batch) if is_of_feature else None
    if time is None:
        time = _time_of_batch(owner, pooling.flat_ids(ids))
    return None if time is None else _times(state, owner, time, ids, keys)


def connect_timestamps(graph: tf.Graph) -> None:
    """Gives lookups that were built before their timestamp joined the collection what they wait for.

    Raises:
        ValueError: a table has an eviction_threshold, but a training lookup of it has no timestamp.
        EnvironmentError, TypeError: as in `times_of_keys`.
    """
    state = graph_state.state_of(graph)
    for record in state.lookups.values():
        if record.name not in state.timeless:
            continue
        find = state.timeless[record.name]
        owner = f"table {record.table_name!r}: lookup {record.name!r}"
        unique = find.inputs[1].op
        with graph.as_default(), tf.compat.v1.name_scope(None), tf.control_dependencies(None):
            entrance = unique.inputs[0]
            time = _time_of_batch(owner, entrance)
            if time is None:
                raise ValueError(
                    f"{owner} has an eviction_threshold, which needs the time of the batch: a "
                    "FeatureSpec(is_timestamp=True), or tf.compat.v1.add_to_collection(ASCEND_TIMESTAMP, timestamp) "
                    "with an integer tensor of the same batch"
                )
            if not _is_single(time) and not record.has_dense_ids:
                raise ValueError(
                    f"{owner}: its ids are sparse or ragged, so a timestamp per sample must join ASCEND_TIMESTAMP "
                    "before sparse_lookup is called"
                )
            keys = ops.table_ops.UniqueKeys(*unique.outputs)
            update_input(find, _TIMESTAMPS_INPUT, _times(state, owner, time, entrance, keys))
        del state.timeless[record.name]


def _time_of_feature(state: graph_state.GraphState, owner: str, batch: Any) -> Optional[tf.Tensor]:
    specs = {
        feature.spec
        for feature in state.features
        if feature.is_train and feature.spec is not None and feature.spec.is_timestamp
    }
    found: dict[str, tf.Tensor] = {}
    missing: Optional[ValueError] = None
    for spec in specs:
        try:
            time = component(f"{owner}: timestamp {spec.name!r}", batch, spec.index_key)
        except ValueError as error:
            missing = error  # of another dataset, maybe
            continue
        found[check_timestamp(f"FeatureSpec {spec.name!r}", time).name] = time
    if len(found) > 1:
        raise EnvironmentError(f"{owner}: the batch has several timestamps: {', '.join(map(repr, found))}")
    if specs and not found and missing is not None:
        raise missing
    return next(iter(found.values()), None)


def _time_of_batch(owner: str, ids: tf.Tensor) -> Optional[tf.Tensor]:
    members = list({time.name: time for time in ids.graph.get_collection(ASCEND_TIMESTAMP)}.values())
    if not members:
        return None
    batches = _batches(ids)
    matching = [time for time in members if _batches(time) & batches or (not batches and len(members) == 1)]
    # A time that comes from no batch, such as a fed one, is that of all lookups.
    matching = matching or [time for time in members if not _batches(time)]
    if len(matching) > 1:
        raise EnvironmentError(
            f"{owner}: the collection ASCEND_TIMESTAMP must have one timestamp for a batch, got "
            f"{', '.join(time.name for time in matching)}"
        )
    return check_timestamp(f"{owner}: ASCEND_TIMESTAMP", matching[0]) if matching else None


def _batches(tensor: tf.Tensor) -> set[str]:
    """The get_next ops that a tensor is computed from."""
    seen: set[str] = set()
    found: set[str] = set()
    stack = [tensor.op]
    while stack:
        operation = stack.pop()
        if operation.name in seen:
            continue
        seen.add(operation.name)
        if operation.type == _GET_NEXT:
            found.add(operation.name)
        else:
            stack.extend(source.op for source in operation.inputs)
    return found


def _is_single(time: tf.Tensor) -> bool:
    return time.shape.num_elements() == 1


def _times(
    state: graph_state.GraphState, owner: str, time: tf.Tensor, ids: pooling.Ids, keys: ops.table_ops.UniqueKeys
) -> tf.Tensor:
    if _is_single(time):
        # One node for all lookups, so that they can be merged.
        if time.name not in state.times:
            with tf.compat.v1.name_scope(None), tf.compat.v1.name_scope("mx_rec/timestamp/"):
                state.times[time.name] = tf.reshape(tf.cast(time, tf.int64), [1])
        return state.times[time.name]
    flat = tf.reshape(tf.cast(time, tf.int64), [-1])
    if isinstance(ids, (tf.SparseTensor, tf.RaggedTensor)):
        if time.shape.rank is None:
            raise ValueError(
                f"{owner}: with sparse or ragged ids the rank of the timestamp {time.name!r} must be known"
            )
        rows = ids.indices[:, 0] if isinstance(ids, tf.SparseTensor) else _first_rows(ids)
        flat = tf.gather(flat, rows)
    return ops.key_times(keys.keys, keys.restore, flat, name="timestamps")


def _first_rows(ids: tf.RaggedTensor) -> tf.Tensor:
    """The sample that each of the flat values belongs to."""
    rows = ids.value_rowids()
    values: Any = ids.values
    while isinstance(values, tf.RaggedTensor):
        rows = tf.gather(rows, values.value_rowids())
        values = values.values
    return rows
