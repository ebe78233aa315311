"""FeatureSpec mode: the same numbers as with tensors, the same rewrite, and clear errors."""

from __future__ import annotations

import collections
import dataclasses
import logging
import pathlib
import re
import subprocess
import sys
from typing import Any, Callable, Optional

import numpy as np
import pytest
import tensorflow as tf
from training_harness import OPTIMIZERS

from mx_rec import ops
from mx_rec.constants.constants import ASCEND_SPARSE_LOOKUP_ID_OFFSET, ASCEND_SPARSE_LOOKUP_LOCAL_EMB
from mx_rec.core import graph_state
from mx_rec.core.admission import AdmissionConfig
from mx_rec.core.asc import helper
from mx_rec.core.asc.feature_spec import FeatureSpec
from mx_rec.core.asc.helper import get_asc_insert_func
from mx_rec.core.asc.manager import start_asc_pipeline
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.errors import GraphRewriteError
from mx_rec.graph import modify_graph_and_start_emb_cache
from mx_rec.tf_compat import outermost_graph
from mx_rec.util.initialize import get_initializer, get_target_batch, init, terminate_config_initializer
from mx_rec.util.variable import get_dense_and_sparse_variable

tf1 = tf.compat.v1
STEPS = 5
BATCH = 8
DIM = 4


@pytest.fixture(autouse=True)
def clean():
    tf1.disable_eager_execution()
    terminate_config_initializer()
    with tf.Graph().as_default():
        yield
    terminate_config_initializer()


# --- The same script with tensors and with specifications ---


@dataclasses.dataclass(frozen=True)
class Structure:
    """A structure of batches.

    Attributes:
        build: makes a dataset element of the columns user, friend, item and y.
        keys: index keys of user, friend and item.
        flat: their places in flat order.
        pick: the columns of a batch, as a script without specifications would take them.
    """

    build: Callable[[dict], Any]
    keys: tuple
    flat: list
    pick: Callable[[Any], tuple]


Element = collections.namedtuple("Element", ["user", "friend", "item", "y"])

STRUCTURES = {
    "dict": Structure(
        dict,
        ("user", "friend", "item"),
        [2, 0, 1],
        lambda b: (b["user"], b["friend"], b["item"], b["y"]),
    ),
    "tuple": Structure(
        lambda c: (c["user"], c["y"], c["friend"], c["item"]),
        (0, 2, 3),
        [0, 2, 3],
        lambda b: (b[0], b[2], b[3], b[1]),
    ),
    "nested": Structure(
        lambda c: ({"user": c["user"], "of_friend": {"friend": c["friend"]}}, {"item": c["item"]}, c["y"]),
        ("user", "friend", "item"),
        [1, 0, 2],
        lambda b: (b[0]["user"], b[0]["of_friend"]["friend"], b[1]["item"], b[2]),
    ),
    "namedtuple": Structure(
        lambda c: Element(c["user"], c["friend"], c["item"], c["y"]),
        ("user", "friend", 2),
        [0, 1, 2],
        lambda b: (b.user, b.friend, b.item, b.y),
    ),
}


def _dataset(structure, seed, dtype=np.int64):
    rng = np.random.RandomState(seed)
    rows = BATCH * STEPS
    columns = {
        "user": rng.randint(-40, 40, size=(rows, 3)).astype(dtype),
        "friend": rng.randint(-60, 40, size=rows).astype(dtype),
        "item": (rng.randint(0, 61, size=rows) - 2**30).astype(dtype),
        "y": rng.rand(rows).astype(np.float32),
    }
    return tf.data.Dataset.from_tensor_slices(STRUCTURES[structure].build(columns)).batch(BATCH)


def _specs(structure):
    keys = STRUCTURES[structure].keys
    return [
        FeatureSpec(name, index_key=key, table_name=table)
        for name, key, table in zip(("user", "friend", "item"), keys, ("user_table", "user_table", "item_table"))
    ]


def _insert_function(form, structure, specs, is_training):
    if form == "specs":
        return get_asc_insert_func(tgt_key_specs=specs, is_training=is_training)
    return get_asc_insert_func(
        args_index_list=STRUCTURES[structure].flat,
        table_names=["user_table", "user_table", "item_table"],
        is_training=is_training,
    )


@dataclasses.dataclass
class Side:
    """One side of a script."""

    batch: Any
    start: tf.Operation
    loss: Optional[tf.Tensor] = None


def _side(structure, dtype, one_shot, is_train, insert):
    dataset = _dataset(structure, 0 if is_train else 1, dtype)
    if insert is not None:
        dataset = dataset.map(insert)
    if one_shot:
        return Side(tf1.data.make_one_shot_iterator(dataset.repeat().prefetch(2)).get_next(), tf.no_op())
    iterator = tf1.data.make_initializable_iterator(dataset.prefetch(2))
    return Side(iterator.get_next(), iterator.initializer)


