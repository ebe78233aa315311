"""`create_table` and `sparse_lookup`."""

from __future__ import annotations

import numbers
import os
from collections.abc import Sequence
from typing import Any, Optional, Union

import numpy as np
import tensorflow as tf

from mx_rec import ops
from mx_rec.constants.constants import (
    ASCEND_SPARSE_LOOKUP_ENTRANCE,
    ASCEND_SPARSE_LOOKUP_ID_OFFSET,
    ASCEND_SPARSE_LOOKUP_LOCAL_EMB,
    ATTR_GRAPH_TOKEN,
    ATTR_LOOKUP,
    MAX_DIM,
    MAX_INT32,
    MAX_VOCABULARY_SIZE,
    MIN_DIM,
)
from mx_rec.core import graph_state, pooling
from mx_rec.core.admission import admission_of_lookup, admits, evicts_by_time, tell_table
from mx_rec.core.asc.batch import check_ids, component
from mx_rec.core.asc.feature_spec import FeatureSpec
from mx_rec.core.initializers import table_seed, to_native
from mx_rec.core.keys import as_keys
from mx_rec.core.saveable import add_saveable
from mx_rec.core.table import EmbeddingTable
from mx_rec.core.timestamps import times_of_keys
from mx_rec.tf_compat import outermost_graph, set_string_attr
from mx_rec.util.initialize import ConfigInitializer
from mx_rec.util.log import logger
from mx_rec.util.validate import check_bool, check_float, check_int, check_optional_int, check_string

_ID_DTYPES = (tf.int32, tf.int64)


