"""Ops over several tables: each table as by its own op, in results and in errors."""

from __future__ import annotations

import re
import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from mx_rec import ops

tf1 = tf.compat.v1
InvalidArgumentError = tf.errors.InvalidArgumentError
DIM = 3
NONE = np.zeros([0], np.int64)
DEFAULT_ROW = "table 'b': default_row must be empty or have dim elements: expected 3, got 2"
UPDATES: dict[str, dict[str, Any]] = {
    "sgd": {"weight_decay": 0.01},
    "lazy_adam": {},
    "adagrad": {"initial_accumulator_value": 0.5},
    "ftrl": {"l1": 0.01, "l2_shrinkage": 0.1},
}


@pytest.fixture(autouse=True)
def graph_mode() -> None:
    tf1.disable_eager_execution()


@pytest.fixture
def session() -> Any:
    with tf.Graph().as_default(), tf1.Session() as opened:
        yield opened


def handle(name: str, dim: int = DIM) -> tf.Tensor:
    return ops.table_handle(
        name, dim, initializer="uniform", initializer_b=1.0, seed=sum(map(ord, name)), record_counts=True
    )


def keys_of(seed: int, size: int) -> np.ndarray:
    return np.unique(np.random.RandomState(seed).randint(-(2**40), 2**40, size))


def look_up(handles: list, keys: list, counts: Any = None, **options: Any) -> ops.many_ops.LookedUp:
    counts = [np.ones(len(each), np.int32) for each in keys] if counts is None else counts
    options = {"hints": [NONE] * len(keys), "default_rows": [np.zeros([0], np.float32)] * len(keys), **options}
    return ops.look_up_many(handles, keys, counts=counts, dim=DIM, **options)


def test_prepare_equals_unique_and_look_ahead(session: Any) -> None:
    for dtype in (np.int64, np.int32):
        handles = [handle(f"{name}{np.dtype(dtype).name}") for name in "abc"]
        session.run([ops.find_or_insert(each, np.arange(0, 40, 2)) for each in handles])
        ids = [np.random.RandomState(i).randint(-5, 50, shape).astype(dtype) for i, shape in enumerate([(6, 4), 9, 0])]
        prepared = session.run(ops.prepare_many(handles, ids))
        for i, (table, each) in enumerate(zip(handles, ids)):
            keys, restore, counts = session.run(ops.unique(each))
            hints = session.run(ops.look_ahead(table, keys))
            for got, expected in zip((part[i] for part in prepared), (keys, restore, counts, hints)):
                np.testing.assert_array_equal(got, expected)
                assert got.dtype == expected.dtype


def test_prepare_reserves(session: Any) -> None:
    tables = [handle("a"), handle("b")]
    hints = session.run(ops.prepare_many(tables, [[1, 2, 1], [3]], reserve=True).hints)
    assert [len(hint) for hint in hints] == [2, 1]
    assert all(np.all(hint != 0) for hint in hints)
    assert session.run([ops.table_size(table) for table in tables]) == [0, 0]


@pytest.mark.parametrize("sizes", [(5, 7, 0), (100, 20_000, 3)], ids=["small", "one_large"])
def test_look_up_equals_find_or_insert_and_gather(session: Any, sizes: tuple[int, ...]) -> None:
    names = [f"t{i}" for i in range(len(sizes))]
    keys = [keys_of(i, size) for i, size in enumerate(sizes)]
    restores = [np.random.RandomState(9).randint(0, len(keys[0]), (4, 2)), np.arange(len(keys[1]))[::-1]]
    many = look_up([handle(name) for name in names], keys, restores=restores, restore_of=[0, 1])
    got = session.run(many)
    for i, name in enumerate(names):
        single = ops.table_handle(
            f"single_{name}", DIM, initializer="uniform", initializer_b=1.0, seed=sum(map(ord, name))
        )
        rows = session.run(ops.gather_by_address(single, ops.find_or_insert(single, keys[i]), DIM))
        np.testing.assert_array_equal(got.embeddings[i], rows)
        if i < 2:
            np.testing.assert_array_equal(got.restored[i], rows[restores[i]])
    alone = session.run(many.restored)  # without the embeddings, by another way
    np.testing.assert_equal(alone, got.restored)
    found = session.run(ops.gather_by_address(handle(names[0]), got.addresses[0], DIM))
    np.testing.assert_array_equal(found, got.embeddings[0])


def test_look_up_without_counts_only_finds(session: Any) -> None:
    tables = [handle("a"), handle("b")]
    session.run(ops.find_or_insert(tables[0], [1, 2]))
    default = np.array([7, 8, 9], np.float32)
    options = {"default_rows": [default, np.zeros([0], np.float32)], "restores": [[0, 1, 0]], "restore_of": [0]}
    result = look_up(tables, [np.array([2, 3]), np.array([4])], counts=(), **options)
    got = session.run(result)
    assert [(address != 0).tolist() for address in got.addresses] == [[True, False], [False]]
    np.testing.assert_array_equal(got.embeddings[0][1], default)
    np.testing.assert_array_equal(got.restored[0], got.embeddings[0][[0, 1, 0]])
    np.testing.assert_array_equal(session.run(result.restored[0]), got.restored[0])
    np.testing.assert_array_equal(got.embeddings[1], np.zeros([1, DIM]))
    assert session.run([ops.table_size(table) for table in tables]) == [2, 0]


