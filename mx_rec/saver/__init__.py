"""Checkpoints of tables beyond what TensorFlow's own Saver does by itself: deltas, versions and export."""
