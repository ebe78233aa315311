"""Node attributes by which the passes of the rewrite talk to each other.

They start with an underscore, so TensorFlow carries them through files and live graphs and ignores them.
"""

from __future__ import annotations

# On an iterator whose lookups have been hoisted: what `swap_iterators` needs. Entry k of the parallel lists
# says that the tensor `TENSORS[k]`, computed from `TENSOR_SOURCES[k]` (a get_next), is component
# `TENSOR_COMPONENTS[k]`; likewise for the hints input of a find node.
HOIST_TYPES = "_mx_rec_hoist_types"
HOIST_SHAPES = "_mx_rec_hoist_shapes"
HOIST_TENSORS = "_mx_rec_hoist_tensors"
HOIST_TENSOR_SOURCES = "_mx_rec_hoist_tensor_sources"
HOIST_TENSOR_COMPONENTS = "_mx_rec_hoist_tensor_components"
HOIST_FINDS = "_mx_rec_hoist_finds"
HOIST_FIND_SOURCES = "_mx_rec_hoist_find_sources"
HOIST_FIND_COMPONENTS = "_mx_rec_hoist_find_components"
HOIST_FACTORY = "_mx_rec_hoist_factory"  # one-shot iterators: the new dataset function
HOIST_ALL = (
    HOIST_TYPES,
    HOIST_SHAPES,
    HOIST_TENSORS,
    HOIST_TENSOR_SOURCES,
    HOIST_TENSOR_COMPONENTS,
    HOIST_FINDS,
    HOIST_FIND_SOURCES,
    HOIST_FIND_COMPONENTS,
    HOIST_FACTORY,
)

# On a MakeIterator: the dataset node that is to replace its dataset.
HOIST_DATASET = "_mx_rec_hoist_dataset"

# On a new get_next: the name of the one it replaces.
REPLACES = "_mx_rec_replaces"

# On a fused lookup: the names of the lookups, and of their original find and gather nodes, in order.
FUSED_LOOKUPS = "_mx_rec_fused_lookups"
FUSED_FINDS = "_mx_rec_fused_finds"
FUSED_GATHERS = "_mx_rec_fused_gathers"

# On the find of a merged lookup: the names of the lookups that it stands for.
MERGED_LOOKUPS = "_mx_rec_merged_lookups"
# On a node of a lookup that was merged: the node of the merged lookup that does its work.
MERGED_INTO = "_mx_rec_merged_into"

# On a table that has taken the place of variables: their nodes, and those of their slots.
CONVERTED = "_mx_rec_converted"

# On such a table: where its content is in a checkpoint of the graph of before; see `mx_rec.graph.origins`.
ORIGIN = "_mx_rec_origin"

# On an iterator that has been replaced, a merged find, a fused op or a table: the nodes the rewrite took the
# consumers from.
DISCONNECTED = "_mx_rec_disconnected"

# On a restore gather: the implementation a kernel should choose.
OP_IMPL_MODE = "_op_impl_mode"

# By which TensorFlow chooses among the kernels of an op, and the one of GatherV2 in kernels/ops/hot_gather_op.cc.
KERNEL = "_kernel"
HOT_KERNEL = "mx_rec_hot"
