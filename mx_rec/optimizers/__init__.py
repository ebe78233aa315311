"""Sparse optimizers. Those by address train the rows of tables with dynamic expansion."""