def test_rows_spread_twice(session: Any) -> None:
    many = look_up([handle("a")], [np.arange(5)], restores=[[0, 4, 4], [[1], [2]]], restore_of=[0, 0])
    twice = session.run(many.restored)
    rows = session.run(many.embeddings[0])
    np.testing.assert_array_equal(twice[0], rows[[0, 4, 4]])
    np.testing.assert_array_equal(twice[1], rows[[[1], [2]]])


def test_only_lookups_that_are_read_take_place(session: Any) -> None:
    tables = [handle(name) for name in "abcd"]
    many = look_up(tables, [np.arange(5)] * 4, restores=[[0, 1]] * 2, restore_of=[0, 1])
    sizes = [ops.table_size(table) for table in tables]
    session.run(many.restored[1])
    assert session.run(sizes) == [0, 5, 0, 0]
    session.run(many.embeddings[2])
    assert session.run(sizes) == [0, 5, 5, 0]
    session.run(many.addresses[3])
    session.run(many.addresses[3])
    assert session.run(sizes) == [0, 5, 5, 5]
    counts = [session.run(ops.table_export(table).counts) for table in tables]
    assert [sorted(set(count)) for count in counts] == [[], [1], [1], [2]]


def test_one_table_several_times(session: Any) -> None:
    table = handle("a")
    result = session.run(look_up([table, table], [np.array([1, 2]), np.array([2, 3])]))
    assert result.addresses[0][1] == result.addresses[1][0]
    exported = session.run(ops.table_export(table))
    assert (exported.keys.tolist(), exported.counts.tolist()) == ([1, 2, 3], [1, 2, 1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hints": [NONE, np.zeros([1], np.int64)]}, "table 'b': hints must be empty or have one element per key"),
        ({"counts": [np.ones([2], np.int32), np.ones([1], np.int32)]}, "table 'b': counts must be empty or have one"),
        (
            {"counts": [np.ones([2], np.int32), np.array([1, -1], np.int32)]},
            "table 'b': counts must not be negative, got -1 at position 1",
        ),
        ({"default_rows": [np.zeros([0], np.float32), np.zeros([2], np.float32)]}, DEFAULT_ROW),
        ({"max_keys": [2, 1]}, "table 'b': the batch has 2 distinct keys, but send_count is 1"),
        ({"restores": [[0, 2]], "restore_of": [1]}, r"table 'b': restore\[1\] = 2 is out of range \[0, 2\)"),
        ({"restores": [[0, -1]], "restore_of": [1]}, r"table 'b': restore\[1\] = -1 is out of range \[0, 2\)"),
        ({"restores": [[0]], "restore_of": [2]}, r"restore_of\[0\] must be in \[0, 2\), got 2"),
        ({"counts": [np.ones([2], np.int32)]}, "counts must be given for all lookups or for none: expected 0 or 2"),
    ],
)
def test_look_up_errors_name_the_table(session: Any, options: dict, message: str) -> None:
    result = look_up([handle("a"), handle("b")], [np.array([1, 2]), np.array([3, 4])], **options)
    with pytest.raises(InvalidArgumentError, match=message) as error:
        session.run(result)
    assert "table 'b': table 'b'" not in str(error.value)
    sizes = session.run([ops.table_size(handle("a")), ops.table_size(handle("b"))])
    assert sizes[1] in (0, 2)


def test_look_up_refuses_a_table_of_another_dim(session: Any) -> None:
    result = look_up([handle("a"), handle("b", DIM + 1)], [np.array([1]), np.array([2])])
    with pytest.raises(InvalidArgumentError, match="table 'b': has dim 4, but node .* expects 3"):
        session.run(result)


@pytest.mark.parametrize("rows", [(4, 9), (1, 3_000)])
def test_sums_equal_unsorted_segment_sum(session: Any, rows: tuple[int, int]) -> None:
    random = np.random.RandomState(1)
    shapes = [(7, 2), (20_000,)]
    restores = [random.randint(-1, n, shape).astype(np.int32) for n, shape in zip(rows, shapes)]
    gradients = [(random.randn(*shape, DIM) * 10.0 ** random.randint(-6, 6, (*shape, 1))) for shape in shapes]
    gradients = [gradient.astype(np.float32) for gradient in gradients]
    gradients[0][0] = -0.0
    sums = ops.sum_gradients_many(gradients, restores, [np.zeros(n, np.int64) for n in rows], DIM)
    expected = [tf.math.unsorted_segment_sum(g, r, n) for g, r, n in zip(gradients, restores, rows)]
    for got, want in zip(*session.run([sums, expected])):
        np.testing.assert_array_equal(got.view(np.int32), want.view(np.int32))