def _model(side, structure, tables, specs, is_train):
    """Specs is None: lookups of tensors."""
    user, friend, item, y = STRUCTURES[structure].pick(side.batch)
    ids = (user, friend, item) if specs is None else specs
    options = {"is_train": is_train, "batch": None if specs is None else side.batch}
    features = [
        tf.reduce_mean(sparse_lookup(tables[0], ids[0], send_count=100, modify_graph=specs is None, **options), 1),
        sparse_lookup(tables[0], ids[1], **options),
        sparse_lookup(tables[1], ids[2], **options),
        tf.reduce_max(sparse_lookup(tables[0], ids[0], **options), 1),  # one specification, two lookups
    ]
    with tf1.variable_scope("dense", reuse=tf1.AUTO_REUSE):
        weights = tf1.get_variable("w", [4 * DIM, 1], use_resource=True, initializer=tf1.ones_initializer())
    side.loss = tf.reduce_mean(tf.square(tf.squeeze(tf.matmul(tf.concat(features, 1), weights), 1) - y))


def _tables(dtype=np.int64):
    return [
        create_table(
            tf.as_dtype(dtype),
            DIM,
            name,
            tf1.random_normal_initializer(0.0, 0.3, seed=5),
            device_vocabulary_size=capacity,
        )
        for name, capacity in (("user_table", 110), ("item_table", 70))
    ]


def _train_op(loss, dynamic):
    dense, sparse = get_dense_and_sparse_variable()
    optimizer = OPTIMIZERS["lazy_adam"].create(dynamic, 0.05)
    if dynamic:
        local = tf1.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB)
        addresses = tf1.get_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET)
        step = optimizer.apply_gradients(list(zip(tf.gradients(loss, local), addresses)))
    else:
        step = optimizer.minimize(loss, var_list=sparse)
    return tf.group(step, tf1.train.AdamOptimizer(0.01).minimize(loss, var_list=dense))


def _content(session, table):
    """Keys and counts, and by key the rows."""
    exported = table.export(session)
    if table.variable is None:
        return [exported.keys, exported.counts, exported.rows]
    offsets = ops.offsets(table.handle, table.variable.handle, ops.find(table.handle, exported.keys))
    return [exported.keys, exported.counts, session.run(tf.gather(table.variable, offsets))]


def _run(way, structure, dynamic, *, dtype=np.int64, one_shot=False, form="specs", own_initializers=False, prefetch=3):
    """Losses and table sizes over two rounds of training and evaluation, and the tables at the end."""
    terminate_config_initializer()
    init(use_dynamic_expansion=dynamic, prefetch_batch_number=prefetch)
    with tf.Graph().as_default() as graph:
        tables = _tables(dtype)
        sides = {}
        for is_train in (True, False):
            specs = None if way in ("tensors", "modify") else _specs(structure)
            insert = None if specs is None else _insert_function(form, structure, specs, is_train)
            sides[is_train] = _side(structure, dtype, one_shot, is_train, insert)
            _model(sides[is_train], structure, tables, specs, is_train)
        if way == "start before gradients":
            assert not any(report.refusals for report in start_asc_pipeline())
            sides[True].start, sides[False].start = get_initializer(True), get_initializer(False)
        step = _train_op(sides[True].loss, dynamic)
        if way == "start before gradients":
            assert _needed(graph, [step, sides[True].loss.op, sides[False].loss.op])["keys"] == 0
        if way in ("modify", "start"):
            rewrite = modify_graph_and_start_emb_cache if way == "modify" else start_asc_pipeline
            _check_moved(graph, [step, sides[True].loss.op, sides[False].loss.op], rewrite, 8 if dynamic else 6)
            if not own_initializers:
                for is_train, side in sides.items():
                    side.start = get_initializer(is_train)
        values = []
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            for _ in range(2):
                session.run(sides[True].start)
                values.extend(session.run([sides[True].loss, step])[0] for _ in range(STEPS))
                sizes = [table.size(session) for table in tables]
                session.run(sides[False].start)
                values.extend(session.run(sides[False].loss) for _ in range(STEPS))
                assert [table.size(session) for table in tables] == sizes  # evaluation does not insert
                values.extend(sizes)
            return values, [_content(session, table) for table in tables]


def _needed(graph, operations):
    """How many nodes of a kind these operations need, function bodies excluded; "keys": that make keys of lookups."""
    sub = tf1.graph_util.extract_sub_graph(graph.as_graph_def(), [operation.name for operation in operations])
    kinds = collections.Counter(node.op for node in sub.node)
    # Updates of variables use the op as well.
    kinds["keys"] = sum(node.op == "MxRecUnique" and node.name.startswith("mx_rec/") for node in sub.node)
    return kinds


