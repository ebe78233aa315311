"""Small graphs with lookups, built node by node, so that they need neither a Session nor the op library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

import numpy as np
from tensorflow.core.framework import graph_pb2

from mx_rec.constants.constants import ATTR_LOOKUP, ATTR_UPDATE
from mx_rec.graph.attrs import (
    DT_BOOL,
    DT_FLOAT,
    DT_INT32,
    DT_INT64,
    DT_VARIANT,
    AttrValue,
    attr_bytes,
    attr_int,
    attr_shapes,
    attr_tensor,
    attr_type,
    attr_types,
    known_shape,
)
from mx_rec.graph.edits import EditSet
from mx_rec.graph.node import TensorRef, parse_ref
from mx_rec.graph.view import GraphView

Source = Union[str, TensorRef]
FEATURES = {"ids": DT_INT64, "other_ids": DT_INT64, "label": DT_FLOAT}


class LookupGraph:
    """Adds nodes the way `sparse_lookup` and `tf.data` do. Tensors are `TensorRef`s or "name:index"."""

    def __init__(self) -> None:
        self._edits = EditSet()

    def graph_def(self) -> Any:
        return GraphView(graph_pb2.GraphDef()).edited(self._edits).to_graph_def()

    def add(
        self,
        name: str,
        op: str,
        inputs: Sequence[Source] = (),
        attrs: dict[str, AttrValue] | None = None,
        **options: Any,
    ) -> TensorRef:
        refs = [parse_ref(source) if isinstance(source, str) else source for source in inputs]
        return self._edits.add_node(name, op, refs, attrs, **options)

    def add_function(self, function: Any) -> None:
        self._edits.add_function(function)

    def const(self, name: str, value: Any, dtype: int = DT_INT64) -> TensorRef:
        return self.add(name, "Const", (), {"dtype": attr_type(dtype), "value": attr_tensor(value, dtype)})

    def dataset(self, name: str = "data", rows: int = 8, seed: int = 0) -> TensorRef:
        """Batches of 2: ids [2, 3], other_ids [2], label [2]."""
        random = np.random.RandomState(seed)
        parts = [
            self.const(f"{name}/ids", random.randint(0, 20, (rows, 2, 3))),
            self.const(f"{name}/other_ids", random.randint(0, 9, (rows, 2))),
            self.const(f"{name}/label", random.rand(rows, 2).astype(np.float32), DT_FLOAT),
        ]
        attrs = {
            "Toutput_types": attr_types(FEATURES.values()),
            "output_shapes": self.element_attrs()["output_shapes"],
        }
        return self.add(name, "TensorSliceDataset", parts, attrs)

    @staticmethod
    def element_attrs() -> dict[str, AttrValue]:
        shapes = [known_shape([2, 3]), known_shape([2]), known_shape([2])]
        return {"output_types": attr_types(FEATURES.values()), "output_shapes": attr_shapes(shapes)}

    def iterator(self, name: str = "iterator", dataset: TensorRef | None = None, **options: Any) -> TensorRef:
        attrs = {**self.element_attrs(), "container": attr_bytes(""), "shared_name": attr_bytes("")}
        iterator = self.add(name, "IteratorV2", (), attrs, **options)
        if dataset is not None:
            self.add(f"{name}/make", "MakeIterator", [dataset, iterator])
        return iterator

    def get_next(self, name: str, iterator: Source, **options: Any) -> list[TensorRef]:
        """ids, other_ids, label."""
        self.add(name, "IteratorGetNext", [iterator], self.element_attrs(), **options)
        return [TensorRef(name, index) for index in range(len(FEATURES))]

    def batch(self) -> list[TensorRef]:
        """The batch of an initializable iterator over `dataset()`."""
        return self.get_next("batch", self.iterator("iterator", self.dataset()))

    def table(self, name: str = "user", dim: int = 4) -> TensorRef:
        attrs = {"table_name": attr_bytes(name), "dim": attr_int(dim), "shared_name": attr_bytes(name)}
        return self.add(f"mx_rec/{name}/handle", "MxRecTable", (), attrs)

    def mod(self, name: str, ids: Source, buckets: int = 7) -> TensorRef:
        """A piece of preprocessing."""
        return self.binary(name, "FloorMod", ids, self.const(f"{name}/y", buckets))

    def binary(self, name: str, op: str, x: Source, y: Source, dtype: int = DT_INT64) -> TensorRef:
        return self.add(name, op, [x, y], {"T": attr_type(dtype)})

    def unary(self, name: str, op: str, x: Source, dtype: int = DT_INT64, **options: Any) -> TensorRef:
        return self.add(name, op, [x], {"T": attr_type(dtype)}, **options)

    def lookup(
        self,
        name: str,
        table: TensorRef,
        ids: Source,
        *,
        is_train: bool = True,
        dim: int = 4,
        max_keys: int = 0,
        time: Source | None = None,
        is_per_sample: bool = False,
        coefficient: int = 1,
    ) -> TensorRef:
        """The nodes of one `sparse_lookup`. Returns its result."""
        attrs = {"max_keys": max_keys, "coefficient": coefficient if coefficient > 1 else 0}
        times = None if time is None else (time, is_per_sample)
        scope, rows, restore, mark = self._local_embedding(name, table, ids, is_train, dim, attrs, times)
        axis = self.const(f"{scope}/embeddings/axis", 0, DT_INT32)
        types = {"Tparams": DT_FLOAT, "Tindices": DT_INT32, "Taxis": DT_INT32}
        attrs = {name: attr_type(dtype) for name, dtype in types.items()}
        return self.add(f"{scope}/embeddings", "GatherV2", [rows, restore, axis], {**attrs, **mark})

    def pooled_lookup(
        self, name: str, table: TensorRef, sparse: Sequence[TensorRef], *, is_train: bool = True, dim: int = 4
    ) -> TensorRef:
        """The nodes of one `sparse_lookup` with a combiner; `sparse` are indices, values, dense shape."""
        indices, values, shape = sparse
        scope, rows, restore, mark = self._local_embedding(name, table, values, is_train, dim)
        bounds = [self.const(f"{scope}/{part}", [value], DT_INT32) for part, value in zip("abc", (0, 1, 1))]
        types = {"T": attr_type(DT_INT64), "Index": attr_type(DT_INT32), "shrink_axis_mask": attr_int(1)}
        num_rows = self.add(f"{scope}/num_rows", "StridedSlice", [shape, *bounds], types)
        splits = self.add(f"{scope}/row_splits", "MxRecRowSplits", [indices, num_rows])
        attrs = {"W": attr_int(0), "combiner": attr_bytes("mean"), **mark}
        return self.add(f"{scope}/embeddings", "MxRecPool", [rows, restore, splits], attrs)

    def _local_embedding(
        self,
        name: str,
        table: TensorRef,
        ids: Source,
        is_train: bool,
        dim: int,
        find_attrs: dict[str, int] | None = None,
        times: tuple[Source, bool] | None = None,
    ) -> tuple[str, TensorRef, TensorRef, dict[str, AttrValue]]:
        """(scope, local embedding, the place of each id in it, what marks the nodes of the lookup)."""
        scope = f"{table.node.rsplit('/', 1)[0]}/{name}"
        mark = {ATTR_LOOKUP: attr_bytes(name)}
        entrance = self.add(f"{scope}/ids", "Identity", [ids], {"T": attr_type(DT_INT64), **mark})
        self.add(f"{scope}/unique", "MxRecUnique", [entrance], {"Tids": attr_type(DT_INT64), **mark})
        keys, restore, counts = (TensorRef(f"{scope}/unique", index) for index in range(3))
        hints = self.const(f"{scope}/no_hints", [])
        attrs = {**mark, **{key: attr_int(value) for key, value in (find_attrs or {}).items() if value}}
        if is_train:
            inputs = [table, keys, hints, counts]
            if times is not None:
                time, is_per_sample = times
                name = f"{scope}/timestamps"
                inputs.append(self.add(name, "MxRecKeyTimes", [keys, restore, time]) if is_per_sample else time)
                attrs["M"] = attr_int(1)
            addresses = self.add(f"{scope}/addresses", "MxRecFindOrInsert", inputs, attrs)
        else:
            addresses = self.add(f"{scope}/addresses", "MxRecFind", [table, keys, hints], attrs)
        default_row = self.const(f"{scope}/default_row", [], DT_FLOAT)
        rows = self.add(
            f"{scope}/local_emb",
            "MxRecGatherByAddress",
            [table, addresses, default_row],
            {"dim": attr_int(dim), **mark},
        )
        return scope, rows, restore, mark

    def sparse_batch(self) -> list[TensorRef]:
        """Indices, values and dense shape of a batch of sparse ids, [2, 3], of an initializable iterator."""
        parts = [
            self.const("data/indices", [[0, 0], [1, 0], [1, 2], [3, 1]]),
            self.const("data/values", [5, 6, 5, 7]),
            self.const("data/shape", [4, 3]),
        ]
        types = {"T": attr_type(DT_INT64), "out_type": attr_type(DT_VARIANT)}
        rows = self.add("data/rows", "SerializeManySparse", parts, types)
        element = {"output_types": attr_types([DT_VARIANT]), "output_shapes": attr_shapes([None])}
        attrs = {"Toutput_types": attr_types([DT_VARIANT]), "output_shapes": attr_shapes([known_shape([3])])}
        data = self.add("data", "TensorSliceDataset", [rows], attrs)
        sizes = [self.const("batch_size", 2), self.const("drop_remainder", False, DT_BOOL)]
        batched = self.add("batched", "BatchDatasetV2", [data, *sizes], element)
        names = {"container": attr_bytes(""), "shared_name": attr_bytes("")}
        iterator = self.add("iterator", "IteratorV2", (), {**element, **names})
        self.add("iterator/make", "MakeIterator", [batched, iterator])
        component = self.add("batch", "IteratorGetNext", [iterator], element)
        types = {"dtype": attr_type(DT_INT64), "Tserialized": attr_type(DT_VARIANT)}
        self.add("sparse", "DeserializeSparse", [component], types)
        return [TensorRef("sparse", index) for index in range(3)]

    def update(self, scope: str, gradient: Source, *, call: str = "train", rate: float = 0.1, dim: int = 4) -> str:
        """What TensorFlow makes of the gradient of a lookup's result, and the update that takes it. Returns its name.

        Args:
            scope: of the lookup's nodes.
            gradient: of the result, in the form of the result.
            call: marks which `apply_gradients` made it; "" for none.
            rate: learning rate.
            dim: of the table.
        """
        find = GraphView(self.graph_def()).node(f"{scope}/addresses")
        keys, restore = TensorRef(f"{scope}/unique", 0), TensorRef(f"{scope}/unique", 1)
        attrs = {"N": attr_int(1), "dim": attr_int(dim)}
        total = self.add(f"{scope}/grad/sum", "MxRecSumGradientsMany", [gradient, restore, keys], attrs)
        inputs = [find.inputs[0], TensorRef(find.name, 0), total, self.const(f"{scope}/rate", rate, DT_FLOAT)]
        attrs = {ATTR_UPDATE: attr_bytes(call)} if call else {}
        self.add(f"{scope}/update", "MxRecApplySgdByAddress", inputs, attrs)
        return f"{scope}/update"


def big_graph(nodes: int, lookups: int) -> Any:
    """A graph of about `nodes` nodes: `lookups` lookups of 50 tables on one iterator, and a dense tail."""
    graph = LookupGraph()
    ids, other_ids, _ = graph.batch()
    tables = [graph.table(f"table_{index}") for index in range(50)]
    buckets = graph.const("buckets", 1000)
    results = []
    for index in range(lookups):
        shifted = graph.binary(
            f"shift_{index}", "AddV2", other_ids if index % 2 else ids, graph.const(f"by_{index}", index)
        )
        keys = graph.binary(f"mod_{index}", "FloorMod", shifted, buckets)
        results.append(graph.lookup(f"lookup_{index}", tables[index % 50], keys, is_train=index % 3 != 0))
    used = 11 * lookups + 60
    for index in range(max(0, nodes - used)):
        previous = results[index % lookups] if index < lookups else f"dense_{index - lookups}"
        graph.unary(f"dense_{index}", "Relu", previous, DT_FLOAT)
    return graph.graph_def()
