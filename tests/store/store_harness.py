"""A table driven through the ops, beside a plain dict model of it."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from mx_rec import ops

tf1 = tf.compat.v1


class OpTable:
    """One table in one session, each op fed through placeholders."""

    def __init__(self, dim: int, name: str = "t", weight_decay: float = 0.0, **handle_kwargs):
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.keys = tf1.placeholder(tf.int64, [None])
            self.hints = tf1.placeholder(tf.int64, [None])
            self.counts = tf1.placeholder(tf.int32, [None])
            self.addresses = tf1.placeholder(tf.int64, [None])
            self.gradients = tf1.placeholder(tf.float32, [None, dim])
            self.rate = tf1.placeholder(tf.float32, [])
            self.default_row = tf1.placeholder(tf.float32, [None])
            handle = ops.table_handle(name, dim, **handle_kwargs)
            self._find_or_insert = ops.find_or_insert(handle, self.keys, self.hints, self.counts)
            self._find = ops.find(handle, self.keys, self.hints)
            self._look_ahead = {r: ops.look_ahead(handle, self.keys, r) for r in (False, True)}
            self._gather = ops.gather_by_address(handle, self.addresses, dim, self.default_row)
            self._sgd = ops.apply_sgd_by_address(handle, self.addresses, self.gradients, self.rate, weight_decay)
            self._adam = ops.apply_lazy_adam_by_address(handle, self.addresses, self.gradients, self.rate)
            self._size = ops.table_size(handle)
            self._capacity = ops.table_capacity(handle)
            self._export = ops.table_export(handle)
        self.session = tf1.Session(graph=self.graph)

    def find_or_insert(self, keys, hints=(), counts=()):
        feed = {self.keys: keys, self.hints: hints, self.counts: counts}
        return self.session.run(self._find_or_insert, feed)

    def find(self, keys, hints=()):
        return self.session.run(self._find, {self.keys: keys, self.hints: hints})

    def look_ahead(self, keys, reserve):
        return self.session.run(self._look_ahead[reserve], {self.keys: keys})

    def gather(self, addresses, default_row=()):
        return self.session.run(self._gather, {self.addresses: addresses, self.default_row: default_row})

    def sgd(self, addresses, gradients, rate):
        self.session.run(self._sgd, {self.addresses: addresses, self.gradients: gradients, self.rate: rate})

    def lazy_adam(self, addresses, gradients, rate):
        self.session.run(self._adam, {self.addresses: addresses, self.gradients: gradients, self.rate: rate})

    def size(self):
        return int(self.session.run(self._size))

    def capacity(self):
        return int(self.session.run(self._capacity))

    def export(self):
        return ops.table_ops.TableContent(*self.session.run(self._export))

    def close(self):
        self.session.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class DictModel:
    """What a table must hold: rows and counts by key."""

    def __init__(self, dim: int, initial: float):
        self.dim = dim
        self.initial = np.float32(initial)
        self.rows: dict[int, np.ndarray] = {}
        self.counts: dict[int, int] = {}

    def insert(self, keys, counts):
        for key, count in zip(keys, counts):
            self.rows.setdefault(key, np.full(self.dim, self.initial, np.float32))
            self.counts[key] = self.counts.get(key, 0) + count

    def sgd(self, keys, gradients, rate):
        """Gradients of a repeated key are summed first, in order."""
        summed: dict[int, np.ndarray] = {}
        for key, gradient in zip(keys, gradients):
            summed[key] = gradient.copy() if key not in summed else summed[key] + gradient
        for key, gradient in summed.items():
            if key in self.rows:
                self.rows[key] = self.rows[key] - np.float32(rate) * gradient