def _check_moved(graph, operations, rewrite, keys):
    """The keys of all lookups come from the dataset after the rewrite, and did not before."""
    assert _needed(graph, operations)["keys"] == keys
    reports = rewrite()
    assert {report.name for report in reports if report.modified} >= {"hoist_lookups", "swap_iterators"}
    assert not any(report.refusals for report in reports)
    needed = _needed(graph, operations)
    assert needed["keys"] == 0
    assert needed["IteratorGetNext"] == 2
    ahead = collections.Counter(
        node.op
        for function in graph.as_graph_def().library.function
        if "mx_rec_look_ahead" in function.signature.name
        for node in function.node_def
    )
    assert ahead["MxRecPrepareMany"] == 2


def _assert_same(one, other):
    assert one[0] == other[0]
    for content, other_content in zip(one[1], other[1]):
        for array, other_array in zip(content, other_content):
            np.testing.assert_array_equal(array, other_array)


@pytest.mark.parametrize(
    ("dtype", "one_shot"),
    [(np.int32, False), (np.int64, True)],
    ids=["int32-initializable", "int64-one_shot"],
)
@pytest.mark.parametrize("dynamic", [True, False], ids=["dynamic", "fixed"])
@pytest.mark.parametrize("structure", sorted(STRUCTURES))
def test_all_modes_give_the_same(structure, dynamic, dtype, one_shot):
    case = {"structure": structure, "dynamic": dynamic, "dtype": dtype, "one_shot": one_shot}
    plain = _run("tensors", **case)
    _assert_same(plain, _run("specs", **case))
    _assert_same(plain, _run("modify", **case))
    _assert_same(plain, _run("start", **case))
    assert len({value for value in plain[0] if isinstance(value, np.floating)}) > 2 * STEPS  # it really trains
    assert all(size > 20 for size in plain[0] if isinstance(size, int))


@pytest.mark.parametrize("dynamic", [True, False], ids=["dynamic", "fixed"])
@pytest.mark.parametrize("structure", sorted(STRUCTURES))
def test_places_and_tables_in_place_of_specifications(structure, dynamic):
    plain = _run("tensors", structure, dynamic)
    for way in ("specs", "start"):
        _assert_same(plain, _run(way, structure, dynamic, form="places"))


@pytest.mark.parametrize("dynamic", [True, False], ids=["dynamic", "fixed"])
def test_the_pipeline_may_start_before_the_gradients(dynamic):
    _assert_same(_run("tensors", "dict", dynamic), _run("start before gradients", "dict", dynamic))


@pytest.mark.parametrize("prefetch", [1, 10])
def test_the_scripts_own_initializers_start_the_pipeline(prefetch):
    plain = _run("specs", "dict", True)
    _assert_same(plain, _run("start", "dict", True, own_initializers=True, prefetch=prefetch))


@pytest.mark.parametrize("rewrite", [start_asc_pipeline, modify_graph_and_start_emb_cache])
def test_features_and_tensors_in_one_graph(rewrite):
    def run(rewrite):
        terminate_config_initializer()
        init(use_dynamic_expansion=True)
        with tf.Graph().as_default() as graph:
            tables = _tables()
            specs = _specs("dict")
            side = _side("dict", np.int64, False, True, get_asc_insert_func(specs))
            results = [
                sparse_lookup(tables[0], specs[1], batch=side.batch),
                sparse_lookup(tables[0], side.batch["friend"] * 3, modify_graph=True),
            ]
            loss = tf.reduce_mean(tf.square(tf.add_n(results) - 1.0))
            step = _train_op_of_tables(loss)
            if rewrite is not None:
                reports = rewrite()
                assert not any(report.refusals for report in reports)
                assert _needed(graph, [step])["keys"] == 0
                side.start = get_initializer(True)
            with tf1.Session() as session:
                session.run(side.start)
                losses = [session.run([loss, step])[0] for _ in range(STEPS)]
                return losses, [_content(session, table) for table in tables]

    _assert_same(run(None), run(rewrite))


def _train_op_of_tables(loss):
    return OPTIMIZERS["sgd_decay"].create(True, 0.1).minimize(loss)


def test_sparse_components_are_pooled():
    init(use_dynamic_expansion=True)
    tags = tf.sparse.from_dense(np.array([[5, 0, 7], [0, 0, 0], [9, 5, 5]], np.int64))
    spec = FeatureSpec("tags", table_name="user_table")
    dataset = tf.data.Dataset.from_tensors({"tags": tags}).map(get_asc_insert_func(spec)).repeat(2)
    batch = tf1.data.make_initializable_iterator(dataset).get_next()
    table = _tables()[0]
    pooled = sparse_lookup(table, spec, batch=batch, combiner="mean")
    step = _train_op_of_tables(tf.reduce_sum(pooled))
    rows = sparse_lookup(table, tf.constant([5, 7, 9], tf.int64), is_train=False)
    assert not any(report.refusals for report in start_asc_pipeline() if report.name != "hoist_lookups")
    with tf1.Session() as session:
        session.run(get_initializer(True))
        session.run(step)
        five, seven, nine = session.run(rows)
        expected = [(five + seven) / 2, np.zeros(DIM), (nine + five + five) / 3]
        np.testing.assert_allclose(session.run(pooled), expected, rtol=1e-5)
    with pytest.raises(TypeError, match="'tags' is a timestamp, so it must be dense in the batch, got Sparse"):
        tf.data.Dataset.from_tensors({"tags": tags}).map(get_asc_insert_func(FeatureSpec("tags", is_timestamp=True)))


