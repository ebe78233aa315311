"""Names of a device's TensorFlow adapter, answered by mx_rec."""

import tf_adapter
from tf_adapter import *  # noqa: F403

__all__ = tf_adapter.__all__
