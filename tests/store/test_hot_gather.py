"""The kernel of GatherV2 that spreads rows over a batch gives what TensorFlow's gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from mx_rec import ops
from mx_rec.graph.attrs import attr_bytes
from mx_rec.graph.marks import HOT_KERNEL, KERNEL

tf1 = tf.compat.v1
InvalidArgumentError = tf.errors.InvalidArgumentError


@pytest.fixture
def session() -> Any:
    tf1.disable_eager_execution()
    ops.load_library()
    with tf.Graph().as_default(), tf1.Session() as opened:
        yield opened


def _gathered(rows: Any, positions: Any, is_hot: bool, axis: int = 0) -> tf.Tensor:
    result = tf.gather(tf1.placeholder_with_default(rows, rows.shape), positions, axis=axis)
    if is_hot:
        result.op._set_attr(KERNEL, attr_bytes(HOT_KERNEL))
    return result


@pytest.mark.parametrize("dim", [1, 3, 8, 16, 64, 300])
@pytest.mark.parametrize("shape", [(), (0,), (3, 2), (40_000,)])
def test_it_equals_tensorflows(session: Any, dim: int, shape: tuple[int, ...]) -> None:
    random = np.random.RandomState(1)
    rows = random.randn(500, dim).astype(np.float32)
    positions = (random.zipf(1.3, shape) % 500 if shape else np.array(7)).astype(np.int32)
    hot, stock = session.run([_gathered(rows, positions, True), _gathered(rows, positions, False)])
    assert hot.shape == (*shape, dim)
    np.testing.assert_array_equal(hot.view(np.int32), stock.view(np.int32))


def test_no_rows(session: Any) -> None:
    rows = np.zeros([0, 4], np.float32)
    assert session.run(_gathered(rows, np.zeros([0], np.int32), True)).shape == (0, 4)


@pytest.mark.parametrize("wrong", [4, -1, 2**31 - 1])
def test_a_position_out_of_range_is_named(session: Any, wrong: int) -> None:
    result = _gathered(np.ones([4, 3], np.float32), np.array([0, wrong], np.int32), True)
    with pytest.raises(InvalidArgumentError, match=rf"indices\[1\] = {wrong} is out of range \[0, 4\)"):
        session.run(result)


@pytest.mark.parametrize(("shape", "axis"), [([4, 3], 1), ([4], 0), ([2, 2, 2], 0)])
def test_it_refuses_what_it_is_not_made_for(session: Any, shape: list[int], axis: int) -> None:
    result = _gathered(np.ones(shape, np.float32), np.array([0], np.int32), True, axis)
    with pytest.raises(InvalidArgumentError, match="along axis 0 of a matrix.*remove its attribute _kernel"):
        session.run(result)