def create_table(
    key_dtype: tf.DType,
    dim: Union[int, tf.TensorShape],
    name: str,
    emb_initializer: Any,
    device_vocabulary_size: int = 1,
    host_vocabulary_size: int = 0,
    ssd_vocabulary_size: int = 0,
    ssd_data_path: Sequence[str] = (".",),
    is_save: bool = True,
    is_dp: bool = False,
    init_param: float = 1.0,
    all2all_gradients_op: str = "sum_gradients",
    enable_merge: bool = False,
    padding_keys: Optional[Union[int, Sequence[int]]] = None,
    padding_keys_mask: bool = False,
    padding_keys_len: Optional[int] = None,
    value_dtype: tf.DType = tf.float32,
    shard_num: int = 1,
    fusion_optimizer_var: bool = True,
    hashtable_threshold: int = 0,
    max_keys: Optional[int] = None,
    evict_policy: str = "lru",
    **kwargs: Any,
) -> EmbeddingTable:
    """Creates an embedding table in the default graph.

    With `init(use_dynamic_expansion=True)` the table grows with the keys it sees, so no size need be guessed.
    Otherwise its rows are a variable of fixed capacity, and a batch that brings more keys than fit raises
    `tf.errors.ResourceExhaustedError`, the table unharmed.

    Args:
        key_dtype: tf.int64 or tf.int32, dtype of the ids.
        dim: columns of an embedding, 1..8192, an int or a one-dimensional TensorShape.
        name: letters, digits, `_` and `.`, 1..100 characters, not `.` or `..`, unique in the graph.
        emb_initializer: a TensorFlow or Keras initializer instance. A key's row depends on the
            table's seed (the initializer's, else the graph's, and the name), the key and the column
            alone: the same key gets the same row in every run and order.
        device_vocabulary_size: 1..1e9, the capacity; with dynamic expansion only the fan-in of variance scaling.
        host_vocabulary_size: 0..1e9; if given, the capacity is this plus `ssd_vocabulary_size`. No effect with
            dynamic expansion.
        ssd_vocabulary_size: 0..1e9, needs `host_vocabulary_size`.
        ssd_data_path: accepted; tables live in memory.
        is_save: whether checkpoints include the table.
        is_dp: accepted; one process holds the whole table.
        init_param: -10..10, multiplies the initial values.
        all2all_gradients_op: accepted: `sum_gradients` or `sum_gradients_and_div_by_ranksize`.
        enable_merge: accepted with `use_dynamic_expansion` only. What it is for, one op for the tables of equal
            settings, the rewrite does for all tables whose lookups it moves; each keeps its own rows.
        padding_keys: an int or several, in the range of `key_dtype`.
        padding_keys_mask: whether rows of the padding keys are never updated: they take no gradient, and their
            optimizer slots do not move. Needs `padding_keys` and `padding_keys_len`. If False, the padding keys
            are keys like others. Holds for the optimizers of `mx_rec.optimizers`; others know of no padding keys.
        padding_keys_len: 1..1e9, accepted: a device needs the number of ids in a batch.
        value_dtype: tf.float32.
        shard_num: 1..8192, accepted; the store shards by itself.
        fusion_optimizer_var: accepted.
        hashtable_threshold: accepted.
        max_keys: 1..1e9, not more than the capacity: the table evicts by itself, down to a tenth below this number of
            keys, once it has more. While a batch is trained it may have more by the keys of that batch; a fixed
            capacity should leave room for those of three batches, since rows are used again once the steps that may
            hold them are over. None: no bound.
        evict_policy: which keys go first then: those seen longest ago (`lru`), by the timestamps of the data if
            lookups have an eviction_threshold and else by the order of training lookups; or those seen least often
            (`lfu`), of equal ones those seen longest ago.
        **kwargs: older spellings (`optimizer_list`) are ignored, others with a warning.

    Raises:
        EnvironmentError: before `init`.
        TypeError, ValueError: a parameter is out of its range (the message names it), or the name
            is taken.
        RuntimeError: `enable_merge` without dynamic expansion.
    """
    config = ConfigInitializer.get_instance()
    check_bool("enable_merge", enable_merge)
    if enable_merge and not config.use_dynamic_expansion:
        raise RuntimeError(f"table {name!r}: enable_merge needs init(use_dynamic_expansion=True)")
    if key_dtype not in _ID_DTYPES:
        raise ValueError(f"key_dtype must be tf.int64 or tf.int32, got {key_dtype!r}")
    if value_dtype != tf.float32:
        raise ValueError(f"value_dtype must be tf.float32, got {value_dtype!r}")
    if all2all_gradients_op not in ("sum_gradients", "sum_gradients_and_div_by_ranksize"):
        raise ValueError(
            "all2all_gradients_op must be sum_gradients or sum_gradients_and_div_by_ranksize, "
            f"got {all2all_gradients_op!r}"
        )
    check_string("name", name, 1, 100, r"[A-Za-z0-9_.]+")
    if name in (".", ".."):
        raise ValueError(f"name must not be {name!r}: exports are written to a directory of that name")
    columns = _check_dim(dim)
    check_int("device_vocabulary_size", device_vocabulary_size, 1, MAX_VOCABULARY_SIZE)
    check_int("host_vocabulary_size", host_vocabulary_size, 0, MAX_VOCABULARY_SIZE)
    check_int("ssd_vocabulary_size", ssd_vocabulary_size, 0, MAX_VOCABULARY_SIZE)
    if ssd_vocabulary_size > 0 and host_vocabulary_size == 0:
        raise ValueError("ssd_vocabulary_size > 0 needs host_vocabulary_size > 0, got 0")
    check_int("shard_num", shard_num, 1, MAX_DIM)
    check_float("init_param", init_param, -10.0, 10.0)
    for flag, value in (("is_save", is_save), ("is_dp", is_dp), ("fusion_optimizer_var", fusion_optimizer_var)):
        check_bool(flag, value)
    bound = check_optional_int("max_keys", max_keys, 1, MAX_VOCABULARY_SIZE) or 0
    if evict_policy not in ("lru", "lfu"):
        raise ValueError(f"evict_policy must be 'lru' or 'lfu', got {evict_policy!r}")
    frozen = _check_padding_keys(name, key_dtype, padding_keys, padding_keys_mask, padding_keys_len)
    _warn_ignored("create_table", set(kwargs) - {"optimizer_list"})

    graph = tf.compat.v1.get_default_graph()
    state = graph_state.state_of(graph)
    if name in state.tables:
        raise ValueError(f"table name {name!r} is taken in this graph; each table needs its own name")
    seed = table_seed(name, emb_initializer, graph.seed)
    native = to_native(emb_initializer, columns, device_vocabulary_size, seed)
    capacity = 0
    if not config.use_dynamic_expansion:
        capacity = host_vocabulary_size + ssd_vocabulary_size or device_vocabulary_size
        if bound > capacity:
            raise ValueError(f"table {name!r}: max_keys must be at most the capacity, {capacity}, got {bound}")
    with tf.compat.v1.name_scope(None), tf.control_dependencies(None):
        handle = ops.table_handle(
            name,
            columns,
            initializer=native.kind,
            initializer_a=native.a,
            initializer_b=native.b,
            initializer_scale=float(init_param),
            initializer_pool=native.pool,
            seed=seed,
            record_counts=os.environ.get("RECORD_KEY_COUNT", "0") == "1",
            fixed_capacity=capacity,
            padding_keys=frozen,
            record_times=bound > 0,
            use_lookup_clock=bound > 0,
            max_keys=bound,
            evict_policy=evict_policy,
            name=f"mx_rec/{name}/handle",
        )
        variable = _rows_variable(name, handle, capacity, columns) if capacity else None
    set_string_attr(handle.op, ATTR_GRAPH_TOKEN, state.token)
    tf.compat.v1.add_to_collection(
        config.train_params_config.ascend_global_hashtable_collection, handle if variable is None else variable
    )
    table = EmbeddingTable(name, columns, tf.as_dtype(key_dtype), handle, is_save, variable, frozen, bound)
    state.tables[name] = table
    if is_save:
        add_saveable(table)
    return table


