"""`create_table` and `sparse_lookup` without the rewrite."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from mx_rec.constants import constants as names
from mx_rec.core import graph_state
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.util.initialize import init, terminate_config_initializer
from mx_rec.util.variable import get_dense_and_sparse_variable

tf1 = tf.compat.v1


def _table(name="user", dim=4, key_dtype=tf.int64, initializer=None, **kwargs):
    initializer = initializer or tf1.random_uniform_initializer(-1, 1, seed=3)
    return create_table(key_dtype, dim, name, initializer, **kwargs)


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (2, 3, 2), (0,), (3, 0)])
@pytest.mark.parametrize("static", [True, False])
def test_shapes_and_dtypes(mxrec, dtype, shape, static):
    table = _table(key_dtype=dtype)
    ids = tf1.placeholder(dtype, shape if static else None)
    result = sparse_lookup(table, ids)
    assert result.dtype == tf.float32
    assert result.shape.as_list() == list(shape) + [4] if static else result.shape.rank is None
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape) - 2
    with tf1.Session() as session:
        out = session.run(result, {ids: values})
        assert out.shape == (*shape, 4)
        assert table.size(session) == values.size
        again = session.run(result, {ids: values})
    np.testing.assert_array_equal(out, again)


def test_unknown_batch_size_keeps_known_dimensions(mxrec):
    result = sparse_lookup(_table(), tf1.placeholder(tf.int64, [None, 7]))
    assert result.shape.as_list() == [None, 7, 4]


def test_equal_ids_read_equal_rows_and_tables_differ(mxrec):
    one, two = _table("one"), _table("two")
    ids = tf.constant([[5, 5], [-7, 5]], tf.int64)
    with tf1.Session() as session:
        a, b = session.run([sparse_lookup(one, ids), sparse_lookup(two, ids)])
    np.testing.assert_array_equal(a[0, 0], a[1, 1])
    assert not np.array_equal(a[0, 0], a[1, 0])
    assert not np.array_equal(a, b)


def test_evaluation_reads_the_serving_default_and_never_inserts(mxrec):
    table = _table()
    ids = tf1.placeholder(tf.int64, [None])
    train = sparse_lookup(table, ids, is_train=True)
    plain = sparse_lookup(table, ids, is_train=False)
    filled = sparse_lookup(table, ids, is_train=False, serving_default_value=[1, 2, 3, 4])
    with tf1.Session() as session:
        row = session.run(train, {ids: [1]})[0]
        np.testing.assert_array_equal(session.run(plain, {ids: [2, 1]}), [[0] * 4, row])
        np.testing.assert_array_equal(session.run(filled, {ids: [2, 1]}), [[1, 2, 3, 4], row])
        assert table.size(session) == 1


def test_collections_are_aligned(mxrec):
    table = _table()
    ids = tf1.placeholder(tf.int64, [None])
    sparse_lookup(table, ids, name="a")
    sparse_lookup(table, ids, is_train=False)
    frozen = sparse_lookup(table, ids, is_grad=False)
    sparse_lookup(table, ids, name="b")
    embeddings = tf1.get_collection(names.ASCEND_SPARSE_LOOKUP_LOCAL_EMB)
    addresses = tf1.get_collection(names.ASCEND_SPARSE_LOOKUP_ID_OFFSET)
    assert [e.op.inputs[1] is a for e, a in zip(embeddings, addresses)] == [True, True]
    assert [e.shape.as_list() for e in embeddings] == [[None, 4]] * 2
    assert len(tf1.get_collection(names.ASCEND_SPARSE_LOOKUP_ENTRANCE)) == 4
    assert tf.gradients(tf.reduce_sum(frozen), embeddings) == [None, None]


def test_dense_and_sparse_variables(mxrec):
    dense = tf1.get_variable("w", [2])
    one, two = _table("one"), _table("two")
    assert get_dense_and_sparse_variable() == ([dense], [one, two])


def test_table_state_belongs_to_the_session(mxrec):
    table = _table()
    result = sparse_lookup(table, tf.constant([1, 2, 3], tf.int64))
    with tf1.Session() as one, tf1.Session() as two:
        one.run(result)
        assert (table.size(one), table.size(two)) == (3, 0)
        assert table.capacity(one) >= 3
    assert table.table_name == "user"


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"key_dtype": tf.float32}, ValueError, "key_dtype"),
        ({"dim": 0}, ValueError, r"dim must be in \[1, 8192\], got 0"),
        ({"dim": tf.TensorShape([None])}, ValueError, "dim"),
        ({"dim": 2.0}, TypeError, "dim"),
        ({"name": "a/b"}, ValueError, "name"),
        ({"name": ""}, ValueError, "name"),
        ({"name": "x" * 101}, ValueError, "name must have 1 to 100"),
        ({"init_param": 11.0}, ValueError, r"init_param must be in \[-10.0, 10.0\], got 11.0"),
        ({"device_vocabulary_size": 0}, ValueError, "device_vocabulary_size"),
        ({"ssd_vocabulary_size": 5}, ValueError, "host_vocabulary_size"),
        ({"value_dtype": tf.float16}, ValueError, "value_dtype"),
        ({"all2all_gradients_op": "max"}, ValueError, "all2all_gradients_op"),
        ({"initializer": tf1.zeros_initializer}, TypeError, "emb_initializer"),
    ],
)
def test_table_parameters_are_checked(mxrec, kwargs, error, message):
    with pytest.raises(error, match=message):
        _table(**kwargs)


def test_table_names_are_unique_per_graph(mxrec):
    _table("user")
    with pytest.raises(ValueError, match="'user' is taken"):
        _table("user")
    with tf.Graph().as_default():
        _table("user")


def test_merged_tables_keep_their_own_rows(mxrec):
    tables = [_table(name, enable_merge=True) for name in ("one", "two")]
    rows = [sparse_lookup(table, tf.constant([7], tf.int64)) for table in tables]
    with tf1.Session() as session:
        one, two = session.run(rows)
        assert (one != two).all()
        assert [table.size(session) for table in tables] == [1, 1]


def test_lookups_may_share_a_name(mxrec):
    table, ids = _table(), tf.constant([3, 4], tf.int64)
    train = [sparse_lookup(table, ids, name="clicks") for _ in range(2)]
    read = sparse_lookup(table, ids, name="clicks", is_train=False)
    assert list(graph_state.state_of(tf1.get_default_graph()).lookups) == ["clicks", "clicks_1", "clicks_2"]
    with tf1.Session() as session:
        rows, again = session.run(train)
        np.testing.assert_array_equal(again, rows)
        np.testing.assert_array_equal(session.run(read), rows)


@pytest.mark.parametrize("expansion", [True, False])
def test_the_serving_default_may_be_a_tensor(mxrec, expansion):
    terminate_config_initializer()
    init(use_dynamic_expansion=expansion)
    table = create_table(tf.int64, 4, "user", tf1.ones_initializer(), device_vocabulary_size=5)
    fed = tf1.placeholder(tf.float32, [4])
    ids = tf.constant([3, 4], tf.int64)
    results = [
        sparse_lookup(table, ids, is_train=False, serving_default_value=value)
        for value in (fed, tf.constant(7.0), tf.zeros([4]) + fed[:1])
    ]
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        one, two, three = session.run(results, {fed: [1, 2, 3, 4]})
    np.testing.assert_array_equal(one, [[1, 2, 3, 4]] * 2)
    np.testing.assert_array_equal(two, np.full([2, 4], 7))
    np.testing.assert_array_equal(three, np.full([2, 4], 1))
    with pytest.raises(ValueError, match=r"serving_default_value must be a number or 4 numbers, got shape \(3,\)"):
        sparse_lookup(table, ids, serving_default_value=tf1.placeholder(tf.float32, [3]))


def test_dim_may_be_a_tensor_shape(mxrec):
    assert _table(dim=tf.TensorShape([6])).dim == 6


@pytest.mark.parametrize(
    ("ids", "kwargs", "error", "message"),
    [
        (lambda: tf.constant(["1"]), {}, TypeError, "int64, int32, float32 or float64, got string"),
        (lambda: tf.constant([1], tf.int16), {}, TypeError, "int64, int32, float32 or float64, got int16"),
        (lambda: [1, 2], {}, TypeError, "tf.RaggedTensor of integers, got list"),
        (lambda: tf.constant([1], tf.int64), {"dim": 5}, ValueError, "dim must be the table's 4"),
        (lambda: tf.constant([1], tf.int64), {"name": "a b"}, ValueError, "name"),
        (lambda: tf.constant([1], tf.int64), {"is_train": 1}, TypeError, "is_train"),
        (
            lambda: tf.constant([1], tf.int64),
            {"serving_default_value": [1.0, 2.0]},
            ValueError,
            "serving_default_value",
        ),
    ],
)
def test_lookup_parameters_are_checked(mxrec, ids, kwargs, error, message):
    table = _table()
    with pytest.raises(error, match=message):
        sparse_lookup(table, ids(), **kwargs)


def test_lookup_of_a_table_of_another_graph_is_refused(mxrec):
    table = _table()
    with tf.Graph().as_default(), pytest.raises(ValueError, match="different graphs"):
        sparse_lookup(table, tf.constant([1], tf.int64))


@pytest.mark.parametrize("is_made_in_branch", [False, True])
def test_lookup_in_the_body_of_a_conditional_is_refused(mxrec, is_made_in_branch):
    table = _table()
    ids = tf1.placeholder(tf.int64, [None])
    was_v2 = tf1.control_flow_v2_enabled()
    tf1.enable_control_flow_v2()
    try:
        with pytest.raises(ValueError, match="look up outside and use the result in the body"):
            tf.cond(
                tf.size(ids) > 0,
                lambda: sparse_lookup(table, ids + 1 if is_made_in_branch else ids),
                lambda: tf.zeros([0, 4]),
            )
    finally:
        (tf1.enable_control_flow_v2 if was_v2 else tf1.disable_control_flow_v2)()


def test_lookup_before_init_is_refused(mxrec):
    table = _table()
    terminate_config_initializer()
    with pytest.raises(EnvironmentError, match="not initialised"):
        sparse_lookup(table, tf.constant([1], tf.int64))
    init(use_dynamic_expansion=True)


def _rows(initializer, dim=32, keys=4000, **kwargs):
    with tf.Graph().as_default():
        result = sparse_lookup(_table(dim=dim, initializer=initializer, **kwargs), tf.range(keys, dtype=tf.int64))
        with tf1.Session() as session:
            return session.run(result)


@pytest.mark.parametrize(
    ("initializer", "mean", "stddev"),
    [
        (tf1.zeros_initializer(), 0, 0),
        (tf1.ones_initializer(), 1, 0),
        (tf1.constant_initializer(2.5), 2.5, 0),
        (tf1.random_uniform_initializer(0, 2), 1, 2 / np.sqrt(12)),
        (tf1.random_normal_initializer(1, 0.5), 1, 0.5),
        (tf1.truncated_normal_initializer(1, 0.5), 1, 0.5 * 0.87962566),
        (tf.random_normal_initializer(1, 0.5), 1, 0.5),
        (tf.keras.initializers.RandomUniform(-1, 1), 0, 2 / np.sqrt(12)),
        # fan_avg of [1, 32]: variance 2 / (1 + 32)
        (tf1.glorot_normal_initializer(), 0, np.sqrt(2 / 33)),
        (tf1.glorot_uniform_initializer(), 0, np.sqrt(2 / 33)),
    ],
    ids=lambda value: type(value).__name__ if callable(value) else "",
)
def test_native_initializers(mxrec, initializer, mean, stddev):
    rows = _rows(initializer)
    assert abs(rows.mean() - mean) <= 0.02 * max(stddev, 1e-9)
    assert abs(rows.std() - stddev) <= 0.02 * max(stddev, 1e-9) + 1e-7


def test_init_param_multiplies(mxrec):
    assert set(_rows(tf1.constant_initializer(2.0), init_param=-0.5).ravel()) == {-1.0}


def test_any_other_initializer_is_evaluated(mxrec):
    class Ramp(tf1.keras.initializers.Initializer if hasattr(tf1, "keras") else object):
        def __call__(self, shape, dtype=tf.float32, partition_info=None):
            return tf.reshape(tf.range(np.prod(shape), dtype=tf.float32), shape)

    rows = _rows(Ramp(), dim=3, keys=500)
    assert np.all(np.diff(rows, axis=1) == 1)
    assert np.all(rows[:, 0] % 3 == 0)
    assert len(set(rows[:, 0].tolist())) > 200
    np.testing.assert_array_equal(rows, _rows(Ramp(), dim=3, keys=500))


_INITIAL_ROWS = """
import hashlib, random, sys
import numpy as np, tensorflow as tf
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.util.initialize import init
tf.compat.v1.disable_eager_execution()
init(use_dynamic_expansion=True)
random.seed(int(sys.argv[1]))  # Keras draws default seeds from it
made = [tf.keras.initializers.RandomNormal(), tf.keras.initializers.GlorotUniform(), tf.keras.initializers.Orthogonal()]
made += [tf.random_normal_initializer(), tf.compat.v1.orthogonal_initializer()]
tables = [create_table(tf.int64, 4, f"t{n}", initializer) for n, initializer in enumerate(made)]
rows = [sparse_lookup(table, tf.range(50, dtype=tf.int64)) for table in tables]
with tf.compat.v1.Session() as session:
    print(*(hashlib.sha256(value.tobytes()).hexdigest() for value in session.run(rows)))
