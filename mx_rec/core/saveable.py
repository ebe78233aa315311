"""How TensorFlow's `Saver` comes to save and restore tables, unchanged.

A `Saver` saves, besides variables, the `SaveableObject`s of the collection SAVEABLE_OBJECTS: some tensors each, which
`restore` gets back (`mx_rec.ops.saveables`). Names of a table's files match the pattern of TensorFlow's data files, so
whoever deletes a checkpoint by it (`max_to_keep`) deletes them too.
"""

from __future__ import annotations

import dataclasses
import functools

import tensorflow as tf

from mx_rec.core import graph_state
from mx_rec.core.table import EmbeddingTable
from mx_rec.ops import saveables as op_saveables
from mx_rec.ops.saveables import restore_op as restore_op
from mx_rec.saved_parts import SAVEABLE_OBJECTS, SavedParts
from mx_rec.util.log import logger


class TableSaveable(op_saveables.TableSaveable):
    """A table as a `Saver` sees it, with what optimizers have added."""

    @property
    def parts(self) -> SavedParts:
        """What is saved now: an optimizer may have added its slots since the table was made."""
        state = graph_state.state_of(self._graph)
        slots = state.slots.get(self._parts.table_name)
        table = state.tables.get(self._parts.table_name)
        if slots is None or table is None or table.variable is None:
            return self._parts
        return dataclasses.replace(
            self._parts,
            variables=(table.variable.handle.name, *(variable.handle.name for variable in slots.variables)),
            steps=() if slots.steps is None else (slots.steps.handle.name,),
            optimizer=slots.optimizer,
            slot_initials=slots.initial_values,
        )


def add_saveable(table: EmbeddingTable) -> None:
    """Has every Saver that is made in the table's graph from now on save the table."""
    graph = table.handle.graph
    saveables = table_saveables(graph)
    variables = () if table.variable is None else (table.variable.handle.name,)
    number = 1 + max((saveable.parts.file_number for saveable in saveables), default=-1)
    parts = SavedParts(table.table_name, table.key_dtype.name, number, table.handle.name, variables)
    graph.add_to_collection(SAVEABLE_OBJECTS, TableSaveable(graph, parts))


def table_saveables(graph: tf.Graph) -> list[op_saveables.TableSaveable]:
    """The saveables of a graph's tables, in order of creation."""
    members = graph.get_collection(SAVEABLE_OBJECTS)
    return [member for member in members if isinstance(member, op_saveables.TableSaveable)]


def register_saveables() -> None:
    """Lets MetaGraphDefs carry the saveables of tables, so that a Saver can be made after `import_meta_graph`."""
    op_saveables.make_saveables_by(TableSaveable)
    if not op_saveables.register_saveables():
        _warn_of_other_owner()


@functools.lru_cache(maxsize=1)
def _warn_of_other_owner() -> None:
    logger.warning(
        "the collection %s of MetaGraphDefs belongs to another library: after import_meta_graph, a new Saver does not "
        "know of tables",
        SAVEABLE_OBJECTS,
    )
