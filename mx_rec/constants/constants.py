"""Collection names and limits. The value of a collection key is its own name."""

from __future__ import annotations

import enum
from typing import Any

ASCEND_GLOBAL_HASHTABLE_COLLECTION = "ASCEND_GLOBAL_HASHTABLE_COLLECTION"
ASCEND_CUTTING_POINT_INITIALIZER = "ASCEND_CUTTING_POINT_INITIALIZER"
ASCEND_SPARSE_LOOKUP_ENTRANCE = "ASCEND_SPARSE_LOOKUP_ENTRANCE"
ASCEND_SPARSE_LOOKUP_ID_OFFSET = "ASCEND_SPARSE_LOOKUP_ID_OFFSET"
ASCEND_SPARSE_LOOKUP_LOCAL_EMB = "ASCEND_SPARSE_LOOKUP_LOCAL_EMB"
ASCEND_SPARSE_LOOKUP_UNIQUE_KEYS = ASCEND_SPARSE_LOOKUP_ID_OFFSET  # of older scripts; each key is there once
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
    def mapping(cls, key: Any) -> BaseEnum:
        """The member of a value, or of a member with that value; KeyError, listing the values, if there is none."""
        value = key.value if isinstance(key, BaseEnum) else key
        for member in cls:
            if member.value == value:
                return member
        raise KeyError(f"{cls.__name__} has no {value!r}; it has {', '.join(repr(member.value) for member in cls)}")


class MxRecMode(BaseEnum):
    """How tables are laid out and reached."""

    ASC = "ASC"  # what scripts say, whichever it is
    FIXED_CAPACITY = "fixed_capacity"
    DYNAMIC_EXPANSION = "dynamic_expansion"


class CacheModeEnum(BaseEnum):
    """Where scripts would have a table live; here it is memory."""

    HBM = "HBM"
    DDR = "DDR"
    SSD = "SSD"


class ApplyGradientsStrategy(BaseEnum):
    """How older scripts reach the rows to update; gradients of equal keys are summed in either case."""

    DIRECT_APPLY = "direct_apply"
    SUM_SAME_ID_GRADIENTS_AND_APPLY = "sum_same_id_gradients_and_apply"


HOT_EMBEDDING_ENV = "HOT_EMBEDDING"  # environment: 0 leaves gathers that restore the batch to TensorFlow's kernel
COMBINE_FAAE_ENV = "USE_COMBINE_FAAE"  # environment: 1 lets tables with admission count keys together
