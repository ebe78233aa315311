"""Collection names and limits. The value of a collection key is its own name."""

from __future__ import annotations

import enum

ASCEND_GLOBAL_HASHTABLE_COLLECTION = "ASCEND_GLOBAL_HASHTABLE_COLLECTION"
ASCEND_CUTTING_POINT_INITIALIZER = "ASCEND_CUTTING_POINT_INITIALIZER"
ASCEND_SPARSE_LOOKUP_ENTRANCE = "ASCEND_SPARSE_LOOKUP_ENTRANCE"
ASCEND_SPARSE_LOOKUP_ID_OFFSET = "ASCEND_SPARSE_LOOKUP_ID_OFFSET"
ASCEND_SPARSE_LOOKUP_LOCAL_EMB = "ASCEND_SPARSE_LOOKUP_LOCAL_EMB"
ASCEND_TIMESTAMP = "ASCEND_TIMESTAMP"

# Libraries that scripts name in `import_host_pipeline_ops`; whatever it is called, the ops are those of one library.
LIBREC_CPU_SO = "LIBREC_CPU_SO"
LIBREC_EOS_OPS_SO = "LIBREC_EOS_OPS_SO"
LIBREC_TF_NPU_OPS_SO = "LIBREC_TF_NPU_OPS_SO"
LIBREC_TF_REC_V1_CPU_SO = "LIBREC_TF_REC_V1_CPU_SO"

# Node attributes of this project. TensorFlow keeps attributes that start with an underscore
# through import, export and SavedModel.
ATTR_COEFFICIENTS = "_mx_rec_coefficients"  # the op of tables reads it
ATTR_COLLECTIONS = "_mx_rec_collections"
ATTR_GRAPH_TOKEN = "_mx_rec_graph"
ATTR_LOOKUP = "_mx_rec_lookup"
ATTR_PASS = "_mx_rec_pass"
ATTR_UPDATE = "_mx_rec_update"

MIN_DIM = 1
MAX_DIM = 8192
MAX_INT32 = 2147483647
MAX_VOCABULARY_SIZE = 1_000_000_000


class BaseEnum(enum.Enum):
    """An enum whose members can be looked up by value."""

    @classmethod
    def mapping(cls) -> dict:
        """Member by value."""
        return {member.value: member for member in cls}


class MxRecMode(BaseEnum):
    """How tables are laid out and reached."""

    FIXED_CAPACITY = "fixed_capacity"
    DYNAMIC_EXPANSION = "dynamic_expansion"


HOT_EMBEDDING_ENV = "HOT_EMBEDDING"  # environment: 0 leaves gathers that restore the batch to TensorFlow's kernel
COMBINE_FAAE_ENV = "USE_COMBINE_FAAE"  # environment: 1 lets tables with admission count keys together