def test_later_maps_do_not_matter():
    """The look-ahead goes by the graph, so ids may change between the function and the lookup."""
    init(use_dynamic_expansion=True)
    spec = FeatureSpec("user", table_name="user_table")
    dataset = _dataset("dict", 0).map(get_asc_insert_func(spec)).map(lambda b: {**b, "user": b["user"] // 2})
    batch = tf1.data.make_initializable_iterator(dataset).get_next()
    (table, _) = _tables()
    step = _train_op_of_tables(tf.reduce_sum(sparse_lookup(table, spec, batch=batch)))
    assert not any(report.refusals for report in start_asc_pipeline())
    with tf1.Session() as session:
        session.run(get_initializer(True))
        user, _ = session.run([get_target_batch(True, batch)["user"], step])
        assert set(table.export(session).keys) == set(user.ravel())


def test_lookups_keep_their_specification():
    init(use_dynamic_expansion=True)
    spec = FeatureSpec("user", table_name="user_table", access_threshold=-1, faae_coefficient=4)
    batch = tf1.data.make_initializable_iterator(_dataset("dict", 0)).get_next()
    (table, _) = _tables()
    sparse_lookup(table, spec, batch=batch, name="by_feature")
    sparse_lookup(table, batch["user"], name="plain")
    config = {"access_threshold": None, "eviction_threshold": -1, "faae_coefficient": 2}
    sparse_lookup(table, batch["user"], name="by_dict", access_and_evict_config=config)
    # The same thresholds twice are no conflict.
    sparse_lookup(
        table, spec, batch=batch, name="both", access_and_evict_config={"access_threshold": -1, "faae_coefficient": 4}
    )
    lookups = graph_state.state_of(tf1.get_default_graph()).lookups
    assert {name: (record.feature, record.admission) for name, record in lookups.items()} == {
        "by_feature": (spec, AdmissionConfig(faae_coefficient=4)),
        "plain": (None, AdmissionConfig()),
        "by_dict": (None, AdmissionConfig(faae_coefficient=2)),
        "both": (spec, AdmissionConfig(faae_coefficient=4)),
    }


# --- The function for dataset.map ---


@pytest.mark.parametrize("form", ["specs", "places"])
@pytest.mark.parametrize("structure", sorted(STRUCTURES))
def test_elements_pass_through_unchanged(structure, form):
    init(use_dynamic_expansion=True)
    dataset = _dataset(structure, 0)
    mapped = dataset.map(_insert_function(form, structure, _specs(structure), True))
    assert tf1.data.get_output_types(mapped) == tf1.data.get_output_types(dataset)
    assert mapped.element_spec == dataset.element_spec
    batches = [tf1.data.make_one_shot_iterator(each).get_next() for each in (dataset, mapped)]
    with tf1.Session() as session:
        for _ in range(STEPS):
            one, other = session.run(batches)
            tf.nest.map_structure(np.testing.assert_array_equal, one, other)


@pytest.mark.parametrize("as_tuple", [True, False])
def test_a_single_tensor_becomes_a_tuple_of_one(as_tuple):
    init(use_dynamic_expansion=True)
    ids = np.arange(6)
    dataset = tf.data.Dataset.from_tensor_slices((ids,) if as_tuple else ids).batch(2)
    spec = FeatureSpec("user_table", index_key=0)
    batch = tf1.data.make_one_shot_iterator(dataset.map(get_asc_insert_func(spec))).get_next()
    assert isinstance(batch, tuple)
    assert len(batch) == 1
    assert sparse_lookup(_tables()[0], spec, batch=batch).shape.as_list() == [None, DIM]


def test_specifications_may_have_the_structure_of_the_batch():
    init(use_dynamic_expansion=True)
    user, friend, item = _specs("dict")
    nested = [{"of_friend": [friend], "user": FeatureSpec("again", index_key=0, table_name="user_table")}, [item], []]

    def build(columns):
        return {"user": (columns["user"],), "of_friend": {"friend": columns["friend"]}}, columns, columns["y"]

    plain = _dataset("dict", 0)
    batch = tf1.data.make_one_shot_iterator(plain.map(build).map(get_asc_insert_func(nested))).get_next()
    features = graph_state.state_of(tf1.get_default_graph()).features
    assert [feature.spec.name for feature in features] == ["friend", "again", "item"]
    # A part of the batch will do, and tells apart what the whole does not.
    table = _tables()[0]
    sparse_lookup(table, friend, batch=batch[0])
    with pytest.raises(ValueError, match="'user' is a key of batch.0. and of batch.1.; pass the part of the batch"):
        sparse_lookup(table, user, batch=batch)
    sparse_lookup(table, user, batch=batch[1])


def test_an_integer_counts_a_dict_by_sorted_key():
    init(use_dynamic_expansion=True)
    batch = tf1.data.make_one_shot_iterator(_dataset("dict", 0)).get_next()
    table = _tables()[0]
    places = [sparse_lookup(table, FeatureSpec("user_table", index_key=i), batch=batch) for i in (0, 1, 2)]
    named = [sparse_lookup(table, FeatureSpec("user_table", index_key=k), batch=batch) for k in sorted(batch)[:3]]
    assert [p.shape.as_list() for p in places] == [n.shape.as_list() for n in named] == [[None, 4]] * 2 + [[None, 3, 4]]
    records = list(graph_state.state_of(tf1.get_default_graph()).lookups.values())
    sources = [record.addresses.op.inputs[1].op.inputs[0].op.inputs[0].name for record in records]
    assert sources[:3] == sources[3:] == [batch[key].name for key in ("friend", "item", "user")]


def test_datasets_note_their_features_in_the_scripts_graph():
    init(use_dynamic_expansion=True)
    specs = [*_specs("dict"), FeatureSpec("time", is_timestamp=True)]
    plain = _dataset("dict", 0).map(lambda b: {**b, "time": tf.constant(5, tf.int64)})
    plain.map(get_asc_insert_func(specs))
    plain.flat_map(lambda b: tf.data.Dataset.from_tensors(b).map(get_asc_insert_func(specs[0], is_training=False)))
    legacy = tf1.data.Dataset.from_tensors({"friend": tf.constant([1], tf.int64)})
    legacy.map_with_legacy_function(get_asc_insert_func(specs[1], is_training=False))
    features = graph_state.state_of(tf1.get_default_graph()).features
    assert [(feature.table_name, feature.is_train, feature.spec) for feature in features] == [
        ("user_table", True, specs[0]),
        ("user_table", True, specs[1]),
        ("item_table", True, specs[2]),
        (None, True, specs[3]),
        ("user_table", False, specs[0]),
        ("user_table", False, specs[1]),
    ]
    assert outermost_graph(tf1.get_default_graph()) is tf1.get_default_graph()


def test_dump_writes_the_dataset_function(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    init(use_dynamic_expansion=True)
    _dataset("dict", 0).map(get_asc_insert_func(_specs("dict"), dump_graph=True))
    graph_def = tf1.GraphDef.FromString((tmp_path / "export_graph" / "pipeline_graph.pb").read_bytes())
    assert [node.op for node in graph_def.node] == ["Placeholder"] * 4


def test_older_names():
    init(use_dynamic_expansion=True)
    assert helper.FeatureSpec is FeatureSpec
    dataset = _dataset("tuple", 0)
    functions = [
        helper.create_asc_insert_func_with_specs(_specs("tuple"), is_training=False),
        helper.create_asc_insert_func_with_acg([0, 3], ["user_table", "item_table"]),
        helper.create_asc_insert_func_with_acg(
            args_index_list=[0], feature_counts=[3], table_names=["user_table"], is_training=True
        ),
        get_asc_insert_func(args_index_list=[0], feature_numbers=[3], table_names=["user_table"]),
    ]
    for function in functions:
        assert dataset.map(function).element_spec == dataset.element_spec
    features = graph_state.state_of(tf1.get_default_graph()).features
    assert [(feature.table_name, feature.is_train) for feature in features] == [
        ("user_table", False),
        ("user_table", False),
        ("item_table", False),
        ("user_table", True),
        ("item_table", True),
    ]


def test_unknown_parameters_are_named(caplog):
    init(use_dynamic_expansion=True)
    with caplog.at_level(logging.WARNING, "mx_rec"):
        get_asc_insert_func(FeatureSpec("user"), is_trainign=True, feature_numbers=[1])
    assert caplog.messages == ["create_asc_insert_func_with_specs ignores unknown parameters: is_trainign"]


# --- Errors ---


def test_defaults():
    spec = FeatureSpec("user", feat_count=3, batch_size=8, eviction_threshold=5)
    assert (spec.name, spec.index_key, spec.table_name, spec.is_timestamp) == ("user", "user", "user", None)
    assert spec.admission == AdmissionConfig(eviction_threshold=5)  # needs no admission
    assert FeatureSpec("user", 0, "table").index_key == 0
    assert FeatureSpec("user", access_threshold=0, eviction_threshold=0).admission == AdmissionConfig(0, 0)
    assert FeatureSpec("user", access_threshold=-1, faae_coefficient=None).admission == AdmissionConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.table_name = "other"


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"name": ""}, ValueError, "name must have 1 to 255 characters, got 0"),
        ({"name": "x" * 256}, ValueError, "name must have 1 to 255 characters, got 256"),
        ({"name": 3}, TypeError, "name must be a string, got 3"),
        ({"index_key": -1}, ValueError, r"'user': index_key, if not a string, must be in \[0, 255\], got -1"),
        ({"index_key": 256}, ValueError, r"index_key, if not a string, must be in \[0, 255\], got 256"),
        ({"index_key": ""}, ValueError, "index_key must have 1 to 255 characters, got 0"),
        ({"index_key": True}, TypeError, r"index_key, if not a string, must be an integer in \[0, 255\], got True"),
        ({"index_key": 1.5}, TypeError, r"index_key, if not a string, must be an integer in \[0, 255\], got 1.5"),
        ({"table_name": ""}, ValueError, "'user': table_name must have 1 to 255 characters, got 0"),
        ({"table_name": 4}, TypeError, "table_name must be a string, got 4"),
        (
            {"access_threshold": -2},
            ValueError,
            r"FeatureSpec 'user' of table 't': access_threshold must be in \[-1, 2147483647\], got -2",
        ),
        (
            {"access_threshold": 2**31},
            ValueError,
            r"'user' of table 't': access_threshold must be in \[-1, 2147483647\], got 2147483648",
        ),
        ({"access_threshold": 1.0}, TypeError, r"'user' of table 't': access_threshold must be an integer in"),
        (
            {"eviction_threshold": -2, "access_threshold": 1},
            ValueError,
            r"'user' of table 't': eviction_threshold must be in \[-1, 2147483647\], got -2",
        ),
        ({"eviction_threshold": "5"}, TypeError, "'user' of table 't': eviction_threshold must be an integer in"),
        (
            {"faae_coefficient": 0},
            ValueError,
            r"'user' of table 't': faae_coefficient must be in \[1, 2147483647\], got 0",
        ),
        ({"is_timestamp": 1}, TypeError, "'user': is_timestamp must be a bool, got 1"),
        ({"is_timestamp": True, "access_threshold": 1}, ValueError, "a timestamp is no feature, so it takes no access"),
        ({"batch_size": 0}, ValueError, r"'user': batch_size must be in \[1, 2147483647\], got 0"),
        ({"feat_count": 0}, ValueError, r"'user': feat_count must be in \[1, 2147483647\], got 0"),
    ],
)
def test_specification_parameters_are_checked(kwargs, error, message):
    with pytest.raises(error, match=message):
        FeatureSpec(**{"name": "user", "table_name": "t", **kwargs})


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({}, RuntimeError, "either tgt_key_specs, or args_index_list and table_names, got none of them"),
        (
            {"tgt_key_specs": FeatureSpec("user"), "args_index_list": [0], "table_names": ["t"]},
            RuntimeError,
            "got tgt_key_specs and args_index_list and table_names",
        ),
        ({"tgt_key_specs": FeatureSpec("user"), "table_names": ["t"]}, RuntimeError, "got tgt_key_specs and table_na"),
        ({"tgt_key_specs": FeatureSpec("user"), "args_index_list": [0]}, RuntimeError, "got tgt_key_specs and args_i"),
        ({"args_index_list": [0]}, RuntimeError, "got args_index_list$"),
        ({"table_names": ["t"]}, RuntimeError, "got table_names$"),
        ({"tgt_key_specs": []}, ValueError, "at least one FeatureSpec, got none"),
        ({"tgt_key_specs": "user"}, TypeError, "must be a FeatureSpec or a list of them, got 'user' of type str"),
        ({"tgt_key_specs": [FeatureSpec("user"), 3]}, TypeError, "must be a FeatureSpec or a list of them, got 3"),
        (
            {"tgt_key_specs": [FeatureSpec("a", is_timestamp=True), FeatureSpec("b", is_timestamp=True)]},
            EnvironmentError,
            "at most one FeatureSpec with is_timestamp=True, got 2: 'a', 'b'",
        ),
        ({"args_index_list": 0, "table_names": ["t"]}, TypeError, "args_index_list must be a list, got 0"),
        ({"args_index_list": [0], "table_names": "t"}, TypeError, "table_names must be a list, got 't'"),
        ({"args_index_list": [0, 1], "table_names": ["t"]}, ValueError, "the same length, at least 1, got 2 and 1"),
        ({"args_index_list": [], "table_names": []}, ValueError, "the same length, at least 1, got 0 and 0"),
        (
            {"args_index_list": [-1], "table_names": ["t"]},
            ValueError,
            "args_index_list must be in .0, 2147483647., got",
        ),
        ({"args_index_list": [0], "table_names": [""]}, ValueError, "table_names must have 1 to 255 characters"),
        ({"tgt_key_specs": FeatureSpec("user"), "is_training": 1}, TypeError, "is_training must be a bool, got 1"),
        ({"tgt_key_specs": FeatureSpec("user"), "dump_graph": "x"}, TypeError, "dump_graph must be a bool, got 'x'"),
    ],
)
def test_function_parameters_are_checked(kwargs, error, message):
    init(use_dynamic_expansion=True)
    with pytest.raises(error, match=message):
        get_asc_insert_func(**kwargs)