def sparse_lookup(
    hashtable: EmbeddingTable,
    ids: Union[pooling.Ids, FeatureSpec],
    send_count: Optional[int] = None,
    dim: Optional[int] = None,
    is_train: bool = True,
    name: Optional[str] = None,
    modify_graph: bool = False,
    batch: Any = None,
    access_and_evict_config: Optional[dict] = None,
    is_grad: bool = True,
    serving_default_value: Optional[Union[float, Sequence[float], np.ndarray, tf.Tensor]] = None,
    combiner: Optional[str] = None,
    weights: Optional[pooling.Ids] = None,
    **kwargs: Any,
) -> Union[tf.Tensor, tf.RaggedTensor]:
    """Looks up the embeddings of a batch of ids, and pools them row by row if asked to.

    The graph it builds is complete: ids -> unique keys -> addresses -> rows -> back to the batch.
    `modify_graph_and_start_emb_cache` or `start_asc_pipeline` later moves the first half into the input pipeline.

    Args:
        hashtable: of the same graph as `ids`.
        ids: of the table's `key_dtype`, or as `mx_rec.core.keys.as_keys` takes them. A tensor of any rank, of which
            any size may be unknown or 0, or a SparseTensor or RaggedTensor. Every int value is a legal id, also a
            negative one. Or a FeatureSpec of the table: then `batch` has the ids.
        send_count: 1..2147483647, the largest number of distinct keys of a batch. Needed, and used, with
            `init(use_dynamic=False)` only; the shape of dense `ids` must then be known. Of merged lookups the
            sum holds.
        dim: accepted (older spelling); must equal the table's if given.
        is_train: training lookups insert missing keys with their initial rows and count; others
            never do, and read `serving_default_value` for missing keys.
        name: 1..255 characters, default `sparse_lookup_<n>`. A name that is taken gets `_1`, `_2`, ... behind it.
        modify_graph: accepted; the rewrite decides by the graph.
        batch: with a FeatureSpec, the batch from `get_next`, in any structure; see
            `mx_rec.core.asc.batch.component` for how the specification finds its ids. Else accepted.
        access_and_evict_config: dict of `access_threshold`, `eviction_threshold` and `faae_coefficient`, or None.
            A key has no row, reads `serving_default_value` and takes no gradient until it has been counted
            `access_threshold` times; `evict`, or an EvictHook, takes away the rows of keys that were not seen for
            `eviction_threshold` seconds of the data. See docs/faae.md. Training lookups of one table must have the same
            thresholds; those of other lookups have no effect. A FeatureSpec brings its own; a dict given with it must
            say the same.
        is_grad: whether the rows are trained; if not, the result passes no gradient on.
        serving_default_value: a number or [dim] numbers, or a tensor of them, read where the table has no row; zeros
            if not given.
        combiner: `sum`, `mean` or `sqrtn`: one embedding per row of ids, by the formulae of
            `tf.nn.embedding_lookup_sparse` (see `mx_rec.ops.pool`). Sparse and ragged ids must then have rank 2, and
            the values of sparse ids be in order of their rows. Dense ids are pooled over their last dimension; their
            rank must be known and at least 1. Needed for sparse ids.
        weights: with a combiner only: the weight of each id, float16, bfloat16, float32 or float64, of the type of
            the ids and with their indices, row splits or shape. Computed in float32. They get gradients too.
        **kwargs: ignored with a warning.

    Returns:
        Without a combiner, the rows of a table for the ids: a float32 tensor of shape `ids.shape + [dim]`, or, for
        ragged ids, a RaggedTensor with their row splits and flat values of shape `ids.flat_values.shape + [dim]`.
        With one, float32 [batch, dim], for dense ids `ids.shape[:-1] + [dim]`. A row without ids gives zeros, the
        last rows too, which `tf.nn.embedding_lookup_sparse` leaves out of its result: the batch is always as long as
        the ids say (`dense_shape[0]`, or the row splits).

    A training lookup with `is_grad` puts its local embedding, float32 [n, dim], into the collection
    ASCEND_SPARSE_LOOKUP_LOCAL_EMB and its addresses (rows of the variable where the capacity is fixed), int64
    [n], into ASCEND_SPARSE_LOOKUP_ID_OFFSET,
    in the same order; every lookup puts its ids (of sparse and ragged ones the values) into
    ASCEND_SPARSE_LOOKUP_ENTRANCE.

    Raises:
        EnvironmentError: before `init`, or after the graph has been rewritten.
        RuntimeError: a FeatureSpec without `batch`.
        TypeError, ValueError: a parameter is not as said above; the message names it.
        tf.errors.InvalidArgumentError: at run time, for a batch of more distinct keys than `send_count`, of which
            nothing is looked up (after the rewrite nor for the other lookups of its op, so tables may differ after
            this error from those of a run without the rewrite); for sparse ids that are not in order of their rows or
            not in their dense shape; and for weights that are not in the rows of the ids.
    """
    config = ConfigInitializer.get_instance()
    if not isinstance(hashtable, EmbeddingTable):
        raise TypeError(f"hashtable must be a table made by create_table, got {hashtable!r}")
    feature = ids if isinstance(ids, FeatureSpec) else None
    if isinstance(ids, FeatureSpec):
        ids = _ids_of_feature(hashtable, ids, batch)
    _check_lookup_arguments(hashtable, ids, dim, is_train, is_grad)
    ids = as_keys(hashtable, ids)
    flat = pooling.flat_ids(ids)
    pooling.check_pooling(hashtable.table_name, ids, combiner, weights)
    _warn_ignored("sparse_lookup", set(kwargs))
    state = graph_state.state_of(flat.graph)
    if state.initializers is not None:
        raise EnvironmentError(
            f"table {hashtable.table_name!r}: sparse_lookup must come before modify_graph_and_start_emb_cache() "
            "and start_asc_pipeline()"
        )
    max_keys = _check_static(hashtable, ids, send_count) if config.use_static else 0
    lookup_name = _lookup_name(state, name)
    owner = f"table {hashtable.table_name!r}: " + (
        f"lookup {lookup_name!r}" if feature is None else f"FeatureSpec {feature.name!r}"
    )
    admission = admission_of_lookup(owner, None if feature is None else feature.admission, access_and_evict_config)
    if is_train:
        tell_table(state, hashtable, owner, admission)
    default_row = _default_row(serving_default_value, hashtable.dim)

    with tf.compat.v1.name_scope(None), tf.compat.v1.name_scope(f"mx_rec/{hashtable.table_name}/{lookup_name}/"):
        entrance = tf.identity(flat, name="ids")
        unique = ops.unique(entrance, name="unique")
        keys, restore, counts = unique
        restore.set_shape(flat.shape)
        no_hints = tf.constant([], tf.int64, name="no_hints")
        if is_train:
            times = None
            if evicts_by_time(state, hashtable):
                times = times_of_keys(state, owner, ids, unique, batch, feature is not None)
            needs_time = times is None and evicts_by_time(state, hashtable)
            addresses = ops.find_or_insert(
                hashtable.handle,
                keys,
                no_hints,
                counts,
                max_keys,
                _times_to_come() if needs_time else times,
                admission.faae_coefficient,
                name="addresses",
            )
            if needs_time:
                state.timeless[lookup_name] = addresses.op
        else:
            addresses = ops.find(hashtable.handle, keys, no_hints, max_keys, name="addresses")
        may_miss = not is_train or admits(state, hashtable)
        offsets, embeddings, marked = _local_embeddings(hashtable, addresses, is_train, may_miss, default_row)
        if combiner is None:
            with flat.graph.gradient_override_map({"GatherV2": ops.RESTORE_GRADIENT}):
                result = tf.gather(embeddings, restore, axis=0, name="embeddings")
        else:
            result = pooling.pool(embeddings, restore, ids, combiner, weights)
    for node in (entrance, keys, addresses, *marked, result):
        set_string_attr(node.op, ATTR_LOOKUP, lookup_name)

    graph = flat.graph
    graph.add_to_collection(ASCEND_SPARSE_LOOKUP_ENTRANCE, entrance)
    if is_train and is_grad:
        graph.add_to_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB, embeddings)
        graph.add_to_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET, offsets)
    state.lookups[lookup_name] = graph_state.LookupRecord(
        lookup_name,
        hashtable.table_name,
        is_train,
        is_grad,
        addresses,
        embeddings,
        admission,
        feature,
        isinstance(ids, tf.Tensor),
    )
    rows = result if is_grad else tf.stop_gradient(result)
    return pooling.shaped(ids, rows, combiner is not None)


