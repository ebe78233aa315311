"""Random ops without seed get one that depends on their name alone."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from mx_rec.graph.seeds import seed_random_ops

tf1 = tf.compat.v1


def values(graph_def, *names, initializer=None, steps=3):
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        with tf1.Session(graph=graph) as session:
            if initializer:
                session.run(initializer)
            return [session.run(list(names)) for _ in range(steps)]


def test_attributes():
    with tf.Graph().as_default() as graph:
        tf.random.uniform([4], name="a")
        tf.random.normal([4], name="b")
        tf.random.uniform([4], seed=5, name="own")
    graph_def = graph.as_graph_def()
    own = next(node for node in graph_def.node if node.op == "RandomUniform" and node.attr["seed2"].i == 5)
    before = own.SerializeToString(deterministic=True)
    assert seed_random_ops(graph_def, 1) == 2
    assert own.SerializeToString(deterministic=True) == before
    assert seed_random_ops(graph_def, 1) == 0
    first, second = (values(graph_def, "a/RandomUniform:0", "b/RandomStandardNormal:0") for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first[0], first[1])


def test_another_seed_draws_other_numbers():
    def drawn(seed):
        with tf.Graph().as_default() as graph:
            tf.random.uniform([4], name="a")
        graph_def = graph.as_graph_def()
        seed_random_ops(graph_def, seed)
        return values(graph_def, "a/RandomUniform:0")

    assert not np.array_equal(drawn(1), drawn(2))
    np.testing.assert_array_equal(drawn(7), drawn(7))


def test_same_name_same_numbers_in_another_graph():
    def drawn(*others):
        with tf.Graph().as_default() as graph:
            for other in others:
                tf.random.uniform([4], name=other)
            tf.random.uniform([4], name="a")
        graph_def = graph.as_graph_def()
        seed_random_ops(graph_def, 1)
        return values(graph_def, "a/RandomUniform:0")

    np.testing.assert_array_equal(drawn(), drawn("x", "y"))


def test_attributes_that_were_stripped_as_defaults():
    with tf.Graph().as_default() as graph:
        tf.random.uniform([4], name="a")
    graph_def = graph.as_graph_def()
    for node in graph_def.node:
        for name in ("seed", "seed2"):
            node.attr.pop(name, None)
    assert seed_random_ops(graph_def, 1) == 1
    np.testing.assert_array_equal(values(graph_def, "a/RandomUniform:0"), values(graph_def, "a/RandomUniform:0"))


def test_datasets_outside_and_inside_functions():
    with tf.Graph().as_default() as graph:
        inner = tf.data.Dataset.range(3).interleave(
            lambda start: tf.data.Dataset.range(start * 100, start * 100 + 50).shuffle(50), cycle_length=1
        )
        mapped = inner.shuffle(20).map(lambda x: (x, tf.random.uniform([])))
        iterator = tf1.data.make_initializable_iterator(mapped.batch(10))
        x, y = iterator.get_next()
        tf.identity(x, name="x")
        tf.identity(y, name="y")
    graph_def = graph.as_graph_def()
    assert seed_random_ops(graph_def, 1) == 3
    first, second = (values(graph_def, "x:0", "y:0", initializer=iterator.initializer.name) for _ in range(2))
    for a, b in zip(first, second):
        np.testing.assert_array_equal(a[0], b[0])
        np.testing.assert_array_equal(a[1], b[1])
    assert not np.array_equal(first[0][0], np.sort(first[0][0]))


def test_tables_keep_their_seed():
    from tensorflow.core.framework import graph_pb2

    graph_def = graph_pb2.GraphDef()
    graph_def.node.add(name="handle", op="MxRecTable")
    assert seed_random_ops(graph_def, 1) == 0
    assert "seed" not in graph_def.node[0].attr
