"""The store through the ops against a plain dict model, over random streams of operations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_harness import DictModel, OpTable

DIM = 3
INITIAL = 0.5
EXTREMES = [0, -1, 1, 2**31, -(2**31) - 1, 2**63 - 1, -(2**63), 2**63 - 2]

keys_strategy = st.lists(
    st.one_of(st.sampled_from(EXTREMES), st.integers(-20, 20), st.integers(-(2**63), 2**63 - 1)),
    max_size=40,
)
step_strategy = st.tuples(
    st.sampled_from(["insert", "insert_hinted", "find", "reserve", "look_ahead", "update", "forged"]),
    keys_strategy,
    st.integers(0, 5),
)


def _run_step(table, model, remembered, step):
    kind, keys, number = step
    keys = np.array(keys, np.int64)
    if kind in ("insert", "insert_hinted", "forged"):
        hints = []
        if kind == "insert_hinted":
            hints = table.look_ahead(keys, reserve=bool(number % 2))
        elif kind == "forged":
            hints = np.resize(np.array(remembered + [7, -5, 2**62], np.int64), len(keys))
        counts = (np.arange(len(keys)) + number) % 4
        addresses = table.find_or_insert(keys, hints, counts)
        model.insert(keys.tolist(), counts.tolist())
        assert np.all(addresses != 0)
        remembered.extend(addresses.tolist())
    elif kind == "find":
        addresses = table.find(keys)
        assert [a != 0 for a in addresses] == [k in model.rows for k in keys.tolist()]
        rows = table.gather(addresses, np.full(DIM, -9.0))
        expected = [model.rows.get(k, np.full(DIM, -9.0, np.float32)) for k in keys.tolist()]
        np.testing.assert_array_equal(rows, np.array(expected).reshape(-1, DIM))
    elif kind in ("reserve", "look_ahead"):
        table.look_ahead(keys, reserve=kind == "reserve")
    else:
        addresses = table.find(keys)
        # Quarters, so that sums in any precision are exact.
        gradients = (np.arange(len(keys) * DIM).reshape(-1, DIM) % 8).astype(np.float32) / 4
        table.sgd(addresses, gradients, 0.5)
        model.sgd(keys.tolist(), gradients, 0.5)


@pytest.fixture(scope="module")
def graph_mode():
    import tensorflow as tf

    tf.compat.v1.disable_eager_execution()


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(step_strategy, min_size=1, max_size=12))
def test_matches_dict_model(graph_mode, steps):
    model = DictModel(DIM, INITIAL)
    remembered = []
    with OpTable(DIM, initializer="constant", initializer_a=INITIAL, record_counts=True) as table:
        for step in steps:
            _run_step(table, model, remembered, step)
            assert table.size() == len(model.rows)
        content = table.export()
    assert content.keys.tolist() == sorted(model.rows)
    assert content.counts.tolist() == [model.counts[k] for k in sorted(model.rows)]
    for key, row in zip(content.keys.tolist(), content.rows):
        np.testing.assert_array_equal(row, model.rows[key])


@settings(max_examples=20, deadline=None)
@given(
    keys=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=50, unique=True),
    seed=st.integers(0, 2**62),
    data=st.data(),
)
def test_initial_rows_depend_on_seed_and_key_alone(graph_mode, keys, seed, data):
    shuffled = data.draw(st.permutations(keys))
    split = data.draw(st.integers(0, len(keys)))
    kwargs = {"initializer": "truncated_normal", "initializer_b": 0.1, "seed": seed}
    with OpTable(5, **kwargs) as one, OpTable(5, name="other", **kwargs) as two:
        one.find_or_insert(keys)
        two.look_ahead(shuffled[:split], reserve=True)
        two.find_or_insert(shuffled[split:])
        two.find_or_insert(shuffled[:split])
        np.testing.assert_array_equal(one.export().rows, two.export().rows)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_unique_matches_first_occurrence_order(graph_mode, dtype, data):
    import tensorflow as tf

    from mx_rec import ops

    info = np.iinfo(dtype)
    ids = data.draw(st.lists(st.one_of(st.integers(-3, 3), st.integers(info.min, info.max)), max_size=60))
    shape = data.draw(st.sampled_from([(len(ids),), (1, len(ids), 1)]))
    array = np.array(ids, dtype).reshape(shape)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        keys, restore, counts = session.run(ops.unique(array))
    assert keys.tolist() == list(dict.fromkeys(ids))
    assert restore.shape == shape
    np.testing.assert_array_equal(keys[restore], array.astype(np.int64))
    assert counts.tolist() == [ids.count(key) for key in keys.tolist()]
