"""Prints version, compile flags, link flags and include directory of TensorFlow, a line each."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

# The include directory is handed over as a system directory instead, the standard by CMake.
compile_flags = [flag for flag in tf.sysconfig.get_compile_flags() if not flag.startswith(("-I", "--std"))]
print(tf.__version__)
print(" ".join(compile_flags))
print(" ".join(tf.sysconfig.get_link_flags()))
print(tf.sysconfig.get_include())