def _times_to_come() -> tf.Tensor:
    """Stands for times until `connect_timestamps`; no constant, whose shape would be known."""
    return tf.compat.v1.placeholder_with_default(tf.constant([], tf.int64), [None], name="no_timestamps")


def _rows_variable(name: str, handle: tf.Tensor, capacity: int, dim: int) -> tf.Variable:
    """The rows of a table of fixed capacity; in no collection of TensorFlow.

    It is not trainable by dense optimizers, gets its value when it is first used, and is saved with the table's keys:
    a Saver would save it by its capacity, and restore it without them.
    """
    return tf.compat.v1.Variable(
        lambda: ops.fresh_rows(handle, capacity, dim),
        trainable=False,
        collections=[],
        name=name if name[0].isalnum() else f"table{name}",
        dtype=tf.float32,
        shape=[capacity, dim],
        use_resource=True,
    )


def _local_embeddings(
    table: EmbeddingTable,
    addresses: tf.Tensor,
    is_train: bool,
    may_miss: bool,
    default_row: Optional[Union[np.ndarray, tf.Tensor]],
) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
    """(offsets [n], embeddings [n, dim], the tensors between addresses and embeddings, these included)."""
    if table.variable is None:
        embeddings = ops.gather_by_address(table.handle, addresses, table.dim, default_row, name="local_emb")
        return addresses, embeddings, [embeddings]
    variable = table.variable.handle
    offsets = ops.offsets(table.handle, variable, addresses, name="offsets")
    if not may_miss:  # every key of a training batch has a row
        embeddings = tf.raw_ops.ResourceGather(resource=variable, indices=offsets, dtype=tf.float32, name="local_emb")
        return offsets, embeddings, [offsets, embeddings]
    default = np.zeros([table.dim], np.float32) if default_row is None else default_row
    if is_train:
        return _admitted_embeddings(variable, offsets, tf.convert_to_tensor(default))
    found = tf.maximum(offsets, tf.constant(0, tf.int64))
    rows = tf.raw_ops.ResourceGather(resource=variable, indices=found, dtype=tf.float32)
    embeddings = tf.where(tf.expand_dims(offsets, 1) < 0, default, rows, name="local_emb")
    return offsets, embeddings, [offsets, found, rows, embeddings]