def test_sum_errors(session: Any) -> None:
    gradients, addresses = [np.ones([2, DIM])] * 2, [np.zeros([2], np.int64)] * 2
    with pytest.raises(InvalidArgumentError, match=r"restores\[1\]\[1\] = 2 is out of range \[0, 2\)"):
        session.run(ops.sum_gradients_many(gradients, [[0, 1], [0, 2]], addresses, DIM))
    with pytest.raises(InvalidArgumentError, match=r"gradients\[1\] must have 3 elements for each of 1 positions"):
        session.run(ops.sum_gradients_many(gradients, [[0, 1], [0]], addresses, DIM))


def updates(kind: str, handles: list, addresses: list, gradients: list, many: bool) -> list:
    options = UPDATES[kind]
    if many:
        return [getattr(ops, f"apply_{kind}_by_address_many")(handles, addresses, gradients, 0.1, **options)]
    single = getattr(ops, f"apply_{kind}_by_address")
    return [single(*each, 0.1, **options) for each in zip(handles, addresses, gradients)]


@pytest.mark.parametrize("kind", sorted(UPDATES))
def test_updates_equal_single_ones(kind: str) -> None:
    contents = []
    for many in (False, True):
        with tf.Graph().as_default(), tf1.Session() as session:
            dims = (3, 5, 8)
            handles = [handle(f"t{dim}", dim) for dim in dims]
            addresses = session.run([ops.find_or_insert(each, np.arange(30)) for each in handles])
            random = np.random.RandomState(0)
            for _ in range(6):
                chosen = [each[random.randint(0, 30, 12)] for each in addresses]  # some repeat
                gradients = [random.randn(12, dim).astype(np.float32) for dim in dims]
                session.run(updates(kind, handles, chosen, gradients, many))
            contents.append(session.run([ops.table_export(each) for each in handles]))
    np.testing.assert_equal(contents[1], contents[0])


@pytest.mark.parametrize("kind", sorted(UPDATES))
def test_illegal_addresses_give_the_error_of_the_single_op(session: Any, kind: str) -> None:
    handles = [handle("a"), handle("b")]
    good, other = session.run([ops.find_or_insert(each, [1, 2]) for each in handles])
    illegal = [good, np.array([other[0], good[0]])]
    gradients = [np.ones([2, DIM], np.float32)] * 2
    messages = []
    for many in (False, True):
        before = session.run(ops.table_export(handles[1]).rows)[:, :DIM]
        with pytest.raises(InvalidArgumentError, match=f"table 'b': illegal address {good[0]} at position 1") as error:
            session.run(updates(kind, handles, illegal, gradients, many))
        messages.append(re.search(r"table 'b': illegal address [^\n]*", error.value.message).group())
        np.testing.assert_array_equal(session.run(ops.table_export(handles[1]).rows)[:, :DIM], before)
    assert messages[0] == messages[1]


def test_update_errors(session: Any) -> None:
    handles = [handle("a"), handle("b")]
    addresses = session.run([ops.find_or_insert(each, [1, 2]) for each in handles])
    with pytest.raises(ValueError, match="gradient rows must equal address rows"):
        ops.apply_sgd_by_address_many(handles, addresses, [tf.zeros([2, DIM]), tf.zeros([3, DIM])], 0.1)
    unknown = tf1.placeholder(tf.float32, [None, None])
    update = ops.apply_sgd_by_address_many(handles, addresses, [tf.zeros([2, DIM]), unknown], 0.1)
    before = session.run(ops.table_export(handles[0]))
    with pytest.raises(InvalidArgumentError, match="'b' got 2 addresses and gradients of shape"):
        session.run(update, {unknown: np.ones([3, DIM])})
    with pytest.raises(InvalidArgumentError, match="dim of table 'b': expected 3, got 4"):
        session.run(update, {unknown: np.ones([2, DIM + 1])})
    np.testing.assert_equal(session.run(ops.table_export(handles[0])), before)


def test_no_standstill_where_all_threads_wait_for_tables_in_use() -> None:
    """Updates of single tables hold a table and want threads; fused lookups occupy all threads and want tables."""
    keys = np.arange(30_000)
    with tf.Graph().as_default():
        handles = [handle(f"t{i}") for i in range(4)]
        many = look_up(handles, [keys] * 4, counts=())
        runs = [many.embeddings, many.embeddings]
        runs += [ops.apply_sgd_by_address(each, ops.find(each, keys), np.ones([30_000, DIM]), 0.1) for each in handles]
        inserts = [ops.find_or_insert(each, keys).op for each in handles]
        config = tf1.ConfigProto(intra_op_parallelism_threads=2, inter_op_parallelism_threads=6)
        session = tf1.Session(config=config)
        session.run(inserts)

        def repeat(fetch: Any) -> None:
            for _ in range(40):
                session.run(fetch)

        threads = [threading.Thread(target=repeat, args=(fetch,), daemon=True) for fetch in runs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        session.close()


def test_released_tables(session: Any) -> None:
    handles = [handle("a"), handle("b")]
    many = look_up(handles, [np.array([1]), np.array([2])])
    session.run(many)
    ops.release_all_tables()
    with pytest.raises(tf.errors.FailedPreconditionError, match="'a' was released"):
        session.run(many)
