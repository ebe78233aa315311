"""What all optimizers by address share.

TensorFlow's `Optimizer.apply_gradients` takes variables only; rows reached by address are not
variables, so these optimizers bring an `apply_gradients` of their own.
"""

from __future__ import annotations

import abc
import collections
from collections.abc import Iterable
from typing import Any, Optional

import tensorflow as tf

from mx_rec.constants.constants import ASCEND_SPARSE_LOOKUP_ID_OFFSET, ASCEND_SPARSE_LOOKUP_LOCAL_EMB, ATTR_UPDATE
from mx_rec.core import graph_state
from mx_rec.core.saveable import note_slots
from mx_rec.graph.merge_lookup import merge_for_gradients, merged_into
from mx_rec.optimizers.parameters import LearningRate, check_learning_rate
from mx_rec.tf_compat import set_string_attr
from mx_rec.util.initialize import ConfigInitializer
from mx_rec.util.validate import check_string

_ADDRESS_OPS = ("MxRecFindOrInsert", "MxRecFind")


class ByAddressOptimizer(tf.compat.v1.train.Optimizer, abc.ABC):
    """Base of the optimizers by address.

    `compute_gradients(loss, local_embs)` is TensorFlow's; without `local_embs` it merges the lookups of each table
    (see `mx_rec.graph.do_merge_lookup`) and takes the local embeddings of all training lookups. `apply_gradients`
    takes pairs of gradient and addresses.
    """

    def __init__(self, learning_rate: LearningRate, name: str) -> None:
        config = ConfigInitializer.get_instance()
        check_string("name", name, 1, 200)
        if not config.use_dynamic_expansion:
            raise ValueError(
                f"{name}: an optimizer by address needs init(use_dynamic_expansion=True); "
                "with tables of fixed capacity use create_hash_optimizer"
            )
        super().__init__(use_locking=False, name=name)
        self._learning_rate = check_learning_rate(learning_rate)

    def compute_gradients(
        self, loss: Any, var_list: Optional[list[tf.Tensor]] = None, *args: Any, **kwargs: Any
    ) -> list[tuple[Any, tf.Tensor]]:
        """Gradients of `loss` by local embeddings.

        Args:
            loss: scalar.
            var_list: local embeddings, float32 [n, dim]. By default the lookups of each table that `loss` comes from
                are merged, and all of the collection ASCEND_SPARSE_LOOKUP_LOCAL_EMB are taken, in its order. Lookups
                are not merged for a list, since a script that has read the collection holds the addresses of the
                single lookups too.
            *args: as in TensorFlow.
            **kwargs: as in TensorFlow.

        Returns:
            Pairs (gradient, local embedding).

        Raises:
            ValueError: a local embedding of `var_list` belongs to a lookup that has been merged since.
        """
        if var_list is None:
            merge_for_gradients(loss)
            var_list = loss.graph.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB)
        for embedding in var_list:
            _check_not_merged(embedding, ASCEND_SPARSE_LOOKUP_LOCAL_EMB)
        pairs: list[tuple[Any, tf.Tensor]] = super().compute_gradients(loss, var_list, *args, **kwargs)
        return pairs

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, tf.Tensor]],
        global_step: Optional[tf.Variable] = None,
        name: Optional[str] = None,
    ) -> tf.Operation:
        """Updates rows by address.

        Args:
            grads_and_vars: pairs (gradient, addresses): a float32 [n, dim] tensor or IndexedSlices,
                and the int64 [n] addresses of the same lookup, as in the collections
                ASCEND_SPARSE_LOOKUP_LOCAL_EMB and ASCEND_SPARSE_LOOKUP_ID_OFFSET. A None gradient is
                skipped. Pairs of one table are one update: gradients of an address in several
                lookups are summed, and the table's step count advances once.
            global_step: incremented by one after the updates.
            name: of the resulting operation.

        Returns:
            The operation that does all updates.

        Raises:
            ValueError: there is no gradient at all; addresses are not the result of a lookup; or the
                rows of a gradient and its addresses are known to differ.
        """
        by_table: dict[str, list[tuple[tf.Tensor, tf.Tensor]]] = collections.OrderedDict()
        handles: dict[str, tf.Tensor] = {}
        pairs = list(grads_and_vars)
        for gradient, addresses in pairs:
            handle = table_handle_of(addresses)
            if gradient is None:
                continue
            handles[handle.name] = handle
            mark_updated(handle)
            optimizer, initial_values = self._slot_kind()
            if optimizer:
                note_slots(handle, graph_state.SlotKind(optimizer, initial_values))
            by_table.setdefault(handle.name, []).append((_dense(gradient), addresses))
        if not by_table:
            shown = [getattr(addresses, "name", addresses) for _, addresses in pairs]
            raise ValueError(f"no gradient for any of the addresses {shown}: does the loss depend on them?")
        with tf.compat.v1.name_scope(name or self.get_name()) as scope:
            rate = self._rate_tensor()
            updates = [self._apply_to_table(handles[key], *_concat(group), rate) for key, group in by_table.items()]
            for update in updates:  # only their group is given away: the rewrite may do them in one op
                set_string_attr(update, ATTR_UPDATE, scope.rstrip("/"))
            if global_step is None:
                return tf.group(*updates, name=scope)
            with tf.control_dependencies(updates):
                return tf.compat.v1.assign_add(global_step, 1, name=scope).op

    def minimize(
        self,
        loss: tf.Tensor,
        global_step: Optional[tf.Variable] = None,
        var_list: Optional[list[tf.Tensor]] = None,
        gate_gradients: int = tf.compat.v1.train.Optimizer.GATE_OP,
        aggregation_method: Optional[int] = None,
        colocate_gradients_with_ops: bool = False,
        name: Optional[str] = None,
        grad_loss: Optional[tf.Tensor] = None,
    ) -> tf.Operation:
        """Differentiates `loss` by the local embeddings of the graph's training lookups and updates them.

        Args:
            loss: scalar.
            global_step: see `apply_gradients`.
            var_list: local embeddings to train, by default all, after a merge: see `compute_gradients`.
            gate_gradients: as in TensorFlow.
            aggregation_method: as in TensorFlow.
            colocate_gradients_with_ops: as in TensorFlow.
            name: see `apply_gradients`.
            grad_loss: gradient of `loss`, as in TensorFlow.
        """
        if var_list is None:
            merge_for_gradients(loss)
        embeddings = loss.graph.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB)
        addresses = loss.graph.get_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET)
        address_of = {emb.ref(): address for emb, address in zip(embeddings, addresses)}
        chosen = embeddings if var_list is None else var_list
        for emb in chosen:
            _check_not_merged(emb, ASCEND_SPARSE_LOOKUP_LOCAL_EMB)
            if emb.ref() not in address_of:
                raise ValueError(f"{emb.name} is not a local embedding of a training lookup")
        gradients = self.compute_gradients(
            loss,
            var_list=chosen,
            gate_gradients=gate_gradients,
            aggregation_method=aggregation_method,
            colocate_gradients_with_ops=colocate_gradients_with_ops,
            grad_loss=grad_loss,
        )
        return self.apply_gradients(
            [(gradient, address_of[emb.ref()]) for gradient, emb in gradients], global_step, name
        )

    @abc.abstractmethod
    def _apply_to_table(
        self, handle: tf.Tensor, gradients: tf.Tensor, addresses: tf.Tensor, learning_rate: tf.Tensor
    ) -> tf.Operation:
        """The update of one table: gradients [n, dim], addresses [n], scalar rate."""

    def _slot_kind(self) -> tuple[str, tuple[float, ...]]:
        """The name of the optimizer in saved tables, and what its slots begin with; nothing if it has none."""
        return "", ()

    def _rate_tensor(self) -> tf.Tensor:
        rate = self._learning_rate
        return tf.cast(rate() if callable(rate) else rate, tf.float32, name="learning_rate")


