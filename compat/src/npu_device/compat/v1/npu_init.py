"""Names of a device's TensorFlow adapter, answered by mx_rec."""

import tensorflow as tf  # scripts get it from here by a star import
import tf_adapter
from tf_adapter import *  # noqa: F403

__all__ = [*tf_adapter.__all__, "tf"]