@pytest.mark.parametrize(
    ("specs", "structure", "error", "message"),
    [
        (FeatureSpec("nobody"), "dict", ValueError, "'nobody': the batch has no key 'nobody'; it has 'user', 'friend"),
        (FeatureSpec("nobody"), "tuple", ValueError, "it has no keys, so index_key must be an integer"),
        (FeatureSpec("nobody"), "nested", ValueError, "it has 'user', 'of_friend', 'item', 'friend'"),
        (FeatureSpec("user", 4), "tuple", ValueError, "'user': index_key must be less than 4, the number of comp"),
        (
            FeatureSpec("user", 0),
            "nested",
            TypeError,
            "'user' must be a tensor of int64, int32, float32 or float64 in the batch, got d",
        ),
        (FeatureSpec("of_friend"), "nested", TypeError, "'of_friend' must be a tensor of int64, int32, float"),
        (
            FeatureSpec("user", is_timestamp=True),
            "dict",
            ValueError,
            "'user' is a timestamp, so it must be a scalar or have one element per sample",
        ),
        (
            FeatureSpec("y", is_timestamp=True),
            "dict",
            TypeError,
            "'y' must be int64 or int32 in the batch, got float32",
        ),
        (
            [[FeatureSpec("user")], []],
            "nested",
            ValueError,
            "structure of the batch: got a list of 2 for a.*tuple of 3",
        ),
        ([[FeatureSpec("user")]], "dict", ValueError, "structure of the batch: got a list of 1 for a.*a dict$"),
        ({"x": FeatureSpec("user")}, "dict", ValueError, r"tgt_key_specs\['x'\]: the batch has no key 'x'; it has"),
    ],
)
def test_batches_are_checked_in_the_dataset(specs, structure, error, message):
    init(use_dynamic_expansion=True)
    with pytest.raises(error, match=message):
        _dataset(structure, 0).map(get_asc_insert_func(specs))


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        (5, ValueError, "args_index_list must be less than 5, the number of components of the batch, got 5"),
        (
            0,
            TypeError,
            r"component 0 of the batch \(ids of table 't'\) must be int64, .* in the batch, got string",
        ),
    ],
)
def test_batches_are_checked_by_place(index, error, message):
    init(use_dynamic_expansion=True)
    dataset = _dataset("dict", 0).map(lambda batch: {**batch, "a name": "x"})
    with pytest.raises(error, match=message):
        dataset.map(get_asc_insert_func(args_index_list=[index], table_names=["t"]))