"""


def test_unseeded_initializers_give_the_same_rows_in_every_process(tmp_path):
    runs = []
    for default_seeds in "12":
        command = [sys.executable, "-c", _INITIAL_ROWS, default_seeds]
        # Elsewhere than in the repository, whose mx_rec has no passes.
        ended = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
        runs.append(ended.stdout.split())
    assert len(set(runs[0])) == 5
    assert runs[0] == runs[1]


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: tf.keras.initializers.RandomNormal(seed=seed),
        lambda seed: tf.keras.initializers.Orthogonal(seed=seed),
        lambda seed: tf1.random_normal_initializer(seed=None if seed is None else np.int64(seed)),
    ],
)
def test_the_seed_of_an_initializer_counts(mxrec, make):
    rows = [_rows(make(seed), keys=20) for seed in (None, 3, 3, 4)]
    np.testing.assert_array_equal(rows[1], rows[2])
    assert not np.array_equal(rows[0], rows[1])
    assert not np.array_equal(rows[1], rows[3])


@pytest.mark.parametrize(
    ("initializer", "message"),
    [
        (tf1.random_normal_initializer(stddev=-1.0), "stddev must be at least 0, got -1.0"),
        (tf1.truncated_normal_initializer(stddev=-1.0), "stddev must be at least 0, got -1.0"),
        (tf1.random_normal_initializer(mean=np.inf), "mean must be finite in float32, got inf"),
        (tf1.random_uniform_initializer(2.0, 1.0), "minval must be at most maxval, got minval=2.0 and maxval=1.0"),
        (tf1.random_uniform_initializer(-np.inf, 1.0), "minval must be finite in float32, got -inf"),
        (tf1.random_uniform_initializer(0.0, 1e39), "maxval must be finite in float32, got 1e"),
        (tf1.constant_initializer(np.nan), "value must be finite in float32, got nan"),
        (tf1.variance_scaling_initializer(scale=np.inf), "scale must be finite in float32, got inf"),
    ],
)
def test_parameters_of_initializers_are_checked_by_their_own_names(mxrec, initializer, message):
    with pytest.raises(ValueError, match=rf"emb_initializer {type(initializer).__name__}: {message}"):
        _table(initializer=initializer)