def table_handle_of(addresses: Any) -> tf.Tensor:
    """The handle of the table that made `addresses`; ValueError if no lookup did."""
    if not isinstance(addresses, tf.Tensor):
        raise ValueError(f"addresses must be a tensor of a lookup, got {addresses!r}")
    _check_not_merged(addresses, ASCEND_SPARSE_LOOKUP_ID_OFFSET)
    operation = addresses.op
    while operation.type == "Identity":
        operation = operation.inputs[0].op
    if operation.type not in _ADDRESS_OPS:
        raise ValueError(
            f"{addresses.name} ({operation.type}) does not hold the addresses of a lookup; "
            f"take them from the collection {ASCEND_SPARSE_LOOKUP_ID_OFFSET}"
        )
    return operation.inputs[0]


def _check_not_merged(tensor: Any, collection: str) -> None:
    into = merged_into(tensor)
    if into is not None:
        raise ValueError(
            f"{tensor.name} belongs to a lookup that has been merged into {into!r}: "
            f"read the collection {collection} again after do_merge_lookup"
        )


def mark_updated(handle: tf.Tensor) -> None:
    """Notes that an optimizer updates the table; the update itself may sit inside a conditional."""
    graph_state.state_of(handle.graph).updated.add(handle.op.get_attr("table_name").decode())


def _dense(gradient: Any) -> tf.Tensor:
    """[n, dim]; repeated indices of IndexedSlices are summed."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.convert_to_tensor(gradient)
    return gradient


def _concat(group: list[tuple[tf.Tensor, tf.Tensor]]) -> tuple[tf.Tensor, tf.Tensor]:
    if len(group) == 1:
        return group[0]
    gradients, addresses = zip(*group)
    return tf.concat(gradients, axis=0), tf.concat(addresses, axis=0)