def test_string_ids_are_refused():
    init(use_dynamic_expansion=True)
    spec = FeatureSpec("user_table", "ids")
    strings = tf.data.Dataset.from_tensors({"ids": ["a"]})
    with pytest.raises(TypeError, match="'user_table' must be int64, int32, float32 or float64 in .*, got string"):
        strings.map(get_asc_insert_func(spec))


@pytest.mark.parametrize(
    ("spec", "kwargs", "error", "message"),
    [
        (FeatureSpec("user"), {}, ValueError, "table 'user_table': FeatureSpec 'user' is a feature of table 'user'"),
        (FeatureSpec("user", is_timestamp=True), {}, ValueError, "'user' is a timestamp, which is not looked up"),
        (FeatureSpec("user_table"), {"batch": None}, RuntimeError, r"'user_table' needs its batch: pass sparse_lookup"),
        (
            FeatureSpec("user_table"),
            {},
            ValueError,
            "'user_table': the batch has no key 'user_table'; it has 'user', 'friend', 'item', 'y'",
        ),
        (FeatureSpec("user_table", "user"), {"batch": 3}, ValueError, "the batch has no key 'user'; it has no keys"),
        (FeatureSpec("user_table", 9), {}, ValueError, "index_key must be less than 4, the number of components"),
        (
            FeatureSpec("user_table", "user"),
            {"access_and_evict_config": {"access_threshold": 3}},
            ValueError,
            "access_and_evict_config says .*access_threshold=3.* but the FeatureSpec says .*access_threshold=None",
        ),
        (
            None,
            {"access_and_evict_config": {"access_threshold": -2}},
            ValueError,
            r"table 'user_table': lookup 'sparse_lookup_0': access_threshold must be in \[-1, 2147483647\], got -2",
        ),
        (
            None,
            {"access_and_evict_config": {"acess_threshold": 3}},
            ValueError,
            "access_and_evict_config has 'acess_threshold'; it may have 'access_threshold', 'eviction_threshold', ",
        ),
        (None, {"access_and_evict_config": 3}, TypeError, "access_and_evict_config must be a dict or None, got int"),
    ],
)
def test_lookup_errors(spec, kwargs, error, message):
    """Spec None: the same checks with a tensor."""
    init(use_dynamic_expansion=True)
    batch = tf1.data.make_one_shot_iterator(_dataset("dict", 0)).get_next()
    (table, _) = _tables()
    with pytest.raises(error, match=message):
        sparse_lookup(table, batch["user"] if spec is None else spec, **{"batch": batch, **kwargs})
    assert not graph_state.state_of(tf1.get_default_graph()).lookups