def _admitted_embeddings(
    variable: tf.Tensor, offsets: tf.Tensor, default: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
    """As `_local_embeddings`, with the gradient of the variable at the rows of admitted keys alone."""
    positions = tf.where(offsets >= 0)
    found = tf.gather_nd(offsets, positions)
    rows = tf.raw_ops.ResourceGather(resource=variable, indices=found, dtype=tf.float32)
    missing = tf.tile(tf.expand_dims(default, 0), tf.stack([tf.size(offsets), 1]))
    embeddings = tf.tensor_scatter_nd_update(missing, positions, rows, name="local_emb")
    return offsets, embeddings, [offsets, found, rows, embeddings]


def _check_dim(dim: Any) -> int:
    if isinstance(dim, tf.TensorShape):
        if dim.rank != 1 or dim[0] is None:
            raise ValueError(f"dim must be an int or a TensorShape of one known dimension, got {dim}")
        dim = tf.compat.dimension_value(dim[0])
    return check_int("dim", dim, MIN_DIM, MAX_DIM)


def _check_padding_keys(name: str, key_dtype: tf.DType, keys: Any, mask: Any, length: Any) -> tuple[int, ...]:
    """The keys whose rows are never updated, distinct and ascending."""
    check_bool("padding_keys_mask", mask)
    if mask and (keys is None or length is None):
        raise ValueError(
            f"table {name!r}: padding_keys_mask=True needs padding_keys and padding_keys_len, "
            f"got padding_keys={keys!r} and padding_keys_len={length!r}"
        )
    values = [] if keys is None else [keys] if isinstance(keys, numbers.Integral) else list(keys)
    distinct = sorted({check_int("padding_keys", value, key_dtype.min, key_dtype.max) for value in values})
    check_optional_int("padding_keys_len", length, 1, MAX_VOCABULARY_SIZE)
    return tuple(distinct) if mask else ()


def _warn_ignored(function: str, names: set[str]) -> None:
    if names:
        logger.warning("%s ignores unknown parameters: %s", function, ", ".join(sorted(names)))


def _ids_of_feature(table: EmbeddingTable, feature: FeatureSpec, batch: Any) -> pooling.Ids:
    owner = f"table {table.table_name!r}: FeatureSpec {feature.name!r}"
    if feature.is_timestamp:
        raise ValueError(f"{owner} is a timestamp, which is not looked up")
    if feature.table_name != table.table_name:
        raise ValueError(f"{owner} is a feature of table {feature.table_name!r}")
    if batch is None:
        raise RuntimeError(f"{owner} needs its batch: pass sparse_lookup(..., batch=) what get_next gave")
    return check_ids(owner, component(owner, batch, feature.index_key))


def _check_lookup_arguments(table: EmbeddingTable, ids: Any, dim: Any, is_train: Any, is_grad: Any) -> None:
    if not isinstance(ids, (tf.Tensor, tf.SparseTensor, tf.RaggedTensor)):
        raise TypeError(
            f"table {table.table_name!r}: ids must be a FeatureSpec or a tf.Tensor, tf.SparseTensor or tf.RaggedTensor "
            f"of integers, got {type(ids).__name__}"
        )
    flat = pooling.flat_ids(ids)
    graph = table.handle.graph
    if flat.graph is not graph and outermost_graph(flat.graph) is not graph:
        raise ValueError(
            f"table {table.table_name!r} and the ids {flat.name!r} belong to different graphs; "
            "create the table in the graph that uses it"
        )
    if flat.graph is not graph or tf.compat.v1.get_default_graph() is not graph:
        raise ValueError(
            f"table {table.table_name!r}: sparse_lookup must be called in the graph of its ids, not in the body of "
            "a tf.cond or tf.while_loop; look up outside and use the result in the body"
        )
    if dim is not None and dim != table.dim:
        raise ValueError(f"table {table.table_name!r}: dim must be the table's {table.dim}, got {dim}")
    check_bool("is_train", is_train)
    check_bool("is_grad", is_grad)


def _check_static(table: EmbeddingTable, ids: pooling.Ids, send_count: Any) -> int:
    """The number of keys that a batch may have, where shapes and sizes are fixed."""
    if send_count is None:
        raise ValueError(
            f"table {table.table_name!r}: init(use_dynamic=False) needs sparse_lookup(send_count=), the largest number "
            "of distinct keys of a batch"
        )
    check_int("send_count", send_count, 1, MAX_INT32)
    if isinstance(ids, tf.Tensor) and not ids.shape.is_fully_defined():
        raise ValueError(
            f"table {table.table_name!r}: init(use_dynamic=False) needs ids of a known shape, got {ids.shape} "
            "(batch(..., drop_remainder=True) makes it known); or use init(use_dynamic=True)"
        )
    return int(send_count)


def _lookup_name(state: graph_state.GraphState, name: Optional[str]) -> str:
    taken = state.lookups
    if name is None:
        n = len(state.lookups)
        while f"sparse_lookup_{n}" in taken:
            n += 1
        return f"sparse_lookup_{n}"
    check_string("name", name, 1, 255, r"[A-Za-z0-9_.\-/]+")
    if name not in taken:
        return name
    n = 1
    while f"{name}_{n}" in taken:
        n += 1
    return f"{name}_{n}"


def _default_row(value: Any, dim: int) -> Optional[Union[np.ndarray, tf.Tensor]]:
    if value is None:
        return None
    known = tf.get_static_value(value) if isinstance(value, tf.Tensor) else value
    if known is None:
        if value.shape.rank not in (None, 0, 1) or (value.shape.rank == 1 and value.shape[0] not in (None, 1, dim)):
            raise ValueError(f"serving_default_value must be a number or {dim} numbers, got shape {value.shape}")
        return tf.broadcast_to(tf.cast(value, tf.float32), [dim])
    row = np.asarray(known, np.float32)
    if row.shape not in ((), (1,), (dim,)):
        raise ValueError(f"serving_default_value must be a number or {dim} numbers, got shape {list(row.shape)}")
    return np.broadcast_to(row, (dim,)).copy()
