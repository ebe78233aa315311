"""Names of a device's TensorFlow adapter, answered by mx_rec."""

from mx_rec.estimator.device_adapter import *  # noqa: F403
from mx_rec.estimator.device_adapter import __all__ as __all__