def test_the_tables_dtype_holds_for_features_too():
    init(use_dynamic_expansion=True)
    batch = tf1.data.make_one_shot_iterator(_dataset("dict", 0)).get_next()
    table = create_table(tf.int32, 4, "narrow", tf1.zeros_initializer())
    with pytest.raises(TypeError, match="was created with key_dtype int32, but ids are int64; cast one of them"):
        sparse_lookup(table, FeatureSpec("narrow", "user"), batch=batch)
    with pytest.raises(TypeError, match="hashtable must be a table made by create_table, got 'user_table'"):
        sparse_lookup("user_table", FeatureSpec("user_table", "user"), batch=batch)


def test_start_errors():
    for call in (lambda: get_asc_insert_func(FeatureSpec("user")), start_asc_pipeline):
        with pytest.raises(EnvironmentError, match=r"call mx_rec\.util\.initialize\.init\(\) first"):
            call()
    init(use_dynamic_expansion=True)
    with pytest.raises(RuntimeError, match="start_asc_pipeline needs lookups, and the default graph has none"):
        start_asc_pipeline()
    tables = _tables()
    spec = FeatureSpec("user", table_name="user_table")
    side = _side("dict", np.int64, False, True, get_asc_insert_func(spec))
    result = sparse_lookup(tables[0], spec, batch=side.batch, name="early")
    _train_op_of_tables(tf.reduce_sum(result))
    with pytest.raises(EnvironmentError, match=r"get_initializer needs .* or start_asc_pipeline\(\) first"):
        get_initializer(True)
    start_asc_pipeline()
    for again in (start_asc_pipeline, modify_graph_and_start_emb_cache):
        with pytest.raises(EnvironmentError, match=f"^{again.__name__}: this graph has been rewritten already"):
            again()
    with pytest.raises(EnvironmentError, match=r"must come before .* and start_asc_pipeline\(\)"):
        sparse_lookup(tables[0], spec, batch=side.batch)
    with pytest.raises(ValueError, match="the graph has no evaluation iterator"):
        get_initializer(False)


