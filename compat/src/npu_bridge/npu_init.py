"""Names of a device's TensorFlow adapter, answered by mx_rec."""

import tensorflow as tf  # scripts get it from here by a star import

from mx_rec.estimator import device_adapter
from mx_rec.estimator.device_adapter import *  # noqa: F403

__all__ = [*device_adapter.__all__, "tf"]