def test_start_after_a_session_has_run_the_graph_is_refused():
    init(use_dynamic_expansion=True)
    spec = FeatureSpec("user", table_name="user_table")
    side = _side("dict", np.int64, False, True, get_asc_insert_func(spec))
    step = _train_op_of_tables(tf.reduce_sum(sparse_lookup(_tables()[0], spec, batch=side.batch)))
    with tf1.Session() as session:
        session.run(side.start)
        session.run(step)
        with pytest.raises(GraphRewriteError, match=r"call start_asc_pipeline\(\) before the first session\.run"):
            start_asc_pipeline()
        session.run(step)  # the graph is as it was


def test_features_without_table_or_lookup(caplog):
    init(use_dynamic_expansion=True)
    specs = [*_specs("dict"), FeatureSpec("y_time", "time", is_timestamp=True)]
    dataset = _dataset("dict", 0).map(lambda b: {**b, "time": tf.constant(5, tf.int64)})
    batch = tf1.data.make_initializable_iterator(dataset.map(get_asc_insert_func(specs))).get_next()
    initializer = tf1.zeros_initializer()
    table = create_table(tf.int64, DIM, "user_table", initializer)
    _train_op_of_tables(tf.reduce_sum(sparse_lookup(table, specs[0], batch=batch)))
    with pytest.raises(ValueError, match="'item': the graph has no table 'item_table'; it has 'user_table'"):
        start_asc_pipeline()
    create_table(tf.int64, DIM, "item_table", initializer)
    with caplog.at_level(logging.WARNING, "mx_rec"):
        start_asc_pipeline()
    assert caplog.messages == ["FeatureSpec 'item': the graph has no training lookup of table 'item_table'"]


# --- The documentation ---


def test_the_example_of_the_documentation_runs(tmp_path):
    text = (pathlib.Path(__file__).parents[2] / "docs" / "feature_spec.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text(example)
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"training ([\d.]+)", done.stdout)]
    assert len(losses) == 3
    assert losses[0] > losses[1] > losses[2]
    assert done.stdout.count("evaluation") == 3
